//! Telemetry of the daemon: log lines on stderr (events of the `tracing` crate), figures for Prometheus, traces and metrics by OTLP.
//! All of it is bounded, and none of it makes a request wait: what has no room is dropped and counted.

mod collector;
mod layer;
mod log;
mod metrics;
mod observe;
mod otlp;
mod process;
mod prometheus;
mod runs;
mod send;
mod trace;

pub use collector::Collector;
pub use layer::Null;
pub use metrics::{Family, Metrics};
pub use observe::{Seen, Told};
pub use prometheus::CONTENT_TYPE;
pub use trace::current;

use layer::LogLayer;
use log::Log;
use node::config::Logs;
use node::figures::{self, Figures};
use node::{Caller, Node};
use runs::Runs;
use send::Spans;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use terms::Fault;

/// Pause between two looks at the journals for runs that have ended, where traces are sent.
const LOOK: Duration = Duration::from_secs(1);
/// The greatest age of figures; requests that come more often get the same.
const FRESH: Duration = Duration::from_secs(1);
/// Layers are measured anew after this, or after so many times as long as it took.
const MEASURED: Duration = Duration::from_secs(60);
const MEASURED_TIMES: u32 = 20;
/// The part of a second's work that a look takes, at most, when there are many tenants.
const MOST_TENANTS: usize = 10_000;

/// Cheap to clone; one for the whole daemon.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    log: Log,
    metrics: Arc<Metrics>,
    spans: std::sync::OnceLock<Spans>,
    nodes: Nodes,
    /// Requests that are carried out or wait for it; counted by those who queue them.
    queue: Arc<AtomicUsize>,
    seen: Mutex<Sight>,
    layers: Mutex<Measured>,
}

/// The states that are watched: the daemon's own and one for each tenant.
pub struct Nodes {
    pub node: Arc<Node>,
    pub caller: Caller,
    pub state: PathBuf,
}

/// Figures of the last look.
#[derive(Default)]
struct Sight {
    runs: Runs,
    figures: Figures,
    taken: Option<Instant>,
}

/// Size of all layers at the last walk; the time of that walk and its length.
#[derive(Default)]
struct Measured {
    size: Option<figures::Size>,
    last: Option<(Instant, Duration)>,
    busy: bool,
}

impl Telemetry {
    pub fn new(logs: Logs, nodes: Nodes) -> Telemetry {
        let (metrics, spans, seen) = (Arc::default(), std::sync::OnceLock::new(), Mutex::default());
        let (queue, layers) = (Arc::default(), Mutex::default());
        Telemetry(Arc::new(Inner { log: Log::start(logs), metrics, spans, nodes, queue, seen, layers }))
    }

    /// Makes the log the one that events of this process are written to. Called once, when the daemon starts.
    pub fn install(&self) -> Result<(), Fault> {
        let installed = tracing::subscriber::set_global_default(LogLayer::subscriber(self.0.log.clone()));
        installed.map_err(|e| Fault::internal(format!("the daemon's log: {e}")))
    }

    pub fn queue(&self) -> &Arc<AtomicUsize> {
        &self.0.queue
    }

    fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn spans(&self) -> Option<&Spans> {
        self.0.spans.get()
    }

    /// Begins to send to the collector. Called once, inside the runtime.
    pub fn send(&self, collector: Collector, interval: Duration) {
        let seen = self.clone();
        let figures = move || {
            let seen = seen.clone();
            async move { seen.families().await }
        };
        let spans = send::start(collector, interval, self.0.metrics.clone(), figures);
        if self.0.spans.set(spans).is_ok() {
            tokio::spawn(self.clone().follow());
        }
    }

    /// Reads the journals for runs that have ended.
    async fn follow(self) {
        loop {
            let seen = self.clone();
            let _ = tokio::task::spawn_blocking(move || seen.look()).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The last spans and the last words, when the daemon ends.
    pub async fn close(&self) {
        if let Some(spans) = self.spans() {
            let seen = self.clone();
            let _ = tokio::task::spawn_blocking(move || seen.look()).await;
            spans.flush().await;
        }
        self.0.log.flush();
    }

    /// For Prometheus.
    pub async fn text(&self) -> String {
        prometheus::text(&self.families().await)
    }

    async fn families(&self) -> Vec<Family> {
        let seen = self.clone();
        let mut figures = tokio::task::spawn_blocking(move || seen.figures()).await.unwrap_or_default();
        figures.layers = self.layers();
        let queue = self.0.queue.load(Ordering::Relaxed) as u64;
        self.0.metrics.families(&figures, queue, self.0.log.dropped())
    }

    /// The last measure. An old one is renewed in the background.
    fn layers(&self) -> Option<figures::Size> {
        let mut layers = self.0.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |(at, took): (Instant, Duration)| at.elapsed() > MEASURED.max(took * MEASURED_TIMES);
        if !layers.busy && layers.last.is_none_or(due) {
            layers.busy = true;
            let seen = self.clone();
            tokio::task::spawn_blocking(move || seen.measure());
        }
        layers.size
    }

    fn measure(&self) {
        let (began, mut sum) = (Instant::now(), figures::Size::default());
        let callers = self.0.nodes.callers();
        callers
            .iter()
            .filter_map(|(_, caller)| figures::layers(&self.0.nodes.node, caller).ok())
            .for_each(|size| sum += size);
        let last = Some((Instant::now(), began.elapsed()));
        *self.0.layers.lock().unwrap_or_else(PoisonError::into_inner) = Measured { size: Some(sum), last, busy: false };
    }

    fn sight(&self) -> std::sync::MutexGuard<'_, Sight> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figures(&self) -> Figures {
        let mut sight = self.sight();
        if sight.taken.is_some_and(|at| at.elapsed() < FRESH) {
            return sight.figures.clone();
        }
        let callers = self.0.nodes.callers();
        let mut sum = Figures { tenants: callers.len() as u64 - 1, ..Figures::default() };
        for (tenant, caller) in &callers {
            sight.runs.look(&self.0.nodes.node, tenant, caller, None, self.spans());
        }
        sum += figures::now(&self.0.nodes.node, callers.iter().map(|(_, caller)| caller));
        sight.runs.add_to(&mut sum);
        (sight.figures, sight.taken) = (sum.clone(), Some(Instant::now()));
        sum
    }

    /// Reads on in all journals, and remembers how far: spans of runs that end while no daemon is there are sent by the next.
    fn look(&self) {
        let mut sight = self.sight();
        for (tenant, caller) in self.0.nodes.callers() {
            let path = self.0.nodes.state_of(&tenant).join("telemetry.at");
            let from = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            let at = sight.runs.look(&self.0.nodes.node, &tenant, &caller, from, self.spans());
            if let Some(at) = at.filter(|at| Some(*at) != from) {
                // Without it a span may be sent twice, which is the same span.
                let _ = std::fs::write(&path, at.to_string());
            }
        }
    }
}

/// The tenant that the daemon's own state belongs to.
const OWN: &str = "default";

impl Nodes {
    fn state_of(&self, tenant: &str) -> PathBuf {
        if tenant == OWN { self.state.clone() } else { self.state.join("tenants").join(tenant) }
    }

    /// Callers for the states of all tenants; the daemon's own is the first.
    fn callers(&self) -> Vec<(String, Caller)> {
        let mut all = vec![(OWN.to_owned(), self.caller_at(&self.state))];
        let names = std::fs::read_dir(self.state.join("tenants")).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok()).take(MOST_TENANTS);
        all.extend(names.map(|name| (name.clone(), self.caller_at(&self.state_of(&name)))));
        all
    }

    fn caller_at(&self, state: &Path) -> Caller {
        self.caller.clone().in_state(state)
    }
}
