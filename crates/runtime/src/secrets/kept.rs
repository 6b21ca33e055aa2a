//! Kept secrets: one file each in `secrets` of the state directory, readable by its owner alone. They are set and removed through verbs,
//! and read by runs alone: no verb returns a value, and no record, journal or fault contains one.

use crate::Node;
use api::{JournalStep, SecretChanged, SecretList, SecretSummary};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use state::Caller;
use state::State;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use store::Entry;
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase, Retry};

/// Bound on secrets in one state directory.
pub const MOST: usize = 1_000;
const LONGEST_NAME: usize = 128;
const PLACE: &str = "secrets";

/// Stores a value under a name, replacing the last one. The value is wiped from memory, whatever the result.
pub fn set(node: &Node, caller: &Caller, name: &str, mut value: Vec<u8>) -> Result<SecretChanged, Fault> {
    let done = set_checked(node, caller, name, &value);
    value.fill(0);
    // Keeps the compiler from removing the wipe as a dead store.
    std::hint::black_box(&value);
    done
}

fn set_checked(node: &Node, caller: &Caller, name: &str, value: &[u8]) -> Result<SecretChanged, Fault> {
    check_name(name)?;
    super::check(name, value).map_err(|fault| fault.phase(Phase::Admission))?;
    let state = node.states.open(caller)?;
    let dir = make_place(&state).map_err(|e| unusable(&state, &e))?;
    let names = names(&state)?;
    let existed = names.iter().any(|known| known.name == name);
    if !existed && names.len() >= MOST {
        let fault =
            Fault::new(ErrorKind::LimitExceeded, format!("there are {MOST} secrets already, which is the maximum"));
        return Err(fault.retry(Retry::Later).hint("remove some with `cofferdam secret rm`").phase(Phase::Admission));
    }
    note(&state, caller, "secret_set", JournalStep::Intent, name)?;
    match write(&dir, name, value) {
        Ok(()) => note(&state, caller, "secret_set", JournalStep::Done, name)?,
        Err(e) => {
            note(&state, caller, "secret_set", JournalStep::Failed, name)?;
            return Err(unusable(&state, &e));
        }
    }
    Ok(SecretChanged { protocol_version: PROTOCOL_VERSION, name: name.to_owned(), existed })
}

pub fn remove(node: &Node, caller: &Caller, name: &str) -> Result<SecretChanged, Fault> {
    let state = node.states.open(caller)?;
    let gone = || {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no secret {name:?}")).subject(name);
        fault.hint("`cofferdam secret ls` lists them").phase(Phase::Admission)
    };
    check_name(name).map_err(|_| gone())?;
    let dir = place_of(&state).map_err(|_| gone())?;
    match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Err(gone()),
        Err(e) => return Err(unusable(&state, &e.into())),
    }
    note(&state, caller, "secret_rm", JournalStep::Done, name)?;
    Ok(SecretChanged { protocol_version: PROTOCOL_VERSION, name: name.to_owned(), existed: true })
}

pub fn list(node: &Node, caller: &Caller) -> Result<SecretList, Fault> {
    let secrets = names(&node.states.open(caller)?)?;
    Ok(SecretList { protocol_version: PROTOCOL_VERSION, secrets })
}

/// Returns the path of a secret's value if it exists; the file is not opened.
pub(super) fn find(caller: &Caller, name: &str) -> Option<PathBuf> {
    check_name(name).ok()?;
    let path = state::directory::place(caller).ok()?.join(PLACE).join(name);
    path.symlink_metadata().is_ok_and(|meta| meta.is_file()).then_some(path)
}

/// Checks a name, which is also a variable, a file name and part of a URL.
fn check_name(name: &str) -> Result<(), Fault> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first = name.bytes().next().is_some_and(|b| plain(b) && !b.is_ascii_digit());
    if first && name.len() <= LONGEST_NAME && name.bytes().all(plain) {
        return Ok(());
    }
    // The typed text may be the secret itself, so it is not repeated.
    let message = "the name of a secret: letters, digits and '_', and no digit first";
    Err(Fault::invalid(message).hint(format!("at most {LONGEST_NAME} of them, as API_KEY is")).phase(Phase::Admission))
}

fn names(state: &State) -> Result<Vec<SecretSummary>, Fault> {
    let dir = match place_of(state) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(unusable(state, &e.into())),
    };
    let mut found = Vec::new();
    let read = rustix::fs::Dir::read_from(&dir).map_err(|e| unusable(state, &e.into()))?;
    for entry in read {
        let entry = entry.map_err(|e| unusable(state, &e.into()))?;
        // Drafts of a writer that was killed begin with a dot.
        let Some(name) = entry.file_name().to_str().ok().filter(|name| check_name(name).is_ok()) else { continue };
        let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let set_ms = u64::try_from(stat.st_mtime).unwrap_or(0) * 1000 + stat.st_mtime_nsec / 1_000_000;
        found.push(SecretSummary { name: name.to_owned(), set_ms });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn place_of(state: &State) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&state.dir, PLACE, flags, Mode::empty())
}

fn make_place(state: &State) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(&state.dir, PLACE, Mode::RWXU) {
        Ok(()) => rustix::fs::fsync(&state.dir)?,
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(place_of(state)?)
}

/// Writes the value atomically, to a file that no other user can open at any time.
fn write(dir: &OwnedFd, name: &str, value: &[u8]) -> io::Result<()> {
    let draft = format!(".{name}.{}", terms::hex::encode(sys::random::id_bytes()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, &draft, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(value)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(rustix::fs::renameat(dir, &draft, dir, name)?))
        .and_then(|()| Ok(rustix::fs::fsync(dir)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(dir, &draft, AtFlags::empty());
    }
    written
}

fn note(state: &State, caller: &Caller, verb: &str, step: JournalStep, name: &str) -> Result<(), Fault> {
    let body: Value = json!({ "name": name });
    let entry = Entry { at_ms: terms::clock::now_ms(), verb, step, subject: name, actor: &caller.user, body };
    state.store.write(|tx| tx.note(&entry).map(drop))
}

fn unusable(state: &State, error: &io::Error) -> Fault {
    let message = format!("{}: {error}", state.path.join(PLACE).display());
    let fault = Fault::new(ErrorKind::Unavailable, message).phase(Phase::Application);
    fault.hint("the state directory must be writable, with space left")
}
