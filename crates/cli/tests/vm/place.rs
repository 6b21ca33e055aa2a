//! Callers in a machine: root in a service beside others, and an ordinary user in a scope that systemd delegated.

use crate::machine::{Machine, ScriptResult};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Root,
    /// User in a scope of `systemd-run --user --scope -p Delegate=yes`.
    Ann,
    /// User without a scope.
    Plain,
}

/// Callers for whom every limit must hold.
pub const BOTH: [As; 2] = [As::Root, As::Ann];

impl As {
    /// Prefix of the caller's commands.
    pub fn word(self) -> &'static str {
        match self {
            As::Root => "",
            As::Ann => "in_scope",
            As::Plain => "as_ann",
        }
    }
}

/// A unique number.
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Start of a script: creates a directory owned by the caller and enters it.
pub fn fresh(who: As) -> String {
    let at = format!("/srv/place-{}", unique());
    let own = if who == As::Root { "" } else { "chown 1500:1500 . &&" };
    format!("mkdir {at} && cd {at} && {own} :\n")
}

/// Runs a shell script by `cofferdam run`; the answer holds the outcome.
pub fn run(machine: &Machine, who: As, flags: &str, script: &str) -> ScriptResult {
    let quoted = script.replace('\'', "'\\''");
    machine.bash(&format!("{}{} cofferdam run --json --no-stdin {flags} -- sh -c '{quoted}'", fresh(who), who.word()))
}

pub fn outcome(answer: &ScriptResult, who: As, what: &str) -> Value {
    serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{who:?}, {what}: {e}: {answer:?}"))
}
