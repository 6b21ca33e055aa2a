//! Who the guest is. Inside, an ordinary user; outside, somebody who owns nothing.
//!
//! An ordinary caller's guest has the caller's own ids, inside and out. Root's guest gets ids of the host that no
//! account has, one per run; files of the caller are shown to it through shifted mounts. Inside it is an ordinary
//! user too, because programs that find themselves root without root's powers behave badly.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sys::host;

/// The user id that root's guests have inside.
const ROOT_CALLER_INSIDE: u32 = 1000;
/// Above every range that account tools hand out; one id per live process id.
const FIRST_UNUSED_ID: u32 = 0x7000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    pub uid: u32,
    pub gid: u32,
    pub host_uid: u32,
    pub host_gid: u32,
    /// The caller is root on the host and may shift mounts and map any id.
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

    /// Gives this thread, and no other, the ids that the guest has on the host; with root's go root's powers. An ordinary
    /// caller's guest has the caller's own.
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

    /// The account files shown to root's guests: the caller's name with the guest's ids.
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
