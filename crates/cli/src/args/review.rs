//! The verbs that `review.rs` carries out, with their flags: diff, approve, reject, undo, rebase, conflicts, provenance.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["diff"];

pub fn commands() -> Vec<Command> {
    vec![diff()]
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

/// `[ID] [PATH]...`: told apart when the sandboxes are known.
pub fn words() -> Arg {
    Arg::new("words")
        .value_name("ID|PATH")
        .num_args(0..)
        .value_parser(OsStringValueParser::new())
        .value_hint(ValueHint::AnyPath)
        .help("The sandbox, by id, the beginning of it, or name [default: the one of the current directory]; then paths in it")
}
