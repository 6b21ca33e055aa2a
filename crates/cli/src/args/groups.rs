//! The list of verbs on the top page of help, grouped by use. Each line is made from the verb's own `about`.

use clap::Command;
use std::fmt::Write;

/// Headings of the top page with their verbs, in the order in which they are listed.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run commands", &["run", "exec", "shell", "code", "context", "attach", "logs", "wait", "kill", "ps"]),
    ("Review changes", &["diff", "approve", "reject", "undo", "fetch", "rebase", "conflicts", "provenance", "prune"]),
    (
        "Manage sandboxes",
        &[
            "create", "ls", "inspect", "start", "stop", "suspend", "resume", "publish", "rm", "snapshot", "fork",
            "restore", "template", "export", "import", "cp", "files",
        ],
    ),
    ("Run a daemon", &["serve", "token", "events", "questions", "answer"]),
    ("Write policies", &["policy", "agents", "secret"]),
    (
        "Operations",
        &["doctor", "setup", "config", "backup", "fsck", "top", "gc", "audit", "bench", "completion", "man"],
    ),
];

/// Replaces clap's single list of verbs in the help of `tree` with one list per group.
pub fn grouped(tree: Command) -> Command {
    let template = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{{all-args}}{{after-help}}",
        lists(&tree)
    );
    // A visible verb would be listed a second time by `all-args`, and without one clap leaves it out of the usage line.
    tree.mut_subcommands(|verb| verb.hide(true)).override_usage("cofferdam [OPTIONS] <COMMAND>").help_template(template)
}

fn lists(tree: &Command) -> String {
    let width = GROUPS.iter().flat_map(|(_, verbs)| *verbs).map(|verb| verb.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (heading, verbs) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for verb in verbs {
            let about = tree.find_subcommand(verb).and_then(Command::get_about).map(ToString::to_string);
            let _ = writeln!(text, "  {verb:width$}  {}", about.unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{all_verbs, tree, whole};

    #[test]
    fn every_verb_is_in_one_group() {
        for verb in all_verbs().filter(|verb| *verb != "help") {
            let groups = GROUPS.iter().filter(|(_, verbs)| verbs.contains(&verb)).count();
            assert_eq!(groups, 1, "{verb} is in {groups} groups");
        }
        let listed: usize = GROUPS.iter().map(|(_, verbs)| verbs.len()).sum();
        assert_eq!(listed, all_verbs().count() - 1, "a group has a verb twice, or one that does not exist");
    }

    #[test]
    fn help_fits_a_terminal() {
        for line in lists(&tree()).lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let mut whole = whole();
        whole.build();
        check(&mut whole, "cofferdam");
    }

    /// Fails where a line of the help of `command`, or of a verb below it, has more than 100 columns.
    #[track_caller]
    fn check(command: &mut Command, name: &str) {
        for help in [command.render_help(), command.render_long_help()] {
            for line in help.to_string().lines() {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
        }
        for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
            let name = format!("{name} {}", verb.get_name());
            check(verb, &name);
        }
    }
}
