//! `cofferdam cp` and `cofferdam files`.

mod cp;
mod place;

use self::place::Place;
use crate::render::{print_document, say};
use crate::sandboxes::table::{Table, bytes};
use crate::{render, surroundings};
use clap::ArgMatches;
use node::files::search::{self, Found};
use node::files::watch::{Event, Watch};
use node::files::{self, Entry, FileKind, Purpose, Rel, Root, Target, change, list, read, watch};
use node::{Caller, fresh};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use terms::{ErrorKind, Fault};

/// Carries out one of the verbs of `args::files`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let (verb, m) = matches.subcommand().unwrap_or((verb, matches));
    let json = m.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    let done = surroundings::caller().and_then(|caller| match verb {
        "cp" => cp::cp(m, &caller, json),
        "ls" => ls(m, &caller, json),
        "cat" => cat(m, &caller),
        "stat" => stat(m, &caller, json),
        "mkdir" => mkdir(m, &caller, json),
        "mv" => mv(m, &caller, json),
        "rm" => rm(m, &caller, json),
        "search" => find(m, &caller, json),
        _ => follow(m, &caller, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// The place that a verb is about, opened.
fn opened(m: &ArgMatches, purpose: Purpose, caller: &Caller) -> Result<(Root, Rel), Fault> {
    let word = m.get_one::<OsString>("place").cloned().unwrap_or_default();
    let place = Place::with_sandbox(&word)?;
    let root = files::open(&place.sandbox, purpose, caller)?;
    let path = root.path(&place.path)?;
    Ok((root, path))
}

/// Writes down who changed what.
fn note(root: &Root, caller: &Caller, verb: &str, body: Value) -> Result<(), Fault> {
    files::note(caller, root.sandbox().unwrap_or_default(), verb, body)
}

fn ls(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Reading, caller)?;
    let depth = m.get_one::<u32>("depth").map_or(1, |n| *n as usize);
    let mut ask = list::Ask { depth, limit: list::LARGEST_PAGE, after: None };
    let (mut table, mut all) = (Table::new(&["MODE", "SIZE", "MODIFIED", "NAME"]), Vec::new());
    loop {
        let page = list::list(&root, &path, &ask)?;
        if page.shut > 0 {
            render::note(&format!("{} directories may not be looked into", page.shut));
        }
        page.entries.iter().for_each(|entry| table.row(row(entry, &path)));
        all.extend(page.entries);
        ask.after = page.next;
        if ask.after.is_none() {
            break;
        }
    }
    if json {
        return Ok(print_document(json!({ "path": path, "entries": all })));
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &Entry, above: &Rel) -> Vec<String> {
    let name = entry.path.parts().skip(above.parts().count()).fold(Rel::top(), |path, part| path.join(part));
    let name = match &entry.target {
        Some(target) => format!("{name} -> {}", shown(target)),
        None => name.to_string(),
    };
    let size = if entry.kind == FileKind::Dir { "-".into() } else { bytes(entry.size) };
    vec![bits(entry), size, date(entry.modified_ms), name]
}

fn date(ms: i64) -> String {
    fresh::date(u64::try_from(ms / 1000).unwrap_or(0))
}

/// As `ls -l` shows them.
fn bits(entry: &Entry) -> String {
    let kind = match entry.kind {
        FileKind::File => '-',
        FileKind::Dir => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Char => 'c',
        FileKind::Block => 'b',
    };
    let bit = |at: u32| if entry.mode >> (8 - at) & 1 == 1 { ['r', 'w', 'x'][at as usize % 3] } else { '-' };
    let set = |mask: u32, mark: &str| if entry.mode & mask != 0 { mark.to_owned() } else { String::new() };
    let more = [set(0o4000, "+setuid"), set(0o2000, "+setgid"), set(0o1000, "+sticky")].concat();
    std::iter::once(kind).chain((0..9).map(bit)).collect::<String>() + &more
}

fn shown(text: &Target) -> String {
    match text {
        Target::Text(text) => text.clone(),
        Target::Bytes { .. } => text.bytes().unwrap_or_default().escape_ascii().to_string(),
    }
}

/// To a terminal, nothing of a file can move its cursor or do worse; `--raw` prints it as it is.
fn cat(m: &ArgMatches, caller: &Caller) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Reading, caller)?;
    let mut reading = read::open(&root, &path)?;
    let plain = std::io::stdout().is_terminal() && !m.get_flag("raw");
    let mut out = std::io::stdout().lock();
    while let Some(piece) = reading.piece()? {
        let written = match plain {
            true => {
                let text = String::from_utf8_lossy(&piece).into_owned();
                let lines: Vec<String> = text.split('\n').map(visible).collect();
                out.write_all(lines.join("\n").as_bytes())
            }
            false => out.write_all(&piece),
        };
        // A reader that left early is no error of ours.
        if written.is_err() {
            break;
        }
    }
    let _ = out.flush();
    Ok(ExitCode::SUCCESS)
}

fn visible(line: &str) -> String {
    line.split('\t').map(render::safe).collect::<Vec<_>>().join("\t")
}

fn stat(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Reading, caller)?;
    let entry = list::stat(&root, &path, !m.get_flag("no-follow"))?;
    if json {
        return Ok(print_document(entry));
    }
    let path = if entry.path.is_top() { ".".to_owned() } else { entry.path.to_string() };
    say(&format!("{} {} {} {path}", bits(&entry), bytes(entry.size), date(entry.modified_ms)));
    entry.target.iter().for_each(|target| say(&format!("leads to {}", shown(target))));
    entry.etag.iter().for_each(|tag| say(&format!("version {tag}")));
    Ok(ExitCode::SUCCESS)
}

fn mkdir(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Writing, caller)?;
    let made = change::mkdir(&root, &path, m.get_flag("parents"), None)?;
    note(&root, caller, "files.mkdir", json!({ "path": &made.path }))?;
    Ok(if json { print_document(made) } else { ExitCode::SUCCESS })
}

fn mv(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, from) = opened(m, Purpose::Writing, caller)?;
    let to = m.get_one::<OsString>("to").cloned().unwrap_or_default();
    let to = root.path(to.as_bytes())?;
    let moved = change::rename(&root, &from, &to, m.get_flag("force"))?;
    note(&root, caller, "files.rename", json!({ "from": from, "to": to }))?;
    Ok(if json { print_document(moved) } else { ExitCode::SUCCESS })
}

fn rm(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Writing, caller)?;
    let removed = change::remove(&root, &path, m.get_flag("recursive"))?;
    note(&root, caller, "files.remove", json!({ "path": path, "files": removed.files, "dirs": removed.dirs }))?;
    Ok(if json { print_document(removed) } else { ExitCode::SUCCESS })
}

fn find(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Reading, caller)?;
    let ask = search::Ask {
        globs: m.get_many::<String>("glob").unwrap_or_default().cloned().collect(),
        content: m.get_one::<String>("content").cloned(),
        fixed: m.get_flag("fixed"),
        ignore_case: m.get_flag("ignore-case"),
        limit: m.get_one::<u32>("limit").map_or(search::MATCHES, |n| *n as usize),
        patience: search::PATIENCE,
    };
    let found = search::search(&root, &path, &ask)?;
    let code = if found.matches.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS };
    if json {
        print_document(found);
        return Ok(code);
    }
    for one in &found.matches {
        match (&one.line, &one.text) {
            (Some(line), Some(text)) => say(&format!("{}:{line}: {}", one.path, shown(text))),
            _ => say(&one.path.to_string()),
        }
    }
    tell_rest(&found);
    Ok(code)
}

/// What a search did not look at.
fn tell_rest(found: &Found) {
    if let Some(bound) = found.stopped_by {
        render::note(&format!("stopped early, by its bound on {}", bound.name()));
    }
    let skipped = found.skipped.len() as u64 + found.skipped_more;
    if let Some(first) = found.skipped.first() {
        render::note(&format!("{skipped} not searched, the first {}: {}", first.path, first.why));
    }
}

fn follow(m: &ArgMatches, caller: &Caller, json: bool) -> Result<ExitCode, Fault> {
    let (root, path) = opened(m, Purpose::Reading, caller)?;
    let mut watch: Watch = watch::watch(root, &path, m.get_flag("recursive"))?;
    while !watch.is_over() {
        watch.wait(std::time::Duration::from_secs(1));
        for event in watch.take()? {
            if !tell(&event, json) {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    Err(Fault::new(ErrorKind::NotFound, "the directory is gone or has another name").hint("watch what is above it"))
}

/// Whether somebody still reads.
fn tell(event: &Event, json: bool) -> bool {
    let line = match (json, &event.to) {
        (true, _) => serde_json::to_string(event).unwrap_or_default(),
        (false, Some(to)) => format!("{} {} to {to}", event.what.name(), event.path),
        (false, None) => format!("{} {}", event.what.name(), event.path),
    };
    let mut out = std::io::stdout().lock();
    let line = if json { line } else { render::safe(&line) };
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}
