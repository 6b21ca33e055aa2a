//! Verbs for questions that rules ask, with their flags: questions, answer.

use super::flag;
use clap::{Arg, Command};

pub const VERBS: &[&str] = &["questions", "answer"];

pub fn commands() -> Vec<Command> {
    vec![questions(), answer()]
}

fn questions() -> Command {
    Command::new("questions")
        .about("List operations that wait for an answer because a rule says `ask`")
        .long_about(
            "List operations that wait for an answer because a rule says `ask`.\n\n\
             The operations of all live sandboxes are listed. None of them has happened yet.\n\
             `cofferdam answer` allows or denies one. Without an answer it is refused after\n\
             60 seconds, or after the sandbox's --ask-timeout.",
        )
        .arg(Arg::new("sandbox").value_name("SANDBOX").help("Only questions of this sandbox (id, id prefix or name)"))
        .arg(flag("follow").short('f').help("Keep running and print each question as it is asked"))
        .arg(flag("json").help("Print JSON; with --follow, one line per question"))
}

fn answer() -> Command {
    Command::new("answer")
        .about("Answer a question: allow or deny the waiting operation")
        .arg(
            Arg::new("question")
                .value_name("ID")
                .required(true)
                .help("Question id, as listed by `cofferdam questions`"),
        )
        .arg(Arg::new("answer").value_name("ANSWER").required(true).value_parser(["allow", "deny"]).help("Decision"))
        .arg(flag("remember").help("Give the same answer to the same question while the sandbox is live"))
        .arg(flag("json").help("Print JSON"))
}
