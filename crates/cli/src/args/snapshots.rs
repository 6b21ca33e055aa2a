//! The verbs that `snapshots.rs` carries out, with their flags: snapshot, fork, restore, template, export, import.

use clap::Command;

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &[];

pub fn commands() -> Vec<Command> {
    Vec::new()
}
