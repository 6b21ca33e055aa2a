//! The identity of a guest: an ordinary user inside; ids that own no file of the host, where the caller is root.
//!
//! The guest of an ordinary caller has the caller's own ids, inside and out. Root's guest gets host ids that no account
//! has, one pair per run, and the caller's files are shown to it through id-mapped mounts. Inside it is an ordinary
//! user as well, because programs that find themselves root without root's capabilities behave badly.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::path::Path;
use sys::host;

/// The user id of root's guests inside.
const ROOT_CALLER_INSIDE: u32 = 1000;
/// First host id for guests, above every range that account tools assign; one id per live process id.
const FIRST_UNUSED_ID: u32 = 0x7000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    pub uid: u32,
    pub gid: u32,
    pub host_uid: u32,
    pub host_gid: u32,
    /// The caller is root on the host and may create id-mapped mounts and map any id.
    pub privileged: bool,
}

impl Guest {
    pub fn of_caller() -> Guest {
        let (uid, gid) = host::ids();
        if host::is_privileged() {
            let id = FIRST_UNUSED_ID + std::process::id();
            let inside = ROOT_CALLER_INSIDE;
            Guest { uid: inside, gid: inside, host_uid: id, host_gid: id, privileged: true }
        } else {
            Guest { uid, gid, host_uid: uid, host_gid: gid, privileged: false }
        }
    }

    /// Gives the calling thread, and no other, the host ids of the guest; root's capabilities go with root's ids. No-op
    /// for an ordinary caller, whose guest has the caller's ids.
    pub fn take_on(&self) -> Result<(), i32> {
        if !self.privileged {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(self.host_uid), Gid::from_raw(self.host_gid));
        let taken = set_thread_groups(&[])
            .and_then(|()| set_thread_res_gid(gid, gid, gid))
            .and_then(|()| set_thread_res_uid(uid, uid, uid));
        taken.map_err(rustix::io::Errno::raw_os_error)
    }

    /// Returns passwd and group for root's guests: the caller's name with the guest's ids.
    pub fn account_files(&self, name: &str, home: &str, shell: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let plain = |text: &str| !text.is_empty() && !text.contains([':', '\n']);
        if !self.privileged || ![name, home, shell].into_iter().all(plain) {
            return None;
        }
        let passwd = format!(
            "{name}:x:{}:{}:{name}:{home}:{shell}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
            self.uid, self.gid
        );
        let group = format!("{name}:x:{}:\nnogroup:x:65534:\n", self.gid);
        Some((passwd.into_bytes(), group.into_bytes()))
    }
}

/// True for paths in the guest's private directories and in its own /dev and /proc.
pub fn is_private(path: &Path) -> bool {
    policy::private_place(path).is_some() || path.starts_with("/dev") || path.starts_with("/proc")
}
