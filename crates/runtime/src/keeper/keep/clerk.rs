//! Writer thread of a keeper: records runs and counts changes beside the poll loop, so that the loop never blocks on a disk and no command
//! waits for the record of another. Records are visible to all readers at once, and synced to disk a moment later; the store is closed when
//! nothing is left to write.

use crate::keeper_dir::place::KeeperDir;
use crate::run::{RunWriter, Timer};
use api::{JournalStep, OpenQuestion, Question, ServiceStatus};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::json;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Entry, Store, Tx};
use terms::{ErrorKind, Fault, Outcome};
use workspace::change_count::Tally;
use workspace::{Stack, sight};

/// A run as the clerk is told of it; written in a transaction as `RunWriter`.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub run: String,
    pub command: Vec<String>,
    pub actor: String,
    pub started_ms: u64,
    pub ended_ms: Option<u64>,
    pub service: Option<String>,
    pub request: Option<String>,
    /// Durations of its phases.
    pub timer: Timer,
}

pub(super) enum Task {
    Begin(Note),
    End(Note, Box<Outcome>),
    /// States of the services; with a service that was given up, for the journal.
    Services(Vec<ServiceStatus>, Option<ServiceStatus>),
    /// Questions for a person, for the journal.
    Asked(Vec<Question>),
}

/// Completed tasks.
pub(super) enum CompletedTask {
    Begun(String, Result<(), Fault>),
    /// A run's end, with its changes counted. A record that could not be written is reported in its message.
    Ended(String, Box<Outcome>),
}

pub(super) struct Clerk {
    tasks: Option<SyncSender<Task>>,
    done: Receiver<CompletedTask>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Thread stack that fits a walk through a tree and a transaction.
const STACK: usize = 512 << 10;
/// Thread stack that fits an fsync, an append to a file and moving pages of the store.
const SMALL_STACK: usize = 256 << 10;

impl Clerk {
    /// Starts the thread with a queue of `most` tasks.
    pub fn start(state: PathBuf, sandbox: String, stack: Option<Stack>, most: usize) -> std::io::Result<Clerk> {
        let (tasks, todo) = sync_channel(most);
        let (tell, done) = sync_channel(most);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Arc::clone(&wake);
        let tally = Tally::default();
        let recorder = RunRecorder {
            state,
            sandbox,
            stack,
            tally,
            store: None,
            sync_at: None,
            sync_thread: None,
            sync_failure: None,
        };
        let work = move || recorder.work(&todo, &tell, &bell);
        let thread = std::thread::Builder::new().name("clerk".into()).stack_size(STACK).spawn(work)?;
        Ok(Clerk { tasks: Some(tasks), done, wake, thread: Some(thread) })
    }

    /// Queues a task; false when the queue is full.
    pub fn give(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.try_send(task).is_ok())
    }

    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn done(&self) -> Vec<CompletedTask> {
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

struct RunRecorder {
    state: PathBuf,
    sandbox: String,
    /// Layers that changes are counted in.
    stack: Option<Stack>,
    /// Counts from earlier passes.
    tally: Tally,
    store: Option<Store>,
    /// Deadline of the next sync to disk.
    sync_at: Option<Instant>,
    /// Thread that syncs to disk.
    sync_thread: Option<JoinHandle<Result<(), Fault>>>,
    /// Fault of a sync that failed. From then on every record is synced before it is reported, and the next outcome mentions the fault.
    sync_failure: Option<Fault>,
}

/// Time that an unused store stays open.
const STORE_IDLE: Duration = Duration::from_millis(500);
/// Time that a record may be lost to a power failure; records of the same window are synced together.
const SYNC_DELAY: Duration = Duration::from_millis(50);

impl RunRecorder {
    fn work(mut self, todo: &Receiver<Task>, tell: &SyncSender<CompletedTask>, bell: &OwnedFd) {
        loop {
            if self.sync_at.is_some_and(|due| Instant::now() >= due) {
                self.start_sync();
            }
            let first = match (&self.store, self.sync_at) {
                (_, Some(due)) => todo.recv_timeout(due.saturating_duration_since(Instant::now())),
                (Some(_), None) => todo.recv_timeout(STORE_IDLE),
                (None, None) => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let first = match first {
                Ok(task) => task,
                Err(RecvTimeoutError::Timeout) if self.sync_at.is_some() => continue,
                Err(RecvTimeoutError::Timeout) => {
                    self.store = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.start_sync();
                    self.join_sync();
                    return;
                }
            };
            let tell = |done: Vec<CompletedTask>| {
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
            // Starts come first: clients wait for them, and an end must follow its start.
            if !begun.is_empty() {
                tell(self.begin(begun));
            }
            if !ended.is_empty() {
                tell(self.end(ended));
                self.record_base_digests();
            }
            if !services.is_empty() {
                self.write_services(services);
            }
            if !asked.is_empty() {
                self.write_asked(asked);
            }
        }
    }

    fn begin(&mut self, notes: Vec<Note>) -> Vec<CompletedTask> {
        let results = self.write(&notes, |tx, written, _| written.begin(tx));
        notes.into_iter().zip(results).map(|(note, result)| CompletedTask::Begun(note.run, result)).collect()
    }

    fn end(&mut self, ended: Vec<(Note, Box<Outcome>)>) -> Vec<CompletedTask> {
        // A single scan of the layer serves all runs that have ended by now.
        let counted = self.stack.as_ref().map(|stack| self.tally.count(stack)).transpose();
        let (notes, mut outcomes): (Vec<Note>, Vec<Box<Outcome>>) = ended.into_iter().unzip();
        outcomes.iter_mut().for_each(|outcome| match &counted {
            Ok(found) => outcome.changes = found.unwrap_or_default().changes,
            Err(fault) => drop(outcome.message.get_or_insert_with(|| workspace::change_count::uncounted(fault))),
        });
        let results = self.write(&notes, |tx, written, at| written.end(tx, &outcomes[at]));
        for (outcome, result) in outcomes.iter_mut().zip(results) {
            if let Err(fault) = result {
                outcome.message.get_or_insert(format!("the run could not be recorded: {fault}"));
            } else if let Some(fault) = &self.sync_failure {
                outcome.message.get_or_insert(format!("records of runs before this one may be lost: {fault}"));
            }
        }
        notes.into_iter().zip(outcomes).map(|(note, outcome)| CompletedTask::Ended(note.run, outcome)).collect()
    }

    /// Records digests of base files that commands began to change, while they are unmodified. No client waits for it.
    fn record_base_digests(&mut self) {
        if let Some(stack) = &self.stack {
            let _ = sight::look(stack, &self.tally.met()); // without it, drift is judged by times
        }
    }

    fn write_services(&mut self, told: Vec<(Vec<ServiceStatus>, Option<ServiceStatus>)>) {
        if let Some((all, _)) = told.last() {
            let _ = KeeperDir::of(&self.state, &self.sandbox).write_services(all); // on failure, readers see the older states
        }
        for given_up in told.into_iter().filter_map(|(_, given_up)| given_up) {
            let Ok(store) = self.store.take().map_or_else(|| Store::open(&self.state), Ok) else { return };
            let (at_ms, subject) = (terms::clock::now_ms(), self.sandbox.as_str());
            let body = json!({"service": given_up.name, "restarts": given_up.restarts, "last": given_up.last});
            let entry = Entry { at_ms, verb: "service", step: JournalStep::Failed, subject, actor: "keeper", body };
            let _ = store.write(|tx| tx.note(&entry)); // the services file has it as well
            self.store = Some(store);
        }
    }

    fn write_asked(&mut self, asked: Vec<Question>) {
        let Ok(store) = self.store.take().map_or_else(|| Store::open(&self.state), Ok) else { return };
        let (at_ms, subject) = (terms::clock::now_ms(), self.sandbox.as_str());
        // Open questions are listed even without an entry.
        let _ = store.write(|tx| {
            asked.into_iter().try_for_each(|question| {
                let body = json!({ "question": OpenQuestion::of(subject, question) });
                tx.note(&Entry { at_ms, verb: "ask", step: JournalStep::Done, subject, actor: "keeper", body })
                    .map(drop)
            })
        });
        self.store = Some(store);
    }

    /// Writes all notes in one transaction. A run that is refused leaves the others untouched; when the store cannot write, none is
    /// written.
    fn write(
        &mut self,
        notes: &[Note],
        act: impl Fn(&Tx<'_>, &RunWriter<'_>, usize) -> Result<(), Fault>,
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
        let all = match self.sync_failure {
            None => store.write_soon(work).inspect(|_| {
                self.sync_at.get_or_insert_with(|| Instant::now() + SYNC_DELAY);
            }),
            Some(_) => store.write(work),
        };
        all.unwrap_or_else(|fault| {
            // A new handle may succeed; records that this one wrote before are synced.
            self.start_sync();
            self.store = None;
            notes.iter().map(|_| Err(fault.clone())).collect()
        })
    }
}

impl RunRecorder {
    /// Syncs the written records on another thread, so that the next records need not wait for it.
    fn start_sync(&mut self) {
        self.sync_at = None;
        self.join_sync();
        let Some(unsettled) = self.store.as_ref().and_then(Store::unsettled) else { return };
        let work = move || unsettled.settle();
        let begun = std::thread::Builder::new().name("settle".into()).stack_size(SMALL_STACK).spawn(work);
        match begun {
            Ok(thread) => self.sync_thread = Some(thread),
            Err(e) => {
                self.sync_failure = Some(Fault::new(ErrorKind::Unavailable, format!("cannot wait for the disk: {e}")))
            }
        }
    }

    /// Joins the sync thread.
    fn join_sync(&mut self) {
        let broken = |_| Err(Fault::internal("it is unknown whether they are on disk"));
        if let Some(Err(fault)) = self.sync_thread.take().map(|thread| thread.join().unwrap_or_else(broken)) {
            self.sync_failure = Some(fault);
        }
    }
}

/// Returns whether a fault is the store's, and not that of the run to be recorded.
fn is_ours(fault: &Fault) -> bool {
    matches!(fault.error_kind, ErrorKind::Internal | ErrorKind::Unavailable | ErrorKind::LimitExceeded)
}

fn written<'a>(sandbox: &str, note: &'a Note) -> RunWriter<'a> {
    RunWriter {
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
