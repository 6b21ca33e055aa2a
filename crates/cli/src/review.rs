//! `cofferdam diff`, `prune`, `approve`, `reject`, `undo`, `rebase`, `conflicts` and `provenance`.

mod conflicts;
mod diff;
mod lexer;
mod pager;
pub mod paint;
mod rebase;

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::review`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    match verb {
        "rebase" => rebase::main(matches),
        "conflicts" => conflicts::main(matches),
        "diff" => diff::main(matches),
        "prune" => diff::prune(matches),
        _ => ExitCode::from(2),
    }
}
