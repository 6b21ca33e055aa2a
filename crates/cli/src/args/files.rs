//! The verbs that `files.rs` carries out, with their flags: cp, files.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
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
        .about("Copy files into a sandbox's workspace or out of it")
        .long_about(
            "Copy files into a sandbox's workspace or out of it. One of SRC and DST is SANDBOX:PATH, with a path relative to the \
             workspace; the other is a path here, or `-` for standard input or output. Directories are copied with all that is in them.\n\n\
             As with `cp`, what is copied to a directory that is there goes into it under its own name; `SRC/.` copies what is in SRC. \
             Neither side's links are followed on the way. FIFOs, sockets and devices are left out and named. A sandbox that is not live is made so for as long as it takes, \
             and nothing runs in it.",
        )
        .arg(end("src", "SRC").help("What to copy: SANDBOX:PATH, a path, or -"))
        .arg(end("dst", "DST").help("Where to: SANDBOX:PATH, a path, or -"))
        .arg(flag("tar").help("With `-`: a tar stream instead of the bytes of one file"))
        .arg(json())
}

fn files() -> Command {
    Command::new("files")
        .about("Look at and change the files of a sandbox's workspace, live or stopped")
        .long_about(
            "Look at and change the files of a sandbox's workspace, live or stopped. A place is SANDBOX:PATH, with a path \
             relative to the workspace or absolute as it is inside; without a path it is the workspace itself.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("ls")
                .about("List a directory")
                .arg(place())
                .arg(number("depth", "N", "1", 1..=1000).help("How many levels: 1 is what is in it"))
                .arg(json()),
        )
        .subcommand(
            Command::new("cat")
                .about("Print a file")
                .arg(place())
                .arg(flag("raw").help("Print it as it is, also to a terminal, which may then do what the file says")),
        )
        .subcommand(
            Command::new("stat")
                .about("Say what is known of a file")
                .arg(place())
                .arg(flag("no-follow").help("Of a link itself"))
                .arg(json()),
        )
        .subcommand(
            Command::new("mkdir")
                .about("Make a directory")
                .arg(place())
                .arg(flag("parents").short('p').help("Also those above it; one that is there is fine"))
                .arg(json()),
        )
        .subcommand(
            Command::new("mv")
                .about("Give a file or directory another name")
                .arg(place())
                .arg(
                    Arg::new("to")
                        .value_name("PATH")
                        .required(true)
                        .value_parser(OsStringValueParser::new())
                        .help("The new path in the same workspace"),
                )
                .arg(flag("force").short('f').help("Replace what stands there"))
                .arg(json()),
        )
        .subcommand(
            Command::new("rm")
                .about("Remove a file or directory from the workspace")
                .arg(place())
                .arg(flag("recursive").short('r').help("A directory with all that is in it"))
                .arg(json()),
        )
        .subcommand(
            Command::new("search")
                .about("Find files by name and by what is in them")
                .long_about(
                    "Find files by name and by what is in them. A search takes at most 10 seconds; one that stopped early says so, and \
                     exits with status 1 when nothing was found.",
                )
                .arg(place())
                .arg(
                    Arg::new("glob")
                        .long("glob")
                        .short('g')
                        .value_name("PATTERN")
                        .action(ArgAction::Append)
                        .help("Names: without a slash of the last name, with one of the path below the place"),
                )
                .arg(
                    Arg::new("content")
                        .long("content")
                        .short('e')
                        .value_name("REGEX")
                        .help("What must be in a line of the file"),
                )
                .arg(flag("fixed").short('F').requires("content").help("The content is a text as it stands"))
                .arg(flag("ignore-case").short('i').help("Capital and small letters of the content are the same"))
                .arg(number("limit", "N", "1000", 1..=10_000).help("Stop after so many matches"))
                .arg(json()),
        )
        .subcommand(
            Command::new("watch")
                .about("Print what changes in a directory, until interrupted")
                .arg(place())
                .arg(flag("recursive").short('r').help("Also in all directories below"))
                .arg(json().help("Print one JSON document a line")),
        )
}

fn place() -> Arg {
    Arg::new("place")
        .value_name("SANDBOX[:PATH]")
        .required(true)
        .value_parser(OsStringValueParser::new())
        .help("Which sandbox, by id, its beginning or name, and where in its workspace")
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
