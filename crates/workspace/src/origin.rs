//! Origin of a copied tree: which files are untouched since the copy, and which directories are still the copied ones.
//! A guest can reset size and mtime of a file, but not its ctime, which the kernel maintains; and a directory moved
//! into the place of another has a different inode number. Stored beside the tree, out of the guest's reach. Without a
//! complete record everything counts as touched.

use crate::dir::{Dir, Meta};
use crate::layer::Layer;
use api::Rel;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::time::Duration;

const NAME: &str = "origin";
const DRAFT: &str = "origin.new";
/// Bytes that are read back at most.
const LARGEST: u64 = 1 << 30;
/// Path length up to which directories are recorded; others count as new.
const LONGEST: usize = 4096;

#[derive(Debug)]
pub struct Origin {
    /// File system time before the first file of the base was read.
    base_at: (i64, u32),
    /// File system time after the last file was written.
    copied_at: (i64, u32),
    /// Directories copied from the base: path to inode number in the copy.
    dirs: HashMap<Rel, u64>,
    /// Inode numbers of files that were touched before the copied tree was copied itself.
    touched: HashSet<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredOrigin {
    base_at: (i64, u32),
    copied_at: (i64, u32),
    dirs: Vec<(Rel, u64)>,
    touched: Vec<u64>,
}

impl Origin {
    pub fn read(layer: &Layer) -> Option<Origin> {
        let file = layer.dir.file(&Rel::top().join(NAME.as_bytes())).ok()?;
        let written: StoredOrigin = serde_json::from_reader(BufReader::new(file.take(LARGEST))).ok()?;
        let StoredOrigin { base_at, copied_at, dirs, touched } = written;
        Some(Origin { base_at, copied_at, dirs: dirs.into_iter().collect(), touched: touched.into_iter().collect() })
    }

    /// True if the directory at a path is the one that was copied there; untouched files in it are then those of the
    /// base. Inode numbers are reused, so a directory with a later birth time does not count.
    pub fn is_same_dir(&self, at: &Rel, dir: &Dir) -> io::Result<bool> {
        if at.is_top() {
            return Ok(true);
        }
        let known = self.dirs.get(at) == Some(&rustix::fs::fstat(dir)?.st_ino);
        Ok(known && dir.born(b".").is_none_or(|born| born <= self.copied_at))
    }

    /// True if a file of the copy was not written, moved or changed in mode.
    pub fn is_untouched(&self, meta: &Meta) -> bool {
        meta.ctime <= self.copied_at && !self.touched.contains(&meta.ino)
    }

    /// True if a file of the base is unchanged since the copy.
    pub fn is_as_copied(&self, base: &Meta) -> bool {
        base.ctime <= self.base_at
    }

    /// True if the base got a name only after the copy.
    pub fn came_later(&self, base: &Dir, name: &[u8], meta: &Meta) -> bool {
        base.born(name).unwrap_or(meta.ctime) > self.base_at
    }
}

/// Records the origin while a tree is copied.
pub(crate) struct OriginRecorder {
    /// Origin of the tree that is copied; None for a base.
    source: Option<Origin>,
    base_at: (i64, u32),
    path: Vec<u8>,
    cuts: Vec<usize>,
    dirs: Vec<(Rel, u64)>,
    touched: Vec<u64>,
}

impl OriginRecorder {
    /// Recorder for a copy of a base into a fresh layer.
    pub fn of_base(layer: &Layer) -> io::Result<OriginRecorder> {
        let base_at = layer.made_at()?;
        wait_for_tick(base_at);
        Ok(OriginRecorder::new(None, base_at))
    }

    /// Recorder for a copy of a copied tree.
    pub fn of_copy(source: Origin) -> OriginRecorder {
        let base_at = source.base_at;
        OriginRecorder::new(Some(source), base_at)
    }

    fn new(source: Option<Origin>, base_at: (i64, u32)) -> OriginRecorder {
        OriginRecorder { source, base_at, path: Vec::new(), cuts: Vec::new(), dirs: Vec::new(), touched: Vec::new() }
    }

    /// Records a directory and its copy.
    pub fn enter(&mut self, name: &[u8], from: Option<&Dir>, made: &Dir) -> io::Result<()> {
        self.cuts.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        let Some(at) = Rel::parse(&self.path).filter(|_| self.path.len() <= LONGEST) else { return Ok(()) };
        let is_of_base = match (&self.source, from) {
            (None, _) => true,
            (Some(source), Some(from)) => source.is_same_dir(&at, from)?,
            (Some(_), None) => false,
        };
        if is_of_base {
            self.dirs.push((at, rustix::fs::fstat(made)?.st_ino));
        }
        Ok(())
    }

    pub fn leave(&mut self) {
        self.path.truncate(self.cuts.pop().unwrap_or(0));
    }

    /// Records a file or link and its copy.
    pub fn leaf(&mut self, from: &Meta, dir: &Dir, name: &[u8]) -> io::Result<()> {
        if self.source.as_ref().is_some_and(|source| !source.is_untouched(from)) {
            self.touched.push(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        }
        Ok(())
    }

    /// Writes the record beside the completed tree.
    pub fn keep(self, layer: &Layer) -> io::Result<()> {
        match rustix::fs::unlinkat(&layer.dir, DRAFT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let draft = layer.dir.open_at(&Rel::top().join(DRAFT.as_bytes()), flags, Mode::from_raw_mode(0o600))?;
        let stat = rustix::fs::fstat(&draft)?;
        let copied_at = (stat.st_ctime, stat.st_ctime_nsec as u32);
        let OriginRecorder { base_at, dirs, touched, .. } = self;
        let mut out = BufWriter::new(File::from(draft));
        serde_json::to_writer(&mut out, &StoredOrigin { base_at, copied_at, dirs, touched })?;
        out.flush()?;
        rustix::fs::renameat(&layer.dir, DRAFT, &layer.dir, NAME)?;
        wait_for_tick(copied_at);
        Ok(())
    }
}

/// Waits until the coarse clock of file timestamps has advanced, so that later changes have a later time.
fn wait_for_tick(stamp: (i64, u32)) {
    // Ticks are 1 to 10 ms apart.
    for _ in 0..50 {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec as u32) > stamp {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
