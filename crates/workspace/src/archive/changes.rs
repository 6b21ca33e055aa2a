//! List of the changes in an exported workspace, in walk order and the same for every driver. Overlay layers record
//! changes themselves; unchanged entries in them are left out if the base is there to compare with. A copied tree is
//! compared with its base where it was touched.

use super::MOST_ENTRIES;
use crate::attributes::{self, Attributes, Marks};
use crate::descent::Descent;
use crate::dir::{Dir, Meta};
use crate::entry;
use crate::item::{Item, ItemKind};
use crate::origin::Origin;
use crate::walk::{self, At, Visitor, open_file};
use api::{FileKind, PathText, Rel};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use terms::Fault;

/// Workspace to export.
#[derive(Debug)]
pub struct ExportSource<'a> {
    /// Layers from the bottom up; for a copied tree, the only one.
    pub layers: Vec<&'a Dir>,
    pub marks: Marks,
    /// Base directory. Without it, layers are exported as they are; a copied tree needs it.
    pub base: Option<&'a Dir>,
    /// Record of a copied tree that tells which entries were touched.
    pub origin: Option<Origin>,
}

impl ExportSource<'_> {
    pub(super) fn items(&self) -> Result<Vec<Item>, Fault> {
        if self.layers.is_empty() {
            return Ok(Vec::new());
        }
        let fail = |e: io::Error| walk::fault(&Rel::top(), &e);
        let way = self.base.map(Descent::at).transpose().map_err(fail)?;
        let mut lister = Lister { source: self, way, frames: Vec::new(), path: Vec::new(), items: Vec::new() };
        let waiting = lister.waiting().map_err(fail)?;
        lister.frames.push(ExportedDir { has_base: self.base.is_some(), waiting, ..ExportedDir::default() });
        let mut lister = walk::walk(&self.layers, self.marks, lister)?;
        lister.go_past(None).map_err(fail)?;
        Ok(lister.items)
    }
}

/// Directory that the walk is in.
#[derive(Default)]
struct ExportedDir {
    /// The base has this directory, too, and it shows through.
    has_base: bool,
    /// Copied tree only: names of the base not met yet, in descending order.
    waiting: Vec<Vec<u8>>,
    /// Index of the item of this directory if only changes below it make it one.
    placeholder: Option<usize>,
    /// Length of the path without this directory.
    cut: usize,
}

struct Lister<'a> {
    source: &'a ExportSource<'a>,
    /// Directory of the base that corresponds to the current one, as deep as both agree.
    way: Option<Descent>,
    frames: Vec<ExportedDir>,
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

    /// Directory of the base at this point, if it shows through.
    fn base(&self) -> Option<&Dir> {
        let shows = self.frames.last().is_some_and(|frame| frame.has_base);
        self.way.as_ref().filter(|_| shows).map(Descent::here)
    }

    fn before(&self, name: &[u8]) -> io::Result<Option<Meta>> {
        self.base().map_or(Ok(None), |base| base.meta_of(name))
    }

    /// Names of the base that a copied tree may lack, in descending order.
    fn waiting(&self) -> io::Result<Vec<Vec<u8>>> {
        let Some(way) = self.way.as_ref().filter(|_| self.source.marks == Marks::Plain) else { return Ok(Vec::new()) };
        let mut names = way.here().names()?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }

    /// Records as deleted the names of the base that sort before `name` and that the copied tree no longer has.
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

    /// True if the guest removed it: the base may have got the name later, and special or unreadable files are never
    /// copied.
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

    /// True if the guest replaced the directory of the base by a new one.
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

    /// True if the entry equals the one in the base; bytes are read only if kind, size, mtime and mode agree.
    fn is_as_before(&self, at: &At<'_>, before: &Meta) -> io::Result<bool> {
        let Some(base) = self.base() else { return Ok(false) };
        let stamp = |m: &Meta| (m.kind, m.size, m.mtime);
        if stamp(&at.meta) != stamp(before) || (at.meta.kind != FileKind::Symlink && at.meta.mode != before.mode) {
            return Ok(false);
        }
        match at.meta.kind {
            FileKind::File => {
                let (now, then) = match (open_file(at), base.file(&Rel::top().join(at.name))) {
                    (Ok(now), Ok(then)) => (now, then),
                    // An entry that cannot be compared counts as changed.
                    _ => return Ok(false),
                };
                Ok(user_xattrs(&now, at.marks)? == user_xattrs(&then, Marks::Foreign)?
                    && entry::same_bytes(&now, &then)?)
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
        let mut item = export_item(at)?;
        item.opaque = self.is_made_anew(at)? && (self.way.is_none() || before.is_some());
        let was_dir = before.filter(|before| before.kind == FileKind::Dir && !item.opaque);
        let has_base = match (&mut self.way, was_dir) {
            (Some(way), Some(_)) => way.enter(at.name).is_ok(),
            _ => false,
        };
        let mut frame = ExportedDir { has_base, cut, ..ExportedDir::default() };
        if let (true, Some(way), Some(before)) = (has_base, &self.way, was_dir) {
            let same =
                before.mode == item.mode && encode_user_xattrs(user_xattrs(way.here(), Marks::Foreign)?) == item.xattrs;
            frame.placeholder = same.then_some(self.items.len());
            frame.waiting = self.waiting()?;
        }
        self.frames.push(frame);
        self.push(item)
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.go_past(Some(at.name))?;
        let before = self.before(at.name)?;
        let is_whiteout = at.marks == Marks::Mean && at.meta.is_struck_out();
        if self.way.is_some() && is_whiteout && before.is_none() {
            return Ok(());
        }
        let untouched = self.source.origin.as_ref().is_some_and(|origin| origin.is_untouched(&at.meta));
        if untouched && self.base().is_some() {
            return Ok(());
        }
        match before {
            Some(before) if !is_whiteout && self.is_as_before(at, &before)? => Ok(()),
            _ => self.push(export_item(at)?),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        self.go_past(None)?;
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        if frame.placeholder.is_some_and(|own| own + 1 == self.items.len()) {
            self.items.pop();
        }
        self.path.truncate(frame.cut);
        match &mut self.way {
            Some(way) if frame.has_base => way.leave(),
            _ => Ok(()),
        }
    }
}

fn export_item(at: &At<'_>) -> io::Result<Item> {
    let mut item = Item::of(at)?;
    if matches!(item.kind, ItemKind::File | ItemKind::Symlink) {
        item.mtime = Some(at.meta.mtime);
    }
    item.xattrs.retain(|name, _| is_kept(name));
    Ok(item)
}

/// Only `user.` attributes are exported: the rest have no meaning on another machine.
fn is_kept(name: &str) -> bool {
    name.starts_with("user.") && !name.contains('\\')
}

fn user_xattrs(file: impl AsFd, marks: Marks) -> io::Result<Attributes> {
    let mut own = attributes::read(file, marks)?.own;
    own.retain(|(name, _)| name.starts_with(b"user."));
    Ok(own)
}

fn encode_user_xattrs(own: Attributes) -> BTreeMap<String, String> {
    let mut encoded = crate::item::encode_xattrs(&own);
    encoded.retain(|name, _| is_kept(name));
    encoded
}

impl Item {
    fn gone(depth: usize, name: &[u8]) -> Item {
        Item {
            depth: depth as u32,
            name: PathText::of(name),
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
