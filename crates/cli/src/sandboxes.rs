//! `cofferdam create`, `ls`, `ps`, `inspect`, `start`, `stop`, `rm`, `gc` and `audit`.

pub mod ask;
mod cells;
mod progress;
pub mod table;

use crate::connection;
use crate::quantity;
use crate::render;
use crate::render::{print_document, say};
use api::{
    GcCollected, GcItemKind, PublishChange, SandboxChange, SandboxChanged, SandboxResumed, SandboxState,
    SandboxStateChanged, SandboxSummary, Tier,
};
use clap::ArgMatches;
use client::Engine;
use node::review::ReviewScope;
use node::sandbox::Which;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use table::{Table, ago, bytes, from_now};
use terms::{ErrorKind, Fault, Phase, Verdict};

/// Carries out one of the verbs of `args::sandboxes`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let inner = matches.subcommand().map_or(matches, |(_, m)| m);
    let json = inner.get_flag("json");
    let done = connection::open(inner).and_then(|engine| match verb {
        "create" => create_one(matches, &engine, json),
        "ls" => ls(matches, &engine, json),
        "ps" => ps(matches, &engine, json),
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
        let mut line = progress::ProgressLine::new();
        engine.create(&ask, &mut |now| line.show(now))?
    };
    let ports: Vec<String> = m.get_many("publish").unwrap_or_default().cloned().collect();
    if !ports.is_empty() {
        let which = Which { word: Some(made.id.clone()), version: None };
        if let Err(fault) = add_ports(engine, &which, ports, Vec::new()) {
            if !made.existed {
                // Where this fails, the sandbox stays without ports, and `ls` shows it.
                let _ = engine.remove(&which, None);
            }
            return Err(fault);
        }
    }
    if json {
        return Ok(print_document(made));
    }
    made.notes.iter().for_each(|note| render::note(note));
    say(&made.id);
    Ok(ExitCode::SUCCESS)
}

fn ls(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let rows = engine.list_described(m.get_flag("all"))?;
    if json {
        return Ok(print_document(serde_json::json!({ "sandboxes": rows })));
    }
    let now = terms::clock::now_ms();
    let mut table =
        Table::new(&["ID", "NAME", "STATE", "DIRECTORY", "CHANGES", "SIZE", "AGE", "USED", "EXPIRES", "COMMAND"]);
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
        let changes = row.pending.as_ref().map_or("-".to_owned(), |pending| pending.changes.to_string());
        let size = row.disk.map_or("-".to_owned(), |disk| bytes(disk.bytes));
        let (age, used) = (table::age(row.created_ms, now), ago(row.used_ms, now));
        let command = cells::shortened(&row.command.join(" "), LONGEST_COMMAND);
        let id = table::short(&row.id);
        table.row(vec![id, name, standing, base, changes, size, age, used, expires, command]);
    }
    table.print();
    rows.iter().filter_map(|row| row.silent.as_deref()).for_each(render::note);
    Ok(ExitCode::SUCCESS)
}

/// Cells of a command in a list of sandboxes.
const LONGEST_COMMAND: usize = 60;

fn ps(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let word = m.get_one::<String>("sandbox").map(String::as_str);
    if m.get_flag("all") {
        return past(engine, word, json);
    }
    let mut runs = engine.running()?;
    if let Some(word) = word {
        let of = ReviewScope::sandbox(Which { word: Some(word.to_owned()), version: None });
        let (id, _) = engine.meant(&of)?;
        // A daemon takes names as they are.
        let id = if id == word { engine.inspect(Some(word))?.id } else { id };
        runs.retain(|run| run.sandbox.as_ref() == Some(&id));
    }
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

/// Lists runs with those that have ended.
fn past(engine: &Engine, word: Option<&str>, json: bool) -> Result<ExitCode, Fault> {
    let runs = engine.runs(word, false)?;
    if json {
        return Ok(print_document(serde_json::json!({ "runs": runs })));
    }
    let named = engine.list(false)?.into_iter().filter_map(|row| Some((row.id, row.name?)));
    let names: BTreeMap<String, String> = named.collect();
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["RUN", "SANDBOX", "STATUS", "SINCE", "COMMAND"]);
    for run in &runs {
        let sandbox = names.get(&run.sandbox).cloned().unwrap_or_else(|| table::short(&run.sandbox));
        let status = match (run.running, run.status, run.verdict) {
            (true, ..) => "running".to_owned(),
            (_, Some(status), Some(Verdict::LimitExceeded)) => format!("limit ({status})"),
            (_, Some(status), _) => format!("ended ({status})"),
            (_, None, _) => "lost".to_owned(),
        };
        table.row(vec![table::short(&run.run), sandbox, status, ago(run.started_ms, now), run.command.join(" ")]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn inspect(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    Ok(print_document(engine.inspect(ask::which(m).word.as_deref())?))
}

fn moved(moved: SandboxStateChanged, json: bool) -> Result<ExitCode, Fault> {
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

fn resumed(done: SandboxResumed, json: bool) -> Result<ExitCode, Fault> {
    if json {
        return Ok(print_document(done));
    }
    done.started.iter().for_each(|run| render::note(&format!("started {run}")));
    say(&done.id);
    Ok(ExitCode::SUCCESS)
}

fn publish(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let words = |name: &str| -> Vec<String> { m.get_many(name).unwrap_or_default().cloned().collect() };
    let mut which = ask::which(m);
    let mut ports = [words("port"), words("ports")].concat();
    // Without the name of a sandbox the first word is a port already.
    if let Some(word) = which.word.take_if(|word| word.contains(':')) {
        ports.insert(0, word);
    }
    let changed = add_ports(engine, &which, ports, words("remove"))?;
    if json {
        return Ok(print_document(changed));
    }
    changed.publish.iter().for_each(|port| say(port));
    Ok(ExitCode::SUCCESS)
}

fn add_ports(engine: &Engine, which: &Which, add: Vec<String>, remove: Vec<String>) -> Result<SandboxChanged, Fault> {
    let publish = Some(PublishChange { add, remove });
    engine.change(which, &SandboxChange { publish, ..SandboxChange::default() })
}

/// Removes all sandboxes, or those that were not used for a time.
fn rm_all(m: &ArgMatches, engine: &Engine, force: Option<Duration>, json: bool) -> Result<ExitCode, Fault> {
    let refuse = |kind, message: String, hint: &str| Fault::new(kind, message).hint(hint).phase(Phase::Admission);
    let older = m.get_one::<String>("older").map(|time| quantity::time(time)).transpose();
    let older = older
        .map_err(|why| refuse(ErrorKind::InvalidRequest, format!("--older {why}"), "give a time such as 12h or 7d"))?;
    let is_watched = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if force.is_none() && !is_watched {
        let message = "removing several sandboxes needs a confirmation, and there is no terminal to ask on".to_owned();
        return Err(refuse(ErrorKind::InvalidRequest, message, "add --force to remove them without confirmation"));
    }
    let now = terms::clock::now_ms();
    let mut rows = engine.list_described(false)?;
    rows.retain(|row| older.is_none_or(|older| row.used_ms.saturating_add(older) <= now));
    let called = |row: &SandboxSummary| row.name.clone().unwrap_or_else(|| table::short(&row.id));
    let is_busy = |row: &&SandboxSummary| {
        row.live
            || !matches!(
                row.state,
                SandboxState::Active | SandboxState::Stopped | SandboxState::Lost | SandboxState::Hibernated
            )
    };
    let busy: Vec<String> = rows.iter().filter(is_busy).map(called).collect();
    if force.is_none() && !busy.is_empty() {
        let message = format!("{} of {} sandboxes run or are live: {}", busy.len(), rows.len(), busy.join(", "));
        return Err(refuse(ErrorKind::Conflict, message, "stop them first, or add --force, which ends what runs"));
    }
    if force.is_none() && !rows.is_empty() {
        rows.iter().for_each(|row| render::note(&format!("{}  {}", called(row), row.base.display())));
        let changes: u64 = rows.iter().filter_map(|row| row.pending.as_ref()).map(|pending| pending.changes).sum();
        let question = format!("remove {} sandboxes with {changes} changes that were not approved? [y/N] ", rows.len());
        if !says_yes(&question)? {
            render::note("nothing was removed");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let (mut removed, mut failed) = (Vec::new(), None);
    for row in &rows {
        match engine.remove(&Which { word: Some(row.id.clone()), version: None }, force) {
            Ok(done) => {
                if !json {
                    say(&done.id);
                }
                removed.push(done);
            }
            // Removed by another process meanwhile.
            Err(fault) if fault.error_kind == ErrorKind::NotFound => {}
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    if json && failed.is_none() {
        print_document(serde_json::json!({ "removed": removed }));
    } else if !json && rows.is_empty() {
        render::note("there is no such sandbox");
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Asks on the terminal; only `y` and `yes` are a yes.
fn says_yes(question: &str) -> Result<bool, Fault> {
    let fail = |e: std::io::Error| Fault::internal(e.to_string());
    let mut out = std::io::stderr().lock();
    write!(out, "{question}").and_then(|()| out.flush()).map_err(fail)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(fail)?;
    Ok(matches!(line.trim(), "y" | "yes"))
}

fn rm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let force = if m.get_flag("force") { Some(ask::patience(m)?) } else { None };
    if m.get_flag("all") || m.contains_id("older") {
        return rm_all(m, engine, force, json);
    }
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
            collected: GcCollected,
        }
        print_document(Answer { dry_run: dry, collected });
        return Ok(code);
    }
    let mut table = Table::new(&["WHAT", "ID", "SIZE", "WHY"]);
    for item in &collected.items {
        let what = match item.sort {
            GcItemKind::Expired => "sandbox",
            GcItemKind::DeadLayer | GcItemKind::EmptyLayer => "layer",
            GcItemKind::Adopted => "adopted",
            GcItemKind::Snapshot => "snapshot",
            GcItemKind::DeepStack => "stack",
            GcItemKind::BatchCopies | GcItemKind::OrphanBatch => "batch",
            GcItemKind::LostRun => "run",
            GcItemKind::OwnBase => "directory",
            GcItemKind::Spare => "spare",
            GcItemKind::Output => "output",
            GcItemKind::Key => "key",
            GcItemKind::PastRun => "record of a run",
            GcItemKind::Tombstone => "record of a sandbox",
            GcItemKind::Journal => "journal",
        };
        table.row(vec![what.into(), table::short(&item.id), bytes(item.bytes), item.why.clone()]);
    }
    if !collected.items.is_empty() {
        table.print();
    }
    collected.failed.iter().for_each(|why| render::note(why));
    let verb = if dry { "would be" } else { "were" };
    say(&format!("{} items, {} {verb} collected", collected.items.len(), bytes(collected.bytes)));
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
            "{} entries, all unchanged; {} of them are archived, {} in the state directory",
            found.entries, found.archived, found.archived_here
        )),
        None => say(&format!("{} entries, all unchanged", found.entries)),
        Some(broken) => say(&format!("entry {} was changed: {}", broken.seq, broken.why)),
    }
    Ok(code)
}
