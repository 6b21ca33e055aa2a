//! Goes through a tree that others may be changing: sorted, by handles, following nothing, from the beginning or from after a path.

use std::collections::BinaryHeap;
use std::io;
use workspace::descent::Descent;
use workspace::dir::Meta;
use workspace::{Dir, FileKind, Rel};

/// The most names that one directory may have here.
const MOST_NAMES: usize = 1_000_000;
/// So many of them are held at a time, fewer the deeper the walk is; when they are told, the directory is read again for those that follow.
const HELD: usize = 10_240;
const LEAST_HELD: usize = 64;

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
    /// Those that come next, last first.
    names: Vec<Vec<u8>>,
    /// The last of them, where more follow it.
    until: Option<Vec<u8>>,
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
            if self.frames.is_empty() {
                return Ok(None);
            }
            let Some(name) = self.next_name()? else {
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

    /// How many names the innermost directory may hold.
    fn held(&self) -> usize {
        (HELD / self.frames.len().max(1)).max(LEAST_HELD)
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
        let most = self.held();
        let from = self.after.get(self.frames.len()).map_or(&[][..], Vec::as_slice);
        let (names, until) = least(self.way.here(), most, |name| name >= from)?;
        let above = std::mem::replace(&mut self.path, path);
        self.frames.push(Frame { above, names, until });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        self.path = frame.above;
        if self.frames.is_empty() { Ok(()) } else { self.way.leave() }
    }
}

type Name = Vec<u8>;

/// The first `most` of the wanted names, last first; and the last of them, where more follow.
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
            // A number that jumps about, so that the directory is in no order.
            std::fs::write(place.join("m").join(format!("{:08}", number * 7919 % count)), "").unwrap();
        }
        let walk = |after: Option<&Rel>| {
            let mut tree = Tree::of(&top, 1, after).unwrap();
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
