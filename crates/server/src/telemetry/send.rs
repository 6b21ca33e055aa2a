//! To the collector: spans in batches, metrics from time to time. A collector that is slow, full or gone costs nobody anything but the
//! spans that find no room: they are counted.

use super::collector::Collector;
use super::metrics::{Family, Metrics};
use super::otlp;
use super::trace::{Span, now_ns};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Spans that wait to be sent, and those that go together.
const WAITING: usize = 4096;
const TOGETHER: usize = 512;
/// Time that a batch waits for more spans.
const GATHERING: Duration = Duration::from_millis(200);
/// Attempts for each export, and the first pause between them.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// Time for the last spans when the daemon ends.
const LAST: Duration = Duration::from_secs(2);

enum Item {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

/// Where spans are put. Cheap to clone.
#[derive(Clone)]
pub struct Spans {
    queue: mpsc::Sender<Item>,
    metrics: Arc<Metrics>,
}

impl Spans {
    /// Never waits.
    pub fn put(&self, span: Span) {
        if self.queue.try_send(Item::Span(Box::new(span))).is_err() {
            self.metrics.spans_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits a moment until what was put is sent: for the end.
    pub async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flush = async {
            if self.queue.send(Item::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        let _ = timeout(LAST, flush).await;
    }
}

/// Begins to send. `figures` makes what there is to tell at a time.
pub fn start<F, G>(collector: Collector, interval: Duration, metrics: Arc<Metrics>, figures: F) -> Spans
where
    F: Fn() -> G + Send + 'static,
    G: Future<Output = Vec<Family>> + Send + 'static,
{
    let (queue, waiting) = mpsc::channel(WAITING);
    tokio::spawn(send_spans(collector.clone(), waiting, metrics.clone()));
    tokio::spawn(send_metrics(collector, interval, metrics.clone(), figures));
    Spans { queue, metrics }
}

async fn send_spans(collector: Collector, mut waiting: mpsc::Receiver<Item>, metrics: Arc<Metrics>) {
    let mut trouble = Trouble::default();
    while let Some(first) = waiting.recv().await {
        let (spans, flushed) = gather(first, &mut waiting).await;
        if !spans.is_empty() {
            let sent = post_patiently(&collector, "traces", otlp::spans(&collector.service, &spans)).await;
            trouble.tell("traces", &sent);
            let count = if sent.is_ok() { &metrics.spans_sent } else { &metrics.spans_dropped };
            count.fetch_add(spans.len() as u64, Ordering::Relaxed);
        }
        // The receiver may be gone.
        for done in flushed {
            let _ = done.send(());
        }
    }
}

/// Gathers the spans of one batch.
async fn gather(first: Item, waiting: &mut mpsc::Receiver<Item>) -> (Vec<Span>, Vec<oneshot::Sender<()>>) {
    let (mut spans, mut flushed) = (Vec::new(), Vec::new());
    let mut take = |item: Item, spans: &mut Vec<Span>| match item {
        Item::Span(span) => {
            spans.push(*span);
            false
        }
        Item::Flush(done) => {
            flushed.push(done);
            true
        }
    };
    if !take(first, &mut spans) {
        let until = tokio::time::Instant::now() + GATHERING;
        while spans.len() < TOGETHER {
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
    let (start, mut trouble) = (now_ns(), Trouble::default());
    loop {
        sleep(interval).await;
        let body = otlp::metrics(&collector.service, &figures().await, start, now_ns());
        let sent = collector.post("metrics", body).await;
        trouble.tell("metrics", &sent);
        let count: &AtomicU64 = if sent.is_ok() { &metrics.metrics_sent } else { &metrics.metrics_dropped };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn post_patiently(collector: &Collector, signal: &str, body: Vec<u8>) -> Result<(), String> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        if collector.post(signal, body.clone()).await.is_ok() {
            return Ok(());
        }
        sleep(pause).await;
        pause *= 2;
    }
    collector.post(signal, body).await
}

/// Told once when it begins and once when it is over, not for every batch.
#[derive(Default)]
struct Trouble(bool);

impl Trouble {
    fn tell(&mut self, signal: &str, sent: &Result<(), String>) {
        match (sent, self.0) {
            (Err(why), false) => {
                tracing::warn!(signal, why = why.as_str(), "the collector does not take what we send");
            }
            (Ok(()), true) => tracing::info!(signal, "the collector is back"),
            _ => {}
        }
        self.0 = sent.is_err();
    }
}
