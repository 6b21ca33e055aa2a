//! What a copying workspace knows of the moment when it was copied: which of its files nobody touched since, and which of its
//! directories are still those that were copied. A guest can give a file its old size and time back, but not the time of its last
//! change, which the kernel keeps; and a directory that was moved to another's place has another number. Kept beside the tree, where
//! no guest comes. Where it is missing or not whole, everything counts as touched.

use crate::dir::{Dir, Meta};
use crate::layer::Layer;
use crate::name::Rel;
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
/// So much is read back.
const LARGEST: u64 = 1 << 30;
/// Directories with longer paths are not remembered, and count as made anew.
const LONGEST: usize = 4096;

#[derive(Debug)]
pub struct Origin {
    /// The clock before the first file of the base was read.
    base_at: (i64, u32),
    /// The clock after the last file was written.
    copied_at: (i64, u32),
    /// Directories that came from the base, by their path, with their numbers here.
    dirs: HashMap<Rel, u64>,
    /// Files that had been touched already in the copy that this one was made of.
    touched: HashSet<u64>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    base_at: (i64, u32),
    copied_at: (i64, u32),
    dirs: Vec<(Rel, u64)>,
    touched: Vec<u64>,
}

impl Origin {
    pub fn read(layer: &Layer) -> Option<Origin> {
        let file = layer.dir.file(&Rel::top().join(NAME.as_bytes())).ok()?;
        let written: Written = serde_json::from_reader(BufReader::new(file.take(LARGEST))).ok()?;
        let Written { base_at, copied_at, dirs, touched } = written;
        Some(Origin { base_at, copied_at, dirs: dirs.into_iter().collect(), touched: touched.into_iter().collect() })
    }

    /// Whether the directory at a path is the one that was copied there: files in it that are untouched are then those of the base.
    /// Numbers are used again, so one that was made since is none.
    pub fn is_same_dir(&self, at: &Rel, dir: &Dir) -> io::Result<bool> {
        if at.is_top() {
            return Ok(true);
        }
        let known = self.dirs.get(at) == Some(&rustix::fs::fstat(dir)?.st_ino);
        Ok(known && dir.born(b".").is_none_or(|born| born <= self.copied_at))
    }

    /// Whether nobody wrote to a file of the copy, moved it or changed its bits.
    pub fn is_untouched(&self, meta: &Meta) -> bool {
        meta.ctime <= self.copied_at && !self.touched.contains(&meta.ino)
    }

    /// Whether a file of the base is as it was when it was copied.
    pub fn is_as_copied(&self, base: &Meta) -> bool {
        base.ctime <= self.base_at
    }

    /// Whether the base got a name only after the copy was made.
    pub fn came_later(&self, base: &Dir, name: &[u8], meta: &Meta) -> bool {
        base.born(name).unwrap_or(meta.ctime) > self.base_at
    }
}

/// Writes down what becomes of the files while they are copied.
pub(crate) struct Recorder {
    /// The copy that is copied; none where it is a base.
    source: Option<Origin>,
    base_at: (i64, u32),
    path: Vec<u8>,
    cuts: Vec<usize>,
    dirs: Vec<(Rel, u64)>,
    touched: Vec<u64>,
}

impl Recorder {
    /// Of a base that is about to be copied into a fresh layer.
    pub fn of_base(layer: &Layer) -> io::Result<Recorder> {
        let base_at = layer.made_at()?;
        pass(base_at);
        Ok(Recorder::new(None, base_at))
    }

    /// Of a copy that is about to be copied.
    pub fn of_copy(source: Origin) -> Recorder {
        let base_at = source.base_at;
        Recorder::new(Some(source), base_at)
    }

    fn new(source: Option<Origin>, base_at: (i64, u32)) -> Recorder {
        Recorder { source, base_at, path: Vec::new(), cuts: Vec::new(), dirs: Vec::new(), touched: Vec::new() }
    }

    /// A directory and the one that was made of it.
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

    /// A file or link that was made of another, by its name.
    pub fn leaf(&mut self, from: &Meta, dir: &Dir, name: &[u8]) -> io::Result<()> {
        if self.source.as_ref().is_some_and(|source| !source.is_untouched(from)) {
            self.touched.push(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_ino);
        }
        Ok(())
    }

    /// Keeps it beside a tree that is whole now.
    pub fn keep(self, layer: &Layer) -> io::Result<()> {
        match rustix::fs::unlinkat(&layer.dir, DRAFT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let draft = layer.dir.open_at(&Rel::top().join(DRAFT.as_bytes()), flags, Mode::from_raw_mode(0o600))?;
        let stat = rustix::fs::fstat(&draft)?;
        let copied_at = (stat.st_ctime, stat.st_ctime_nsec as u32);
        let Recorder { base_at, dirs, touched, .. } = self;
        let mut out = BufWriter::new(File::from(draft));
        serde_json::to_writer(&mut out, &Written { base_at, copied_at, dirs, touched })?;
        out.flush()?;
        rustix::fs::renameat(&layer.dir, DRAFT, &layer.dir, NAME)?;
        pass(copied_at);
        Ok(())
    }
}

/// Until the clock that files are stamped by has moved on, so that whatever is done next is later.
fn pass(stamp: (i64, u32)) {
    // Ticks are 1 to 10 ms apart.
    for _ in 0..50 {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (now.tv_sec, now.tv_nsec as u32) > stamp {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
