//! The verbs that `review.rs` carries out, with their flags: diff, approve, reject, undo, rebase, conflicts, provenance.

use super::flag;
use clap::{Arg, Command};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["rebase", "conflicts"];

pub fn commands() -> Vec<Command> {
    vec![rebase(), conflicts()]
}

fn rebase() -> Command {
    Command::new("rebase")
        .about("Bring a sandbox onto its directory as it is now")
        .long_about(
            "Bring a sandbox onto its directory as it is now.\n\n\
             Files that both changed are merged by lines where it is known how they were before: from the commit that the \
             directory stood on, or from a copy that an approval kept. What does not go together is left in the workspace between \
             marks, or as it is where it is no text, and the status is 1. Nothing is written to the directory itself.\n\n\
             Refused while a command runs in the sandbox. Doing it again is harmless.",
        )
        .arg(one())
        .arg(flag("dry-run").short('n').help("Only tell what would become of each file"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, dry_run, files, conflicts, notes"))
}

fn conflicts() -> Command {
    Command::new("conflicts")
        .about("List files that several sandboxes changed, or a sandbox and its directory")
        .arg(one())
        .arg(flag("json").help("Print JSON: protocol_version, base, contested, drifted, unresolved, notes"))
}

/// One sandbox.
fn one() -> Arg {
    Arg::new("sandbox")
        .value_name("ID")
        .help("The sandbox, by id, the beginning of it, or name [default: the one of the current directory]")
}
