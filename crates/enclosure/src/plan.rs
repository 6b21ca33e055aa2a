//! The plan of a guest: its specification and the list of setup steps. Planning refuses rules that no mechanism can
//! enforce, and starts nothing.

use crate::groundwork::Groundwork;
use crate::spec::GuestSpec;
use crate::steps::{self, Steps};
use crate::workspace::Workspace;
use policy::{Perms, Plan};
use std::path::PathBuf;
use std::rc::Rc;
use terms::{ErrorKind, Fault, Phase};

/// A planned guest: fully decided, not started.
pub struct GuestPlan {
    pub(crate) spec: Rc<GuestSpec>,
    pub(crate) ground: Groundwork,
    pub(crate) steps: Rc<Steps>,
}

impl GuestPlan {
    /// Refuses rules that no step can enforce, and builds the steps.
    pub fn new(spec: GuestSpec, mut ground: Groundwork) -> Result<GuestPlan, Fault> {
        check_guards(&spec.plan, spec.workspace.as_ref())?;
        check_calls(&spec.deny_calls, spec.resident)?;
        let steps = steps::build(&spec, ground.basis(spec.enforced.driver)?)?;
        Ok(GuestPlan { spec: Rc::new(spec), ground, steps: Rc::new(steps) })
    }

    pub fn spec(&self) -> &GuestSpec {
        &self.spec
    }

    /// Returns the setup steps, one line each.
    pub fn explain(&self) -> Vec<String> {
        self.steps.ops.iter().enumerate().map(|(i, op)| format!("{:>3}  {op}", i + 1)).collect()
    }
}

/// Refuses a denied path that does not exist where the guest could create it: neither mounts nor landlock can keep a
/// single name from being created in a writable directory. A path that is hidden or only write-protected may be created
/// in a workspace, where it is the guest's own: the host's file of that name stays hidden, and the guest's never lands.
fn check_guards(plan: &Plan, workspace: Option<&Workspace>) -> Result<(), Fault> {
    for guard in &plan.guards {
        let harmless = guard.hides || !guard.bars;
        let own = |g: &policy::Grant| harmless && workspace.is_some_and(|w| g.path.starts_with(&w.at));
        let makes = |g: &&policy::Grant| !g.perms.and(Perms::MAKING).is_empty() && !own(g);
        let literal: PathBuf = guard
            .pattern
            .split('/')
            .take_while(|part| !part.contains(['*', '?', '[']))
            .collect::<Vec<_>>()
            .join("/")
            .into();
        let near = |g: &policy::Grant| g.covers(&literal) || g.path.starts_with(&literal);
        if let Some(grant) = plan.grants.iter().filter(makes).find(|g| near(g)) {
            let (rule, pattern) = (&guard.rule, &guard.pattern);
            let at = grant.path.display();
            let message = format!(
                "{rule}: {pattern} does not exist, and {} allows writing {at} on the host: a denial of a missing name cannot be enforced there",
                grant.rule
            );
            let hint = "leave --direct or the write grant out (in a workspace it is hidden, and never lands); or create it first, \
                        deny its whole directory, or grant only the places in it that must be written";
            return Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning));
        }
    }
    Ok(())
}

/// Checks that a denied call exists and that the start and end of a command do not need it.
pub fn check_calls(names: &[String], resident: bool) -> Result<(), Fault> {
    let refuse = |name: &str, why: &str| {
        let message = format!("syscalls.deny names {name:?}, {why}");
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint("leave it out").phase(Phase::Planning))
    };
    for name in names {
        if sys::seccomp::number(name).is_none() {
            return refuse(name, "which is not a system call that a guest could make here");
        }
        if sys::seccomp::INDISPENSABLE.contains(&name.as_str()) {
            return refuse(name, "which every command needs to start");
        }
        if resident && sys::seccomp::INDISPENSABLE_TO_STAY.contains(&name.as_str()) {
            return refuse(name, "which a live sandbox needs to start commands");
        }
    }
    Ok(())
}
