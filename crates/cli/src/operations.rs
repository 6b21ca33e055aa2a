//! `cofferdam config`, `backup`, `fsck` and `top`, and the configuration of `serve`.

use crate::render::{can_draw, print_document, say};
use crate::sandboxes::table::{Table, bytes, short};
use crate::{args, connection, render};
use api::{CodeTraffic, TopReport};
use clap::ArgMatches;
use client::Engine;
use node::bounds::BuiltIn;
use node::config::{Config, KEYS, Setting, ValueKind};
use node::{Caller, Node, backup, fsck, top};
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use terms::{Fault, PROTOCOL_VERSION, Phase, quantity};

/// Carries out one of the verbs of `args::operations`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let (below, inner) = matches.subcommand().unwrap_or(("", matches));
    let json = inner.get_flag("json");
    if verb == "top" {
        let done = connection::open(inner).and_then(|engine| top(inner, &engine, json));
        return done.unwrap_or_else(|fault| render::fault(&fault, json));
    }
    let named = if below.is_empty() { verb.to_owned() } else { format!("{verb} {below}") };
    let done = connection::local(inner, &named).and_then(|caller| match (verb, below) {
        ("backup", _) => copy(&Node::for_command(), &caller, inner, json),
        ("fsck", _) => examine(&Node::for_command(), &caller, inner, json),
        (_, "check") => check(inner, &caller, json),
        _ => show(inner, &caller, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// Returns the configuration for a verb: from its file, the environment and its flags.
pub fn load(m: &ArgMatches, caller: &Caller) -> Result<Config, Fault> {
    let file = m.get_one::<OsString>("config").map(PathBuf::from);
    Config::load(file.as_deref(), &args::operations::flagged(m), caller)
}

#[derive(Serialize)]
struct ShownConfig<'a> {
    protocol_version: u32,
    file: &'a Option<PathBuf>,
    settings: &'a [Setting],
}

fn show(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let config = load(m, caller)?.with_built_in(&BuiltIn::of_this_host());
    if json {
        let (file, settings) = (&config.file, config.settings());
        render::print_json(&ShownConfig { protocol_version: PROTOCOL_VERSION, file, settings });
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["KEY", "VALUE", "ORIGIN"]);
    for setting in config.settings() {
        let kind = node::config::keys::of(&setting.key).map_or(ValueKind::Text, |key| key.kind);
        table.row(vec![setting.key.clone(), kind.show(&setting.value), setting.origin.to_string()]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn check(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let config = load(m, caller)?;
    if json {
        let (file, settings) = (&config.file, config.settings());
        render::print_json(&ShownConfig { protocol_version: PROTOCOL_VERSION, file, settings });
        return Ok(ExitCode::SUCCESS);
    }
    let source = config.file.as_ref().map_or("no file".into(), |file| file.display().to_string());
    let set = config.settings().iter().filter(|s| s.origin != node::config::ValueOrigin::Default).count();
    let line = format!("sound: {source}; {set} of {} values are set", KEYS.len());
    say(&line);
    Ok(ExitCode::SUCCESS)
}

fn copy(node: &Node, caller: &Caller, m: &ArgMatches, json: bool) -> Result<ExitCode, Fault> {
    let file = m.get_one::<OsString>("file").map(PathBuf::from).unwrap_or_default();
    let caller = match m.get_one::<String>("tenant") {
        Some(tenant) => backup::within(tenant, caller)?,
        None => caller.clone(),
    };
    if m.get_flag("restore") {
        let done = backup::restore(node, &caller, &file)?;
        let (entries, before) = (done.copied.entries, done.before.display().to_string());
        if json {
            return Ok(print_document(done));
        }
        say(&format!("restored: {entries} entries of the journal; the former store is in {before}"));
        render::note("check for leftovers newer than the backup with `cofferdam fsck` and `cofferdam gc --dry-run`");
        return Ok(ExitCode::SUCCESS);
    }
    let made = backup::make(node, &caller, &file)?;
    if json {
        return Ok(print_document(made));
    }
    let copied = &made.copied;
    say(&format!("{}: {} bytes, {} entries of the journal", made.file.display(), copied.bytes, copied.entries));
    if !made.tenants.is_empty() {
        render::note(&format!("not included: the stores of tenants {} (--tenant)", made.tenants.join(", ")));
    }
    Ok(ExitCode::SUCCESS)
}

fn examine(node: &Node, caller: &Caller, m: &ArgMatches, json: bool) -> Result<ExitCode, Fault> {
    let report = fsck::check(node, caller, m.get_flag("repair"))?;
    let status = ExitCode::from(u8::from(!report.problems.is_empty()));
    if json {
        print_document(report);
        return Ok(status);
    }
    report.repaired.iter().for_each(|done| say(&format!("repaired: {done}")));
    for problem in &report.problems {
        let whose = problem.tenant.as_ref().map_or(String::new(), |tenant| format!(" (tenant {tenant})"));
        let fix = if problem.collectable { " [--repair]" } else { "" };
        say(&format!("{}{whose}: {}: {}{fix}", word(problem.kind), problem.id, problem.why));
    }
    let looked = format!(
        "{} sandboxes, {} layers, {} runs, {} keepers, {} entries of the journal",
        report.sandboxes, report.layers, report.runs_going_on, report.keepers, report.journal_entries
    );
    match report.problems.len() {
        0 => say(&format!("no problems: {looked}")),
        n => say(&format!("{n} problems: {looked}")),
    }
    Ok(status)
}

/// Interval between the two samples of one table: processor time is their difference.
const BETWEEN: Duration = Duration::from_millis(250);

fn top(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let delay = m.get_one::<String>("delay").map_or("2s", String::as_str);
    let wrong = |why: String| Fault::invalid(format!("--delay {why}")).phase(Phase::Admission);
    let delay = Duration::from_millis(quantity::time(delay).map_err(wrong)?).max(Duration::from_millis(100));
    let again = !json && !m.get_flag("once") && can_draw(&std::io::stdout());
    let mut top = top::UsageSampler::default();
    engine.top(&mut top)?;
    std::thread::sleep(BETWEEN);
    loop {
        let look = engine.top(&mut top)?;
        if json {
            return Ok(print_document(look));
        }
        // Queried each time, because a window may be resized.
        let Some((rows, columns)) = top::size().filter(|_| again) else {
            table(&look, usize::MAX).print();
            return Ok(ExitCode::SUCCESS);
        };
        // Cursor to the top left, to overwrite the previous table.
        let mut out = crate::stdout::lock();
        if write!(out, "\x1b[H\x1b[J").and_then(|()| out.flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        // Two rows for the header and the cursor's line.
        table(&look, rows.saturating_sub(2).max(1)).print_within(columns, NAME);
        std::thread::sleep(delay);
    }
}

/// Column of `table` with text of the caller's choice, of any length.
const NAME: usize = 1;

fn table(look: &TopReport, most: usize) -> Table {
    let has_code = look.sandboxes.iter().any(|row| row.code.is_some());
    let heads = ["SANDBOX", "NAME", "STATE", "RUNS", "PROCS", "CPU %", "MEMORY", "DISK", "NET", "CODE"];
    // Most hosts run no code: the column would only take room.
    let mut table = Table::new(if has_code { &heads } else { &heads[..heads.len() - 1] });
    for row in look.sandboxes.iter().take(most) {
        let is_live = row.live && row.silent.is_none();
        let state = if is_live { format!("{} (live)", row.state.name()) } else { row.state.name().to_owned() };
        let mut cells = vec![
            short(&row.id),
            row.name.clone().unwrap_or_default(),
            state,
            row.runs.to_string(),
            row.processes.to_string(),
            row.cpu_percent.map_or("-".into(), |percent| format!("{percent:.1}")),
            bytes(row.memory_bytes),
            bytes(row.disk_bytes),
            row.net_bytes.map_or("-".into(), bytes),
        ];
        if has_code {
            cells.push(row.code.map_or("-".into(), |code| code_cell(&code, row.code_bytes_per_s)));
        }
        table.row(cells);
    }
    table
}

/// Contexts of a sandbox, those that are busy, and the traffic of their rings.
fn code_cell(code: &CodeTraffic, bytes_per_s: Option<u64>) -> String {
    format!("{}, {} busy, {}/s", code.contexts, code.busy, bytes(bytes_per_s.unwrap_or(0)))
}

fn word(kind: fsck::ProblemKind) -> String {
    serde_json::to_value(kind).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
