//! Rules of a sandbox's policy that deny or ask, applied to its files from outside the enclosure (export, diff, landing). Inside, a guest
//! can still create a denied name that does not exist yet, because no kernel mechanism keeps one name from being created in a directory;
//! such a file never lands, and verbs that act for the guest from outside do not create it.

use crate::policies;
use api::{ChangeBody, ChangeClass, Diff, Rel};
use enclosure::LocalHost;
use policy::{Action, Format, Perm, Perms, Resolved};
use serde_json::Value;
use state::Caller;
use state::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
use workspace::files::ChangeRules;

/// The file rules of one sandbox, resolved, where at least one denies or asks.
#[derive(Debug)]
pub struct Denied {
    rules: Resolved,
    base: PathBuf,
}

impl Denied {
    /// Resolves the rules of a sandbox; `None` where no file rule denies or asks.
    pub fn of(sandbox: &Kept<Sandbox>, caller: &Caller) -> Result<Option<Denied>, Fault> {
        let Sandbox { policy, base, .. } = &sandbox.record;
        Denied::by(&sandbox.id, policy, base, caller)
    }

    fn by(id: &str, policy: &Value, base: &Path, caller: &Caller) -> Result<Option<Denied>, Fault> {
        let matters = |rule: &Value| rule["action"] == "deny" || rule["action"] == "ask";
        if !policy["fs"]["rules"].as_array().is_some_and(|rules| rules.iter().any(matters)) {
            return Ok(None);
        }
        let document = policy::parse(&policy.to_string(), Format::Json, id)?;
        let mut policy = policy::effective(&[document])?;
        let base = state::directory::path_inside(base);
        let around = policies::surroundings(&mut policy, caller, base, None);
        Ok(Some(Denied { rules: policy::resolve(&policy, &around.context)?, base: base.to_path_buf() }))
    }

    /// Judges paths below another directory of the guest's, as it sees them.
    pub fn below(self, place: &Path) -> Denied {
        Denied { base: place.to_path_buf(), ..self }
    }

    /// Adds the paths of the base that the rules reach through symbolic links. Links that a guest makes do not matter: no rule covers a
    /// path that the guest could replace.
    fn followed(self) -> Result<Denied, Fault> {
        let rules = self.rules.follow(&LocalHost::default()).map_err(Fault::from)?;
        Ok(Denied { rules, ..self })
    }

    /// Returns the first rule with one of these actions on any of these permissions at a path. A path that no rule covers belongs to the
    /// workspace.
    fn rule(&self, at: &Rel, perms: Perms, actions: &[Action]) -> Option<String> {
        let at = self.base.join(at.as_path());
        let perms = Perm::ALL.into_iter().filter(|perm| perms.contains(*perm));
        let mut matches = perms.flat_map(|perm| self.rules.fs(&at, perm).matches);
        matches.find(|found| actions.contains(&found.action)).map(|found| found.rule)
    }

    /// Returns the rule that keeps the caller from reading a path. Paths under an `ask` rule are readable by callers that may answer
    /// questions.
    fn unread(&self, at: &Rel, caller: &Caller) -> Option<String> {
        let actions: &[Action] = if caller.reach.answers() { &[Action::Deny] } else { &[Action::Deny, Action::Ask] };
        self.rule(at, Perms::of(&[Perm::ReadFile]), actions)
    }
}

impl ChangeRules for Denied {
    /// Returns the rule by which a change is denied, or waits for an answer.
    fn denying(&self, path: &Rel) -> Option<String> {
        self.rule(path, Perms::CHANGES, &[Action::Deny, Action::Ask])
    }
}

/// Returns a check of whether the caller may export a path of a workspace with this policy. Callers that may answer questions may export
/// everything.
pub fn may_export<'a>(
    id: &'a str,
    (policy, base): (&Value, &Path),
    caller: &'a Caller,
) -> Result<impl Fn(&Rel) -> Result<(), Fault> + 'a, Fault> {
    let denied = match caller.reach.answers() {
        true => None,
        false => Denied::by(id, policy, base, caller)?.map(Denied::followed).transpose()?,
    };
    Ok(move |at: &Rel| match denied.as_ref().and_then(|denied| denied.unread(at, caller)) {
        None => Ok(()),
        Some(rule) => {
            let fault = Fault::new(ErrorKind::PolicyDenied, format!("{at}: {rule} denies reading it")).subject(id);
            Err(fault
                .phase(Phase::Admission)
                .hint("reject that change first, or export with a credential that may answer questions"))
        }
    })
}

/// Marks the changes at paths that a rule denies, with the name of the rule. Content at a path that the guest may not read is left out,
/// because it can be the base's. The digest does not change.
pub fn mark(sandbox: &Kept<Sandbox>, caller: &Caller, diff: &mut Diff) -> Result<(), Fault> {
    let Some(denied) = Denied::of(sandbox, caller)?.map(Denied::followed).transpose()? else { return Ok(()) };
    for file in &mut diff.files {
        let change = &mut file.change;
        let paths = || [Some(&change.path), change.kind.from()].into_iter().flatten();
        let unread = paths().find_map(|at| denied.unread(at, caller));
        let unchanged = paths().find_map(|at| denied.rule(at, Perms::CHANGES, &[Action::Deny]));
        if unread.is_some() {
            (change.before, change.after, file.body) = (None, None, ChangeBody::None);
        }
        if let Some(rule) = unchanged.or(unread) {
            change.class = ChangeClass::Never { why: format!("{rule} denies it") };
        }
    }
    Ok(())
}
