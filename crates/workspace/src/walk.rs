//! Walks the merged view of layers, topmost first, without the base: the tree that a mount of these layers alone would
//! show, with the whiteouts that hide names of the base. Sorted, by handles, without recursion, without following
//! links.

use crate::attributes::{self, Marks};
use crate::descent::{Descent, set_mode};
use crate::dir::{Dir, Meta};
use api::{FileKind, Rel};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use terms::{ErrorKind, Fault, LimitKind};

/// Bound on the entries of one walk.
pub const MOST_ENTRIES: u64 = 4_000_000;

/// Length to which paths in messages are truncated.
const SHOWN: usize = 1024;

/// Visited entry.
#[derive(Debug)]
pub struct At<'a> {
    pub name: &'a [u8],
    pub meta: Meta,
    /// Parent directory in the topmost layer that has the entry.
    pub parent: &'a Dir,
    /// Depth; 0 for entries of the top directory.
    pub depth: usize,
    /// Handle on a directory in the topmost layer that has it; None for other entries.
    pub opened: Option<&'a Dir>,
    /// The directory hides its counterpart in the base.
    pub opaque: bool,
    pub marks: Marks,
}

/// Cached knowledge of a visitor about a directory before it is entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    Nothing,
    /// Only these names in it have to be visited.
    But(Vec<Vec<u8>>),
    /// Contents fully known; the directory is not entered.
    All,
}

pub trait Visitor {
    /// Called for each directory, for the top one with an empty name. A visitor of several layers returns `Nothing`.
    fn known(&mut self, _name: &[u8], _meta: &Meta) -> io::Result<Known> {
        Ok(Known::Nothing)
    }
    /// Directory; its entries follow, then `leave`.
    fn enter(&mut self, at: &At<'_>) -> io::Result<()>;
    /// Any other entry, whiteouts included.
    fn leaf(&mut self, at: &At<'_>) -> io::Result<()>;
    fn leave(&mut self) -> io::Result<()>;
    /// Directory that vanished between `stat` and open.
    fn vanished(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    /// Directory without read permission, in a tree whose permissions the walk may not change.
    fn shut(&mut self, _at: &At<'_>) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

struct VisitedDir {
    name: Vec<u8>,
    /// Names still to visit, in descending order.
    names: Vec<Vec<u8>>,
    /// Layers that have this directory, topmost first.
    layers: Vec<usize>,
    /// Layers in which owner permissions were added, with the mode to restore.
    lifted: Vec<(usize, u32)>,
}

pub struct Walk<V> {
    ways: Vec<Descent>,
    marks: Marks,
    frames: Vec<VisitedDir>,
    seen: u64,
    visitor: V,
}

/// Walks layers given from the bottom up; a tree without whiteouts has only one.
pub fn walk<V: Visitor>(layers: &[&Dir], marks: Marks, visitor: V) -> Result<V, Fault> {
    through(layers, marks, visitor).map_err(|ended| fault(&ended.at, &ended.error))
}

/// Walks layers and returns the raw error, for callers with a message of their own.
pub fn through<V: Visitor>(layers: &[&Dir], marks: Marks, visitor: V) -> Result<V, Ended> {
    let ways = layers.iter().rev().map(|dir| Descent::at(dir)).collect::<io::Result<Vec<_>>>();
    let ways = ways.map_err(|error| Ended { at: Rel::top(), error })?;
    let mut walk = Walk { ways, marks, frames: Vec::new(), seen: 0, visitor };
    match walk.run() {
        Ok(()) => Ok(walk.visitor),
        Err((at, error)) => Err(Ended { at, error }),
    }
}

/// Path and error of a failed walk.
#[derive(Debug)]
pub struct Ended {
    /// Path relative to the top of the walk.
    pub at: Rel,
    pub error: io::Error,
}

impl<V: Visitor> Walk<V> {
    fn run(&mut self) -> Result<(), (Rel, io::Error)> {
        self.top().map_err(|e| (Rel::top(), e))?;
        while let Some(frame) = self.frames.last_mut() {
            match frame.names.pop() {
                Some(name) => self.visit(&name).map_err(|e| (self.path(&name), e))?,
                None => self.leave().map_err(|e| (self.path(b""), e))?,
            }
        }
        Ok(())
    }

    fn top(&mut self) -> io::Result<()> {
        let layers: Vec<usize> = (0..self.ways.len()).collect();
        let top = self.ways.first().map(|way| way.here().meta(&Rel::top())).transpose()?.flatten();
        let known = top.map_or(Ok(Known::Nothing), |meta| self.visitor.known(b"", &meta))?;
        let names = self.names_but(known, &layers)?;
        self.frames.push(VisitedDir { name: Vec::new(), names, layers, lifted: Vec::new() });
        Ok(())
    }

    fn visit(&mut self, name: &[u8]) -> io::Result<()> {
        self.seen += 1;
        if self.seen > MOST_ENTRIES {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, format!("more than {MOST_ENTRIES} entries")));
        }
        let frame = self.frames.last().ok_or(io::ErrorKind::NotFound)?;
        let mut found = Vec::new();
        for &layer in &frame.layers {
            if let Some(meta) = self.ways[layer].here().meta_of(name)? {
                found.push((layer, meta));
                if meta.kind != FileKind::Dir {
                    break;
                }
            }
        }
        let Some(&(first, meta)) = found.first() else { return Ok(()) };
        if meta.kind == FileKind::Dir {
            return match self.visitor.known(name, &meta)? {
                Known::All => Ok(()),
                known => self.enter(name, &found, known),
            };
        }
        let depth = self.frames.len() - 1;
        let parent = self.ways[first].here();
        self.visitor.leaf(&At { name, meta, parent, depth, opened: None, opaque: false, marks: self.marks })
    }

    /// Enters a directory in every layer that has it, down to an opaque one.
    fn enter(&mut self, name: &[u8], found: &[(usize, Meta)], known: Known) -> io::Result<()> {
        let (mut layers, mut lifted, mut opaque) = (Vec::new(), Vec::new(), false);
        let depth = self.frames.len() - 1;
        for &(layer, meta) in found {
            if meta.kind != FileKind::Dir {
                // A file or whiteout below a directory: the base's entry is hidden.
                opaque = true;
                break;
            }
            let way = &mut self.ways[layer];
            if self.marks.is_ours() && meta.mode & 0o500 != 0o500 && may_lift(&meta) {
                set_mode(way.here(), name, meta.mode | 0o500)?;
                lifted.push((layer, meta.mode));
            }
            match way.enter(name) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !self.marks.is_ours() => {
                    let at = At { name, meta, parent: way.here(), depth, opened: None, opaque, marks: self.marks };
                    return self.visitor.shut(&at);
                }
                Err(e) if layers.is_empty() && is_gone(&e) => return self.visitor.vanished(),
                other => other?,
            }
            layers.push(layer);
            if self.marks == Marks::Mean && attributes::read(way.here(), self.marks)?.opaque {
                opaque = true;
                break;
            }
        }
        let names = self.names_but(known, &layers)?;
        let (first, meta) = found[0];
        let opened = self.ways[first].here();
        self.visitor.enter(&At {
            name,
            meta,
            parent: opened,
            depth,
            opened: Some(opened),
            opaque,
            marks: self.marks,
        })?;
        self.frames.push(VisitedDir { name: name.to_vec(), names, layers, lifted });
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        if self.frames.is_empty() {
            return Ok(());
        }
        self.visitor.leave()?;
        for layer in frame.layers {
            self.ways[layer].leave()?;
        }
        for (layer, mode) in frame.lifted {
            set_mode(self.ways[layer].here(), &frame.name, mode)?;
        }
        Ok(())
    }

    /// Names here that have to be visited, in descending order.
    fn names_but(&self, known: Known, layers: &[usize]) -> io::Result<Vec<Vec<u8>>> {
        let mut names = match known {
            Known::Nothing => return self.names(layers),
            Known::But(names) => names,
            Known::All => Vec::new(),
        };
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// Names of these layers here, in descending order.
    fn names(&self, layers: &[usize]) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for &layer in layers {
            names.extend(self.ways[layer].here().names()?);
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        names.dedup();
        Ok(names)
    }

    fn path(&self, name: &[u8]) -> Rel {
        path_of(self.frames.iter().map(|f| &f.name[..]).chain([name]))
    }
}

/// A path for a message, truncated.
pub fn path_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Rel {
    let mut path = Rel::top();
    for part in parts.filter(|p| !p.is_empty()) {
        if path.as_bytes().len() + part.len() > SHOWN {
            return path.join("…".as_bytes());
        }
        path = path.join(part);
    }
    path
}

/// True if the entry vanished or is no longer a directory.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// True if the mode has to be and can be changed: for an owner who is not root.
fn may_lift(meta: &Meta) -> bool {
    let own = rustix::process::geteuid();
    !own.is_root() && own.as_raw() == meta.uid
}

/// Opens a regular file for reading. If its mode denies the owner, read permission is added for a moment, which only
/// the owner can do.
pub fn open_file(at: &At<'_>) -> io::Result<File> {
    open_sized(at).map(|(file, _)| file)
}

/// Opens a regular file and returns its size.
pub fn open_sized(at: &At<'_>) -> io::Result<(File, u64)> {
    let rel = Rel::top().join(at.name);
    let open = || at.parent.open_at(&rel, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty());
    let opened = match open() {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && at.marks.is_ours() && may_lift(&at.meta) => {
            set_mode(at.parent, at.name, at.meta.mode | 0o400)?;
            let opened = open();
            set_mode(at.parent, at.name, at.meta.mode)?;
            opened?
        }
        other => other?,
    };
    let stat = rustix::fs::fstat(&opened)?;
    match FileKind::of_mode(stat.st_mode) {
        FileKind::File => Ok((File::from(opened), stat.st_size as u64)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file any more")),
    }
}

/// Fault at a path of a tree.
pub fn fault(path: &Rel, error: &io::Error) -> Fault {
    let shown = if path.is_top() { "the top directory".to_owned() } else { path.to_string() };
    let message = format!("{shown}: {error}");
    match error.kind() {
        io::ErrorKind::QuotaExceeded => Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::Files),
        io::ErrorKind::StorageFull => {
            Fault::new(ErrorKind::Unavailable, message).hint("free some space, then try again")
        }
        io::ErrorKind::InvalidData => Fault::new(ErrorKind::Conflict, message)
            .hint("do not trust this layer; go back to a snapshot, or drop the sandbox with `cofferdam rm`"),
        // A retry would fail again.
        io::ErrorKind::PermissionDenied => {
            Fault::new(ErrorKind::PolicyDenied, message).hint("change its permission bits")
        }
        _ => Fault::new(ErrorKind::Unavailable, message),
    }
}
