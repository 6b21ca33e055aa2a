//! Verbs that `files.rs` carries out, with their flags: cp, files.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["cp", "files"];

pub fn commands() -> Vec<Command> {
    vec![cp(), files()]
}

fn cp() -> Command {
    let end = |name: &'static str, value: &'static str| {
        Arg::new(name)
            .value_name(value)
            .required(true)
            .value_parser(OsStringValueParser::new())
            .value_hint(ValueHint::AnyPath)
    };
    Command::new("cp")
        .about("Copy files into or out of a sandbox's workspace")
        .long_about(
            "Copy files into or out of a sandbox's workspace.\n\n\
             One of SRC and DST is SANDBOX:PATH, with a path relative to the workspace. The\n\
             other is a local path, or `-` for standard input or output. Directories are\n\
             copied recursively. As with `cp`, a copy to an existing directory goes into it\n\
             under its own name; `SRC/.` copies the contents of SRC.\n\n\
             Links are not followed on either side. FIFOs, sockets and devices are skipped\n\
             and listed. A sandbox that is not live is made live for the copy; no command\n\
             runs in it.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam cp notes.txt lab:docs\n  \
               cofferdam cp lab:src/main.c .\n  \
               cofferdam cp --tar lab:src - > src.tar",
        )
        .arg(end("src", "SRC").help("Source: SANDBOX:PATH, a local path, or -"))
        .arg(end("dst", "DST").help("Destination: SANDBOX:PATH, a local path, or -"))
        .arg(flag("tar").help("With `-`: use a tar stream instead of the bytes of one file"))
        .arg(json())
}

fn files() -> Command {
    Command::new("files")
        .about("Read and change files of a sandbox's workspace, live or stopped")
        .long_about(
            "Read and change files of a sandbox's workspace, live or stopped.\n\n\
             SANDBOX:PATH names a file, with a path relative to the workspace, or absolute as\n\
             inside the sandbox. Without a path it names the workspace itself.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("ls")
                .about("List a directory")
                .arg(place())
                .arg(number("depth", "N", "1", 1..=1000).help("Levels to list; 1 is the directory's own entries"))
                .arg(json()),
        )
        .subcommand(
            Command::new("cat").about("Print a file").arg(place()).arg(
                flag("raw")
                    .help("Print every byte unchanged, also on a terminal, which may then be\ncontrolled by the file"),
            ),
        )
        .subcommand(
            Command::new("stat")
                .about("Show the metadata of a file")
                .arg(place())
                .arg(flag("no-follow").help("Show a link itself instead of its target"))
                .arg(json()),
        )
        .subcommand(
            Command::new("mkdir")
                .about("Create a directory")
                .arg(place())
                .arg(flag("parents").short('p').help("Create missing parents; an existing directory is no error"))
                .arg(json()),
        )
        .subcommand(
            Command::new("mv")
                .about("Rename a file or directory")
                .arg(place())
                .arg(
                    Arg::new("to")
                        .value_name("PATH")
                        .required(true)
                        .value_parser(OsStringValueParser::new())
                        .help("New path in the same workspace"),
                )
                .arg(flag("force").short('f').help("Replace an existing target"))
                .arg(json()),
        )
        .subcommand(
            Command::new("rm")
                .about("Remove a file or directory from the workspace")
                .arg(place())
                .arg(flag("recursive").short('r').help("Remove a directory with everything in it"))
                .arg(json()),
        )
        .subcommand(
            Command::new("search")
                .about("Find files by name and by content")
                .long_about(
                    "Find files by name and by content.\n\n\
                     A search takes at most 10 seconds, and says so if it stopped early. Exit status:\n\
                     1 if nothing was found.",
                )
                .arg(place())
                .arg(
                    Arg::new("glob")
                        .long("glob")
                        .short('g')
                        .value_name("PATTERN")
                        .action(ArgAction::Append)
                        .help("Match file names; a pattern with a slash matches the path\nbelow the start"),
                )
                .arg(Arg::new("content").long("content").short('e').value_name("REGEX").help("Match lines of the file"))
                .arg(flag("fixed").short('F').requires("content").help("Take REGEX as plain text"))
                .arg(flag("ignore-case").short('i').help("Ignore case in the content"))
                .arg(number("limit", "N", "1000", 1..=10_000).help("Stop after N matches"))
                .arg(json()),
        )
        .subcommand(
            Command::new("watch")
                .about("Print changes in a directory until interrupted")
                .arg(place())
                .arg(flag("recursive").short('r').help("Include all directories below"))
                .arg(json().help("Print JSON, one document per line")),
        )
}

fn place() -> Arg {
    Arg::new("place")
        .value_name("SANDBOX[:PATH]")
        .required(true)
        .value_parser(OsStringValueParser::new())
        .help("Sandbox (id, id prefix or name) and path in its workspace")
}

fn number(name: &'static str, value: &'static str, default: &'static str, range: std::ops::RangeInclusive<i64>) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .default_value(default)
        .value_parser(clap::value_parser!(u32).range(range))
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}
