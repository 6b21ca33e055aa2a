//! Delegation of cgroups by root to a user, so that this user's sandboxes have limits: a directory of the user's own in
//! each hierarchy, which lasts until reboot. The user owns the directory, but not the files that limit the directory
//! itself.

use std::io;
use std::path::Path;

use super::dir::Dir;
use super::layout::{Hierarchy, Layout, Version};
use super::limit::inherit_cpuset;
use super::parent::enable;
use super::{DELEGATED, RUNS, SELF_LEAF};

/// Makes `cofferdam/<uid>` in every hierarchy and gives it to the user. A repeated call changes nothing. Returns a line
/// for each directory that the user now owns.
pub fn delegate(layout: &Layout, uid: u32, gid: u32) -> io::Result<Vec<String>> {
    let mut done = Vec::new();
    for hierarchy in &layout.hierarchies {
        let line = match hierarchy.version {
            Version::V1 => delegate_v1(hierarchy, uid, gid),
            Version::V2 => delegate_v2(hierarchy, uid, gid),
        };
        done.push(line.map_err(|e| within(&hierarchy.mount, e))?);
    }
    Ok(done)
}

fn delegate_v1(hierarchy: &Hierarchy, uid: u32, gid: u32) -> io::Result<String> {
    let top = Dir::open(&hierarchy.mount)?;
    let shared = top.ensure(DELEGATED)?;
    let own = shared.ensure(&uid.to_string())?;
    if hierarchy.controllers().contains(&"cpuset") {
        inherit_cpuset(&top, &shared)?;
        inherit_cpuset(&shared, &own)?;
    }
    own.chown(".", uid, gid)?;
    let path = hierarchy.mount.join(DELEGATED).join(uid.to_string());
    Ok(format!("{} belongs to uid {uid} ({})", path.display(), hierarchy.controllers().join(", ")))
}

fn delegate_v2(hierarchy: &Hierarchy, uid: u32, gid: u32) -> io::Result<String> {
    let top = Dir::open(&hierarchy.mount)?;
    let shared = top.ensure(DELEGATED)?;
    let own = shared.ensure(&uid.to_string())?;
    let leaf = own.ensure(SELF_LEAF)?;
    if !hierarchy.controllers().is_empty() {
        for dir in [&top, &shared, &own] {
            enable(dir, hierarchy.controllers())?;
        }
    }
    for dir in [&own, &leaf] {
        for file in [".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            dir.chown(file, uid, gid)?;
        }
    }
    let path = hierarchy.mount.join(DELEGATED).join(uid.to_string());
    let has =
        if hierarchy.controllers().is_empty() { "freeze, kill".to_owned() } else { hierarchy.controllers().join(", ") };
    Ok(format!(
        "{} belongs to uid {uid} ({has}); for use, start the user's shell inside: echo PID > {}/{SELF_LEAF}/cgroup.procs",
        path.display(),
        path.display()
    ))
}

/// Removes the delegated directories. Fails with "busy" while the user still runs processes there. Returns a line for
/// each directory removed.
pub fn undelegate(layout: &Layout, uid: u32) -> io::Result<Vec<String>> {
    let mut done = Vec::new();
    super::sweep(layout);
    for hierarchy in &layout.hierarchies {
        let top = Dir::open(&hierarchy.mount)?;
        let Ok(shared) = top.child(DELEGATED) else {
            continue;
        };
        let user = uid.to_string();
        if let Ok(own) = shared.child(&user) {
            let empty = [RUNS, SELF_LEAF].into_iter().try_for_each(|name| gone_is_fine(own.remove(name)));
            let removed = empty.and_then(|()| shared.remove(&user));
            removed.map_err(|e| within(&hierarchy.mount, e))?;
            let path = hierarchy.mount.join(DELEGATED).join(&user);
            done.push(format!("removed {}", path.display()));
        }
        // The shared directory stays while another user has a directory in it.
        let _ = top.remove(DELEGATED);
    }
    Ok(done)
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

fn within(mount: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", mount.display()))
}
