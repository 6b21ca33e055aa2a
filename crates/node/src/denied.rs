//! What a sandbox's own policy keeps away from its guest, for those who come to its files by another way than the guest does. Inside, a
//! denied name can be made where it is not there yet, because no wall of the kernel's keeps one name from being made in a directory;
//! it never lands, and whoever acts for the guest from outside does not make it.

use crate::Caller;
use crate::policies;
use crate::sandbox::Sandbox;
use policy::{Action, Format, Perm, Perms, Resolved};
use std::path::PathBuf;
use store::Kept;
use terms::Fault;
use workspace::{Body, Class, Diff, Rel};

/// The rules of one sandbox that deny, or ask somebody.
#[derive(Debug)]
pub(crate) struct Denied {
    rules: Resolved,
    base: PathBuf,
}

impl Denied {
    /// None where no rule denies anything or asks about it.
    pub fn of(sandbox: &Kept<Sandbox>, caller: &Caller) -> Result<Option<Denied>, Fault> {
        let Sandbox { policy, base, .. } = &sandbox.record;
        let matters = |rule: &serde_json::Value| rule["action"] == "deny" || rule["action"] == "ask";
        if !policy["fs"]["rules"].as_array().is_some_and(|rules| rules.iter().any(matters)) {
            return Ok(None);
        }
        let document = policy::parse(&policy.to_string(), Format::Json, &sandbox.id)?;
        let mut policy = policy::effective(&[document])?;
        let around = policies::surroundings(&mut policy, caller, base, None);
        Ok(Some(Denied { rules: policy::resolve(&policy, &around.context)?, base: base.clone() }))
    }

    /// The rule of these actions about some of these permissions at a path. What nothing is said about is the workspace's.
    fn rule(&self, at: &Rel, perms: Perms, actions: &[Action]) -> Option<String> {
        let at = self.base.join(at.as_path());
        let perms = Perm::ALL.into_iter().filter(|perm| perms.contains(*perm));
        let mut matches = perms.flat_map(|perm| self.rules.fs(&at, perm).matches);
        matches.find(|found| actions.contains(&found.action)).map(|found| found.rule)
    }

    /// The rule by which a change there is denied, or waits for somebody's answer.
    pub fn holds_up(&self, at: &Rel) -> Option<String> {
        self.rule(at, Perms::CHANGES, &[Action::Deny, Action::Ask])
    }
}

/// Marks the changes at paths that a rule denies, with the name of the rule. What stands at a path that the guest may not read is not
/// shown either: it can be the base's. The digest stays what it was.
pub(crate) fn mark(sandbox: &Kept<Sandbox>, caller: &Caller, diff: &mut Diff) -> Result<(), Fault> {
    let Some(denied) = Denied::of(sandbox, caller)? else { return Ok(()) };
    for file in &mut diff.files {
        let change = &mut file.change;
        let find = |perms| {
            let paths = [Some(&change.path), change.kind.from()];
            paths.into_iter().flatten().find_map(|at| denied.rule(at, perms, &[Action::Deny]))
        };
        let (unread, unchanged) = (find(Perms::of(&[Perm::ReadFile])), find(Perms::CHANGES));
        if unread.is_some() {
            (change.before, change.after, file.body) = (None, None, Body::None);
        }
        if let Some(rule) = unchanged.or(unread) {
            change.class = Class::Never { why: format!("{rule} denies it") };
        }
    }
    Ok(())
}
