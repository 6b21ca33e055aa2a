//! Verbs of the daemon, with their flags: serve, token.

use super::operations::config_args;
use super::{flag, path};
use clap::{Arg, ArgAction, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["serve", "token"];

pub fn commands() -> Vec<Command> {
    vec![serve(), token()]
}

fn value(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

fn serve() -> Command {
    Command::new("serve")
        .about("Run the daemon: serve sandboxes over HTTP on a private socket")
        .long_about(
            "Run the daemon: serve sandboxes over HTTP on a socket that only you can open.\n\n\
             With --listen it also serves TCP, where every request needs a token. The first\n\
             operator token is written to operator.token in the state directory.\n\n\
             SIGTERM or SIGINT ends the daemon in order: it accepts no new connection,\n\
             requests may finish within --grace, streams are told, and clients that wait for\n\
             a run get an answer at once. Runs continue without a daemon. A second signal\n\
             ends it at once.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam serve\n  \
               cofferdam serve --listen 127.0.0.1:8700\n  \
               cofferdam serve --check --listen 127.0.0.1:8700",
        )
        .next_line_help(true)
        .args(config_args())
        .arg(flag("check").help("Show what would be done and whether it can be, without doing it"))
        .arg(flag("json").help("Print JSON: the plan with --check, else one line when the daemon answers"))
}

fn token() -> Command {
    let json = || flag("json").help("Print JSON");
    Command::new("token")
        .about("Create, list and revoke tokens for the daemon")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("create")
                .about("Create a token and print it; it is not shown again")
                .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the owner, for the journal"))
                .arg(
                    value("scope", "SCOPE")
                        .required(true)
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .value_parser(["agent", "reviewer", "operator", "metrics"])
                        .hide_possible_values(true)
                        .help("agent: run, read and write; reviewer: diff, approve, reject;\noperator: everything; metrics: /metrics"),
                )
                .arg(
                    value("tenant", "NAME")
                        .default_value("default")
                        .help("Tenant of the token; created if missing"),
                )
                .arg(
                    path("dir")
                        .value_name("DIR")
                        .action(ArgAction::Append)
                        .help("Directory that its sandboxes may cover, with all below"),
                )
                .arg(
                    value("policy", "NAME")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("Presets that its sandboxes may use [default: those without\na network]"),
                )
                .arg(
                    value("sandbox", "SANDBOX")
                        .action(ArgAction::Append)
                        .value_delimiter(',')
                        .help("Sandbox that it may use besides its own, by id or name;\nan agent sees no others"),
                )
                .args([("limit-default", "Default limits of its sandboxes, e.g.\nmemory=2g,processes=512,cpus=2"),
                    ("limit-ceiling", "Highest limits of its sandboxes, in the same form")].map(
                    |(name, help)| {
                        let limits = value(name, "NAME=AMOUNT");
                        limits.action(ArgAction::Append).value_delimiter(',').help(help)
                    },
                ))
                .arg(value("ttl", "TIME").help("Time until it expires, e.g. 7d [default: until it is revoked]"))
                .arg(json()),
        )
        .subcommand(Command::new("ls").about("List tokens, without their secrets").arg(json()))
        .subcommand(
            Command::new("rm")
                .about("Revoke tokens and close their connections at once")
                .arg(Arg::new("token").value_name("TOKEN").required(true).num_args(1..).help("Token ids: tok_…"))
                .arg(json()),
        )
}
