//! Writes to the writable layer of a workspace while no guest runs: each path changes atomically, with whiteouts and
//! opaque directories as overlayfs makes them. With a copying driver the layer is the tree itself and has neither.

use crate::attributes::{self, LayerAttributes, Marks};
use crate::dir::{Dir, is_absent};
use crate::layer::Stack;
use crate::place::{self, FileFacts};
use crate::plan::DirProperties;
use crate::stage;
use api::{Driver, FileKind, Rel};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::File;
use std::io;

/// Writable layer of a stack, opened for changes.
#[derive(Debug)]
pub struct TopLayer<'a> {
    stack: &'a Stack,
    up: &'a Dir,
    /// Directory for new entries before they are renamed into place, and for old ones before they are removed.
    aside: Dir,
    marks: bool,
    made: Cell<u32>,
    in_bulk: bool,
}

/// Entry to write.
pub enum Put<'a> {
    File {
        bytes: &'a mut dyn io::Read,
        mode: u32,
        mtime: Option<(i64, u32)>,
        carried: LayerAttributes,
    },
    Link {
        target: Vec<u8>,
    },
    /// Opaque directory: hides its contents in lower layers.
    Dir {
        look: DirProperties,
    },
}

const ASIDE: &str = "aside";
const OPAQUE: &str = "user.overlay.opaque";

impl<'a> TopLayer<'a> {
    /// Opens the writable layer. The caller holds the layer's lock.
    pub fn of(stack: &'a Stack) -> io::Result<TopLayer<'a>> {
        let layer = stack.layers.last().ok_or(io::ErrorKind::NotFound)?;
        crate::remove::tree(&layer.dir, ASIDE.as_bytes())?;
        rustix::fs::mkdirat(&layer.dir, ASIDE, Mode::RWXU)?;
        let aside = layer.dir.dir(&Rel::top().join(ASIDE.as_bytes()))?;
        let marks = stack.driver == Driver::Overlay;
        Ok(TopLayer { stack, up: &layer.up, aside, marks, made: Cell::new(0), in_bulk: false })
    }

    /// Files are synced by `settle` in the end instead of each before its rename: for writes that can be repeated.
    pub fn in_bulk(self) -> TopLayer<'a> {
        TopLayer { in_bulk: true, ..self }
    }

    pub fn settle(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.aside)?)
    }

    /// Entry that the layer itself has at a path.
    pub fn own(&self, at: &Rel) -> io::Result<Option<UpperEntry>> {
        own_in(self.up, at)
    }

    /// True if a guest would see the base at a path, if this layer had no entry there.
    pub fn shows_base(&self, at: &Rel) -> io::Result<bool> {
        if !self.marks {
            return Ok(false);
        }
        let last = self.stack.layers.len().saturating_sub(1);
        for (number, layer) in self.stack.layers.iter().enumerate() {
            if hides(&layer.up, at, number < last)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the layer's entry at a path and everything below.
    pub fn remove_entry(&self, at: &Rel) -> io::Result<()> {
        let (dir, name) = match place::parent_of(self.up, at) {
            Err(e) if is_absent(&e) => return Ok(()),
            other => other?,
        };
        let gone = self.new_name();
        match rustix::fs::renameat_with(&dir, name, &self.aside, &*gone, RenameFlags::NOREPLACE) {
            Ok(()) => crate::remove::tree(&self.aside, gone.as_bytes()).map(drop),
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Hides a path from the guest: by a whiteout, or by removal in a copied tree.
    pub fn hide(&self, at: &Rel) -> io::Result<()> {
        if !self.marks {
            return self.remove_entry(at);
        }
        let new = self.new_name();
        rustix::fs::mknodat(&self.aside, &*new, FileType::CharacterDevice, Mode::empty(), 0)?;
        self.place(&new, at)
    }

    /// Replaces whatever the guest sees at a path by a new entry.
    pub fn put(&self, at: &Rel, what: Put<'_>) -> io::Result<()> {
        let new = self.new_name();
        match what {
            Put::File { bytes, mode, mtime, carried } => {
                let file = stage::create(&self.aside, new.as_bytes())?;
                stage::copy_bytes(bytes, &file)?;
                finish(&file, mode, mtime, &carried, self.marks())?;
                if !self.in_bulk {
                    file.sync_all()?;
                }
            }
            Put::Link { target } => rustix::fs::symlinkat(&target[..], &self.aside, &*new)?,
            Put::Dir { look } => self.make_dir(&new, look.mode, true)?,
        }
        self.place(&new, at)
    }

    /// True if this layer has a directory there without full owner permissions.
    pub fn is_inaccessible(&self, at: &Rel) -> io::Result<bool> {
        let (dir, name) = self.parent(at)?;
        Ok(place::look(&dir, name)?.is_some_and(|own| own.kind == FileKind::Dir && own.mode & 0o700 != 0o700))
    }

    /// Sets the mode of a directory; copies it up if only lower layers have it.
    pub fn set_mode(&self, at: &Rel, mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(at)?;
        match place::look(&dir, name)? {
            Some(found) if found.kind == FileKind::Dir => crate::descent::set_mode(&dir, name, mode),
            Some(_) => Err(Errno::NOTDIR.into()),
            None => {
                let new = self.new_name();
                self.make_dir(&new, mode, false)?;
                self.place(&new, at)
            }
        }
    }

    /// Removes redundant parent directories of a path.
    pub fn prune(&self, at: &Rel) -> io::Result<()> {
        let mut above = at.split().map(|(above, _)| above);
        while let Some(dir) = above.take().filter(|dir| self.marks && !dir.is_top()) {
            if !self.is_redundant(&dir)? {
                break;
            }
            let (parent, name) = place::parent_of(self.up, &dir)?;
            match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => above = dir.split().map(|(above, _)| above),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// True for a directory that has the base's mode and hides nothing of the base; `prune` removes it if it is empty.
    fn is_redundant(&self, at: &Rel) -> io::Result<bool> {
        let Some(UpperEntry { facts, opaque: false, .. }) = self.own(at)? else { return Ok(false) };
        let base = match place::parent_of(&self.stack.base, at) {
            Ok((dir, name)) => place::look(&dir, name)?,
            Err(e) if is_absent(&e) => None,
            Err(e) => return Err(e),
        };
        let alike = base.is_some_and(|b| b.kind == FileKind::Dir && b.mode == facts.mode);
        Ok(facts.kind == FileKind::Dir && alike && self.shows_base(at)?)
    }

    fn marks(&self) -> Marks {
        if self.marks { Marks::Mean } else { Marks::Plain }
    }

    fn new_name(&self) -> String {
        self.made.set(self.made.get() + 1);
        self.made.get().to_string()
    }

    fn make_dir(&self, name: &str, mode: u32, opaque: bool) -> io::Result<()> {
        rustix::fs::mkdirat(&self.aside, name, Mode::RWXU)?;
        let dir = self.aside.dir(&Rel::top().join(name.as_bytes()))?;
        if opaque && self.marks {
            rustix::fs::fsetxattr(&dir, OPAQUE, b"y", XattrFlags::empty())?;
        }
        Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o7777))?)
    }

    /// Renames a new entry into place atomically; removes the old one.
    fn place(&self, new: &str, at: &Rel) -> io::Result<()> {
        let (dir, name) = self.parent(at)?;
        match rustix::fs::renameat_with(&self.aside, new, &dir, name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        rustix::fs::renameat_with(&self.aside, new, &dir, name, RenameFlags::EXCHANGE)?;
        crate::remove::tree(&self.aside, new.as_bytes()).map(drop)
    }

    /// Parent directory of a path in the layer; missing ones are created with the mode of the merged view. A directory
    /// behind a whiteout is created empty.
    fn parent<'r>(&self, at: &'r Rel) -> io::Result<(Dir, &'r [u8])> {
        let (above, name) = at.split().ok_or(io::ErrorKind::InvalidInput)?;
        if let Ok(dir) = place::reach(self.up, &above) {
            return Ok((dir, name));
        }
        let (mut here, mut so_far) = (self.up.try_clone()?, Rel::top());
        for part in above.parts() {
            so_far = so_far.join(part);
            let found = place::look(&here, part)?;
            let whiteout = found.is_some() && is_whiteout(&here, part)?;
            match found {
                Some(found) if found.kind == FileKind::Dir => {}
                Some(_) if !whiteout => return Err(Errno::NOTDIR.into()),
                _ => {
                    let new = self.new_name();
                    self.make_dir(&new, self.mode_of(&so_far)?, whiteout)?;
                    let flags = if whiteout { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
                    rustix::fs::renameat_with(&self.aside, &*new, &here, part, flags)?;
                    if whiteout {
                        crate::remove::tree(&self.aside, new.as_bytes())?;
                    }
                }
            }
            here = here.dir(&Rel::top().join(part))?;
        }
        Ok((here, name))
    }

    /// Mode of a directory in the merged view, else in the base.
    fn mode_of(&self, at: &Rel) -> io::Result<u32> {
        if let Some(found) = self.stack.meta(at)?.filter(|found| found.meta.kind == FileKind::Dir) {
            return Ok(found.meta.mode);
        }
        let base = self.stack.base.meta(at)?.filter(|meta| meta.kind == FileKind::Dir);
        Ok(base.map_or(0o755, |meta| meta.mode))
    }
}

/// Entry of one layer at a path.
#[derive(Clone, Copy, Debug)]
pub struct UpperEntry {
    pub facts: FileFacts,
    pub opaque: bool,
    pub whiteout: bool,
}

fn own_in(up: &Dir, at: &Rel) -> io::Result<Option<UpperEntry>> {
    let (dir, name) = match place::parent_of(up, at) {
        Err(e) if is_absent(&e) => return Ok(None),
        other => other?,
    };
    let Some(facts) = place::look(&dir, name)? else { return Ok(None) };
    let opaque = facts.kind == FileKind::Dir && is_opaque(&dir.dir(&Rel::top().join(name))?)?;
    Ok(Some(UpperEntry { facts, opaque, whiteout: is_whiteout(&dir, name)? }))
}

/// True if a layer hides lower layers at a path; `itself` includes its own entry there.
fn hides(up: &Dir, at: &Rel, itself: bool) -> io::Result<bool> {
    let (mut here, count) = (up.try_clone()?, at.parts().count());
    for (number, part) in at.parts().enumerate() {
        let Some(found) = place::look(&here, part)? else { return Ok(false) };
        if number + 1 == count {
            return Ok(itself);
        }
        if found.kind != FileKind::Dir {
            return Ok(true);
        }
        here = here.dir(&Rel::top().join(part))?;
        if is_opaque(&here)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_opaque(dir: &Dir) -> io::Result<bool> {
    let mut value = [0u8; 1];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn is_whiteout(dir: &Dir, name: &[u8]) -> io::Result<bool> {
    Ok(dir.meta_of(name)?.is_some_and(|meta| meta.is_struck_out()))
}

fn finish(
    file: &File,
    mode: u32,
    mtime: Option<(i64, u32)>,
    carried: &LayerAttributes,
    marks: Marks,
) -> io::Result<()> {
    attributes::write(file, carried, marks)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777))?;
    if let Some((seconds, nanoseconds)) = mtime {
        let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
        rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })?;
    }
    Ok(())
}
