//! The verb `secret`, with its flags.

use super::{flag, path};
use clap::{Arg, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["secret"];

pub fn commands() -> Vec<Command> {
    vec![secret()]
}

fn secret() -> Command {
    let name = || Arg::new("name").value_name("NAME").required(true).help("Name of the secret, as in policies");
    let json = || flag("json").help("Print JSON");
    Command::new("secret")
        .about("Store secrets for runs whose policy names them")
        .long_about(
            "Store secrets for runs whose policy names them.\n\n\
             A value is stored in a file of the state directory that only its owner can open.\n\
             It is never shown, and no guest ever has it: the network broker adds it to\n\
             requests to the host that the policy names.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("set")
                .about("Store a value from standard input, replacing the old one")
                .arg(name())
                .arg(path("file").value_name("FILE").help("Read the value from FILE instead"))
                .arg(json()),
        )
        .subcommand(Command::new("ls").about("List names; values are never shown").arg(json()))
        .subcommand(Command::new("rm").about("Remove a secret").arg(name()).arg(json()))
}
