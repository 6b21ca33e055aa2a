//! Walls that a sandbox's policy puts around some of its files. Inside they are mounts, and nobody there can move or remove a name that
//! one is on. The kernel holds such a name only for those who are in the same namespace: for us, who are not, it would move it away
//! under its cover, or take the cover off. So we ask first. Who is inside can neither mount nor move a mount between the two.

use super::place::Spot;
use super::{Root, trouble};
use std::io;
use terms::{ErrorKind, Fault, Phase};
use workspace::{Rel, dir};

impl Root {
    /// Refuses to put something else at a place, or to take away what is there, where the policy keeps it as it is.
    pub(super) fn check_change(&self, spot: &Spot) -> Result<(), Fault> {
        self.check_rules(&spot.path)?;
        match &spot.name {
            Some(name) => spot.dir.check_not_mounted_on(name).map_err(|e| failed(&spot.path, "look at it", &e)),
            None => Ok(()),
        }
    }

    /// The same by the rules alone, for names that are not there yet.
    pub(super) fn check_rules(&self, path: &Rel) -> Result<(), Fault> {
        match self.denied.as_ref().and_then(|denied| denied.holds_up(path)) {
            Some(rule) => Err(kept(path, &format!("{rule} does not let it be changed from here"))),
            None => Ok(()),
        }
    }
}

/// What a call failed with; a mount is a wall.
pub(super) fn failed(path: &Rel, act: &str, error: &io::Error) -> Fault {
    match dir::is_mounted(error) {
        true => kept(path, "the sandbox's policy keeps it, or something in it, as it is"),
        false => trouble::fault(path, act, error),
    }
}

fn kept(path: &Rel, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, format!("{}: {why}", trouble::shown(path)));
    fault.hint("choose another path, or make the sandbox with another policy").phase(Phase::Execution)
}
