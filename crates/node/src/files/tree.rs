//! Goes through a tree that others may be changing: sorted, by handles, following nothing, from the beginning or from after a path.

use std::io;
use workspace::descent::Descent;
use workspace::dir::Meta;
use workspace::{Dir, FileKind, Rel};

/// The most names that one directory may have here: they are sorted in memory.
pub(super) const MOST_NAMES: usize = 1_000_000;

pub(super) struct Tree {
    way: Descent,
    frames: Vec<Frame>,
    /// From where the walk began.
    path: Rel,
    /// How many directories are gone into, below the one that it begins with.
    deepest: usize,
    /// Parts of the path after which it begins, while it is on the way there.
    after: Vec<Vec<u8>>,
    /// Directories that could not be looked into.
    pub shut: u64,
}

struct Frame {
    /// Of the directory that it is about, before it was entered.
    above: Rel,
    /// Still to come, last first.
    names: Vec<Vec<u8>>,
}

pub(super) struct Item {
    /// From where the walk began.
    pub path: Rel,
    pub meta: Meta,
}

impl Tree {
    /// `deepest` 0 tells only what is right in the directory.
    pub fn of(top: &Dir, deepest: usize, after: Option<&Rel>) -> io::Result<Tree> {
        let after = after.map(|path| path.parts().map(<[u8]>::to_vec).collect()).unwrap_or_default();
        let way = Descent::at(top)?;
        let mut tree = Tree { way, frames: Vec::new(), path: Rel::top(), deepest, after, shut: 0 };
        tree.open(Rel::top())?;
        Ok(tree)
    }

    /// The directory that the last item is in, if that is no directory.
    pub fn here(&self) -> &Dir {
        self.way.here()
    }

    pub fn next(&mut self) -> io::Result<Option<Item>> {
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some(name) = frame.names.pop() else {
                self.leave()?;
                continue;
            };
            // It was there when the directory was read.
            let Some(meta) = self.way.here().meta_of(&name)? else { continue };
            let depth = self.frames.len() - 1;
            let path = self.path.join(&name);
            let told = self.is_behind(depth, &name);
            if meta.kind == FileKind::Dir && depth < self.deepest {
                self.enter(&name, path.clone())?;
            }
            if !told {
                return Ok(Some(Item { path, meta }));
            }
        }
    }

    /// Whether a name was told before. Whatever comes after it, and is not below it, was not.
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
            // It went, or became something else, since it was looked at.
            Err(e) if workspace::dir::is_absent(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn open(&mut self, path: Rel) -> io::Result<()> {
        let depth = self.frames.len();
        let mut names = self.way.here().names_up_to(MOST_NAMES)?;
        if let Some(part) = self.after.get(depth) {
            names.retain(|name| name >= part);
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        let above = std::mem::replace(&mut self.path, path);
        self.frames.push(Frame { above, names });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        self.path = frame.above;
        if self.frames.is_empty() { Ok(()) } else { self.way.leave() }
    }
}
