//! The verbs that run a command, with their flags: run, exec, shell.

use super::{all_verbs, flag, path};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use std::ffi::OsString;

/// The verbs that run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    Run,
    Exec,
    Shell,
}

impl Runs {
    pub fn command(self) -> Command {
        match self {
            Runs::Run => run().bin_name("cofferdam run"),
            Runs::Exec => exec().bin_name("cofferdam exec"),
            Runs::Shell => shell().bin_name("cofferdam shell"),
        }
        .args(super::server::args())
    }
}

/// The words after the verb, when a command is to be run: by name, or in the wrapper dialect (`cofferdam -- cmd`).
pub fn as_run(words: &[OsString]) -> Option<(Runs, &[OsString])> {
    let first = words.first()?.to_str();
    match first {
        Some("run") => Some((Runs::Run, &words[1..])),
        Some("exec") => Some((Runs::Exec, &words[1..])),
        Some("shell") => Some((Runs::Shell, &words[1..])),
        Some("-h" | "--help" | "-V" | "--version") => None,
        Some(verb) if all_verbs().any(|v| v == verb) => None,
        // A word that is no verb is a command to run; a flag belongs to the run that follows.
        _ => Some((Runs::Run, words)),
    }
}

/// Whether there may be something for `expand_it` to do.
pub fn speaks_docker(words: &[OsString]) -> bool {
    words.iter().any(|w| w == "-t" || w == "-it" || w == "-ti")
}

/// Docker's `-it` means two flags, and its `-t` the terminal; our `-t` takes an amount. Where none follows it is Docker's.
/// Only among our own words: the first that is neither a flag nor a flag's value starts the command.
pub fn expand_it(words: &[OsString], run: &Command) -> Vec<OsString> {
    let takes_value = |word: &str| {
        run.get_arguments().filter(|a| a.get_action().takes_values()).any(|a| {
            a.get_short().is_some_and(|c| word == format!("-{c}"))
                || a.get_long_and_visible_aliases().unwrap_or_default().iter().any(|l| word == format!("--{l}"))
        })
    };
    let mut out: Vec<OsString> = Vec::with_capacity(words.len() + 1);
    let mut words = words.iter();
    let is_amount = |word: &OsString| matches!(word.as_encoded_bytes().first(), Some(b'0'..=b'9' | b'.'));
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-it" | "-ti") => out.extend(["--interactive".into(), "--tty".into()]),
            Some("-t") if !words.as_slice().first().is_some_and(is_amount) => out.push("--tty".into()),
            Some("--") | None => {
                out.push(word.clone());
                break;
            }
            Some(flag) if flag.starts_with('-') => {
                out.push(word.clone());
                if takes_value(flag) {
                    out.extend(words.next().cloned());
                }
            }
            Some(_) => {
                out.push(word.clone());
                break;
            }
        }
    }
    out.extend(words.cloned());
    out
}

pub(super) fn run() -> Command {
    Command::new("run")
        .about("Run a command in an enclosure")
        .long_about(
            "Run a command in an enclosure.\n\n\
             It works on the current directory through a workspace: it changes what it likes, and the directory stays as it is. \
             When it changed anything, the workspace is kept, to be looked at and let through.\n\n\
             Exit status: the command's own; 124 for the wall limit, 137 for any other limit, 125 when cofferdam \
             itself failed, 126 when the command was found but refused, 127 when it was not found, 128+N for signal N.",
        )
        .override_usage(
            "cofferdam [run] [OPTIONS] [--] COMMAND [ARG]...\n       cofferdam [run] [OPTIONS] -c 'SHELL TEXT'",
        )
        .next_help_heading("Workspace")
        .args(workspace_args())
        .next_help_heading("Policy")
        .args(policy_args())
        .args(rule_args())
        .next_help_heading("Limits")
        .args(limit_args())
        .next_help_heading("Command")
        .args(command_args())
        .next_help_heading("Output")
        .args(output_args())
}

pub(super) fn exec() -> Command {
    let about = "Run a command in a sandbox";
    in_sandbox(Command::new("exec").about(about), about)
        .override_usage("cofferdam exec [OPTIONS] SANDBOX [--] COMMAND [ARG]...\n       cofferdam exec [OPTIONS] SANDBOX -c 'SHELL TEXT'")
        .arg(Arg::new("sandbox").value_name("SANDBOX").required(true).help("Its id, the beginning of it, or its name"))
        .next_help_heading("Command")
        .arg(
            flag("detach")
                .short('d')
                .conflicts_with_all(["json", "tty", "interactive", "explain"])
                .help("Leave it running and print its id; the sandbox becomes live for it"),
        )
        .args(command_args())
        .next_help_heading("Output")
        .args(output_args())
}

pub(super) fn shell() -> Command {
    let about = "Open a shell in a sandbox";
    let unneeded = ["shell", "command", "publish"];
    in_sandbox(Command::new("shell").about(about), about)
        .arg(
            Arg::new("sandbox")
                .value_name("SANDBOX")
                .help("Its id, the beginning of it, or its name [default: that of the current directory]"),
        )
        .next_help_heading("Command")
        .args(command_args().into_iter().filter(|a| !unneeded.contains(&a.get_id().as_str())))
        .next_help_heading("Output")
        .args(output_args())
}

/// What holds for every command in a sandbox.
fn in_sandbox(command: Command, about: &str) -> Command {
    command
        .long_about(format!(
            "{about}.\n\nIt runs under the policy and the limits that the sandbox was made with; flags can only take away from \
             them. Without --workdir it starts where you are, if that is in the sandbox's directory, else at its top.",
        ))
        .next_help_heading("Policy")
        .args(rule_args().into_iter().filter(|a| a.get_id().as_str().starts_with("deny-")))
        .next_help_heading("Limits")
        .args(limit_args())
}

fn workspace_args() -> Vec<Arg> {
    vec![
        path("workspace")
            .short('w')
            .value_name("DIR")
            .value_hint(ValueHint::DirPath)
            .help("Work on DIR instead of the current directory, and start there"),
        flag("read-only").conflicts_with("workspace").help("Make no workspace; the directory cannot be changed"),
        flag("direct")
            .conflicts_with_all(["workspace", "read-only"])
            .help("Make no workspace; change the directory itself, at once, where the policy allows it"),
        Arg::new("sandbox")
            .long("sandbox")
            .value_name("SANDBOX")
            .conflicts_with_all(["workspace", "read-only", "direct"])
            .help("Run in this sandbox, as exec does"),
        flag("rm")
            .conflicts_with_all(["read-only", "direct", "sandbox"])
            .help("Drop the workspace at the end, whatever was changed"),
        flag("keep")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Keep the workspace as a sandbox, even if nothing was changed"),
        Arg::new("name")
            .long("name")
            .value_name("NAME")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Keep it under this name"),
        Arg::new("ttl")
            .long("ttl")
            .value_name("TIME")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Keep it for so long, e.g. 12h or 30d [default: 7d]"),
        Arg::new("driver")
            .long("driver")
            .value_name("NAME")
            .value_parser(["auto", "overlay", "reflink", "copy"])
            .conflicts_with_all(["read-only", "direct", "sandbox"])
            .help("How changes are kept apart from the directory [default: auto]"),
    ]
}

pub(super) fn policy_args() -> [Arg; 2] {
    [
        path("policy").short('p').visible_alias("profile").value_name("NAME|FILE").action(ArgAction::Append).help(
            "A preset or a policy file; several are merged [default: default]. `-p 8080:80` publishes a port, \
                 as --publish does",
        ),
        path("settings")
            .short('s')
            .value_name("FILE")
            .action(ArgAction::Append)
            .help("A policy file, srt settings JSON or codex permissions TOML"),
    ]
}

pub(super) fn rule_args() -> Vec<Arg> {
    let grant = |name: &'static str, alias: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .visible_alias(alias)
            .value_name(value)
            .action(ArgAction::Append)
            .value_delimiter(',')
            .value_hint(ValueHint::AnyPath)
            .help(help)
    };
    // A list of hosts, in which ports have commas of their own; `policy::split_places` takes it apart.
    let deny = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).action(ArgAction::Append).value_delimiter(',').help(help)
    };
    vec![
        grant("read", "allow-read", "PATH", "Let the command read PATH and what is below it"),
        grant("write", "allow-write", "PATH", "Let the command change PATH on the host, at once"),
        grant("exec", "allow-exec", "PATH", "Let the command start this program"),
        grant("net", "allow-net", "HOST", "Let the command reach HOST[:PORTS], icmp:HOST (ping), unix:PATH, or opaque:HOST:PORT (judged by address and port alone)")
            .value_delimiter(None),
        deny("deny-read", "PATH", "Hide PATH, whatever else allows it"),
        deny("deny-write", "PATH", "Keep PATH unchanged, whatever else allows changes"),
        deny("deny-exec", "PATH", "Never start this program"),
        deny("deny-net", "HOST", "Never reach HOST[:PORTS], or unix:PATH").value_delimiter(None),
    ]
}

pub(super) fn limit_args() -> [Arg; 7] {
    let amount = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).allow_negative_numbers(true).help(help)
    };
    [
        amount("memory", "SIZE", "Most memory of all its processes together, e.g. 256m").short('m'),
        amount("timeout", "TIME", "Most wall-clock time, e.g. 30s, 5m, 1500ms").short('t'),
        amount("cpus", "N", "Processors it may use, e.g. 1 or 0.5"),
        amount("pids", "N", "Most processes and threads at a time"),
        amount("disk", "SIZE", "Most space in its private /tmp and in its workspace together"),
        amount("output", "SIZE", "Most output, stdout and stderr together"),
        amount(
            "limit",
            "NAME=AMOUNT",
            "Any limit by name: wall, cpu, memory, output, processes, open_files, disk, files, net",
        )
        .action(ArgAction::Append)
        .value_delimiter(','),
    ]
}

fn command_args() -> Vec<Arg> {
    vec![
        Arg::new("shell")
            .short('c')
            .value_name("TEXT")
            .value_parser(OsStringValueParser::new())
            .help("Run TEXT with `sh -c`"),
        Arg::new("env")
            .short('e')
            .long("env")
            .value_name("NAME[=VALUE]")
            .action(ArgAction::Append)
            .value_parser(OsStringValueParser::new())
            .help("Set a variable, or pass the caller's"),
        path("workdir")
            .value_name("DIR")
            .value_hint(ValueHint::DirPath)
            .help("Start in DIR, seen from the directory that is worked on"),
        Arg::new("publish")
            .long("publish")
            .value_name("[ADDR:]HOST:GUEST")
            .action(ArgAction::Append)
            .help("Join connections to port HOST (of ADDR [default: 127.0.0.1]) to port GUEST inside"),
        Arg::new("secret")
            .long("secret")
            .value_name("NAME=SOURCE")
            .action(ArgAction::Append)
            .help("Where a secret of the policy comes from: env:VAR, file:PATH, cmd:COMMAND or store:NAME [default: env:NAME, else store:NAME]"),
        Arg::new("ask-timeout")
            .long("ask-timeout")
            .value_name("TIME")
            .help("How long a rule that asks waits for an answer, at the terminal or at a daemon [default: 60s]"),
        flag("interactive").short('i').help("Keep standard input open (it is, unless --no-stdin)"),
        flag("no-stdin").help("Give the command an empty standard input"),
        flag("tty").help("Give the command a terminal of its own (the default on a terminal); -it works too, and -t where no TIME follows"),
        flag("no-tty").conflicts_with("tty").help("Never give it a terminal"),
        Arg::new("command")
            .value_name("COMMAND")
            .num_args(0..)
            .trailing_var_arg(true)
            .value_parser(OsStringValueParser::new())
            .value_hint(ValueHint::CommandWithArguments)
            .help("The command and its arguments"),
    ]
}

fn output_args() -> Vec<Arg> {
    vec![
        flag("json").help("Print the outcome as JSON on stdout, with the command's output in it"),
        Arg::new("status-fd")
            .long("status-fd")
            .value_name("N")
            .value_parser(clap::value_parser!(u32))
            .help("Write the outcome as JSON to this descriptor"),
        path("status-file").value_name("FILE").help("Write the outcome as JSON to this file"),
        path("events")
            .value_name("FILE|FD")
            .help("Write network events, one JSON object a line, to a file or descriptor"),
        Arg::new("events-max")
            .long("events-max")
            .value_name("SIZE")
            .requires("events")
            .help("Most bytes of events; those beyond are counted [default: 64m for a file]"),
        flag("report-reads").help("Report denied reads too; every open then waits for cofferdam"),
        flag("explain").help("Print policy and setup steps instead of running"),
        flag("verbose").short('v').help("Report refusals as they happen"),
        flag("quiet").short('q').conflicts_with("verbose").help("Say nothing beside the command's own output"),
    ]
}
