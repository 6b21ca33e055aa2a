//! Where runs are made in a machine: root in a service beside others, and an ordinary user in a scope that systemd delegated.

use crate::machine::{Answer, Machine};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Root,
    /// With `systemd-run --user --scope -p Delegate=yes`.
    Ann,
    /// With nothing.
    Plain,
}

/// All limits must hold for both.
pub const BOTH: [As; 2] = [As::Root, As::Ann];

impl As {
    /// What stands before a command of theirs.
    pub fn word(self) -> &'static str {
        match self {
            As::Root => "",
            As::Ann => "in_scope",
            As::Plain => "as_ann",
        }
    }
}

/// A name that nobody else has.
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The beginning of a script: a fresh directory of theirs to work in.
pub fn fresh(who: As) -> String {
    let at = format!("/srv/place-{}", unique());
    let own = if who == As::Root { "" } else { "chown 1500:1500 . &&" };
    format!("mkdir {at} && cd {at} && {own} :\n")
}

/// `cofferdam run` of a script of sh. The answer holds the outcome.
pub fn run(machine: &Machine, who: As, flags: &str, script: &str) -> Answer {
    let quoted = script.replace('\'', "'\\''");
    machine.ask(&format!("{}{} cofferdam run --json --no-stdin {flags} -- sh -c '{quoted}'", fresh(who), who.word()))
}

pub fn outcome(answer: &Answer, who: As, what: &str) -> Value {
    serde_json::from_str(&answer.out).unwrap_or_else(|e| panic!("{who:?}, {what}: {e}: {answer:?}"))
}
