//! `cofferdam template`.

use super::text;
use crate::args::Runs;
use crate::render;
use crate::render::say;
use crate::run;
use crate::sandboxes::ask;
use crate::sandboxes::table::{Table, ago, bytes};
use clap::ArgMatches;
use node::lifecycle::stop::Which;
use node::lifecycle::{create, remove};
use node::snapshots;
use node::state::State;
use node::warm;
use node::{Caller, fresh};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

pub fn main(verb: &str, m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    match verb {
        "create" => create(m, caller, json),
        "ls" => ls(caller, json),
        "inspect" => inspect(m, caller),
        "warm" => warm(m, caller, json),
        _ => rm(m, caller, json),
    }
}

fn create(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let name = text(m, "name").unwrap_or_default();
    let made = match text(m, "prepare") {
        Some(command) => prepared(m, caller, name, command)?,
        None => snapshots::create(&State::open(caller)?, caller, name, text(m, "from"), None)?,
    };
    if json {
        render::print_json(&made);
    } else {
        say(&made.address);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a sandbox, runs the command in it, and names what it then holds. The sandbox itself does not stay.
fn prepared(m: &ArgMatches, caller: &Caller, name: &str, command: &str) -> Result<snapshots::Templated, Fault> {
    snapshots::refuse_other_template(&State::open(caller)?, name)?;
    let made = create::create(&ask::prepare(m)?, caller)?;
    made.notes.iter().for_each(|note| render::note(note));
    let words = ["--sandbox", &made.id, "-c", command].map(OsString::from);
    let templated = match run::main(Runs::Run, &words) == ExitCode::SUCCESS {
        true => snapshots::create(&State::open(caller)?, caller, name, Some(&made.id), Some(command)),
        false => {
            let fault =
                Fault::new(ErrorKind::Conflict, format!("the template {name:?} was not made: its command failed"));
            Err(fault.hint("see what it said above, and try again").phase(Phase::Execution))
        }
    };
    let which = Which { word: Some(made.id), version: None };
    if let Err(fault) = remove::remove(&which, Some(Duration::from_secs(10)), caller) {
        render::note(&format!("the sandbox of the preparation stays: {}", fault.message));
    }
    templated
}

fn ls(caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let found = snapshots::describe_templates(&State::open(caller)?)?;
    if json {
        let row = |t: &snapshots::Described| {
            json!({ "name": t.name, "address": t.address, "base": t.base, "prepared": t.prepared,
                    "bytes": t.bytes, "created_ms": t.created_ms, "warm": t.warm })
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "templates": rows }));
        return Ok(ExitCode::SUCCESS);
    }
    let now = fresh::now_ms();
    let mut table = Table::new(&["NAME", "DIGEST", "SIZE", "MADE", "READY", "DIRECTORY"]);
    for t in &found {
        let digest: String =
            t.address.split('@').nth(1).unwrap_or_default().chars().take("sha256:".len() + 12).collect();
        let ready = t.warm.as_ref().map_or("-".to_owned(), |warm| format!("{}/{}", warm.ready, warm.keep));
        table.row(vec![
            t.name.clone(),
            digest,
            bytes(t.bytes),
            ago(t.created_ms, now),
            ready,
            t.base.display().to_string(),
        ]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn inspect(m: &ArgMatches, caller: &Caller) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let word = text(m, "template").unwrap_or_default();
    let (kept, warm) = state.store.read(|tx| {
        let kept = snapshots::find_template(tx, word)?;
        let warm = warm::warmth(tx, &kept.id)?;
        Ok((kept, warm))
    })?;
    let (protocol_version, address) = (PROTOCOL_VERSION, kept.record.address());
    render::print_json(&json!({ "protocol_version": protocol_version, "id": kept.id, "address": address,
        "template": kept.record, "warm": warm }));
    Ok(ExitCode::SUCCESS)
}

fn warm(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let create::Ask { policies, flags, limits, cpus, .. } = ask::prepare(m)?;
    let keep = m.get_one::<u32>("keep").copied().unwrap_or_default();
    let template = text(m, "template").unwrap_or_default().to_owned();
    let set = warm::set(&warm::Ask { template, keep, policies, flags, limits, cpus }, caller)?;
    if json {
        render::print_json(&set);
        return Ok(ExitCode::SUCCESS);
    }
    set.notes.iter().for_each(|note| render::note(note));
    if keep > 0 {
        render::note("a daemon makes them and keeps them (`cofferdam serve`); without one nothing stands ready");
    }
    say(&format!("{} {}/{}", set.address, set.warm.ready, set.warm.keep));
    Ok(ExitCode::SUCCESS)
}

fn rm(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let word = text(m, "template").unwrap_or_default();
    let gone = snapshots::remove_template(&State::open(caller)?, caller, word)?;
    if json {
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "removed": gone }));
    } else {
        say(&gone);
    }
    Ok(ExitCode::SUCCESS)
}
