//! The steps that show a guest what it was granted: each path at its own place, with no more rights than its mount must have.
//! Where its owner is another, the mount says that it is the guest's.

use super::frame::DEVICES;
use super::{Builder, OLD, cpath, path_of};
use crate::shift::{Purpose, Wanted};
use policy::{ExecPlan, Grant, Kind, Perm, Perms};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use sys::op::{Attr, Op};
use sys::spawn;
use terms::{ErrorKind, Fault, Phase};

/// Directories whose owners need no shifting: root's, readable by all.
const SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"];

impl Builder<'_> {
    pub(super) fn grants(&mut self) -> Result<(), Fault> {
        let grants = self.with_workspace(self.request.plan.grants.iter().flat_map(top_level).collect());
        for grant in &grants {
            match self.workspace_at(&grant.path) {
                Some(_) => self.grant_in_workspace(grant, &grants)?,
                None => {
                    self.grant(grant)?;
                    let innermost = |dir: &Path| grants.iter().rfind(|g| g.covers(dir));
                    let is_here = |dir: &Path| innermost(dir).is_some_and(|g| g.path == grant.path);
                    self.hide_futures(self.attr_of(grant), is_here);
                }
            }
        }
        Ok(())
    }

    pub(super) fn grant(&mut self, grant: &Grant) -> Result<(), Fault> {
        if self.is_own(&grant.path)? {
            return Ok(());
        }
        check_below_tmp(grant)?;
        if !self.is_mounted(&grant.path) {
            match grant.kind {
                Kind::Dir => self.dir(&grant.path),
                _ => self.mount_point_file(&grant.path),
            }
        }
        let attr = self.attr_of(grant);
        if !self.guest.privileged || is_system(&grant.path) {
            let from = path_of(&[OLD.as_bytes(), grant.path.as_os_str().as_bytes()]);
            self.push(Op::Bind { from, at: cpath(&grant.path), attr });
        } else {
            self.shifted(&grant.path, &grant.path, attr, &grant.rule, Purpose::Shown);
        }
        self.mounted.insert(grant.path.clone().into());
        if grant.path == Path::new("/var") && self.has_var_tmp {
            self.bind_var_tmp();
        }
        Ok(())
    }

    /// A socket without its directory, unless a grant shows it: to be seen, and with no right to it. Connections to it are
    /// made from outside.
    pub(super) fn sockets(&mut self) -> Result<(), Fault> {
        let request = self.request;
        for socket in &request.plan.sockets {
            let (path, rule) = (socket.path.clone(), socket.rule.clone());
            if self.is_own(&path)? {
                let message = format!("{rule}: {} is in a place that a guest has of its own", path.display());
                let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
                return Err(fault.hint("let the service listen elsewhere"));
            }
            if !self.is_mounted(&path) {
                self.grant(&Grant { path, kind: Kind::Socket, perms: Perms::NONE, rule })?;
            }
        }
        Ok(())
    }

    /// Places that every guest has of its own; a rule about them has nothing to add.
    pub(super) fn is_own(&self, path: &Path) -> Result<bool, Fault> {
        let own = |dir: &str| path.starts_with(dir);
        if path == Path::new("/dev") || path == Path::new("/proc") {
            let message = format!("{}: a guest has one of its own; name the device or file it needs", path.display());
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning));
        }
        let device = DEVICES.iter().any(|name| path == Path::new("/dev").join(name));
        Ok(device || own("/proc") || own("/dev/pts") || own("/dev/shm") || own("/dev/mqueue"))
    }

    pub(super) fn attr_of(&self, grant: &Grant) -> Attr {
        let mut attr = Attr::NO_SUID;
        let device = grant.kind == Kind::Other
            && std::fs::symlink_metadata(&grant.path)
                .is_ok_and(|m| m.file_type().is_char_device() || m.file_type().is_block_device());
        if !device {
            attr = attr.with(Attr::NO_DEV);
        }
        let writes = !grant.perms.and(Perms::CHANGES).is_empty();
        if !writes {
            attr = attr.with(Attr::READ_ONLY);
        }
        let runs = match &self.request.plan.exec {
            ExecPlan::AllowBut(_) => grant.perms.contains(Perm::Execute),
            // Libraries must be mapped; anything else that can be mapped could be started by way of the loader.
            ExecPlan::Only { .. } => !writes && self.holds_libraries(&grant.path),
        };
        if !runs {
            attr = attr.with(Attr::NO_EXEC);
        }
        attr
    }

    fn holds_libraries(&self, path: &Path) -> bool {
        let places = ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
        places.iter().any(|p| path.starts_with(p)) || self.request.toolchains.iter().any(|t| path.starts_with(t))
    }

    /// A mount of `path` on which the files of its owner belong to the guest's user.
    pub(super) fn shifted(&mut self, path: &Path, at: &Path, attr: Attr, rule: &str, purpose: Purpose) {
        let slot = self.mounts.len() % spawn::MOST_HANDLES;
        if slot == 0 {
            self.push(Op::ReceiveMounts);
        }
        self.mounts.push(Wanted { path: path.to_path_buf(), attr, rule: rule.to_string(), purpose });
        self.push(Op::Attach { slot, at: cpath(at) });
    }
}

/// The private /tmp may be written, and landlock's rights are inherited by what is mounted below. Mounts can take
/// away writing or running as a whole, but not single permissions.
pub(super) fn check_below_tmp(grant: &Grant) -> Result<(), Fault> {
    let reads = grant.kind != Kind::Dir || grant.perms.and(Perms::READ) == Perms::READ;
    let changes = grant.perms.and(Perms::WRITE);
    let whole = changes.is_empty() || changes == Perms::WRITE || grant.kind != Kind::Dir;
    if policy::private_place(&grant.path).is_none() || (reads && whole) {
        return Ok(());
    }
    let message = format!(
        "{}: {} lies below the private /tmp, where permissions cannot be granted singly",
        grant.rule,
        grant.path.display()
    );
    let hint = "grant reading, or reading and all changes; or keep the directory elsewhere";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}

/// A grant of the whole host becomes grants of what is in its root, but for the places the guest has of its own.
pub(super) fn top_level(grant: &Grant) -> Vec<Grant> {
    const OWN: [&str; 4] = ["proc", "dev", "tmp", "sys"];
    if grant.path != Path::new("/") {
        return vec![grant.clone()];
    }
    let Ok(entries) = std::fs::read_dir("/") else { return Vec::new() };
    let mut grants: Vec<Grant> = entries
        .flatten()
        .filter(|e| !OWN.iter().any(|own| e.file_name() == *own))
        .filter_map(|e| {
            let kind = e.file_type().ok()?;
            let kind = match kind.is_dir() {
                true => Kind::Dir,
                false if kind.is_file() => Kind::File,
                false => return None,
            };
            Some(Grant { path: e.path(), kind, ..grant.clone() })
        })
        .collect();
    grants.sort_by(|a, b| a.path.cmp(&b.path));
    grants
}

pub(crate) fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|dir| path.starts_with(dir))
}
