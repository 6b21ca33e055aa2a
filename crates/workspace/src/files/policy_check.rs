//! Checks of a sandbox's policy before a file is changed from outside. Inside, a denied path is covered by a mount,
//! which protects its name from rename and unlink, but only for processes of the same mount namespace; a change from
//! outside would move it from under its cover. So the check comes first; the guest can neither mount nor move a mount
//! meanwhile.

use super::locate::ResolvedParent;
use super::{Root, error};
use crate::dir;
use api::Rel;
use std::io;
use terms::{ErrorKind, Fault, Phase};

impl Root {
    /// Refuses to replace or remove an entry that the policy protects.
    pub(super) fn check_change(&self, spot: &ResolvedParent) -> Result<(), Fault> {
        self.check_rules(&spot.path)?;
        match &spot.name {
            Some(name) => spot.dir.check_not_mounted_on(name).map_err(|e| failed(&spot.path, "look at it", &e)),
            None => Ok(()),
        }
    }

    /// Checks the rules alone, for names that do not exist yet.
    pub(super) fn check_rules(&self, path: &Rel) -> Result<(), Fault> {
        match self.rules.as_ref().and_then(|rules| rules.denying(path)) {
            Some(rule) => Err(kept(path, &format!("{rule} denies changing it"))),
            None => Ok(()),
        }
    }
}

/// Fault of a failed call; a mount point means a path that the policy protects.
pub(super) fn failed(path: &Rel, act: &str, error: &io::Error) -> Fault {
    match dir::is_mounted(error) {
        true => kept(path, "the sandbox's policy denies changes to it or to a path below it"),
        false => error::fault(path, act, error),
    }
}

fn kept(path: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{}: {why}", error::shown(path)));
    fault.hint("choose another path, or create the sandbox with another policy").phase(Phase::Execution)
}
