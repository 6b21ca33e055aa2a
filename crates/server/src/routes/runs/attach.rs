//! Attaches to a run over a WebSocket: sends its output and takes its input. The run continues when the client leaves.

use super::{resize_terminal, send_signal};
use crate::extract::{ByName, Path, Query};
use crate::refuse::Refusal;
use crate::run_listener::{Input, Listener, LogItem, PIECE, RunLog};
use crate::tasks;
use crate::{Principal, Shared};
use api::{Scope, TerminalSize};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use node::keeper::runs::RunRef;
use node::keeper::spool::{HEAD, Record, RecordKind};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use terms::{Fault, Phase};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use utoipa::IntoParams;

/// Maximum size of a message, and of the input queued for the run.
const MAX_MESSAGE: usize = 1 << 20;
/// Minimum size that a message counts as.
const MIN_COST: usize = 1 << 10;
/// Queued faults.
const QUEUED_FAULTS: usize = 16;
/// Time for which a control message waits for the input sent before it.
const CONTROL_DELAY: Duration = Duration::from_millis(500);
/// Longest time in which a client reads nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a run to read the input of a client that has left.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Close codes: the daemon is shutting down; a protocol error; the credential is no longer valid.
const CLOSE_AWAY: u16 = 1001;
const CLOSE_PROTOCOL_ERROR: u16 = 1002;
const CLOSE_POLICY: u16 = 1008;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// Begin at this offset of the output [default: 0].
    from: Option<u64>,
}

/// Attaches to a run over a WebSocket. Wakes a frozen sandbox.
///
/// The server sends binary messages: one byte for the stream (1 stdout, 2 stderr, 3 terminal), the offset of the next message as eight
/// bytes, big endian, and the output; and text messages `{"event": "end", "outcome": …}`, `gap`, `dropped`, `lost`, `closing`, `fault`. The
/// client sends binary messages with input, and text messages `{"eof": true}`, `{"resize": {"rows": 24, "columns": 80}}`, `{"signal": 2}`.
/// A message has at most 1 MiB, and as much input is queued until the run reads it; `resize` and `signal` are handled meanwhile. A close is
/// answered with a close, and the run continues; an invalid message gets a `fault` and a close with code 1002.
#[utoipa::path(get, path = "/v1/runs/{run}/attach", tag = "runs", params(("run" = String, Path), AttachQuery),
    responses((status = 101, description = "Switches to a WebSocket."), (status = 426, description = "Not a WebSocket request.", body = Fault)))]
pub async fn attach(
    State(shared): State<Shared>,
    principal: Principal,
    Path(run): Path<String>,
    Query(query): Query<AttachQuery>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let task = shared.tasks().admit(tasks::TaskKind::RunStream, &principal.tenant)?;
    let listener = Listener::new(&shared, &principal, run).await?;
    let input_listener = Listener::new(&shared, &principal, listener.found.id.clone()).await?;
    let log = RunLog::open(listener, query.from.unwrap_or(0)).await?;
    let upgrade = upgrade?.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE);
    input_listener.with(RunRef::wake).await?;
    Ok(upgrade.on_upgrade(async move |socket| {
        let _task = task;
        let closed = async { shared.until_closed(&principal).await };
        let (sink, stream) = socket.split();
        let attachment = Attachment { sink, log };
        attachment.run_to_end(stream, input_listener, closed).await;
    }))
}

/// The WebSocket upgrade, or the refusal of it; checked last, so that other faults come first as on every route.
pub struct Upgrade(Result<WebSocketUpgrade, Refusal>);

impl FromRequestParts<Shared> for Upgrade {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut http::request::Parts, shared: &Shared) -> Result<Upgrade, Refusal> {
        let refuse = |e: WebSocketUpgradeRejection| {
            let hint = "send `Connection: upgrade`, `Upgrade: websocket` and `Sec-WebSocket-Version: 13`";
            Refusal::http(StatusCode::UPGRADE_REQUIRED, e.body_text(), hint)
        };
        Ok(Upgrade(WebSocketUpgrade::from_request_parts(parts, shared).await.map_err(refuse)))
    }
}

struct Attachment {
    sink: SplitSink<WebSocket, Message>,
    log: RunLog,
}

impl Attachment {
    /// Sends and receives until the run has ended, the client leaves, or the stream must close.
    async fn run_to_end(
        mut self,
        stream: SplitStream<WebSocket>,
        input_listener: Listener,
        closed: impl Future<Output = crate::shared::CloseReason>,
    ) {
        let (faults, mut pending_faults) = mpsc::channel::<Fault>(QUEUED_FAULTS);
        let mut receiving = std::pin::pin!(receive(stream, input_listener, faults));
        let mut closed = std::pin::pin!(closed);
        let mut ping = tokio::time::interval(PING_INTERVAL);
        loop {
            let sent = tokio::select! {
                next = self.log.next() => match next {
                    Ok(Some(LogItem::Page(page))) => {
                        let gap = page.gap.map(|(from, to)| text(json!({"event": "gap", "from": from, "to": to})));
                        let all: Vec<Message> = gap.into_iter().chain(page.records.into_iter().map(message)).collect();
                        self.send_all(all).await
                    }
                    Ok(Some(LogItem::End(outcome))) => {
                        self.send(text(json!({"event": "end", "outcome": outcome}))).await;
                        break;
                    }
                    Ok(None) => break,
                    Err(refusal) => {
                        self.send(text(json!({"event": "lost", "fault": refusal.fault}))).await;
                        break;
                    }
                },
                Some(fault) = pending_faults.recv() => self.send_fault(fault).await,
                left = &mut receiving => {
                    while let Ok(fault) = pending_faults.try_recv() {
                        self.send_fault(fault).await;
                    }
                    return self.finish(left).await;
                }
                why = &mut closed => {
                    self.send(text(json!({"event": "closing", "reason": why.name()}))).await;
                    self.close(if why == crate::shared::CloseReason::Shutdown { CLOSE_AWAY } else { CLOSE_POLICY }, why.name()).await;
                    return;
                }
                _ = ping.tick() => self.send(Message::Ping(bytes::Bytes::new())).await,
            };
            if !sent {
                // The client closed: nothing more is sent, but its input may still be on the way to the run.
                let left = tokio::select! {
                    left = &mut receiving => left,
                    _ = &mut closed => Ok(()),
                    () = tokio::time::sleep(DRAIN_TIMEOUT) => Ok(()),
                };
                return self.finish(left).await;
            }
        }
        self.close(1000, "ended").await;
    }

    async fn send_all(&mut self, all: Vec<Message>) -> bool {
        for message in all {
            if !self.send(message).await {
                return false;
            }
        }
        true
    }

    async fn send_fault(&mut self, fault: Fault) -> bool {
        self.send(text(json!({"event": "fault", "fault": fault}))).await
    }

    /// Answers a close, or reports a protocol error.
    async fn finish(mut self, left: Result<(), Fault>) {
        match left {
            Ok(()) => {
                // The client may be gone.
                let _ = tokio::time::timeout(SEND_TIMEOUT, self.sink.close()).await;
            }
            Err(fault) => {
                self.send_fault(fault).await;
                self.close(CLOSE_PROTOCOL_ERROR, "not understood").await;
            }
        }
    }

    /// Sends a message; false when the client is gone or does not read.
    async fn send(&mut self, message: Message) -> bool {
        matches!(tokio::time::timeout(SEND_TIMEOUT, self.sink.send(message)).await, Ok(Ok(())))
    }

    async fn close(&mut self, code: u16, reason: &'static str) {
        self.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
    }
}

fn text(value: Value) -> Message {
    Message::Text(value.to_string().into())
}

fn message(record: Record) -> Message {
    let next = record.offset + (HEAD + record.bytes.len()) as u64;
    let stream = match record.kind {
        RecordKind::Stdout => 1,
        RecordKind::Stderr => 2,
        RecordKind::Terminal => 3,
        RecordKind::Dropped => return text(json!({"event": "dropped", "bytes": record.dropped()})),
        RecordKind::End => {
            let outcome: Value = serde_json::from_slice(&record.bytes).unwrap_or_default();
            return text(json!({"event": "end", "outcome": outcome}));
        }
    };
    let mut bytes = vec![stream];
    bytes.extend(next.to_be_bytes());
    bytes.extend(record.bytes);
    Message::Binary(bytes.into())
}

/// A control message of the client.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum ControlMessage {
    Eof(bool),
    Resize(TerminalSize),
    Signal(i32),
}

/// Forwards the client's messages until it leaves. A failed one is reported as a fault, and the others continue.
async fn receive(
    stream: SplitStream<WebSocket>,
    input_listener: Listener,
    faults: mpsc::Sender<Fault>,
) -> Result<(), Fault> {
    let (queue, waiting) = mpsc::channel(MAX_MESSAGE / MIN_COST);
    let mut writing = std::pin::pin!(write_input(waiting, &input_listener, &faults));
    let left = tokio::select! {
        left = read_messages(stream, InputQueue::new(queue), &input_listener, &faults) => left,
        () = &mut writing => return Ok(()),
    };
    // Input of a client that left is still written, but not if the run does not read it in time.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, writing).await;
    left
}

/// A chunk of queued input.
struct Piece {
    bytes: bytes::Bytes,
    eof: bool,
    _room: Option<OwnedSemaphorePermit>,
}

/// The queue of input for the run, in order. Control messages bypass it: a signal to a run that does not read its input must not wait
/// behind that input. When the queue is full, the client waits.
struct InputQueue {
    queue: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
}

impl InputQueue {
    fn new(queue: mpsc::Sender<Piece>) -> InputQueue {
        InputQueue { queue, room: Arc::new(Semaphore::new(MAX_MESSAGE)) }
    }

    async fn put(&self, bytes: bytes::Bytes, eof: bool) {
        let size = bytes.len().clamp(MIN_COST, MAX_MESSAGE) as u32;
        let _room = self.room.clone().acquire_many_owned(size).await.ok();
        let _ = self.queue.send(Piece { bytes, eof, _room }).await; // the feeder has ended, and so will this
    }

    /// Waits until the queue is empty, or a moment has passed.
    async fn drain(&self) {
        let _ = tokio::time::timeout(CONTROL_DELAY, self.room.acquire_many(MAX_MESSAGE as u32)).await;
    }
}

/// Reads messages until the client leaves; a fault for a protocol error.
async fn read_messages(
    mut stream: SplitStream<WebSocket>,
    queue: InputQueue,
    input_listener: &Listener,
    faults: &mpsc::Sender<Fault>,
) -> Result<(), Fault> {
    while let Some(message) = stream.next().await {
        let done = match message.map_err(|e| broken(&e))? {
            Message::Binary(bytes) => {
                queue.put(bytes, false).await;
                Ok(())
            }
            Message::Text(text) => control(&queue, input_listener, &text).await,
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if let Err(refusal) = done
            && faults.send(*refusal.fault).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

fn broken(e: &axum::Error) -> Fault {
    let hint = format!("send whole messages of at most {MAX_MESSAGE} bytes each");
    Fault::invalid(format!("the connection: {e}")).hint(hint).phase(Phase::Execution)
}

async fn control(queue: &InputQueue, input_listener: &Listener, text: &str) -> Result<(), Refusal> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = ControlMessage::deserialize(ByName(&mut json)).and_then(|word| json.end().map(|()| word));
    let word = read.map_err(|e| {
        let hint = "send {\"eof\": true}, {\"resize\": {\"rows\": 24, \"columns\": 80}} or {\"signal\": 2}";
        Fault::invalid(format!("the message: {e}")).hint(hint).phase(Phase::Execution)
    })?;
    match word {
        ControlMessage::Eof(true) => queue.put(bytes::Bytes::new(), true).await,
        ControlMessage::Eof(false) => {}
        ControlMessage::Resize(size) => {
            queue.drain().await;
            resize_terminal(input_listener, size).await?;
        }
        ControlMessage::Signal(signal) => {
            queue.drain().await;
            send_signal(input_listener, signal).await?;
        }
    }
    Ok(())
}

/// Writes queued input to the run.
async fn write_input(mut queue: mpsc::Receiver<Piece>, input_listener: &Listener, faults: &mpsc::Sender<Fault>) {
    let mut input = None;
    while let Some(Piece { bytes, eof, _room }) = queue.recv().await {
        let given = write_chunks(&mut input, input_listener, &bytes, eof).await;
        if let Err(refusal) = given
            && faults.send(*refusal.fault).await.is_err()
        {
            return;
        }
        // A keeper's connections are limited, and an interactive client pauses between inputs.
        if queue.is_empty() {
            input = None;
        }
    }
}

async fn write_chunks(
    input: &mut Option<Input>,
    input_listener: &Listener,
    bytes: &[u8],
    eof: bool,
) -> Result<(), Refusal> {
    let mut open = match input.take() {
        Some(open) => open,
        None => Input::open(input_listener, false).await?,
    };
    for piece in bytes.chunks(PIECE) {
        open.write(piece.to_vec(), false, None).await?;
    }
    if eof {
        open.write(Vec::new(), true, None).await?;
    }
    *input = Some(open);
    Ok(())
}
