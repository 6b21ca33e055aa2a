//! The verbs that `review.rs` carries out, with their flags: diff, prune, approve, reject, undo, rebase, conflicts, provenance.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["diff", "prune", "rebase", "conflicts"];

pub fn commands() -> Vec<Command> {
    vec![diff(), prune(), rebase(), conflicts()]
}

fn diff() -> Command {
    Command::new("diff")
        .about("Show what changed in a sandbox")
        .long_about(
            "Show what changed in a sandbox.\n\n\
             What would run on your machine comes first; build artefacts, caches and what .gitignore names are withheld \
             and counted. The digest at the end is over all that is shown: approving it approves these bytes and no others.\n\n\
             In a terminal nothing of a file or name is shown raw that could drive it. --patch into a pipe is byte-exact.",
        )
        .override_usage("cofferdam diff [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(flag("stat").help("Only files, with how many lines came and went"))
        .arg(flag("name-only").help("Only names"))
        .arg(flag("name-status").help("Only names, with a letter for the kind of change"))
        .arg(flag("patch").short('p').help("A patch that `git apply` takes"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, base, digest, files, withheld, notes"))
        .arg(flag("all").short('a').help("Show what is withheld, too"))
        .arg(
            Arg::new("color")
                .long("color")
                .visible_alias("colour")
                .value_name("WHEN")
                .value_parser(["auto", "always", "never"])
                .default_value("auto")
                .help("Colours; auto means on a terminal unless NO_COLOR is set"),
        )
        .arg(flag("no-pager").help("Do not start a pager"))
        .group(clap::ArgGroup::new("form").args(["stat", "name-only", "name-status", "patch", "json"]))
}

fn prune() -> Command {
    Command::new("prune")
        .about("Take build artefacts, caches and ignored files out of a sandbox; what is up for review stays")
        .arg(Arg::new("id").value_name("ID").help("The sandbox [default: the one of the current directory]"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, files, bytes"))
}

/// `[ID] [PATH]...`: told apart when the sandboxes are known.
pub fn words() -> Arg {
    Arg::new("words")
        .value_name("ID|PATH")
        .num_args(0..)
        .value_parser(OsStringValueParser::new())
        .value_hint(ValueHint::AnyPath)
        .help("The sandbox, by id, the beginning of it, or name [default: the one of the current directory]; then paths in it")
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
