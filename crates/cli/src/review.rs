//! `cofferdam diff`, `approve`, `reject`, `undo`, `rebase`, `conflicts` and `provenance`.

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::review`.
pub fn main(_verb: &str, _matches: &ArgMatches) -> ExitCode {
    ExitCode::from(2)
}
