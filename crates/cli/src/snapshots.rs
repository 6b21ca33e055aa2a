//! `cofferdam snapshot`, `fork`, `restore`, `template`, `export` and `import`.

use clap::ArgMatches;
use std::process::ExitCode;

/// Carries out one of the verbs of `args::snapshots`.
pub fn main(_verb: &str, _matches: &ArgMatches) -> ExitCode {
    ExitCode::from(2)
}
