//! Copies trees: a base into the single layer of a copying workspace, and layers into a merged one. Bytes are shared
//! by reflink if the file system can; holes stay holes. Never follows a link, never opens a file that could block,
//! never leaves the two trees.

use crate::attributes::{self, Marks};
use crate::descent::Descent;
use crate::dir::{Dir, Meta};
use crate::layer::Layer;
use crate::origin::{Origin, OriginRecorder};
use crate::walk::{self, At, Visitor, open_file};
use api::{Driver, FileKind, Rel};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::Fault;

mod bytes;

/// Threads that copy bytes while one walks.
const WORKERS: usize = 3;
/// Length of their queue; each entry holds two descriptors.
const QUEUE_LENGTH: usize = 64;
/// Skipped files that are listed; the rest are counted.
const MOST_LISTED: usize = 100;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Totals of a copy, also used for progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyTotals {
    pub files: u64,
    pub dirs: u64,
    pub links: u64,
    pub bytes: u64,
    /// Entries left out: devices, sockets and FIFOs of a base, and files that the caller may not read.
    pub skipped: Vec<(Rel, &'static str)>,
    pub skipped_more: u64,
}

impl CopyTotals {
    /// Message for the user about entries that are missing from the copy.
    pub fn left_out(&self) -> Option<String> {
        let (first, why) = self.skipped.first()?;
        let count = self.skipped.len() as u64 + self.skipped_more;
        Some(format!("{count} left out of the copy, the first {first}: {why}"))
    }
}

/// Copies the whole tree of a base into an empty `up`. Hard links become separate files.
pub fn populate(
    base: &Dir,
    up: &Dir,
    driver: Driver,
    progress: &mut dyn FnMut(&CopyTotals),
) -> Result<CopyTotals, Fault> {
    let share = driver == Driver::Reflink;
    copy(&[base], up, Marks::Foreign, share, None, progress).map(|(copied, _)| copied)
}

/// Copies a base into a fresh layer and records its origin, so that touched entries can be found later.
pub fn into_layer(
    base: &Dir,
    layer: &Layer,
    driver: Driver,
    progress: &mut dyn FnMut(&CopyTotals),
) -> Result<CopyTotals, Fault> {
    let fail = |e: io::Error| walk::fault(&Rel::top().join(layer.id.as_bytes()), &e);
    let (share, record) = (driver == Driver::Reflink, OriginRecorder::of_base(layer).map_err(fail)?);
    let (copied, record) = copy(&[base], &layer.up, Marks::Foreign, share, Some(record), progress)?;
    record.map_or(Ok(()), |record| record.keep(layer)).map_err(fail)?;
    Ok(copied)
}

/// Merges layers, from the bottom up, into an empty `up`; whiteouts that hide names of the base are kept.
pub fn layers(from: &[&Dir], up: &Dir) -> Result<CopyTotals, Fault> {
    copy(from, up, Marks::Mean, true, None, &mut |_| {}).map(|(copied, _)| copied)
}

/// Copies the whole tree of a copying workspace into another fresh layer.
pub fn tree(from: &Layer, to: &Layer) -> Result<CopyTotals, Fault> {
    let record = Origin::read(from).map(OriginRecorder::of_copy);
    let (copied, record) = copy(&[&from.up], &to.up, Marks::Plain, true, record, &mut |_| {})?;
    let fail = |e: io::Error| walk::fault(&Rel::top().join(to.id.as_bytes()), &e);
    record.map_or(Ok(()), |record| record.keep(to)).map_err(fail)?;
    crate::home::merge(std::slice::from_ref(from), to, Marks::Plain)?;
    Ok(copied)
}

/// Merges parts of homes, from the bottom up, into an empty one.
pub(crate) fn parts(from: &[&Dir], to: &Dir, marks: Marks) -> Result<(), Fault> {
    copy(from, to, marks, true, None, &mut |_| {}).map(drop)
}

struct CopyJob {
    from: File,
    to: File,
    meta: Meta,
    marks: Marks,
    path: Rel,
}

/// State shared by the threads.
struct CopyState {
    bytes: AtomicU64,
    /// Reflinks have not failed so far.
    share: AtomicBool,
    failed: Mutex<Option<Fault>>,
    stop: AtomicBool,
}

fn copy(
    from: &[&Dir],
    up: &Dir,
    marks: Marks,
    share: bool,
    record: Option<OriginRecorder>,
    progress: &mut dyn FnMut(&CopyTotals),
) -> Result<(CopyTotals, Option<OriginRecorder>), Fault> {
    let top = from.last().ok_or_else(|| Fault::internal("no layer to copy"))?;
    let way = Descent::at(up).map_err(|e| walk::fault(&Rel::top(), &e))?;
    let shared = CopyState {
        bytes: AtomicU64::new(0),
        share: AtomicBool::new(share),
        failed: Mutex::new(None),
        stop: AtomicBool::new(false),
    };
    let (jobs, inbox) = sync_channel::<CopyJob>(QUEUE_LENGTH);
    let inbox = Mutex::new(inbox);
    let walked = std::thread::scope(|scope| {
        let (ended, ends) = sync_channel::<()>(WORKERS);
        for _ in 0..WORKERS {
            let (inbox, shared, ended) = (&inbox, &shared, ended.clone());
            scope.spawn(move || {
                work(inbox, shared);
                let _ = ended.send(());
            });
        }
        let (copied, last_report) = (CopyTotals::default(), Instant::now());
        let telling = &mut *progress;
        let copier =
            Copier { way, levels: Vec::new(), jobs, shared: &shared, copied, record, last_report, progress: telling };
        let walked = walk::walk(from, marks, copier).map(|copier| (copier.copied, copier.record));
        match walked {
            Ok((copied, record)) => {
                wait(&ends, &shared, &copied, progress);
                Ok((copied, record))
            }
            Err(fault) => {
                shared.stop.store(true, Ordering::Relaxed);
                Err(fault)
            }
        }
    });
    // The error of a worker is the cause; the walk only ended because of it.
    if let Some(fault) = shared.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(fault);
    }
    let (mut copied, record) = walked?;
    finish_top(top, up, marks).map_err(|e| walk::fault(&Rel::top(), &e))?;
    copied.bytes = shared.bytes.into_inner();
    progress(&copied);
    Ok((copied, record))
}

/// Waits for the workers, which end once the queue is closed and empty.
fn wait(ends: &Receiver<()>, shared: &CopyState, copied: &CopyTotals, progress: &mut dyn FnMut(&CopyTotals)) {
    let mut left = WORKERS;
    while left > 0 {
        match ends.recv_timeout(PROGRESS_INTERVAL) {
            Ok(()) => left -= 1,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                progress(&CopyTotals { bytes: shared.bytes.load(Ordering::Relaxed), ..copied.clone() });
            }
        }
    }
}

fn work(inbox: &Mutex<Receiver<CopyJob>>, shared: &CopyState) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // After a failure the queue is only drained, so that the walking thread does not block on it.
        if shared.stop.load(Ordering::Relaxed) {
            continue;
        }
        if let Err(error) = copy_file(&job, shared) {
            let mut failed = shared.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| walk::fault(&job.path, &error));
            shared.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn copy_file(job: &CopyJob, shared: &CopyState) -> io::Result<()> {
    bytes::move_all(&job.from, &job.to, job.meta.size, &shared.share, &shared.bytes)?;
    let carried = attributes::read(&job.from, job.marks)?;
    attributes::write(&job.to, &carried, job.marks)?;
    rustix::fs::fchmod(&job.to, Mode::from_raw_mode(job.meta.mode))?;
    Ok(rustix::fs::futimens(&job.to, &times(&job.meta))?)
}

struct Copier<'a> {
    way: Descent,
    /// Directories being filled, with the metadata that each gets once it is full.
    levels: Vec<(Vec<u8>, Meta)>,
    jobs: SyncSender<CopyJob>,
    shared: &'a CopyState,
    copied: CopyTotals,
    record: Option<OriginRecorder>,
    last_report: Instant,
    progress: &'a mut dyn FnMut(&CopyTotals),
}

impl Visitor for Copier<'_> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        rustix::fs::mkdirat(self.way.here(), at.name, Mode::from_raw_mode(0o700))?;
        self.way.enter(at.name)?;
        if let Some(from) = at.opened {
            let mut carried = attributes::read(from, at.marks)?;
            carried.opaque = at.opaque;
            attributes::write(self.way.here(), &carried, at.marks)?;
        }
        if let Some(record) = &mut self.record {
            record.enter(at.name, at.opened, self.way.here())?;
        }
        self.levels.push((at.name.to_vec(), at.meta));
        self.copied.dirs += 1;
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        if self.shared.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.report_progress();
        match at.meta.kind {
            FileKind::File => self.file(at),
            FileKind::Symlink => self.link(at),
            _ if !at.marks.is_ours() => {
                self.skip(at, "not a file, directory or link");
                Ok(())
            }
            FileKind::Fifo => self.node(at, FileType::Fifo),
            FileKind::Socket => self.node(at, FileType::Socket),
            FileKind::Char if at.meta.is_struck_out() => self.node(at, FileType::CharacterDevice),
            _ => {
                self.skip(at, "a device");
                Ok(())
            }
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some((_, meta)) = self.levels.pop() else { return Ok(()) };
        if let Some(record) = &mut self.record {
            record.leave();
        }
        rustix::fs::futimens(self.way.here(), &times(&meta))?;
        // The mode comes last: afterwards the directory may be neither writable nor searchable for `..`.
        let full = self.way.here().try_clone()?;
        self.way.leave()?;
        Ok(rustix::fs::fchmod(&full, Mode::from_raw_mode(meta.mode))?)
    }

    fn shut(&mut self, at: &At<'_>) -> io::Result<()> {
        self.skip(at, "may not be read");
        Ok(())
    }
}

impl Copier<'_> {
    fn file(&mut self, at: &At<'_>) -> io::Result<()> {
        let from = match open_file(at) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !at.marks.is_ours() => {
                self.skip(at, "may not be read");
                return Ok(());
            }
            other => other?,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let to = self.way.here().open_at(&Rel::top().join(at.name), flags, Mode::from_raw_mode(0o600))?;
        self.note(at)?;
        self.copied.files += 1;
        let job = CopyJob { from, to: File::from(to), meta: at.meta, marks: at.marks, path: self.path(at.name) };
        self.jobs.send(job).map_err(|_| io::ErrorKind::Interrupted.into())
    }

    fn link(&mut self, at: &At<'_>) -> io::Result<()> {
        let target = at.parent.link_target(at.name)?;
        rustix::fs::symlinkat(&target[..], self.way.here(), at.name)?;
        self.note(at)?;
        self.copied.links += 1;
        Ok(rustix::fs::utimensat(self.way.here(), at.name, &times(&at.meta), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn node(&mut self, at: &At<'_>, kind: FileType) -> io::Result<()> {
        rustix::fs::mknodat(self.way.here(), at.name, kind, Mode::from_raw_mode(at.meta.mode & 0o777), 0)?;
        self.note(at)?;
        self.copied.files += 1;
        Ok(())
    }

    fn note(&mut self, at: &At<'_>) -> io::Result<()> {
        match &mut self.record {
            Some(record) => record.leaf(&at.meta, self.way.here(), at.name),
            None => Ok(()),
        }
    }

    fn skip(&mut self, at: &At<'_>, why: &'static str) {
        if self.copied.skipped.len() < MOST_LISTED {
            let path = self.path(at.name);
            self.copied.skipped.push((path, why));
        } else {
            self.copied.skipped_more += 1;
        }
    }

    fn path(&self, name: &[u8]) -> Rel {
        walk::path_of(self.levels.iter().map(|(name, _)| &name[..]).chain([name]))
    }

    fn report_progress(&mut self) {
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            self.copied.bytes = self.shared.bytes.load(Ordering::Relaxed);
            (self.progress)(&self.copied);
        }
    }
}

fn times(meta: &Meta) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: meta.mtime.0, tv_nsec: meta.mtime.1.into() },
    }
}

/// Gives the top directory the attributes, times and permission bits of the one that was copied.
fn finish_top(from: &Dir, up: &Dir, marks: Marks) -> io::Result<()> {
    let carried = attributes::read(from, marks)?;
    attributes::write(up, &carried, marks)?;
    let meta = from.meta(&Rel::top())?.ok_or(io::ErrorKind::NotFound)?;
    rustix::fs::futimens(up, &times(&meta))?;
    Ok(rustix::fs::fchmod(up, Mode::from_raw_mode(meta.mode & 0o777))?)
}

#[cfg(test)]
#[path = "copy_test.rs"]
mod tests;
