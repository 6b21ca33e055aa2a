//! Exports to the collector: spans in batches, metrics at an interval. A slow or absent collector delays nothing; spans without room in the
//! queue are dropped and counted.

use super::collector::Collector;
use super::metrics::{Family, Metrics};
use super::otlp;
use super::trace::{Span, now_ns};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Maximum number of queued spans, and of spans in a batch.
const MAX_QUEUED: usize = 4096;
const MAX_BATCH: usize = 512;
/// Time for which a batch waits for more spans.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// Attempts for each export, and the first pause between them.
const ATTEMPTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Time for the last spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

enum SpanMessage {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

/// The queue of spans. Cheap to clone.
#[derive(Clone)]
pub struct Spans {
    queue: mpsc::Sender<SpanMessage>,
    metrics: Arc<Metrics>,
}

impl Spans {
    /// Queues a span without waiting; drops and counts it when the queue is full.
    pub fn put(&self, span: Span) {
        if self.queue.try_send(SpanMessage::Span(Box::new(span))).is_err() {
            self.metrics.spans_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits a moment until all queued spans are sent, at shutdown.
    pub async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flush = async {
            if self.queue.send(SpanMessage::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        let _ = timeout(FLUSH_TIMEOUT, flush).await;
    }
}

/// Starts the export tasks. `figures` returns the current metrics.
pub fn start<F, G>(collector: Collector, interval: Duration, metrics: Arc<Metrics>, figures: F) -> Spans
where
    F: Fn() -> G + Send + 'static,
    G: Future<Output = Vec<Family>> + Send + 'static,
{
    let (queue, waiting) = mpsc::channel(MAX_QUEUED);
    tokio::spawn(send_spans(collector.clone(), waiting, metrics.clone()));
    tokio::spawn(send_metrics(collector, interval, metrics.clone(), figures));
    Spans { queue, metrics }
}

async fn send_spans(collector: Collector, mut waiting: mpsc::Receiver<SpanMessage>, metrics: Arc<Metrics>) {
    let mut state = ExportState::default();
    while let Some(first) = waiting.recv().await {
        let (spans, flushed) = collect_batch(first, &mut waiting).await;
        if !spans.is_empty() {
            let sent = post_with_retries(&collector, "traces", otlp::spans(&collector.service, &spans)).await;
            state.log_change("traces", &sent);
            let count = if sent.is_ok() { &metrics.spans_sent } else { &metrics.spans_dropped };
            count.fetch_add(spans.len() as u64, Ordering::Relaxed);
        }
        // The waiting side may be gone.
        for done in flushed {
            let _ = done.send(());
        }
    }
}

/// Gathers the spans of one batch.
async fn collect_batch(
    first: SpanMessage,
    waiting: &mut mpsc::Receiver<SpanMessage>,
) -> (Vec<Span>, Vec<oneshot::Sender<()>>) {
    let (mut spans, mut flushed) = (Vec::new(), Vec::new());
    let mut take = |item: SpanMessage, spans: &mut Vec<Span>| match item {
        SpanMessage::Span(span) => {
            spans.push(*span);
            false
        }
        SpanMessage::Flush(done) => {
            flushed.push(done);
            true
        }
    };
    if !take(first, &mut spans) {
        let until = tokio::time::Instant::now() + BATCH_TIME;
        while spans.len() < MAX_BATCH {
            let Ok(Some(item)) = tokio::time::timeout_at(until, waiting.recv()).await else { break };
            if take(item, &mut spans) {
                break;
            }
        }
    }
    (spans, flushed)
}

async fn send_metrics<F, G>(collector: Collector, interval: Duration, metrics: Arc<Metrics>, figures: F)
where
    F: Fn() -> G,
    G: Future<Output = Vec<Family>>,
{
    let (start, mut state) = (now_ns(), ExportState::default());
    loop {
        sleep(interval).await;
        let body = otlp::metrics(&collector.service, &figures().await, start, now_ns());
        let sent = collector.post("metrics", body).await;
        state.log_change("metrics", &sent);
        let count: &AtomicU64 = if sent.is_ok() { &metrics.metrics_sent } else { &metrics.metrics_dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn post_with_retries(collector: &Collector, signal: &str, body: Vec<u8>) -> Result<(), String> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..ATTEMPTS {
        if collector.post(signal, body.clone()).await.is_ok() {
            return Ok(());
        }
        sleep(pause).await;
        pause *= 2;
    }
    collector.post(signal, body).await
}

/// Logs export failures once when they begin and once when they are over, not for every batch.
#[derive(Default)]
struct ExportState(bool);

impl ExportState {
    fn log_change(&mut self, signal: &str, sent: &Result<(), String>) {
        match (sent, self.0) {
            (Err(why), false) => {
                tracing::warn!(signal, why = why.as_str(), "cannot export to the collector");
            }
            (Ok(()), true) => tracing::info!(signal, "exports to the collector work again"),
            _ => {}
        }
        self.0 = sent.is_err();
    }
}
