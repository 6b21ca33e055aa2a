//! `cofferdam questions` and `answer`.

use crate::connection;
use crate::render;
use crate::render::{print_document, safe, say};
use crate::sandboxes::table::{self, Table};
use api::{OpenQuestion, Question, QuestionDecision, Remember};
use client::Engine;

use clap::ArgMatches;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use terms::Fault;

/// Polling interval for new questions.
const LOOK: Duration = Duration::from_millis(500);

pub fn main(verb: &str, m: &ArgMatches) -> ExitCode {
    let json = m.get_flag("json");
    let done = connection::open(m).and_then(|engine| match verb {
        "questions" if m.get_flag("follow") => follow(m, &engine, json),
        "questions" => list(m, &engine, json),
        _ => answer(m, &engine, json),
    });
    done.unwrap_or_else(|fault| render::fault(&fault, json))
}

fn open(m: &ArgMatches, engine: &Engine) -> Result<Vec<OpenQuestion>, Fault> {
    engine.questions(m.get_one::<String>("sandbox").map(String::as_str))
}

fn list(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let open = open(m, engine)?;
    if json {
        return Ok(print_document(serde_json::json!({ "questions": open })));
    }
    let now = terms::clock::now_ms();
    let mut table = Table::new(&["ID", "SANDBOX", "WANTS", "RULE", "WHO", "REFUSED"]);
    for OpenQuestion { id, sandbox, question } in &open {
        let wants = format!("{} {}", question.op, question.target);
        let until = format!("in {} s", question.deadline_ms.saturating_sub(now) / 1000);
        table.row(vec![id.clone(), table::short(sandbox), wants, question.rule.clone(), who(question), until]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

fn follow(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let mut told: BTreeSet<String> = BTreeSet::new();
    loop {
        let open = open(m, engine)?;
        for one in open.iter().filter(|one| !told.contains(&one.id)) {
            let line = match json {
                true => render::json_line(one),
                false => {
                    let OpenQuestion { id, question, .. } = one;
                    let (who, target) = (who(question), safe(&question.target));
                    let (id, op) = (safe(id), safe(&question.op));
                    format!("{id} {who} wants {op} {target} ({})", safe(&question.rule))
                }
            };
            let mut out = crate::stdout::lock();
            // A reader that left early is no error of ours.
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return Ok(ExitCode::SUCCESS);
            }
        }
        // Closed questions need not be remembered: no id is used twice.
        told = open.into_iter().map(|one| one.id).collect();
        std::thread::sleep(LOOK);
    }
}

fn who(question: &Question) -> String {
    match (&question.exe, question.pid) {
        (Some(exe), Some(pid)) if !exe.is_empty() => format!("{} ({pid})", safe(exe)),
        _ => "a command".to_owned(),
    }
}

fn answer(m: &ArgMatches, engine: &Engine, json: bool) -> Result<ExitCode, Fault> {
    let word = |name: &str| m.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let said = if word("answer") == "allow" { QuestionDecision::Allow } else { QuestionDecision::Deny };
    let remember = if m.get_flag("remember") { Remember::Run } else { Remember::Once };
    let answered = engine.answer(word("question"), said, remember)?;
    if json {
        return Ok(print_document(answered));
    }
    say(&answered.id);
    Ok(ExitCode::SUCCESS)
}
