//! Verbs that run a command, with their flags: run, exec, shell.

use super::{all_verbs, flag, path};
use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use std::ffi::OsString;

/// Verb that runs a command.
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

/// Returns the verb and the words after it if the line runs a command: by verb, or without one (`cofferdam -- cmd`).
pub fn as_run(words: &[OsString]) -> Option<(Runs, &[OsString])> {
    let first = words.first()?.to_str();
    match first {
        Some("run") => Some((Runs::Run, &words[1..])),
        Some("exec") => Some((Runs::Exec, &words[1..])),
        Some("shell") => Some((Runs::Shell, &words[1..])),
        Some("-h" | "--help" | "-V" | "--version") => None,
        Some(verb) if all_verbs().any(|v| v == verb) => None,
        // Any other word is a command to run; a flag belongs to the run that follows.
        _ => Some((Runs::Run, words)),
    }
}

/// Returns true if `expand` may have something to expand.
pub fn may_expand(words: &[OsString]) -> bool {
    words.iter().any(|w| w == "-t" || w == "-it" || w == "-ti" || w == "--continue")
}

/// Expands Docker's `-it` to two flags, and `-t` to `--tty` if no value follows it; with a value, `-t` is our own. Joins
/// `--continue` and the name after it. The expansion ends at the first word that is neither a flag nor a flag's value:
/// the command starts there.
pub fn expand(words: &[OsString], run: &Command) -> Vec<OsString> {
    let takes_value = |word: &str| {
        run.get_arguments().filter(|a| a.get_action().takes_values()).any(|a| {
            a.get_short().is_some_and(|c| word == format!("-{c}"))
                || a.get_long_and_visible_aliases().unwrap_or_default().iter().any(|l| word == format!("--{l}"))
        })
    };
    let mut out: Vec<OsString> = Vec::with_capacity(words.len() + 1);
    let mut words = words.iter();
    let is_amount = |word: &OsString| matches!(word.as_encoded_bytes().first(), Some(b'0'..=b'9' | b'.'));
    // A word is the value of the flag before it, and not the command, if only flags follow up to `--` or with `-c`.
    let is_value = |rest: &[OsString]| {
        let Some((first, mut rest)) = rest.split_first() else { return false };
        let mut has_text = false;
        if first.as_encoded_bytes().starts_with(b"-") {
            return false;
        }
        while let Some((word, after)) = rest.split_first() {
            match word.to_str() {
                Some("--") => return true,
                Some(flag) if flag.starts_with('-') && flag.len() > 1 => {
                    has_text |= flag == "-c";
                    let values = usize::from(takes_value(flag)).min(after.len());
                    rest = &after[values..];
                }
                _ => return false,
            }
        }
        has_text
    };
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-it" | "-ti") => out.extend(["--interactive".into(), "--tty".into()]),
            Some("-t") if !words.as_slice().first().is_some_and(is_amount) && !is_value(words.as_slice()) => {
                out.push("--tty".into());
            }
            Some("--continue") if is_value(words.as_slice()) => {
                let mut joined = OsString::from("--continue=");
                words.next().into_iter().for_each(|name| joined.push(name));
                out.push(joined);
            }
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
        .about("Run a command in an enclosure and keep its changes for review")
        .long_about(
            "Run a command in an enclosure and keep its changes for review.\n\n\
             The command works on the current directory through a workspace; the directory\n\
             itself does not change. If the command changed anything, the workspace is kept\n\
             for `diff` and `approve`. As with Docker, `-p 8080:80` publishes a port.\n\n\
             Exit status: that of the command; 124 for the wall-time limit, 137 for any other\n\
             limit, 125 if cofferdam failed, 126 if the command was found but refused, 127 if\n\
             it was not found, 128+N for signal N.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam run -- make test\n  \
               cofferdam run --net example.org --timeout 10m -- curl https://example.org\n  \
               cofferdam run --rm -c 'ls | wc -l'",
        )
        .override_usage(
            "cofferdam [run] [OPTIONS] [--] COMMAND [ARG]...\n       cofferdam [run] [OPTIONS] -c 'SHELL TEXT'",
        )
        .next_help_heading("Workspace")
        .args(workspace_args())
        .next_help_heading("Policy")
        .args(policy_args())
        .arg(flag("no-preset").help("Choose no preset by the command's name (see `cofferdam agents`)"))
        .args(rule_args())
        .arg(copy_in())
        .next_help_heading("Limits")
        .args(limit_args())
        .next_help_heading("Command")
        .arg(
            flag("detach")
                .short('d')
                .conflicts_with_all(["json", "tty", "interactive", "explain", "rm", "read-only", "direct", "events"])
                .help("Leave the command running and print its run id;\nthe sandbox is live, as with --live"),
        )
        .args(command_args())
        .next_help_heading("Output")
        .args(output_args())
}

pub(super) fn exec() -> Command {
    let about = "Run a command in an existing sandbox";
    in_sandbox(Command::new("exec").about(about), about)
        .override_usage("cofferdam exec [OPTIONS] SANDBOX [--] COMMAND [ARG]...\n       cofferdam exec [OPTIONS] SANDBOX -c 'SHELL TEXT'")
        .after_help(
            "Examples:\n  \
               cofferdam exec lab -- make test\n  \
               cofferdam exec --detach lab -- ./server",
        )
        .arg(
            Arg::new("sandbox")
                .value_name("SANDBOX")
                .required(true)
                .help_heading(None)
                .help("Sandbox id, id prefix or name"),
        )
        .next_help_heading("Command")
        .arg(
            flag("detach")
                .short('d')
                .conflicts_with_all(["json", "tty", "interactive", "explain"])
                .help("Leave the command running and print its run id;\nthe sandbox becomes live"),
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
                .help_heading(None)
                .help("Sandbox id, id prefix or name [default: that of the current directory]"),
        )
        .next_help_heading("Command")
        .args(command_args().into_iter().filter(|a| !unneeded.contains(&a.get_id().as_str())))
        .next_help_heading("Output")
        .args(output_args())
}

/// Adds the description and the flags that every command in a sandbox has.
fn in_sandbox(command: Command, about: &str) -> Command {
    command
        .long_about(format!(
            "{about}.\n\n\
             It runs under the policy and the limits of the sandbox; flags can only restrict\n\
             them further. Without --workdir it starts in the current directory if that is\n\
             below the sandbox's directory, else in the sandbox's directory.",
        ))
        .next_help_heading("Policy")
        .args(rule_args().into_iter().filter(|a| a.get_id().as_str().starts_with("deny-")))
        .next_help_heading("Limits")
        .args(limit_args())
}

/// Flags that say where a run works and what becomes of its changes.
pub const PLACES: [&str; 11] =
    ["workspace", "read-only", "direct", "sandbox", "rm", "keep", "name", "ttl", "driver", "live", "template"];

fn workspace_args() -> Vec<Arg> {
    vec![
        path("workspace")
            .short('w')
            .value_name("DIR")
            .value_hint(ValueHint::DirPath)
            .help("Work on DIR instead of the current directory, and start there"),
        flag("read-only").conflicts_with("workspace").help("Use no workspace; the directory is read-only"),
        flag("direct")
            .conflicts_with_all(["workspace", "read-only"])
            .help("Use no workspace; write to the directory at once, if the policy allows"),
        Arg::new("sandbox")
            .long("sandbox")
            .value_name("SANDBOX")
            .conflicts_with_all(["workspace", "read-only", "direct"])
            .help("Run in this sandbox, like `exec`"),
        flag("rm")
            .conflicts_with_all(["read-only", "direct", "sandbox"])
            .help("Discard the workspace and all changes at the end"),
        flag("keep")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Keep the workspace as a sandbox, even without changes"),
        Arg::new("name")
            .long("name")
            .value_name("NAME")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Keep the workspace under this name"),
        Arg::new("ttl")
            .long("ttl")
            .value_name("TIME")
            .conflicts_with_all(["read-only", "direct", "sandbox", "rm"])
            .help("Time to keep the workspace, e.g. 12h or 30d [default: 7d]"),
        driver().conflicts_with_all(["read-only", "direct", "sandbox"]),
        flag("live")
            .conflicts_with_all(["read-only", "direct", "sandbox", "events"])
            .help("Run in a live sandbox: `exec`, `logs` and `attach` work meanwhile,\nand Ctrl-P Ctrl-Q leaves the command running"),
        Arg::new("template")
            .long("template")
            .value_name("NAME")
            .conflicts_with_all(["workspace", "read-only", "direct", "sandbox", "driver", "events", "explain"])
            .help("Begin with the content of a template, with its policy and its\nhome, in a live sandbox"),
        Arg::new("continue")
            .long("continue")
            .value_name("NAME")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("")
            .conflicts_with_all(PLACES)
            .help("Go on in the sandbox NAME, or in the one of this directory that\nwas used last; NAME stands before `--`"),
        flag("fresh")
            .conflicts_with_all(["read-only", "direct", "sandbox", "continue"])
            .help("Begin a workspace of its own, even if the configuration has\nrun.continue"),
    ]
}

pub(super) fn driver() -> Arg {
    Arg::new("driver")
        .long("driver")
        .value_name("NAME")
        .value_parser(["auto", "overlay", "reflink", "copy"])
        .hide_possible_values(true)
        .help("Storage driver: auto, overlay, reflink or copy [default: auto]")
}

pub(super) fn policy_args() -> [Arg; 2] {
    [
        path("policy")
            .short('p')
            .visible_alias("profile")
            .value_name("NAME|FILE")
            .action(ArgAction::Append)
            .help("Presets or policy files to merge [default: default]"),
        path("settings")
            .short('s')
            .value_name("FILE")
            .action(ArgAction::Append)
            .help("Policy file, srt settings JSON or codex permissions TOML"),
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
    // Lists of hosts are not split here: ports have commas of their own. `policy::split_targets` splits them.
    let deny = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).action(ArgAction::Append).value_delimiter(',').help(help)
    };
    vec![
        grant("read", "allow-read", "PATH", "Allow reading PATH and everything below it"),
        grant("write", "allow-write", "PATH", "Allow changing PATH on the host, at once"),
        grant("exec", "allow-exec", "PATH", "Allow starting this program"),
        grant(
            "net",
            "allow-net",
            "HOST",
            "Allow connecting to HOST[:PORTS], icmp:HOST (ping), unix:PATH, or\n\
             opaque:HOST:PORT (checked by address and port only)",
        )
        .value_delimiter(None),
        deny("deny-read", "PATH", "Hide PATH, even if another rule allows it"),
        deny("deny-write", "PATH", "Keep PATH unchanged, even if another rule allows changes"),
        deny("deny-exec", "PATH", "Never start this program"),
        deny("deny-net", "HOST", "Never connect to HOST[:PORTS] or unix:PATH").value_delimiter(None),
    ]
}

pub(super) fn copy_in() -> Arg {
    Arg::new("copy-in")
        .long("copy-in")
        .value_name("PATH")
        .action(ArgAction::Append)
        .value_hint(ValueHint::AnyPath)
        .help("Copy PATH of the home into the sandbox's own home")
}

pub(super) fn limit_args() -> [Arg; 7] {
    let amount = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).allow_negative_numbers(true).help(help)
    };
    [
        amount("memory", "SIZE", "Memory limit for all processes together, e.g. 256m").short('m'),
        amount("timeout", "TIME", "Wall-clock time limit, e.g. 30s, 5m, 1500ms").short('t'),
        amount("cpus", "N", "Processor limit, e.g. 1 or 0.5"),
        amount("pids", "N", "Limit on processes and threads at a time"),
        amount("disk", "SIZE", "Disk limit for the private /tmp and the workspace together"),
        amount("output", "SIZE", "Output limit, stdout and stderr together"),
        amount(
            "limit",
            "NAME=AMOUNT",
            "Any limit by name: wall, cpu, memory, output, processes,\nopen_files, disk, files, net",
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
            .help("Set a variable, or pass the caller's value"),
        path("workdir")
            .value_name("DIR")
            .value_hint(ValueHint::DirPath)
            .help("Start in DIR, relative to the directory that is worked on"),
        Arg::new("publish")
            .long("publish")
            .value_name("[ADDR:]HOST:GUEST")
            .action(ArgAction::Append)
            .help("Forward port HOST of ADDR [default: 127.0.0.1] to port GUEST"),
        Arg::new("secret").long("secret").value_name("NAME@HOST|NAME=SOURCE").action(ArgAction::Append).help(
            "Add a secret to requests to HOST[:HEADER[:FORMAT]]\n\
             [default: authorization, `Bearer {}`]; or set its source:\n\
             env:VAR, file:PATH, cmd:COMMAND or store:NAME\n\
             [default: env:NAME, else store:NAME]",
        ),
        Arg::new("ask-timeout")
            .long("ask-timeout")
            .value_name("TIME")
            .help("Time that a question waits for an answer, at the terminal or\nat a daemon [default: 60s]"),
        flag("interactive").short('i').help("Keep standard input open (the default without --no-stdin)"),
        flag("no-stdin").help("Give the command an empty standard input"),
        flag("tty").help("Give the command a terminal (the default on a terminal);\nalso -it, or -t without a TIME"),
        flag("no-tty").conflicts_with("tty").help("Never give the command a terminal"),
        Arg::new("command")
            .value_name("COMMAND")
            .num_args(0..)
            .trailing_var_arg(true)
            .value_parser(OsStringValueParser::new())
            .value_hint(ValueHint::CommandWithArguments)
            .help("Command and its arguments"),
    ]
}

fn output_args() -> Vec<Arg> {
    vec![
        flag("json").help("Print the outcome as JSON on stdout, including the command's output"),
        Arg::new("status-fd")
            .long("status-fd")
            .value_name("N")
            .value_parser(clap::value_parser!(u32))
            .help("Write the outcome as JSON to file descriptor N"),
        path("status-file").value_name("FILE").help("Write the outcome as JSON to FILE"),
        path("events")
            .value_name("FILE|FD")
            .help("Write network events to a file or descriptor, one JSON object per line"),
        Arg::new("events-max")
            .long("events-max")
            .value_name("SIZE")
            .requires("events")
            .help("Limit on the size of events; later ones are only counted\n[default: 64m for a file]"),
        flag("report-reads").help("Report denied reads too; every open then waits for cofferdam"),
        flag("explain").help("Print the policy and the setup steps instead of running"),
        flag("verbose").short('v').help("Report refusals as they happen"),
        flag("quiet").short('q').conflicts_with("verbose").help("Print nothing besides the command's own output"),
    ]
}
