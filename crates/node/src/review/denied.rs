//! What a sandbox's own policy does not let be written never lands: inside, such a name could be made, because no wall of the
//! kernel's keeps one name from being made in a directory; on the host it stays away.

use crate::Caller;
use crate::policies;
use crate::sandbox::Sandbox;
use policy::{Action, Format, Perm, Perms, Resolved};
use std::path::Path;
use store::Kept;
use terms::Fault;
use workspace::{Class, Diff};

/// Marks the changes at paths that a rule denies, with the name of the rule. The digest stays what it was.
pub fn mark(sandbox: &Kept<Sandbox>, caller: &Caller, diff: &mut Diff) -> Result<(), Fault> {
    let Some(rules) = rules(sandbox, caller)? else { return Ok(()) };
    for file in &mut diff.files {
        let change = &mut file.change;
        let paths = [Some(&change.path), change.kind.from()];
        let deny = paths.into_iter().flatten().find_map(|at| rule(&rules, &sandbox.record.base.join(at.as_path())));
        if let Some(rule) = deny {
            change.class = Class::Never { why: format!("{rule} denies it") };
        }
    }
    Ok(())
}

/// None where no rule denies anything.
fn rules(sandbox: &Kept<Sandbox>, caller: &Caller) -> Result<Option<Resolved>, Fault> {
    let Sandbox { policy, base, .. } = &sandbox.record;
    let denies = |rule: &serde_json::Value| rule["action"] == "deny";
    if !policy["fs"]["rules"].as_array().is_some_and(|rules| rules.iter().any(denies)) {
        return Ok(None);
    }
    let document = policy::parse(&policy.to_string(), Format::Json, &sandbox.id)?;
    let mut policy = policy::effective(&[document])?;
    let around = policies::surroundings(&mut policy, caller, base, None);
    Ok(Some(policy::resolve(&policy, &around.context)?))
}

/// The rule that denies some change at a path. What nothing is said about is the workspace's.
fn rule(rules: &Resolved, at: &Path) -> Option<String> {
    let changes = Perm::ALL.into_iter().filter(|perm| Perms::CHANGES.contains(*perm));
    let mut matches = changes.flat_map(|perm| rules.fs(at, perm).matches);
    matches.find(|found| found.action == Action::Deny).map(|found| found.rule)
}
