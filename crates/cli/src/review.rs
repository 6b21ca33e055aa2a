//! `cofferdam diff`, `prune`, `approve`, `reject`, `undo`, `fetch`, `rebase`, `conflicts` and `provenance`.

mod approve;
mod conflicts;
mod diff;
mod fetch;
mod interactive;
mod lexer;
mod miss;
mod pager;
pub mod paint;
mod provenance;
mod rebase;
mod receipt;

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::review`.
pub fn main(verb: &str, matches: &ArgMatches) -> ExitCode {
    match verb {
        "approve" => approve::main(matches),
        "reject" => receipt::reject(matches),
        "undo" => receipt::undo(matches),
        "fetch" => fetch::main(matches),
        "provenance" => provenance::main(matches),
        "rebase" => rebase::main(matches),
        "conflicts" => conflicts::main(matches),
        "diff" => diff::main(matches),
        "prune" => diff::prune(matches),
        _ => ExitCode::from(2),
    }
}
