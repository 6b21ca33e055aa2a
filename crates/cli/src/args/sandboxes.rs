//! The verbs that `sandboxes.rs` carries out, with their flags: create, ls, ps, inspect, start, stop, rm, gc, audit.

use super::{flag, limit_args, path, policy_args, rule_args};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] =
    &["create", "ls", "ps", "inspect", "start", "stop", "suspend", "resume", "publish", "rm", "gc", "audit"];

pub fn commands() -> Vec<Command> {
    vec![create(), ls(), ps(), inspect(), start(), stop(), suspend(), resume(), publish(), rm(), gc(), audit()]
}

fn create() -> Command {
    Command::new("create")
        .about("Make a sandbox over a directory: commands in it write to a layer of their own")
        .long_about(
            "Make a sandbox over a directory: commands in it write to a layer of their own, and nothing reaches the directory \
             until it is approved. The tree is neither walked nor copied. Prints the id.",
        )
        .arg(
            Arg::new("dir")
                .value_name("DIR")
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::DirPath)
                .help("The directory to cover [default: the current one]"),
        )
        .arg(flag("empty").conflicts_with("dir").help("Cover an empty directory of its own instead of one that is there"))
        .args(sandbox_args())
        .next_help_heading("Reservations")
        .args(reserve_args())
        .next_help_heading("Policy of its commands")
        .args(policy_args())
        .args(rule_args())
        .next_help_heading("Limits of each command")
        .args(limit_args())
}

fn sandbox_args() -> [Arg; 11] {
    let value = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    [
        value("name", "NAME").help("A name to call it by"),
        value("template", "NAME").help("Begin from a template"),
        value("ttl", "TIME").help("May be collected after so long, e.g. 7d [default: never]"),
        value("idle", "TIME").help("May be collected when unused for so long, e.g. 4h"),
        value("idempotency-key", "KEY")
            .help("The same request under the same key is answered with the same sandbox, for a day"),
        value("driver", "NAME")
            .value_parser(["auto", "overlay", "reflink", "copy"])
            .help("How changes are kept apart from the directory [default: auto]"),
        value("service", "NAME=COMMAND")
            .action(ArgAction::Append)
            .help("A command, as text for a shell, that runs as long as the sandbox is live"),
        value("restart", "[NAME=]WHEN")
            .action(ArgAction::Append)
            .requires("service")
            .help("When a service that ended is started again: always, on-failure or never [default: on-failure]"),
        flag("report-reads").help("Report denied reads of its commands too; every open then waits for cofferdam"),
        value("ask-timeout", "TIME").help("How long a rule that asks waits for an answer [default: 60s]"),
        json(),
    ]
}

fn reserve_args() -> [Arg; 3] {
    [
        path("reserve")
            .value_name("PATH")
            .action(ArgAction::Append)
            .value_hint(ValueHint::AnyPath)
            .help("Have PATH below the directory for this sandbox alone; `.` is all of it"),
        flag("shared").requires("reserve").help("Others that say so, too, may reserve the same"),
        Arg::new("reserve-until")
            .long("reserve-until")
            .value_name("WHEN")
            .value_parser(["stop", "rm"])
            .requires("reserve")
            .help("Which verb lets it go [default: rm]"),
    ]
}

fn ls() -> Command {
    Command::new("ls")
        .about("List sandboxes, the one used last first")
        .arg(flag("all").short('a').help("Also those that stand ready for templates, and those that were removed"))
        .arg(json())
}

fn ps() -> Command {
    Command::new("ps").about("List the commands that run in sandboxes").arg(json())
}

fn inspect() -> Command {
    Command::new("inspect")
        .about("Say all that is known of a sandbox")
        .arg(sandbox())
        .arg(json().help("Print JSON (which is also what is printed without)"))
}

fn start() -> Command {
    Command::new("start").about("Let commands run in a stopped sandbox again").args([
        sandbox(),
        flag("live")
            .help("Have it live until it is stopped: its services run, and commands start at once, many at a time"),
        if_version(),
        json(),
    ])
}

fn suspend() -> Command {
    Command::new("suspend")
        .about("Freeze a sandbox until it is resumed or something is asked of it")
        .long_about(
            "Freeze a sandbox until it is resumed or something is asked of it: a new command, a connection to a port, or input, a \
             signal or an attach to a command in it. Its processes stay in memory, which the kernel may take back. With --hibernate \
             they are ended instead, in order: the workspace is kept, and services start again when it is resumed. The answer says \
             which was reached.",
        )
        .arg(sandbox())
        .arg(flag("hibernate").help("End what runs; only the workspace and the services stay"))
        .args([patience(), if_version(), json()])
}

fn resume() -> Command {
    Command::new("resume").about("Wake a sandbox that is suspended").args([sandbox(), if_version(), json()])
}

fn publish() -> Command {
    let ports = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("[ADDRESS:]HOST:GUEST").action(ArgAction::Append).help(help)
    };
    Command::new("publish")
        .about("Have ports of the host lead into a sandbox, as long as it is live")
        .long_about(
            "Have ports of the host lead into a sandbox, as long as it is live: they are opened at once where it is, and again \
             whenever it becomes live. A port that is removed is closed, and connections to it are broken off. Without a port, \
             lists those that there are.",
        )
        .arg(sandbox())
        .arg(ports("port", "A port of the host, and the port inside that it leads to").short('p'))
        .arg(ports("remove", "One that shall lead inside no more; the port inside can be left out"))
        .args([if_version(), json()])
}

fn stop() -> Command {
    Command::new("stop").about("End what runs in a sandbox, and let nothing start").args([
        sandbox(),
        patience(),
        if_version(),
        json(),
    ])
}

fn rm() -> Command {
    Command::new("rm")
        .about("Remove a sandbox, with all that was not approved")
        .arg(sandbox().num_args(0..).action(ArgAction::Append).help("Which: ids, beginnings of ids, or names"))
        .arg(flag("force").short('f').help("End what runs in it first"))
        .args([patience(), if_version(), json()])
}

fn gc() -> Command {
    Command::new("gc")
        .about("Collect expired sandboxes, dead layers and what crashes left")
        .long_about(
            "Collect expired sandboxes, dead layers and what crashes left. What a crashed run changed is not collected but \
             becomes a sandbox of its own, to be reviewed. Nothing is ever collected but by this verb.",
        )
        .arg(flag("dry-run").short('n').help("Only list what would be collected"))
        .arg(json())
}

fn audit() -> Command {
    Command::new("audit")
        .about("Read the journal, and see whether it is as it was written")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("log")
                .about("Print the last entries of the journal")
                .arg(sandbox().help("Of one sandbox, by id or name [default: of all]"))
                .arg(
                    Arg::new("lines")
                        .short('n')
                        .long("lines")
                        .value_name("N")
                        .default_value("100")
                        .value_parser(clap::value_parser!(u32).range(1..=10_000))
                        .help("How many"),
                )
                .arg(json()),
        )
        .subcommand(
            Command::new("verify")
                .about("Go along the whole journal; exit status 1 when an entry was changed, dropped or moved")
                .arg(json()),
        )
}

fn sandbox() -> Arg {
    Arg::new("sandbox")
        .value_name("ID")
        .help("Which: an id, its beginning, or a name [default: the one that covers the current directory]")
}

fn patience() -> Arg {
    Arg::new("timeout")
        .short('t')
        .long("timeout")
        .value_name("TIME")
        .default_value("10s")
        .help("How long a command may take to end before it is killed")
}

fn if_version() -> Arg {
    Arg::new("if-version")
        .long("if-version")
        .value_name("N")
        .value_parser(clap::value_parser!(u64))
        .help("Only if it still has this version (see `inspect`)")
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
