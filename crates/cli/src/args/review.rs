//! The verbs that `review.rs` carries out, with their flags: diff, approve, reject, undo, rebase, conflicts, provenance.

use clap::Command;

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &[];

pub fn commands() -> Vec<Command> {
    Vec::new()
}
