//! File system ids of a thread (setfsuid): for a while, one thread accesses files with the ids of another user, and
//! with no further rights.

use crate::CallError;
use std::marker::PhantomData;

/// Guard: while it lives, this thread makes and opens files as this owner. It cannot leave the thread that made it.
#[derive(Debug)]
pub struct FsIdGuard {
    previous: Option<FsIds>,
    /// File system ids belong to a thread, so the guard must not be sent to another.
    _not_send: PhantomData<*const ()>,
}

#[derive(Debug)]
struct FsIds {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl FsIdGuard {
    /// Sets the ids. If they are the caller's own, nothing is changed. Leaving root's ids also drops root's
    /// capabilities over files, until the guard is dropped.
    pub fn take(uid: u32, gid: u32) -> Result<FsIdGuard, CallError> {
        let own = FsIds { uid: current_uid(), gid: current_gid(), groups: Vec::new() };
        if (own.uid, own.gid) == (uid, gid) {
            return Ok(FsIdGuard { previous: None, _not_send: PhantomData });
        }
        let groups = groups()?;
        set_groups(&[])?;
        // From here on, dropping the guard restores all changes.
        let guard = FsIdGuard { previous: Some(FsIds { groups, ..own }), _not_send: PhantomData };
        // The group first: the capability to change it is dropped with the user.
        set_gid(gid);
        set_uid(uid);
        // setfsuid reports no error, so the ids are read back.
        match (current_uid(), current_gid()) == (uid, gid) {
            true => Ok(guard),
            false => Err(CallError { call: "setfsuid", errno: libc::EPERM }),
        }
    }
}

impl Drop for FsIdGuard {
    fn drop(&mut self) {
        let Some(own) = &self.previous else { return };
        set_uid(own.uid);
        set_gid(own.gid);
        let restored = set_groups(&own.groups).is_ok() && (current_uid(), current_gid()) == (own.uid, own.gid);
        // A thread that continued with wrong ids would serve the next caller with them.
        if !restored {
            std::process::abort();
        }
    }
}

/// An invalid id: setfsuid then only returns the current one.
const INVALID_ID: u32 = u32::MAX;

fn set_uid(uid: u32) -> u32 {
    // SAFETY: changes ids of this thread only and touches no memory.
    unsafe { libc::setfsuid(uid) as u32 }
}

fn set_gid(gid: u32) -> u32 {
    // SAFETY: changes ids of this thread only and touches no memory.
    unsafe { libc::setfsgid(gid) as u32 }
}

fn current_uid() -> u32 {
    set_uid(INVALID_ID)
}

fn current_gid() -> u32 {
    set_gid(INVALID_ID)
}

fn groups() -> Result<Vec<u32>, CallError> {
    // SAFETY: asks for the count alone.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut list = vec![0u32; usize::try_from(count).map_err(|_| CallError::last("getgroups"))?];
    // SAFETY: the list has room for the count that was returned.
    let count = unsafe { libc::getgroups(count, list.as_mut_ptr()) };
    list.truncate(usize::try_from(count).map_err(|_| CallError::last("getgroups"))?);
    Ok(list)
}

/// The raw system call changes this thread only; the C library's function changes all threads.
fn set_groups(list: &[u32]) -> Result<(), CallError> {
    // SAFETY: the kernel reads the list, with its true length.
    match unsafe { libc::syscall(libc::SYS_setgroups, list.len(), list.as_ptr()) } {
        0 => Ok(()),
        _ => Err(CallError::last("setgroups")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Root makes files as another user, with that user's rights only; afterwards its ids are restored. Every user may
    /// set its own ids, and no others.
    #[test]
    fn files_belong_to_whom_they_are_made_for() {
        let dir = std::env::temp_dir().join(format!("cofferdam-owner-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(dir.join("shut"), "x").unwrap();
        std::fs::set_permissions(dir.join("shut"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let (uid, gid, before) = (current_uid(), current_gid(), groups().unwrap());
        drop(FsIdGuard::take(uid, gid).unwrap());
        if uid == 0 {
            let guard = FsIdGuard::take(4321, 4322).unwrap();
            std::fs::write(dir.join("made"), "x").unwrap();
            assert!(std::fs::read(dir.join("shut")).is_err(), "no right of root's is left");
            drop(guard);
            let made = std::fs::metadata(dir.join("made")).unwrap();
            assert_eq!((made.uid(), made.gid()), (4321, 4322));
        } else {
            assert!(FsIdGuard::take(uid + 1, gid).is_err(), "only root may");
        }
        assert_eq!((current_uid(), current_gid(), groups().unwrap()), (uid, gid, before));
        assert!(std::fs::read(dir.join("shut")).is_ok(), "and everything is as before");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
