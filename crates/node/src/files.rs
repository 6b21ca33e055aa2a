//! Files of a sandbox, as whoever runs in it sees them: read, written, listed, moved, searched and watched through a handle on
//! its workspace, in the name of the guest. No verb leaves that directory, whatever the guest puts in the way meanwhile.
//!
//! Links inside the workspace are followed as the guest would follow them, as long as they stay in it: relative ones, and absolute
//! ones that name the workspace's own place. A link that leads elsewhere is refused. `rename`, `remove` and `stat` without `follow` act on
//! a link itself.

use crate::denied::Denied;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use sys::owner::InTheNameOf;
use terms::{Fault, Phase};
use workspace::Dir;
use workspace::dir::Meta;
pub use workspace::{FileKind, Rel, Target};

pub mod change;
mod clock;
pub mod copy;
mod lease;
pub mod list;
mod pattern;
mod place;
pub mod read;
pub mod search;
pub mod tar;
mod tree;
mod trouble;
mod walls;
pub mod watch;
pub mod write;

pub use self::clock::Interest;
use self::lease::Lease;
pub use self::lease::{Purpose, note, open, open_standing};

/// The longest path that is taken.
const LONGEST_PATH: usize = 64 << 10;

/// The workspace of a sandbox, by handle.
#[derive(Debug)]
pub struct Root {
    dir: Dir,
    owner: (u32, u32),
    place: PathBuf,
    room: Room,
    /// What of it the guest may not change, where that is known.
    denied: Option<Arc<Denied>>,
    lease: Option<Arc<Lease>>,
}

/// How much may still be written; none where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
}

impl Root {
    /// `owner` is who makes files there; `place` is what the directory is called inside.
    pub fn new(dir: OwnedFd, owner: (u32, u32), place: PathBuf) -> Root {
        Root { dir: Dir::from_fd(dir), owner, place, room: Room::default(), denied: None, lease: None }
    }

    pub fn with_room(self, room: Room) -> Root {
        Root { room, ..self }
    }

    pub fn room(&self) -> Room {
        self.room
    }

    /// A path as it is asked for: relative to the workspace, or absolute where that is in it. `.` is the workspace itself.
    pub fn path(&self, text: &[u8]) -> Result<Rel, Fault> {
        let refuse = |why: &str, hint: &str| {
            let shown = workspace::name::Spelt(&text[..text.len().min(200)]).to_string();
            Err(Fault::invalid(format!("path {shown:?}: {why}")).hint(hint).phase(Phase::Admission))
        };
        if text.is_empty() {
            return refuse("it is empty", "`.` is the workspace itself");
        }
        if text.len() > LONGEST_PATH {
            return refuse("it is too long", "no path has more than 65536 bytes");
        }
        let relative = match text.starts_with(b"/") {
            false => Some(text),
            true => self.below_place(text),
        };
        let Some(relative) = relative else {
            return refuse("it is not in the workspace", "give it relative to the workspace's top");
        };
        match Rel::parse(relative) {
            Some(path) => Ok(path),
            None => refuse("it goes up or holds a zero byte", "give it without `..`"),
        }
    }

    /// What follows the workspace's place in an absolute path; parts are compared, not prefixes.
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

    /// Refuses to go on when the sandbox is gone.
    fn check(&self) -> Result<(), Fault> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.check())
    }

    /// For as long as it is held, files are made and opened as the guest would.
    fn in_its_name(&self) -> Result<InTheNameOf, Fault> {
        self.check()?;
        InTheNameOf::take(self.owner.0, self.owner.1).map_err(|e| {
            let (uid, gid) = self.owner;
            Fault::internal(format!("cannot act as {uid}:{gid}, who owns the files: {e}")).phase(Phase::Preparation)
        })
    }
}

/// The ids under which the caller makes files.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// One file, directory or other thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = FileEntry)]
pub struct Entry {
    /// From the workspace's top.
    pub path: Rel,
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, in octal.
    #[serde(with = "terms::octal")]
    #[schema(value_type = terms::octal::Mode)]
    pub mode: u32,
    pub size: u64,
    /// When it was last written to, in milliseconds since 1970.
    pub modified_ms: i64,
    /// How many names it has.
    pub links: u64,
    /// Where a symbolic link leads.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Target>,
    /// Of a regular file: another whenever its content is another.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etag: Option<String>,
}

impl Entry {
    fn of(path: Rel, meta: &Meta, target: Option<Vec<u8>>) -> Entry {
        Entry {
            path,
            kind: meta.kind,
            mode: meta.mode,
            size: meta.size,
            modified_ms: meta.mtime.0.saturating_mul(1000).saturating_add(i64::from(meta.mtime.1 / 1_000_000)),
            links: meta.links,
            target: target.map(|bytes| Target::of(&bytes)),
            etag: (meta.kind == FileKind::File).then(|| etag(meta)),
        }
    }
}

/// Changes with the content. The device is left out: it is another whenever the workspace is mounted.
fn etag(meta: &Meta) -> String {
    use sha2::{Digest, Sha256};
    let mut hasher = Sha256::new();
    for part in
        [meta.ino, meta.size, meta.mtime.0 as u64, meta.mtime.1.into(), meta.ctime.0 as u64, meta.ctime.1.into()]
    {
        hasher.update(part.to_le_bytes());
    }
    workspace::spelled::hex(&hasher.finalize()[..12])
}
