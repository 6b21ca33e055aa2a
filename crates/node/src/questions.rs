//! Questions to a person, as doors see them: which are open, and the answer to one. What waits, waits in the guest's network or
//! with its supervisor.

use crate::Caller;
use crate::keeper::Keeper;
use crate::keeper::client::LISTING;
use crate::keeper::survey::{Reply, Subject, survey};
use crate::keeper::wire::{self, Ask};
use crate::lifecycle::stop::note;
use crate::sandbox::Sandbox;
use crate::state::State;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use store::Step;
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;

/// How long somebody is waited for unless the caller says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Clients give up sooner than this, whatever we do.
pub const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// How long somebody is waited for, where a request says it in milliseconds.
pub fn patience(field: &str, ms: u64) -> Result<Duration, Fault> {
    let patience = Duration::from_millis(ms);
    if (LEAST_PATIENCE..=MOST_PATIENCE).contains(&patience) {
        return Ok(patience);
    }
    let (least, most) = (LEAST_PATIENCE.as_millis(), MOST_PATIENCE.as_millis());
    let fault = Fault::invalid(format!("{field} {ms}: must be between {least} and {most}"));
    Err(fault.hint("give milliseconds, from one second to ten minutes").phase(Phase::Admission))
}

/// Something that a rule says `ask` of, and that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// Counted from 1 by each run or live sandbox.
    pub number: u64,
    /// `net.resolve`, `net.connect`, `net.request`, `fs.read`, `fs.write`, `fs.read_write`, `fs.create` or `exec`.
    pub op: String,
    /// `host:port`, a name, a method with a URL that has no query, `unix:` with a path, or a path.
    pub target: String,
    pub rule: String,
    /// Who wants it, where that was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    pub asked_ms: u64,
    /// When it is refused because nobody answered.
    pub deadline_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Allow,
    Deny,
}

/// How long an answer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remember {
    /// For what waits now; an answer about a name or about datagrams, for half a minute. A program that was let start stays so.
    #[default]
    Once,
    /// As long as the run, or the live sandbox.
    Run,
}

/// The questions of one guest. Cheap to clone; all clones are the same table.
#[derive(Clone)]
pub struct Questions(pub(crate) Arc<egress::asks::Questions>);

impl Questions {
    /// Who is not answered within `patience` is refused.
    pub fn new(patience: Duration) -> Questions {
        Questions(egress::asks::Questions::new(patience.clamp(LEAST_PATIENCE, MOST_PATIENCE)))
    }

    /// Those that wait, the oldest first; there are never many.
    pub fn open(&self) -> Vec<Question> {
        self.0.open().into_iter().map(told).collect()
    }

    /// Answers one; what was asked.
    pub fn answer(&self, number: u64, answer: Answer, remember: Remember) -> Result<Question, Fault> {
        let remember = match remember {
            Remember::Once => egress::asks::Remember::Once,
            Remember::Run => egress::asks::Remember::Run,
        };
        match self.0.answer(number, answer == Answer::Allow, remember) {
            Ok(question) => Ok(told(question)),
            Err(egress::asks::NotOpen) => Err(not_open(number)),
        }
    }
}

pub(crate) fn not_open(number: u64) -> Fault {
    let message = format!("question {number} is not open: it was answered, given up, or never asked");
    Fault::new(ErrorKind::NotFound, message).phase(Phase::Execution)
}

/// A question of a live sandbox, under an id that says whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OpenQuestion)]
pub struct Open {
    /// `qst_…`
    pub id: String,
    pub sandbox: String,
    #[serde(flatten)]
    pub question: Question,
}

impl Open {
    pub(crate) fn of(sandbox: &str, question: Question) -> Open {
        let whose = sandbox.strip_prefix("sbx_").unwrap_or(sandbox);
        Open { id: format!("qst_{whose}_{}", question.number), sandbox: sandbox.to_owned(), question }
    }
}

/// What waits for an answer in all sandboxes that are live.
pub fn open_everywhere(caller: &Caller) -> Result<Vec<Open>, Fault> {
    let dir = crate::state::prepare(caller)?.0;
    let live = crate::lifecycle::list::list(caller, false)?.into_iter().filter(|row| row.live && row.silent.is_none());
    let live: Vec<Subject> = live.map(|row| Subject::new(&dir, &row.id)).collect();
    let mut found = Vec::new();
    for (subject, reply) in live.iter().zip(survey(&live, Some(&Ask::Questions), LISTING)) {
        // One that ends meanwhile asks nothing any more, and one that is silent cannot be asked; a listing says so.
        let Reply::Answered(_, Some(frame)) = reply else { continue };
        let questions: Vec<Question> = wire::read_answer(&frame).unwrap_or_default();
        found.extend(questions.into_iter().map(|question| Open::of(&subject.sandbox, question)));
    }
    found.sort_by_key(|open: &Open| open.question.asked_ms);
    Ok(found)
}

/// What waits for an answer in a sandbox; nothing where it is not live.
pub fn open(word: &str, caller: &Caller) -> Result<Vec<Open>, Fault> {
    let state = State::open(caller)?;
    let sandbox = state.store.read(|tx| crate::sandbox::find(tx, Some(word), caller))?.id;
    let dir = crate::state::prepare(caller)?.0;
    let Some(mut keeper) = Keeper::heard(&dir, &sandbox)? else { return Ok(Vec::new()) };
    Ok(keeper.questions()?.into_iter().map(|question| Open::of(&sandbox, question)).collect())
}

/// Answers one, and writes down who did; what was asked.
pub fn answer(id: &str, answer: Answer, remember: Remember, caller: &Caller) -> Result<Open, Fault> {
    let unknown = || {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no question {id:?}")).subject(id);
        fault
            .phase(Phase::Admission)
            .hint("the questions of a sandbox are listed below it; they do not stay open for long")
    };
    let parts = id.strip_prefix("qst_").and_then(|rest| rest.rsplit_once('_'));
    let parts = parts.and_then(|(whose, number)| Some((format!("sbx_{whose}"), number.parse::<u64>().ok()?)));
    let (sandbox, number) = parts.ok_or_else(unknown)?;
    let state = State::open(caller)?;
    // By its whole id, and only a sandbox of this caller's.
    let known = state.store.read(|tx| tx.get::<Sandbox>(&sandbox))?;
    known.filter(|kept| caller.sees_kept(kept)).ok_or_else(unknown)?;
    let dir = crate::state::prepare(caller)?.0;
    let mut keeper = Keeper::heard(&dir, &sandbox)?.ok_or_else(unknown)?;
    let answered = Open::of(&sandbox, keeper.answer(number, answer, remember)?);
    let told = json!({"question": answered, "answer": answer, "remember": remember});
    state.store.write(|tx| note(tx, "answer", Step::Done, &sandbox, caller, told))?;
    Ok(answered)
}

fn told(question: egress::asks::Question) -> Question {
    let egress::asks::Question { id, op, target, rule, actor, asked_ms, deadline_ms } = question;
    let (pid, exe) = actor.map(|actor| (actor.pid, actor.exe)).unzip();
    Question { number: id, op: op.to_owned(), target, rule, pid, exe, asked_ms, deadline_ms }
}

/// Somebody at a terminal, who is asked one thing at a time. Nobody else has the terminal meanwhile: what is typed is the
/// answer, and nothing that the guest prints can look like part of the question.
pub trait Person {
    /// What they type comes here.
    fn hearing(&self) -> BorrowedFd<'_>;
    /// Puts a question.
    fn ask(&mut self, question: &Question);
    /// What was answered, if it was.
    fn heard(&mut self) -> Option<(Answer, Remember)>;
    /// Says that no answer is needed any more.
    fn never_mind(&mut self);
}

/// The table of a guest's questions, and the person at the terminal who is being asked, if there is one.
pub(crate) struct Asked {
    questions: Questions,
    person: Option<Box<dyn Person>>,
    current: Option<u64>,
}

impl Asked {
    pub(crate) fn new(questions: Questions, person: Option<Box<dyn Person>>) -> Asked {
        Asked { questions, person, current: None }
    }
}

impl enclosure::Asking for Asked {
    fn ask(&mut self, question: enclosure::Question<'_>) -> Result<enclosure::Begun, String> {
        let enclosure::Question { op, target, rule, actor } = question;
        Ok(match self.questions.0.ask_about(rule, op, target, actor)? {
            egress::asks::Begun::Known(allow) => enclosure::Begun::Known(allow),
            egress::asks::Begun::Waits(waiting) => {
                let fresh = waiting.fresh().is_some();
                enclosure::Begun::Waits { waiting: Box::new(Waiting(waiting)), fresh }
            }
        })
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.questions.0.changed()
    }

    fn asks_at(&self) -> Option<BorrowedFd<'_>> {
        self.person.as_ref().filter(|_| self.current.is_some()).map(|person| person.hearing())
    }

    fn turn(&mut self) {
        self.questions.0.seen();
        let Some(person) = &mut self.person else { return };
        let open = self.questions.open();
        if let Some(number) = self.current {
            if !open.iter().any(|question| question.number == number) {
                person.never_mind();
                self.current = None;
            } else if let Some((answer, remember)) = person.heard() {
                // It may have been given up at this very moment.
                let _ = self.questions.answer(number, answer, remember);
                self.current = None;
            } else {
                return;
            }
        }
        if let Some(next) = self.questions.open().first() {
            person.ask(next);
            self.current = Some(next.number);
        }
    }

    /// Gives the terminal back.
    fn close(&mut self) {
        if let (Some(person), Some(_)) = (&mut self.person, self.current.take()) {
            person.never_mind();
        }
    }
}

struct Waiting(egress::asks::Waiting);

impl enclosure::Waiting for Waiting {
    fn heard(&mut self) -> Option<enclosure::Answer> {
        self.0.heard().map(|answer| match answer {
            egress::asks::Answer::Allow => enclosure::Answer::Allow,
            egress::asks::Answer::Deny => enclosure::Answer::Deny,
            egress::asks::Answer::Nobody => enclosure::Answer::Nobody,
        })
    }
}
