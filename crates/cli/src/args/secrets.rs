//! `cofferdam secret`, with its flags.

use super::{flag, path};
use clap::{Arg, Command};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["secret"];

pub fn commands() -> Vec<Command> {
    vec![secret()]
}

fn secret() -> Command {
    let name = || Arg::new("name").value_name("NAME").required(true).help("Its name, as policies have it");
    let json = || flag("json").help("Print JSON");
    Command::new("secret")
        .about("Keep secrets for the runs whose policy names them")
        .long_about(
            "Keep secrets for the runs whose policy names them. A value is kept in a file of the state directory that only its owner \
             can open. It is never shown, and no guest ever has it: the network broker puts it into requests to the host that the \
             policy names.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("set")
                .about("Keep a value, in place of the one before; it is read from standard input")
                .arg(name())
                .arg(path("file").value_name("FILE").help("Read the value from FILE instead"))
                .arg(json()),
        )
        .subcommand(Command::new("ls").about("List names; values are never shown").arg(json()))
        .subcommand(Command::new("rm").about("Forget a secret").arg(name()).arg(json()))
}
