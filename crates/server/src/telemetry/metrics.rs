//! Metrics that the daemon counts itself. Labels have closed sets of values: route templates, statuses, kinds of faults.

use super::process;
use api::CodeOutcome;
use node::figures::Figures;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets, in seconds.
pub const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Maximum number of label sets per family, so that a mistake in a label cannot exhaust the memory.
const MAX_LABEL_SETS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric family: all samples with one name.
#[derive(Clone, Debug)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
pub struct Sample {
    pub labels: Vec<(&'static str, String)>,
    pub amount: SampleValue,
}

#[derive(Clone, Debug)]
pub enum SampleValue {
    Number(f64),
    Histogram(Histogram),
}

/// A histogram of latencies; the last bucket has no upper bound.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    pub counts: [u64; BOUNDS.len() + 1],
    pub sum: f64,
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        let class = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[class] += 1;
        self.sum += seconds;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub struct AnsweredRequest {
    pub method: &'static str,
    /// The route template, never the path.
    pub route: String,
    pub status: u16,
    pub took: Duration,
    /// `error_kind` and `limit_kind` of the fault, if the request was refused.
    pub refused: Option<(&'static str, &'static str)>,
}

#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, String, u16), u64>>,
    latencies: Mutex<BTreeMap<(&'static str, String), Histogram>>,
    refused: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Calls of code by language and verdict.
    code_calls: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Bytes of output and values of these calls, by language.
    code_output: Mutex<BTreeMap<&'static str, u64>>,
    in_flight: AtomicI64,
    pub spans_sent: AtomicU64,
    pub spans_dropped: AtomicU64,
    pub metrics_sent: AtomicU64,
    pub metrics_dropped: AtomicU64,
}

impl Metrics {
    pub fn began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn request(&self, request: &AnsweredRequest) {
        let AnsweredRequest { method, route, status, took, refused } = request;
        locked(&self.requests, |all| bounded(all, (*method, route.clone(), *status), |n: &mut u64| *n += 1));
        locked(&self.latencies, |all| {
            bounded(all, (*method, route.clone()), |spread: &mut Histogram| spread.add(took.as_secs_f64()));
        });
        if let Some(kinds) = refused {
            locked(&self.refused, |all| bounded(all, *kinds, |n: &mut u64| *n += 1));
        }
    }

    /// Counts a call of code that has ended.
    pub fn code_call(&self, language: &'static str, outcome: &CodeOutcome) {
        locked(&self.code_calls, |all| bounded(all, (language, outcome.verdict.name()), |n: &mut u64| *n += 1));
        locked(&self.code_output, |all| bounded(all, language, |n: &mut u64| *n += outcome.usage.output_bytes));
    }

    /// Returns all metrics, the node's figures included.
    pub fn families(&self, figures: &Figures, queue: u64, log_dropped: u64) -> Vec<Family> {
        let mut all = self.of_requests();
        all.extend(of_node(figures));
        all.extend(self.of_code());
        all.push(gauge("cofferdam_queue_length", "Verbs that are running or queued", queue as f64));
        all.push(counter("cofferdam_log_lines_dropped_total", "Log lines that were dropped", log_dropped));
        all.push(self.of_telemetry());
        all.extend(process::families());
        all
    }

    fn of_requests(&self) -> Vec<Family> {
        let requests = locked(&self.requests, |all| {
            let sample = |((method, route, status), n): (&(&'static str, String, u16), &u64)| {
                sample(&[("method", method), ("route", route), ("status", &status.to_string())], *n as f64)
            };
            all.iter().map(sample).collect()
        });
        let latencies = locked(&self.latencies, |all| {
            let sample = |((method, route), spread): (&(&'static str, String), &Histogram)| Sample {
                labels: vec![("method", (*method).into()), ("route", route.clone())],
                amount: SampleValue::Histogram(spread.clone()),
            };
            all.iter().map(sample).collect()
        });
        let refused = locked(&self.refused, |all| {
            let sample = |((kind, limit), n): (&(&'static str, &'static str), &u64)| {
                sample(&[("error_kind", kind), ("limit_kind", limit)], *n as f64)
            };
            all.iter().map(sample).collect()
        });
        let in_flight = self.in_flight.load(Ordering::Relaxed).max(0) as u64;
        vec![
            family("cofferdam_http_requests_total", "Requests that were answered", MetricKind::Counter, requests),
            family(
                "cofferdam_http_request_duration_seconds",
                "Time from the head of a request to the head of its response",
                MetricKind::Histogram,
                latencies,
            ),
            family(
                "cofferdam_http_refused_total",
                "Requests that ended in a fault, by kind",
                MetricKind::Counter,
                refused,
            ),
            gauge("cofferdam_http_requests_in_flight", "Requests that are being answered", in_flight as f64),
        ]
    }

    fn of_code(&self) -> [Family; 2] {
        let calls = locked(&self.code_calls, |all| {
            let sample = |((language, verdict), n): (&(&'static str, &'static str), &u64)| {
                sample(&[("language", language), ("verdict", verdict)], *n as f64)
            };
            all.iter().map(sample).collect()
        });
        let output = locked(&self.code_output, |all| {
            all.iter().map(|(language, n)| sample(&[("language", language)], *n as f64)).collect()
        });
        let calls_help = "Calls of code that ended at this daemon, by language and verdict";
        let output_help = "Bytes of output and values of these calls, by language";
        [
            family("cofferdam_code_calls_total", calls_help, MetricKind::Counter, calls),
            family("cofferdam_code_output_bytes_total", output_help, MetricKind::Counter, output),
        ]
    }

    fn of_telemetry(&self) -> Family {
        let counts = [
            ("spans", "sent", &self.spans_sent),
            ("spans", "dropped", &self.spans_dropped),
            ("metrics", "sent", &self.metrics_sent),
            ("metrics", "dropped", &self.metrics_dropped),
        ];
        let of = |(signal, outcome, n): (&str, &str, &AtomicU64)| {
            sample(&[("signal", signal), ("outcome", outcome)], n.load(Ordering::Relaxed) as f64)
        };
        let help = "Spans and metric exports that the collector accepted, or that were dropped";
        family("cofferdam_telemetry_total", help, MetricKind::Counter, counts.into_iter().map(of).collect())
    }
}

fn of_node(figures: &Figures) -> Vec<Family> {
    let by = |label: &'static str, counts: &BTreeMap<String, u64>| {
        counts.iter().map(|(value, n)| sample(&[(label, value)], *n as f64)).collect::<Vec<_>>()
    };
    let mut all = vec![
        family("cofferdam_sandboxes", "Sandboxes by state", MetricKind::Gauge, by("state", &figures.sandboxes)),
        gauge("cofferdam_keepers", "Keepers that hold a live sandbox", figures.keepers as f64),
        gauge("cofferdam_runs_active", "Runs that have not ended", figures.runs_active as f64),
        counter("cofferdam_runs_started_total", "Runs that began since the daemon started", figures.runs_started),
        family(
            "cofferdam_runs_ended_total",
            "Runs that ended since the daemon started, by verdict",
            MetricKind::Counter,
            by("verdict", &figures.runs_ended),
        ),
        family(
            "cofferdam_limits_met_total",
            "Runs that a limit ended since the daemon started, by limit",
            MetricKind::Counter,
            by("limit_kind", &figures.limits_met),
        ),
        gauge("cofferdam_store_bytes", "Size of the files of records and the journal", figures.store_bytes as f64),
        gauge("cofferdam_journal_head", "Entries in the journals of all tenants", figures.journal_head as f64),
        gauge("cofferdam_tenants", "Tenants that have a state of their own", figures.tenants as f64),
    ];
    if let Some(size) = figures.layers {
        all.push(gauge("cofferdam_layers_bytes", "Size of all layers at the last measurement", size.bytes as f64));
        all.push(gauge("cofferdam_layers_files", "Files in all layers at the last measurement", size.files as f64));
    }
    all
}

pub fn family(name: &'static str, help: &'static str, kind: MetricKind, samples: Vec<Sample>) -> Family {
    Family { name, help, kind, samples }
}

pub fn gauge(name: &'static str, help: &'static str, amount: f64) -> Family {
    family(name, help, MetricKind::Gauge, vec![sample(&[], amount)])
}

pub fn counter(name: &'static str, help: &'static str, amount: u64) -> Family {
    family(name, help, MetricKind::Counter, vec![sample(&[], amount as f64)])
}

pub fn sample(labels: &[(&'static str, &str)], amount: f64) -> Sample {
    let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Sample { labels, amount: SampleValue::Number(amount) }
}

/// Locks and runs `work`. A poisoned lock is used as it is: no holder leaves it inconsistent.
fn locked<T, R>(lock: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
    work(&mut lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn bounded<K: Ord, V: Default>(all: &mut BTreeMap<K, V>, key: K, work: impl FnOnce(&mut V)) {
    if all.len() < MAX_LABEL_SETS || all.contains_key(&key) {
        work(all.entry(key).or_default());
    }
}
