//! Verbs on questions that rules put to a person: list them, answer them.

use crate::list;
use api::{JournalStep, OpenQuestion, Question, QuestionDecision, Remember};
use runtime::Node;
use runtime::keeper::Keeper;
use runtime::keeper::client::LISTING;
use runtime::keeper::survey::{Reply, SurveyedSandbox, survey};
use runtime::keeper::wire::{self, KeeperRequest};
pub use runtime::questions::*;
use serde_json::json;
use state::Caller;
use state::journal::note;
use state::sandbox::Sandbox;
use terms::{ErrorKind, Fault, Phase};

/// Lists the open questions of all live sandboxes.
pub fn open_everywhere(node: &Node, caller: &Caller) -> Result<Vec<OpenQuestion>, Fault> {
    let dir = state::directory::prepare(caller)?.0;
    let live = list::list(node, caller, false)?.into_iter().filter(|row| row.live && row.silent.is_none());
    let live: Vec<SurveyedSandbox> = live.map(|row| SurveyedSandbox::new(&dir, &row.id)).collect();
    let mut found = Vec::new();
    for (subject, reply) in live.iter().zip(survey(node, &live, Some(&KeeperRequest::Questions), LISTING)) {
        // A sandbox that ended meanwhile has no questions, and a silent one cannot be asked; a listing shows it.
        let Reply::Answered(_, Some(frame)) = reply else { continue };
        let questions: Vec<Question> = wire::read_answer(&frame).unwrap_or_default();
        found.extend(questions.into_iter().map(|question| OpenQuestion::of(&subject.sandbox, question)));
    }
    found.sort_by_key(|open: &OpenQuestion| open.question.asked_ms);
    Ok(found)
}

/// Lists the open questions of a sandbox; none where it is not live.
pub fn open(node: &Node, caller: &Caller, word: &str) -> Result<Vec<OpenQuestion>, Fault> {
    let state = node.states.open(caller)?;
    let sandbox = state.store.read(|tx| state::sandbox::find(tx, Some(word), caller))?.id;
    let dir = state::directory::prepare(caller)?.0;
    let Some(mut keeper) = Keeper::heard(node, &dir, &sandbox)? else { return Ok(Vec::new()) };
    Ok(keeper.questions()?.into_iter().map(|question| OpenQuestion::of(&sandbox, question)).collect())
}

/// Answers a question and records who did. Returns the question.
pub fn answer(
    node: &Node,
    caller: &Caller,
    id: &str,
    answer: QuestionDecision,
    remember: Remember,
) -> Result<OpenQuestion, Fault> {
    let unknown = || {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no question {id:?}")).subject(id);
        fault.phase(Phase::Admission).hint("list the questions of the sandbox: each is open only until its timeout")
    };
    let parts = id.strip_prefix("qst_").and_then(|rest| rest.rsplit_once('_'));
    let parts = parts.and_then(|(whose, number)| Some((format!("sbx_{whose}"), number.parse::<u64>().ok()?)));
    let (sandbox, number) = parts.ok_or_else(unknown)?;
    let state = node.states.open(caller)?;
    // Only by the whole id, and only if the caller may see the sandbox.
    let known = state.store.read(|tx| tx.get::<Sandbox>(&sandbox))?;
    known.filter(|kept| caller.sees_kept(kept)).ok_or_else(unknown)?;
    let dir = state::directory::prepare(caller)?.0;
    let mut keeper = Keeper::heard(node, &dir, &sandbox)?.ok_or_else(unknown)?;
    let answered = OpenQuestion::of(&sandbox, keeper.answer(number, answer, remember)?);
    let told = json!({"question": answered, "answer": answer, "remember": remember});
    state.store.write(|tx| note(tx, "answer", JournalStep::Done, &sandbox, caller, told))?;
    Ok(answered)
}
