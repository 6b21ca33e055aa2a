//! The verbs that `snapshots.rs` carries out, with their flags: snapshot, fork, restore, template, export, import.

use super::{flag, limit_args, policy_args, positional, rule_args};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["snapshot", "fork", "restore", "template", "export", "import"];

pub fn commands() -> Vec<Command> {
    vec![snapshot(), fork(), restore(), template(), export(), import()]
}

fn snapshot() -> Command {
    Command::new("snapshot")
        .about("Keep a sandbox as it is now, to go back to or to fork from")
        .long_about(
            "Keep a sandbox as it is now, to go back to or to fork from. What changed so far is frozen and read once, for a digest \
             that is compared before anything is built upon it; the tree itself is neither walked nor copied. A command that \
             runs in the sandbox is held still meanwhile. Prints the id.",
        )
        .args_conflicts_with_subcommands(true)
        .args([sandbox(), name("A name for the snapshot"), flag("sync").help("Wait until it is on the disk, so that it outlives a power failure"), json()])
        .subcommand(Command::new("ls").about("List snapshots, oldest first").args([
            sandbox().help("Only those of this sandbox: an id, its beginning, or a name"),
            json(),
        ]))
        .subcommand(
            Command::new("rm")
                .about("Forget snapshots, and remove the layers that only they have")
                .arg(one("snapshot", "SNAPSHOT", "Which: ids, beginnings of ids, or names").num_args(1..).action(ArgAction::Append))
                .arg(json()),
        )
}

fn fork() -> Command {
    Command::new("fork")
        .about("Make new sandboxes that begin where a snapshot or a sandbox is")
        .arg(sandbox().value_name("SNAPSHOT|ID").help(
            "What to begin from; of a sandbox a snapshot is taken first [default: the sandbox that covers the current \
             directory]",
        ))
        .arg(name("A name for the new sandbox; of several, each gets a number behind it"))
        .arg(
            Arg::new("count")
                .long("count")
                .short('n')
                .value_name("N")
                .default_value("1")
                .value_parser(clap::value_parser!(u32).range(1..=256))
                .help("How many"),
        )
        .arg(json())
}

fn restore() -> Command {
    Command::new("restore")
        .about("Go back to a snapshot")
        .arg(one("snapshot", "SNAPSHOT", "Where to go back to: an id, its beginning, or a name"))
        .arg(sandbox().help("Which sandbox goes back [default: the one that the snapshot was taken of]"))
        .arg(flag("discard").help("Drop what changed since; else it is kept as a snapshot of its own"))
        .arg(json())
}

fn template() -> Command {
    let which = || one("template", "TEMPLATE", "Which: a name, or NAME@sha256:DIGEST");
    Command::new("template")
        .about("Places to begin from, prepared once")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("create")
                .about("Name what a snapshot or a sandbox holds, or prepare it with a command")
                .override_usage(
                    "cofferdam template create [OPTIONS] NAME --from SNAPSHOT|ID\n       \
                     cofferdam template create [OPTIONS] NAME --prepare 'SHELL TEXT' [DIR]",
                )
                .arg(one("name", "NAME", "Its name"))
                .group(ArgGroup::new("source").args(["from", "prepare"]).required(true))
                .arg(
                    Arg::new("from")
                        .long("from")
                        .value_name("SNAPSHOT|ID")
                        .help("What it shall hold"),
                )
                .arg(
                    Arg::new("prepare")
                        .long("prepare")
                        .value_name("SHELL TEXT")
                        .help("Run this in a new sandbox first; it must succeed"),
                )
                .arg(
                    Arg::new("dir")
                        .value_name("DIR")
                        .requires("prepare")
                        .value_parser(OsStringValueParser::new())
                        .value_hint(ValueHint::DirPath)
                        .help("The directory to prepare for [default: the current one]"),
                )
                .arg(json())
                .next_help_heading("Policy, with --prepare")
                .args(policy_args())
                .args(rule_args())
                .next_help_heading("Limits, with --prepare")
                .args(limit_args()),
        )
        .subcommand(Command::new("ls").about("List templates").arg(json()))
        .subcommand(
            Command::new("inspect")
                .about("Say all that is known of a template")
                .arg(which())
                .arg(json().help("Print JSON (which is also what is printed without)")),
        )
        .subcommand(
            Command::new("warm")
                .about("Have sandboxes stand ready for a template, for `create --template` to take over")
                .long_about(
                    "Have sandboxes stand ready for a template: made, live and unused. `create --template` with the same policy and \
                     limits takes one over at once, and a daemon (`cofferdam serve`) makes the next. Any other is made as usual.",
                )
                .arg(which())
                .arg(
                    Arg::new("keep")
                        .long("keep")
                        .value_name("N")
                        .required(true)
                        .value_parser(clap::value_parser!(u32).range(0..=64))
                        .help("So many; with 0 none"),
                )
                .arg(json())
                .next_help_heading("Policy of their commands")
                .args(policy_args())
                .args(rule_args())
                .next_help_heading("Limits of their commands")
                .args(limit_args()),
        )
        .subcommand(Command::new("rm").about("Forget a template; sandboxes made from it stay").args([which(), json()]))
}

fn export() -> Command {
    Command::new("export")
        .about("Write the changes of a sandbox or a snapshot to one file")
        .long_about(
            "Write the changes of a sandbox or a snapshot to one file: tar, packed with zstd, with a manifest that lists every \
             change with its digest. The same workspace makes the same bytes.",
        )
        .arg(one("sandbox", "ID|SNAPSHOT", "What to write"))
        .arg(positional("file", "FILE").help("Where to; `-` is standard output"))
        .arg(json())
}

fn import() -> Command {
    Command::new("import")
        .about("Make a sandbox from a file that `export` wrote")
        .long_about(
            "Make a sandbox from a file that `export` wrote. The file may be anybody's: it is unpacked into a layer and nowhere else, \
             and one that is not what its own manifest says is refused without a trace. Its policy is not taken over.",
        )
        .arg(positional("file", "FILE").help("What to read; `-` is standard input"))
        .arg(
            Arg::new("onto")
                .long("onto")
                .required(true)
                .value_name("DIR")
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::DirPath)
                .help("The directory that the sandbox covers"),
        )
        .arg(name("A name for the sandbox"))
        .arg(
            Arg::new("max-size")
                .long("max-size")
                .value_name("SIZE")
                .help("Most that may come out of the file, e.g. 100g, however small it is itself [default: 16g]"),
        )
        .arg(
            Arg::new("driver")
                .long("driver")
                .value_name("NAME")
                .value_parser(["auto", "overlay", "reflink", "copy"])
                .help("How changes are kept apart from the directory [default: auto]"),
        )
        .arg(json())
        .next_help_heading("Policy of its commands")
        .args(policy_args())
        .args(rule_args())
}

fn sandbox() -> Arg {
    Arg::new("sandbox")
        .value_name("ID")
        .help("Which: an id, its beginning, or a name [default: the one that covers the current directory]")
}

fn one(id: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id).value_name(value).required(true).help(help)
}

fn name(help: &'static str) -> Arg {
    Arg::new("name").long("name").value_name("NAME").help(help)
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
