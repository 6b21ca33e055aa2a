//! Files made in somebody's name: for a while, one thread touches files with the ids of another, and with no right beyond theirs.

use crate::CallError;
use std::marker::PhantomData;

/// While it lives, this thread makes and opens files as this owner. It belongs to the thread that made it.
#[derive(Debug)]
pub struct InTheNameOf {
    back: Option<Own>,
    /// Ids of this kind are a thread's, so the guard must not go to another.
    _stays: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Own {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl InTheNameOf {
    /// Takes the ids on. Where they are the caller's own nothing is changed. Leaving root's ids also takes away root's rights over
    /// files, until the end.
    pub fn take(uid: u32, gid: u32) -> Result<InTheNameOf, CallError> {
        let own = Own { uid: now_uid(), gid: now_gid(), groups: Vec::new() };
        if (own.uid, own.gid) == (uid, gid) {
            return Ok(InTheNameOf { back: None, _stays: PhantomData });
        }
        let groups = groups()?;
        set_groups(&[])?;
        // From here on, dropping the guard puts back whatever was changed.
        let guard = InTheNameOf { back: Some(Own { groups, ..own }), _stays: PhantomData };
        // The group first: the right to change it goes with the user.
        set_gid(gid);
        set_uid(uid);
        // These calls tell no error; asking again does.
        match (now_uid(), now_gid()) == (uid, gid) {
            true => Ok(guard),
            false => Err(CallError { call: "setfsuid", errno: libc::EPERM }),
        }
    }
}

impl Drop for InTheNameOf {
    fn drop(&mut self) {
        let Some(own) = &self.back else { return };
        set_uid(own.uid);
        set_gid(own.gid);
        let restored = set_groups(&own.groups).is_ok() && (now_uid(), now_gid()) == (own.uid, own.gid);
        // A thread that goes on under wrong ids would serve the next caller with them.
        if !restored {
            std::process::abort();
        }
    }
}

/// An id that nobody has: the call then only tells the one in force.
const NOBODY: u32 = u32::MAX;

fn set_uid(uid: u32) -> u32 {
    // SAFETY: changes ids of this thread only and touches no memory.
    unsafe { libc::setfsuid(uid) as u32 }
}

fn set_gid(gid: u32) -> u32 {
    // SAFETY: changes ids of this thread only and touches no memory.
    unsafe { libc::setfsgid(gid) as u32 }
}

fn now_uid() -> u32 {
    set_uid(NOBODY)
}

fn now_gid() -> u32 {
    set_gid(NOBODY)
}

fn groups() -> Result<Vec<u32>, CallError> {
    // SAFETY: asks for the count alone.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut list = vec![0u32; usize::try_from(count).map_err(|_| CallError::last("getgroups"))?];
    // SAFETY: the list has room for as many as are told.
    let count = unsafe { libc::getgroups(count, list.as_mut_ptr()) };
    list.truncate(usize::try_from(count).map_err(|_| CallError::last("getgroups"))?);
    Ok(list)
}

/// The bare call, which is of this thread; the library's changes all threads.
fn set_groups(list: &[u32]) -> Result<(), CallError> {
    // SAFETY: the kernel reads the list, which is as long as is said.
    match unsafe { libc::syscall(libc::SYS_setgroups, list.len(), list.as_ptr()) } {
        0 => Ok(()),
        _ => Err(CallError::last("setgroups")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Root makes files in another's name and has no more rights than they; afterwards all is as before. Anybody may take on
    /// their own ids, and nobody else's.
    #[test]
    fn files_belong_to_whom_they_are_made_for() {
        let dir = std::env::temp_dir().join(format!("cofferdam-owner-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(dir.join("shut"), "x").unwrap();
        std::fs::set_permissions(dir.join("shut"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let (uid, gid, before) = (now_uid(), now_gid(), groups().unwrap());
        drop(InTheNameOf::take(uid, gid).unwrap());
        if uid == 0 {
            let guard = InTheNameOf::take(4321, 4322).unwrap();
            std::fs::write(dir.join("made"), "x").unwrap();
            assert!(std::fs::read(dir.join("shut")).is_err(), "no right of root's is left");
            drop(guard);
            let made = std::fs::metadata(dir.join("made")).unwrap();
            assert_eq!((made.uid(), made.gid()), (4321, 4322));
        } else {
            assert!(InTheNameOf::take(uid + 1, gid).is_err(), "only root may");
        }
        assert_eq!((now_uid(), now_gid(), groups().unwrap()), (uid, gid, before));
        assert!(std::fs::read(dir.join("shut")).is_ok(), "and everything is as before");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
