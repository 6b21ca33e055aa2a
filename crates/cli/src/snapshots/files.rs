//! `cofferdam export` and `import`.

use super::text;
use crate::render::say;
use crate::{args, options, quantity, render};
use clap::ArgMatches;
use client::Engine;
use node::policies::RequestedPolicy;
use node::portable::ImportOptions;
use node::snapshots::Bounds;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use terms::{ErrorKind, Fault, Phase};

/// Exports a snapshot. The file is written to a temporary name and renamed, so it appears whole or not at all.
pub fn export(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let (word, file) = (text(m, "sandbox").unwrap_or_default(), file(m));
    if file == "-" {
        let mut out = BufWriter::new(std::io::stdout().lock());
        if std::io::stdout().is_terminal() || json {
            let why = if json {
                "both the file and JSON would go to standard output"
            } else {
                "the file is not written to a terminal"
            };
            return Err(Fault::invalid(why).hint("name a file").phase(Phase::Admission));
        }
        engine.export(word, &mut out)?;
        out.flush().map_err(|e| unwritable(Path::new("-"), &e))?;
        return Ok(ExitCode::SUCCESS);
    }
    let place = engine.caller().cwd.join(&file);
    // A device or FIFO is written to, not replaced.
    let special = std::fs::metadata(&place).is_ok_and(|found| !found.is_file());
    let draft = if special { place.clone() } else { draft_of(&place)? };
    let made = File::options().write(true).create_new(!special).mode(0o600).open(&draft);
    let made = made.map_err(|e| unwritable(&place, &e))?;
    let written = engine.export(word, &mut BufWriter::new(&made)).and_then(|written| {
        if special {
            return Ok(written);
        }
        let whole = made.sync_all().and_then(|()| std::fs::rename(&draft, &place));
        whole.map_err(|e| unwritable(&place, &e)).map(|()| written)
    });
    if written.is_err() && !special {
        let _ = std::fs::remove_file(&draft);
    }
    let written = written?;
    if json {
        render::print_json(&written);
    } else {
        let size = crate::sandboxes::table::bytes(made.metadata().map_or(0, |m| m.len()));
        say(&format!("{} changes, {size}, digest {}", written.entries, written.digest));
    }
    Ok(ExitCode::SUCCESS)
}

fn draft_of(place: &Path) -> Result<PathBuf, Fault> {
    let name = place.file_name().ok_or_else(|| Fault::invalid(format!("{}: not a file's name", place.display())))?;
    let mut draft = OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}", std::process::id()));
    Ok(place.with_file_name(draft))
}

pub fn import(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let file = file(m);
    let onto = m.get_one::<OsString>("onto").map(PathBuf::from).unwrap_or_default();
    let mut policies: Vec<RequestedPolicy> = args::all(m, "policy").map(RequestedPolicy::of).collect();
    policies.extend(args::all(m, "settings").map(|file| RequestedPolicy::File(PathBuf::from(file))));
    let bounds = match text(m, "max-size") {
        None => Bounds::default(),
        Some(amount) => {
            let bad = |why: String| Fault::invalid(format!("--max-size {amount:?}: {why}")).phase(Phase::Admission);
            Bounds { bytes: quantity::size(amount).map_err(bad)?, ratio: None, ..Bounds::default() }
        }
    };
    let (name, driver) = (text(m, "name"), options::driver(m));
    let onto = ImportOptions { dir: Some(&onto), name, policies, flags: options::flags(m), bounds, driver, once: None };
    let input: Box<dyn Read + Send> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => {
            let place = engine.caller().cwd.join(&file);
            let opened = File::open(&place).map_err(|e| {
                Fault::invalid(format!("{}: {e}", place.display())).hint("name a file that `cofferdam export` wrote")
            })?;
            Box::new(BufReader::new(opened))
        }
    };
    let (made, notes) = engine.import(onto, input)?;
    notes.iter().for_each(|note| render::note(note));
    if json {
        render::print_json(&made);
    } else {
        say(&made.id);
    }
    Ok(ExitCode::SUCCESS)
}

fn file(m: &ArgMatches) -> OsString {
    m.get_one::<OsString>("file").map(OsString::as_os_str).unwrap_or(OsStr::new("-")).to_owned()
}

fn unwritable(place: &Path, error: &std::io::Error) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("{}: {error}", place.display()))
        .hint("write to a file system with free space")
}
