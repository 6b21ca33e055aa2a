//! A table of questions for the broker under test: bounded, answered in order, with answers that may hold for the whole run.

use egress::approval::{AnswerCallback, AnswerWaiter, Approvals, AskedAccess, OpenQuestion};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use terms::Actor;

const MAX_OPEN: usize = 16;

pub struct Questions {
    patience: Duration,
    table: Mutex<Table>,
    own: Weak<Questions>,
}

#[derive(Default)]
struct Table {
    asked: u64,
    open: BTreeMap<u64, Open>,
    answers: Vec<(AskedAccess, bool)>,
}

struct Open {
    subject: AskedAccess,
    waiters: BTreeMap<u64, AnswerCallback>,
}

impl Questions {
    pub fn new(patience: Duration) -> Arc<Questions> {
        Arc::new_cyclic(|own| Questions { patience, table: Mutex::default(), own: own.clone() })
    }

    /// Targets of the open questions, the oldest first.
    pub fn open(&self) -> Vec<String> {
        self.table.lock().unwrap().open.values().map(|open| open.subject.target()).collect()
    }

    /// Answers the oldest question and returns its target.
    pub fn answer_first(&self, allow: bool, for_the_run: bool) -> Option<String> {
        let mut table = self.table.lock().unwrap();
        let (_, open) = table.open.pop_first()?;
        if for_the_run || open.subject.is_repeated() {
            table.answers.push((open.subject.clone(), allow));
        }
        drop(table);
        open.waiters.into_values().for_each(|reply| reply(allow));
        Some(open.subject.target())
    }
}

impl Approvals for Questions {
    fn known(&self, subject: &AskedAccess, whole: bool) -> Option<bool> {
        let table = self.table.lock().unwrap();
        table.answers.iter().find(|(given, _)| given.covers(subject, whole)).map(|(_, allow)| *allow)
    }

    fn ask(
        &self,
        subject: &AskedAccess,
        actor: &mut dyn FnMut() -> Option<Actor>,
        reply: AnswerCallback,
    ) -> Result<OpenQuestion, String> {
        let mut table = self.table.lock().unwrap();
        table.asked += 1;
        let place = table.asked;
        let known = table.open.iter().find(|(_, open)| open.subject == *subject).map(|(number, _)| *number);
        if known.is_none() && table.open.len() >= MAX_OPEN {
            return Err(format!("{MAX_OPEN} questions are open already"));
        }
        let number = known.unwrap_or(place);
        let new = || Open { subject: subject.clone(), waiters: BTreeMap::new() };
        table.open.entry(number).or_insert_with(new).waiters.insert(place, reply);
        let waiter = Box::new(Waits { questions: self.own.upgrade().unwrap(), number, place });
        let actor = if known.is_none() { actor() } else { None };
        Ok(OpenQuestion { deadline: Instant::now() + self.patience, is_new: known.is_none(), actor, waiter })
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

struct Waits {
    questions: Arc<Questions>,
    number: u64,
    place: u64,
}

impl AnswerWaiter for Waits {
    fn expire(&mut self) {
        self.questions.table.lock().unwrap().open.remove(&self.number);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut table = self.questions.table.lock().unwrap();
        let Some(open) = table.open.get_mut(&self.number) else { return };
        open.waiters.remove(&self.place);
        if open.waiters.is_empty() {
            table.open.remove(&self.number);
        }
    }
}
