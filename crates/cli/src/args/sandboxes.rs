//! Verbs that `sandboxes.rs` carries out, with their flags: from create to rm, and ps, gc and audit.

use super::run::driver;
use super::{copy_in, flag, limit_args, path, policy_args, rule_args};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] =
    &["create", "ls", "ps", "inspect", "start", "stop", "suspend", "resume", "publish", "rm", "gc", "audit"];

pub fn commands() -> Vec<Command> {
    vec![create(), ls(), ps(), inspect(), start(), stop(), suspend(), resume(), publish(), rm(), gc(), audit()]
}

fn create() -> Command {
    Command::new("create")
        .about("Create a sandbox over a directory")
        .long_about(
            "Create a sandbox over a directory.\n\n\
             Commands in the sandbox write to its own layer. Nothing reaches the directory\n\
             until it is approved. The directory tree is neither walked nor copied. Prints\n\
             the id.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam create --name lab\n  \
               cofferdam create --name web --service 'site=python3 -m http.server 8000' docs",
        )
        .arg(
            Arg::new("dir")
                .value_name("DIR")
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::DirPath)
                .help("Directory to cover [default: the current one]"),
        )
        .arg(flag("empty").conflicts_with("dir").help("Cover a new empty directory instead of an existing one"))
        .args(sandbox_args())
        .next_help_heading("Reservations")
        .args(reserve_args())
        .next_help_heading("Policy of its commands")
        .args(policy_args())
        .args(rule_args())
        .arg(copy_in())
        .next_help_heading("Limits of each command")
        .args(limit_args())
}

fn sandbox_args() -> [Arg; 12] {
    let value = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    [
        value("name", "NAME").help("Name of the sandbox"),
        value("template", "NAME").help("Template to create the sandbox from"),
        value("ttl", "TIME").help("Time after which it may be collected, e.g. 7d [default: never]"),
        value("idle", "TIME").help("Time without use after which it may be collected, e.g. 4h"),
        value("idempotency-key", "KEY").help("Return the same sandbox for the same request and key, for one day"),
        driver(),
        value("service", "NAME=COMMAND")
            .action(ArgAction::Append)
            .help("Shell command that runs while the sandbox is live"),
        value("restart", "[NAME=]WHEN")
            .action(ArgAction::Append)
            .requires("service")
            .help("When to restart a service that ended: always, on-failure\nor never [default: on-failure]"),
        value("publish", "HOST:GUEST")
            .action(ArgAction::Append)
            .help("Forward port HOST of the host to port GUEST inside while the\nsandbox is live"),
        flag("report-reads").help("Report denied reads of its commands too; every open then\nwaits for cofferdam"),
        value("ask-timeout", "TIME").help("Time that a question waits for an answer [default: 60s]"),
        json(),
    ]
}

fn reserve_args() -> [Arg; 3] {
    [
        path("reserve")
            .value_name("PATH")
            .action(ArgAction::Append)
            .value_hint(ValueHint::AnyPath)
            .help("Reserve PATH below the directory for this sandbox; `.` is all of it"),
        flag("shared").requires("reserve").help("Share the reservation with others that use --shared too"),
        Arg::new("reserve-until")
            .long("reserve-until")
            .value_name("WHEN")
            .value_parser(["stop", "rm"])
            .hide_possible_values(true)
            .requires("reserve")
            .help("Verb that ends the reservation: stop or rm [default: rm]"),
    ]
}

fn ls() -> Command {
    Command::new("ls")
        .about("List sandboxes, the last used first")
        .arg(flag("all").short('a').help("Include spares of templates and removed sandboxes"))
        .arg(json())
}

fn ps() -> Command {
    Command::new("ps")
        .about("List running commands in sandboxes")
        .arg(Arg::new("sandbox").value_name("ID").help("Only commands of this sandbox, by id, id prefix or name"))
        .arg(flag("all").short('a').help("Include commands that have ended"))
        .arg(json())
}

fn inspect() -> Command {
    Command::new("inspect")
        .about("Show all details of a sandbox")
        .arg(sandbox())
        .arg(json().help("Print JSON (the default)"))
}

fn start() -> Command {
    Command::new("start").about("Start a stopped sandbox, so that commands can run in it").args([
        sandbox(),
        flag("live")
            .help("Keep it live until it is stopped: its services run, and\ncommands start at once, many at a time"),
        if_version(),
        json(),
    ])
}

fn suspend() -> Command {
    Command::new("suspend")
        .about("Freeze a sandbox until it is resumed or used")
        .long_about(
            "Freeze a sandbox until it is resumed or used.\n\n\
             A new command, a connection to a published port, or input, a signal or an attach\n\
             to a command in it resumes the sandbox. Its processes stay in memory, which the\n\
             kernel may reclaim. With --hibernate they are ended in order instead: the\n\
             workspace is kept, and services start again on resume. The output says which\n\
             state was reached.",
        )
        .arg(sandbox())
        .arg(flag("hibernate").help("End all processes; keep only the workspace and the services"))
        .args([patience(), if_version(), json()])
}

fn resume() -> Command {
    Command::new("resume").about("Resume a suspended sandbox").args([sandbox(), if_version(), json()])
}

fn publish() -> Command {
    let ports = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("[ADDRESS:]HOST:GUEST").action(ArgAction::Append).help(help)
    };
    Command::new("publish")
        .about("Publish ports of a live sandbox on the host")
        .long_about(
            "Publish ports of a live sandbox on the host.\n\n\
             A port opens at once if the sandbox is live, and again whenever it becomes live.\n\
             Removing a port closes it and ends its connections. Without a port, lists the\n\
             published ports.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam publish web --port 8080:8000\n  \
               cofferdam publish web\n  \
               cofferdam publish web --remove 8080",
        )
        .arg(sandbox())
        .arg(Arg::new("ports").value_name("[ADDRESS:]HOST:GUEST").num_args(0..).help("Ports to forward, like --port"))
        .arg(ports("port", "Forward port HOST of the host to port GUEST inside").short('p'))
        .arg(ports("remove", "Stop forwarding a port; GUEST may be left out"))
        .args([if_version(), json()])
}

fn stop() -> Command {
    Command::new("stop").about("Stop a sandbox: end its commands and let none start").args([
        sandbox(),
        patience(),
        if_version(),
        json(),
    ])
}

fn rm() -> Command {
    Command::new("rm")
        .about("Remove sandboxes with all changes that were not approved")
        .arg(
            sandbox()
                .num_args(0..)
                .action(ArgAction::Append)
                .help("Sandbox ids, id prefixes or names [default: that of the current directory]"),
        )
        .arg(
            flag("all")
                .short('a')
                .conflicts_with_all(["sandbox", "if-version"])
                .help("Remove all sandboxes; asks first, unless --force is given"),
        )
        .arg(
            Arg::new("older").long("older").value_name("TIME").conflicts_with_all(["sandbox", "if-version"]).help(
                "Remove all sandboxes that were not used for TIME, e.g. 7d;\nasks first, unless --force is given",
            ),
        )
        .arg(flag("force").short('f').help("End running commands first, and ask nothing"))
        .args([patience(), if_version(), json()])
}

fn gc() -> Command {
    Command::new("gc")
        .about("Collect expired sandboxes, unused layers and leftovers of crashes")
        .long_about(
            "Collect expired sandboxes, unused layers and leftovers of crashes.\n\n\
             Changes of a crashed run are not collected: they become a sandbox of their own,\n\
             for review. Sandboxes and layers are collected by this verb only.",
        )
        .arg(flag("dry-run").short('n').help("Only list what would be collected"))
        .arg(json())
}

fn audit() -> Command {
    Command::new("audit")
        .about("Print or verify the journal")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("log")
                .about("Print the last entries of the journal")
                .arg(sandbox().help("Only entries of this sandbox, by id or name [default: all]"))
                .arg(
                    Arg::new("lines")
                        .short('n')
                        .long("lines")
                        .value_name("N")
                        .default_value("100")
                        .value_parser(clap::value_parser!(u32).range(1..=10_000))
                        .help("Number of entries"),
                )
                .arg(json()),
        )
        .subcommand(
            Command::new("verify")
                .about("Verify the whole journal")
                .long_about("Verify the whole journal.\n\nExit status 1 if an entry was changed, dropped or moved.")
                .arg(json()),
        )
}

fn sandbox() -> Arg {
    Arg::new("sandbox").value_name("ID").help("Sandbox id, id prefix or name [default: that of the current directory]")
}

fn patience() -> Arg {
    Arg::new("timeout")
        .short('t')
        .long("timeout")
        .value_name("TIME")
        .default_value("10s")
        .help("Time that a command has to end before it is killed")
}

fn if_version() -> Arg {
    Arg::new("if-version")
        .long("if-version")
        .value_name("N")
        .value_parser(clap::value_parser!(u64))
        .help("Only if the sandbox still has this version (see `inspect`)")
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
