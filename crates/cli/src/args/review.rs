//! The verbs that `review.rs` carries out, with their flags: diff, prune, approve, reject, undo, rebase, conflicts, provenance.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, Command, ValueHint};

/// Known without building anything: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] = &["diff", "approve", "reject", "undo", "prune", "rebase", "conflicts", "provenance"];

pub fn commands() -> Vec<Command> {
    vec![diff(), approve(), reject(), undo(), prune(), rebase(), conflicts(), provenance()]
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

fn approve() -> Command {
    Command::new("approve")
        .about("Let changes of a sandbox through to its directory")
        .long_about(
            "Let changes of a sandbox through to its directory: all, some by path or pattern, or single hunks.\n\n\
             What lands is what was reviewed: the last diff that was shown, or the one with --digest. If the sandbox or the \
             directory changed since, nothing lands. Files that would run on your machine land only when they are named one by one, or with \
             --runs-on-host. Set-id bits and file capabilities are taken off. It lands as a whole or not at all, also when the machine \
             goes down in the middle; `cofferdam undo` takes it back.",
        )
        .override_usage("cofferdam approve [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(hunk())
        .arg(flag("all").short('a').conflicts_with_all(["hunk", "interactive"]).help("All ordinary changes, as when nothing is chosen"))
        .arg(flag("runs-on-host").help("Also what would run on your machine; with nothing else chosen, all of that"))
        .arg(flag("interactive").short('i').conflicts_with_all(["hunk", "json", "digest", "unseen"]).help("Ask about each hunk"))
        .arg(Arg::new("digest").long("digest").value_name("D").help("The digest of the diff that was reviewed"))
        .arg(flag("unseen").conflicts_with("digest").help("Land what is there, though nobody looked at it"))
        .arg(flag("commit").help("Commit what landed, and nothing else, without running hooks"))
        .arg(Arg::new("message").short('m').long("message").value_name("TEXT").requires("commit").help("The commit's message"))
        .arg(
            Arg::new("author")
                .long("author")
                .value_parser(["agent", "reviewer", "coauthored"])
                .default_value("reviewer")
                .help("Who stands in the commit as its author"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, batch, sandbox, digest, landed, left, notes, commit"))
}

fn reject() -> Command {
    Command::new("reject")
        .about("Throw changes of a sandbox away")
        .long_about(
            "Throw changes of a sandbox away: there it shows its directory again. They cannot be brought back. \
             Refused while a command runs in the sandbox.",
        )
        .override_usage("cofferdam reject [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(hunk())
        .arg(flag("all").short('a').help("All changes"))
        .arg(Arg::new("digest").long("digest").value_name("D").help("Only if the diff still has this digest"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, rejected, left"))
}

fn undo() -> Command {
    Command::new("undo")
        .about("Take back what an approval let through")
        .long_about(
            "Take back what an approval let through: every file is again what it was, bytes, bits and times, and the changes wait in \
             the sandbox once more, if it is still there. If one of the files was changed since, nothing is taken back.",
        )
        .arg(
            Arg::new("batch")
                .value_name("BATCH|ID")
                .help("The batch, or the sandbox whose last one is meant [default: the last that landed in the current directory]"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, batch, undoes, sandbox, landed, notes"))
}

fn provenance() -> Command {
    Command::new("provenance")
        .about("Tell which approvals brought a file or directory to how it is")
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::AnyPath)
                .help("A file or directory, which may be gone"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, path, batches, more"))
}

fn hunk() -> Arg {
    Arg::new("hunk")
        .long("hunk")
        .value_name("H")
        .action(clap::ArgAction::Append)
        .help("A single hunk, by its id or the beginning of it, or with .N the N-th part that it can be split into; may be given several times")
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
pub fn one() -> Arg {
    Arg::new("sandbox")
        .value_name("ID")
        .help("The sandbox, by id, the beginning of it, or name [default: the one of the current directory]")
}
