//! Symbolic links whose names tools obey: the target of such a link is obeyed too, whatever its own name. Looks for
//! links at the top of a tree and directly below directories of settings; reads link targets and never follows one.

use crate::class;
use crate::dir::Dir;
use crate::layer::Stack;
use api::{FileKind, Rel};
use rustix::fs::FileType;

/// Links and their targets inside the tree.
#[derive(Debug, Default)]
pub struct Aliases(Vec<Alias>);

#[derive(Debug)]
struct Alias {
    link: Rel,
    leads_to: Rel,
}

/// Bounds on obeyed links per tree and on links per directory; no real project has more.
const MOST: usize = 1024;
const MOST_LINKS: usize = 65_536;

impl Aliases {
    /// Links of the base and of every layer: a link that a guest removed in the workspace may remain in the base.
    pub fn of(stack: &Stack) -> Aliases {
        let mut found = Aliases::default();
        for tree in stack.layers.iter().map(|layer| &layer.up).chain([&stack.base]) {
            for below in found.look(tree, &Rel::top()) {
                found.look(tree, &below);
            }
        }
        found
    }

    /// Adds the links of one directory and returns the directories of settings in it. An unreadable directory adds no
    /// links.
    fn look(&mut self, tree: &Dir, at: &Rel) -> Vec<Rel> {
        let (mut dirs, mut links) = (Vec::new(), 0);
        let Ok(dir) = tree.dir(at) else { return dirs };
        let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { return dirs };
        for entry in entries.map_while(Result::ok) {
            let name = entry.file_name().to_bytes();
            let kind = match entry.file_type() {
                FileType::Symlink => Some(FileKind::Symlink),
                FileType::Directory => Some(FileKind::Dir),
                FileType::Unknown => dir.meta_of(name).ok().flatten().map(|meta| meta.kind),
                _ => None,
            };
            match kind {
                // Directories of settings start with a dot; they are few, so only those are matched against the rules.
                Some(FileKind::Dir) if name != b"." && name != b".." && name.starts_with(b".") => {
                    dirs.extend(Some(at.join(name)).filter(|path| dirs.len() < MOST && class::is_obeyed(path)));
                }
                Some(FileKind::Symlink) if links < MOST_LINKS && self.0.len() < MOST => {
                    links += 1;
                    self.0.extend(class::is_obeyed(&at.join(name)).then(|| alias(&dir, at, name)).flatten());
                }
                _ => {}
            }
        }
        dirs
    }

    /// Further names that a path has, each with the link that provides it.
    pub fn names_of<'a>(&'a self, path: &'a Rel) -> impl Iterator<Item = (Rel, &'a Rel)> {
        self.0.iter().filter(|alias| path.is_at_or_below(&alias.leads_to)).map(|alias| {
            let rest = path.parts().skip(alias.leads_to.parts().count());
            (rest.fold(alias.link.clone(), |at, part| at.join(part)), &alias.link)
        })
    }
}

/// Resolves the target of a link lexically. None if the target is absolute or leaves the tree: no landing writes
/// there.
fn alias(dir: &Dir, at: &Rel, name: &[u8]) -> Option<Alias> {
    let target = dir.link_target(name).ok().filter(|target| !target.starts_with(b"/"))?;
    let mut parts: Vec<&[u8]> = at.parts().collect();
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(Alias { link: at.join(name), leads_to: parts.into_iter().fold(Rel::top(), |at, part| at.join(part)) })
}
