//! Copies files and directories of a home into the home of a layer, at the same relative paths. Links are copied as
//! links and never followed, special files are skipped, and everything is bounded.

use crate::descent::Descent;
use crate::dir::{Dir, Meta};
use api::FileKind;
use api::Rel;
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Deepest directory that is copied.
const DEEPEST: usize = 256;

/// Entries and bytes that may still be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub entries: u64,
    pub bytes: u64,
}

/// Totals of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HomeCopyTotals {
    pub entries: u64,
    pub bytes: u64,
    /// Entries that are no files, directories or links, or that the caller may not read.
    pub skipped: u64,
    /// Entries that the caller's filter left out.
    pub left_out: Vec<Rel>,
}

/// A failed copy, with the path at which it failed.
#[derive(Debug)]
pub struct BringError {
    pub path: Rel,
    pub error: io::Error,
}

/// Copies what stands at `path` in `home` into `into`. Entries that are there already stay. `leaves_out` decides about
/// entries below `path`. Returns false where nothing stands at `path`.
pub fn bring(
    home: &Dir,
    path: &Rel,
    into: &Dir,
    leaves_out: &dyn Fn(&Path) -> bool,
    (allowance, brought): (&mut Allowance, &mut HomeCopyTotals),
) -> Result<bool, BringError> {
    let failed = |error: io::Error| BringError { path: path.clone(), error };
    let (above, name) = path.split().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let (mut from, mut to) = (Descent::at(home).map_err(failed)?, Descent::at(into).map_err(failed)?);
    for part in above.parts() {
        match from.here().meta_of(part).map_err(failed)? {
            None => return Ok(false),
            Some(meta) => make_dir(to.here(), part, meta.mode).map_err(failed)?,
        }
        from.enter(part).and_then(|()| to.enter(part)).map_err(failed)?;
    }
    if from.here().meta_of(name).map_err(failed)?.is_none() {
        return Ok(false);
    }
    let mut copier = Copier { from, to, at: above, allowance, brought };
    copier.tree(name, leaves_out).map_err(|error| BringError { path: copier.at.clone(), error })?;
    Ok(true)
}

struct Copier<'a> {
    from: Descent,
    to: Descent,
    /// The path that is copied.
    at: Rel,
    allowance: &'a mut Allowance,
    brought: &'a mut HomeCopyTotals,
}

impl Copier<'_> {
    fn tree(&mut self, name: &[u8], leaves_out: &dyn Fn(&Path) -> bool) -> io::Result<()> {
        // Names left to copy, for each directory on the path; and the mode of the directory below.
        let mut unvisited: Vec<(Vec<Vec<u8>>, Option<Meta>)> = vec![(vec![name.to_vec()], None)];
        while let Some((names, _)) = unvisited.last_mut() {
            let Some(name) = names.pop() else {
                if let Some((_, Some(meta))) = unvisited.pop() {
                    self.leave(&meta)?;
                }
                continue;
            };
            let above = std::mem::replace(&mut self.at, Rel::top());
            self.at = above.join(&name);
            if unvisited.len() > 1 && leaves_out(self.at.as_path()) {
                self.brought.left_out.push(self.at.clone());
            } else if let Some(meta) = self.from.here().meta_of(&name)?
                && self.entry(&name, &meta)?
            {
                if unvisited.len() > DEEPEST {
                    return Err(Errno::NAMETOOLONG.into());
                }
                unvisited.push((self.from.here().names()?, Some(meta)));
                continue;
            }
            self.at = above;
        }
        Ok(())
    }

    /// Copies one entry. Returns true for a directory that was entered.
    fn entry(&mut self, name: &[u8], meta: &Meta) -> io::Result<bool> {
        if !matches!(meta.kind, FileKind::Dir | FileKind::File | FileKind::Symlink) {
            self.brought.skipped += 1;
            return Ok(false);
        }
        self.take(1, 0)?;
        match meta.kind {
            FileKind::Dir => {
                make_dir(self.to.here(), name, 0o700)?;
                if let Err(e) = self.from.enter(name) {
                    return self.unread(e);
                }
                self.to.enter(name)?;
                return Ok(true);
            }
            FileKind::Symlink => {
                let target = self.from.here().link_target(name)?;
                match rustix::fs::symlinkat(&target[..], self.to.here(), name) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            _ => return self.file(name),
        }
        Ok(false)
    }

    fn file(&mut self, name: &[u8]) -> io::Result<bool> {
        let rel = Rel::top().join(name);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let from = match self.from.here().open_at(&rel, flags, Mode::empty()) {
            Ok(from) => File::from(from),
            Err(e) => return self.unread(e),
        };
        let stat = rustix::fs::fstat(&from)?;
        if FileKind::of_mode(stat.st_mode) != FileKind::File {
            self.brought.skipped += 1;
            return Ok(false);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut to = match self.to.here().open_at(&rel, flags, Mode::from_raw_mode(0o600)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            opened => File::from(opened?),
        };
        let copied = io::copy(&mut from.take(self.allowance.bytes.saturating_add(1)), &mut to)?;
        self.take(0, copied)?;
        rustix::fs::futimens(&to, &times((stat.st_mtime, stat.st_mtime_nsec as i64)))?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        Ok(false)
    }

    fn unread(&mut self, error: io::Error) -> io::Result<bool> {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        self.brought.skipped += 1;
        Ok(false)
    }

    fn take(&mut self, entries: u64, bytes: u64) -> io::Result<()> {
        let left = |most: u64, used: u64| most.checked_sub(used).ok_or(io::ErrorKind::QuotaExceeded);
        self.allowance.entries = left(self.allowance.entries, entries)?;
        self.allowance.bytes = left(self.allowance.bytes, bytes)?;
        self.brought.entries += entries;
        self.brought.bytes += bytes;
        Ok(())
    }

    /// Finishes a directory: the mode comes last, since it may forbid writing.
    fn leave(&mut self, meta: &Meta) -> io::Result<()> {
        let full = self.to.here().try_clone()?;
        self.from.leave()?;
        self.to.leave()?;
        self.at = self.at.split().map_or_else(Rel::top, |(above, _)| above);
        rustix::fs::futimens(&full, &times((meta.mtime.0, meta.mtime.1.into())))?;
        Ok(rustix::fs::fchmod(&full, Mode::from_raw_mode(meta.mode & 0o777 | 0o700))?)
    }
}

fn make_dir(at: &Dir, name: &[u8], mode: u32) -> io::Result<()> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode & 0o777 | 0o700)) {
        Err(Errno::EXIST) => match at.meta_of(name)? {
            Some(meta) if meta.kind == FileKind::Dir => Ok(()),
            _ => Err(Errno::NOTDIR.into()),
        },
        made => Ok(made?),
    }
}

fn times((seconds, nanoseconds): (i64, i64)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    const PLENTY: Allowance = Allowance { entries: 100, bytes: 100 };

    #[test]
    fn a_tree_is_copied_without_following_links() {
        let scratch = Scratch::new();
        let (home, into) = (scratch.mkdir("home"), scratch.mkdir("into"));
        let at = scratch.path.join("home");
        std::fs::create_dir_all(at.join("a/b")).unwrap();
        std::fs::write(at.join("a/b/file"), "text").unwrap();
        std::fs::write(at.join("a/secret"), "secret").unwrap();
        std::os::unix::fs::symlink("/etc", at.join("a/link")).unwrap();
        let (mut allowance, mut brought) = (PLENTY, HomeCopyTotals::default());
        let leaves_out = |path: &Path| path == Path::new("a/secret");
        let rel = |text: &str| Rel::parse(text.as_bytes()).unwrap();
        assert!(bring(&home, &rel("a"), &into, &leaves_out, (&mut allowance, &mut brought)).unwrap());
        let copy = scratch.path.join("into");
        assert_eq!(std::fs::read_to_string(copy.join("a/b/file")).unwrap(), "text");
        assert_eq!(std::fs::read_link(copy.join("a/link")).unwrap(), Path::new("/etc"));
        assert!(!copy.join("a/secret").exists());
        assert_eq!((brought.entries, brought.bytes, brought.left_out), (4, 4, vec![rel("a/secret")]));
        // What is named itself is copied; what leads through a link is not.
        let mut brought = HomeCopyTotals::default();
        assert!(bring(&home, &rel("a/secret"), &into, &leaves_out, (&mut allowance, &mut brought)).unwrap());
        assert!(!bring(&home, &rel("none/x"), &into, &leaves_out, (&mut allowance, &mut brought)).unwrap());
        let failed = bring(&home, &rel("a/link/passwd"), &into, &leaves_out, (&mut allowance, &mut brought));
        assert!(failed.is_err());
        // Bounds hold.
        let into = scratch.mkdir("other");
        for mut small in [Allowance { entries: 3, bytes: 100 }, Allowance { entries: 100, bytes: 3 }] {
            let failed = bring(&home, &rel("a/b"), &into, &leaves_out, (&mut small, &mut HomeCopyTotals::default()));
            match small.entries < 10 {
                true => assert!(failed.is_ok()),
                false => assert_eq!(failed.unwrap_err().error.kind(), io::ErrorKind::QuotaExceeded),
            }
            let _ = std::fs::remove_dir_all(scratch.path.join("other/a"));
        }
    }
}
