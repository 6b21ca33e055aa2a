//! Id-mapped mounts, which only the supervisor can prepare: files of the caller appear to root's guest as its own.

use crate::driver::{ASK_DOCTOR, INSTEAD, exhausted};
use crate::guest::Guest;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use sys::op::Attr;
use sys::{CallError, cstring, host, mount};
use terms::{ErrorKind, Fault, Phase};

/// Directories that need no id map: owned by root, readable by all.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"];

/// A group that no file has, for the id map of read-only mounts. The kernel then refuses every write access, also
/// connect(2) to a Unix socket, which a read-only mount alone permits.
const NO_GROUP: u32 = u32::MAX - 1;

/// A mount that the supervisor prepares for the guest.
pub struct IdMapped {
    pub path: PathBuf,
    pub attr: Attr,
    pub rule: String,
    pub purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Shown with its owner mapped to the guest.
    Shown,
    /// Part of a workspace: its content must be the guest's to change, although the changes go to another layer.
    Layer,
}

/// Prepares mounts on which the files of their owners belong to the guest's user.
pub struct IdMapper {
    guest: Guest,
    id_maps: BTreeMap<(u32, u32), host::IdMap>,
}

impl IdMapper {
    pub fn new(guest: Guest) -> IdMapper {
        IdMapper { guest, id_maps: BTreeMap::new() }
    }

    pub fn prepare(&mut self, wanted: &IdMapped) -> Result<OwnedFd, Fault> {
        let IdMapped { path, attr, rule, purpose } = wanted;
        self.mount(path, *attr, *purpose).map_err(|error| {
            let path = path.display();
            if let Some(fault) = exhausted(&format!("{path}: {error}"), error.errno) {
                return fault;
            }
            let (message, hint) = match purpose {
                Purpose::Shown => (format!("{path} ({rule}): cannot be shown inside: {error}"), ASK_DOCTOR),
                Purpose::Layer => (format!("{path}: its file system cannot be part of a workspace: {error}"), INSTEAD),
            };
            Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Preparation)
        })
    }

    fn mount(&mut self, path: &Path, attr: Attr, purpose: Purpose) -> Result<OwnedFd, CallError> {
        let mut owner = std::fs::symlink_metadata(path).map(|m| (m.uid(), m.gid())).unwrap_or((0, 0));
        if attr.has(Attr::READ_ONLY) && purpose == Purpose::Shown {
            owner.1 = NO_GROUP;
        }
        if !self.id_maps.contains_key(&owner) {
            let map = host::id_map(owner.0, self.guest.host_uid, owner.1, self.guest.host_gid)?;
            self.id_maps.insert(owner, map);
        }
        let ids = self.id_maps.get(&owner).map(|map| map.namespace.as_fd());
        let name = cstring(path.as_os_str().as_bytes());
        let shifted = mount::prepare(&name, attr, ids);
        match purpose {
            // A file system without idmap support shows its files as owned by the overflow uid; world-readable files
            // can still be read.
            Purpose::Shown => shifted.or_else(|_| mount::prepare(&name, attr, None)),
            Purpose::Layer => shifted,
        }
    }
}

/// True for directories of the system, whose files need no id map.
pub fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|dir| path.starts_with(dir))
}
