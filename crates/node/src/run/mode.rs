//! What the way of running means for the rules: in a workspace everything that can be read can be changed; read-only only what
//! flags name, and directly what the policy lets be changed.

use super::Ask;
use super::layer::{self, Held};
use super::place::{Fresh, Place, Spot};
use super::record::Tracked;
use super::view::View;
use crate::lifecycle::meta::Meta;
use crate::sandbox::Sandbox;
use crate::{Caller, fresh};
use enclosure::Workspace;
use policy::{Action, AskedPlace, Grant, Perm, Perms, Plan, Policy, Resolved};
use std::ffi::OsString;
use std::path::Path;
use terms::{ErrorKind, Fault, Limits, Phase, RunId};

/// The name under which this rule appears in denials and in `--explain`.
const WORKSPACE: &str = "workspace";

/// The rules and the plan as the mode makes them, and whether there is a workspace for changes to go to.
pub(super) fn settle(resolved: Resolved, ask: &Ask, spot: &Spot, view: &View) -> Result<(Resolved, Plan, bool), Fault> {
    let dir = spot.dir.as_path();
    let plan = |resolved: &Resolved| resolved.plan(view).map_err(Fault::from);
    let readable = check_readable(&resolved, dir);
    if spot.layered && readable.is_ok() {
        let resolved = resolved.with_fs(Action::Allow, dir, Perms::WRITE, WORKSPACE).ok_or_else(|| unspeakable(dir))?;
        let plan = plan(&resolved)?;
        // A policy may keep all of it as it is; then there is nothing to take changes.
        let layered = changing(&plan, dir).next().is_some() || asked_changes(&plan, dir).is_some();
        return Ok((resolved, plan, layered));
    }
    if spot.layered && is_named(&ask.place) {
        readable?;
    }
    let first = plan(&resolved)?;
    let asked = asked_changes(&first, dir);
    let contradiction = changing(&first, dir).find_map(|grant| contradicts(&resolved, grant)).or(asked.map(only_read));
    let changed = changing(&first, dir).next().map(|grant| (&grant.rule, &grant.path));
    let in_parts =
        changed.or(asked.map(|place| (&place.rule, &place.path))).map(|(rule, path)| in_parts(dir, rule, path));
    match (&ask.place, contradiction) {
        (Place::ReadOnly, Some(fault)) => Err(fault),
        (Place::Direct, _) if in_parts.is_none() => {
            let message = format!("--direct: the policy lets nothing be changed in {}", dir.display());
            let hint =
                "allow it with --write or `-p workspace-write`; or leave --direct out, and changes go to a workspace";
            // A flag that contradicts the policy, as --read-only can: no command was refused.
            Err(Fault::invalid(message).hint(hint).phase(Phase::Planning))
        }
        // It cannot be shown as a whole, and what is shown in parts would be changed on the host.
        (Place::Fresh(_) | Place::Sandbox(_), _) if spot.layered => in_parts.map_or(Ok((resolved, first, false)), Err),
        _ => Ok((resolved, first, false)),
    }
}

/// Whether there is something to work on, for who names a directory.
pub(crate) fn check_readable(resolved: &Resolved, dir: &Path) -> Result<(), Fault> {
    if [Perm::ReadDir, Perm::ReadFile].into_iter().all(|perm| resolved.fs(dir, perm).allowed()) {
        return Ok(());
    }
    let message = format!("{}: the policy does not let it be read, so there is nothing to work on", dir.display());
    let hint =
        "name a policy beside it that does, e.g. `default`; or allow it with --read, or name a directory below it";
    Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Planning))
}

/// Whether nothing lets the directory be changed, for who wants it unchanged.
pub(crate) fn check_read_only(resolved: &Resolved, plan: &Plan, dir: &Path) -> Result<(), Fault> {
    let asked = asked_changes(plan, dir).map(only_read);
    changing(plan, dir).find_map(|grant| contradicts(resolved, grant)).or(asked).map_or(Ok(()), Err)
}

fn in_parts(dir: &Path, rule: &str, path: &Path) -> Fault {
    let (dir, path) = (dir.display(), path.display());
    let message =
        format!("{rule} lets {path} be changed, but not all of {dir} be read: no workspace can hold the changes");
    let hint =
        "allow the directory with `--read .`, and changes go to a workspace; or let them reach the host with --direct";
    Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Planning)
}

fn is_named(place: &Place) -> bool {
    matches!(place, Place::Sandbox(_) | Place::Fresh(Fresh { dir: Some(_), .. }))
}

/// The fault where a policy lets something be changed. What a flag names was asked for as plainly as the mode.
fn contradicts(resolved: &Resolved, grant: &Grant) -> Option<Fault> {
    let changes = Perm::ALL.into_iter().filter(|perm| grant.perms.and(Perms::CHANGES).contains(*perm));
    let mut rules = changes.flat_map(|perm| resolved.fs(&grant.path, perm).matches);
    let rule = rules.find(|m| m.action != Action::Deny && !m.rule.starts_with("--"))?.rule;
    let message = format!("--read-only: {rule} lets {} be changed", grant.path.display());
    let hint = "leave --read-only out, and changes go to a workspace; or change the directory itself with --direct";
    Some(Fault::invalid(message).hint(hint).phase(Phase::Planning))
}

fn only_read(place: &AskedPlace) -> Fault {
    let (rule, path) = (&place.rule, place.path.display());
    let message = format!("--read-only: {rule} lets {path} be changed once somebody was asked");
    Fault::invalid(message).hint("leave --read-only out, and changes go to a workspace").phase(Phase::Planning)
}

fn unspeakable(dir: &Path) -> Fault {
    let why = if dir.to_str().is_some() { "holds a control character" } else { "is no UTF-8" };
    let message = format!("{}: its name {why}, and no rule can be about it", dir.display());
    Fault::invalid(message).hint("rename it, or run with --read-only").phase(Phase::Planning)
}

/// The grants that let something at or below a directory be changed.
fn changing<'a>(plan: &'a Plan, dir: &'a Path) -> impl Iterator<Item = &'a Grant> {
    let covering = plan.grants.iter().rev().find(|g| g.covers(dir));
    let below = plan.grants.iter().filter(move |g| g.path.starts_with(dir) && g.path != dir);
    covering.into_iter().chain(below).filter(|g| !g.perms.and(Perms::CHANGES).is_empty())
}

/// A place in a directory that may be changed once somebody was asked.
fn asked_changes<'a>(plan: &'a Plan, dir: &Path) -> Option<&'a AskedPlace> {
    plan.asked.iter().find(|place| place.changes && place.path.starts_with(dir))
}

pub(super) fn no_namespaces() -> Fault {
    let message = "a workspace needs namespaces, and this host allows none";
    let hint =
        "run with --read-only, or with --direct where the policy allows it (`cofferdam doctor` says what is missing)";
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Planning)
}

/// The workspace of this run, which says of itself what it is for.
pub(super) fn track(
    ask: &Ask,
    caller: &Caller,
    held: Option<Held>,
    spot: &Spot,
    (run_id, effective, argv): (&RunId, &Policy, &[OsString]),
    limits: Limits,
) -> Result<Tracked, Fault> {
    let (held, new) = match (held, &ask.place) {
        (Some(held), _) => (held, false),
        (None, Place::Fresh(options)) => (layer::make(&spot.dir, options, caller)?, true),
        (None, _) => return Err(Fault::internal("a workspace that nobody asked for")),
    };
    let base = rustix::fs::fstat(&held.stack.base).map_err(|e| Fault::internal(e.to_string()))?;
    let policy = serde_json::from_str(&effective.to_json()).map_err(|e| Fault::internal(e.to_string()))?;
    let record = Sandbox {
        driver: held.stack.driver,
        since: held.stack.since,
        git_head: new.then(|| workspace::git::head(&held.at)).flatten(),
        limits,
        cpus: ask.cpus,
        ..Sandbox::new(held.at.clone(), (base.st_dev, base.st_ino), policy, fresh::now_ms())
    };
    let command: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if new {
        held.describe(&Meta::of_run(&record, run_id.as_str(), &command))?;
    }
    Ok(Tracked::new(held, record, run_id.as_str().to_owned(), command, caller))
}

impl Held {
    /// The host as its guest will see it.
    pub(super) fn view(&self) -> Result<View, Fault> {
        let copied = self.stack.try_clone().map_err(|e| Fault::internal(e.to_string()))?;
        Ok(View::over(self.at.clone(), copied))
    }

    pub(super) fn workspace(&self, view: &View) -> Workspace {
        let view = view.clone();
        Workspace { at: self.at.clone(), over: self.over(), open: Box::new(move |path| view.open(path)) }
    }
}
