//! Discards changes: the workspace shows its base again at these paths. Only the writable layer changes, each path
//! atomically; frozen layers are covered, not modified.

use crate::attributes::{self, LayerAttributes, Marks};
use crate::dir::is_absent;
use crate::layer::Stack;
use crate::place::{self, FileFacts};
use crate::plan::DirProperties;
use crate::select::{Chosen, SelectedChange};
use crate::top::{Put, TopLayer};
use crate::{hunks, stage, trouble};
use api::{ChangeBody, ChangeKind, FileKind, Rel};
use std::collections::BTreeSet;
use std::io;
use terms::{ErrorKind, Fault, Phase};

/// Restores the base's state at every pick. The caller holds the layer's lock.
pub fn reject(stack: &Stack, chosen: &Chosen<'_>) -> Result<(), Fault> {
    let top = TopLayer::of(stack).map_err(|e| trouble::with(&"the workspace's layer", "open it", &e))?;
    let work = Reject { stack, top, stays: chosen.left.iter().map(|left| &left.path).collect() };
    let mut shown: Vec<Rel> = Vec::new();
    for pick in &chosen.picks {
        let change = &pick.file.change;
        if let Some(some) = &pick.hunks {
            work.without(pick, some.iter().map(|h| h.id.as_str()).collect())?;
            continue;
        }
        if let ChangeKind::Renamed { from } = &change.kind {
            work.as_base(from, &mut shown)?;
        }
        work.as_base(&change.path, &mut shown)?;
    }
    // Directories last, innermost first: they are removed once empty.
    for pick in chosen.picks.iter().rev().filter(|p| p.hunks.is_none()) {
        work.clear_above(&pick.file.change.path)?;
    }
    Ok(())
}

struct Reject<'a> {
    stack: &'a Stack,
    top: TopLayer<'a>,
    stays: BTreeSet<&'a Rel>,
}

impl Reject<'_> {
    /// Makes the workspace show the base at a path. `shown` lists directories that were restored as a whole.
    fn as_base(&self, at: &Rel, shown: &mut Vec<Rel>) -> Result<(), Fault> {
        if shown.last().is_some_and(|dir| at.is_at_or_below(dir)) {
            return Ok(());
        }
        let fail = |e: io::Error| blocked(at, &e);
        let base = self.base_at(at).map_err(fail)?;
        if let Some(dir) = base.as_ref().filter(|base| base.kind == FileKind::Dir)
            && self.top.is_inaccessible(at).map_err(fail)?
        {
            // An unreadable directory: its contents were not compared, so only the mode is restored.
            return self.top.set_mode(at, dir.mode).map_err(fail);
        }
        let own = self.top.own(at).map_err(fail)?;
        let shows_base = self.top.shows_base(at).map_err(fail)?;
        match base {
            Some(dir) if dir.kind == FileKind::Dir => match own {
                Some(own) if own.facts.kind == FileKind::Dir => self.top.set_mode(at, dir.mode).map_err(fail),
                Some(_) if shows_base && !self.stays_below(at) => {
                    shown.push(at.clone());
                    self.top.remove_entry(at).map_err(fail)
                }
                _ if self.is_dir_in_view(at).map_err(fail)? => self.top.set_mode(at, dir.mode).map_err(fail),
                _ => self
                    .top
                    .put(at, Put::Dir { look: DirProperties { mode: dir.mode, xattrs: Default::default() } })
                    .map_err(fail),
            },
            None if self.stack.meta(at).map_err(fail)?.is_none() => Ok(()),
            // A new directory is removed later, once empty.
            None if own.is_some_and(|own| own.facts.kind == FileKind::Dir) => Ok(()),
            _ if shows_base => self.top.remove_entry(at).map_err(fail),
            None => self.top.hide(at).map_err(fail),
            Some(facts) => self.copy_up(at, &facts).map_err(fail),
        }
    }

    /// Rewrites a file of the workspace without some of its hunks.
    fn without(&self, pick: &SelectedChange<'_>, rejected: BTreeSet<&str>) -> Result<(), Fault> {
        let change = &pick.file.change;
        let at = &change.path;
        let fail = |e: io::Error| blocked(at, &e);
        let ChangeBody::Text(all) = &pick.file.body else { return Ok(()) };
        let rest = all.iter().filter(|h| !rejected.contains(h.id.as_str())).flat_map(hunks::split);
        let rest: Vec<_> = rest.filter(|part| !rejected.contains(part.id.as_str())).collect();
        let of = match &change.kind {
            ChangeKind::Renamed { from } => from,
            _ => at,
        };
        let before = match change.before {
            Some(_) => {
                let file = stage::file_of(&self.stack.base, of).map_err(fail)?;
                hunks::read_text(file).map_err(fail)?
            }
            None => Vec::new(),
        };
        let after = hunks::apply(&before, &rest).ok_or_else(|| trouble::moved(of))?;
        let Some(entry) = change.after.as_ref().or(change.before.as_ref()) else { return Ok(()) };
        let carried = match self.stack.file(at) {
            Ok(file) => attributes::read(&file, Marks::Mean).map_err(fail)?,
            Err(_) => LayerAttributes::default(),
        };
        self.top.put(at, Put::File { bytes: &mut &after[..], mode: entry.mode, mtime: None, carried }).map_err(fail)
    }

    /// Removes new parent directories that are empty, and copied-up directories that only repeat the base.
    fn clear_above(&self, at: &Rel) -> Result<(), Fault> {
        let fail = |e: io::Error| blocked(at, &e);
        let mut next = Some(at.clone());
        while let Some(dir) = next.take().filter(|dir| !dir.is_top()) {
            let is_new = self.base_at(&dir).map_err(fail)?.is_none();
            if is_new && self.is_dir_in_view(&dir).map_err(fail)? {
                if !self.stack.names(&dir).map_err(fail)?.is_empty() {
                    break;
                }
                match self.top.shows_base(&dir).map_err(fail)? {
                    true => self.top.remove_entry(&dir).map_err(fail)?,
                    false => self.top.hide(&dir).map_err(fail)?,
                }
            } else if !is_new {
                break;
            }
            next = dir.split().map(|(above, _)| above);
        }
        self.top.prune(at).map_err(fail)
    }

    fn copy_up(&self, at: &Rel, facts: &FileFacts) -> io::Result<()> {
        let (dir, name) = place::parent_of(&self.stack.base, at)?;
        if facts.kind == FileKind::Symlink {
            return self.top.put(at, Put::Link { target: dir.link_target(name)? });
        }
        let mut file = dir.file(&Rel::top().join(name))?;
        let carried = attributes::read(&file, Marks::Foreign)?;
        let (mode, mtime) = (facts.mode, Some(facts.mtime));
        self.top.put(at, Put::File { bytes: &mut file, mode, mtime, carried })
    }

    fn base_at(&self, at: &Rel) -> io::Result<Option<FileFacts>> {
        match place::parent_of(&self.stack.base, at) {
            Ok((dir, name)) => place::look(&dir, name),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_dir_in_view(&self, at: &Rel) -> io::Result<bool> {
        Ok(self.stack.meta(at)?.is_some_and(|found| found.meta.kind == FileKind::Dir))
    }

    fn stays_below(&self, at: &Rel) -> bool {
        // Paths may sort between a directory and its contents: "a-b" comes before "a/b".
        self.stays
            .range::<&Rel, _>(&at..)
            .take_while(|path| path.as_bytes().starts_with(at.as_bytes()))
            .any(|p| p.is_at_or_below(at))
    }
}

fn blocked(at: &Rel, error: &io::Error) -> Fault {
    if error.raw_os_error() == Some(rustix::io::Errno::NOTDIR.raw_os_error()) {
        let message = format!("{at} cannot be restored alone: a directory above it was replaced in the workspace");
        return Fault::new(ErrorKind::Conflict, message).hint("reject that directory as well").phase(Phase::Review);
    }
    trouble::with(at, "discard the change", error)
}
