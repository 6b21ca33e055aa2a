//! Being at a run over a WebSocket: what it says comes, what is sent goes to its input. Who leaves does not end it.

use super::{fit, send};
use crate::ask::{ByName, Path, Query};
use crate::refuse::Refusal;
use crate::running::{Input, Listener, Log, PIECE, Told};
use crate::tasks;
use crate::{Scope, Shared, Who};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use node::keeper::begin::Size;
use node::keeper::runs::Found;
use node::keeper::spool::{HEAD, Kind, Record};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use terms::{Fault, Phase};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use utoipa::IntoParams;

/// The largest message that is taken, and how much waits until the run takes it.
const LARGEST: usize = 1 << 20;
/// A message counts for so much at least.
const LEAST: usize = 1 << 10;
/// Faults that wait to be told.
const WAITING: usize = 16;
/// How long a word lets input go before it that was sent before it.
const MOMENT: Duration = Duration::from_millis(500);
/// How long a client may take nothing of what it is sent.
const STUCK: Duration = Duration::from_secs(60);
/// How long a run may take for what a client left behind.
const LEFT: Duration = Duration::from_secs(10);
/// How often one that says nothing is asked whether it is there.
const ALIVE: Duration = Duration::from_secs(20);
/// Status of a close: we go away; what was sent cannot be understood; the client may be here no more.
const AWAY: u16 = 1001;
const BROKEN: u16 = 1002;
const POLICY: u16 = 1008;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// From this offset on [default: 0, the beginning].
    from: Option<u64>,
}

/// Attach to a run over a WebSocket. Wakes a frozen sandbox.
///
/// It sends binary messages: one byte for the stream (1 stdout, 2 stderr, 3 terminal), eight bytes, big endian, for the offset behind it, and
/// what was said; and text messages `{"event": "end", "outcome": …}`, `gap`, `dropped`, `lost`, `closing`, `fault`. It takes binary messages for the
/// input, and text messages `{"eof": true}`, `{"resize": {"rows": 24, "columns": 80}}`, `{"signal": 2}`. A message has at most a mebibyte, and so much
/// input waits until the run takes it; `resize` and `signal` are heard meanwhile. Who closes is answered with a close, and the run goes on; what is no
/// message is told as a `fault`, and closed with 1002.
#[utoipa::path(get, path = "/v1/runs/{run}/attach", tag = "runs", params(("run" = String, Path), AttachQuery),
    responses((status = 101, description = "A WebSocket follows."), (status = 426, description = "No WebSocket was asked for.", body = Fault)))]
pub async fn attach(
    State(shared): State<Shared>,
    who: Who,
    Path(run): Path<String>,
    Query(query): Query<AttachQuery>,
    Wanted(upgrade): Wanted,
) -> Result<Response, Refusal> {
    who.needs(Scope::Agent)?;
    let task = shared.tasks().admit(tasks::Kind::RunStream, &who.tenant)?;
    let listener = Listener::new(&shared, &who, run).await?;
    let speaking = Listener::new(&shared, &who, listener.found.id.clone()).await?;
    let log = Log::open(listener, query.from.unwrap_or(0)).await?;
    let upgrade = upgrade?.max_message_size(LARGEST).max_frame_size(LARGEST);
    speaking.with(Found::wake).await?;
    Ok(upgrade.on_upgrade(async move |socket| {
        let _task = task;
        let closed = async { shared.until_closed(&who).await };
        let (sink, stream) = socket.split();
        let visit = Visit { sink, log };
        visit.stay(stream, speaking, closed).await;
    }))
}

/// What a WebSocket begins with, or why there is none; asked for last, so that others are refused as everywhere.
pub struct Wanted(Result<WebSocketUpgrade, Refusal>);

impl FromRequestParts<Shared> for Wanted {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut http::request::Parts, shared: &Shared) -> Result<Wanted, Refusal> {
        let refuse = |e: WebSocketUpgradeRejection| {
            let hint = "ask with `Connection: upgrade`, `Upgrade: websocket` and version 13";
            Refusal::http(StatusCode::UPGRADE_REQUIRED, e.body_text(), hint)
        };
        Ok(Wanted(WebSocketUpgrade::from_request_parts(parts, shared).await.map_err(refuse)))
    }
}

struct Visit {
    sink: SplitSink<WebSocket, Message>,
    log: Log,
}

impl Visit {
    /// Tells and listens until the run has ended, the client leaves, or it must close.
    async fn stay(
        mut self,
        stream: SplitStream<WebSocket>,
        speaking: Listener,
        closed: impl Future<Output = crate::shared::Closed>,
    ) {
        let (faults, mut told) = mpsc::channel::<Fault>(WAITING);
        let mut hearing = std::pin::pin!(hear(stream, speaking, faults));
        let mut closed = std::pin::pin!(closed);
        let mut alive = tokio::time::interval(ALIVE);
        loop {
            let sent = tokio::select! {
                next = self.log.next() => match next {
                    Ok(Some(Told::Page(page))) => {
                        let gap = page.gap.map(|(from, to)| text(json!({"event": "gap", "from": from, "to": to})));
                        let all: Vec<Message> = gap.into_iter().chain(page.records.into_iter().map(message)).collect();
                        self.send_all(all).await
                    }
                    Ok(Some(Told::End(outcome))) => {
                        self.send(text(json!({"event": "end", "outcome": outcome}))).await;
                        break;
                    }
                    Ok(None) => break,
                    Err(refusal) => {
                        self.send(text(json!({"event": "lost", "fault": refusal.fault}))).await;
                        break;
                    }
                },
                Some(fault) = told.recv() => self.tell(fault).await,
                left = &mut hearing => {
                    while let Ok(fault) = told.try_recv() {
                        self.tell(fault).await;
                    }
                    return self.part(left).await;
                }
                why = &mut closed => {
                    self.send(text(json!({"event": "closing", "reason": why.name()}))).await;
                    self.close(if why == crate::shared::Closed::Shutdown { AWAY } else { POLICY }, why.name()).await;
                    return;
                }
                _ = alive.tick() => self.send(Message::Ping(bytes::Bytes::new())).await,
            };
            if !sent {
                // Who closes is sent no more, and what came from him before may still be on its way to the run.
                let left = tokio::select! {
                    left = &mut hearing => left,
                    _ = &mut closed => Ok(()),
                    () = tokio::time::sleep(LEFT) => Ok(()),
                };
                return self.part(left).await;
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

    async fn tell(&mut self, fault: Fault) -> bool {
        self.send(text(json!({"event": "fault", "fault": fault}))).await
    }

    /// Who closes is answered, and who cannot be understood is told why.
    async fn part(mut self, left: Result<(), Fault>) {
        match left {
            Ok(()) => {
                let _it_is_gone = tokio::time::timeout(STUCK, self.sink.close()).await;
            }
            Err(fault) => {
                self.tell(fault).await;
                self.close(BROKEN, "not understood").await;
            }
        }
    }

    /// False when the client is gone, or takes nothing.
    async fn send(&mut self, message: Message) -> bool {
        matches!(tokio::time::timeout(STUCK, self.sink.send(message)).await, Ok(Ok(())))
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
        Kind::Stdout => 1,
        Kind::Stderr => 2,
        Kind::Terminal => 3,
        Kind::Dropped => return text(json!({"event": "dropped", "bytes": record.dropped()})),
        Kind::End => {
            let outcome: Value = serde_json::from_slice(&record.bytes).unwrap_or_default();
            return text(json!({"event": "end", "outcome": outcome}));
        }
    };
    let mut bytes = vec![stream];
    bytes.extend(next.to_be_bytes());
    bytes.extend(record.bytes);
    Message::Binary(bytes.into())
}

/// What a client says beside input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Word {
    Eof(bool),
    Resize(Size),
    Signal(i32),
}

/// Passes on what the client says, until it leaves. What cannot be done is told, and changes nothing.
async fn hear(stream: SplitStream<WebSocket>, speaking: Listener, faults: mpsc::Sender<Fault>) -> Result<(), Fault> {
    let (line, waiting) = mpsc::channel(LARGEST / LEAST);
    let mut feeding = std::pin::pin!(feed(waiting, &speaking, &faults));
    let left = tokio::select! {
        left = listen(stream, Line::new(line), &speaking, &faults) => left,
        () = &mut feeding => return Ok(()),
    };
    // What was sent is given, though who sent it leaves; but a run that takes nothing is not waited for.
    let _or_not = tokio::time::timeout(LEFT, feeding).await;
    left
}

/// What is to be written to the run's input.
struct Piece {
    bytes: bytes::Bytes,
    eof: bool,
    _room: Option<OwnedSemaphorePermit>,
}

/// Input that waits until the run takes it, in order. Words are heard meanwhile: one that is sent to a run that reads nothing would
/// come when it is too late. When there is no more room, the client waits.
struct Line {
    line: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
}

impl Line {
    fn new(line: mpsc::Sender<Piece>) -> Line {
        Line { line, room: Arc::new(Semaphore::new(LARGEST)) }
    }

    async fn put(&self, bytes: bytes::Bytes, eof: bool) {
        let size = bytes.len().clamp(LEAST, LARGEST) as u32;
        let _room = self.room.clone().acquire_many_owned(size).await.ok();
        let _nobody_gives_it = self.line.send(Piece { bytes, eof, _room }).await;
    }

    /// Until all is taken, or for a moment.
    async fn settle(&self) {
        let _or_not = tokio::time::timeout(MOMENT, self.room.acquire_many(LARGEST as u32)).await;
    }
}

/// Hears the client until it leaves; a fault where it cannot be understood.
async fn listen(
    mut stream: SplitStream<WebSocket>,
    line: Line,
    speaking: &Listener,
    faults: &mpsc::Sender<Fault>,
) -> Result<(), Fault> {
    while let Some(message) = stream.next().await {
        let done = match message.map_err(|e| broken(&e))? {
            Message::Binary(bytes) => {
                line.put(bytes, false).await;
                Ok(())
            }
            Message::Text(text) => obey(&line, speaking, &text).await,
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
    let hint = format!("send whole messages of at most {LARGEST} bytes each");
    Fault::invalid(format!("the connection: {e}")).hint(hint).phase(Phase::Execution)
}

async fn obey(line: &Line, speaking: &Listener, text: &str) -> Result<(), Refusal> {
    let mut json = serde_json::Deserializer::from_str(text);
    let read = Word::deserialize(ByName(&mut json)).and_then(|word| json.end().map(|()| word));
    let word = read.map_err(|e| {
        let hint = "say {\"eof\": true}, {\"resize\": {\"rows\": 24, \"columns\": 80}} or {\"signal\": 2}";
        Fault::invalid(format!("the message: {e}")).hint(hint).phase(Phase::Execution)
    })?;
    match word {
        Word::Eof(true) => line.put(bytes::Bytes::new(), true).await,
        Word::Eof(false) => {}
        Word::Resize(size) => {
            line.settle().await;
            fit(speaking, size).await?;
        }
        Word::Signal(signal) => {
            line.settle().await;
            send(speaking, signal).await?;
        }
    }
    Ok(())
}

/// Gives the run what waits for it, piece by piece.
async fn feed(mut line: mpsc::Receiver<Piece>, speaking: &Listener, faults: &mpsc::Sender<Fault>) {
    let mut input = None;
    while let Some(Piece { bytes, eof, _room }) = line.recv().await {
        let given = give(&mut input, speaking, &bytes, eof).await;
        if let Err(refusal) = given
            && faults.send(*refusal.fault).await.is_err()
        {
            return;
        }
        // A keeper has so many connections and no more, and who types thinks in between.
        if line.is_empty() {
            input = None;
        }
    }
}

async fn give(input: &mut Option<Input>, speaking: &Listener, bytes: &[u8], eof: bool) -> Result<(), Refusal> {
    let mut open = match input.take() {
        Some(open) => open,
        None => Input::open(speaking, false).await?,
    };
    for piece in bytes.chunks(PIECE) {
        open.give(piece.to_vec(), false, None).await?;
    }
    if eof {
        open.give(Vec::new(), true, None).await?;
    }
    *input = Some(open);
    Ok(())
}
