//! Writing a file: what is new is written beside it and takes its place in one step, so that nobody sees half of it. Or behind what
//! is there, for appending.

use super::place::{Spot, settled};
use super::{Entry, Root, change, etag, trouble};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use terms::{Fault, LimitKind, Phase};
use workspace::dir::Meta;
use workspace::{Dir, FileKind, Rel};

/// Permission bits of a file that is new, unless others are asked for.
const NEW: u32 = 0o644;
const PIECE: usize = 256 << 10;

/// How to write.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Permission bits; without them those of the file that was there.
    pub mode: Option<u32>,
    /// Makes the directories above, where they are missing.
    pub parents: bool,
    pub when: When,
    /// Behind what is there instead of in its place.
    pub append: bool,
}

/// What must be there for it to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum When {
    #[default]
    Always,
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// A file with one of these tags.
    Matches(Vec<String>),
}

/// A file that is being written. Dropped before it is finished, it leaves nothing; what was appended stays.
#[derive(Debug)]
pub struct Draft {
    path: Rel,
    spot: Spot,
    ask: Ask,
    file: File,
    beside: Beside,
    written: u64,
    /// Last, so that the right to the files goes after the files.
    root: Root,
}

/// Where what is new is until it is finished.
#[derive(Debug)]
enum Beside {
    /// It is appended to what is there.
    Not,
    /// Without a name: whoever is killed meanwhile leaves nothing.
    Nameless,
    /// Under a name, where the file system makes no nameless files.
    Named(Vec<u8>),
}

/// Between looking what is there and taking its place no other writer of ours comes.
static COMMIT: Mutex<()> = Mutex::new(());

impl Draft {
    pub fn begin(root: Root, path: &Rel, ask: Ask) -> Result<Draft, Fault> {
        let owner = root.in_its_name()?;
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
            let hint = "remove something, or raise the sandbox's max_files";
            return Err(trouble::too_much(path, "no further file may be made".into(), LimitKind::Files, hint));
        }
        let (file, beside) = match ask.append {
            true => (open_behind(&spot, path, ask.mode)?, Beside::Not),
            false => new_beside(&spot.dir).map_err(|e| cannot(path, &e))?,
        };
        drop(owner);
        Ok(Draft { root, path: path.clone(), spot, ask, file, beside, written: 0 })
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.written = self.written.saturating_add(bytes.len() as u64);
        if let Some(most) = self.root.room().bytes.filter(|most| self.written > *most) {
            let hint = "remove something, or raise the sandbox's max_disk_mb";
            let what = format!("more than the {most} bytes that may still be written");
            return Err(trouble::too_much(&self.path, what, LimitKind::DiskMb, hint));
        }
        let _owner = self.root.in_its_name()?;
        self.file.write_all(bytes).map_err(|e| cannot(&self.path, &e))
    }

    /// Puts it in its place.
    pub fn finish(mut self) -> Result<Entry, Fault> {
        let owner = self.root.in_its_name()?;
        let path = self.path.clone();
        if let Some(beside) = self.named().map_err(|e| cannot(&path, &e))? {
            if let Err(fault) = self.replace(&beside) {
                drop_draft(&self.spot.dir, &beside);
                return Err(fault);
            }
        } else if let Some(mode) = self.ask.mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| cannot(&path, &e.into()))?;
        }
        let handle = self.file.try_clone().map_err(|e| cannot(&path, &e))?;
        let meta = Dir::from_fd(handle.into()).meta(&Rel::top());
        let meta = meta.and_then(|meta| meta.ok_or_else(|| Errno::NOENT.into())).map_err(|e| cannot(&path, &e))?;
        drop(owner);
        Ok(Entry::of(self.spot.path.clone(), &meta, None))
    }

    /// The name that it has from now on until it takes its place; none when it is appended to.
    fn named(&mut self) -> io::Result<Option<Vec<u8>>> {
        match std::mem::replace(&mut self.beside, Beside::Not) {
            Beside::Not => Ok(None),
            Beside::Named(name) => Ok(Some(name)),
            Beside::Nameless => {
                let (name, own) = (fresh_name(), format!("/proc/self/fd/{}", self.file.as_raw_fd()));
                rustix::fs::linkat(CWD, own, &self.spot.dir, &name, AtFlags::SYMLINK_FOLLOW)?;
                Ok(Some(name))
            }
        }
    }

    fn replace(&self, beside: &[u8]) -> Result<(), Fault> {
        let name = self.spot.name()?;
        let fail = |e: io::Error| cannot(&self.path, &e);
        let _alone = COMMIT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.spot.meta().map_err(fail)?;
        self.root.check_change(&self.spot)?;
        check_when(&self.path, &self.ask.when, found.as_ref())?;
        let kept = found.filter(|meta| meta.kind == FileKind::File).map(|meta| meta.mode & 0o1777);
        let mode = self.ask.mode.or(kept).unwrap_or(NEW);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(|e| fail(e.into()))?;
        // The kernel's own stamps are as coarse as its tick: two versions could share one, and so a tag.
        rustix::fs::futimens(&self.file, &now()).map_err(|e| fail(e.into()))?;
        let flags = if self.ask.when == When::Absent { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let placed = rustix::fs::renameat_with(&self.spot.dir, beside, &self.spot.dir, name, flags);
        placed.map_err(|e| fail(e.into()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let (Beside::Named(beside), Ok(_owner)) = (&self.beside, self.root.in_its_name()) {
            drop_draft(&self.spot.dir, beside);
        }
    }
}

/// What cannot be taken away is gone with the workspace.
fn drop_draft(dir: &Dir, beside: &[u8]) {
    let _ = rustix::fs::unlinkat(dir, beside, AtFlags::empty());
}

/// Writes all that a reader gives.
pub fn write(root: Root, path: &Rel, ask: Ask, from: &mut dyn Read) -> Result<Entry, Fault> {
    let mut draft = Draft::begin(root, path, ask)?;
    let mut piece = vec![0u8; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return draft.finish(),
            Ok(count) => draft.push(&piece[..count])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::invalid(format!("what was to be written ended with an error: {e}"))),
        }
    }
}

fn check_when(path: &Rel, when: &When, found: Option<&Meta>) -> Result<(), Fault> {
    let (why, hint) = match (when, found) {
        (When::Always, _) | (When::Absent, None) | (When::Present, Some(_)) => return Ok(()),
        (When::Matches(tags), Some(meta)) if tags.contains(&etag(meta)) => return Ok(()),
        (When::Absent, Some(_)) => ("something is there already", "leave the condition out to replace it"),
        (When::Present | When::Matches(_), None) => ("it is not there", "leave the condition out to make it"),
        (When::Matches(_), Some(_)) => ("it was changed meanwhile", "read it again, then write"),
    };
    Err(trouble::conflict(path, why, hint).phase(Phase::Admission))
}

/// One that nobody guesses.
fn fresh_name() -> Vec<u8> {
    format!(".cofferdam-{}", workspace::spelled::hex(&crate::fresh::random())).into_bytes()
}

/// A new file without a name, or with one that nobody guesses.
fn new_beside(dir: &Dir) -> io::Result<(File, Beside)> {
    let mode = Mode::from_raw_mode(0o600);
    match dir.open_at(&Rel::top(), OFlags::RDWR | OFlags::TMPFILE, mode) {
        Ok(made) => return Ok((File::from(made), Beside::Nameless)),
        Err(e) if [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL].contains(&errno(&e)) => {}
        Err(e) => return Err(e),
    }
    let name = fresh_name();
    let made = dir.open_at(&Rel::top().join(&name), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
    Ok((File::from(made), Beside::Named(name)))
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The file to append to, made where it is not there.
fn open_behind(spot: &Spot, path: &Rel, mode: Option<u32>) -> Result<File, Fault> {
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
    trouble::fault(path, "write it", error)
}

fn now() -> Timestamps {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
    Timestamps { last_access: now, last_modification: now }
}
