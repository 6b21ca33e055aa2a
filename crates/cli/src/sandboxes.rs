//! `cofferdam create`, `ls`, `ps`, `inspect`, `start`, `stop`, `rm`, `gc` and `audit`.

pub mod ask;
mod cells;
mod progress;
pub mod table;

use crate::connection;
use crate::render;
use crate::render::{print_document, say};
use clap::ArgMatches;
use client::Engine;
use node::change;
use node::gc::{Collected, Sort};
use node::keeper::suspend;
use node::sandbox::{Tier, Which};
use node::stop;
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;
use table::{Table, ago, bytes, from_now};
use terms::Fault;

/// Carries out one of the verbs of `args::sandboxes`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let inner = matches.subcommand().map_or(matches, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = connection::open(inner).and_then(|engine| match verb {
        "create" => create_one(matches, &engine, json),
        "ls" => ls(matches, &engine, json),
        "ps" => ps(&engine, json),
        "inspect" => inspect(matches, &engine),
        "suspend" => suspended(matches, &engine, json),
        "resume" => resumed(engine.resume(&ask::which(matches))?, json),
        "start" => moved(engine.start(&ask::which(matches), matches.get_flag("live"))?, json),
        "stop" => moved(engine.stop(&ask::which(matches), ask::patience(matches)?)?, json),
        "publish" => publish(matches, &engine, json),
        "rm" => rm(matches, &engine, json),
        "gc" => collect(matches, &engine, json),
        _ => match matches.subcommand() {
            Some(("verify", _)) => verify(&engine, json),
            _ => log(inner, &engine, json),
        },
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn create_one(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let ask = ask::create(m)?;
    let made = {
        let mut line = progress::Line::new();
        engine.create(&ask, &mut |now| line.show(now))?
    };
    if json {
        return Ok(print_document(made));
    }
    made.notes.iter().for_each(|note| render::note(note));
    say(&made.id);
    Ok(ExitCode::SUCCESS)
}

fn ls(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let rows = engine.list(m.get_flag("all"))?;
    if json {
        return Ok(print_document(serde_json::json!({ "sandboxes": rows })));
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["ID", "NAME", "STATE", "DIRECTORY", "USED", "EXPIRES"]);
    for row in &rows {
        let expires = match (&row.expired, row.expires_ms) {
            (Some(_), _) => "expired".to_owned(),
            (None, Some(at)) => from_now(at, now),
            (None, None) => "never".to_owned(),
        };
        let name = row.name.clone().unwrap_or_default();
        let base = row.base.display().to_string();
        let standing = match row.live && row.silent.is_none() {
            true => format!("{}, live", row.state.name()),
            false => row.state.name().to_owned(),
        };
        table.row(vec![table::short(&row.id), name, standing, base, ago(row.used_ms, now), expires]);
    }
    table.print();
    rows.iter().filter_map(|row| row.silent.as_deref()).for_each(render::note);
    Ok(ExitCode::SUCCESS)
}

fn ps(engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let runs = engine.running()?;
    if json {
        return Ok(print_document(serde_json::json!({ "runs": runs })));
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["RUN", "SANDBOX", "PID", "SINCE", "COMMAND"]);
    for run in &runs {
        let mut sandbox = run.name.clone().or(run.sandbox.as_deref().map(table::short)).unwrap_or_else(|| "-".into());
        if run.silent.is_some() {
            sandbox += " (silent)";
        }
        let pid = run.pid.map_or("-".into(), |pid| pid.to_string());
        table.row(vec![table::short(&run.run), sandbox, pid, ago(run.started_ms, now), run.command.join(" ")]);
    }
    table.print();
    let silent: BTreeSet<&str> = runs.iter().filter_map(|run| run.silent.as_deref()).collect();
    silent.into_iter().for_each(render::note);
    Ok(ExitCode::SUCCESS)
}

fn inspect(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    Ok(print_document(engine.inspect(ask::which(m).word.as_deref())?))
}

fn moved(moved: stop::Moved, json: bool) -> Result<ExitCode, Fault> {
    if json {
        return Ok(print_document(moved));
    }
    for ended in &moved.ended {
        let how = if ended.killed { "killed" } else { "ended" };
        render::note(&format!("{how} {} (process {})", ended.run, ended.pid));
    }
    say(&moved.id);
    Ok(ExitCode::SUCCESS)
}

fn suspended(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let tier = if m.get_flag("hibernate") { Tier::Hibernated } else { Tier::Frozen };
    let done = engine.suspend(&ask::which(m), tier, ask::patience(m)?)?;
    if json {
        return Ok(print_document(done));
    }
    for ended in &done.ended {
        render::note(&format!("{} {}", if ended.killed { "killed" } else { "ended" }, ended.run));
    }
    let reached = match done.reached {
        Tier::Frozen => "frozen",
        Tier::Hibernated => "hibernated",
    };
    say(&format!("{} {reached}", done.id));
    Ok(ExitCode::SUCCESS)
}

fn resumed(done: suspend::Resumed, json: bool) -> Result<ExitCode, Fault> {
    if json {
        return Ok(print_document(done));
    }
    done.started.iter().for_each(|run| render::note(&format!("started {run}")));
    say(&done.id);
    Ok(ExitCode::SUCCESS)
}

fn publish(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let words = |name: &str| m.get_many::<String>(name).unwrap_or_default().cloned().collect();
    let publish = change::Publish { add: words("port"), remove: words("remove") };
    let ask = change::Ask { publish: Some(publish), may_widen: true, ..change::Ask::default() };
    let changed = engine.change(&ask::which(m), &ask)?;
    if json {
        return Ok(print_document(changed));
    }
    changed.publish.iter().for_each(|port| say(port));
    Ok(ExitCode::SUCCESS)
}

fn rm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let force = if m.get_flag("force") { Some(ask::patience(m)?) } else { None };
    let words: Vec<Option<String>> = match m.get_many::<String>("sandbox") {
        Some(words) => words.map(|word| Some(word.clone())).collect(),
        None => vec![None],
    };
    let version = m.get_one::<u64>("if-version").copied();
    let mut removed = Vec::new();
    for word in words {
        let done = engine.remove(&Which { word, version }, force)?;
        if !json {
            say(&done.id);
        }
        removed.push(done);
    }
    if json {
        print_document(serde_json::json!({ "removed": removed }));
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let dry = m.get_flag("dry-run");
    let collected = engine.collect(dry)?;
    let code = if collected.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    if json {
        #[derive(Serialize)]
        struct Answer {
            dry_run: bool,
            #[serde(flatten)]
            collected: Collected,
        }
        print_document(Answer { dry_run: dry, collected });
        return Ok(code);
    }
    let mut table = Table::new(&["WHAT", "ID", "SIZE", "WHY"]);
    for item in &collected.items {
        let what = match item.sort {
            Sort::Expired => "sandbox",
            Sort::DeadLayer | Sort::EmptyLayer => "layer",
            Sort::Adopted => "adopted",
            Sort::Snapshot => "snapshot",
            Sort::DeepStack => "stack",
            Sort::BatchCopies | Sort::OrphanBatch => "batch",
            Sort::LostRun => "run",
            Sort::OwnBase => "directory",
            Sort::Spare => "spare",
            Sort::Output => "output",
            Sort::Key => "key",
            Sort::PastRun => "record of a run",
            Sort::Tombstone => "record of a sandbox",
            Sort::Journal => "journal",
        };
        table.row(vec![what.into(), table::short(&item.id), bytes(item.bytes), item.why.clone()]);
    }
    if !collected.items.is_empty() {
        table.print();
    }
    collected.failed.iter().for_each(|why| render::note(why));
    let verb = if dry { "would be" } else { "were" };
    say(&format!("{} things, {} {verb} collected", collected.items.len(), bytes(collected.bytes)));
    Ok(code)
}

fn log(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let most = m.get_one::<u32>("lines").copied().unwrap_or(100);
    let entries = engine.audit_log(m.get_one::<String>("sandbox").map(String::as_str), most)?;
    if json {
        return Ok(print_document(serde_json::json!({ "entries": entries })));
    }
    entries.iter().for_each(|entry| say(&crate::events::sentence(entry)));
    Ok(ExitCode::SUCCESS)
}

fn verify(engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let found = engine.audit_verify()?;
    let code = if found.broken.is_none() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    if json {
        print_document(found);
        return Ok(code);
    }
    match &found.broken {
        None if found.archived > 0 => say(&format!(
            "{} entries, all as they were written; {} of them are archived, {} in the state directory",
            found.entries, found.archived, found.archived_here
        )),
        None => say(&format!("{} entries, all as they were written", found.entries)),
        Some(broken) => say(&format!("entry {} is not as it was written: {}", broken.seq, broken.why)),
    }
    Ok(code)
}
