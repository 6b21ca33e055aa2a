//! `cofferdam snapshot`, `fork`, `restore`, `template`, `export` and `import`.

mod files;
mod templates;

use crate::render::say;
use crate::sandboxes::table::{Table, ago, bytes, short};
use crate::{render, surroundings};
use clap::ArgMatches;
use node::lifecycle::stop::Which;
use node::snapshots::{self, Since};
use node::state::State;
use node::{Caller, fresh};
use serde_json::json;
use std::process::ExitCode;
use terms::{Fault, PROTOCOL_VERSION};

/// Carries out one of the verbs of `args::snapshots`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let inner = matches.subcommand().map_or(matches, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = surroundings::caller().and_then(|caller| match (verb, matches.subcommand()) {
        ("snapshot", None) => take(matches, &caller, json),
        ("snapshot", Some(("ls", m))) => ls(m, &caller, json),
        ("snapshot", Some((_, m))) => rm(m, &caller, json),
        ("fork", _) => fork(matches, &caller, json),
        ("restore", _) => restore(matches, &caller, json),
        ("template", Some((verb, m))) => templates::main(verb, m, &caller, json),
        ("export", _) => files::export(matches, &caller, json),
        _ => files::import(matches, &caller, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn text<'a>(m: &'a ArgMatches, name: &str) -> Option<&'a str> {
    m.get_one::<String>(name).map(String::as_str)
}

fn take(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let which = Which { word: text(m, "sandbox").map(str::to_owned), version: None };
    let taken = match m.get_flag("sync") {
        true => snapshots::take_to_disk(&state, caller, &which, text(m, "name"), None)?,
        false => snapshots::take_once(&state, caller, &which, text(m, "name"), None)?,
    };
    if json {
        render::print_json(&taken);
    } else {
        say(&taken.id);
    }
    if taken.layers > snapshots::DEEP {
        // After the answer. What hinders it hinders nothing: it is tried again with the next snapshot.
        let _ = snapshots::squash(&state, caller, &taken.sandbox);
    }
    Ok(ExitCode::SUCCESS)
}

fn ls(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let of = match text(m, "sandbox") {
        Some(word) => Some(state.store.read(|tx| node::sandbox::find(tx, Some(word), caller))?.id),
        None => None,
    };
    let found = snapshots::list(&state, of.as_deref())?;
    if json {
        let row = |s: &snapshots::Listed| {
            json!({ "id": s.id, "name": s.name, "sandbox": s.sandbox, "base": s.base, "automatic": s.automatic,
                    "digest": s.digest, "layers": s.layers, "bytes": s.bytes, "created_ms": s.created_ms })
        };
        let rows: Vec<_> = found.iter().map(row).collect();
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "snapshots": rows }));
        return Ok(ExitCode::SUCCESS);
    }
    let now = fresh::now_ms();
    let mut table = Table::new(&["ID", "NAME", "SANDBOX", "LAYERS", "SIZE", "TAKEN", "DIRECTORY"]);
    for s in &found {
        let name = s.name.clone().unwrap_or_else(|| if s.automatic { "(automatic)".into() } else { String::new() });
        let (layers, size, taken) = (s.layers.to_string(), bytes(s.bytes), ago(s.created_ms, now));
        table.row(vec![short(&s.id), name, short(&s.sandbox), layers, size, taken, s.base.display().to_string()]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn rm(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let mut gone = Vec::new();
    for word in m.get_many::<String>("snapshot").unwrap_or_default() {
        gone.push(snapshots::remove(&state, caller, word)?);
    }
    if json {
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "removed": gone }));
    } else {
        gone.iter().for_each(|id| say(id));
    }
    Ok(ExitCode::SUCCESS)
}

fn fork(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let count = m.get_one::<u32>("count").copied().unwrap_or(1);
    let forked = snapshots::fork(&state, caller, text(m, "sandbox"), text(m, "name"), count)?;
    if json {
        render::print_json(&forked);
    } else {
        forked.sandboxes.iter().for_each(|made| say(&made.id));
    }
    Ok(ExitCode::SUCCESS)
}

fn restore(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let state = State::open(caller)?;
    let since = if m.get_flag("discard") { Since::Discard } else { Since::Keep };
    let snapshot = text(m, "snapshot").unwrap_or_default();
    let which = Which { word: m.get_one::<String>("sandbox").cloned(), version: None };
    let done = snapshots::restore(&state, caller, snapshot, &which, since)?;
    if json {
        render::print_json(&done);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(kept) = &done.kept {
        render::note(&format!("what it had until now is kept as {kept}"));
    }
    say(&done.sandbox);
    Ok(ExitCode::SUCCESS)
}
