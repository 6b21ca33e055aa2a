//! The verb `agents`, with its flags.

use super::flag;
use clap::{Arg, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["agents"];

pub fn commands() -> Vec<Command> {
    vec![
        Command::new("agents")
            .about("List coding agents that have a preset, with what it grants")
            .long_about(
                "List coding agents that have a preset, with what it grants.\n\n\
                 `cofferdam run -- AGENT` applies the preset of that name. It allows the hosts of\n\
                 the agent's models, adds the keys that are set to requests to them, and brings\n\
                 copies of the agent's settings.",
            )
            .arg(flag("json").help("Print JSON"))
            .args_conflicts_with_subcommands(true)
            .subcommand(
                Command::new("show")
                    .about("Print the preset of an agent")
                    .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the agent"))
                    .arg(flag("toml").help("Print TOML")),
            ),
    ]
}
