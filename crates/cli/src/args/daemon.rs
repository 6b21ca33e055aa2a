//! The daemon's verbs, with their flags.

use super::operations::config_args;
use clap::Command;

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["serve"];

pub fn commands() -> Vec<Command> {
    vec![serve()]
}

fn serve() -> Command {
    Command::new("serve").about("Serve sandboxes over HTTP, on a socket that only you can open").args(config_args())
}
