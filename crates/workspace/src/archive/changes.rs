//! What a workspace as a file consists of: what a guest changed, in the order of a walk, whichever driver keeps it. Layers say
//! themselves what changed, and what they hold unchanged is left out where the base is there to compare with; a copy is compared with its
//! base, where it was touched. Both make the same list of the same changes.

use super::MOST_ENTRIES;
use crate::attributes::{self, Attributes, Marks};
use crate::change::{FileKind, Target};
use crate::descent::Descent;
use crate::dir::{Dir, Meta};
use crate::entry;
use crate::item::{Item, ItemKind};
use crate::name::Rel;
use crate::origin::Origin;
use crate::walk::{self, At, Visitor, open_file};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use terms::Fault;

/// What is exported.
#[derive(Debug)]
pub struct Source<'a> {
    /// From the bottom up; of a copy, the one that is the tree.
    pub layers: Vec<&'a Dir>,
    pub marks: Marks,
    /// The directory that was covered. Without it layers are taken as they are; a copy cannot do without.
    pub base: Option<&'a Dir>,
    /// Of a copy: what in it was touched.
    pub origin: Option<Origin>,
}

impl Source<'_> {
    pub(super) fn items(&self) -> Result<Vec<Item>, Fault> {
        if self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let fail = |e: io::Error| walk::fault(&Rel::top(), &e);
        let way = self.base.map(Descent::at).transpose().map_err(fail)?;
        let mut lister = Lister { source: self, way, frames: Vec::new(), path: Vec::new(), items: Vec::new() };
        let waiting = lister.waiting().map_err(fail)?;
        lister.frames.push(Frame { has_base: self.base.is_some(), waiting, ..Frame::default() });
        let mut lister = walk::walk(&self.layers, self.marks, lister)?;
        lister.go_past(None).map_err(fail)?;
        Ok(lister.items)
    }
}

/// A directory on the way.
#[derive(Default)]
struct Frame {
    /// The base has it, too, and shows through.
    has_base: bool,
    /// Of a copy: names of the base that were not met yet, last first.
    waiting: Vec<Vec<u8>>,
    /// Where its item is, if it is one only for what is in it.
    only_way: Option<usize>,
    /// How long the path is without it.
    cut: usize,
}

struct Lister<'a> {
    source: &'a Source<'a>,
    /// The place in the base, as far as it goes along.
    way: Option<Descent>,
    frames: Vec<Frame>,
    path: Vec<u8>,
    items: Vec<Item>,
}

impl Lister<'_> {
    fn push(&mut self, item: Item) -> io::Result<()> {
        if self.items.len() > MOST_ENTRIES {
            let text = format!("more than {MOST_ENTRIES} changes");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        self.items.push(item);
        Ok(())
    }

    /// The base here, where it shows through.
    fn base(&self) -> Option<&Dir> {
        let shows = self.frames.last().is_some_and(|frame| frame.has_base);
        self.way.as_ref().filter(|_| shows).map(Descent::here)
    }

    fn before(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        self.base().map_or(Ok(None), |base| base.meta_of(name))
    }

    /// Names that a copy may lack.
    fn waiting(&self) -> io::Result<Vec<Vec<u8>>> {
        let Some(way) = self.way.as_ref().filter(|_| self.source.marks == Marks::Plain) else { return Ok(Vec::new()) };
        let mut names = way.here().names()?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// Tells of names of the base that come before this one, and that the copy no longer has.
    fn go_past(&mut self, name: Option<&[u8]>) -> io::Result<()> {
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(()) };
            let Some(gone) = frame.waiting.pop_if(|next| name.is_none_or(|name| &next[..] <= name)) else {
                return Ok(());
            };
            if name != Some(&gone[..]) && self.was_removed(&gone)? {
                let depth = self.frames.len() - 1;
                self.push(Item::gone(depth, &gone))?;
            }
        }
    }

    /// Whether the guest removed it: the base may have got it later, and some things are never copied.
    fn was_removed(&self, name: &[u8]) -> io::Result<bool> {
        let Some((base, meta)) = self.base().zip(self.before(name)?) else { return Ok(false) };
        if self.source.origin.as_ref().is_some_and(|origin| origin.came_later(base, name, &meta)) {
            return Ok(false);
        }
        let opened = match meta.kind {
            FileKind::File => base.file(&Rel::top().join(name)).map(drop),
            FileKind::Dir => base.dir(&Rel::top().join(name)).map(drop),
            FileKind::Symlink => Ok(()),
            _ => return Ok(false),
        };
        Ok(!opened.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied))
    }

    /// Whether a directory was put in the place of what the base has there.
    fn is_made_anew(&self, at: &At<'_>) -> io::Result<bool> {
        match (&self.source.origin, self.source.marks) {
            (_, Marks::Mean) => Ok(at.opaque),
            (Some(origin), _) => match (Rel::parse(&self.path), at.opened) {
                (Some(path), Some(dir)) => Ok(!origin.is_same_dir(&path, dir)?),
                _ => Ok(true),
            },
            (None, _) => Ok(false),
        }
    }

    /// Whether it is what the base has; read only where nothing else tells.
    fn is_as_before(&self, at: &At<'_>, before: &Meta) -> io::Result<bool> {
        let Some(base) = self.base() else { return Ok(false) };
        let told = |m: &Meta| (m.kind, m.size, m.mtime);
        if told(&at.meta) != told(before) || (at.meta.kind != FileKind::Symlink && at.meta.mode != before.mode) {
            return Ok(false);
        }
        match at.meta.kind {
            FileKind::File => {
                let (now, then) = match (open_file(at), base.file(&Rel::top().join(at.name))) {
                    (Ok(now), Ok(then)) => (now, then),
                    // What cannot be compared is taken for a change.
                    _ => return Ok(false),
                };
                Ok(users(&now, at.marks)? == users(&then, Marks::Foreign)? && entry::same_bytes(&now, &then)?)
            }
            FileKind::Symlink => Ok(at.parent.link_target(at.name)? == base.link_target(at.name)?),
            _ => Ok(true),
        }
    }
}

impl Visitor for Lister<'_> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        self.go_past(Some(at.name))?;
        let before = self.before(at.name)?;
        let cut = self.path.len();
        if cut > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(at.name);
        let mut item = told(at)?;
        item.opaque = self.is_made_anew(at)? && (self.way.is_none() || before.is_some());
        let was_dir = before.filter(|before| before.kind == FileKind::Dir && !item.opaque);
        let has_base = match (&mut self.way, was_dir) {
            (Some(way), Some(_)) => way.enter(at.name).is_ok(),
            _ => false,
        };
        let mut frame = Frame { has_base, cut, ..Frame::default() };
        if let (true, Some(way), Some(before)) = (has_base, &self.way, was_dir) {
            let same = before.mode == item.mode && told_of(users(way.here(), Marks::Foreign)?) == item.xattrs;
            frame.only_way = same.then_some(self.items.len());
            frame.waiting = self.waiting()?;
        }
        self.frames.push(frame);
        self.push(item)
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.go_past(Some(at.name))?;
        let before = self.before(at.name)?;
        let struck_out = at.marks == Marks::Mean && at.meta.is_struck_out();
        if self.way.is_some() && struck_out && before.is_none() {
            return Ok(());
        }
        let untouched = self.source.origin.as_ref().is_some_and(|origin| origin.is_untouched(&at.meta));
        if untouched && self.base().is_some() {
            return Ok(());
        }
        match before {
            Some(before) if !struck_out && self.is_as_before(at, &before)? => Ok(()),
            _ => self.push(told(at)?),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        self.go_past(None)?;
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        if frame.only_way.is_some_and(|own| own + 1 == self.items.len()) {
            self.items.pop();
        }
        self.path.truncate(frame.cut);
        match &mut self.way {
            Some(way) if frame.has_base => way.leave(),
            _ => Ok(()),
        }
    }
}

fn told(at: &At<'_>) -> io::Result<Item> {
    let mut item = Item::of(at)?;
    if matches!(item.kind, ItemKind::File | ItemKind::Symlink) {
        item.mtime = Some(at.meta.mtime);
    }
    item.xattrs.retain(|name, _| is_kept(name));
    Ok(item)
}

/// Only the user's own go along: others mean nothing on another machine.
fn is_kept(name: &str) -> bool {
    name.starts_with("user.") && !name.contains('\\')
}

fn users(file: impl AsFd, marks: Marks) -> io::Result<Attributes> {
    let mut own = attributes::read(file, marks)?.own;
    own.retain(|(name, _)| name.starts_with(b"user."));
    Ok(own)
}

fn told_of(own: Attributes) -> BTreeMap<String, String> {
    let mut told = crate::item::told(&own);
    told.retain(|name, _| is_kept(name));
    told
}

impl Item {
    fn gone(depth: usize, name: &[u8]) -> Item {
        Item {
            depth: depth as u32,
            name: Target::of(name),
            kind: ItemKind::Gone,
            mode: 0,
            size: 0,
            digest: None,
            target: None,
            xattrs: BTreeMap::new(),
            opaque: false,
            mtime: None,
        }
    }
}
