//! Table of a guest's open questions and of the answers that still hold: about its network, where the broker waits for them, and about
//! files, sockets and programs of the host, where its supervisor does. The table is bounded, and so is the number of questions that one
//! guest may ask in all, so that no person is worn down into saying yes.

use super::{LEAST_PATIENCE, MOST_PATIENCE, not_open};
use api::{Question, QuestionDecision, Remember};
use egress::approval::{self, AnswerCallback, Approvals};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terms::{Actor, Fault};

/// Bound on open questions.
const MAX_OPEN: usize = 16;
/// Bound on questions asked in all by one guest; those beyond are refused.
const MAX_ASKED: u64 = 256;
/// Bound on waiters for the answer to one question.
const MAX_WAITERS: usize = 256;
/// Time that an answer for once holds where guests ask again as a matter of course (`QuestionSubject::is_repeated`).
const ONCE: Duration = Duration::from_secs(30);
/// Time that an answer for once holds for programs: a shell that is refused one tries the next name in PATH, which often is another name of
/// the same program.
const ONCE_FOR_PROGRAMS: Duration = Duration::from_secs(3);

/// The questions of one guest. Cheap to clone; all clones are the same table.
#[derive(Clone)]
pub struct Questions(Arc<SharedTable>);

struct SharedTable {
    patience: Duration,
    table: Mutex<QuestionTable>,
    /// Readable once a question was asked, answered or withdrawn.
    changed: Option<OwnedFd>,
}

#[derive(Default)]
struct QuestionTable {
    open: BTreeMap<u64, PendingQuestion>,
    asked: u64,
    answers: BTreeMap<QuestionSubject, RememberedAnswer>,
}

struct PendingQuestion {
    subject: QuestionSubject,
    question: Question,
    deadline: Instant,
    waiters: BTreeMap<u64, AnswerCallback>,
}

/// An answer that holds for later askers, too.
struct RememberedAnswer {
    allow: bool,
    until: Option<Instant>,
}

/// Subject of a question, by which answers are told apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QuestionSubject {
    Network(approval::AskedAccess),
    /// A file, socket or program of the host.
    Local {
        rule: String,
        op: &'static str,
        target: String,
    },
}

impl QuestionSubject {
    fn op(&self) -> &'static str {
        match self {
            QuestionSubject::Network(subject) => subject.op().name(),
            QuestionSubject::Local { op, .. } => op,
        }
    }

    fn target(&self) -> String {
        match self {
            QuestionSubject::Network(subject) => subject.target(),
            QuestionSubject::Local { target, .. } => target.clone(),
        }
    }

    fn rule(&self) -> &str {
        match self {
            QuestionSubject::Network(subject) => &subject.rule,
            QuestionSubject::Local { rule, .. } => rule,
        }
    }

    fn covers(&self, other: &QuestionSubject, whole: bool) -> bool {
        match (self, other) {
            (QuestionSubject::Network(given), QuestionSubject::Network(other)) => given.covers(other, whole),
            _ => self == other,
        }
    }

    /// Returns how long an answer for once holds beyond its present waiters.
    fn lingers(&self) -> Option<Duration> {
        match self {
            QuestionSubject::Network(subject) => subject.is_repeated().then_some(ONCE),
            QuestionSubject::Local { op: "exec", .. } => Some(ONCE_FOR_PROGRAMS),
            QuestionSubject::Local { .. } => None,
        }
    }
}

/// A waiter for the answer to a question. Dropping the last waiter withdraws the question.
struct QuestionWaiter {
    questions: Questions,
    /// Number of the question, and key of this waiter in it.
    number: u64,
    place: u64,
}

impl approval::AnswerWaiter for QuestionWaiter {
    fn expire(&mut self) {
        self.questions.expire(self.number);
    }
}

impl Drop for QuestionWaiter {
    fn drop(&mut self) {
        let mut table = self.questions.table();
        let Some(open) = table.open.get_mut(&self.number) else { return };
        open.waiters.remove(&self.place);
        if open.waiters.is_empty() {
            table.open.remove(&self.number);
            drop(table);
            self.questions.notify();
        }
    }
}

/// A question as it was put to the table: new, or joined.
struct Put {
    waiter: QuestionWaiter,
    deadline: Instant,
    is_new: bool,
    actor: Option<Actor>,
}

impl Approvals for Questions {
    fn known(&self, subject: &approval::AskedAccess, whole: bool) -> Option<bool> {
        self.given(&QuestionSubject::Network(subject.clone()), whole)
    }

    fn ask(
        &self,
        subject: &approval::AskedAccess,
        actor: &mut dyn FnMut() -> Option<Actor>,
        reply: AnswerCallback,
    ) -> Result<approval::OpenQuestion, String> {
        let Put { waiter, deadline, is_new, actor } =
            self.put(QuestionSubject::Network(subject.clone()), actor, reply)?;
        Ok(approval::OpenQuestion { deadline, is_new, actor, waiter: Box::new(waiter) })
    }

    fn patience(&self) -> Duration {
        self.0.patience
    }
}

/// An asker outside the network, which polls for its answer.
struct LocalWaiter {
    waiter: QuestionWaiter,
    deadline: Instant,
    answer: Receiver<bool>,
}

impl enclosure::PendingAnswer for LocalWaiter {
    fn heard(&mut self) -> Option<enclosure::QuestionAnswer> {
        match self.answer.try_recv() {
            Ok(true) => Some(enclosure::QuestionAnswer::Allow),
            Ok(false) => Some(enclosure::QuestionAnswer::Deny),
            Err(TryRecvError::Empty) if Instant::now() < self.deadline => None,
            Err(_) => {
                approval::AnswerWaiter::expire(&mut self.waiter);
                Some(enclosure::QuestionAnswer::Nobody)
            }
        }
    }
}

impl Questions {
    /// A table whose questions are refused when no answer comes within `patience`.
    pub fn new(patience: Duration) -> Questions {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let patience = patience.clamp(LEAST_PATIENCE, MOST_PATIENCE);
        Questions(Arc::new(SharedTable { patience, table: Mutex::default(), changed }))
    }

    /// Lists open questions, the oldest first; there are never many.
    pub fn open(&self) -> Vec<Question> {
        let now = Instant::now();
        self.table().open.values().filter(|open| open.deadline > now).map(|open| open.question.clone()).collect()
    }

    /// Answers a question, and returns it.
    pub fn answer(&self, number: u64, answer: QuestionDecision, remember: Remember) -> Result<Question, Fault> {
        let allow = answer == QuestionDecision::Allow;
        let mut table = self.table();
        let open = table.open.remove(&number).filter(|open| open.deadline > Instant::now());
        let open = open.ok_or_else(|| not_open(number))?;
        let until = match remember {
            Remember::Run => Some(None),
            Remember::Once => open.subject.lingers().map(|time| Some(Instant::now() + time)),
        };
        if let Some(until) = until {
            table.answers.insert(open.subject, RememberedAnswer { allow, until });
        }
        drop(table);
        self.notify();
        open.waiters.into_values().for_each(|reply| reply(allow));
        Ok(open.question)
    }

    /// Asks about a file, socket or program of the host. `Err` is the reason for which no person is asked.
    pub(super) fn ask_about(&self, question: enclosure::Question<'_>) -> Result<enclosure::AskResult, String> {
        let enclosure::Question { op, target, rule, actor } = question;
        let subject = QuestionSubject::Local { rule: rule.to_owned(), op, target: target.to_owned() };
        if let Some(allow) = self.given(&subject, true) {
            return Ok(enclosure::AskResult::Known(allow));
        }
        let (send, answer) = sync_channel(1);
        // A waiter that has given up does not receive it.
        let reply = Box::new(move |allow| {
            let _ = send.try_send(allow);
        });
        let mut actor = Some(actor);
        let Put { waiter, deadline, is_new, .. } = self.put(subject, &mut || actor.take(), reply)?;
        let waiting = Box::new(LocalWaiter { waiter, deadline, answer });
        Ok(enclosure::AskResult::Waits { waiting, fresh: is_new })
    }

    /// Descriptor that is readable once a question was asked, answered or withdrawn since the last `seen`.
    pub(super) fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.0.changed.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn seen(&self) {
        if let Some(changed) = &self.0.changed {
            // Not readable where nothing has changed.
            let _ = rustix::io::read(changed, &mut [0u8; 8]);
        }
    }

    fn notify(&self) {
        if let Some(changed) = &self.0.changed {
            // A full counter is readable, too.
            let _ = rustix::io::write(changed, &1u64.to_ne_bytes());
        }
    }

    /// Returns the answer that was given before and still holds.
    fn given(&self, subject: &QuestionSubject, whole: bool) -> Option<bool> {
        let now = Instant::now();
        let mut table = self.table();
        table.answers.retain(|_, given| given.until.is_none_or(|until| until > now));
        let mut found = table.answers.iter().filter(|(given, _)| given.covers(subject, whole)).map(|(_, given)| given);
        // Of two answers a refusal wins.
        found.clone().any(|given| !given.allow).then_some(false).or_else(|| found.next().map(|given| given.allow))
    }

    /// Opens a question, or joins the waiters for the same answer.
    fn put(
        &self,
        subject: QuestionSubject,
        actor: &mut dyn FnMut() -> Option<Actor>,
        reply: AnswerCallback,
    ) -> Result<Put, String> {
        let now = Instant::now();
        let mut table = self.table();
        let same = |open: &PendingQuestion| open.subject == subject && open.deadline > now;
        let joined = table.open.iter().find(|(_, open)| same(open)).map(|(number, _)| *number);
        let is_new = joined.is_none();
        let mut found = None;
        let number = match joined {
            Some(number) => number,
            None if table.open.len() >= MAX_OPEN => return Err(format!("{MAX_OPEN} questions are open already")),
            None if table.asked >= MAX_ASKED => return Err(format!("{MAX_ASKED} questions were asked already")),
            None => {
                table.asked += 1;
                let number = table.asked;
                found = actor();
                let question = self.question(number, &subject, found.as_ref());
                let deadline = now + self.0.patience;
                table.open.insert(number, PendingQuestion { subject, question, deadline, waiters: BTreeMap::new() });
                number
            }
        };
        let Some(open) = table.open.get_mut(&number) else { return Err("the question is gone".to_owned()) };
        if open.waiters.len() >= MAX_WAITERS {
            return Err(format!("{MAX_WAITERS} wait for the same answer already"));
        }
        let place = open.waiters.last_key_value().map_or(0, |(last, _)| last + 1);
        open.waiters.insert(place, reply);
        let deadline = open.deadline;
        drop(table);
        if is_new {
            self.notify();
        }
        Ok(Put { waiter: QuestionWaiter { questions: self.clone(), number, place }, deadline, is_new, actor: found })
    }

    fn question(&self, number: u64, subject: &QuestionSubject, actor: Option<&Actor>) -> Question {
        let asked_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let (pid, exe) = actor.map(|actor| (actor.pid, actor.exe.clone())).unzip();
        Question {
            number,
            op: subject.op().to_owned(),
            target: subject.target(),
            rule: subject.rule().to_owned(),
            pid,
            exe,
            asked_ms,
            deadline_ms: asked_ms.saturating_add(self.0.patience.as_millis() as u64),
        }
    }

    /// Closes a question that was not answered in time. A guest that asks for the same name at once is refused without
    /// another question.
    fn expire(&self, number: u64) {
        let mut table = self.table();
        if let Some(open) = table.open.remove(&number)
            && let Some(time) = open.subject.lingers()
        {
            table.answers.insert(open.subject, RememberedAnswer { allow: false, until: Some(Instant::now() + time) });
        }
        drop(table);
        self.notify();
    }

    fn table(&self) -> MutexGuard<'_, QuestionTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use egress::approval::Access;

    fn questions() -> Questions {
        Questions::new(Duration::from_secs(60))
    }

    fn connect(host: usize) -> approval::AskedAccess {
        let at = ([1, 1, 1, host as u8], 80).into();
        approval::AskedAccess {
            rule: "net.rules[0]".to_owned(),
            access: Access::Connect { proto: "tcp", host: None, at },
        }
    }

    fn ask(questions: &Questions, subject: &approval::AskedAccess) -> Result<approval::OpenQuestion, String> {
        Approvals::ask(questions, subject, &mut || None, Box::new(drop))
    }

    fn local(questions: &Questions, op: &'static str, target: &str) -> enclosure::AskResult {
        let actor = Actor { pid: 7, exe: "/bin/sh".to_owned() };
        questions.ask_about(enclosure::Question { op, target, rule: "fs.rules[0]", actor }).unwrap()
    }

    #[test]
    fn questions_are_bounded_and_shared() {
        let questions = questions();
        let mut held: Vec<_> = (0..MAX_OPEN).map(|host| ask(&questions, &connect(host)).ok().unwrap()).collect();
        assert!(ask(&questions, &connect(200)).err().unwrap().contains("open already"));
        let again = ask(&questions, &connect(0)).ok().unwrap();
        assert!(!again.is_new && held[0].is_new);
        // A question without waiters is no longer open.
        drop(held.remove(1));
        assert_eq!(questions.open().len(), MAX_OPEN - 1);
        drop(held.remove(0));
        assert_eq!(questions.open().len(), MAX_OPEN - 1, "another waits for the same");
        drop(again);
        assert_eq!(questions.open().len(), MAX_OPEN - 2);
    }

    #[test]
    fn a_question_is_answered_once() {
        let questions = questions();
        let (send, answer) = sync_channel(1);
        let reply: AnswerCallback = Box::new(move |allow| send.send(allow).unwrap());
        let waits = Approvals::ask(&questions, &connect(1), &mut || None, reply).ok().unwrap();
        let asked = questions.open().remove(0);
        assert_eq!((asked.op.as_str(), asked.target.as_str()), ("net.connect", "1.1.1.1:80"));
        assert_eq!(questions.answer(asked.number, QuestionDecision::Allow, Remember::Once).unwrap(), asked);
        assert_eq!(answer.recv(), Ok(true));
        assert!(
            questions.answer(asked.number, QuestionDecision::Allow, Remember::Once).is_err(),
            "nobody answers twice"
        );
        assert_eq!(questions.known(&connect(1), false), None, "the answer was for once");
        drop(waits);
    }

    #[test]
    fn an_answer_for_the_run_holds_and_a_refusal_counts() {
        let questions = questions();
        for (host, answer) in [(1, QuestionDecision::Allow), (2, QuestionDecision::Deny)] {
            let _waits = ask(&questions, &connect(host)).ok().unwrap();
            let number = questions.open()[0].number;
            questions.answer(number, answer, Remember::Run).unwrap();
        }
        assert_eq!([1, 2, 3].map(|host| questions.known(&connect(host), false)), [Some(true), Some(false), None]);
    }

    #[test]
    fn files_and_programs_are_asked_about_in_the_same_table() {
        let questions = questions();
        let enclosure::AskResult::Waits { mut waiting, fresh: true } = local(&questions, "fs.read", "/etc/a") else {
            panic!("it waits")
        };
        assert_eq!(waiting.heard(), None);
        let asked = questions.open().remove(0);
        assert_eq!((asked.op.as_str(), asked.pid, asked.exe.as_deref()), ("fs.read", Some(7), Some("/bin/sh")));
        questions.answer(asked.number, QuestionDecision::Deny, Remember::Once).unwrap();
        assert_eq!(waiting.heard(), Some(enclosure::QuestionAnswer::Deny));
        // A file is asked about each time; a program that was refused is not asked about under its next name in PATH.
        assert!(matches!(local(&questions, "fs.read", "/etc/a"), enclosure::AskResult::Waits { .. }));
        let _held = local(&questions, "exec", "/bin/b");
        let number = questions.open().last().unwrap().number;
        questions.answer(number, QuestionDecision::Deny, Remember::Once).unwrap();
        assert!(matches!(local(&questions, "exec", "/bin/b"), enclosure::AskResult::Known(false)));
    }
}
