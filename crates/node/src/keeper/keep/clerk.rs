//! What a keeper writes down and counts, on a thread beside its loop: the loop never waits for a disk, and so no command waits for
//! what became of another. Records of runs are there for everybody at once, and on the disk a moment later; the store is closed again
//! when nothing is left to write.

use crate::fresh;
use crate::keeper::place::Place;
use crate::keeper::services::ServiceNow;
use crate::questions::{Open, Question};
use crate::run::{self, Tally, Timer, Written};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::json;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Entry, Step, Store, Tx};
use terms::{ErrorKind, Fault, Outcome};
use workspace::{Stack, sight};

/// A run as it is written down.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub run: String,
    pub command: Vec<String>,
    pub actor: String,
    pub started_ms: u64,
    pub ended_ms: Option<u64>,
    pub service: Option<String>,
    pub request: Option<String>,
    /// How long each of its phases takes.
    pub timer: Timer,
}

pub(super) enum Task {
    Begin(Note),
    End(Note, Box<Outcome>),
    /// How the services stand; with one that was given up, for the journal.
    Services(Vec<ServiceNow>, Option<ServiceNow>),
    /// What a person is asked.
    Asked(Vec<Question>),
}

/// What was done.
pub(super) enum Done {
    Begun(String, Result<(), Fault>),
    /// With its changes counted. A record that could not be written is told in its message.
    Ended(String, Box<Outcome>),
}

pub(super) struct Clerk {
    tasks: Option<SyncSender<Task>>,
    done: Receiver<Done>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Enough for a walk through a tree and for a transaction.
const STACK: usize = 512 << 10;
/// Enough to wait for a disk, to add a line to a file and to move pages of the store.
const SMALL_STACK: usize = 256 << 10;

impl Clerk {
    /// `most` tasks can wait at once.
    pub fn start(state: PathBuf, sandbox: String, stack: Option<Stack>, most: usize) -> std::io::Result<Clerk> {
        let (tasks, todo) = sync_channel(most);
        let (tell, done) = sync_channel(most);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Arc::clone(&wake);
        let tally = Tally::default();
        let desk = Desk { state, sandbox, stack, tally, store: None, due: None, settling: None, trouble: None };
        let work = move || desk.work(&todo, &tell, &bell);
        let thread = std::thread::Builder::new().name("clerk".into()).stack_size(STACK).spawn(work)?;
        Ok(Clerk { tasks: Some(tasks), done, wake, thread: Some(thread) })
    }

    /// False when it has more to do than it may.
    pub fn give(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.try_send(task).is_ok())
    }

    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn done(&self) -> Vec<Done> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        self.done.try_iter().collect()
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Desk {
    state: PathBuf,
    sandbox: String,
    /// The layers that changes are counted in.
    stack: Option<Stack>,
    /// What was found in them before.
    tally: Tally,
    store: Option<Store>,
    /// When what was written must be on its way to the disk.
    due: Option<Instant>,
    /// Who waits for the disk.
    settling: Option<JoinHandle<Result<(), Fault>>>,
    /// The disk did not keep something: from then on every record is waited for, and whoever is next hears of it.
    trouble: Option<Fault>,
}

/// How long the store stays open for what may come next.
const OPEN: Duration = Duration::from_millis(500);
/// How long a record may be at the mercy of the power; those of the same moment go to the disk together.
const SETTLED: Duration = Duration::from_millis(50);

impl Desk {
    fn work(mut self, todo: &Receiver<Task>, tell: &SyncSender<Done>, bell: &OwnedFd) {
        loop {
            if self.due.is_some_and(|due| Instant::now() >= due) {
                self.settle();
            }
            let first = match (&self.store, self.due) {
                (_, Some(due)) => todo.recv_timeout(due.saturating_duration_since(Instant::now())),
                (Some(_), None) => todo.recv_timeout(OPEN),
                (None, None) => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let first = match first {
                Ok(task) => task,
                Err(RecvTimeoutError::Timeout) if self.due.is_some() => continue,
                Err(RecvTimeoutError::Timeout) => {
                    self.store = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.settle();
                    self.settled();
                    return;
                }
            };
            let tell = |done: Vec<Done>| {
                done.into_iter().for_each(|done| drop(tell.try_send(done)));
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            };
            let (mut begun, mut ended, mut services, mut asked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for task in std::iter::once(first).chain(todo.try_iter()) {
                match task {
                    Task::Begin(note) => begun.push(note),
                    Task::End(note, outcome) => ended.push((note, outcome)),
                    Task::Services(all, given_up) => services.push((all, given_up)),
                    Task::Asked(questions) => asked.extend(questions),
                }
            }
            // Beginnings are waited for, and ends come after their beginnings.
            if !begun.is_empty() {
                tell(self.begin(begun));
            }
            if !ended.is_empty() {
                tell(self.end(ended));
                self.look();
            }
            if !services.is_empty() {
                self.write_services(services);
            }
            if !asked.is_empty() {
                self.write_asked(asked);
            }
        }
    }

    fn begin(&mut self, notes: Vec<Note>) -> Vec<Done> {
        let results = self.write(&notes, |tx, written, _| written.begin(tx));
        notes.into_iter().zip(results).map(|(note, result)| Done::Begun(note.run, result)).collect()
    }

    fn end(&mut self, ended: Vec<(Note, Box<Outcome>)>) -> Vec<Done> {
        // One look at the layer tells of all that have ended by now.
        let counted = self.stack.as_ref().map(|stack| self.tally.count(stack)).transpose();
        let (notes, mut outcomes): (Vec<Note>, Vec<Box<Outcome>>) = ended.into_iter().unzip();
        outcomes.iter_mut().for_each(|outcome| match &counted {
            Ok(found) => outcome.changes = found.unwrap_or_default().changes,
            Err(fault) => drop(outcome.message.get_or_insert_with(|| run::uncounted(fault))),
        });
        let results = self.write(&notes, |tx, written, at| written.end(tx, &outcomes[at]));
        for (outcome, result) in outcomes.iter_mut().zip(results) {
            if let Err(fault) = result {
                outcome.message.get_or_insert(format!("the run could not be written down: {fault}"));
            } else if let Some(fault) = &self.trouble {
                outcome.message.get_or_insert(format!("records of runs before this one may be lost: {fault}"));
            }
        }
        notes.into_iter().zip(outcomes).map(|(note, outcome)| Done::Ended(note.run, outcome)).collect()
    }

    /// Files of the base that commands began to change, as long as they are what they were. Nobody waits for it.
    fn look(&mut self) {
        if let Some(stack) = &self.stack {
            let _without_it_times_decide = sight::look(stack, &self.tally.met());
        }
    }

    fn write_services(&mut self, told: Vec<(Vec<ServiceNow>, Option<ServiceNow>)>) {
        if let Some((all, _)) = told.last() {
            let _what_is_told_is_old_then = Place::of(&self.state, &self.sandbox).write_services(all);
        }
        for given_up in told.into_iter().filter_map(|(_, given_up)| given_up) {
            let Ok(store) = self.store.take().map_or_else(|| Store::open(&self.state), Ok) else { return };
            let (at_ms, subject) = (fresh::now_ms(), self.sandbox.as_str());
            let body = json!({"service": given_up.name, "restarts": given_up.restarts, "last": given_up.last});
            let entry = Entry { at_ms, verb: "service", step: Step::Failed, subject, actor: "keeper", body };
            let _it_is_in_its_file = store.write(|tx| tx.note(&entry));
            self.store = Some(store);
        }
    }

    fn write_asked(&mut self, asked: Vec<Question>) {
        let Ok(store) = self.store.take().map_or_else(|| Store::open(&self.state), Ok) else { return };
        let (at_ms, subject) = (fresh::now_ms(), self.sandbox.as_str());
        let _they_are_listed_too = store.write(|tx| {
            asked.into_iter().try_for_each(|question| {
                let body = json!({ "question": Open::of(subject, question) });
                tx.note(&Entry { at_ms, verb: "ask", step: Step::Done, subject, actor: "keeper", body }).map(drop)
            })
        });
        self.store = Some(store);
    }

    /// All in one transaction. A run that is refused leaves the others as they are; a store that cannot
    /// write has written none.
    fn write(
        &mut self,
        notes: &[Note],
        act: impl Fn(&Tx<'_>, &Written<'_>, usize) -> Result<(), Fault>,
    ) -> Vec<Result<(), Fault>> {
        let store = match self.store.take().map_or_else(|| Store::open(&self.state), Ok) {
            Ok(store) => self.store.insert(store),
            Err(fault) => return notes.iter().map(|_| Err(fault.clone())).collect(),
        };
        let work = |tx: &Tx<'_>| {
            let each = notes.iter().enumerate().map(|(at, note)| act(tx, &written(&self.sandbox, note), at));
            let results: Vec<Result<(), Fault>> = each.collect();
            match results.iter().find_map(|result| result.as_ref().err().filter(|fault| is_ours(fault))) {
                Some(fault) => Err(fault.clone()),
                None => Ok(results),
            }
        };
        let all = match self.trouble {
            None => store.write_soon(work).inspect(|_| {
                self.due.get_or_insert_with(|| Instant::now() + SETTLED);
            }),
            Some(_) => store.write(work),
        };
        all.unwrap_or_else(|fault| {
            // What failed may work with another handle; what this one wrote before goes to the disk.
            self.settle();
            self.store = None;
            notes.iter().map(|_| Err(fault.clone())).collect()
        })
    }
}

impl Desk {
    /// What was written goes to the disk, and somebody else waits for it: the next records need not.
    fn settle(&mut self) {
        self.due = None;
        self.settled();
        let Some(unsettled) = self.store.as_ref().and_then(Store::unsettled) else { return };
        let work = move || unsettled.settle();
        let begun = std::thread::Builder::new().name("settle".into()).stack_size(SMALL_STACK).spawn(work);
        match begun {
            Ok(thread) => self.settling = Some(thread),
            Err(e) => {
                self.trouble = Some(Fault::new(ErrorKind::Unavailable, format!("nobody could wait for the disk: {e}")))
            }
        }
    }

    /// Waits for who waits.
    fn settled(&mut self) {
        let broken = |_| Err(Fault::internal("nobody knows whether the disk has them"));
        if let Some(Err(fault)) = self.settling.take().map(|thread| thread.join().unwrap_or_else(broken)) {
            self.trouble = Some(fault);
        }
    }
}

/// Of the store, not of the run that was to be written.
fn is_ours(fault: &Fault) -> bool {
    matches!(fault.error_kind, ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::LimitExceeded)
}

fn written<'a>(sandbox: &str, note: &'a Note) -> Written<'a> {
    Written {
        sandbox: sandbox.to_owned(),
        run: &note.run,
        command: &note.command,
        actor: &note.actor,
        started_ms: note.started_ms,
        ended_ms: note.ended_ms,
        service: note.service.as_deref(),
        request: note.request.as_deref(),
        timer: Some(&note.timer),
    }
}
