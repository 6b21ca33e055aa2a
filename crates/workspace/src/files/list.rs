//! Metadata of one file, and paged listings of directories.

use super::locate::{Last, ResolvedParent};
use super::tree::TreeWalk;
use super::{Root, error};
use crate::Dir;
use crate::dir::Meta;
use api::{FileEntry, FileKind, FileListing, Rel};
use rustix::io::Errno;
use std::io;
use terms::{ErrorKind, Fault, LimitKind, Phase};

/// Default and largest number of entries in a page.
pub const PAGE: usize = 1000;
pub const LARGEST_PAGE: usize = 10_000;
/// Depth bound of a listing.
pub const DEEPEST: usize = 1000;

/// Part of a directory to list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// 1 lists the directory itself; more descends into subdirectories.
    pub depth: usize,
    pub limit: usize,
    /// Cursor: `next` of the previous page.
    pub after: Option<String>,
}

impl Default for ListOptions {
    fn default() -> ListOptions {
        ListOptions { depth: 1, limit: PAGE, after: None }
    }
}

/// Metadata of a path; with `follow`, of the target of a link.
pub fn stat(root: &Root, path: &Rel, follow: bool) -> Result<FileEntry, Fault> {
    let _owner = root.act_as_guest()?;
    look(root, path, if follow { Last::Followed } else { Last::Itself })
}

pub(super) fn look(root: &Root, path: &Rel, last: Last) -> Result<FileEntry, Fault> {
    let spot = root.find(path, last)?;
    entry_at(spot).map_err(|e| error::fault(path, "look at it", &e))
}

fn entry_at(spot: ResolvedParent) -> io::Result<FileEntry> {
    let meta = spot.meta()?.ok_or(Errno::NOENT)?;
    let target = spot.link_target(&meta)?;
    Ok(super::entry_of(spot.path, &meta, target))
}

pub fn list(root: &Root, path: &Rel, ask: &ListOptions) -> Result<FileListing, Fault> {
    check(ask)?;
    let _owner = root.act_as_guest()?;
    let after = ask.after.as_deref().map(cursor).transpose()?;
    let fail = |e: io::Error| walk_fault(path, &e);
    let (spot, dir) = directory(root, path)?;
    let mut tree = TreeWalk::of(&dir, ask.depth - 1, after.as_ref()).map_err(fail)?;
    let mut listing = FileListing { path: spot.path, entries: Vec::new(), next: None, shut: 0 };
    while let Some(item) = tree.next().map_err(fail)? {
        if listing.entries.len() == ask.limit {
            listing.next = listing.entries.last().map(|last| spell(&below(&listing.path, &last.path)));
            break;
        }
        let target = link_target(tree.here(), &item.path, &item.meta);
        listing.entries.push(super::entry_of(joined(&listing.path, &item.path), &item.meta, target));
    }
    listing.shut = tree.shut;
    Ok(listing)
}

/// Opens the directory at a path for reading.
pub(super) fn directory(root: &Root, path: &Rel) -> Result<(ResolvedParent, Dir), Fault> {
    let spot = root.find(path, Last::Followed)?;
    let opened = spot.open_dir().map_err(|e| match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOTDIR) => {
            error::conflict(path, "it is not a directory", "read it, or list the directory above it")
        }
        _ => error::fault(path, "open it", &e),
    })?;
    Ok((spot, opened))
}

/// Fault of a walk, bounds included.
pub(super) fn walk_fault(path: &Rel, error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::QuotaExceeded => {
            error::too_much(path, error.to_string(), LimitKind::Files, "list a directory below it")
        }
        _ if error.raw_os_error().is_none() => error::conflict(path, &error.to_string(), "try again"),
        _ => error::fault(path, "read it", error),
    }
}

/// Target of a link; None if it vanished meanwhile.
pub(super) fn link_target(parent: &Dir, path: &Rel, meta: &Meta) -> Option<Vec<u8>> {
    let (_, name) = path.split().filter(|_| meta.kind == FileKind::Symlink)?;
    parent.link_target(name).ok()
}

pub(super) fn joined(above: &Rel, below: &Rel) -> Rel {
    below.parts().fold(above.clone(), |path, part| path.join(part))
}

fn below(above: &Rel, path: &Rel) -> Rel {
    path.parts().skip(above.parts().count()).fold(Rel::top(), |path, part| path.join(part))
}

fn check(ask: &ListOptions) -> Result<(), Fault> {
    let (what, given, most) = match () {
        () if !(1..=DEEPEST).contains(&ask.depth) => ("depth", ask.depth, DEEPEST),
        () if !(1..=LARGEST_PAGE).contains(&ask.limit) => ("limit", ask.limit, LARGEST_PAGE),
        () => return Ok(()),
    };
    let fault = Fault::invalid(format!("{what} {given} is out of range")).phase(Phase::Admission);
    Err(fault.hint(format!("give 1 to {most}")))
}

/// Encodes a cursor: the path in hex, because cursors go into URLs and paths hold arbitrary bytes.
fn spell(path: &Rel) -> String {
    terms::hex::encode(path.as_bytes())
}

fn cursor(text: &str) -> Result<Rel, Fault> {
    let path = terms::hex::decode(text).and_then(|bytes| Rel::parse(&bytes));
    let path = path.filter(|path| !path.is_top() && spell(path) == text);
    let bad = || {
        Fault::new(ErrorKind::InvalidRequest, format!("after: {text:?} is not a cursor of this list"))
            .phase(Phase::Admission)
    };
    path.ok_or_else(|| bad().hint("give `next` of the previous page"))
}
