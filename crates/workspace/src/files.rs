//! Files of a sandbox as its guest sees them: read, written, listed, moved, searched and watched through a directory
//! handle on the workspace, with the guest's user and group id. No operation leaves that directory, whatever the guest
//! swaps meanwhile.
//!
//! Symbolic links inside the workspace are followed as the guest would follow them, as long as they stay inside:
//! relative ones, and absolute ones below the workspace's path in the sandbox. A link that leads outside is refused.
//! `rename`, `remove` and `stat` without `follow` act on the link itself.

use crate::Dir;
use crate::dir::Meta;
use api::{FileEntry, FileKind, PathText, Rel, Spelt};
use sha2::Digest;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use sys::fs_ids::FsIdGuard;
use terms::{Fault, Phase};

pub mod change;
pub mod copy;
mod deadline;
mod error;
pub mod list;
mod locate;
mod pattern;
mod policy_check;
pub mod read;
pub mod search;
pub mod tar;
mod tree;
pub mod watch;
pub mod write;

pub use self::deadline::Interest;

/// Longest accepted path in bytes.
const LONGEST_PATH: usize = 64 << 10;

/// Directory handle on the workspace of a sandbox.
#[derive(Debug)]
pub struct Root {
    dir: Dir,
    owner: (u32, u32),
    place: PathBuf,
    room: WriteAllowance,
    /// Policy rules on paths that may not be changed, if any.
    rules: Option<Arc<dyn ChangeRules>>,
    lease: Option<Arc<dyn Lease>>,
    /// What is mounted below is not reached: it belongs to the host.
    within_mount: bool,
}

/// Policy rules on paths that may be changed from outside.
pub trait ChangeRules: Debug + Send + Sync {
    /// Returns the rule that keeps a path from being changed.
    fn denying(&self, path: &Rel) -> Option<String>;
}

/// A lease on the files of a live sandbox; ends with the keeper that holds the sandbox.
pub trait Lease: Debug + Send + Sync {
    /// Fails once the lease has ended.
    fn check(&self) -> Result<(), Fault>;

    /// Returns the id of the sandbox that the files belong to.
    fn sandbox(&self) -> &str;
}

/// Bytes and files that may still be written; None is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteAllowance {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
}

impl Root {
    /// `owner` is the user and group id for new files; `place` is the path of the directory inside the sandbox.
    pub fn new(dir: OwnedFd, owner: (u32, u32), place: PathBuf) -> Root {
        let (room, rules, lease) = (WriteAllowance::default(), None, None);
        Root { dir: Dir::from_fd(dir), owner, place, room, rules, lease, within_mount: false }
    }

    pub fn with_room(self, room: WriteAllowance) -> Root {
        Root { room, ..self }
    }

    /// Keeps out of what is mounted below.
    pub fn within_mount(self, within_mount: bool) -> Root {
        Root { within_mount, ..self }
    }

    pub fn with_rules(self, rules: Option<Arc<dyn ChangeRules>>) -> Root {
        Root { rules, ..self }
    }

    pub fn with_lease(self, lease: Arc<dyn Lease>) -> Root {
        Root { lease: Some(lease), ..self }
    }

    /// Returns the id of the sandbox that the files belong to, if they are leased from one.
    pub fn sandbox(&self) -> Option<&str> {
        self.lease.as_ref().map(|lease| lease.sandbox())
    }

    pub fn room(&self) -> WriteAllowance {
        self.room
    }

    /// Parses a requested path: relative to the workspace, or absolute if below its path in the sandbox. `.` is the
    /// workspace itself.
    pub fn path(&self, text: &[u8]) -> Result<Rel, Fault> {
        let refuse = |why: &str, hint: &str| {
            let shown = Spelt(&text[..text.len().min(200)]).to_string();
            Err(Fault::invalid(format!("path {shown:?}: {why}")).hint(hint).phase(Phase::Admission))
        };
        if text.is_empty() {
            return refuse("it is empty", "`.` is the workspace itself");
        }
        if text.len() > LONGEST_PATH {
            return refuse("it is too long", "the maximum is 65536 bytes");
        }
        let relative = match text.starts_with(b"/") {
            false => Some(text),
            true => self.below_place(text),
        };
        let Some(relative) = relative else {
            let place = self.place.display();
            let hint =
                "give it relative to the workspace's top, or absolute in the workspace, the sandbox's own home or /tmp";
            return refuse(&format!("it is not in {place}"), hint);
        };
        match Rel::parse(relative) {
            Some(path) => Ok(path),
            None => refuse("it contains `..` or a zero byte", "give it without `..`"),
        }
    }

    /// Strips the workspace's path from an absolute one; compares components, not prefixes.
    fn below_place<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        let mut rest = text;
        for part in self.place.as_os_str().as_bytes().split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            let begin = rest.iter().position(|b| *b != b'/')?;
            rest = rest[begin..].strip_prefix(part)?;
            if !rest.is_empty() && !rest.starts_with(b"/") {
                return None;
            }
        }
        let begin = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
        Some(&rest[begin..])
    }

    /// Fails once the lease on the sandbox has ended.
    fn check(&self) -> Result<(), Fault> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.check())
    }

    /// Switches to the file system ids of the guest until the guard is dropped.
    fn act_as_guest(&self) -> Result<FsIdGuard, Fault> {
        self.check()?;
        FsIdGuard::take(self.owner.0, self.owner.1).map_err(|e| {
            let (uid, gid) = self.owner;
            Fault::internal(format!("cannot act as {uid}:{gid}, the owner of the files: {e}")).phase(Phase::Preparation)
        })
    }
}

/// Effective user and group id of the calling process.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn entry_of(path: Rel, meta: &Meta, target: Option<Vec<u8>>) -> FileEntry {
    FileEntry {
        path,
        kind: meta.kind,
        mode: meta.mode,
        size: meta.size,
        modified_ms: meta.mtime.0.saturating_mul(1000).saturating_add(i64::from(meta.mtime.1 / 1_000_000)),
        links: meta.links,
        target: target.map(|bytes| PathText::of(&bytes)),
        etag: (meta.kind == FileKind::File).then(|| etag(meta)),
    }
}

/// Validator that changes with the content. The device number is left out: it differs with each mount of the
/// workspace.
fn etag(meta: &Meta) -> String {
    use sha2::Sha256;
    let mut hasher = Sha256::new();
    for part in
        [meta.ino, meta.size, meta.mtime.0 as u64, meta.mtime.1.into(), meta.ctime.0 as u64, meta.ctime.1.into()]
    {
        hasher.update(part.to_le_bytes());
    }
    terms::hex::encode(&hasher.finalize()[..12])
}
