//! The `cofferdam` binary: parse, call a verb, render the answer.

mod agents;
mod args;
mod bench;
mod code;
mod connection;
mod daemon;
mod doctor;
mod events;
mod files;
mod operations;
mod options;
mod pipe;
mod policy;
mod prompt;
mod quantity;
mod questions;
mod render;
mod review;
mod run;
mod runs;
mod sandboxes;
mod secrets;
mod setup;
mod snapshots;
mod stdout;
mod surroundings;
mod tame;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    stdout::settle(answer())
}

fn answer() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The hidden verb by which this binary starts a keeper. Users do not type it, and it needs no argument parsing.
    if words.first().is_some_and(|word| word == "keep") {
        return runs::keep(&words[1..]);
    }
    let words = args::server::behind_the_verb(words);
    // `run` is the hot path: it parses its own flags only and builds nothing for the other verbs.
    if let Some((verb, rest)) = args::as_run(&words) {
        // A first word that was taken for a command may be a mistyped verb.
        let slip = words.first().filter(|_| rest.len() == words.len());
        return run::main(verb, rest, slip);
    }
    // The version is printed without building the tree of all verbs.
    if let [word] = &words[..]
        && (word == "--version" || word == "-V")
    {
        // A reader that left early is no error of ours.
        let _ = writeln!(stdout::lock(), "cofferdam {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let matches = match args::parse(words) {
        Ok(matches) => matches,
        Err(error) => return render::usage_error(&error),
    };
    match matches.subcommand() {
        Some(("policy", m)) => policy::main(m),
        Some(("doctor", m)) => doctor::main(m),
        Some(("setup", m)) => setup::main(m),
        Some(("bench", m)) => bench::main(m),
        Some((verb @ ("completion" | "man"), m)) => {
            connection::note_local(m, verb);
            page(if verb == "man" { args::man() } else { Ok(args::completion(m)) })
        }
        Some(("agents", m)) => agents::main(m),
        Some((verb, m)) if args::daemon::VERBS.contains(&verb) => daemon::main(verb, m),
        Some((verb, m)) if args::operations::VERBS.contains(&verb) => operations::main(verb, m),
        Some((verb, m)) if args::questions::VERBS.contains(&verb) => questions::main(verb, m),
        Some((verb, m)) if args::events::VERBS.contains(&verb) => events::main(verb, m),
        Some((verb, m)) if args::files::VERBS.contains(&verb) => files::main(verb, m),
        Some((verb, m)) if args::secrets::VERBS.contains(&verb) => secrets::main(verb, m),
        Some((verb, m)) if args::code::VERBS.contains(&verb) => code::main(verb, m),
        Some((verb, m)) if args::runs::VERBS.contains(&verb) => runs::main(verb, m),
        Some((verb, m)) if args::sandboxes::VERBS.contains(&verb) => sandboxes::main(verb, m),
        Some((verb, m)) if args::review::VERBS.contains(&verb) => review::main(verb, m),
        Some((verb, m)) if args::snapshots::VERBS.contains(&verb) => snapshots::main(verb, m),
        _ => ExitCode::from(2),
    }
}

/// Prints a generated page.
fn page(made: std::io::Result<Vec<u8>>) -> ExitCode {
    let Ok(text) = made else { return ExitCode::from(125) };
    // A reader that left early is no error of ours.
    let _ = stdout::lock().write_all(&text);
    ExitCode::SUCCESS
}
