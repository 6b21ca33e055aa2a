//! `cofferdam create`, `ls`, `ps`, `inspect`, `start`, `stop`, `rm`, `gc` and `audit`.

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::sandboxes`.
pub fn main(_verb: &str, _matches: &ArgMatches) -> ExitCode {
    ExitCode::from(2)
}
