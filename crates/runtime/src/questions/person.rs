//! The prompt at a terminal: open questions of a guest's table are put to a person one at a time.

use super::Questions;
use api::{Question, QuestionDecision, Remember};
use std::os::fd::BorrowedFd;

/// A person at a terminal, who is asked one question at a time. The prompt owns the terminal meanwhile: typed input is the answer, and no
/// output of the guest can look like part of the question.
pub trait Person {
    /// The descriptor that typed input comes from.
    fn hearing(&self) -> BorrowedFd<'_>;
    /// Puts a question.
    fn ask(&mut self, question: &Question);
    /// Returns the answer, once it was given.
    fn heard(&mut self) -> Option<(QuestionDecision, Remember)>;
    /// Withdraws the question.
    fn never_mind(&mut self);
}

/// Passes questions of the supervisor to a guest's table, and open ones to the person at the terminal, if there is one.
pub(crate) struct Prompter {
    questions: Questions,
    person: Option<Box<dyn Person>>,
    current: Option<u64>,
}

impl Prompter {
    pub(crate) fn new(questions: Questions, person: Option<Box<dyn Person>>) -> Prompter {
        Prompter { questions, person, current: None }
    }
}

impl enclosure::Approvals for Prompter {
    fn ask(&mut self, question: enclosure::Question<'_>) -> Result<enclosure::AskResult, String> {
        self.questions.ask_about(question)
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.questions.changed()
    }

    fn asks_at(&self) -> Option<BorrowedFd<'_>> {
        self.person.as_ref().filter(|_| self.current.is_some()).map(|person| person.hearing())
    }

    fn turn(&mut self) {
        self.questions.seen();
        let Some(person) = &mut self.person else { return };
        let open = self.questions.open();
        if let Some(number) = self.current {
            if !open.iter().any(|question| question.number == number) {
                person.never_mind();
                self.current = None;
            } else if let Some((answer, remember)) = person.heard() {
                // The question may have expired at this very moment.
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
