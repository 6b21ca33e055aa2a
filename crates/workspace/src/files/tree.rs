//! Walks a tree that may change meanwhile: sorted, by handles, without following links, from the start or after a
//! given path.

use crate::Dir;
use crate::descent::Descent;
use crate::dir::Meta;
use api::{FileKind, Rel};
use std::collections::BinaryHeap;
use std::io;

/// Bound on the names of one directory.
const MOST_NAMES: usize = 1_000_000;
/// Names held at a time, fewer the deeper the walk is; for the names that follow the directory is read again.
const HELD: usize = 10_240;
const LEAST_HELD: usize = 64;

pub(super) struct TreeWalk {
    way: Descent,
    frames: Vec<ListedDir>,
    /// Path of the current directory, relative to the start.
    path: Rel,
    /// Depth bound below the start directory.
    deepest: usize,
    /// Components of the path to resume after, until it is passed.
    after: Vec<Vec<u8>>,
    /// Number of directories without read permission.
    pub shut: u64,
}

struct ListedDir {
    /// Path of the parent directory.
    above: Rel,
    /// Names that come next, in descending order.
    names: Vec<Vec<u8>>,
    /// Last name of this batch, if more follow.
    until: Option<Vec<u8>>,
}

pub(super) struct TreeEntry {
    /// Path relative to the start.
    pub path: Rel,
    pub meta: Meta,
}

impl TreeWalk {
    /// Starts a walk; `deepest` 0 visits only the entries of the directory itself.
    pub fn of(top: &Dir, deepest: usize, after: Option<&Rel>) -> io::Result<TreeWalk> {
        let after = after.map(|path| path.parts().map(<[u8]>::to_vec).collect()).unwrap_or_default();
        let way = Descent::at(top)?;
        let mut tree = TreeWalk { way, frames: Vec::new(), path: Rel::top(), deepest, after, shut: 0 };
        tree.open(Rel::top())?;
        Ok(tree)
    }

    /// Parent directory of the last item, unless that is a directory.
    pub fn here(&self) -> &Dir {
        self.way.here()
    }

    pub fn next(&mut self) -> io::Result<Option<TreeEntry>> {
        loop {
            if self.frames.is_empty() {
                return Ok(None);
            }
            let Some(name) = self.next_name()? else {
                self.leave()?;
                continue;
            };
            // Names may vanish after the directory was read.
            let Some(meta) = self.way.here().meta_of(&name)? else { continue };
            let depth = self.frames.len() - 1;
            let path = self.path.join(&name);
            let returned_before = self.is_behind(depth, &name);
            if meta.kind == FileKind::Dir && depth < self.deepest {
                self.enter(&name, path.clone())?;
            }
            if !returned_before {
                return Ok(Some(TreeEntry { path, meta }));
            }
        }
    }

    fn next_name(&mut self) -> io::Result<Option<Vec<u8>>> {
        let most = self.held();
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        if frame.names.is_empty()
            && let Some(until) = frame.until.take()
        {
            (frame.names, frame.until) = least(self.way.here(), most, |name| name > &until[..])?;
        }
        Ok(frame.names.pop())
    }

    /// Number of names that the innermost directory may hold.
    fn held(&self) -> usize {
        (HELD / self.frames.len().max(1)).max(LEAST_HELD)
    }

    /// True for a component of the path to resume after, which was returned before. Names that sort after it were not.
    fn is_behind(&mut self, depth: usize, name: &[u8]) -> bool {
        let behind = self.after.get(depth).is_some_and(|part| part == name);
        if !behind {
            self.after.truncate(depth);
        }
        behind
    }

    fn enter(&mut self, name: &[u8], path: Rel) -> io::Result<()> {
        match self.way.enter(name) {
            Ok(()) => self.open(path),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.shut += 1;
                Ok(())
            }
            // The entry was removed or replaced since its `stat`.
            Err(e) if crate::dir::is_absent(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn open(&mut self, path: Rel) -> io::Result<()> {
        let most = self.held();
        let from = self.after.get(self.frames.len()).map_or(&[][..], Vec::as_slice);
        let (names, until) = least(self.way.here(), most, |name| name >= from)?;
        let above = std::mem::replace(&mut self.path, path);
        self.frames.push(ListedDir { above, names, until });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        self.path = frame.above;
        if self.frames.is_empty() { Ok(()) } else { self.way.leave() }
    }
}

type Name = Vec<u8>;

/// The first `most` matching names in descending order, and the last of them if more follow.
fn least(dir: &Dir, most: usize, wanted: impl Fn(&[u8]) -> bool) -> io::Result<(Vec<Name>, Option<Name>)> {
    let (mut held, mut more) = (BinaryHeap::new(), false);
    dir.each_name(MOST_NAMES, |name| {
        if !wanted(name) {
            return;
        }
        more |= held.len() == most;
        if held.len() < most {
            held.push(name.to_vec());
        } else if held.peek().is_some_and(|last: &Vec<u8>| name < &last[..]) {
            held.pop();
            held.push(name.to_vec());
        }
    })?;
    let until = held.peek().cloned().filter(|_| more);
    let mut names = held.into_sorted_vec();
    names.reverse();
    Ok((names, until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_than_are_held_are_told_in_order_and_once() {
        let place = std::env::temp_dir().join(format!("cofferdam-tree-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(place.join("m")).unwrap();
        let top = Dir::open(&place).unwrap();
        let count = HELD + HELD / 2;
        for number in 0..count {
            // A sequence that jumps about, so that the directory is unordered.
            std::fs::write(place.join("m").join(format!("{:08}", number * 7919 % count)), "").unwrap();
        }
        let walk = |after: Option<&Rel>| {
            let mut tree = TreeWalk::of(&top, 1, after).unwrap();
            let mut told = Vec::new();
            while let Some(item) = tree.next().unwrap() {
                assert!(tree.frames.iter().all(|frame| frame.names.len() <= HELD));
                told.push(item.path);
            }
            told
        };
        let all = walk(None);
        assert_eq!(all.len(), count + 1);
        assert!(all.windows(2).all(|two| two[0].as_bytes() < two[1].as_bytes()), "in order");
        assert_eq!(walk(Some(&all[count - 3])), all[count - 2..], "from the middle on");
        std::fs::remove_dir_all(&place).unwrap();
    }
}
