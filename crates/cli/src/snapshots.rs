//! `cofferdam snapshot`, `fork`, `restore`, `template`, `export` and `import`.

mod files;
mod templates;

use crate::connection;
use crate::render;
use crate::render::{print_document, say};
use crate::sandboxes::table::{Table, ago, bytes, short};
use clap::ArgMatches;
use client::Engine;
use node::sandbox::Which;
use node::snapshots::ChangesSince;
use serde_json::json;
use std::process::ExitCode;
use terms::{Fault, PROTOCOL_VERSION};

/// Carries out one of the verbs of `args::snapshots`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let inner = matches.subcommand().map_or(matches, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = connection::open(inner).and_then(|engine| match (verb, matches.subcommand()) {
        ("snapshot", None) => take(matches, &engine, json),
        ("snapshot", Some(("ls", m))) => ls(m, &engine, json),
        ("snapshot", Some((_, m))) => rm(m, &engine, json),
        ("fork", _) => fork(matches, &engine, json),
        ("restore", _) => restore(matches, &engine, json),
        ("template", Some((verb, m))) => templates::main(verb, m, &engine, json),
        ("export", _) => files::export(matches, &engine, json),
        _ => files::import(matches, &engine, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn text<'a>(m: &'a ArgMatches, name: &str) -> Option<&'a str> {
    m.get_one::<String>(name).map(String::as_str)
}

fn take(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let which = Which { word: text(m, "sandbox").map(str::to_owned), version: None };
    let taken = engine.snapshot(&which, text(m, "name"), m.get_flag("sync"))?;
    if json {
        render::print_json(&taken);
    } else {
        say(&taken.id);
    }
    engine.settle(&taken);
    Ok(ExitCode::SUCCESS)
}

fn ls(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let found = engine.snapshots(text(m, "sandbox"))?;
    if json {
        return Ok(print_document(json!({ "snapshots": found })));
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["ID", "NAME", "SANDBOX", "LAYERS", "SIZE", "TAKEN", "DIRECTORY"]);
    for s in &found {
        let name = s.name.clone().unwrap_or_else(|| if s.automatic { "(automatic)".into() } else { String::new() });
        let (layers, size, taken) = (s.layers.to_string(), bytes(s.bytes), ago(s.created_ms, now));
        table.row(vec![short(&s.id), name, short(&s.sandbox), layers, size, taken, s.base.display().to_string()]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn rm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let mut gone = Vec::new();
    for word in m.get_many::<String>("snapshot").unwrap_or_default() {
        gone.push(engine.snapshot_remove(word)?);
    }
    if json {
        render::print_json(&json!({ "protocol_version": PROTOCOL_VERSION, "removed": gone }));
    } else {
        gone.iter().for_each(|id| say(id));
    }
    Ok(ExitCode::SUCCESS)
}

fn fork(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let count = m.get_one::<u32>("count").copied().unwrap_or(1);
    let forked = engine.fork(text(m, "sandbox"), text(m, "name"), count)?;
    if json {
        render::print_json(&forked);
    } else {
        forked.sandboxes.iter().for_each(|made| say(&made.id));
    }
    Ok(ExitCode::SUCCESS)
}

fn restore(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let since = if m.get_flag("discard") { ChangesSince::Discard } else { ChangesSince::Keep };
    let snapshot = text(m, "snapshot").unwrap_or_default();
    let which = Which { word: m.get_one::<String>("sandbox").cloned(), version: None };
    let done = engine.restore(snapshot, &which, since)?;
    if json {
        render::print_json(&done);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(kept) = &done.kept {
        render::note(&format!("its former state is kept as {kept}"));
    }
    say(&done.sandbox);
    Ok(ExitCode::SUCCESS)
}
