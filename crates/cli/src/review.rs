//! `cofferdam diff`, `approve`, `reject`, `undo`, `rebase`, `conflicts` and `provenance`.

mod diff;
mod lexer;
mod pager;
pub mod paint;

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::review`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    match verb {
        "diff" => diff::main(matches),
        _ => ExitCode::from(2),
    }
}
