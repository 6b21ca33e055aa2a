//! Creates directories, renames, removes files, sets permission bits.

use super::list::look;
use super::locate::{Last, ResolvedParent};
use super::{Root, copy, error, policy_check};
use crate::{Dir, descent, remove as removal};
use api::{FileEntry, FileKind, FileMoved, FileMovedHow, FilesRemoved, Rel};
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};
use terms::{Fault, LimitKind, Phase};

/// Bounds on entries and time of one removal.
const MOST_REMOVED: u64 = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Permission bits of a new directory.
const NEW: u32 = 0o755;

/// Checks permission bits set from outside. Set-user-id and set-group-id are refused: a reviewer who lands the file
/// would not expect them.
pub(super) fn check_mode(mode: u32) -> Result<(), Fault> {
    if mode <= 0o1777 {
        return Ok(());
    }
    let fault = Fault::invalid(format!("mode {mode:o} is out of range")).phase(Phase::Admission);
    Err(fault.hint("give 0 to 1777 in octal: permission bits without set-user-id and set-group-id"))
}

/// Creates a directory; with `parents` also missing parents, and an existing directory is not an error.
pub fn mkdir(root: &Root, path: &Rel, parents: bool, mode: Option<u32>) -> Result<FileEntry, Fault> {
    check_mode(mode.unwrap_or(NEW))?;
    let _owner = root.act_as_guest()?;
    if root.room().files == Some(0) {
        let hint = "remove files, or raise the sandbox's max_files";
        return Err(error::too_much(path, "the sandbox's limit on files is reached".into(), LimitKind::Files, hint));
    }
    if parents {
        make_parents(root, path)?;
    } else {
        let spot = root.find(path, Last::Itself)?;
        root.check_rules(&spot.path)?;
        let made = rustix::fs::mkdirat(&spot.dir, spot.name()?, Mode::from_raw_mode(NEW));
        made.map_err(|e| error::fault(path, "make it", &e.into()))?;
    }
    if let Some(mode) = mode {
        return set_mode(root, path, mode);
    }
    look(root, path, Last::Followed)
}

/// Creates a directory and its missing parents.
pub(super) fn make_parents(root: &Root, path: &Rel) -> Result<(), Fault> {
    let spot = root.find_making(path, Last::Followed)?;
    let Some(name) = spot.name.as_deref() else { return Ok(()) };
    root.check_rules(&spot.path)?;
    match rustix::fs::mkdirat(&spot.dir, name, Mode::from_raw_mode(NEW)) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => {
            let found = spot.meta().map_err(|e| error::fault(path, "look at it", &e))?;
            match found.is_some_and(|meta| meta.kind != FileKind::Dir) {
                true => Err(error::conflict(path, "it exists and is not a directory", "choose another path")),
                false => Ok(()),
            }
        }
        Err(e) => Err(error::fault(path, "make it", &e.into())),
    }
}

/// Renames a file, directory or link (not its target). An existing file at the new name is replaced only with
/// `replace`.
pub fn rename(root: &Root, from: &Rel, to: &Rel, replace: bool) -> Result<FileMoved, Fault> {
    let _owner = root.act_as_guest()?;
    let (old, new) = (root.find(from, Last::Itself)?, root.find(to, Last::Itself)?);
    root.check_change(&old)?;
    root.check_change(&new)?;
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    let renamed = rustix::fs::renameat_with(&old.dir, old.name()?, &new.dir, new.name()?, flags);
    let how = match renamed {
        Ok(()) => FileMovedHow::Renamed,
        Err(Errno::XDEV) => {
            by_copy(root, &old, &new, replace)?;
            FileMovedHow::Copied
        }
        // Errors about the entry at the new name.
        Err(e @ (Errno::EXIST | Errno::ISDIR | Errno::NOTEMPTY)) => {
            return Err(error::fault(to, "put it there", &e.into()));
        }
        Err(Errno::NOTDIR) => {
            let why = "it is not a directory, and a directory cannot replace it";
            return Err(error::conflict(to, why, "remove it first, or choose another path"));
        }
        Err(Errno::INVAL) => {
            let message = format!("{from} cannot be moved to {to}, which is in it");
            return Err(Fault::invalid(message).hint("choose another path").phase(Phase::Execution));
        }
        Err(e) => return Err(error::fault(from, "move it", &e.into())),
    };
    Ok(FileMoved { entry: look(root, to, Last::Itself)?, how })
}

/// Copies and removes, as `mv` does after EXDEV.
fn by_copy(root: &Root, old: &ResolvedParent, new: &ResolvedParent, replace: bool) -> Result<(), Fault> {
    let ask = copy::CopyOptions { recursive: true, replace };
    let copied = copy::copy(root, &old.path, &new.path, &ask)?;
    // An entry without a copy would be lost with the original.
    if let Some(left) = copied.left_out.first() {
        remove(root, &new.path, true)?;
        let at = left.path.parts().fold(old.path.clone(), |path, part| path.join(part));
        let why = format!("{} cannot be moved with the rest", left.why);
        return Err(error::conflict(&at, &why, "move it away or make it readable, then try again"));
    }
    remove(root, &old.path, true).map(drop)
}

/// Removes a file, a link or an empty directory; with `recursive`, a directory and its contents.
pub fn remove(root: &Root, path: &Rel, recursive: bool) -> Result<FilesRemoved, Fault> {
    let _owner = root.act_as_guest()?;
    let spot = root.find(path, Last::Itself)?;
    let name = spot.name()?;
    let fail = |e: io::Error| policy_check::failed(path, "remove it", &e);
    root.check_change(&spot)?;
    let meta = spot.meta().and_then(|meta| meta.ok_or_else(|| Errno::NOENT.into())).map_err(fail)?;
    if meta.kind == FileKind::Dir && !recursive {
        let gone = rustix::fs::unlinkat(&spot.dir, name, rustix::fs::AtFlags::REMOVEDIR);
        gone.map_err(|e| fail(e.into()))?;
        return Ok(FilesRemoved { dirs: 1, bytes: meta.space, files: 0 });
    }
    let dir = readable(&spot.dir).map_err(fail)?;
    let (began, mut so_far) = (Instant::now(), removal::Removed::default());
    let gone = removal::tree_while(&dir, name, &mut |removed| {
        so_far = *removed;
        match removed.files + removed.dirs < MOST_REMOVED && began.elapsed() < PATIENCE {
            true => Ok(()),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    });
    match gone {
        Ok(removal::Removed { files, dirs, bytes }) => Ok(FilesRemoved { files, dirs, bytes }),
        Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => {
            let what = format!("{} files and directories were removed; more remain", so_far.files + so_far.dirs);
            Err(error::too_much(path, what, LimitKind::Files, "repeat the request for the rest"))
        }
        Err(e) => Err(fail(e)),
    }
}

/// Reopens an O_PATH handle for reading.
fn readable(dir: &Dir) -> io::Result<Dir> {
    dir.dir(&Rel::top())
}

/// Sets permission bits; follows symbolic links.
pub fn chmod(root: &Root, path: &Rel, mode: u32) -> Result<FileEntry, Fault> {
    check_mode(mode)?;
    let _owner = root.act_as_guest()?;
    set_mode(root, path, mode)
}

fn set_mode(root: &Root, path: &Rel, mode: u32) -> Result<FileEntry, Fault> {
    let (spot, ()) = super::locate::settled(root, path, "set its bits", false, |spot| match &spot.name {
        Some(name) => descent::set_mode(&spot.dir, name, mode),
        None => Ok(rustix::fs::fchmod(readable(&spot.dir)?, Mode::from_raw_mode(mode))?),
    })?;
    look(root, &spot.path, Last::Itself)
}
