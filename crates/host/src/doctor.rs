//! Diagnosis of this host. Every feature is actually tried, in throw-away children and at last with a whole enclosure;
//! nothing on the host is changed.
//!
//! The document (`--json`) is stable:
//!
//! ```text
//! {"protocol_version": 1,
//!  "level": "full | partial | none",   what a run gets here: all mechanisms; some, with consent; no run at all
//!  "missing": ["…"],                    the missing mechanisms
//!  "degrade": ["…"],                    the names that, under "degrade" in a policy, consent to their absence
//!  "checks": [{"name": "namespace.user", "ok": true, "required": true, "detail": "…", "needed_for": "…", "fix": null}],
//!  "limits": [{"name": "memory_mb", "ok": true, "detail": "…", "needed_for": "…", "fix": null}]}
//! ```
//!
//! Level and limits are separate on purpose. The mechanisms of the level decide what a guest can reach, and they never
//! depend on control groups; a limit that cannot be enforced is refused by name before a run starts, so its absence
//! weakens nothing silently. An ordinary user without delegated groups therefore has full enforcement, and a shorter
//! list of limits.

mod blocker;
mod kernel;
mod limits;
mod surroundings;
mod trial;

use blocker::HostFacts;
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use terms::PROTOCOL_VERSION;

#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    pub protocol_version: u32,
    pub level: Level,
    pub missing: Vec<String>,
    pub degrade: Vec<String>,
    pub checks: Vec<Check>,
    pub limits: Vec<Check>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Full,
    Partial,
    None,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Full => "full",
            Level::Partial => "partial",
            Level::None => "none",
        }
    }
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Stable dotted name: the kind, then the feature.
    pub name: &'static str,
    pub ok: bool,
    /// Full enforcement needs this feature.
    pub required: bool,
    pub detail: String,
    pub needed_for: &'static str,
    /// The smallest change that would help, if there is one.
    pub fix: Option<String>,
}

impl Check {
    pub fn new(name: &'static str, needed_for: &'static str, ok: bool, detail: impl Into<String>) -> Check {
        Check { name, ok, required: true, detail: detail.into(), needed_for, fix: None }
    }

    /// Marks the check as optional, or informational.
    pub fn optional(mut self) -> Check {
        self.required = false;
        self
    }

    /// Sets the fix, if the check failed.
    pub fn fix(mut self, fix: impl Into<String>) -> Check {
        if !self.ok {
            self.fix = Some(fix.into());
        }
        self
    }
}

/// The caller's environment variables.
pub type Env = [(OsString, OsString)];

/// Returns true if the broker can open sockets in a guest's network namespace on this host.
pub fn has_doors(env: &Env) -> bool {
    kernel::doors(&HostFacts::read(env, Path::new("/proc/self/exe"))).ok
}

/// Examines the host. `exe` is our own binary, which the last check starts; `workspace` is the check that says where
/// changes would go.
pub fn examine(env: &Env, exe: &Path, workspace: Check) -> DoctorReport {
    let facts = HostFacts::read(env, exe);
    let mut checks = vec![kernel::version(&facts)];
    checks.extend(kernel::namespaces(&facts));
    checks.extend(kernel::mounts(&facts));
    checks.extend(kernel::landlock(&facts));
    checks.extend(kernel::seccomp(&facts));
    checks.extend(kernel::calls(&facts));
    checks.push(kernel::doors(&facts));
    checks.extend(surroundings::checks(&facts));
    checks.push(workspace);
    let mut limits = limits::checks();
    let verdict = trial::enclosure(exe);
    trial::limits(exe, &verdict, &mut limits);
    checks.push(verdict.check);
    DoctorReport {
        protocol_version: PROTOCOL_VERSION,
        level: verdict.level,
        missing: verdict.missing,
        degrade: verdict.degrade,
        checks,
        limits,
    }
}
