//! Steps that show a guest its grants: each path in its place, with the narrowest mount attributes. Where the owner
//! differs, an id-mapped mount makes it the guest's.

use super::frame::DEVICES;
use super::{Builder, OLD};
use crate::idmap::{IdMapped, Purpose, is_system};
use policy::{ExecPlan, Grant, HostFileType, Perm, Perms};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use sys::op::{Attr, Op};
use sys::spawn;
use terms::{ErrorKind, Fault, Phase};

impl Builder<'_> {
    pub(super) fn grants(&mut self) -> Result<(), Fault> {
        let grants = self.with_workspace(self.spec.plan.grants.iter().flat_map(top_level).collect());
        let mut home = self.spec.plan.private.home();
        for grant in &grants {
            if home.take_if(|home| grant.path > **home).is_some() {
                self.home()?;
            }
            match self.workspace_at(&grant.path) {
                Some(_) => self.grant_in_workspace(grant, &grants)?,
                None => {
                    self.grant(grant)?;
                    let innermost = |dir: &Path| grants.iter().rfind(|g| g.covers(dir));
                    let is_here = |dir: &Path| innermost(dir).is_some_and(|g| g.path == grant.path);
                    self.hide_missing_names(self.attr_of(grant), is_here);
                }
            }
        }
        if home.is_some() {
            self.home()?;
        }
        Ok(())
    }

    pub(super) fn grant(&mut self, grant: &Grant) -> Result<(), Fault> {
        if self.is_own(&grant.path)? {
            return Ok(());
        }
        check_in_private(grant)?;
        let spec = self.spec;
        if let Some(cache) = spec.own_home.caches().iter().find(|cache| cache.at == grant.path && self.has_home) {
            return self.cache(cache, grant);
        }
        if !self.is_mounted(&grant.path) {
            match grant.kind {
                HostFileType::Dir => self.dir(&grant.path),
                _ => self.mount_point_file(&grant.path),
            }
        }
        let attr = self.attr_of(grant);
        if !self.guest.privileged || is_system(&grant.path) {
            let from = self.path_of(&[OLD.as_bytes(), grant.path.as_os_str().as_bytes()]);
            self.push(Op::Bind { from, at: self.cpath(&grant.path), attr });
        } else {
            self.shifted(&grant.path, &grant.path, attr, &grant.rule, Purpose::Shown);
        }
        self.mounted.insert(grant.path.clone().into());
        if grant.path == Path::new("/var") && self.has_var_tmp {
            self.bind_var_tmp();
        }
        Ok(())
    }

    /// Shows a socket without its directory, unless a grant shows it: visible, and without any right. The supervisor
    /// connects to it on the guest's behalf.
    pub(super) fn sockets(&mut self) -> Result<(), Fault> {
        let spec = self.spec;
        for socket in &spec.plan.sockets {
            let (path, rule) = (socket.path.clone(), socket.rule.clone());
            if self.is_own(&path)? {
                let message = format!("{rule}: {} is in a directory that each guest has of its own", path.display());
                let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
                return Err(fault.hint("let the service listen elsewhere"));
            }
            if !self.is_mounted(&path) {
                let private = spec.plan.private.clone();
                self.grant(&Grant { path, kind: HostFileType::Socket, perms: Perms::NONE, rule, private })?;
            }
        }
        Ok(())
    }

    /// True for places that every guest has of its own; a rule about them has no effect.
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
        let device = grant.kind == HostFileType::Other
            && std::fs::symlink_metadata(&grant.path)
                .is_ok_and(|m| m.file_type().is_char_device() || m.file_type().is_block_device());
        if !device {
            attr = attr.with(Attr::NO_DEV);
        }
        let writes = !grant.perms.and(Perms::CHANGES).is_empty();
        if !writes {
            attr = attr.with(Attr::READ_ONLY);
        }
        let runs = match &self.spec.plan.exec {
            ExecPlan::AllowBut(_) => grant.perms.contains(Perm::Execute),
            // Libraries must be mappable; any other mappable file could be started through the loader.
            ExecPlan::Only { .. } => !writes && self.holds_libraries(&grant.path),
        };
        if !runs {
            attr = attr.with(Attr::NO_EXEC);
        }
        attr
    }

    fn holds_libraries(&self, path: &Path) -> bool {
        let places = ["/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
        places.iter().any(|p| path.starts_with(p)) || self.spec.toolchains.iter().any(|t| path.starts_with(t))
    }

    /// Adds an id-mapped mount of `path`, on which the files of its owner belong to the guest's user.
    pub(super) fn shifted(&mut self, path: &Path, at: &Path, attr: Attr, rule: &str, purpose: Purpose) {
        let slot = self.mounts.len() % spawn::MOST_HANDLES;
        if slot == 0 {
            self.push(Op::ReceiveMounts);
        }
        self.mounts.push(IdMapped { path: path.to_path_buf(), attr, rule: rule.to_string(), purpose });
        self.push(Op::Attach { slot, at: self.cpath(at) });
    }
}

/// Refuses a partial grant below a private directory, which is writable: landlock rights are inherited by what is
/// mounted below. Mount attributes can remove writing or execution as a whole, but not single permissions.
pub(super) fn check_in_private(grant: &Grant) -> Result<(), Fault> {
    let Some(place) = grant.private.place_of(&grant.path).filter(|_| !grant.is_whole()) else { return Ok(()) };
    let message = format!(
        "{}: {} lies below the private {}, where single permissions cannot be granted",
        grant.rule,
        grant.path.display(),
        if grant.private.is_in_home(place) { "home" } else { "/tmp" }
    );
    let hint = "grant reading, or reading and all changes; or keep the directory elsewhere";
    Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
}

/// Expands a grant of `/` into grants of the root's entries, except for the directories that the guest has of its own.
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
                true => HostFileType::Dir,
                false if kind.is_file() => HostFileType::File,
                false => return None,
            };
            Some(Grant { path: e.path(), kind, ..grant.clone() })
        })
        .collect();
    grants.sort_by(|a, b| a.path.cmp(&b.path));
    grants
}
