//! The steps for places of which a person is asked. The guest sees something empty there, at most; what is really there is
//! mounted apart, kept by a handle for the supervisor, and vanishes from the tree with the former root. A mount that is in no
//! tree has no way up, and no rule of landlock's holds in it: whatever is handed in from there leads nowhere else.

use super::grants::is_system;
use super::{Builder, LAYERS, OLD, QUIET, cpath, cstring, path_of};
use crate::listen::is_private;
use crate::shift::Purpose;
use policy::{AskedPlace, Kind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::op::{Attr, Op, Place};
use terms::{ErrorKind, Fault, Phase};

impl Builder<'_> {
    pub(super) fn asked(&mut self) -> Result<(), Fault> {
        let request = self.request;
        for (number, place) in request.plan.asked.iter().enumerate() {
            self.stand_in(place)?;
            // What is read comes from a mount that cannot be changed, or its mode and times could be.
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

    /// Whether rules ask for changes in the workspace.
    pub(super) fn asks_in_workspace(&self) -> bool {
        self.request.plan.asked.iter().any(|place| self.workspace_at(&place.path).is_some())
    }

    /// Something empty where no grant shows it.
    fn stand_in(&mut self, place: &AskedPlace) -> Result<(), Fault> {
        if self.is_mounted(&place.path) {
            return Ok(());
        }
        if self.is_own(&place.path)? || is_private(&place.path) {
            let (rule, path) = (&place.rule, place.path.display());
            let message = format!("{rule}: {path} is in a place that a guest has of its own");
            let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
            return Err(fault.hint("ask about a place elsewhere"));
        }
        match place.kind {
            Kind::Dir => self.dir(&place.path),
            _ => self.mount_point_file(&place.path),
        }
        Ok(())
    }

    fn apart(&mut self, place: &AskedPlace, slot: u8, attr: Attr) {
        self.layers_place();
        let at = cstring(format!("{LAYERS}/asked-{slot}"));
        self.push(match place.kind {
            Kind::Dir => Op::Dir { at, mode: 0o755 },
            _ => Op::File { at, mode: 0o644, bytes: &[] },
        });
        let of_host = self.workspace_at(&place.path).is_none();
        if !of_host {
            let from = self.source(&place.path);
            self.push(Op::Bind { from, at, attr });
        } else if self.guest.privileged && !is_system(&place.path) {
            let at = Path::new(std::ffi::OsStr::from_bytes(at.to_bytes()));
            self.shifted(&place.path, at, attr, &place.rule, Purpose::Shown);
        } else {
            let from = path_of(&[OLD.as_bytes(), cpath(&place.path).to_bytes()]);
            self.push(Op::Bind { from, at, attr });
        }
        self.push(Op::OpenPlace { at, place: Place::Asked(slot) });
    }
}
