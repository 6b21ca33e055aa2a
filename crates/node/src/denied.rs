//! What a sandbox's own policy keeps away from its guest, for those who come to its files by another way than the guest does. Inside, a
//! denied name can be made where it is not there yet, because no wall of the kernel's keeps one name from being made in a directory;
//! it never lands, and whoever acts for the guest from outside does not make it.

use crate::Caller;
use crate::policies;
use crate::sandbox::Sandbox;
use enclosure::LocalHost;
use policy::{Action, Format, Perm, Perms, Resolved};
use serde_json::Value;
use std::path::{Path, PathBuf};
use store::Kept;
use terms::{ErrorKind, Fault, Phase};
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
        Denied::by(&sandbox.id, policy, base, caller)
    }

    fn by(id: &str, policy: &Value, base: &Path, caller: &Caller) -> Result<Option<Denied>, Fault> {
        let matters = |rule: &Value| rule["action"] == "deny" || rule["action"] == "ask";
        if !policy["fs"]["rules"].as_array().is_some_and(|rules| rules.iter().any(matters)) {
            return Ok(None);
        }
        let document = policy::parse(&policy.to_string(), Format::Json, id)?;
        let mut policy = policy::effective(&[document])?;
        let around = policies::surroundings(&mut policy, caller, base, None);
        Ok(Some(Denied { rules: policy::resolve(&policy, &around.context)?, base: base.to_path_buf() }))
    }

    /// With the places of the base that the rules lead to by links. Links of a guest lead nowhere that matters: what it could replace is
    /// covered by none.
    fn followed(self) -> Result<Denied, Fault> {
        let rules = self.rules.follow(&LocalHost::default()).map_err(Fault::from)?;
        Ok(Denied { rules, ..self })
    }

    /// The rule of these actions about some of these permissions at a path. What nothing is said about is the workspace's.
    fn rule(&self, at: &Rel, perms: Perms, actions: &[Action]) -> Option<String> {
        let at = self.base.join(at.as_path());
        let perms = Perm::ALL.into_iter().filter(|perm| perms.contains(*perm));
        let mut matches = perms.flat_map(|perm| self.rules.fs(&at, perm).matches);
        matches.find(|found| actions.contains(&found.action)).map(|found| found.rule)
    }

    /// The rule by which the caller may not see what is there. What somebody is asked about is seen by those who answer.
    fn unread(&self, at: &Rel, caller: &Caller) -> Option<String> {
        let actions: &[Action] = if caller.reach.answers() { &[Action::Deny] } else { &[Action::Deny, Action::Ask] };
        self.rule(at, Perms::of(&[Perm::ReadFile]), actions)
    }

    /// The rule by which a change there is denied, or waits for somebody's answer.
    pub fn holds_up(&self, at: &Rel) -> Option<String> {
        self.rule(at, Perms::CHANGES, &[Action::Deny, Action::Ask])
    }
}

/// Whether the caller may carry away what is at a path of a workspace with this policy: who may answer may.
pub(crate) fn may_export<'a>(
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
            let fault =
                Fault::new(ErrorKind::PolicyDenied, format!("{at}: {rule} does not let it be read")).subject(id);
            Err(fault
                .phase(Phase::Admission)
                .hint("reject the change there first, or have it exported by who may answer"))
        }
    })
}

/// Marks the changes at paths that a rule denies, with the name of the rule. What stands at a path that the guest may not read is not
/// shown either: it can be the base's. The digest stays what it was.
pub(crate) fn mark(sandbox: &Kept<Sandbox>, caller: &Caller, diff: &mut Diff) -> Result<(), Fault> {
    let Some(denied) = Denied::of(sandbox, caller)?.map(Denied::followed).transpose()? else { return Ok(()) };
    for file in &mut diff.files {
        let change = &mut file.change;
        let paths = || [Some(&change.path), change.kind.from()].into_iter().flatten();
        let unread = paths().find_map(|at| denied.unread(at, caller));
        let unchanged = paths().find_map(|at| denied.rule(at, Perms::CHANGES, &[Action::Deny]));
        if unread.is_some() {
            (change.before, change.after, file.body) = (None, None, Body::None);
        }
        if let Some(rule) = unchanged.or(unread) {
            change.class = Class::Never { why: format!("{rule} denies it") };
        }
    }
    Ok(())
}
