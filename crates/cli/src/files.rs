//! `cofferdam cp` and `cofferdam files`.

mod cp;

use crate::connection;
use crate::render;
use crate::render::{print_document, say};
use crate::sandboxes::table::{Table, bytes};
use api::{FileEntry, FileEvent, FileKind, PathText, Rel, SearchResult};
use clap::ArgMatches;
use client::{Engine, SandboxPath};
use node::files::Interest;
use node::files::search;
use serde_json::json;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use terms::Fault;

/// Carries out one of the verbs of `args::files`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    let (verb, m) = matches.subcommand().unwrap_or((verb, matches));
    let json = m.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    let done = connection::open(m).and_then(|engine| match verb {
        "cp" => cp::cp(m, &engine, json),
        "ls" => ls(m, &engine, json),
        "cat" => cat(m, &engine),
        "stat" => stat(m, &engine, json),
        "mkdir" => mkdir(m, &engine, json),
        "mv" => mv(m, &engine, json),
        "rm" => rm(m, &engine, json),
        "search" => find(m, &engine, json),
        _ => follow(m, &engine, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

/// Returns the place that a verb is about.
fn place(m: &ArgMatches) -> Result<SandboxPath, Fault> {
    SandboxPath::with_sandbox(&m.get_one::<OsString>("place").cloned().unwrap_or_default())
}

fn ls(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let place = place(m)?;
    let path = engine.rel(&place)?;
    let (all, shut) = engine.files_list(&place, m.get_one::<u32>("depth").map_or(1, |n| *n as usize))?;
    if shut > 0 {
        render::note(&format!("{shut} directories are not readable"));
    }
    if json {
        return Ok(print_document(json!({ "path": path, "entries": all })));
    }
    let mut table = Table::new(&["MODE", "SIZE", "MODIFIED", "NAME"]);
    all.iter().for_each(|entry| table.row(row(entry, &path)));
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &FileEntry, above: &Rel) -> Vec<String> {
    let name = entry.path.parts().skip(above.parts().count()).fold(Rel::top(), |path, part| path.join(part));
    let name = match &entry.target {
        Some(target) => format!("{name} -> {}", shown(target)),
        None => name.to_string(),
    };
    let size = if entry.kind == FileKind::Dir { "-".into() } else { bytes(entry.size) };
    vec![bits(entry), size, date(entry.modified_ms), name]
}

fn date(ms: i64) -> String {
    terms::clock::date(u64::try_from(ms / 1000).unwrap_or(0))
}

/// Formats the mode as `ls -l` does.
fn bits(entry: &FileEntry) -> String {
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

fn shown(text: &PathText) -> String {
    match text {
        PathText::Text(text) => text.clone(),
        PathText::Bytes { .. } => text.bytes().unwrap_or_default().escape_ascii().to_string(),
    }
}

/// Prints a file. On a terminal its control characters are escaped; `--raw` prints it unchanged.
fn cat(m: &ArgMatches, engine: &Engine) -> Result<ExitCode, Fault> {
    let plain = std::io::stdout().is_terminal() && !m.get_flag("raw");
    let mut out = Screen { plain, reader_gone: false };
    match engine.files_read(&place(m)?, &mut out) {
        // A reader that left early is no error of ours.
        Err(_) if out.reader_gone => {}
        done => done?,
    }
    let _ = crate::stdout::lock().flush();
    Ok(ExitCode::SUCCESS)
}

/// Standard output, with control characters escaped where it is a terminal.
struct Screen {
    plain: bool,
    reader_gone: bool,
}

impl Write for Screen {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        let mut out = crate::stdout::lock();
        let written = match self.plain {
            true => {
                let text = String::from_utf8_lossy(piece).into_owned();
                let lines: Vec<String> = text.split('\n').map(visible).collect();
                out.write_all(lines.join("\n").as_bytes())
            }
            false => out.write_all(piece),
        };
        self.reader_gone |= written.is_err();
        written.map(|()| piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        crate::stdout::lock().flush()
    }
}

fn visible(line: &str) -> String {
    line.split('\t').map(render::safe).collect::<Vec<_>>().join("\t")
}

fn stat(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let entry = engine.files_stat(&place(m)?, !m.get_flag("no-follow"))?;
    if json {
        return Ok(print_document(entry));
    }
    let path = if entry.path.is_top() { ".".to_owned() } else { entry.path.to_string() };
    say(&format!("{} {} {} {path}", bits(&entry), bytes(entry.size), date(entry.modified_ms)));
    entry.target.iter().for_each(|target| say(&format!("leads to {}", shown(target))));
    entry.etag.iter().for_each(|tag| say(&format!("version {tag}")));
    Ok(ExitCode::SUCCESS)
}

fn mkdir(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let made = engine.files_mkdir(&place(m)?, m.get_flag("parents"))?;
    Ok(if json { print_document(made) } else { ExitCode::SUCCESS })
}

fn mv(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let to = m.get_one::<OsString>("to").cloned().unwrap_or_default();
    let moved = engine.files_rename(&place(m)?, to.as_bytes(), m.get_flag("force"))?;
    Ok(if json { print_document(moved) } else { ExitCode::SUCCESS })
}

fn rm(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let removed = engine.files_remove(&place(m)?, m.get_flag("recursive"))?;
    Ok(if json { print_document(removed) } else { ExitCode::SUCCESS })
}

fn find(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let ask = search::SearchOptions {
        globs: m.get_many::<String>("glob").unwrap_or_default().cloned().collect(),
        content: m.get_one::<String>("content").cloned(),
        fixed: m.get_flag("fixed"),
        ignore_case: m.get_flag("ignore-case"),
        limit: m.get_one::<u32>("limit").map_or(search::MATCHES, |n| *n as usize),
        patience: search::PATIENCE,
        interest: Interest::default(),
    };
    let found = engine.files_search(&place(m)?, &ask)?;
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
    note_skipped(&found);
    Ok(code)
}

/// Notes what a search skipped.
fn note_skipped(found: &SearchResult) {
    if let Some(bound) = found.stopped_by {
        render::note(&format!("stopped early by the limit on {}", bound.name()));
    }
    let skipped = found.skipped.len() as u64 + found.skipped_more;
    if let Some(first) = found.skipped.first() {
        render::note(&format!("{skipped} not searched, the first {}: {}", first.path, first.why));
    }
}

fn follow(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    engine.files_watch(&place(m)?, m.get_flag("recursive"), &mut |event| tell(event, json))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a change. False when the reader is gone.
fn tell(event: &FileEvent, json: bool) -> bool {
    let line = match (json, &event.to) {
        (true, _) => render::json_line(event),
        (false, Some(to)) => format!("{} {} to {to}", event.what.name(), event.path),
        (false, None) => format!("{} {}", event.what.name(), event.path),
    };
    let mut out = crate::stdout::lock();
    let line = if json { line } else { render::safe(&line) };
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}
