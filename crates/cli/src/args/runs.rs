//! Verbs that `runs.rs` carries out, with their flags: logs, attach, wait, kill.

use super::flag;
use clap::{Arg, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["logs", "attach", "wait", "kill"];

pub fn commands() -> Vec<Command> {
    vec![logs(), attach(), wait(), kill()]
}

fn run() -> Arg {
    Arg::new("run").value_name("RUN").required(true).help("Run id, id prefix, or a sandbox for its last command")
}

fn from() -> Arg {
    Arg::new("from").long("from").value_name("OFFSET").value_parser(clap::value_parser!(u64))
}

fn logs() -> Command {
    Command::new("logs")
        .about("Print the output of a command in a live sandbox, running or ended")
        .long_about(
            "Print the output of a command in a live sandbox, running or ended.\n\n\
             The command's standard output goes to standard output, its standard error to\n\
             standard error. With --json each piece has an offset; --from resumes there.\n\n\
             On a terminal, lines, tabs and colours are shown as they are, and other control\n\
             characters are escaped, so that a log cannot control the terminal. In a pipe or\n\
             a file, and with --raw, every byte is unchanged.",
        )
        .arg(run())
        .arg(flag("follow").short('f').help("Continue with new output until the command has ended"))
        .arg(from().help("Start at this offset [default: 0]"))
        .arg(flag("raw").help("Print every byte unchanged, also on a terminal").conflicts_with("json"))
        .arg(flag("json").help("Print JSON, one document per piece of output"))
}

fn attach() -> Command {
    Command::new("attach")
        .about("Attach to a running command: show its output and send it input")
        .long_about(
            "Attach to a running command: show its output and send it input.\n\n\
             Output reaches the terminal unchanged, as from any program that runs there. On a\n\
             terminal, Ctrl-P Ctrl-Q detaches and leaves the command running.\n\n\
             Exit status: that of the command, once it has ended.",
        )
        .arg(run())
        .arg(flag("no-stdin").help("Only show output; send no input"))
        .arg(from().help("Start at this offset [default: now]"))
}

fn wait() -> Command {
    Command::new("wait")
        .about("Wait until a command has ended, and exit with its status")
        .arg(run())
        .arg(Arg::new("timeout").long("timeout").value_name("TIME").help("Wait no longer than TIME, e.g. 30s"))
        .arg(flag("json").help("Print the outcome as JSON"))
}

fn kill() -> Command {
    Command::new("kill")
        .about("Kill a command with all its processes, or send it a signal")
        .arg(run().num_args(1..).help("Run ids or id prefixes"))
        .arg(
            Arg::new("signal")
                .short('s')
                .long("signal")
                .value_name("SIGNAL")
                .default_value("KILL")
                .help("Signal name or number, e.g. TERM or 15"),
        )
        .arg(flag("json").help("Print JSON"))
}
