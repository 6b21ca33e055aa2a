//! The verbs that `sandboxes.rs` carries out, with their flags: create, ls, ps, inspect, start, stop, rm, gc, audit.

use clap::Command;

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &[];

pub fn commands() -> Vec<Command> {
    Vec::new()
}
