//! State that all routes share: the caller of verbs, the pool that runs them, admission, long-lived tasks.

use crate::Settings;
use crate::admission::{Admission, Fair, Shares, Turn};
use crate::answer::Answer;
use crate::credentials::Credentials;
use crate::feed::Feeds;
use crate::foreign::Tries;
use crate::refuse::Refusal;
use crate::resting::Sweeper;
use crate::rules::Rules;
use crate::run_progress::RunProgress;
use crate::tasks::{Kind, Limits, Tasks};
use crate::telemetry::{self, Nodes, Telemetry};
use crate::who::Who;
use http::StatusCode;
use node::config::Keep;
use node::tokens::DEFAULT_TENANT;
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

/// Verbs at a time, each on a thread of the pool: in all, and of one tenant; and the longest wait for a thread.
pub const AT_A_TIME: u64 = 64;
const AT_A_TIME_EACH: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(60);
/// Archives that are packed or unpacked at a time, each on a thread; and the longest wait for a turn, also for that of a search.
const ARCHIVES: u64 = 16;
const PATIENCE_FOR_ARCHIVES: Duration = Duration::from_secs(15);
/// Searches at a time, each of which keeps a processor busy.
const SEARCHES: u64 = 16;
/// Variables of the daemon's environment that callers without the host are given.
const PASSED_ON: [&str; 3] = ["PATH", "LANG", "TZ"];
/// Prefix of the variables that configure cofferdam; and the variable that leads to its configuration file.
const SETTINGS: &str = "COFFERDAM_";
const SETTINGS_AT: &str = "XDG_CONFIG_HOME";

/// Shared state. Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    node: Arc<Node>,
    sweeper: Sweeper,
    /// The surroundings that the daemon was started in.
    caller: Caller,
    state: PathBuf,
    max_body: usize,
    patience: Duration,
    /// Names and addresses that lead to this daemon, beside those that every machine has for itself.
    hosts: Vec<String>,
    credentials: Credentials,
    rules: Rules,
    tries: Tries,
    admission: Admission,
    verbs: Arc<Fair>,
    archives: Shares,
    searches: Shares,
    tasks: Tasks,
    telemetry: Telemetry,
    feeds: Feeds,
    run_progress: RunProgress,
    /// Notified when a warm sandbox was taken, or a pool grew.
    taken: Notify,
    keep: Keep,
}

impl Shared {
    pub fn new(settings: &Settings, node: Arc<Node>, credentials: Credentials, rules: Rules) -> Shared {
        let Settings { caller, state, max_body, patience, quotas, keep, .. } = settings.clone();
        let telemetry =
            Telemetry::new(settings.logs, Nodes { node: node.clone(), caller: caller.clone(), state: state.clone() });
        let (verbs, admission) = (Fair::new(Some(AT_A_TIME)), Admission::new(quotas));
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
            tries: Tries::default(),
            admission,
            verbs,
            archives: Shares::new(ARCHIVES, PATIENCE_FOR_ARCHIVES),
            searches: Shares::new(SEARCHES, PATIENCE_FOR_ARCHIVES),
            tasks,
            telemetry,
            feeds: Feeds::default(),
            run_progress: RunProgress::default(),
            taken: Notify::new(),
            keep,
        }))
    }

    /// What is live in the daemon: open states, keepers.
    pub fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// Closes what rests between two requests.
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

    /// Runs that are listened to.
    pub fn run_progress(&self) -> &RunProgress {
        &self.0.run_progress
    }

    /// Notified when a pool of warm sandboxes may lack some.
    pub fn taken(&self) -> &Notify {
        &self.0.taken
    }

    /// Retention of past records.
    pub fn keep(&self) -> &Keep {
        &self.0.keep
    }

    /// A turn to pack or unpack an archive, to be held as long as anything of it is.
    pub async fn archive_turn(&self, who: &Who) -> Result<Turn, Refusal> {
        let message = "too many archives are being packed, unpacked or taken";
        self.0.archives.turn(&who.tenant).await.ok_or_else(|| in_use(message, "try again when one has ended"))
    }

    /// A turn to search files.
    pub async fn search_turn(&self, who: &Who) -> Result<Turn, Refusal> {
        let message = "too many searches are under way";
        self.0.searches.turn(&who.tenant).await.ok_or_else(|| in_use(message, "try again when one has ended"))
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

    pub fn tries(&self) -> &Tries {
        &self.0.tries
    }

    /// The state directory that all tenants' lie in.
    pub fn state(&self) -> &std::path::Path {
        &self.0.state
    }

    /// Tells the daemon to finish its work and take no more.
    pub fn end(&self) {
        self.0.tasks.cancel();
    }

    /// True once the daemon is about to end.
    pub fn is_ending(&self) -> bool {
        self.0.tasks.is_cancelled()
    }

    /// Resolves when the daemon is about to end.
    pub async fn until_end(&self) {
        self.0.tasks.cancelled().await;
    }

    /// Resolves when no verb is carried out any more, and none that was begun for an absent client is left.
    pub async fn until_idle(&self) {
        const PAUSE: Duration = Duration::from_millis(10);
        self.0.tasks.finished().await;
        while self.0.verbs.figures().0 > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Resolves when a stream must close: the daemon ends, or the credential that opened it is good no more.
    pub async fn until_closed(&self, who: &Who) -> Closed {
        match &who.token {
            None => {
                self.until_end().await;
                Closed::Shutdown
            }
            Some(token) => tokio::select! {
                () = self.until_end() => Closed::Shutdown,
                () = self.0.credentials.until_bad(token) => Closed::Credential,
            },
        }
    }

    /// Returns the caller that verbs are given for a client. Only a client that has the host has the daemon's surroundings. Others of the
    /// daemon's own tenant keep its home, below which PATH may lead to toolchains, and its settings, which bound them; another tenant
    /// has a state of its own, and neither.
    pub fn caller(&self, who: &Who) -> Caller {
        let (user, reach, cwd) = (who.name.clone(), who.reach.clone(), PathBuf::from("/"));
        // Verbs are part of the trace of their request, not of the daemon's own.
        let trace_parent = telemetry::current().map(|context| context.header().into());
        let secret_sources = SecretSources::KeptOnly;
        let ours = &self.0.caller;
        let is_ours = who.tenant == DEFAULT_TENANT;
        if is_ours && who.reach == Reach::All {
            return Caller { user, reach, cwd, trace_parent, secret_sources, ..ours.clone() };
        }
        let passes = |name: &OsString| {
            let is_setting = name.as_encoded_bytes().starts_with(SETTINGS.as_bytes()) || name == SETTINGS_AT;
            PASSED_ON.iter().any(|known| name == known) || is_ours && is_setting
        };
        let env: Vec<(OsString, OsString)> = ours.env.iter().filter(|(name, _)| passes(name)).cloned().collect();
        let state_dir = Some(self.state_of(&who.tenant));
        let home = if is_ours { ours.home.clone() } else { "/nonexistent".into() };
        Caller { cwd, home, user, env, read_late: |_| None, reach, state_dir, trace_parent, secret_sources }
    }

    /// The daemon's own surroundings, for what it does on its own behalf.
    pub fn own_caller(&self) -> Caller {
        self.0.caller.clone()
    }

    /// Where a tenant's sandboxes are kept.
    pub fn state_of(&self, tenant: &str) -> PathBuf {
        node::tokens::state_of(&self.0.state, tenant)
    }

    /// Carries out a verb. Verbs block, so each has a thread of the pool for as long as it takes.
    pub async fn verb<T, F>(&self, who: &Who, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        let (node, caller) = (self.0.node.clone(), self.caller(who));
        let done = self.blocking_for(who, move || verb(&node, &caller)).await;
        self.0.feeds.nudge(&who.tenant);
        done
    }

    /// Carries out a verb and answers with its content. The document is written on the verb's thread.
    pub async fn answer<T, F>(&self, who: &Who, verb: F) -> Result<Answer<T>, Refusal>
    where
        T: Serialize + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        self.verb(who, move |node, caller| verb(node, caller).map(Answer::ok)).await
    }

    /// The same for a verb whose answer is a whole document.
    pub async fn answer_whole<T, F>(&self, who: &Who, verb: F) -> Result<Answer<T>, Refusal>
    where
        T: Serialize + 'static,
        F: FnOnce(&Node, &Caller) -> Result<T, Fault> + Send + 'static,
    {
        self.verb(who, move |node, caller| verb(node, caller).map(|document| Answer::whole(&document))).await
    }

    /// Does work of a tenant on a thread of the pool.
    pub async fn blocking_for<T, F>(&self, who: &Who, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Fault> + Send + 'static,
    {
        let (send, mut result) = oneshot::channel();
        self.in_turn(&who.tenant, Box::new(move || drop(send.send(work())))).await?;
        let result = result.try_recv().map_err(|_| Fault::internal("a verb ended without an answer"))?;
        result.map_err(Refusal::from)
    }

    /// Does the work on a thread of the pool, when it is the tenant's turn. One body of code for all verbs: what differs is in the box.
    async fn in_turn(&self, tenant: &str, work: Box<dyn FnOnce() + Send>) -> Result<(), Refusal> {
        let counted = Counted::new(self.0.telemetry.queue());
        let turn = self.0.verbs.turn(tenant, Some(AT_A_TIME_EACH), PATIENCE).await.map_err(|_| {
            let message = "too many requests are being carried out or wait for it";
            Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "try again")
        })?;
        // The work goes on when its client is gone, and has its turn for as long.
        let span = tracing::debug_span!("verb", tenant);
        let done = tokio::task::spawn_blocking(move || {
            let _both = (turn, counted);
            span.in_scope(work)
        });
        let broken = |e| Refusal::from(Fault::internal(format!("a verb ended without an answer: {e}")));
        let done = done.await;
        self.0.sweeper.sweep_soon();
        done.map_err(broken)
    }

    /// Asks a verb again and again until its answer is `ready`, or the time is over; the last answer.
    pub async fn wait<T, F>(&self, who: &Who, time: Duration, verb: F, ready: fn(&T) -> bool) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Fn(&Node, &Caller) -> Result<T, Fault> + Send + Sync + Clone + 'static,
    {
        const FIRST: Duration = Duration::from_millis(5);
        const USUAL: Duration = Duration::from_millis(250);
        // After a long wait a second more does not matter, and costs the others less.
        const PATIENT: Duration = Duration::from_secs(30);
        const SELDOM: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let end = begun + time;
        let mut pause = FIRST;
        let _task = (!time.is_zero()).then(|| self.0.tasks.admit(Kind::Wait, &who.tenant)).transpose()?;
        loop {
            let answer = self.verb(who, verb.clone()).await?;
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

/// Refuses a request because all turns are taken, and turns may last.
fn in_use(message: &str, hint: &str) -> Refusal {
    const LATER: Duration = Duration::from_secs(5);
    Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, hint).after(LATER)
}

/// The reason why a stream is closed before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Shutdown,
    Credential,
}

impl Closed {
    pub fn name(self) -> &'static str {
        match self {
            Closed::Shutdown => "shutdown",
            Closed::Credential => "credential",
        }
    }
}

/// Counts a verb that is carried out or waits for a thread, until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The daemon's own user on its socket, who may do everything.
pub fn owner(name: &str) -> Who {
    let scopes = vec![crate::Scope::Operator];
    Who { tenant: DEFAULT_TENANT.into(), name: name.into(), scopes, reach: Reach::All, token: None }
}
