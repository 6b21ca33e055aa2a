//! Verbs that `review.rs` carries out, with their flags: diff, approve, reject, undo, fetch, prune, rebase, conflicts,
//! provenance.

use super::flag;
use clap::builder::OsStringValueParser;
use clap::{Arg, Command, ValueHint};

/// Names of the verbs, known without building the tree: the hot path must tell verbs from commands to run.
pub const VERBS: &[&str] =
    &["diff", "approve", "reject", "undo", "fetch", "prune", "rebase", "conflicts", "provenance"];

pub fn commands() -> Vec<Command> {
    vec![diff(), approve(), reject(), undo(), fetch(), prune(), rebase(), conflicts(), provenance()]
}

fn diff() -> Command {
    Command::new("diff")
        .about("Show the changes in a sandbox")
        .long_about(
            "Show the changes in a sandbox.\n\n\
             Changes that would run on your machine come first. Build artefacts, caches and\n\
             files that .gitignore names are withheld and counted. The digest at the end\n\
             covers everything that is shown: approving it approves exactly these bytes.\n\n\
             On a terminal, control characters in files and names are escaped. The output of\n\
             --patch into a pipe is byte-exact.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam diff\n  \
               cofferdam diff --stat lab\n  \
               cofferdam diff --patch lab src > src.patch",
        )
        .override_usage("cofferdam diff [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(flag("stat").help("Show only files, with counts of added and removed lines"))
        .arg(flag("name-only").help("Show only names"))
        .arg(flag("name-status").help("Show only names, with a letter for the kind of change"))
        .arg(flag("patch").short('p').help("Print a patch for `git apply`"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, base, digest, files, withheld, notes"))
        .arg(flag("all").short('a').help("Include withheld changes"))
        .arg(
            flag("home")
                .conflicts_with_all(["stat", "patch", "all"])
                .help("Show what changed in the sandbox's own home, which never lands"),
        )
        .arg(
            Arg::new("color")
                .long("color")
                .visible_alias("colour")
                .value_name("WHEN")
                .value_parser(["auto", "always", "never"])
                .default_value("auto")
                .hide_possible_values(true)
                .help("Colours: auto, always or never; auto means on a\nterminal, unless NO_COLOR is set"),
        )
        .arg(flag("no-pager").help("Do not start a pager"))
        .group(clap::ArgGroup::new("form").args(["stat", "name-only", "name-status", "patch", "json"]))
}

fn prune() -> Command {
    Command::new("prune")
        .about("Remove build artefacts, caches and ignored files from a sandbox")
        .long_about(
            "Remove build artefacts, caches and ignored files from a sandbox.\n\n\
             Changes that are up for review stay.",
        )
        .arg(
            Arg::new("id")
                .value_name("ID")
                .help("Sandbox id, id prefix or name [default: that of the current directory]"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, files, bytes"))
}

/// Positional `[ID] [PATH]...`. The first word is matched against the known sandboxes later.
pub fn words() -> Arg {
    Arg::new("words")
        .value_name("ID|PATH")
        .num_args(0..)
        .value_parser(OsStringValueParser::new())
        .value_hint(ValueHint::AnyPath)
        .help("Sandbox id, id prefix or name [default: that of the current directory]; then paths")
}

fn approve() -> Command {
    Command::new("approve")
        .about("Apply changes of a sandbox to its directory")
        .long_about(
            "Apply changes of a sandbox to its directory: all, some by path or pattern, or\n\
             single hunks.\n\n\
             What lands is what was reviewed: the last diff that was shown, or the one with\n\
             --digest. If the sandbox or the directory changed since, nothing lands. Files\n\
             that would run on your machine land only if each is named, or with\n\
             --runs-on-host. Set-id bits and file capabilities are removed.\n\n\
             The changes land all together or not at all, even if the machine goes down\n\
             halfway. `cofferdam undo` takes them back.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam approve\n  \
               cofferdam approve lab src 'docs/*.md'\n  \
               cofferdam approve --commit -m 'Add retries'",
        )
        .override_usage("cofferdam approve [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(hunk())
        .arg(
            flag("all")
                .short('a')
                .conflicts_with_all(["hunk", "interactive"])
                .help("Apply all ordinary changes (the default if nothing is chosen)"),
        )
        .arg(
            flag("runs-on-host").help(
                "Include changes that would run on your machine; if nothing\nelse is chosen, apply exactly those",
            ),
        )
        .arg(
            flag("interactive")
                .short('i')
                .conflicts_with_all(["hunk", "json", "digest", "unseen"])
                .help("Ask about each hunk"),
        )
        .arg(Arg::new("digest").long("digest").value_name("D").help("Digest of the diff that was reviewed"))
        .arg(
            flag("unseen")
                .conflicts_with("digest")
                .help("Apply the current changes, even if no diff of them was shown"),
        )
        .arg(flag("commit").help("Commit what landed and nothing else, without running hooks"))
        .arg(
            Arg::new("commits")
                .long("commits")
                .value_name("ID")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("")
                .conflicts_with_all(["commit", "hunk", "interactive", "all"])
                .help(
                    "Take over the commits made inside, with their files; paths\nname files among them that would run on your machine. ID is\nthe last commit that was reviewed [default: the last shown]",
                ),
        )
        .arg(
            Arg::new("message").short('m').long("message").value_name("TEXT").requires("commit").help("Commit message"),
        )
        .arg(
            Arg::new("author")
                .long("author")
                .value_parser(["agent", "reviewer", "coauthored"])
                .default_value("reviewer")
                .hide_possible_values(true)
                .help("Author of the commit: agent, reviewer or coauthored"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, batch, sandbox, digest, landed,\nleft, notes, commit"))
}

fn reject() -> Command {
    Command::new("reject")
        .about("Discard changes of a sandbox")
        .long_about(
            "Discard changes of a sandbox.\n\n\
             It then shows the files of its directory there again. Discarded changes cannot\n\
             be recovered. Refused while a command runs in the sandbox.",
        )
        .override_usage("cofferdam reject [OPTIONS] [ID] [PATH]...")
        .arg(words())
        .arg(hunk())
        .arg(flag("all").short('a').help("Discard all changes"))
        .arg(
            flag("home")
                .conflicts_with_all(["hunk", "all", "digest"])
                .help("Discard all changes in the sandbox's own home instead"),
        )
        .arg(Arg::new("digest").long("digest").value_name("D").help("Only if the diff still has this digest"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, rejected, left"))
}

fn fetch() -> Command {
    Command::new("fetch")
        .about("Bring commits made in a sandbox into the repository")
        .long_about(
            "Bring commits made in a sandbox into the repository, as a reference.\n\n\
             The reference is refs/cofferdam/NAME, with the name of the sandbox. Branches, work\n\
             tree and index stay as they are. Each object is checked, as git checks a push;\n\
             no hook and no setting of the sandbox's repository counts.",
        )
        .after_help(
            "Examples:\n  \
               cofferdam fetch lab && git log ..refs/cofferdam/lab\n  \
               cofferdam fetch lab --as refs/heads/from-lab",
        )
        .arg(
            Arg::new("sandbox")
                .value_name("ID")
                .help("Sandbox id, id prefix or name [default: that of the current directory]"),
        )
        .arg(
            Arg::new("as")
                .long("as")
                .value_name("REF")
                .help("Whole name of the reference; one outside of refs/cofferdam must be new"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, reference, commit, before,\ncommits, notes"))
}

fn undo() -> Command {
    Command::new("undo")
        .about("Undo an approval")
        .long_about(
            "Undo an approval.\n\n\
             Every file gets its former bytes, mode bits and times back, and the changes wait\n\
             in the sandbox again, if it still exists. If one of the files changed since,\n\
             nothing is undone.",
        )
        .arg(
            Arg::new("batch")
                .value_name("BATCH|ID")
                .help("Batch, or sandbox for its last batch [default: last batch of the current directory]"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, batch, undoes, sandbox, landed, notes"))
}

fn provenance() -> Command {
    Command::new("provenance")
        .about("Show the approvals that a file or directory came from")
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .value_parser(OsStringValueParser::new())
                .value_hint(ValueHint::AnyPath)
                .help("File or directory; it may no longer exist"),
        )
        .arg(flag("json").help("Print JSON: protocol_version, path, batches, more"))
}

fn hunk() -> Arg {
    Arg::new("hunk")
        .long("hunk")
        .value_name("H")
        .action(clap::ArgAction::Append)
        .help("Choose a hunk by id or id prefix; H.N is the N-th part that it can\nbe split into (repeatable)")
}

fn rebase() -> Command {
    Command::new("rebase")
        .about("Rebase a sandbox onto the current state of its directory")
        .long_about(
            "Rebase a sandbox onto the current state of its directory.\n\n\
             Files that both sides changed are merged line by line if their merge base is\n\
             known: from the commit that the directory was on, or from a copy that an\n\
             approval kept. Conflicts stay in the workspace between conflict markers (other\n\
             than text: unchanged), and the exit status is 1. Nothing is written to the\n\
             directory itself.\n\n\
             Refused while a command runs in the sandbox. Repeating it is harmless.",
        )
        .arg(one())
        .arg(flag("dry-run").short('n').help("Only show what would happen to each file"))
        .arg(flag("json").help("Print JSON: protocol_version, sandbox, dry_run, files, conflicts, notes"))
}

fn conflicts() -> Command {
    Command::new("conflicts")
        .about("List files changed by several sandboxes, or also in the directory")
        .arg(one())
        .arg(flag("json").help("Print JSON: protocol_version, base, contested, drifted, unresolved, notes"))
}

/// Positional for one sandbox.
pub fn one() -> Arg {
    Arg::new("sandbox").value_name("ID").help("Sandbox id, id prefix or name [default: that of the current directory]")
}
