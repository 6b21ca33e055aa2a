//! Reservations: paths for the exclusive use of one sandbox. The same path, one above or one below is taken, whichever sandbox and base it
//! is in: host paths are compared.

use crate::Caller;
use crate::sandbox::Sandbox;
use api::{Lifecycle, Rel};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase};

/// Bound on paths that one sandbox may reserve.
pub const MOST: usize = 256;

/// Parses a path as typed: absolute and below the base, or relative to it.
pub fn parse(base: &Path, text: &OsStr) -> Result<Rel, Fault> {
    let path = Path::new(text);
    let refuse = |why: &str| {
        let fault = Fault::invalid(format!("--reserve {}: {why}", path.display())).phase(Phase::Admission);
        Err(fault.hint(format!("name a path below {}; `.` is all of it", base.display())))
    };
    let below = match path.is_absolute() {
        true => match path.strip_prefix(base) {
            Ok(below) => below,
            Err(_) => return refuse("it is not in the directory that the sandbox covers"),
        },
        false => path,
    };
    if text.is_empty() {
        return refuse("empty");
    }
    match Rel::parse(below.as_os_str().as_bytes()) {
        Some(rel) => Ok(rel),
        None => refuse("it leads out of the directory that the sandbox covers"),
    }
}

/// Returns whether a sandbox's reservations are in force.
pub fn holds(sandbox: &Sandbox) -> bool {
    let let_go = sandbox.state == Lifecycle::Stopped && sandbox.sharing.until_stop;
    !sandbox.reserve.is_empty() && !let_go
}

/// Returns the host paths that a sandbox reserved.
pub fn places(sandbox: &Sandbox) -> impl Iterator<Item = PathBuf> {
    sandbox.reserve.iter().map(|rel| match rel.is_top() {
        true => sandbox.base.clone(),
        false => sandbox.base.join(rel.as_path()),
    })
}

/// Refuses paths that another sandbox holds. Runs inside the transaction that writes the record, so that only one can win.
pub fn check(tx: &Tx<'_>, id: &str, wanted: &Sandbox, caller: &Caller) -> Result<(), Fault> {
    if !holds(wanted) {
        return Ok(());
    }
    for other in neighbours(tx, &wanted.base)? {
        let both_share = wanted.sharing.shared && other.record.sharing.shared;
        if other.id == id || both_share || !holds(&other.record) {
            continue;
        }
        for place in places(wanted) {
            if let Some(held) = places(&other.record).find(|held| held.starts_with(&place) || place.starts_with(held)) {
                let theirs = || Fault::new(ErrorKind::Conflict, format!("{} is reserved by another", place.display()));
                return Err(match caller.sees_kept(&other) {
                    true => taken(&place, &held, &other),
                    false => theirs().hint("wait, or reserve other paths").phase(Phase::Admission),
                });
            }
        }
    }
    Ok(())
}

/// Lists sandboxes over the same directory, one above or one below: no other can hold a path in it.
fn neighbours(tx: &Tx<'_>, base: &Path) -> Result<Vec<Kept<Sandbox>>, Fault> {
    let mut found = Vec::new();
    for above in base.ancestors().filter_map(Path::to_str) {
        found.extend(tx.list_in::<Sandbox>(above)?);
    }
    if let Some(base) = base.to_str() {
        found.extend(tx.list_below::<Sandbox>(base)?);
    }
    Ok(found)
}

fn taken(place: &Path, held: &Path, holder: &Kept<Sandbox>) -> Fault {
    let Kept { id, record, .. } = holder;
    let named = record.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let how = match (held == place, held.starts_with(place)) {
        (true, _) => "is reserved".to_owned(),
        (_, true) => format!("holds {}, which is reserved", held.display()),
        _ => format!("lies in {}, which is reserved", held.display()),
    };
    let since = record.created_ms / 1000;
    let message = format!("{} {how} by {id}{named} since {}", place.display(), terms::clock::date(since));
    let until = if record.sharing.until_stop { "stop or remove it" } else { "remove it" };
    let hint = format!("wait, {until}, or let both say --shared");
    Fault::new(ErrorKind::Conflict, message).hint(hint).subject(id).phase(Phase::Admission)
}
