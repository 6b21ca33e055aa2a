//! Verbs that `code.rs` carries out, with their flags: code, context.

use super::{flag, path};
use clap::{Arg, ArgAction, Command};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["code", "context"];

pub fn commands() -> Vec<Command> {
    vec![code(), context()]
}

fn sandbox() -> Arg {
    let help = "Sandbox, by name or id [default: the last one of the current directory]";
    Arg::new("sandbox").long("sandbox").value_name("SANDBOX").help(help)
}

fn language() -> Arg {
    let help = "python, javascript or bash [default: by FILE's name]";
    Arg::new("lang").short('l').long("lang").visible_alias("language").value_name("LANGUAGE").help(help)
}

fn env() -> Arg {
    Arg::new("env").short('E').long("env").value_name("NAME=VALUE").action(ArgAction::Append)
}

fn workdir() -> Arg {
    path("workdir").short('w').value_name("DIR")
}

fn json() -> Arg {
    flag("json").help("Print JSON")
}

fn code() -> Command {
    Command::new("code")
        .about("Run code in an interpreter that keeps its state")
        .long_about(
            "Run code in an interpreter that keeps its state between calls.\n\n\
             The interpreter is the sandbox's own python3, node or bash, and runs inside it,\n\
             under its policy and limits. Without a sandbox for the current directory, one is\n\
             made. Without FILE and -e, code comes from standard input; on a terminal, an\n\
             interactive session begins.\n\n\
             Ctrl-C interrupts the code and keeps the state.\n\n\
             Exit status: 0; 1 where the code failed; 124 at the limit on time, 137 at another\n\
             limit; 130 where it was interrupted; 125 where the interpreter ended.",
        )
        .arg(Arg::new("text").short('e').long("eval").value_name("TEXT").help("Run TEXT").conflicts_with("file"))
        .arg(path("file").long(None::<&str>).value_name("FILE").help("File of this host with the code; - is standard input"))
        .arg(
            flag("interactive")
                .short('i')
                .conflicts_with_all(["text", "file"])
                .help("Read code line by line, with history"),
        )
        .arg(language())
        .arg(Arg::new("context").long("context").value_name("NAME").help("Context to run in [default: one for the language]"))
        .arg(sandbox())
        .arg(Arg::new("timeout").short('t').long("timeout").value_name("TIME").help("Limit on the time of the call, e.g. 30s"))
        .arg(Arg::new("output").long("max-output").value_name("SIZE").help("Limit on the output of the call, e.g. 10m"))
        .arg(Arg::new("queue").long("queue").value_name("TIME").help("Wait so long for another call in the context, or 0 [default: 30s]"))
        .arg(workdir().help("Directory of a context that is made, from the sandbox's"))
        .arg(env().help("Set a variable in a context that is made"))
        .arg(flag("json").help("Print the whole call as one JSON document").conflicts_with("interactive"))
        .after_help(
            "Examples:\n  cofferdam code -e '6*7'\n  cofferdam code analysis.py\n  cofferdam code -l bash --context build -e 'cd src && make'\n  cofferdam code -i",
        )
}

fn context() -> Command {
    let name = || Arg::new("name").value_name("CONTEXT").required(true).help("Name of the context");
    Command::new("context")
        .about("List, make, restart, interrupt and remove contexts of code")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("ls").about("List the contexts of a live sandbox").arg(sandbox()).arg(json()))
        .subcommand(
            Command::new("create")
                .about("Make a context and start its interpreter")
                .arg(Arg::new("name").value_name("CONTEXT").help("Name of the context [default: the language]"))
                .arg(language())
                .arg(workdir().help("Working directory, from the sandbox's"))
                .arg(env().help("Set a variable"))
                .arg(sandbox())
                .arg(json()),
        )
        .subcommand(
            Command::new("restart")
                .about("End an interpreter; the next call starts it anew")
                .arg(name())
                .arg(sandbox())
                .arg(json()),
        )
        .subcommand(
            Command::new("interrupt")
                .about("Interrupt the call that is under way")
                .arg(name())
                .arg(
                    Arg::new("grace")
                        .long("grace")
                        .value_name("TIME")
                        .help("Time before the interpreter is started anew [default: 100ms]"),
                )
                .arg(sandbox())
                .arg(json()),
        )
        .subcommand(Command::new("rm").about("End a context").arg(name()).arg(sandbox()).arg(json()))
}
