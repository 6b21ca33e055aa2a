//! Verbs that `snapshots.rs` carries out, with their flags: snapshot, fork, restore, template, export, import.

use super::run::driver;
use super::{copy_in, flag, limit_args, policy_args, positional, rule_args};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["snapshot", "fork", "restore", "template", "export", "import"];

pub fn commands() -> Vec<Command> {
    vec![snapshot(), fork(), restore(), template(), export(), import()]
}

fn snapshot() -> Command {
    Command::new("snapshot")
        .about("Take a snapshot of a sandbox, to restore or to fork")
        .long_about(
            "Take a snapshot of a sandbox, to restore or to fork.\n\n\
             The changes so far are frozen and read once, for a digest that is verified\n\
             before anything is built on the snapshot. The directory tree is neither walked\n\
             nor copied. Commands in the sandbox are paused meanwhile. Prints the id.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam snapshot lab --name before-upgrade\n  \
               cofferdam restore before-upgrade\n  \
               cofferdam fork before-upgrade --count 3",
        )
        .args_conflicts_with_subcommands(true)
        .args([
            sandbox(),
            name("Name of the snapshot"),
            flag("sync").help("Wait until it is on disk, so that it survives a power failure"),
            json(),
        ])
        .subcommand(
            Command::new("ls")
                .about("List snapshots, oldest first")
                .args([sandbox().help("Only snapshots of this sandbox (id, id prefix or name)"), json()]),
        )
        .subcommand(
            Command::new("rm")
                .about("Remove snapshots and the layers that only they use")
                .arg(
                    one("snapshot", "SNAPSHOT", "Snapshot ids, id prefixes or names")
                        .num_args(1..)
                        .action(ArgAction::Append),
                )
                .arg(json()),
        )
}

fn fork() -> Command {
    Command::new("fork")
        .about("Create sandboxes from a snapshot or from another sandbox")
        .arg(
            sandbox()
                .value_name("SNAPSHOT|ID")
                .help("Snapshot, or sandbox to snapshot and fork [default: that of the current directory]"),
        )
        .arg(name("Name of the new sandbox; with --count, a number is added to each"))
        .arg(
            Arg::new("count")
                .long("count")
                .short('n')
                .value_name("N")
                .default_value("1")
                .value_parser(clap::value_parser!(u32).range(1..=256))
                .help("Number of sandboxes"),
        )
        .arg(json())
}

fn restore() -> Command {
    Command::new("restore")
        .about("Restore a sandbox to a snapshot")
        .arg(one("snapshot", "SNAPSHOT", "Snapshot id, id prefix or name"))
        .arg(sandbox().help("Sandbox to restore [default: the one that the snapshot was taken of]"))
        .arg(flag("discard").help("Discard later changes; without it they are kept as a snapshot"))
        .arg(json())
}

fn template() -> Command {
    let which = || one("template", "TEMPLATE", "Template name, or NAME@sha256:DIGEST");
    Command::new("template")
        .about("Manage templates, from which sandboxes are created")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("create")
                .about("Create a template from a snapshot or a sandbox, or with a command")
                .override_usage(
                    "cofferdam template create [OPTIONS] NAME --from SNAPSHOT|ID\n       \
                     cofferdam template create [OPTIONS] NAME --prepare 'SHELL TEXT' [DIR]",
                )
                .arg(one("name", "NAME", "Name of the template"))
                .group(ArgGroup::new("source").args(["from", "prepare"]).required(true))
                .arg(
                    Arg::new("from")
                        .long("from")
                        .value_name("SNAPSHOT|ID")
                        .help("Snapshot or sandbox whose content the template gets"),
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
                        .help("Directory to prepare for [default: the current one]"),
                )
                .arg(json())
                .next_help_heading("Policy, with --prepare")
                .args(policy_args())
                .args(rule_args())
                .arg(copy_in())
                .next_help_heading("Limits, with --prepare")
                .args(limit_args()),
        )
        .subcommand(Command::new("ls").about("List templates").arg(json()))
        .subcommand(
            Command::new("inspect")
                .about("Show all details of a template")
                .arg(which())
                .arg(json().help("Print JSON (the default)")),
        )
        .subcommand(
            Command::new("warm")
                .about("Keep spare sandboxes of a template ready for `create --template`")
                .long_about(
                    "Keep spare sandboxes of a template ready for `create --template`.\n\n\
                     A spare is created, live and unused. `create --template` with the same policy\n\
                     and limits takes one at once, and a daemon (`cofferdam serve`) creates the next.\n\
                     With another policy or other limits, a sandbox is created as usual.",
                )
                .arg(which())
                .arg(
                    Arg::new("keep")
                        .long("keep")
                        .value_name("N")
                        .required(true)
                        .value_parser(clap::value_parser!(u32).range(0..=64))
                        .help("Number of spares; 0 for none"),
                )
                .arg(
                    Arg::new("lang")
                        .short('l')
                        .long("lang")
                        .value_name("LANGUAGE")
                        .action(ArgAction::Append)
                        .help("Start an interpreter for `code` when a spare is taken; repeatable"),
                )
                .arg(json())
                .next_help_heading("Policy of their commands")
                .args(policy_args())
                .args(rule_args())
                .next_help_heading("Limits of their commands")
                .args(limit_args()),
        )
        .subcommand(
            Command::new("rm").about("Remove a template; sandboxes created from it stay").args([which(), json()]),
        )
}

fn export() -> Command {
    Command::new("export")
        .about("Export the changes of a sandbox or a snapshot to a file")
        .long_about(
            "Export the changes of a sandbox or a snapshot to a file.\n\n\
             The file is a tar archive compressed with zstd, with a manifest that lists every\n\
             change and its digest. The same workspace gives the same bytes.",
        )
        .arg(one("sandbox", "ID|SNAPSHOT", "Sandbox or snapshot to export"))
        .arg(positional("file", "FILE").help("File to write; `-` is standard output"))
        .arg(json())
}

fn import() -> Command {
    Command::new("import")
        .about("Create a sandbox from a file that `export` wrote")
        .long_about(
            "Create a sandbox from a file that `export` wrote.\n\n\
             The file may come from an untrusted source: it is unpacked into a layer and\n\
             nowhere else. A file that does not match its own manifest is refused, and\n\
             nothing of it stays. The policy in the file is not used.",
        )
        .arg(positional("file", "FILE").help("File to read; `-` is standard input"))
        .arg(
            Arg::new("onto")
                .long("onto")
                .required(true)
                .value_name("DIR")
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::DirPath)
                .help("Directory that the sandbox covers"),
        )
        .arg(name("Name of the sandbox"))
        .arg(
            Arg::new("max-size")
                .long("max-size")
                .value_name("SIZE")
                .help("Limit on the unpacked size, e.g. 100g [default: 16g]"),
        )
        .arg(driver())
        .arg(json())
        .next_help_heading("Policy of its commands")
        .args(policy_args())
        .args(rule_args())
}

fn sandbox() -> Arg {
    Arg::new("sandbox").value_name("ID").help("Sandbox id, id prefix or name [default: that of the current directory]")
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
