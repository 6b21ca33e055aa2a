//! Flags that several verbs share, as values.

use crate::{quantity, render};
use api::Driver;
use clap::ArgMatches;
use node::policies::{Flag, secret_entry};
use std::time::Duration;
use terms::{Action, Fault, Limits, Phase};

/// Returns the rules that flags give.
pub fn flags(m: &ArgMatches) -> Vec<Flag> {
    type Make = fn(Action, String) -> Flag;
    let kinds: [(&str, &str, Make); 4] = [
        ("read", "deny-read", Flag::Read),
        ("write", "deny-write", Flag::Write),
        ("exec", "deny-exec", Flag::Exec),
        ("net", "deny-net", Flag::Net),
    ];
    let mut flags = Vec::new();
    for (allow, deny, make) in kinds {
        for (name, action) in [(allow, Action::Allow), (deny, Action::Deny)] {
            let values = m.try_get_many::<String>(name).ok().flatten().unwrap_or_default();
            let values: Vec<String> = match allow {
                "net" => values.flat_map(|list| node::policies::split_targets(list)).collect(),
                _ => values.cloned().collect(),
            };
            flags.extend(values.into_iter().map(|value| make(action, value)));
        }
    }
    flags.extend(secrets(m).filter(|word| secret_entry::is_entry(word)).map(|word| Flag::Secret(word.clone())));
    let copied = m.try_get_many::<String>("copy-in").ok().flatten().unwrap_or_default();
    flags.extend(copied.cloned().map(Flag::CopyIn));
    flags
}

/// Returns the sources of secrets, `NAME=SOURCE`. The other form of the flag is a rule.
pub fn secret_sources(m: &ArgMatches) -> Vec<String> {
    secrets(m).filter(|word| !secret_entry::is_entry(word)).cloned().collect()
}

fn secrets(m: &ArgMatches) -> impl Iterator<Item = &String> {
    m.try_get_many::<String>("secret").ok().flatten().unwrap_or_default()
}

/// Returns the limits that flags give.
pub fn limits(m: &ArgMatches) -> Result<Limits, Fault> {
    let mut limits = Limits::default();
    for item in m.get_many::<String>("limit").unwrap_or_default() {
        quantity::set(&mut limits, item)?;
    }
    for (flag, name) in
        [("memory", "memory"), ("timeout", "wall"), ("pids", "processes"), ("disk", "disk"), ("output", "output")]
    {
        if let Some(amount) = value(m, flag) {
            quantity::set_one(&mut limits, name, amount).map_err(|why| bad(flag, &why))?;
        }
    }
    Ok(limits)
}

/// Returns `--ask-timeout`: how long a question waits for its answer.
pub fn ask_timeout(m: &ArgMatches) -> Result<Option<Duration>, Fault> {
    let Some(word) = value(m, "ask-timeout") else { return Ok(None) };
    let timeout = Duration::from_millis(quantity::time(word).map_err(|e| bad("ask-timeout", &e))?);
    let (least, most) = (node::questions::LEAST_PATIENCE, node::questions::MOST_PATIENCE);
    match (least..=most).contains(&timeout) {
        true => Ok(Some(timeout)),
        false => Err(bad("ask-timeout", &format!("{word:?}: must be between 1s and {}s", most.as_secs()))),
    }
}

/// Returns `--driver`; none where the best one is to be found.
pub fn driver(m: &ArgMatches) -> Option<Driver> {
    match value(m, "driver").map(String::as_str) {
        Some("overlay") => Some(Driver::Overlay),
        Some("reflink") => Some(Driver::Reflink),
        Some("copy") => Some(Driver::Copy),
        _ => None,
    }
}

/// Notes settings of another tool's file that are not in force; also without a terminal, for the log.
pub fn tell_left_out(m: &ArgMatches, left_out: &[String]) {
    const MOST: usize = 32;
    if m.get_flag("quiet") {
        return;
    }
    left_out.iter().take(MOST).for_each(|line| render::note(line));
    if let Some(more @ 1..) = left_out.len().checked_sub(MOST) {
        render::note(&format!("{more} more settings were not carried over; `cofferdam policy import` names them"));
    }
}

fn value<'a>(m: &'a ArgMatches, name: &str) -> Option<&'a String> {
    m.get_one::<String>(name)
}

fn bad(flag: &str, why: &str) -> Fault {
    Fault::invalid(format!("--{flag} {why}")).phase(Phase::Admission)
}
