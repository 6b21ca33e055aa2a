//! Calls of code without a thread: a task waits for a call's descriptors and its deadline, steps it on a thread of the pool, and hands its
//! events to a reader, which may be slow. A reader that leaves cancels its call; at shutdown a call goes on without a reader, so that the
//! next daemon can resume it.
//!
//! ```text
//!            context free    permits    begun             events ─▶ reader
//!  request ─▶ queue ────────▶ start ───▶ driver ─▶ step ─┤
//!             (ContextQueues)             ▲              └ none ─▶ wait: descriptors, deadline, reader gone
//!                                         └──────────────────────────┘
//! ```

use crate::admission::{Permit, StartPermit};
use crate::readiness::Ready;
use crate::refuse::Refusal;
use crate::tasks::{Task, TaskKind};
use crate::{Principal, Shared};
use api::{CodeEvent, CodeRequest, CodeStarted};
use futures_util::future::select_all;
use node::code::CodeCall;
use node::{Caller, Node};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase, Retry};
use tokio::io::Interest;
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

/// Batches of events that wait for a reader; each is what one step gave.
const BATCHES: usize = 2;
/// Steps for the sake of a deadline while a reader is slow, each of which may add a batch.
const MOST_OVERDUE_STEPS: u32 = 16;
/// Wait for another call in the same context, unless the request says otherwise.
const QUEUED: Duration = Duration::from_secs(30);
const MOST_QUEUED: Duration = Duration::from_secs(600);
/// Pauses between attempts to begin a call in a context that a process other than this one uses.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Contexts that calls of this daemon use or wait for; the waiting ones come to their turn in the order of their arrival.
#[derive(Default)]
pub struct ContextQueues(Mutex<HashMap<ContextKey, Weak<tokio::sync::Mutex<()>>>>);

/// Tenant, sandbox as the request names it, and context.
type ContextKey = (String, String, String);

impl ContextQueues {
    fn of(&self, key: ContextKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, queue| queue.strong_count() > 0);
        if let Some(queue) = all.get(&key).and_then(Weak::upgrade) {
            return queue;
        }
        let queue = Arc::default();
        all.insert(key, Arc::downgrade(&queue));
        queue
    }
}

/// A call to begin.
pub enum Begin {
    New(Box<CodeRequest>),
    /// The rest of a call in this context, whose client is gone.
    Resume(String),
}

/// Events of a call, as they come. Dropping this cancels the call.
pub struct CallEvents {
    pub started: CodeStarted,
    batches: mpsc::Receiver<Vec<CodeEvent>>,
}

impl CallEvents {
    /// Returns the next events; none behind the last one, and where the daemon is shutting down.
    pub async fn next(&mut self) -> Option<Vec<CodeEvent>> {
        self.batches.recv().await
    }
}

/// Held as long as a call is under way, whether it has a reader or not.
struct Held {
    _task: Task,
    _permit: Permit,
    _turn: Option<OwnedMutexGuard<()>>,
}

/// Begins a call once its context is free. A client that leaves meanwhile leaves the queue; one that leaves later cancels the call.
pub async fn begin(
    shared: &Shared,
    principal: &Principal,
    sandbox: String,
    what: Begin,
) -> Result<CallEvents, Refusal> {
    let task = shared.tasks().admit(TaskKind::RunStream, &principal.tenant)?;
    let (tell, told) = oneshot::channel();
    let beginner = Beginner { shared: shared.clone(), principal: principal.clone(), sandbox };
    // Not part of the request's own future: one that is dropped while a call begins must still cancel it.
    let work = beginner.run(what, task, tell).instrument(tracing::Span::current());
    shared.tasks().spawn(work);
    told.await.unwrap_or_else(|_| Err(shutting_down()))
}

type Told = oneshot::Sender<Result<CallEvents, Refusal>>;

struct Beginner {
    shared: Shared,
    principal: Principal,
    sandbox: String,
}

impl Beginner {
    async fn run(self, what: Begin, task: Task, mut tell: Told) {
        let begun = match what {
            Begin::New(request) => self.begin(*request, &mut tell).await,
            Begin::Resume(context) => self.resume(context).await,
        };
        let (call, permit, turn) = match begun {
            Ok(Some(begun)) => begun,
            // The client has left.
            Ok(None) => return,
            Err(refusal) => {
                let _ = tell.send(Err(refusal)); // the client may have left
                return;
            }
        };
        let (sender, batches) = mpsc::channel(BATCHES);
        // Where the client has left, this drops the receiver, and the driver sees that.
        let _ = tell.send(Ok(CallEvents { started: call.started().clone(), batches }));
        let call = Arc::new(Mutex::new(call));
        let held = Held { _task: task, _permit: permit, _turn: turn };
        Driver { shared: self.shared, principal: self.principal, call, sender, _held: held }.run().await;
    }

    /// Begins a call in its turn; none where the client leaves before that.
    async fn begin(&self, request: CodeRequest, tell: &mut Told) -> Result<Option<Begun>, Refusal> {
        let cwd = request.cwd.as_ref().map(absolute).transpose()?;
        let end = Instant::now() + queue_time(&request)?;
        let context = request.context.clone().unwrap_or_else(|| request.language.unwrap_or_default().name().to_owned());
        let key = (self.principal.tenant.clone(), self.sandbox.clone(), context);
        let queue = self.shared.context_queues().of(key).lock_owned();
        let turn = tokio::select! {
            turn = tokio::time::timeout_at(end, queue) => turn.ok(),
            () = tell.closed() => return Ok(None),
        };
        let permit = self.shared.admission().run(&self.principal.tenant).await?;
        // Held until the interpreter is started, or until it expires.
        let start = self.shared.admission().begin(&self.principal.tenant).await;
        // Another process may use the context, too. It is asked for again and again, so that no thread waits for it.
        let request = Arc::new(CodeRequest { queue_ms: Some(0), ..request });
        let mut pause = FIRST_PAUSE;
        loop {
            let (request, word, cwd) = (request.clone(), self.sandbox.clone(), cwd.clone());
            let begin = move |node: &Node, caller: &Caller| {
                let caller = Caller { cwd: cwd.unwrap_or_else(|| caller.cwd.clone()), ..caller.clone() };
                CodeCall::begin(node, &caller, &word, &request)
            };
            match self.shared.make_live(&self.principal, &self.sandbox, begin).await {
                Ok(call) => {
                    start.iter().for_each(StartPermit::begun);
                    return Ok(Some((call, permit, turn)));
                }
                Err(refusal) if is_busy(&refusal.fault) && Instant::now() < end => {}
                Err(refusal) => return Err(refusal),
            }
            tokio::select! {
                () = tokio::time::sleep(pause.min(end - Instant::now())) => {}
                () = tell.closed() => return Ok(None),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn resume(&self, context: String) -> Result<Option<Begun>, Refusal> {
        let permit = self.shared.admission().run(&self.principal.tenant).await?;
        let word = self.sandbox.clone();
        let resume = move |node: &Node, caller: &Caller| CodeCall::resume(node, caller, &word, &context);
        let call = self.shared.verb(&self.principal, resume).await?;
        Ok(Some((call, permit, None)))
    }
}

type Begun = (CodeCall, Permit, Option<OwnedMutexGuard<()>>);

/// Another call is under way in the context.
fn is_busy(fault: &Fault) -> bool {
    fault.error_kind == ErrorKind::Conflict && fault.retry == Retry::Later
}

fn queue_time(request: &CodeRequest) -> Result<Duration, Fault> {
    let time = request.queue_ms.map_or(QUEUED, Duration::from_millis);
    if time <= MOST_QUEUED {
        return Ok(time);
    }
    let message = format!("queue_ms: {}: must be at most {}", time.as_millis(), MOST_QUEUED.as_millis());
    Err(Fault::invalid(message).phase(Phase::Admission).hint("wait for at most ten minutes, and ask again"))
}

/// Returns the caller's directory, byte for byte.
pub fn absolute(dir: &api::PathText) -> Result<std::path::PathBuf, Fault> {
    use std::os::unix::ffi::OsStringExt;
    let path = dir.bytes().filter(|bytes| bytes.starts_with(b"/") && !bytes.contains(&0));
    let refuse = || Fault::invalid("cwd: not the absolute path of a directory").phase(Phase::Admission);
    let path = path.ok_or_else(|| refuse().hint("give a path that begins with a slash, or none"))?;
    Ok(std::ffi::OsString::from_vec(path).into())
}

fn shutting_down() -> Refusal {
    let fault = Fault::new(ErrorKind::Unavailable, "the daemon is shutting down").phase(Phase::Close);
    fault.retry(Retry::Later).hint("try again after it has restarted").into()
}

/// What a step gave.
struct Stepped {
    events: Vec<CodeEvent>,
    is_over: bool,
    deadline: Option<Instant>,
    /// Descriptors that become readable when there is more; only where there were no events.
    wakes: Vec<OwnedFd>,
}

/// Steps a call; never waits for the code.
fn step(call: &mut CodeCall) -> Stepped {
    let events = call.step();
    let (is_over, deadline) = (call.is_over(), call.deadline().map(Instant::from_std));
    let is_idle = events.is_empty() && !is_over;
    let wakes = if is_idle { call.wakes() } else { Vec::new() };
    let wakes = wakes.iter().filter_map(|fd| fd.try_clone_to_owned().ok()).collect();
    Stepped { events, is_over, deadline, wakes }
}

/// Result of handing events to the reader.
enum Delivery {
    Done,
    /// The call must be stepped before its reader takes the events.
    Overdue,
    NoReader,
}

/// The task that drives one call to its end.
struct Driver {
    shared: Shared,
    principal: Principal,
    /// Shared with the pool: a step that is not admitted must not take the call with it.
    call: Arc<Mutex<CodeCall>>,
    sender: mpsc::Sender<Vec<CodeEvent>>,
    _held: Held,
}

impl Driver {
    async fn run(self) {
        let (mut unsent, mut overdue) = (Vec::new(), 0);
        loop {
            let Some(Stepped { events, is_over, deadline, wakes }) = self.on_pool(step).await else { return };
            self.count(&events);
            let is_idle = events.is_empty();
            unsent.extend(events);
            let due = deadline.filter(|_| !is_over && overdue < MOST_OVERDUE_STEPS);
            match self.deliver(&mut unsent, due).await {
                Delivery::Done => overdue = 0,
                Delivery::Overdue => {
                    overdue += 1;
                    continue;
                }
                Delivery::NoReader => return self.abandon(is_over).await,
            }
            if is_over {
                return;
            }
            if is_idle {
                tokio::select! {
                    () = self.sender.closed() => return self.abandon(false).await,
                    () = readable(wakes) => {}
                    () = sleep_until(deadline) => {}
                }
            }
        }
    }

    /// Hands events to the reader, and waits for a slow one until `due`.
    async fn deliver(&self, unsent: &mut Vec<CodeEvent>, due: Option<Instant>) -> Delivery {
        if unsent.is_empty() {
            return Delivery::Done;
        }
        tokio::select! {
            biased;
            room = self.sender.reserve() => match room {
                Ok(room) => {
                    room.send(std::mem::take(unsent));
                    Delivery::Done
                }
                Err(_) => Delivery::NoReader,
            },
            () = sleep_until(due) => Delivery::Overdue,
        }
    }

    /// Ends a call that has no reader any more. At shutdown it goes on: the next daemon may resume it.
    async fn abandon(self, is_over: bool) {
        if is_over || self.shared.is_ending() || self.on_pool(CodeCall::cancel).await.is_none() {
            return;
        }
        while let Some(Stepped { events, is_over, deadline, wakes }) = self.on_pool(step).await {
            self.count(&events);
            if is_over {
                return;
            }
            if events.is_empty() {
                tokio::select! {
                    () = readable(wakes) => {}
                    () = sleep_until(deadline) => {}
                }
            }
        }
    }

    /// Does something with the call on a thread of the pool, however long there is none; none where that failed for good.
    async fn on_pool<T: Send + 'static>(&self, work: fn(&mut CodeCall) -> T) -> Option<T> {
        loop {
            let call = self.call.clone();
            match self.shared.blocking_for(&self.principal, move || Ok(work(&mut lock(&call)))).await {
                Ok(done) => return Some(done),
                Err(refusal) if refusal.fault.error_kind == ErrorKind::Internal => return None,
                Err(_) => tokio::time::sleep(LONGEST_PAUSE).await,
            }
        }
    }

    /// Counts a call that has ended.
    fn count(&self, events: &[CodeEvent]) {
        if let Some(CodeEvent::End(outcome)) = events.last() {
            let language = lock(&self.call).started().language;
            self.shared.telemetry().count_code_call(language, outcome);
        }
    }
}

fn lock(call: &Mutex<CodeCall>) -> MutexGuard<'_, CodeCall> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resolves when one of the descriptors is readable.
async fn readable(wakes: Vec<OwnedFd>) {
    let registered = wakes.into_iter().filter_map(|fd| Ready::new(fd, Interest::READABLE).ok());
    let mut registered: Vec<Ready<OwnedFd>> = registered.collect();
    if registered.is_empty() {
        // No descriptor is left for the copies: the call is looked at again soon.
        return tokio::time::sleep(LONGEST_PAUSE).await;
    }
    let _ = select_all(registered.iter_mut().map(|fd| Box::pin(fd.readable()))).await;
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_context_is_used_in_the_order_of_arrival() {
        let queues = ContextQueues::default();
        let key = |context: &str| ("default".to_owned(), "box".to_owned(), context.to_owned());
        let first = queues.of(key("a")).lock_owned().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|n| {
                let (queue, order) = (queues.of(key("a")).lock_owned(), order.clone());
                let mut queue = Box::pin(queue);
                // Polled once, so that it is in the queue.
                let polled = futures_util::FutureExt::now_or_never(queue.as_mut());
                assert!(polled.is_none());
                tokio::spawn(async move {
                    let _turn = queue.await;
                    order.lock().unwrap().push(n);
                })
            })
            .collect();
        assert!(queues.of(key("b")).try_lock().is_ok(), "the control: another context is free");
        drop(first);
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        drop(queues.of(key("c")));
        assert!(queues.0.lock().unwrap().len() <= 1, "contexts that are not used are forgotten");
    }

    #[test]
    fn a_wait_has_a_bound() {
        let request = |queue_ms| CodeRequest { queue_ms, ..CodeRequest::default() };
        assert_eq!(queue_time(&request(None)).unwrap(), QUEUED);
        assert_eq!(queue_time(&request(Some(600_000))).unwrap(), MOST_QUEUED);
        assert_eq!(queue_time(&request(Some(600_001))).unwrap_err().error_kind, ErrorKind::InvalidRequest);
    }

    #[test]
    fn the_directory_of_a_caller_is_absolute() {
        let of = |text: &str| absolute(&api::PathText::Text(text.into()));
        assert_eq!(of("/srv/x").unwrap(), std::path::Path::new("/srv/x"));
        for bad in ["", "srv", "/a\0b"] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
