//! Steps for places that a person is asked about. The guest sees at most an empty file or directory there. The real
//! content is mounted apart, kept by a handle for the supervisor, and disappears from the tree with the old root. A
//! detached mount has no parent, and no landlock rule applies in it: a descriptor handed in from there leads nowhere
//! else.

use super::{Builder, LAYERS, OLD, QUIET, empty};
use crate::guest::is_private;
use crate::idmap::{Purpose, is_system};
use policy::{AskedPlace, HostFileType};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::op::{Attr, InsideDir, Op};
use terms::{ErrorKind, Fault, Phase};

impl Builder<'_> {
    pub(super) fn asked(&mut self) -> Result<(), Fault> {
        let spec = self.spec;
        for (number, place) in spec.plan.asked.iter().enumerate() {
            self.stand_in(place)?;
            // Reads come from a read-only mount; otherwise the guest could change mode and times through the
            // descriptor.
            for (slot, wanted, attr) in
                [(2 * number, place.reads, Attr::READ_ONLY), (2 * number + 1, place.changes, Attr(0))]
            {
                if wanted {
                    self.apart(place, slot as u8, QUIET.with(Attr::NO_EXEC).with(attr));
                }
            }
        }
        Ok(())
    }

    /// True when rules ask about changes in the workspace.
    pub(super) fn asks_in_workspace(&self) -> bool {
        self.spec.plan.asked.iter().any(|place| self.workspace_at(&place.path).is_some())
    }

    /// Creates an empty file or directory where no grant shows one.
    fn stand_in(&mut self, place: &AskedPlace) -> Result<(), Fault> {
        if self.is_mounted(&place.path) {
            return Ok(());
        }
        if self.has_home && self.is_in_home(&place.path) {
            self.stand_in_home(&place.path);
            return Ok(());
        }
        if self.is_own(&place.path)? || is_private(&place.path) {
            let (rule, path) = (&place.rule, place.path.display());
            let message = format!("{rule}: {path} is in a directory that each guest has of its own");
            let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
            return Err(fault.hint("ask about a path elsewhere"));
        }
        match place.kind {
            HostFileType::Dir => self.dir(&place.path),
            _ => self.mount_point_file(&place.path),
        }
        Ok(())
    }

    fn apart(&mut self, place: &AskedPlace, slot: u8, attr: Attr) {
        self.layers_place();
        let at = self.cstring(format!("{LAYERS}/asked-{slot}"));
        self.push(match place.kind {
            HostFileType::Dir => Op::Dir { at: at.clone(), mode: 0o755 },
            _ => Op::File { at: at.clone(), mode: 0o644, bytes: empty() },
        });
        let of_host = self.workspace_at(&place.path).is_none();
        if !of_host {
            let from = self.source(&place.path);
            self.push(Op::Bind { from, at: at.clone(), attr });
        } else if self.guest.privileged && !is_system(&place.path) {
            let at = Path::new(std::ffi::OsStr::from_bytes(at.to_bytes()));
            self.shifted(&place.path, at, attr, &place.rule, Purpose::Shown);
        } else {
            let from = self.path_of(&[OLD.as_bytes(), self.cpath(&place.path).to_bytes()]);
            self.push(Op::Bind { from, at: at.clone(), attr });
        }
        self.push(Op::OpenPlace { at, place: InsideDir::Asked(slot) });
    }
}
