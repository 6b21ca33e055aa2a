//! Long-lived work of the daemon: streams, WebSockets, tunnels, requests that wait, and the daemon's own loops. Each is a future
//! that waits for a descriptor, a channel or a timer. It goes to a thread of the pool for one short synchronous step (a page of output,
//! a batch of file events), and never holds a thread while it waits.
//!
//! ```text
//!  a route    ── admit(kind, tenant) ─▶ Task      held as long as the stream or the wait lasts; refused above the kind's limit
//!  the daemon ── spawn(future) ───────▶           ends by itself, or with `cancel`
//!             ── spawn_to_end(future) ▶ handle    ends by itself; the daemon waits for it before it ends
//! ```

use crate::admission::has_share;
use crate::refuse::Refusal;
use http::StatusCode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use terms::LimitKind;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Concurrent file watches. Each has an inotify instance, of which the kernel allows 128 per user by default.
const MAX_FILE_WATCHES: u64 = 64;
/// Retry-After of a refused stream: streams last, and their end is not known.
const LATER: Duration = Duration::from_secs(5);

/// Kinds of work that last as long as their client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    /// Server-sent events of a tenant's journal.
    EventStream,
    /// Server-sent events of a directory.
    FileWatch,
    /// Output of a run, as server-sent events or over a WebSocket; or a call of code.
    RunStream,
    /// A connection to a port of a sandbox that changed its protocol.
    PortTunnel,
    /// A request that waits: until a run has ended, a sandbox is quiet, or a question is open.
    Wait,
}

/// The limit of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    most: u64,
    /// A tenant leaves a share to the others (see `has_share`).
    is_shared: bool,
}

/// Limits of all kinds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `serve.max_event_streams`.
    pub event_streams: u64,
    /// Client connections: each has at most one stream, tunnel or wait.
    pub connections: u64,
}

impl Limits {
    fn of(self, kind: TaskKind) -> Limit {
        match kind {
            TaskKind::EventStream => Limit { most: self.event_streams, is_shared: true },
            TaskKind::FileWatch => Limit { most: MAX_FILE_WATCHES, is_shared: true },
            TaskKind::RunStream | TaskKind::PortTunnel | TaskKind::Wait => {
                Limit { most: self.connections, is_shared: false }
            }
        }
    }
}

/// Decides whether one more task may start, given `own` tasks of the tenant and `all` of all tenants.
fn may_begin(limit: Limit, own: u64, all: u64) -> bool {
    match limit.is_shared {
        true => has_share(limit.most, own, all),
        false => all < limit.most,
    }
}

/// The daemon's long-lived work. Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Tasks(Arc<Inner>);

struct Inner {
    limits: Limits,
    open: Mutex<BTreeMap<TaskKind, TaskCounts>>,
    cancel: CancellationToken,
    /// Work that the daemon waits for before it ends.
    unfinished: TaskTracker,
}

/// Open tasks of one kind.
#[derive(Default)]
struct TaskCounts {
    all: u64,
    tenants: BTreeMap<String, u64>,
}

/// An admitted task; counted until it is dropped.
pub struct Task {
    tasks: Tasks,
    kind: TaskKind,
    tenant: String,
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut open = self.tasks.open();
        let Some(open) = open.get_mut(&self.kind) else { return };
        open.all = open.all.saturating_sub(1);
        if let Some(own) = open.tenants.get_mut(&self.tenant) {
            *own = own.saturating_sub(1);
        }
        open.tenants.retain(|_, own| *own > 0);
    }
}

impl Tasks {
    pub fn new(limits: Limits) -> Tasks {
        let (open, cancel, unfinished) = (Mutex::default(), CancellationToken::new(), TaskTracker::new());
        Tasks(Arc::new(Inner { limits, open, cancel, unfinished }))
    }

    /// Admits one more task, or refuses it with the limit that it is above.
    pub fn admit(&self, kind: TaskKind, tenant: &str) -> Result<Task, Refusal> {
        let mut open = self.open();
        let of_kind = open.entry(kind).or_default();
        let own = of_kind.tenants.get(tenant).copied().unwrap_or_default();
        if !may_begin(self.0.limits.of(kind), own, of_kind.all) {
            return Err(above_limit(kind));
        }
        of_kind.all += 1;
        of_kind.tenants.insert(tenant.to_owned(), own + 1);
        Ok(Task { tasks: self.clone(), kind, tenant: tenant.to_owned() })
    }

    /// Starts work of the daemon itself, which is dropped at shutdown. Its number is bounded by what it works for: a run
    /// that holds a permit, a tenant with listeners, an admitted tunnel, or the daemon itself.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.0.cancel.clone();
        tokio::spawn(async move { cancel.run_until_cancelled_owned(work).await });
    }

    /// Starts work that continues when its client leaves or the daemon is shutting down.
    pub fn spawn_to_end<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.unfinished.spawn(work)
    }

    /// Cancels all work started by `spawn`, and tells streams and waits that the daemon is shutting down.
    pub fn cancel(&self) {
        self.0.cancel.cancel();
        self.0.unfinished.close();
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Resolves when the shutdown starts.
    pub async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// Resolves once the shutdown has started and all work of `spawn_to_end` has ended.
    pub async fn finished(&self) {
        self.0.unfinished.wait().await;
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<TaskKind, TaskCounts>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn above_limit(kind: TaskKind) -> Refusal {
    let refuse = |limit, message: &str, hint: &str| Refusal::limit(StatusCode::TOO_MANY_REQUESTS, limit, message, hint);
    match kind {
        TaskKind::EventStream => {
            let hint = "close one, or listen to several sandboxes with one stream";
            refuse(LimitKind::Streams, "too many streams of events are open", hint).after(LATER)
        }
        TaskKind::FileWatch => refuse(LimitKind::Waiting, "too many file watches are open", "close one"),
        TaskKind::RunStream | TaskKind::PortTunnel | TaskKind::Wait => {
            refuse(LimitKind::Streams, "too many streams and waits are open", "close one").after(LATER)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { event_streams: 16, connections: 3 };

    #[test]
    fn the_admission_table() {
        let (shared, plain) = (Limit { most: 16, is_shared: true }, Limit { most: 3, is_shared: false });
        for (limit, own, all, may) in [
            (plain, 0, 0, true),
            (plain, 2, 2, true),
            (plain, 3, 3, false),
            (plain, 0, 3, false),
            (shared, 0, 0, true),
            (shared, 7, 7, true),
            // Half of all is the most that one tenant has.
            (shared, 8, 8, false),
            (shared, 3, 11, true),
            (shared, 4, 12, false),
            // The last eighth is for tenants that have none.
            (shared, 1, 14, false),
            (shared, 0, 14, true),
            (shared, 0, 16, false),
        ] {
            assert_eq!(may_begin(limit, own, all), may, "{limit:?} with {own} of {all}");
        }
    }

    #[test]
    fn a_dropped_task_makes_room() {
        let tasks = Tasks::new(LIMITS);
        let mut open: Vec<Task> = (0..3).map(|_| tasks.admit(TaskKind::Wait, "a").ok().unwrap()).collect();
        let refusal = tasks.admit(TaskKind::Wait, "b").err().unwrap();
        assert_eq!(refusal.fault.limit_kind, Some(LimitKind::Streams));
        assert!(tasks.admit(TaskKind::RunStream, "b").is_ok(), "the control: another kind has its own limit");
        open.pop();
        assert!(tasks.admit(TaskKind::Wait, "b").is_ok());
        drop(open);
        assert!(tasks.open().values().all(|open| open.all == 0 && open.tenants.is_empty()));
    }

    #[tokio::test]
    async fn the_end_drops_loops_and_waits_for_work() {
        let tasks = Tasks::new(LIMITS);
        let (dropped, told) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn(async move {
            let _held = dropped;
            std::future::pending::<()>().await;
        });
        let work = tasks.spawn_to_end(async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            7
        });
        tasks.cancel();
        assert!(told.await.is_err(), "its future was dropped");
        tasks.finished().await;
        assert_eq!(work.await.unwrap(), 7);
    }
}
