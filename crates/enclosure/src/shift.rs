//! Mounts that only the supervisor can prepare: files of the caller, shown to root's guest as its own.

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

/// A group that no file has, in the map of mounts that are only read: the kernel then refuses every write access,
/// also to sockets, which a read-only mount alone does not keep from being connected to.
const NO_GROUP: u32 = u32::MAX - 1;

/// A mount that only the supervisor can prepare.
pub struct Wanted {
    pub path: PathBuf,
    pub attr: Attr,
    pub rule: String,
    pub purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be seen as it is.
    Shown,
    /// To be a part of a workspace: what is in it must be the guest's to change, although in another layer.
    Layer,
}

/// Prepares wanted mounts, with owners shifted to the guest's user.
pub struct Shifter {
    guest: Guest,
    id_maps: BTreeMap<(u32, u32), host::IdMap>,
}

impl Shifter {
    pub fn new(guest: Guest) -> Shifter {
        Shifter { guest, id_maps: BTreeMap::new() }
    }

    pub fn prepare(&mut self, wanted: &Wanted) -> Result<OwnedFd, Fault> {
        let Wanted { path, attr, rule, purpose } = wanted;
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
            // A file system that cannot shift shows its files as nobody's; what all may read still can be read.
            Purpose::Shown => shifted.or_else(|_| mount::prepare(&name, attr, None)),
            Purpose::Layer => shifted,
        }
    }
}
