//! Copies of files and trees inside a workspace. Links are copied as links.

use super::list::{directory, walk_fault};
use super::locate::Last;
use super::tree::TreeWalk;
use super::{Root, error, write};
use crate::Dir;
use crate::dir::Meta;
use api::{Driver, FileKind, FileLeftOut, FilesCopied, Rel};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use terms::{Fault, LimitKind, Phase};

/// Bound on the entries of one copy.
const MOST_ENTRIES: u64 = 1_000_000;
/// Depth bound of one copy.
const DEEPEST: usize = 10_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Copies a directory with its contents.
    pub recursive: bool,
    /// Replaces an existing file; a directory is never replaced.
    pub replace: bool,
}

pub fn copy(root: &Root, from: &Rel, to: &Rel, ask: &CopyOptions) -> Result<FilesCopied, Fault> {
    let meta = {
        let _owner = root.act_as_guest()?;
        let spot = root.find(from, Last::Itself)?;
        let meta = spot.meta().and_then(|meta| meta.ok_or_else(|| Errno::NOENT.into()));
        meta.map_err(|e| error::fault(from, "look at it", &e))?
    };
    match meta.kind {
        FileKind::File => file(root, from, to, ask, &meta),
        FileKind::Symlink => link(root, from, to, ask),
        FileKind::Dir if ask.recursive => tree(root, from, to, &meta),
        FileKind::Dir => Err(error::conflict(from, "it is a directory", "copy it recursively")),
        _ => Err(error::conflict(from, "not a file, directory or link", "copy files, directories and links only")),
    }
}

fn file(root: &Root, from: &Rel, to: &Rel, ask: &CopyOptions, meta: &Meta) -> Result<FilesCopied, Fault> {
    let mut reading = super::read::open(root, from)?;
    let when = if ask.replace { write::WriteCondition::Always } else { write::WriteCondition::Absent };
    let how = write::WriteOptions { mode: Some(meta.mode & 0o1777), parents: false, when, append: false };
    let mut draft = write::Draft::begin(root.try_clone()?, to, how)?;
    while let Some(piece) = reading.piece()? {
        draft.push(&piece)?;
    }
    let made = draft.finish()?;
    Ok(FilesCopied { files: 1, bytes: made.size, ..FilesCopied::default() })
}

fn link(root: &Root, from: &Rel, to: &Rel, ask: &CopyOptions) -> Result<FilesCopied, Fault> {
    let _owner = root.act_as_guest()?;
    let (old, new) = (root.find(from, Last::Itself)?, root.find(to, Last::Itself)?);
    root.check_change(&new)?;
    let fail = |e: io::Error| error::fault(to, "make it", &e);
    let target = old.dir.link_target(old.name()?).map_err(fail)?;
    if ask.replace && new.meta().map_err(fail)?.is_some_and(|meta| meta.kind != FileKind::Dir) {
        rustix::fs::unlinkat(&new.dir, new.name()?, AtFlags::empty()).map_err(|e| fail(e.into()))?;
    }
    rustix::fs::symlinkat(&target[..], &new.dir, new.name()?).map_err(|e| fail(e.into()))?;
    Ok(FilesCopied { links: 1, ..FilesCopied::default() })
}

fn tree(root: &Root, from: &Rel, to: &Rel, meta: &Meta) -> Result<FilesCopied, Fault> {
    let _owner = root.act_as_guest()?;
    let (old, source) = directory(root, from)?;
    let new = root.find(to, Last::Itself)?;
    if new.path.is_at_or_below(&old.path) {
        let message = format!("{from} cannot be copied to {to}, which is in it");
        return Err(Fault::invalid(message).hint("choose another path").phase(Phase::Execution));
    }
    root.check_change(&new)?;
    check_room(root, from, &source)?;
    let fail = |e: io::Error| error::fault(to, "make it", &e);
    rustix::fs::mkdirat(&new.dir, new.name()?, Mode::from_raw_mode(0o700)).map_err(|e| fail(e.into()))?;
    let made = Rel::top().join(new.name()?);
    let up = new.dir.open_at(&made, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(fail)?;
    let up = Dir::from_fd(up);
    let copied = crate::copy::populate(&source, &up, Driver::Reflink, &mut |_| {})?;
    rustix::fs::fchmod(&up, Mode::from_raw_mode(meta.mode & 0o1777)).map_err(|e| fail(e.into()))?;
    let left_out = copied.skipped.into_iter().map(|(path, why)| FileLeftOut { path, why: why.to_owned() }).collect();
    Ok(FilesCopied {
        files: copied.files,
        dirs: copied.dirs + 1,
        links: copied.links,
        bytes: copied.bytes,
        left_out,
        left_out_more: copied.skipped_more,
    })
}

/// Adds up the tree first, so that a copy beyond the limits is not begun.
fn check_room(root: &Root, from: &Rel, source: &Dir) -> Result<(), Fault> {
    let fail = |e: io::Error| walk_fault(from, &e);
    let mut tree = TreeWalk::of(source, DEEPEST, None).map_err(fail)?;
    let (mut entries, mut bytes) = (1u64, 0u64);
    let room = root.room();
    while let Some(item) = tree.next().map_err(fail)? {
        entries += 1;
        bytes = bytes.saturating_add(item.meta.space);
        let hint = "remove files, or raise the sandbox's limits";
        if entries > room.files.unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES) {
            let what = format!("it has more than {} files, the maximum", entries - 1);
            return Err(error::too_much(from, what, LimitKind::Files, hint));
        }
        if room.bytes.is_some_and(|most| bytes > most) {
            let what = "it needs more space than the sandbox's limit leaves".to_owned();
            return Err(error::too_much(from, what, LimitKind::DiskMb, hint));
        }
    }
    Ok(())
}

impl Root {
    pub(super) fn try_clone(&self) -> Result<Root, Fault> {
        let dir = self.dir.try_clone().map_err(|e| error::fault(&Rel::top(), "open it", &e))?;
        let (place, rules, lease) = (self.place.clone(), self.rules.clone(), self.lease.clone());
        Ok(Root { dir, owner: self.owner, place, room: self.room, rules, lease, within_mount: self.within_mount })
    }
}
