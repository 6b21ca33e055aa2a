//! Merged view of a stack for readers on the host: the tree that a guest would see, found by walking the layers from
//! the top down. Mounts and writes nothing.

use crate::dir::{Dir, Meta, is_absent};
use crate::layer::Stack;
use api::{Driver, FileKind, Rel};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

/// Entry of the merged view and its origin: the index of a layer from the bottom, or the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub meta: Meta,
    pub layer: Option<usize>,
}

/// A directory of the merged view, as handles on its parts.
#[derive(Debug)]
pub(crate) struct MergedDir {
    /// Contributing layers, topmost first, with their indices from the bottom.
    pub up: Vec<(usize, Dir)>,
    /// Directory of the base, whether or not it shows through.
    pub base: Option<Dir>,
    /// Names without an entry in any layer come from the base.
    pub base_shows: bool,
    /// Layers hold whiteouts and overlayfs attributes.
    marks: bool,
}

impl Stack {
    /// Entry that a guest sees at a path, links not followed; None if it sees none.
    pub fn meta(&self, at: &Rel) -> io::Result<Option<Found>> {
        let Some((parent, name)) = at.split() else {
            let (layer, dir) =
                self.layers.iter().enumerate().next_back().map_or((None, &self.base), |(n, l)| (Some(n), &l.up));
            return Ok(dir.meta(at)?.map(|meta| Found { meta, layer }));
        };
        match self.place(&parent)? {
            Some(place) => place.find(name),
            None => Ok(None),
        }
    }

    /// Opens a regular file of the view for reading.
    pub fn file(&self, at: &Rel) -> io::Result<File> {
        let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
        let place = self.place(&parent)?.ok_or(io::ErrorKind::NotFound)?;
        let found = place.find(name)?.ok_or(io::ErrorKind::NotFound)?;
        let dir = place.holder(found.layer).ok_or(io::ErrorKind::NotFound)?;
        dir.file(&Rel::top().join(name))
    }

    /// Target of a symbolic link of the view.
    pub fn link_target(&self, at: &Rel) -> io::Result<Vec<u8>> {
        let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
        let place = self.place(&parent)?.ok_or(io::ErrorKind::NotFound)?;
        let found = place.find(name)?.ok_or(io::ErrorKind::NotFound)?;
        place.holder(found.layer).ok_or(io::ErrorKind::NotFound)?.link_target(name)
    }

    /// Entries that a guest sees in a directory.
    pub fn names(&self, dir: &Rel) -> io::Result<BTreeMap<Vec<u8>, Meta>> {
        let place = self.place(dir)?.ok_or(io::ErrorKind::NotFound)?;
        if place.up.is_empty() && !place.base_shows {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut names = place.layer_names()?;
        if let (Some(base), true) = (&place.base, place.base_shows) {
            names.extend(names_in(base)?);
        }
        let seen = names.into_iter().map(|name| Ok((place.find(&name)?, name)));
        seen.filter_map(|one: io::Result<_>| match one {
            Ok((found, name)) => found.map(|found| Ok((name, found.meta))),
            Err(e) => Some(Err(e)),
        })
        .collect()
    }

    /// Parts of a directory of the view. None if neither the view nor the base has it; if only the base has it, no
    /// entry in it shows.
    pub(crate) fn place(&self, at: &Rel) -> io::Result<Option<MergedDir>> {
        let mut place = self.top()?;
        for name in at.parts() {
            match place.enter(name)? {
                Some(next) => place = next,
                None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// Top of the view. With a copying driver the topmost layer is the whole tree, and lower ones do not contribute.
    pub(crate) fn top(&self) -> io::Result<MergedDir> {
        let overlay = self.driver == Driver::Overlay;
        let taking_part = if overlay { self.layers.len() } else { 1 };
        let layers = self.layers.iter().enumerate().rev().take(taking_part);
        let up = layers.map(|(i, layer)| Ok((i, layer.up.try_clone()?))).collect::<io::Result<_>>()?;
        Ok(MergedDir { up, base: Some(self.base.try_clone()?), base_shows: overlay, marks: overlay })
    }
}

/// Result of looking up a name in the layers.
pub(crate) enum LayerEntry {
    Absent,
    Whiteout,
    Holds(usize, Meta),
}

impl MergedDir {
    /// Looks up a name in the layers; `Holds` gives an index in `up`.
    pub fn lookup(&self, name: &[u8]) -> io::Result<LayerEntry> {
        for (index, (_, dir)) in self.up.iter().enumerate() {
            match dir.meta_of(name)? {
                None => {}
                Some(meta) if self.marks && meta.is_struck_out() => return Ok(LayerEntry::Whiteout),
                Some(meta) => return Ok(LayerEntry::Holds(index, meta)),
            }
        }
        Ok(LayerEntry::Absent)
    }

    /// Entry that a guest sees under a name here.
    pub fn find(&self, name: &[u8]) -> io::Result<Option<Found>> {
        match self.lookup(name)? {
            LayerEntry::Holds(index, meta) => Ok(Some(Found { meta, layer: Some(self.up[index].0) })),
            LayerEntry::Whiteout => Ok(None),
            LayerEntry::Absent if self.base_shows => Ok(self.before(name)?.map(|meta| Found { meta, layer: None })),
            LayerEntry::Absent => Ok(None),
        }
    }

    /// Entry of the base under a name here.
    pub fn before(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        self.base.as_ref().map_or(Ok(None), |base| base.meta_of(name))
    }

    /// Names with an entry in any layer, whiteouts included.
    pub fn layer_names(&self) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        for (_, dir) in &self.up {
            names.extend(names_in(dir)?);
        }
        Ok(names)
    }

    fn holder(&self, layer: Option<usize>) -> Option<&Dir> {
        match layer {
            Some(number) => self.up.iter().find(|(n, _)| *n == number).map(|(_, dir)| dir),
            None => self.base.as_ref(),
        }
    }

    /// Number of open handles.
    pub fn handles(&self) -> usize {
        self.up.len() + usize::from(self.base.is_some())
    }

    /// Enters a subdirectory. None if neither side has a directory of that name.
    pub fn enter(&self, name: &[u8]) -> io::Result<Option<MergedDir>> {
        let (mut up, mut shows) = (Vec::new(), self.base_shows);
        for (number, dir) in &self.up {
            let Some(meta) = dir.meta_of(name)? else { continue };
            if meta.kind != FileKind::Dir {
                shows = false;
                break;
            }
            let Some(below) = open(dir, name)? else { continue };
            let opaque = self.marks && is_opaque(&below)?;
            up.push((*number, below));
            if opaque {
                shows = false;
                break;
            }
        }
        let base = match &self.base {
            Some(base) => open(base, name)?,
            None => None,
        };
        let base_shows = shows && base.is_some();
        let nothing = up.is_empty() && base.is_none();
        Ok((!nothing).then_some(MergedDir { up, base, base_shows, marks: self.marks }))
    }
}

/// Bound on the names of one directory; a larger one is not a tree that people review.
const MOST_NAMES: usize = 1_000_000;

/// Names in a directory; more than the bound is an error.
pub(crate) fn names_in(dir: &Dir) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if names.len() == MOST_NAMES {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many names in one directory"));
        }
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Opens a subdirectory; None if it is missing or not a directory.
fn open(dir: &Dir, name: &[u8]) -> io::Result<Option<Dir>> {
    match dir.dir(&Rel::top().join(name)) {
        Ok(found) => Ok(Some(found)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// True for an opaque directory. An attribute value that our mounts never have the kernel write means tampering: it
/// could direct a reader elsewhere.
fn is_opaque(dir: &Dir) -> io::Result<bool> {
    let mut value = [0u8; 8];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value) {
        Ok(1) if value[0] == b'y' => Ok(true),
        Ok(_) => Err(tampered(OPAQUE)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(Errno::RANGE) => Err(tampered(OPAQUE)),
        Err(e) => Err(e.into()),
    }
}

const OPAQUE: &str = "user.overlay.opaque";

fn tampered(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the layer was tampered with: it holds {name}"))
}

/// Longest path passed to one system call, below PATH_MAX.
const LONGEST_STEP: usize = 3500;

/// Opens a regular file below a directory, also beyond PATH_MAX.
pub(crate) fn file_below(dir: &Dir, at: &Rel) -> io::Result<File> {
    let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
    match at.as_bytes().len() > LONGEST_STEP {
        true => dir_below(dir, &parent)?.file(&Rel::top().join(name)),
        false => dir.file(at),
    }
}

/// Opens a directory below another, also beyond PATH_MAX.
pub(crate) fn dir_below(dir: &Dir, at: &Rel) -> io::Result<Dir> {
    let mut here = dir.try_clone()?;
    let mut rest = at.as_bytes();
    while rest.len() > LONGEST_STEP {
        let end = rest[..LONGEST_STEP].iter().rposition(|b| *b == b'/').ok_or(io::ErrorKind::InvalidInput)?;
        here = here.dir(&Rel::parse(&rest[..end]).ok_or(io::ErrorKind::InvalidInput)?)?;
        rest = &rest[end + 1..];
    }
    here.dir(&Rel::parse(rest).ok_or(io::ErrorKind::InvalidInput)?)
}
