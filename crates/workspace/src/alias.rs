//! Links under names that tools obey: what they lead to is obeyed as well, whatever it is called itself. Looked for where such
//! links are kept, at the top of a tree and right below directories of settings; follows no link, only reads where it leads.

use crate::change::FileKind;
use crate::class;
use crate::dir::Dir;
use crate::layer::Stack;
use crate::name::Rel;
use rustix::fs::FileType;

/// Links and where they lead inside the tree.
#[derive(Debug, Default)]
pub struct Aliases(Vec<Alias>);

#[derive(Debug)]
struct Alias {
    link: Rel,
    leads_to: Rel,
}

/// More links of that kind are no project's, and neither are so many links in one directory.
const MOST: usize = 1024;
const MOST_LINKS: usize = 65_536;

impl Aliases {
    /// Those that the base or a layer has: a link that a guest took away in the workspace may well stay in the base.
    pub fn of(stack: &Stack) -> Aliases {
        let mut found = Aliases::default();
        for tree in stack.layers.iter().map(|layer| &layer.up).chain([&stack.base]) {
            for below in found.look(tree, &Rel::top()) {
                found.look(tree, &below);
            }
        }
        found
    }

    /// Takes in the links of one directory, and gives the directories of settings in it. What cannot be read has no links that
    /// could be told.
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
                // Directories of settings have names with a dot; there are few, and only those cost more than a glance.
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

    /// Other names that a path goes by, each with the link that gives it.
    pub fn names_of<'a>(&'a self, path: &'a Rel) -> impl Iterator<Item = (Rel, &'a Rel)> {
        self.0.iter().filter(|alias| path.is_at_or_below(&alias.leads_to)).map(|alias| {
            let rest = path.parts().skip(alias.leads_to.parts().count());
            (rest.fold(alias.link.clone(), |at, part| at.join(part)), &alias.link)
        })
    }
}

/// None where it leads out of the tree: nothing that lands is there.
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
