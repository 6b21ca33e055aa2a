//! The verbs that `runs.rs` carries out, with their flags: logs, attach, wait, kill.

use super::flag;
use clap::{Arg, Command};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["logs", "attach", "wait", "kill"];

pub fn commands() -> Vec<Command> {
    vec![logs(), attach(), wait(), kill()]
}

fn run() -> Arg {
    Arg::new("run").value_name("RUN").required(true).help("Its id, or the beginning of it (`cofferdam ps`)")
}

fn from() -> Arg {
    Arg::new("from").long("from").value_name("OFFSET").value_parser(clap::value_parser!(u64))
}

fn logs() -> Command {
    Command::new("logs")
        .about("Print what a command in a live sandbox said, also when it has ended")
        .long_about(
            "Print what a command in a live sandbox said, also when it has ended: its standard output on ours, its standard error \
             on ours. What is told with --json carries the offset of each piece, and --from goes on at one.\n\nOn a terminal lines, tabs and \
             colours are shown as they are, and other control characters are written out, so that a log drives no terminal. In a pipe or a \
             file, and with --raw, every byte is as it was said.",
        )
        .arg(run())
        .arg(flag("follow").short('f').help("Go on as it says more, until it has ended"))
        .arg(from().help("Begin at this offset [default: 0]"))
        .arg(flag("raw").help("Print every byte as it was said, also on a terminal").conflicts_with("json"))
        .arg(flag("json").help("Print JSON, one document for each piece"))
}

fn attach() -> Command {
    Command::new("attach")
        .about("Be at a command that runs: see what it says from now on, and type to it")
        .long_about(
            "Be at a command that runs: see what it says from now on, and type to it. What it says reaches the terminal as it is, as with \
             any program that is run there. On a terminal, Ctrl-P Ctrl-Q leaves it running. Exit status: the command's own, once it has ended.",
        )
        .arg(run())
        .arg(flag("no-stdin").help("Only watch"))
        .arg(from().help("Begin at this offset [default: now]"))
}

fn wait() -> Command {
    Command::new("wait")
        .about("Wait until a command has ended, and end with its status")
        .arg(run())
        .arg(Arg::new("timeout").long("timeout").value_name("TIME").help("No longer than this, e.g. 30s"))
        .arg(flag("json").help("Print the outcome as JSON"))
}

fn kill() -> Command {
    Command::new("kill")
        .about("Send a signal to a command; without one, end it and all that came of it at once")
        .arg(run().num_args(1..).help("Ids of runs, or the beginnings of them"))
        .arg(
            Arg::new("signal")
                .short('s')
                .long("signal")
                .value_name("SIGNAL")
                .default_value("KILL")
                .help("By name or number, e.g. TERM or 15"),
        )
        .arg(flag("json").help("Print JSON"))
}
