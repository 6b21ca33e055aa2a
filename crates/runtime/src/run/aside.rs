//! Keeps the state directory out of every guest, whatever the rules grant: it holds the layers, records and secrets of all sandboxes, and
//! the sockets of keepers. A grant above it shows it as hidden; sockets and programs in it are refused. Only a sandbox's own base may lie
//! there.

use super::place::CommandLocation;
use super::view::View;
use super::{RunRequest, mode};
use policy::{Action, Grant, HostFileType, Perms, Plan, Resolved};
use state::Caller;
use std::path::{Path, PathBuf};
use terms::{ErrorKind, Fault, Phase};

/// Rule name in denials and in `--explain`.
const RULE: &str = "state directory";
/// Bound on directory entries that must be granted one by one on the way to the state directory.
const MOST_BESIDE: usize = 4096;

/// Settles rules and plan for the mode, without the state directory; returns whether a workspace takes changes as well.
pub(super) fn settle(
    resolved: Resolved,
    request: &RunRequest,
    spot: &CommandLocation,
    view: &View,
    caller: &Caller,
) -> Result<(Resolved, Plan, bool), Fault> {
    let hidden = Hidden { places: state::directory::places(caller)?, work: &spot.dir };
    let (settled, plan, layered) = settle_apart(resolved.clone(), request, spot, view)?;
    let mut plan = plan;
    hidden.check(&plan)?;
    if !plan.grants.iter().any(|grant| hidden.is_shown_by(grant)) {
        return Ok((settled, plan, layered));
    }
    if hidden.holds_work() {
        // A denial of the whole would cover the sandbox's own directory as well.
        plan.grants = hidden.beside(plan.grants)?;
        return Ok((settled, plan, layered));
    }
    // Created first: a path that does not exist could be denied only where no guest can create it.
    state::directory::prepare(caller)?;
    let mut denied = resolved;
    for place in &hidden.places {
        let spoken = denied.with_fs(Action::Deny, place, Perms::ALL, RULE);
        denied = spoken.ok_or_else(|| refuse(format!("{}: its name is not UTF-8", place.display())))?;
    }
    settle_apart(denied, request, spot, view)
}

/// Settles rules and plan; where the directory that is worked on has a path of its own inside, no grant shows the host around it.
fn settle_apart(
    resolved: Resolved,
    request: &RunRequest,
    spot: &CommandLocation,
    view: &View,
) -> Result<(Resolved, Plan, bool), Fault> {
    let (settled, mut plan, layered) = mode::settle(resolved, request, spot, view)?;
    if spot.home.is_some() {
        let is_above = |grant: &Grant| grant.path != spot.dir && grant.covers(&spot.dir);
        let (above, mut others): (Vec<Grant>, Vec<Grant>) = plan.grants.into_iter().partition(is_above);
        let beside = Hidden { places: vec![spot.dir.clone()], work: Path::new("/") }.beside(above)?;
        // A guest has these of its own.
        others.extend(
            beside.into_iter().filter(|grant| !["/dev", "/proc"].iter().any(|own| grant.path == Path::new(own))),
        );
        others.sort_by(|a, b| a.path.cmp(&b.path));
        others.dedup_by(|a, b| a.path == b.path);
        plan.grants = others;
    }
    Ok((settled, plan, layered))
}

struct Hidden<'a> {
    /// Paths of the state directory, under all its names.
    places: Vec<PathBuf>,
    /// The directory that is worked on.
    work: &'a Path,
}

impl Hidden<'_> {
    /// Returns whether a path is in the state directory, and not in the sandbox's own.
    fn has(&self, path: &Path) -> bool {
        self.places.iter().any(|place| path.starts_with(place)) && !(self.holds_work() && path.starts_with(self.work))
    }

    fn holds_work(&self) -> bool {
        self.places.iter().any(|place| self.work.starts_with(place))
    }

    fn is_shown_by(&self, grant: &Grant) -> bool {
        self.has(&grant.path) || self.is_held_by(grant)
    }

    fn is_held_by(&self, grant: &Grant) -> bool {
        self.places.iter().any(|place| grant.covers(place))
    }

    fn check(&self, plan: &Plan) -> Result<(), Fault> {
        if let Some(socket) = plan.sockets.iter().find(|socket| self.has(&socket.path)) {
            return Err(refuse(format!(
                "{}: {} is a socket of the state directory",
                socket.rule,
                socket.path.display()
            )));
        }
        match plan.exec.programs().iter().find(|program| self.has(&program.path)) {
            Some(program) => {
                Err(refuse(format!("{}: {} is in the state directory", program.rule, program.path.display())))
            }
            None => Ok(()),
        }
    }

    /// Replaces grants above the state directory by grants of the siblings on the way; drops grants inside it.
    fn beside(&self, grants: Vec<Grant>) -> Result<Vec<Grant>, Fault> {
        let mut kept = Vec::new();
        for grant in grants.into_iter().filter(|grant| !self.has(&grant.path)) {
            self.split(grant, &mut kept)?;
        }
        kept.sort_by(|a: &Grant, b| a.path.cmp(&b.path));
        kept.dedup_by(|a, b| a.path == b.path);
        Ok(kept)
    }

    fn split(&self, grant: Grant, kept: &mut Vec<Grant>) -> Result<(), Fault> {
        if !self.is_held_by(&grant) {
            kept.push(grant);
            return Ok(());
        }
        if self.has(&grant.path) {
            return Ok(());
        }
        let unseen = |e: std::io::Error| refuse(format!("{}: {e}", grant.path.display()));
        for entry in std::fs::read_dir(&grant.path).map_err(unseen)? {
            let entry = entry.map_err(unseen)?;
            if kept.len() == MOST_BESIDE {
                let what = grant.path.display();
                return Err(refuse(format!(
                    "{}: {what} contains the state directory and more than can be hidden",
                    grant.rule
                )));
            }
            // A rule from above does not reach into a private /tmp.
            if !grant.covers(&entry.path()) {
                continue;
            }
            let kind = entry.file_type().map_err(unseen)?;
            let kind = match () {
                () if kind.is_dir() => HostFileType::Dir,
                () if kind.is_file() => HostFileType::File,
                // Links lead to paths with rules of their own; sockets and devices are not granted by way of a directory.
                () => continue,
            };
            self.split(Grant { path: entry.path(), kind, ..grant.clone() }, kept)?;
        }
        Ok(())
    }
}

fn refuse(message: String) -> Fault {
    let fault = Fault::new(ErrorKind::PolicyDenied, message).phase(Phase::Planning);
    fault.hint("guests never see the state directory; keep it apart, or set COFFERDAM_STATE to another directory")
}
