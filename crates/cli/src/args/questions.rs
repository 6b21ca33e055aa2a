//! The verbs for questions that rules put to a person: questions, answer.

use super::flag;
use clap::{Arg, Command};

pub const VERBS: &[&str] = &["questions", "answer"];

pub fn commands() -> Vec<Command> {
    vec![questions(), answer()]
}

fn questions() -> Command {
    Command::new("questions")
        .about("List what waits for an answer in live sandboxes, because a rule says `ask`")
        .long_about(
            "List what waits for an answer in live sandboxes, because a rule says `ask`. Nothing of it has happened yet; without \
             an answer it is refused after a minute. `cofferdam answer` lets it through, or does not.",
        )
        .arg(Arg::new("sandbox").value_name("SANDBOX").help("Only of this one: its id, the start of it, or its name"))
        .arg(flag("follow").short('f').help("Stay, and tell of each question as it is asked"))
        .arg(flag("json").help("Print JSON; with --follow, a line for each question"))
}

fn answer() -> Command {
    Command::new("answer")
        .about("Answer a question: what waits goes on, or is refused")
        .arg(Arg::new("question").value_name("ID").required(true).help("As `cofferdam questions` lists it"))
        .arg(
            Arg::new("answer")
                .value_name("ANSWER")
                .required(true)
                .value_parser(["allow", "deny"])
                .help("What becomes of it"),
        )
        .arg(flag("remember").help("The same answer to the same question, as long as the sandbox is live"))
        .arg(flag("json").help("Print JSON"))
}
