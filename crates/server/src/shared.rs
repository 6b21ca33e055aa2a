//! State that all routes share: the caller of verbs, the pool that runs them, admission, long-lived tasks.

use crate::Settings;
use crate::admission::{Admission, FairSemaphore, FairShares, Permit};
use crate::answer::Answer;
use crate::code_calls::ContextQueues;
use crate::credentials::Credentials;
use crate::feed::Feeds;
use crate::foreign_ids::ForeignAttempts;
use crate::idle_sweeper::Sweeper;
use crate::principal::Principal;
use crate::refuse::Refusal;
use crate::rules::Rules;
use crate::run_progress::RunProgress;
use crate::tasks::{Limits, TaskKind, Tasks};
use crate::telemetry::{self, Telemetry, WatchedStates};
use crate::timeouts::Timeouts;
use crate::url_grants::UrlGrants;
use api::{DEFAULT_TENANT, Scope};
use http::StatusCode;
use node::config::Keep;
use node::{Caller, Node, Reach, SecretSources};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use terms::{Fault, LimitKind};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Concurrent verbs, each on a thread of the pool: in all, and per tenant; and the longest wait for a thread.
pub const MAX_CONCURRENT: u64 = 64;
const MAX_CONCURRENT_PER_TENANT: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(60);
/// Concurrent archives, each on a thread; and the longest wait for a permit to pack, unpack or search.
const ARCHIVES: u64 = 16;
const PATIENCE_FOR_ARCHIVES: Duration = Duration::from_secs(15);
/// Concurrent searches, each of which keeps a processor busy.
const SEARCHES: u64 = 16;
/// Variables of the daemon's environment that are passed to callers without access to the host.
const PASSED_VARIABLES: [&str; 3] = ["PATH", "LANG", "TZ"];
/// Prefix of the variables that configure cofferdam; and the variable that locates its configuration file.
const SETTINGS: &str = "COFFERDAM_";
const SETTINGS_AT: &str = "XDG_CONFIG_HOME";

/// Shared state. Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    node: Arc<Node>,
    sweeper: Sweeper,
    /// The environment that the daemon was started in.
    caller: Caller,
    state: PathBuf,
    max_body: usize,
    patience: Duration,
    /// Names and addresses of this daemon, besides those that every machine has for itself.
    hosts: Vec<String>,
    credentials: Credentials,
    rules: Rules,
    foreign_attempts: ForeignAttempts,
    admission: Admission,
    verbs: Arc<FairSemaphore>,
    archives: FairShares,
    searches: FairShares,
    tasks: Tasks,
    telemetry: Telemetry,
    feeds: Feeds,
    run_progress: RunProgress,
    context_queues: ContextQueues,
    timeouts: Timeouts,
    url_grants: UrlGrants,
    /// Notified when a warm sandbox was taken, or a pool grew.
    taken: Notify,
    keep: Keep,
}

impl Shared {
    pub fn new(
        settings: &Settings,
        node: Arc<Node>,
        credentials: Credentials,
        rules: Rules,
        url_grants: UrlGrants,
    ) -> Shared {
        let Settings { caller, state, max_body, patience, quotas, keep, .. } = settings.clone();
        let telemetry = Telemetry::new(
            settings.logs,
            WatchedStates { node: node.clone(), caller: caller.clone(), state: state.clone() },
        );
        let (verbs, admission) = (FairSemaphore::new(Some(MAX_CONCURRENT)), Admission::new(quotas));
        let connections = (settings.connections + Settings::RESERVED) as u64;
        let tasks = Tasks::new(Limits { event_streams: settings.event_streams, connections });
        let listening = settings.listen.map(|address| address.to_string());
        let hosts = settings.allow_hosts.iter().cloned().chain(listening).collect();
        Shared(Arc::new(Inner {
            sweeper: Sweeper::new(node.clone()),
            node,
            max_body,
            patience,
            hosts,
            caller,
            state,
            credentials,
            rules,
            foreign_attempts: ForeignAttempts::default(),
            admission,
            verbs,
            archives: FairShares::new(ARCHIVES, PATIENCE_FOR_ARCHIVES),
            searches: FairShares::new(SEARCHES, PATIENCE_FOR_ARCHIVES),
            tasks,
            telemetry,
            feeds: Feeds::default(),
            run_progress: RunProgress::default(),
            context_queues: ContextQueues::default(),
            timeouts: Timeouts::default(),
            url_grants,
            taken: Notify::new(),
            keep,
        }))
    }

    /// The node, with its open states and keepers.
    pub fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// The sweeper of idle connections and states.
    pub fn sweeper(&self) -> &Sweeper {
        &self.0.sweeper
    }

    pub fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    pub fn admission(&self) -> &Admission {
        &self.0.admission
    }

    pub fn telemetry(&self) -> &Telemetry {
        &self.0.telemetry
    }

    /// Listeners to the journals of tenants.
    pub fn feeds(&self) -> &Feeds {
        &self.0.feeds
    }

    /// Listeners to the progress of runs.
    pub fn run_progress(&self) -> &RunProgress {
        &self.0.run_progress
    }

    /// Contexts that calls of this daemon use or wait for.
    pub fn context_queues(&self) -> &ContextQueues {
        &self.0.context_queues
    }

    /// Tickets and signatures of URLs.
    pub fn url_grants(&self) -> &UrlGrants {
        &self.0.url_grants
    }

    /// Sandboxes that time out.
    pub fn timeouts(&self) -> &Timeouts {
        &self.0.timeouts
    }

    /// Notified when a pool of warm sandboxes may need refilling.
    pub fn taken(&self) -> &Notify {
        &self.0.taken
    }

    /// Retention of past records.
    pub fn keep(&self) -> &Keep {
        &self.0.keep
    }

    /// Waits for a permit to pack or unpack an archive; held until all of the archive has been sent or removed.
    pub async fn archive_permit(&self, principal: &Principal) -> Result<Permit, Refusal> {
        let message = "too many archives are being packed, unpacked or downloaded";
        self.0.archives.acquire(&principal.tenant).await.ok_or_else(|| in_use(message, "try again when one has ended"))
    }

    /// Waits for a permit to search files.
    pub async fn search_permit(&self, principal: &Principal) -> Result<Permit, Refusal> {
        let message = "too many searches are under way";
        self.0.searches.acquire(&principal.tenant).await.ok_or_else(|| in_use(message, "try again when one has ended"))
    }

    /// Long-lived work: streams, waits, loops.
    pub fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    pub fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    /// The largest document that a route takes, in bytes. Files are streamed and have their own bounds.
    pub fn max_body(&self) -> usize {
        self.0.max_body
    }

    /// The longest silence of a client that is sending a request.
    pub fn patience(&self) -> Duration {
        self.0.patience
    }

    pub fn foreign_attempts(&self) -> &ForeignAttempts {
        &self.0.foreign_attempts
    }

    /// The state directory, which holds those of all tenants.
    pub fn state(&self) -> &std::path::Path {
        &self.0.state
    }

    /// Starts the shutdown: running work may finish, and nothing new is accepted.
    pub fn end(&self) {
        self.0.tasks.cancel();
    }

    /// Returns true once the shutdown has started.
    pub fn is_ending(&self) -> bool {
        self.0.tasks.is_cancelled()
    }

    /// Resolves when the shutdown starts.
    pub async fn until_end(&self) {
        self.0.tasks.cancelled().await;
    }

    /// Resolves when no verb is running, and none that was started for an absent client is left.
    pub async fn until_idle(&self) {
        const PAUSE: Duration = Duration::from_millis(10);
        self.0.tasks.finished().await;
        while self.0.verbs.counts().0 > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Resolves when a stream must close: the daemon is shutting down, or the credential that opened it was revoked or has expired.
    pub async fn until_closed(&self, principal: &Principal) -> CloseReason {
        match &principal.token {
            None => {
                self.until_end().await;
                CloseReason::Shutdown
            }
            Some(token) => tokio::select! {
                () = self.until_end() => CloseReason::Shutdown,
                () = self.0.credentials.until_invalid(token) => CloseReason::Credential,
            },
        }
    }

    /// Returns the caller that verbs get for a client. A client with access to the host gets the daemon's environment. Other clients of the
    /// daemon's own tenant get its home, below which PATH may lead to toolchains, and its settings, which bound them; clients of another
    /// tenant get a separate state, and neither.
    pub fn caller(&self, principal: &Principal) -> Caller {
        let (user, reach, cwd) = (principal.name.clone(), principal.reach.clone(), PathBuf::from("/"));
        // Verbs are part of the trace of their request, not of the daemon's own.
        let trace_parent = telemetry::current().map(|context| context.header().into());
        let secret_sources = SecretSources::KeptOnly;
        let ours = &self.0.caller;
        let is_ours = principal.tenant == DEFAULT_TENANT;
        if is_ours && principal.reach == Reach::All {
            return Caller { user, reach, cwd, trace_parent, secret_sources, ..ours.clone() };
        }
        let passes = |name: &OsString| {
            let is_setting = name.as_encoded_bytes().starts_with(SETTINGS.as_bytes()) || name == SETTINGS_AT;
            PASSED_VARIABLES.iter().any(|known| name == known) || is_ours && is_setting
        };
        let env: Vec<(OsString, OsString)> = ours.env.iter().filter(|(name, _)| passes(name)).cloned().collect();
        let state_dir = Some(self.state_of(&principal.tenant));
        let home = if is_ours { ours.home.clone() } else { "/nonexistent".into() };
        Caller { cwd, home, user, env, read_late: |_| None, reach, state_dir, trace_parent, secret_sources }
    }

    /// The caller for work of the daemon itself.
    pub fn own_caller(&self) -> Caller {
        self.0.caller.clone()
    }

    /// Returns the state directory of a tenant.
    pub fn state_of(&self, tenant: &str) -> PathBuf {
        node::tokens::state_of(&self.0.state, tenant)
    }

    /// Carries out a verb. Verbs block, so each occupies a thread of the pool.
    pub async fn verb<T, F>(&self, principal: &Principal, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let (node, caller) = (self.0.node.clone(), self.caller(principal));
        let done = self.blocking_for(principal, move || verb(&node, &caller)).await;
        self.0.feeds.nudge(&principal.tenant);
        done
    }

    /// Carries out a verb and responds with its result. The document is serialized on the verb's thread.
    pub async fn answer<T, F>(&self, principal: &Principal, verb: F) -> Result<Answer<T>, Refusal>
    where
        T: Serialize + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        self.verb(principal, move |node, caller| verb(node, caller).map(Answer::ok)).await
    }

    /// Carries out a verb whose result is a whole document, and responds with it.
    pub async fn answer_whole<T, F>(&self, principal: &Principal, verb: F) -> Result<Answer<T>, Refusal>
    where
        T: Serialize + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        self.verb(principal, move |node, caller| verb(node, caller).map(|document| Answer::whole(&document))).await
    }

    /// Runs blocking work of a tenant on a thread of the pool.
    pub async fn blocking_for<T, F>(&self, principal: &Principal, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Fault> + Send + 'static,
    {
        let (send, mut result) = oneshot::channel();
        self.in_turn(&principal.tenant, Box::new(move || drop(send.send(work())))).await?;
        let result = result.try_recv().map_err(|_| Fault::internal("a verb ended without a result"))?;
        result.map_err(Refusal::from)
    }

    /// Runs the work on a thread of the pool once the tenant has a permit. Not generic, so that it is compiled once for all verbs.
    async fn in_turn(&self, tenant: &str, work: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let counted = VerbCount::new(self.0.telemetry.queue());
        let permit = self.0.verbs.acquire(tenant, Some(MAX_CONCURRENT_PER_TENANT), PATIENCE).await.map_err(|_| {
            let message = "too many requests are running or queued";
            Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "try again")
        })?;
        // The work continues after its client has left, and holds its permit for as long.
        let span = tracing::debug_span!("verb", tenant);
        let done = tokio::task::spawn_blocking(move || {
            let _both = (permit, counted);
            span.in_scope(work)
        });
        let broken = |e| Refusal::from(Fault::internal(format!("a verb ended without a result: {e}")));
        let done = done.await;
        self.0.sweeper.sweep_soon();
        done.map_err(broken)
    }

    /// Repeats a verb until its result is `ready` or the time is over; returns the last result.
    pub async fn wait<T, F>(
        &self,
        principal: &Principal,
        time: Duration,
        verb: F,
        ready: fn(&T) -> bool,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Fn(&Node, &Caller) -> Result<T, Fault> + Send + Sync + Clone + 'static,
    {
        const FIRST: Duration = Duration::from_millis(5);
        const USUAL: Duration = Duration::from_millis(250);
        // After a long wait one more second does not matter, and polling less often leaves more room to other requests.
        const PATIENT: Duration = Duration::from_secs(30);
        const SELDOM: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let end = begun + time;
        let mut pause = FIRST;
        let _task = (!time.is_zero()).then(|| self.0.tasks.admit(TaskKind::Wait, &principal.tenant)).transpose()?;
        loop {
            let answer = self.verb(principal, verb.clone()).await?;
            if ready(&answer) || Instant::now() >= end || self.is_ending() {
                return Ok(answer);
            }
            tokio::select! {
                () = tokio::time::sleep(pause.min(end - Instant::now())) => {}
                () = self.until_end() => {}
            }
            pause = (pause * 2).min(if begun.elapsed() < PATIENT { USUAL } else { SELDOM });
        }
    }
}

/// Refuses a request because all permits are taken, and permits may be held for long.
fn in_use(message: &str, hint: &str) -> Refusal {
    const LATER: Duration = Duration::from_secs(5);
    Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, hint).after(LATER)
}

/// The reason why a stream is closed before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    Shutdown,
    Credential,
}

impl CloseReason {
    pub fn name(self) -> &'static str {
        match self {
            CloseReason::Shutdown => "shutdown",
            CloseReason::Credential => "credential",
        }
    }
}

/// Counts a running or queued verb until it is dropped.
struct VerbCount(Arc<AtomicUsize>);

impl VerbCount {
    fn new(count: &Arc<AtomicUsize>) -> VerbCount {
        count.fetch_add(1, Ordering::Relaxed);
        VerbCount(count.clone())
    }
}

impl Drop for VerbCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The daemon's own user on its socket, with all rights.
pub fn owner(name: &str) -> Principal {
    let scopes = vec![Scope::Operator];
    Principal { tenant: DEFAULT_TENANT.into(), name: name.into(), scopes, reach: Reach::All, token: None }
}
