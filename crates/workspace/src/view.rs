//! The merged view of a stack for readers on the host: what a guest would see, found by walking the layers from the top down.
//! Nothing is mounted and nothing is written.

use crate::change::FileKind;
use crate::dir::{Dir, Meta, is_absent};
use crate::layer::{Driver, Stack};
use crate::name::Rel;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

/// What stands at a path of the view, and who holds it: a layer by its number from the bottom, or the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub meta: Meta,
    pub layer: Option<usize>,
}

/// A directory of the view, as the directories it is made of.
#[derive(Debug)]
pub(crate) struct Place {
    /// Those of layers that take part, the topmost first, with their numbers from the bottom.
    pub up: Vec<(usize, Dir)>,
    /// What the base has at the path, whether it shows through or not.
    pub base: Option<Dir>,
    /// Whether names that no layer mentions are those of the base.
    pub base_shows: bool,
    /// Whether layers hold the marks of overlayfs.
    marks: bool,
}

impl Stack {
    /// What a guest sees at a path, itself; none where it sees nothing.
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

    /// A regular file of the view, to read.
    pub fn file(&self, at: &Rel) -> io::Result<File> {
        let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
        let place = self.place(&parent)?.ok_or(io::ErrorKind::NotFound)?;
        let found = place.find(name)?.ok_or(io::ErrorKind::NotFound)?;
        let dir = place.holder(found.layer).ok_or(io::ErrorKind::NotFound)?;
        dir.file(&Rel::top().join(name))
    }

    /// Where a symbolic link of the view leads.
    pub fn link_target(&self, at: &Rel) -> io::Result<Vec<u8>> {
        let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
        let place = self.place(&parent)?.ok_or(io::ErrorKind::NotFound)?;
        let found = place.find(name)?.ok_or(io::ErrorKind::NotFound)?;
        place.holder(found.layer).ok_or(io::ErrorKind::NotFound)?.link_target(name)
    }

    /// What a guest sees in a directory.
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

    /// The parts of a directory of the view. None where neither the view nor the base has one; where only the base has, nothing
    /// in it shows.
    pub(crate) fn place(&self, at: &Rel) -> io::Result<Option<Place>> {
        let mut place = self.top()?;
        for name in at.parts() {
            match place.enter(name)? {
                Some(next) => place = next,
                None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// The top of the view. A copying driver's topmost layer is the whole tree; nothing below it counts.
    pub(crate) fn top(&self) -> io::Result<Place> {
        let overlay = self.driver == Driver::Overlay;
        let taking_part = if overlay { self.layers.len() } else { 1 };
        let layers = self.layers.iter().enumerate().rev().take(taking_part);
        let up = layers.map(|(i, layer)| Ok((i, layer.up.try_clone()?))).collect::<io::Result<_>>()?;
        Ok(Place { up, base: Some(self.base.try_clone()?), base_shows: overlay, marks: overlay })
    }
}

/// What the layers say about a name.
pub(crate) enum Said {
    Nothing,
    StruckOut,
    Holds(usize, Meta),
}

impl Place {
    /// What the layers say about a name here; a number is a place in `up`.
    pub fn ask(&self, name: &[u8]) -> io::Result<Said> {
        for (index, (_, dir)) in self.up.iter().enumerate() {
            match dir.meta_of(name)? {
                None => {}
                Some(meta) if self.marks && meta.is_struck_out() => return Ok(Said::StruckOut),
                Some(meta) => return Ok(Said::Holds(index, meta)),
            }
        }
        Ok(Said::Nothing)
    }

    /// What a guest sees under a name here.
    pub fn find(&self, name: &[u8]) -> io::Result<Option<Found>> {
        match self.ask(name)? {
            Said::Holds(index, meta) => Ok(Some(Found { meta, layer: Some(self.up[index].0) })),
            Said::StruckOut => Ok(None),
            Said::Nothing if self.base_shows => Ok(self.before(name)?.map(|meta| Found { meta, layer: None })),
            Said::Nothing => Ok(None),
        }
    }

    /// What the base has under a name here.
    pub fn before(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        self.base.as_ref().map_or(Ok(None), |base| base.meta_of(name))
    }

    /// Every name that a layer mentions, marks included.
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

    /// How many handles it holds.
    pub fn handles(&self) -> usize {
        self.up.len() + usize::from(self.base.is_some())
    }

    /// One level down. None where neither side has a directory of that name.
    pub fn enter(&self, name: &[u8]) -> io::Result<Option<Place>> {
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
        Ok((!nothing).then_some(Place { up, base, base_shows, marks: self.marks }))
    }
}

/// Most names in one directory that are looked at; more than a million would be no tree that people review.
const MOST_NAMES: usize = 1_000_000;

/// The names in a directory, unless they are too many.
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

/// A directory by its name; none where there is none, or something else.
fn open(dir: &Dir, name: &[u8]) -> io::Result<Option<Dir>> {
    match dir.dir(&Rel::top().join(name)) {
        Ok(found) => Ok(Some(found)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a directory of a layer hides what is below it. A layer that says more than we ever have the kernel write was tampered
/// with: it could lead a reader elsewhere.
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

/// The longest path that is given to the kernel at once, below what it takes.
const LONGEST_STEP: usize = 3500;

/// A regular file below a directory, however long the path is.
pub(crate) fn file_below(dir: &Dir, at: &Rel) -> io::Result<File> {
    let (parent, name) = at.split().ok_or(io::ErrorKind::IsADirectory)?;
    match at.as_bytes().len() > LONGEST_STEP {
        true => dir_below(dir, &parent)?.file(&Rel::top().join(name)),
        false => dir.file(at),
    }
}

/// A directory below another, however long the path is.
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
