//! Telemetry of the daemon: log lines on stderr (events of the `tracing` crate), metrics for Prometheus, traces and metrics by OTLP. All of
//! it is bounded, and none of it makes a request wait: lines and spans without room are dropped and counted.

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

use api::{CodeOutcome, DiskUsage, Language};
pub use collector::Collector;
pub use layer::Null;
pub use metrics::{Family, Metrics};
pub use observe::{ObservedRequest, RequestEnd};
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

/// Poll interval of the journals for ended runs, where traces are sent.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum age of cached figures.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Layers are measured again after this time, or after so many times the length of the last measurement.
const MEASURED: Duration = Duration::from_secs(60);
const MEASURED_TIMES: u32 = 20;
/// Maximum number of tenants that are read.
const MAX_TENANTS: usize = 10_000;

/// The daemon's telemetry. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    log: Log,
    metrics: Arc<Metrics>,
    spans: std::sync::OnceLock<Spans>,
    nodes: WatchedStates,
    /// Number of running and queued verbs; counted by `Shared`.
    queue: Arc<AtomicUsize>,
    seen: Mutex<FiguresCache>,
    layers: Mutex<Measured>,
}

/// The states that are read: the daemon's own and one for each tenant.
pub struct WatchedStates {
    pub node: Arc<Node>,
    pub caller: Caller,
    pub state: PathBuf,
}

/// Cached figures.
#[derive(Default)]
struct FiguresCache {
    runs: Runs,
    figures: Figures,
    taken: Option<Instant>,
}

/// Size of all layers at the last walk; the time of that walk and its length.
#[derive(Default)]
struct Measured {
    size: Option<DiskUsage>,
    last: Option<(Instant, Duration)>,
    busy: bool,
}

impl Telemetry {
    pub fn new(logs: Logs, nodes: WatchedStates) -> Telemetry {
        let (metrics, spans, seen) = (Arc::default(), std::sync::OnceLock::new(), Mutex::default());
        let (queue, layers) = (Arc::default(), Mutex::default());
        Telemetry(Arc::new(Inner { log: Log::start(logs), metrics, spans, nodes, queue, seen, layers }))
    }

    /// Installs the log as the global subscriber of this process. Called once, at the start.
    pub fn install(&self) -> Result<(), Fault> {
        let installed = tracing::subscriber::set_global_default(LogLayer::subscriber(self.0.log.clone()));
        installed.map_err(|e| Fault::internal(format!("the daemon's log: {e}")))
    }

    pub fn queue(&self) -> &Arc<AtomicUsize> {
        &self.0.queue
    }

    /// Counts a call of code that has ended.
    pub fn count_code_call(&self, language: Language, outcome: &CodeOutcome) {
        self.0.metrics.code_call(language.name(), outcome);
    }

    fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    fn spans(&self) -> Option<&Spans> {
        self.0.spans.get()
    }

    /// Starts exporting to the collector. Called once, inside the runtime.
    pub fn send(&self, collector: Collector, interval: Duration) {
        let seen = self.clone();
        let figures = move || {
            let seen = seen.clone();
            async move { seen.families().await }
        };
        let spans = send::start(collector, interval, self.0.metrics.clone(), figures);
        if self.0.spans.set(spans).is_ok() {
            tokio::spawn(self.clone().poll_journals());
        }
    }

    /// Polls the journals for runs that have ended.
    async fn poll_journals(self) {
        loop {
            let seen = self.clone();
            let _ = tokio::task::spawn_blocking(move || seen.read_new_entries()).await;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Flushes spans and log lines at shutdown.
    pub async fn close(&self) {
        if let Some(spans) = self.spans() {
            let seen = self.clone();
            let _ = tokio::task::spawn_blocking(move || seen.read_new_entries()).await;
            spans.flush().await;
        }
        self.0.log.flush();
    }

    /// Returns all metrics in the text format of Prometheus.
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

    /// Returns the last measurement of layers. An old one is repeated in the background.
    fn layers(&self) -> Option<DiskUsage> {
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
        let (began, mut sum) = (Instant::now(), DiskUsage::default());
        let callers = self.0.nodes.callers();
        callers
            .iter()
            .filter_map(|(_, caller)| figures::layers(&self.0.nodes.node, caller).ok())
            .for_each(|size| sum += size);
        let last = Some((Instant::now(), began.elapsed()));
        *self.0.layers.lock().unwrap_or_else(PoisonError::into_inner) = Measured { size: Some(sum), last, busy: false };
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, FiguresCache> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figures(&self) -> Figures {
        let mut cache = self.cache();
        if cache.taken.is_some_and(|at| at.elapsed() < MAX_AGE) {
            return cache.figures.clone();
        }
        let callers = self.0.nodes.callers();
        let mut sum = Figures { tenants: callers.len() as u64 - 1, ..Figures::default() };
        for (tenant, caller) in &callers {
            cache.runs.read_new_entries(&self.0.nodes.node, tenant, caller, None, self.spans());
        }
        sum += figures::now(&self.0.nodes.node, callers.iter().map(|(_, caller)| caller));
        cache.runs.add_to(&mut sum);
        (cache.figures, cache.taken) = (sum.clone(), Some(Instant::now()));
        sum
    }

    /// Reads new entries of all journals and stores the position, so that runs that end without a daemon are sent by the next one.
    fn read_new_entries(&self) {
        let mut cache = self.cache();
        for (tenant, caller) in self.0.nodes.callers() {
            let path = self.0.nodes.state_of(&tenant).join("telemetry.at");
            let from = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            let at = cache.runs.read_new_entries(&self.0.nodes.node, &tenant, &caller, from, self.spans());
            if let Some(at) = at.filter(|at| Some(*at) != from) {
                // Without the position a span may be sent twice, with the same id.
                let _ = std::fs::write(&path, at.to_string());
            }
        }
    }
}

/// The tenant of the daemon's own state.
const OWN_TENANT: &str = "default";

impl WatchedStates {
    fn state_of(&self, tenant: &str) -> PathBuf {
        if tenant == OWN_TENANT { self.state.clone() } else { self.state.join("tenants").join(tenant) }
    }

    /// Returns callers for the states of all tenants, the daemon's own first.
    fn callers(&self) -> Vec<(String, Caller)> {
        let mut all = vec![(OWN_TENANT.to_owned(), self.caller_at(&self.state))];
        let names = std::fs::read_dir(self.state.join("tenants")).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok()).take(MAX_TENANTS);
        all.extend(names.map(|name| (name.clone(), self.caller_at(&self.state_of(&name)))));
        all
    }

    fn caller_at(&self, state: &Path) -> Caller {
        self.caller.clone().in_state(state)
    }
}
