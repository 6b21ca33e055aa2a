//! The daemon's verbs, with their flags.

use super::operations::config_args;
use super::{flag, path};
use clap::{Arg, ArgAction, Command};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["serve", "token"];

pub fn commands() -> Vec<Command> {
    vec![serve(), token()]
}

fn value(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

fn serve() -> Command {
    Command::new("serve")
        .about("Serve sandboxes over HTTP, on a socket that only you can open")
        .long_about(
            "Serve sandboxes over HTTP, on a socket that only you can open. With --listen also over TCP, where every request \
             needs a token; the first operator's is written to operator.token in the state directory.\n\n\
             SIGTERM or SIGINT ends it in order: no new connection is taken, what goes on may finish within --grace, \
             streams are told, and whoever waits for a run is answered at once: runs go on without a daemon. A second signal ends it at once.",
        )
        .args(config_args())
        .arg(flag("check").help("Say what would be done, and whether it can be, without doing it"))
        .arg(flag("json").help("Print JSON: with --check what would be done, else one line when the daemon answers"))
}

fn token() -> Command {
    let json = || flag("json").help("Print JSON");
    Command::new("token")
        .about("Make, list and revoke tokens for the daemon")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("create")
                .about("Make a token and print it; it is not shown again")
                .arg(Arg::new("name").value_name("NAME").required(true).help("Whose it is, for the journal"))
                .arg(
                    value("scope", "SCOPE")
                        .required(true)
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .value_parser(["agent", "reviewer", "operator", "metrics"])
                        .help("agent: run, read and write; reviewer: diff, approve, reject; operator: everything; metrics: /metrics"),
                )
                .arg(
                    value("tenant", "NAME")
                        .default_value("default")
                        .help("Whose sandboxes it sees; made where there is none"),
                )
                .arg(
                    path("dir")
                        .value_name("DIR")
                        .action(ArgAction::Append)
                        .help("A directory that its sandboxes may cover, with all below"),
                )
                .arg(
                    value("policy", "NAME")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("Built-in policies that its sandboxes may have [default: those without a network]"),
                )
                .arg(
                    value("sandbox", "SANDBOX")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("A sandbox that it may use, by id or name, beside those that it makes; an agent sees no others"),
                )
                .args([("limit-default", "Limits of its sandboxes that name none, e.g. memory=2g,processes=512,cpus=2"),
                    ("limit-ceiling", "The most that its sandboxes may have of a limit, in the same way")].map(
                    |(name, help)| {
                        let limits = value(name, "NAME=AMOUNT");
                        limits.action(ArgAction::Append).value_delimiter(',').help(help)
                    },
                ))
                .arg(value("ttl", "TIME").help("Good for so long, e.g. 7d [default: until it is revoked]"))
                .arg(json()),
        )
        .subcommand(Command::new("ls").about("List tokens, without their secrets").arg(json()))
        .subcommand(
            Command::new("rm")
                .about("Revoke tokens; what was opened with them closes at once")
                .arg(Arg::new("token").value_name("TOKEN").required(true).num_args(1..).help("By id: tok_…"))
                .arg(json()),
        )
}
