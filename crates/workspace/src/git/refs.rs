//! HEAD and branches, read and moved with git's own protocol for loose references: create a lock file beside the
//! reference, compare its current value, rename.

use super::locate::{Repository, bounded, refused, short, trimmed, unreadable};
use crate::dir::Dir;
use api::FileKind;
use api::Rel;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Position of a work tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// On a branch; `commit` is None for an unborn one.
    Branch { name: String, commit: Option<String> },
    /// Detached HEAD.
    Detached { commit: String },
}

impl Head {
    pub fn commit(&self) -> Option<&str> {
        match self {
            Head::Branch { commit, .. } => commit.as_deref(),
            Head::Detached { commit } => Some(commit),
        }
    }

    /// Branch name without `refs/heads/`, or a label for a detached HEAD.
    pub fn label(&self) -> &str {
        match self {
            Head::Branch { name, .. } => name.strip_prefix("refs/heads/").unwrap_or(name),
            Head::Detached { .. } => "a detached HEAD",
        }
    }
}

/// Bound on the length of a chain of symbolic references.
pub(super) const MOST_STEPS: usize = 5;

/// Size bound of `packed-refs`: half a million branches and tags.
pub(super) const LARGEST_PACKED: u64 = 64 << 20;

impl Repository {
    pub fn head(&self) -> Result<Head, Fault> {
        if self.common.meta_of(b"reftable").map_err(|e| unreadable(&self.common_path, &e))?.is_some() {
            return Err(refused(&self.common_path, "stores its references in a reftable, which only git reads"));
        }
        let value = self.read_one("HEAD").map_err(|e| unreadable(&self.own_path, &e))?;
        match value {
            Some(RefValue::Commit(commit)) => Ok(Head::Detached { commit }),
            Some(RefValue::Symbolic(name)) => self.follow(name),
            None => Err(refused(&self.own_path, "HEAD names neither a branch nor a commit")),
        }
    }

    fn follow(&self, mut name: String) -> Result<Head, Fault> {
        for _ in 0..MOST_STEPS {
            match self.read_one(&name).map_err(|e| unreadable(&self.common_path, &e))? {
                Some(RefValue::Symbolic(next)) => name = next,
                Some(RefValue::Commit(commit)) => return Ok(Head::Branch { name, commit: Some(commit) }),
                None => {
                    let commit = self.packed(&name).map_err(|e| unreadable(&self.common_path, &e))?;
                    return Ok(Head::Branch { name, commit });
                }
            }
        }
        Err(refused(&self.common_path, "HEAD is in a loop of symbolic references"))
    }

    /// Reads a loose reference.
    fn read_one(&self, name: &str) -> io::Result<Option<RefValue>> {
        let (dir, at) = self.file_of(name)?;
        let Some(text) = short(dir, &at)? else { return Ok(None) };
        RefValue::parse(&text).map(Some).ok_or_else(|| garbled(name))
    }

    /// Directory and path of a reference: HEAD is per work tree, branches are shared.
    fn file_of(&self, name: &str) -> io::Result<(&Dir, Rel)> {
        if name == "HEAD" {
            return Ok((&self.own, Rel::top().join(b"HEAD")));
        }
        let at = Rel::parse(name.as_bytes()).filter(|at| is_plain(name) && at.as_bytes() == name.as_bytes());
        Ok((if is_own(name) { &self.own } else { &self.common }, at.ok_or_else(|| garbled(name))?))
    }

    fn packed(&self, name: &str) -> io::Result<Option<String>> {
        let all = bounded(&self.common, &Rel::top().join(b"packed-refs"), LARGEST_PACKED)?.unwrap_or_default();
        let lines = all.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        let mut found = lines.filter_map(|line| line.split_once(' ')).filter(|(id, at)| is_id(id) && *at == name);
        Ok(found.next().map(|(id, _)| id.to_owned()))
    }

    /// Reads the references that every work tree shares, from files. More than the bound is an error.
    pub(super) fn references(&self) -> io::Result<References> {
        let mut found = References::default();
        let all = bounded(&self.common, &Rel::top().join(b"packed-refs"), LARGEST_PACKED)?.unwrap_or_default();
        for line in all.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
            let Some((id, name)) = line.split_once(' ').filter(|(id, _)| is_id(id)) else { continue };
            if self.file_of(name).is_ok() {
                found.ids.insert(name.to_owned(), id.to_owned());
            }
            found.check_count()?;
        }
        let mut pending = vec![Rel::top().join(b"refs")];
        while let Some(at) = pending.pop() {
            let dir = match self.common.dir(&at) {
                Err(e) if crate::dir::is_absent(&e) => continue,
                opened => opened?,
            };
            let mut names = Vec::new();
            dir.each_name(MOST_REFERENCES, |name| names.push(name.to_vec()))?;
            for name in names {
                let path = at.join(&name);
                match dir.meta_of(&name)?.map(|meta| meta.kind) {
                    Some(FileKind::Dir) if path.parts().count() <= DEEPEST_REFERENCE => pending.push(path),
                    Some(FileKind::File) => self.add_loose(&path, &mut found),
                    _ => {}
                }
                found.check_count()?;
            }
            if pending.len() > MOST_REFERENCES {
                return Err(too_many());
            }
        }
        Ok(found)
    }

    /// Adds a loose reference; one that git would not read either is left out.
    fn add_loose(&self, at: &Rel, found: &mut References) {
        let Some(name) = std::str::from_utf8(at.as_bytes()).ok().filter(|name| !is_own(name)) else { return };
        match self.read_one(name) {
            Ok(Some(RefValue::Commit(id))) => drop(found.ids.insert(name.to_owned(), id)),
            Ok(Some(RefValue::Symbolic(to))) => drop(found.symbolic.insert(name.to_owned(), to)),
            _ => {}
        }
    }

    /// Value of one reference in files, links between references not followed.
    pub(super) fn value_of(&self, name: &str) -> io::Result<Option<String>> {
        match self.read_one(name)? {
            Some(RefValue::Commit(id)) => Ok(Some(id)),
            Some(RefValue::Symbolic(_)) => Err(garbled(name)),
            None => self.packed(name),
        }
    }

    /// Writes a reference, if it still has the value `seen`.
    pub(super) fn set(&self, name: &str, seen: Option<&str>, new: &str, line: &str) -> Result<(), Fault> {
        let failed = |e: io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{name} in {}: {e}", self.common_path.display()));
            fault.phase(Phase::Application)
        };
        let (dir, at) = self.file_of(name).map_err(failed)?;
        let Some((parent, last)) = at.split() else { return Err(failed(garbled(name))) };
        let place = self.make_dirs(dir, &parent).map_err(failed)?;
        let lock = LockFile::take(&place, last, self.owner).map_err(failed)?.ok_or_else(|| busy(name))?;
        if self.value_of(name).map_err(failed)?.as_deref() != seen {
            let fault = Fault::new(ErrorKind::Conflict, format!("{name} was moved meanwhile"));
            return Err(fault.hint("try again").phase(Phase::Application));
        }
        lock.put(new).map_err(failed)?;
        let old = seen.map_or_else(|| "0".repeat(new.len()), str::to_owned);
        if name.starts_with("refs/heads/") {
            // The commit is referenced by now; the reflog is best effort.
            let _ = self.log(name, &format!("{old} {new} {line}\n"));
        }
        Ok(())
    }

    /// Moves HEAD, or the branch it is on, from `seen` to `new`; fails if it has moved meanwhile. `who` and `why` go
    /// to the reflog.
    pub(super) fn advance(&self, seen: &Head, new: &str, who: &str, why: &str) -> Result<(), Fault> {
        let name = match seen {
            Head::Branch { name, .. } => name.as_str(),
            Head::Detached { .. } => "HEAD",
        };
        let failed = |e: io::Error| {
            let fault = Fault::new(ErrorKind::Unavailable, format!("{name} in {}: {e}", self.common_path.display()));
            fault.phase(Phase::Application)
        };
        let (dir, at) = self.file_of(name).map_err(failed)?;
        let Some((parent, last)) = at.split() else { return Err(failed(garbled(name))) };
        let place = self.make_dirs(dir, &parent).map_err(failed)?;
        let lock = LockFile::take(&place, last, self.owner).map_err(failed)?.ok_or_else(|| busy(name))?;
        if self.head()? != *seen {
            let message = format!("{} is no longer at {}", name, seen.commit().unwrap_or("no commit"));
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Application);
            return Err(fault.hint(
                "another commit was made meanwhile; commit the landed changes with git, or run `cofferdam undo`",
            ));
        }
        lock.put(new).map_err(failed)?;
        let old = seen.commit().map_or_else(|| "0".repeat(new.len()), str::to_owned);
        let line = format!("{old} {new} {who}\t{why}\n");
        // The commit is referenced by now; the reflog is best effort.
        let _ = self.log(name, &line);
        if name != "HEAD" {
            let _ = self.log("HEAD", &line);
        }
        Ok(())
    }

    pub(super) fn make_dirs(&self, dir: &Dir, at: &Rel) -> io::Result<Dir> {
        let mut here = dir.try_clone()?;
        for part in at.parts() {
            match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o777)) {
                Ok(()) => give(&here, part, self.owner)?,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            here = here.dir(&Rel::top().join(part))?;
        }
        Ok(here)
    }

    /// Appends a line to a reflog, if the repository has reflogs.
    fn log(&self, name: &str, line: &str) -> io::Result<()> {
        let (dir, at) = self.file_of(name)?;
        let logs = Rel::top().join(b"logs");
        if dir.meta(&logs)?.is_none() {
            return Ok(());
        }
        let Some((parent, last)) = at.split() else { return Ok(()) };
        let place = self.make_dirs(&dir.dir(&logs)?, &parent)?;
        let fresh = place.meta_of(last)?.is_none();
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
        let mut file = File::from(place.open_at(&Rel::top().join(last), flags, Mode::from_raw_mode(0o666))?);
        if fresh {
            give(&place, last, self.owner)?;
        }
        file.write_all(line.as_bytes())
    }
}

pub(super) enum RefValue {
    Commit(String),
    Symbolic(String),
}

impl RefValue {
    /// Parses the text of a loose reference.
    pub(super) fn parse(text: &[u8]) -> Option<RefValue> {
        let text = std::str::from_utf8(trimmed(text)).ok()?;
        match text.strip_prefix("ref:") {
            Some(other) => Some(RefValue::Symbolic(other.trim_start().to_owned())),
            None => is_id(text).then(|| RefValue::Commit(text.to_owned())),
        }
    }
}

/// References by name: ids, and names of others.
#[derive(Default)]
pub(super) struct References {
    pub ids: BTreeMap<String, String>,
    pub symbolic: BTreeMap<String, String>,
}

impl References {
    fn check_count(&self) -> io::Result<()> {
        if self.ids.len() + self.symbolic.len() > MOST_REFERENCES { Err(too_many()) } else { Ok(()) }
    }
}

/// Bounds on references, and on the depth of their directories.
const MOST_REFERENCES: usize = 100_000;
const DEEPEST_REFERENCE: usize = 16;

fn too_many() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, format!("it has more than {MOST_REFERENCES} references"))
}

/// True for a name that git takes, and that is a plain path below `refs`.
pub(super) fn is_plain(name: &str) -> bool {
    name.starts_with("refs/")
        && !name.contains("..")
        && !name.contains("@{")
        && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"))
        && !name.ends_with('.')
        && !name.bytes().any(|b| b <= b' ' || b == 0x7f || b"~^:?*[\\".contains(&b))
}

/// True for a reference that each work tree has of its own.
fn is_own(name: &str) -> bool {
    ["refs/bisect/", "refs/worktree/", "refs/rewritten/"].iter().any(|own| name.starts_with(own))
}

/// Lock file of a reference; while it exists, git waits or gives up.
struct LockFile<'a> {
    place: &'a Dir,
    name: Vec<u8>,
    target: Vec<u8>,
    file: File,
}

impl<'a> LockFile<'a> {
    fn take(place: &'a Dir, target: &[u8], owner: (u32, u32)) -> io::Result<Option<LockFile<'a>>> {
        let name = [target, b".lock"].concat();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        match place.open_at(&Rel::top().join(&name), flags, Mode::from_raw_mode(0o666)) {
            Ok(fd) => {
                let lock = LockFile { place, name, target: target.to_owned(), file: File::from(fd) };
                give(place, &lock.name, owner)?;
                Ok(Some(lock))
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn put(mut self, id: &str) -> io::Result<()> {
        self.file.write_all(format!("{id}\n").as_bytes())?;
        self.file.sync_all()?;
        rustix::fs::renameat(self.place, self.name.as_slice(), self.place, self.target.as_slice())?;
        self.name.clear();
        Ok(rustix::fs::fsync(self.place)?)
    }
}

impl Drop for LockFile<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = rustix::fs::unlinkat(self.place, self.name.as_slice(), AtFlags::empty());
        }
    }
}

/// Gives a file created by root to the owner of the repository.
pub(super) fn give(place: &Dir, name: &[u8], (uid, gid): (u32, u32)) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(place, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

pub(super) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn garbled(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the reference {name:?} is malformed"))
}

fn busy(name: &str) -> Fault {
    let message = format!("another git process is updating {name}: {name}.lock exists");
    Fault::new(ErrorKind::Conflict, message).hint("wait for it to end, then commit with git").retry(Retry::Later)
}
