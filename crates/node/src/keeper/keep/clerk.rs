//! What a keeper writes down and counts, on a thread beside its loop: the loop never waits for a disk, and so no command waits for
//! what became of another. The store is closed again when nothing is left to write.

use crate::run::{Timer, Written};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use store::Store;
use terms::{Fault, Outcome};
use workspace::Stack;

/// A run as it is written down.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub run: String,
    pub command: Vec<String>,
    pub actor: String,
    pub started_ms: u64,
    pub service: Option<String>,
    /// How long each of its phases takes.
    pub timer: Timer,
}

pub(super) enum Task {
    Begin(Note),
    End(Note, Box<Outcome>),
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
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Enough for a walk through a tree and for a transaction.
const STACK: usize = 512 << 10;

impl Clerk {
    /// `most` tasks can wait at once.
    pub fn start(state: PathBuf, sandbox: String, stack: Option<Stack>, most: usize) -> std::io::Result<Clerk> {
        let (tasks, todo) = sync_channel(most);
        let (tell, done) = sync_channel(most);
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Arc::clone(&wake);
        let desk = Desk { state, sandbox, stack, store: None };
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
    store: Option<Store>,
}

impl Desk {
    fn work(mut self, todo: &Receiver<Task>, tell: &SyncSender<Done>, bell: &OwnedFd) {
        while let Ok(task) = todo.recv() {
            let waiting: Vec<Task> = std::iter::once(task).chain(todo.try_iter()).collect();
            // One look at the layer tells of all that have ended by now.
            let ends = waiting.iter().any(|task| matches!(task, Task::End(..)));
            let changes = self.stack.as_ref().filter(|_| ends).map(crate::run::changes).unwrap_or_default();
            for task in waiting {
                let done = match task {
                    Task::Begin(note) => {
                        let begun = self.with_store(|store, sandbox| written(sandbox, &note).begin(store));
                        Done::Begun(note.run, begun)
                    }
                    Task::End(note, mut outcome) => {
                        outcome.changes = changes;
                        let ended = self.with_store(|store, sandbox| written(sandbox, &note).end(store, &outcome));
                        if let Err(fault) = ended {
                            outcome.message.get_or_insert(format!("the run could not be written down: {fault}"));
                        }
                        Done::Ended(note.run, outcome)
                    }
                };
                let _nobody_listens = tell.try_send(done);
                let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
            }
            self.store = None;
        }
    }

    fn with_store(&mut self, act: impl FnOnce(&Store, &str) -> Result<(), Fault>) -> Result<(), Fault> {
        let store = match self.store.take() {
            Some(store) => store,
            None => Store::open(&self.state)?,
        };
        let result = act(&store, &self.sandbox);
        self.store = Some(store);
        result
    }
}

fn written<'a>(sandbox: &str, note: &'a Note) -> Written<'a> {
    Written {
        sandbox: sandbox.to_owned(),
        run: &note.run,
        command: &note.command,
        actor: &note.actor,
        started_ms: note.started_ms,
        service: note.service.as_deref(),
        timer: Some(&note.timer),
    }
}
