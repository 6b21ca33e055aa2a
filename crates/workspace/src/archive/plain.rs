//! Packs a directory into a plain tar stream and unpacks such a stream, compatible with any tar program. Packing works
//! on a tree in use and in a stable order; unpacking uses directory handles, follows no link and reports the bounds
//! that it meets.
//!
//! FIFOs, sockets and devices are never packed: a process that reads a FIFO made by a guest would wait for a writer
//! that is not there. They are left out and reported when packing and, because the stream is untrusted, again when
//! unpacking on the host.

use super::entries::{AcceptedKinds, EntryReader, TarEntry, shown};
use super::write::{CHANGED, EntryFacts, put, put_link};
use crate::attributes::Marks;
use crate::dir::{self, Dir};
use crate::walk::{self, At, Ended, Visitor};
use api::{FileKind, Rel};
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use tar::EntryType;
use terms::{ErrorKind, Fault, LimitKind};

/// Special files (FIFOs, sockets and devices) that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub count: u64,
    /// The first paths, relative to the packed directory.
    pub paths: Vec<Rel>,
}

impl LeftOut {
    /// Number of paths that are kept.
    const MOST_PATHS: usize = 20;

    fn add(&mut self, path: Rel) {
        self.count += 1;
        if self.paths.len() < LeftOut::MOST_PATHS {
            self.paths.push(path);
        }
    }

    /// Adds the list of other files.
    pub fn extend(&mut self, other: LeftOut) {
        self.count = self.count.saturating_add(other.count);
        let room = LeftOut::MOST_PATHS.saturating_sub(self.paths.len());
        self.paths.extend(other.paths.into_iter().take(room));
    }
}

/// Totals of a packed stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    pub entries: u64,
    pub bytes: u64,
}

/// Writes the contents of a directory, with names relative to it, or one file of it. A file that changes meanwhile is
/// an error, because its length precedes its bytes. Unreadable files are found before the first byte is written:
/// afterwards the stream could only break off without a message. `told` gets the list of special files before the
/// first byte as well, for callers that have to send a response head before the stream.
pub fn pack(top: &Dir, only: Option<&[u8]>, out: impl Write, told: &mut dyn FnMut(LeftOut)) -> Result<Packed, Ended> {
    let mut packer =
        Packer { tar: tar::Builder::new(out), path: Vec::new(), cuts: Vec::new(), packed: Packed::default() };
    match only {
        Some(name) => {
            let failed = |error| Ended { at: Rel::top().join(name), error };
            let meta = top.meta_of(name).and_then(|meta| meta.ok_or_else(|| io::ErrorKind::NotFound.into()));
            let meta = meta.map_err(failed)?;
            let at = At { name, meta, parent: top, depth: 0, opened: None, opaque: false, marks: Marks::Foreign };
            packer.leaf(&at).map_err(failed)?;
        }
        None => {
            told(walk::through(&[top], Marks::Foreign, ReadabilityCheck::default())?.left_out);
            packer = walk::through(&[top], Marks::Foreign, packer)?;
        }
    }
    let finished = packer.tar.into_inner().and_then(|mut out| out.flush());
    finished.map_err(|error| Ended { at: Rel::top(), error })?;
    Ok(packer.packed)
}

/// First walk: checks that every file can be read (directories are, by being walked) and collects special files.
#[derive(Default)]
struct ReadabilityCheck {
    /// Paths of the directories that the walk is in.
    above: Vec<Rel>,
    left_out: LeftOut,
}

impl ReadabilityCheck {
    fn path(&self, name: &[u8]) -> Rel {
        self.above.last().unwrap_or(&Rel::top()).join(name)
    }
}

impl Visitor for ReadabilityCheck {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        self.above.push(self.path(at.name));
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        match at.meta.kind {
            FileKind::File => {}
            FileKind::Dir | FileKind::Symlink => return Ok(()),
            _ => {
                self.left_out.add(self.path(at.name));
                return Ok(());
            }
        }
        let how = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::accessat(at.parent, at.name, Access::READ_OK, how) {
            Err(Errno::NOENT) => self.vanished(),
            other => Ok(other?),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        self.above.pop();
        Ok(())
    }

    fn vanished(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Packer<W: Write> {
    tar: tar::Builder<W>,
    path: Vec<u8>,
    /// Length of the path before each directory that the walk is in.
    cuts: Vec<usize>,
    packed: Packed,
}

impl<W: Write> Packer<W> {
    fn full(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let path = [&self.path[..], name].concat();
        match path.len() > super::LONGEST_PATH {
            true => Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is too long for a tar file")),
            false => Ok(path),
        }
    }

    fn file(&mut self, at: &At<'_>, path: &[u8]) -> io::Result<()> {
        let file = at.parent.file(&Rel::top().join(at.name))?;
        // The size of the open file counts, not that of an earlier `stat`.
        let size = file.metadata()?.len();
        put(&mut self.tar, path, EntryType::Regular, &facts(at, size), (&file).take(size)).map_err(|e| {
            match e.kind() {
                io::ErrorKind::InvalidData => io::Error::new(io::ErrorKind::ResourceBusy, CHANGED),
                _ => e,
            }
        })?;
        self.packed.bytes += size;
        Ok(())
    }
}

fn facts(at: &At<'_>, size: u64) -> EntryFacts {
    EntryFacts { mode: at.meta.mode, size, mtime: u64::try_from(at.meta.mtime.0).unwrap_or(0) }
}

impl<W: Write> Visitor for Packer<W> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = [&self.full(at.name)?[..], b"/"].concat();
        put(&mut self.tar, &path, EntryType::Directory, &facts(at, 0), io::empty())?;
        self.packed.entries += 1;
        self.cuts.push(self.path.len());
        self.path = path;
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = self.full(at.name)?;
        match at.meta.kind {
            FileKind::File => self.file(at, &path)?,
            FileKind::Symlink => put_link(&mut self.tar, &path, &at.parent.link_target(at.name)?, &facts(at, 0))?,
            _ => return Ok(()),
        }
        self.packed.entries += 1;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        self.path.truncate(self.cuts.pop().unwrap_or(0));
        Ok(())
    }
}

/// Bounds on unpacking.
#[derive(Clone, Copy, Debug)]
pub struct UnpackBounds {
    pub bytes: u64,
    pub entries: u64,
}

/// Destination of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpackTarget {
    /// A workspace, which may have FIFOs. Devices are refused.
    Workspace,
    /// The host: special files are left out, and existing directories keep their permission bits.
    Host,
}

/// Totals of an unpacked stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    pub entries: u64,
    pub bytes: u64,
    /// Files that lost their set-user-id or set-group-id bit.
    pub stripped: u64,
    pub left_out: LeftOut,
}

/// Unpacks a tar stream into a directory. Existing files are replaced, existing directories are merged. No entry
/// leaves the directory or passes over a link, whatever its origin. `may` is asked about each path first. Entries
/// before an error stay.
pub fn unpack(
    input: impl Read,
    top: &Dir,
    onto: UnpackTarget,
    room: UnpackBounds,
    may: &dyn Fn(&Rel) -> Result<(), Fault>,
) -> Result<Unpacked, Fault> {
    let mut tar = tar::Archive::new(input);
    let takes = if onto == UnpackTarget::Host { AcceptedKinds::Anything } else { AcceptedKinds::Others };
    let mut source = EntryReader::of(&mut tar, takes).map_err(with_unpack_hint)?;
    let mut unpacker = Unpacker { top, onto, room, may, made: Unpacked::default() };
    while let Some(next) = source.next().map_err(with_unpack_hint)? {
        unpacker.take(next)?;
    }
    Ok(unpacker.made)
}

/// Replaces the hint, which is written for files of `export`.
fn with_unpack_hint(fault: Fault) -> Fault {
    fault.hint("the entries before it were unpacked; pack it again without this entry")
}

struct Unpacker<'a> {
    top: &'a Dir,
    onto: UnpackTarget,
    room: UnpackBounds,
    may: &'a dyn Fn(&Rel) -> Result<(), Fault>,
    made: Unpacked,
}

impl Unpacker<'_> {
    fn take<R: Read>(&mut self, next: TarEntry<'_, R>) -> Result<(), Fault> {
        let path = Rel::parse(&next.name).ok_or_else(|| refused(&shown(&next.name), "not a plain name"))?;
        if self.onto == UnpackTarget::Host && matches!(next.kind, EntryType::Fifo | EntryType::Char | EntryType::Block)
        {
            self.made.left_out.add(path);
            return Ok(());
        }
        self.made.entries += 1;
        self.made.bytes = self.made.bytes.saturating_add(next.size);
        self.check_room(&path)?;
        let Some((above, name)) = path.split() else {
            // The top directory exists; an entry of any other kind under its name is ignored.
            self.made.entries -= u64::from(next.kind == EntryType::Directory && next.size == 0);
            return Ok(());
        };
        (self.may)(&path)?;
        let parent = self.parent(&above).map_err(|e| entry_fault(&path, &e))?;
        let mode = next.entry.header().mode().unwrap_or(0o644);
        let mtime = next.entry.header().mtime().unwrap_or(0);
        if mode & 0o6000 != 0 {
            self.made.stripped += 1;
        }
        let made = match next.kind {
            EntryType::Directory => directory(&parent, name, mode, self.onto),
            EntryType::Symlink => symlink(&parent, name, &next.link, mtime),
            EntryType::Fifo => fifo(&parent, name, mode),
            EntryType::Link => return self.hard_link(&parent, &path, name, &next.link),
            _ => file(&parent, name, mode, mtime, next.size, next.entry),
        };
        made.map_err(|e| entry_fault(&path, &e))
    }

    fn check_room(&self, path: &Rel) -> Result<(), Fault> {
        let (kind, most, what) = match () {
            () if self.made.entries > self.room.entries => (LimitKind::Files, self.room.entries, "entries"),
            () if self.made.bytes > self.room.bytes => (LimitKind::DiskMb, self.room.bytes, "bytes"),
            () => return Ok(()),
        };
        let message = format!("{path}: more than {most} {what} would be unpacked");
        Err(Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint("the entries before it were unpacked"))
    }

    /// Opens the parent directory and creates missing ones. A link in the path is an error.
    fn parent(&self, above: &Rel) -> io::Result<Dir> {
        let mut here = self.top.dir(&Rel::top())?;
        for part in above.parts() {
            let at = Rel::top().join(part);
            here = match here.dir(&at) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => here.dir(&at)?,
                        Err(e) => return Err(e.into()),
                    }
                }
                other => other?,
            };
        }
        Ok(here)
    }

    /// Creates a hard link to a file in this directory, never to one outside of it.
    fn hard_link(&self, parent: &Dir, path: &Rel, name: &[u8], link: &[u8]) -> Result<(), Fault> {
        let out = || refused(&path.to_string(), "a hard link that leads out of the archive");
        let to = Some(link).filter(|link| !link.starts_with(b"/")).and_then(Rel::parse).ok_or_else(out)?;
        let (above, to_name) = to.split().ok_or_else(out)?;
        let linked = (|| {
            let from = self.top.dir(&above)?;
            match from.meta_of(to_name)? {
                Some(meta) if meta.kind == FileKind::File => {}
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        "a hard link to a path that is not a file",
                    ));
                }
            }
            // A link to itself exists already.
            if to == *path {
                return Ok(());
            }
            unlink_existing(parent, name)?;
            Ok(rustix::fs::linkat(&from, to_name, parent, name, AtFlags::empty())?)
        })();
        linked.map_err(|e| entry_fault(path, &e))
    }
}

fn refused(what: &str, why: &str) -> Fault {
    with_unpack_hint(Fault::invalid(format!("the file was refused: {what}: {why}")))
}

/// Permission bits that a stream may set: without set-user-id and set-group-id.
fn allowed(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o1777)
}

fn times(mtime: u64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: i64::try_from(mtime).unwrap_or(i64::MAX), tv_nsec: 0 },
    }
}

/// Unlinks an existing entry; a directory or a mount point is an error.
fn unlink_existing(parent: &Dir, name: &[u8]) -> io::Result<()> {
    parent.check_not_mounted_on(name)?;
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn directory(parent: &Dir, name: &[u8], mode: u32, onto: UnpackTarget) -> io::Result<()> {
    let is_there = match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => false,
        Err(Errno::EXIST) => true,
        Err(e) => return Err(e.into()),
    };
    let made = parent.dir(&Rel::top().join(name))?;
    // A guest must not widen the permissions of directories that the host already had.
    if is_there && onto == UnpackTarget::Host {
        return Ok(());
    }
    // The owner keeps access, or the entries that follow could not be created in it.
    Ok(rustix::fs::fchmod(&made, allowed(mode | 0o700))?)
}

fn symlink(parent: &Dir, name: &[u8], target: &[u8], mtime: u64) -> io::Result<()> {
    unlink_existing(parent, name)?;
    rustix::fs::symlinkat(target, parent, name)?;
    Ok(rustix::fs::utimensat(parent, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn fifo(parent: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    unlink_existing(parent, name)?;
    Ok(rustix::fs::mknodat(parent, name, FileType::Fifo, allowed(mode), 0)?)
}

fn file(parent: &Dir, name: &[u8], mode: u32, mtime: u64, size: u64, mut data: impl Read) -> io::Result<()> {
    unlink_existing(parent, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let made = File::from(parent.open_at(&Rel::top().join(name), flags, Mode::from_raw_mode(0o600))?);
    let mut buffer = vec![0u8; 64 << 10];
    let mut at = 0;
    loop {
        let count = data.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        made.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    if at != size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    rustix::fs::fchmod(&made, allowed(mode))?;
    Ok(rustix::fs::futimens(&made, &times(mtime))?)
}

/// Fault of one entry.
fn entry_fault(path: &Rel, error: &io::Error) -> Fault {
    let refuse = |why: &str| refused(&path.to_string(), why);
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::LOOP | Errno::NOTDIR) => refuse("its path leads through a link or a file"),
        Some(Errno::ISDIR | Errno::EXIST) => refuse("a directory exists there"),
        Some(Errno::NOENT) => refuse("its link target does not exist"),
        Some(Errno::NAMETOOLONG) => refuse("a name that is too long"),
        Some(Errno::INVAL) => refuse("not a name or link that can be made"),
        Some(_) => walk::fault(path, error),
        None if dir::is_mounted(error) => refuse("something is mounted on it"),
        None => refuse(&format!("it is truncated or damaged: {error}")),
    }
}
