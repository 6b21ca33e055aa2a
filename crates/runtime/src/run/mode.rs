//! The rules of a run by its mode: in a workspace every readable file can be changed; with --read-only only paths that flags name, and with
//! --direct whatever the policy lets be changed.

use super::RunRequest;
use super::layer::{self, LockedWorkspace};
use super::place::{ChangeDestination, CommandLocation, NewWorkspace};
use super::record::Tracked;
use super::view::View;
use enclosure::Workspace;
use policy::{Action, AskedPlace, Grant, Perm, Perms, Plan, Policy, Resolved};
use state::Caller;
use state::layer_meta::Meta;
use state::sandbox::Sandbox;
use std::ffi::OsString;
use std::path::Path;
use terms::{ErrorKind, Fault, Limits, Phase, RunId};

/// Rule name in denials and in `--explain`.
const WORKSPACE: &str = "workspace";

/// Settles rules and plan for the mode; returns whether a workspace takes changes as well.
pub(super) fn settle(
    resolved: Resolved,
    request: &RunRequest,
    spot: &CommandLocation,
    view: &View,
) -> Result<(Resolved, Plan, bool), Fault> {
    let dir = spot.dir.as_path();
    let plan = |resolved: &Resolved| resolved.plan(view).map_err(Fault::from);
    let readable = check_readable(&resolved, dir);
    if spot.layered && readable.is_ok() {
        let resolved = resolved.with_fs(Action::Allow, dir, Perms::WRITE, WORKSPACE).ok_or_else(|| unspeakable(dir))?;
        let plan = plan(&resolved)?;
        // A policy may make all of it read-only; then no workspace is needed.
        // A directory with another path inside can be shown as a workspace only.
        let is_moved = spot.home.is_some();
        let layered = is_moved || changing(&plan, dir).next().is_some() || asked_changes(&plan, dir).is_some();
        return Ok((resolved, plan, layered));
    }
    if spot.layered && is_named(&request.place) {
        readable?;
    }
    let first = plan(&resolved)?;
    let asked = asked_changes(&first, dir);
    let contradiction = changing(&first, dir).find_map(|grant| contradicts(&resolved, grant)).or(asked.map(only_read));
    let changed = changing(&first, dir).next().map(|grant| (&grant.rule, &grant.path));
    let in_parts =
        changed.or(asked.map(|place| (&place.rule, &place.path))).map(|(rule, path)| in_parts(dir, rule, path));
    match (&request.place, contradiction) {
        (ChangeDestination::ReadOnly, Some(fault)) => Err(fault),
        (ChangeDestination::Direct, _) if in_parts.is_none() => {
            let message = format!("--direct: the policy allows no changes in {}", dir.display());
            let hint =
                "allow it with --write or `-p workspace-write`; or leave --direct out, and changes go to a workspace";
            // A contradiction between flag and policy, as with --read-only; no command was refused.
            Err(Fault::invalid(message).hint(hint).phase(Phase::Planning))
        }
        // The directory cannot be shown as a whole, and parts of it would be changed on the host.
        (ChangeDestination::Fresh(_) | ChangeDestination::Sandbox(_), _) if spot.layered => {
            in_parts.map_or(Ok((resolved, first, false)), Err)
        }
        _ => Ok((resolved, first, false)),
    }
}

/// Checks that a named directory is readable, so that there is something to work on.
pub fn check_readable(resolved: &Resolved, dir: &Path) -> Result<(), Fault> {
    if [Perm::ReadDir, Perm::ReadFile].into_iter().all(|perm| resolved.fs(dir, perm).allowed()) {
        return Ok(());
    }
    let message = format!("{}: the policy does not allow reading it, so no command can work on it", dir.display());
    let hint = "add a policy that does, e.g. `default`; or allow it with --read, or name a directory below it";
    Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Planning))
}

/// Checks that no rule lets the directory be changed.
pub fn check_read_only(resolved: &Resolved, plan: &Plan, dir: &Path) -> Result<(), Fault> {
    let asked = asked_changes(plan, dir).map(only_read);
    changing(plan, dir).find_map(|grant| contradicts(resolved, grant)).or(asked).map_or(Ok(()), Err)
}

fn in_parts(dir: &Path, rule: &str, path: &Path) -> Fault {
    let (dir, path) = (dir.display(), path.display());
    let message = format!(
        "{rule} allows changes to {path}, but {dir} may not be read as a whole: no workspace can hold the changes"
    );
    let hint =
        "allow the directory with `--read .`, and changes go to a workspace; or let them reach the host with --direct";
    Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Planning)
}

fn is_named(place: &ChangeDestination) -> bool {
    matches!(place, ChangeDestination::Sandbox(_) | ChangeDestination::Fresh(NewWorkspace { dir: Some(_), .. }))
}

/// Builds the fault where a policy lets a path be changed. A path that a flag names is as explicit as the mode, and passes.
fn contradicts(resolved: &Resolved, grant: &Grant) -> Option<Fault> {
    let changes = Perm::ALL.into_iter().filter(|perm| grant.perms.and(Perms::CHANGES).contains(*perm));
    let mut rules = changes.flat_map(|perm| resolved.fs(&grant.path, perm).matches);
    let rule = rules.find(|m| m.action != Action::Deny && !m.rule.starts_with("--"))?.rule;
    let message = format!("--read-only: {rule} allows changes to {}", grant.path.display());
    let hint = "leave --read-only out, and changes go to a workspace; or change the directory itself with --direct";
    Some(Fault::invalid(message).hint(hint).phase(Phase::Planning))
}

fn only_read(place: &AskedPlace) -> Fault {
    let (rule, path) = (&place.rule, place.path.display());
    let message = format!("--read-only: {rule} asks about changes to {path}");
    Fault::invalid(message).hint("leave --read-only out, and changes go to a workspace").phase(Phase::Planning)
}

fn unspeakable(dir: &Path) -> Fault {
    let why = if dir.to_str().is_some() { "contains a control character" } else { "is not UTF-8" };
    let message = format!("{}: its name {why}, and no rule can name it", dir.display());
    Fault::invalid(message).hint("rename it, or run with --read-only").phase(Phase::Planning)
}

/// Returns the grants that let a path at or below a directory be changed.
fn changing<'a>(plan: &'a Plan, dir: &'a Path) -> impl Iterator<Item = &'a Grant> {
    let covering = plan.grants.iter().rev().find(|g| g.covers(dir));
    let below = plan.grants.iter().filter(move |g| g.path.starts_with(dir) && g.path != dir);
    covering.into_iter().chain(below).filter(|g| !g.perms.and(Perms::CHANGES).is_empty())
}

/// Returns a path below a directory that may be changed after a question.
fn asked_changes<'a>(plan: &'a Plan, dir: &Path) -> Option<&'a AskedPlace> {
    plan.asked.iter().find(|place| place.changes && place.path.starts_with(dir))
}

pub(super) fn no_namespaces() -> Fault {
    let message = "a workspace needs namespaces, and this host allows none";
    let hint = "run with --read-only, or with --direct where the policy allows it (`cofferdam doctor` shows why)";
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Planning)
}

/// Creates the workspace of a run, or takes the sandbox's, and writes the metadata of a new layer.
pub(super) fn track(
    request: &RunRequest,
    caller: &Caller,
    held: Option<LockedWorkspace>,
    spot: &CommandLocation,
    (run_id, effective, argv): (&RunId, &Policy, &[OsString]),
    limits: Limits,
) -> Result<Tracked, Fault> {
    let (held, new) = match (held, &request.place) {
        (Some(held), _) => (held, false),
        (None, ChangeDestination::Fresh(options)) => (layer::make(&spot.dir, options, caller)?, true),
        (None, _) => return Err(Fault::internal("a workspace was planned without a request")),
    };
    let base = rustix::fs::fstat(&held.stack.base).map_err(|e| Fault::internal(e.to_string()))?;
    let policy = serde_json::from_str(&effective.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let record = Sandbox {
        driver: held.stack.driver,
        since: held.stack.since,
        git_head: new.then(|| workspace::git::head(&held.at)).flatten(),
        limits,
        cpus: request.cpus,
        ..Sandbox::new(held.at.clone(), (base.st_dev, base.st_ino), policy, terms::clock::now_ms())
    };
    let command: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if new {
        held.describe(&Meta::of_run(&record, run_id.as_str(), &command))?;
    }
    Ok(Tracked::new(held, record, run_id.as_str().to_owned(), command, caller))
}

impl LockedWorkspace {
    /// Returns the host as the guest will see it.
    pub(super) fn view(&self) -> Result<View, Fault> {
        let copied = self.stack.try_clone().map_err(|e| Fault::internal(e.to_string()))?;
        Ok(View::over(self.inside().to_path_buf(), copied))
    }

    pub(super) fn workspace(&self, view: &View) -> Workspace {
        let view = view.clone();
        let (at, base) = (self.inside().to_path_buf(), self.at.clone());
        Workspace { at, base, over: self.over(), open: Box::new(move |path| view.open(path)) }
    }
}
