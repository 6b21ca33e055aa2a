//! Writes a file atomically: new content goes to a temporary file, which is renamed into place, so that no reader sees
//! half of it. Or appends in place.

use super::locate::{ResolvedParent, settled};
use super::{Root, change, error, etag};
use crate::Dir;
use crate::dir::Meta;
use api::{FileEntry, FileKind, Rel};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use terms::{Fault, LimitKind, Phase};

/// Default permission bits of a new file.
const NEW: u32 = 0o644;
const PIECE: usize = 256 << 10;

/// Options of a write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Permission bits; default: those of the replaced file.
    pub mode: Option<u32>,
    /// Creates missing parents.
    pub parents: bool,
    pub when: WriteCondition,
    /// Appends instead of replacing.
    pub append: bool,
}

/// Precondition of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    #[default]
    Always,
    /// The path does not exist.
    Absent,
    /// The path exists.
    Present,
    /// The file has one of these ETags.
    Matches(Vec<String>),
}

/// A file that is being written. Dropped before `finish`, it leaves no trace, except for bytes that were appended.
#[derive(Debug)]
pub struct Draft {
    path: Rel,
    spot: ResolvedParent,
    ask: WriteOptions,
    file: File,
    temporary: Temporary,
    written: u64,
    /// Last field, so that the lease is dropped after the files.
    root: Root,
}

/// Location of the new content until `finish`.
#[derive(Debug)]
enum Temporary {
    /// Appended to the existing file.
    Unused,
    /// Unnamed file (O_TMPFILE): a killed process leaves no file behind.
    Unnamed,
    /// Named temporary file, on file systems without O_TMPFILE.
    Named(Vec<u8>),
}

/// Serialises precondition check and rename among the writers of this process.
static COMMIT: Mutex<()> = Mutex::new(());

impl Draft {
    pub fn begin(root: Root, path: &Rel, ask: WriteOptions) -> Result<Draft, Fault> {
        let owner = root.act_as_guest()?;
        if let Some(mode) = ask.mode {
            change::check_mode(mode)?;
        }
        let (spot, found) = settled(&root, path, "write it", ask.parents, |spot| {
            let found = spot.meta()?;
            match found.map(|meta| meta.kind) {
                None | Some(FileKind::File) => Ok(found),
                Some(FileKind::Dir) => Err(Errno::ISDIR.into()),
                Some(FileKind::Symlink) => Err(Errno::LOOP.into()),
                Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
            }
        })?;
        spot.name()?;
        root.check_change(&spot)?;
        check_when(path, &ask.when, found.as_ref())?;
        if found.is_none() && root.room().files == Some(0) {
            let hint = "remove files, or raise the sandbox's max_files";
            return Err(error::too_much(
                path,
                "the sandbox's limit on files is reached".into(),
                LimitKind::Files,
                hint,
            ));
        }
        let (file, temporary) = match ask.append {
            true => (open_for_append(&spot, path, ask.mode)?, Temporary::Unused),
            false => create_temporary(&spot.dir).map_err(|e| cannot(path, &e))?,
        };
        drop(owner);
        Ok(Draft { root, path: path.clone(), spot, ask, file, temporary, written: 0 })
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.written = self.written.saturating_add(bytes.len() as u64);
        if let Some(most) = self.root.room().bytes.filter(|most| self.written > *most) {
            let hint = "remove files, or raise the sandbox's max_disk_mb";
            let what = format!("more than the {most} bytes that its limit leaves");
            return Err(error::too_much(&self.path, what, LimitKind::DiskMb, hint));
        }
        let _owner = self.root.act_as_guest()?;
        self.file.write_all(bytes).map_err(|e| cannot(&self.path, &e))
    }

    /// Renames the new content into place.
    pub fn finish(mut self) -> Result<FileEntry, Fault> {
        let owner = self.root.act_as_guest()?;
        let path = self.path.clone();
        if let Some(temporary) = self.named().map_err(|e| cannot(&path, &e))? {
            if let Err(fault) = self.replace(&temporary) {
                remove_temporary(&self.spot.dir, &temporary);
                return Err(fault);
            }
        } else if let Some(mode) = self.ask.mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| cannot(&path, &e.into()))?;
        }
        let handle = self.file.try_clone().map_err(|e| cannot(&path, &e))?;
        let meta = Dir::from_fd(handle.into()).meta(&Rel::top());
        let meta = meta.and_then(|meta| meta.ok_or_else(|| Errno::NOENT.into())).map_err(|e| cannot(&path, &e))?;
        drop(owner);
        Ok(super::entry_of(self.spot.path.clone(), &meta, None))
    }

    /// Links an unnamed file to a temporary name, to be renamed; None when appending.
    fn named(&mut self) -> io::Result<Option<Vec<u8>>> {
        match std::mem::replace(&mut self.temporary, Temporary::Unused) {
            Temporary::Unused => Ok(None),
            Temporary::Named(name) => Ok(Some(name)),
            Temporary::Unnamed => {
                let (name, own) = (fresh_name(), format!("/proc/self/fd/{}", self.file.as_raw_fd()));
                rustix::fs::linkat(CWD, own, &self.spot.dir, &name, AtFlags::SYMLINK_FOLLOW)?;
                Ok(Some(name))
            }
        }
    }

    fn replace(&self, temporary: &[u8]) -> Result<(), Fault> {
        let name = self.spot.name()?;
        let fail = |e: io::Error| cannot(&self.path, &e);
        let _alone = COMMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.spot.meta().map_err(fail)?;
        self.root.check_change(&self.spot)?;
        check_when(&self.path, &self.ask.when, found.as_ref())?;
        let kept = found.filter(|meta| meta.kind == FileKind::File).map(|meta| meta.mode & 0o1777);
        let mode = self.ask.mode.or(kept).unwrap_or(NEW);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| fail(e.into()))?;
        // Kernel timestamps are as coarse as the tick: two versions could share one, and thus an ETag.
        rustix::fs::futimens(&self.file, &now()).map_err(|e| fail(e.into()))?;
        let flags = if self.ask.when == WriteCondition::Absent { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let placed = rustix::fs::renameat_with(&self.spot.dir, temporary, &self.spot.dir, name, flags);
        placed.map_err(|e| fail(e.into()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let (Temporary::Named(temporary), Ok(_owner)) = (&self.temporary, self.root.act_as_guest()) {
            remove_temporary(&self.spot.dir, temporary);
        }
    }
}

/// Removes a temporary file; one that stays is removed with the workspace.
fn remove_temporary(dir: &Dir, temporary: &[u8]) {
    let _ = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
}

/// Writes all bytes of a reader.
pub fn write(root: Root, path: &Rel, ask: WriteOptions, from: &mut dyn Read) -> Result<FileEntry, Fault> {
    let mut draft = Draft::begin(root, path, ask)?;
    let mut piece = vec![0u8; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return draft.finish(),
            Ok(count) => draft.push(&piece[..count])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::invalid(format!("reading the source failed: {e}"))),
        }
    }
}

fn check_when(path: &Rel, when: &WriteCondition, found: Option<&Meta>) -> Result<(), Fault> {
    let (why, hint) = match (when, found) {
        (WriteCondition::Always, _) | (WriteCondition::Absent, None) | (WriteCondition::Present, Some(_)) => {
            return Ok(());
        }
        (WriteCondition::Matches(tags), Some(meta)) if tags.contains(&etag(meta)) => return Ok(()),
        (WriteCondition::Absent, Some(_)) => ("the path exists already", "leave the condition out to replace it"),
        (WriteCondition::Present | WriteCondition::Matches(_), None) => {
            ("it does not exist", "leave the condition out to create it")
        }
        (WriteCondition::Matches(_), Some(_)) => ("it was changed meanwhile", "read it again, then write"),
    };
    Err(error::conflict(path, why, hint).phase(Phase::Admission))
}

/// Unpredictable name.
fn fresh_name() -> Vec<u8> {
    format!(".cofferdam-{}", terms::hex::encode(sys::random::id_bytes())).into_bytes()
}

/// Creates an unnamed file, or one with an unpredictable name.
fn create_temporary(dir: &Dir) -> io::Result<(File, Temporary)> {
    let mode = Mode::from_raw_mode(0o600);
    match dir.open_at(&Rel::top(), OFlags::RDWR | OFlags::TMPFILE, mode) {
        Ok(made) => return Ok((File::from(made), Temporary::Unnamed)),
        Err(e) if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL].contains(&errno(&e)) => {}
        Err(e) => return Err(e),
    }
    let name = fresh_name();
    let made = dir.open_at(&Rel::top().join(&name), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
    Ok((File::from(made), Temporary::Named(name)))
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Opens the file to append to, or creates it.
fn open_for_append(spot: &ResolvedParent, path: &Rel, mode: Option<u32>) -> Result<File, Fault> {
    let flags = OFlags::WRONLY | OFlags::APPEND;
    let opened = spot.open_file(flags).map(|(file, _)| file).or_else(|e| match e.raw_os_error() {
        Some(raw) if raw == Errno::NOENT.raw_os_error() => {
            let name = spot.name.as_deref().ok_or(Errno::ISDIR)?;
            let flags = flags | OFlags::CREATE | OFlags::EXCL;
            let mode = Mode::from_raw_mode(mode.unwrap_or(NEW));
            spot.dir.open_at(&Rel::top().join(name), flags, mode).map(File::from)
        }
        _ => Err(e),
    });
    opened.map_err(|e| cannot(path, &e))
}

fn cannot(path: &Rel, error: &io::Error) -> Fault {
    error::fault(path, "write it", error)
}

fn now() -> Timestamps {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
    Timestamps { last_access: now, last_modification: now }
}
