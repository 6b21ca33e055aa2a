//! What all routes share.

use crate::Settings;
use crate::admission::{Admission, Fair, Shares, Turn};
use crate::credentials::Credentials;
use crate::feed::Feeds;
use crate::foreign::Tries;
use crate::lookout::{self, Lookout, Nodes};
use crate::refuse::Refusal;
use crate::rules::Rules;
use crate::who::Who;
use http::StatusCode;
use node::config::Keep;
use node::tokens::DEFAULT_TENANT;
use node::{Caller, Reach};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use terms::{Fault, LimitKind};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Verbs that are carried out at a time, each on a thread of its own, in all and of one tenant; how long one waits for that.
pub const AT_A_TIME: u64 = 64;
const AT_A_TIME_EACH: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(60);
/// Archives that are packed or unpacked at a time, each on a thread, and how long one waits for its turn, as for one of a search.
const ARCHIVES: u64 = 16;
const PATIENCE_FOR_ARCHIVES: Duration = Duration::from_secs(15);
/// Searches at a time, each of which keeps a processor busy.
const SEARCHES: u64 = 16;
/// Watches at a time; each has a thread that waits for the kernel. They last, so that nobody waits for one.
const WATCHES: u64 = 64;
/// Variables of the daemon's environment that are there for who does not have the host.
const PASSED_ON: [&str; 3] = ["PATH", "LANG", "TZ"];
/// How the variables that set something of ours begin; and the one that says where our file of settings is.
const SETTINGS: &str = "COFFERDAM_";
const SETTINGS_AT: &str = "XDG_CONFIG_HOME";

/// Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
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
    watches: Shares,
    searches: Shares,
    event_streams: Shares,
    ending: watch::Sender<bool>,
    lookout: Lookout,
    feeds: Feeds,
    /// Something was taken that stood ready, or more shall.
    taken: Notify,
    keep: Keep,
}

impl Shared {
    pub fn new(settings: &Settings, credentials: Credentials, rules: Rules) -> Shared {
        let Settings { caller, state, max_body, patience, quotas, keep, .. } = settings.clone();
        let lookout = Lookout::new(settings.logs, Nodes { caller: caller.clone(), state: state.clone() });
        let (verbs, admission) = (Fair::new(Some(AT_A_TIME)), Admission::new(quotas));
        let ending = watch::channel(false).0;
        let listening = settings.listen.map(|address| address.to_string());
        let hosts = settings.allow_hosts.iter().cloned().chain(listening).collect();
        Shared(Arc::new(Inner {
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
            watches: Shares::new(WATCHES, Duration::ZERO),
            searches: Shares::new(SEARCHES, PATIENCE_FOR_ARCHIVES),
            event_streams: Shares::new(settings.event_streams, Duration::ZERO),
            ending,
            lookout,
            feeds: Feeds::default(),
            taken: Notify::new(),
            keep,
        }))
    }

    pub fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    pub fn admission(&self) -> &Admission {
        &self.0.admission
    }

    /// What the daemon tells of itself.
    pub fn lookout(&self) -> &Lookout {
        &self.0.lookout
    }

    /// Who listens to which tenant's journal.
    pub fn feeds(&self) -> &Feeds {
        &self.0.feeds
    }

    /// Rung when there may be something to do for those that stand ready.
    pub fn taken(&self) -> &Notify {
        &self.0.taken
    }

    /// How long what is past is kept.
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

    pub fn watches(&self) -> &Shares {
        &self.0.watches
    }

    pub fn event_streams(&self) -> &Shares {
        &self.0.event_streams
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

    /// How long a client may make us wait for the next thing it sends.
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

    /// From now on the daemon finishes what it has begun and takes nothing new.
    pub fn end(&self) {
        self.0.ending.send_replace(true);
    }

    /// True once the daemon is about to end.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.0.ending.subscribe()
    }

    /// Resolves when the daemon is about to end.
    pub async fn until_end(&self) {
        // The sender lives as long as this does.
        let _ = self.ending().wait_for(|ends| *ends).await;
    }

    /// Resolves when no verb is carried out any more.
    pub async fn until_idle(&self) {
        const PAUSE: Duration = Duration::from_millis(10);
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

    /// The caller that a verb of the node is given for somebody. Only who has the host has the daemon's surroundings. Others of the
    /// daemon's own tenant keep its home, below which PATH may lead to toolchains, and its settings, which bound them; another tenant
    /// has a state of its own, and neither.
    pub fn caller(&self, who: &Who) -> Caller {
        let (user, reach, cwd) = (who.name.clone(), who.reach.clone(), PathBuf::from("/"));
        let ours = &self.0.caller;
        let is_ours = who.tenant == DEFAULT_TENANT;
        if is_ours && who.reach == Reach::All {
            let mut env: Vec<(OsString, OsString)> = ours.env.clone();
            env.push(kept_only());
            traced(&mut env);
            env.push(kept_only());
            return Caller { user, reach, cwd, env, ..ours.clone() };
        }
        let passes = |name: &OsString| {
            let is_setting = name.as_encoded_bytes().starts_with(SETTINGS.as_bytes()) || name == SETTINGS_AT;
            PASSED_ON.iter().any(|known| name == known) || is_ours && is_setting
        };
        let mut env: Vec<(OsString, OsString)> = ours.env.iter().filter(|(name, _)| passes(name)).cloned().collect();
        env.retain(|(name, _)| name != "COFFERDAM_STATE");
        env.push(("COFFERDAM_STATE".into(), self.state_of(&who.tenant).into()));
        traced(&mut env);
        env.push(kept_only());
        let home = if is_ours { ours.home.clone() } else { "/nonexistent".into() };
        Caller { cwd, home, user, env, read_late: |_| None, reach }
    }

    /// The daemon's own surroundings, for what it does on its own behalf.
    pub fn own_caller(&self) -> Caller {
        self.0.caller.clone()
    }

    /// Where a tenant's sandboxes are kept.
    pub fn state_of(&self, tenant: &str) -> PathBuf {
        node::tokens::state_of(&self.0.state, tenant)
    }

    /// Carries out a verb. Verbs block, so each has a thread for as long as it takes.
    pub async fn verb<T, F>(&self, who: &Who, verb: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce(&Caller) -> Result<T, Fault> + Send + 'static,
    {
        let caller = self.caller(who);
        let done = self.in_turn(&who.tenant, move || verb(&caller)).await;
        self.0.feeds.nudge(&who.tenant);
        done
    }

    /// The same for work that is a part of what a tenant asked for.
    pub async fn blocking_for<T, F>(&self, who: &Who, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Fault> + Send + 'static,
    {
        self.in_turn(&who.tenant, work).await
    }

    async fn in_turn<T, F>(&self, tenant: &str, work: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Fault> + Send + 'static,
    {
        let counted = Counted::new(self.0.lookout.queue());
        let turn = self.0.verbs.turn(tenant, Some(AT_A_TIME_EACH), PATIENCE).await.map_err(|_| {
            let message = "too many requests are being carried out or wait for it";
            Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, "try again")
        })?;
        // It goes on when its client is gone, and has its turn for as long.
        let done = tokio::task::spawn_blocking(move || {
            let _both = (turn, counted);
            work()
        });
        let broken = |e| Refusal::from(Fault::internal(format!("a verb ended without an answer: {e}")));
        let done = done.await;
        crate::resting::sweep_soon();
        done.map_err(broken)?.map_err(Refusal::from)
    }

    /// Asks a verb again and again until its answer is `ready`, or the time is over; the last answer.
    pub async fn wait<T, F>(&self, who: &Who, time: Duration, verb: F, ready: fn(&T) -> bool) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Fn(&Caller) -> Result<T, Fault> + Send + Sync + Clone + 'static,
    {
        const FIRST: Duration = Duration::from_millis(5);
        const USUAL: Duration = Duration::from_millis(250);
        // Whoever has waited for so long does not mind a second, and asks less of the others.
        const PATIENT: Duration = Duration::from_secs(30);
        const SELDOM: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let end = begun + time;
        let (mut pause, mut ending) = (FIRST, self.ending());
        loop {
            let answer = self.verb(who, verb.clone()).await?;
            if ready(&answer) || Instant::now() >= end || *ending.borrow_and_update() {
                return Ok(answer);
            }
            tokio::time::sleep(pause.min(end - Instant::now())).await;
            pause = (pause * 2).min(if begun.elapsed() < PATIENT { USUAL } else { SELDOM });
        }
    }
}

/// All turns are taken, by those who may take their time.
fn in_use(message: &str, hint: &str) -> Refusal {
    const LATER: Duration = Duration::from_secs(5);
    Refusal::limit(StatusCode::TOO_MANY_REQUESTS, LimitKind::Waiting, message, hint).after(LATER)
}

/// A verb belongs to the trace of the request that asks for it.
fn traced(env: &mut Vec<(OsString, OsString)>) {
    env.retain(|(name, _)| name != "TRACEPARENT");
    env.extend(lookout::current().map(|context| ("TRACEPARENT".into(), context.header().into())));
}

/// Whoever asks, their runs are given secrets that are kept, and none of the daemon's variables.
fn kept_only() -> (OsString, OsString) {
    (node::secrets::ONLY.into(), "1".into())
}

/// Why a stream closes before its end.
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

/// One of those who are carried out or wait for it.
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

/// What the daemon's own user on its socket may: everything.
pub fn owner(name: &str) -> Who {
    let scopes = vec![crate::Scope::Operator];
    Who { tenant: DEFAULT_TENANT.into(), name: name.into(), scopes, reach: Reach::All, token: None }
}
