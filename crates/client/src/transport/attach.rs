//! Attaching to a run of a daemon. Output arrives as events, each with the offset behind it, so that a new connection continues where the
//! last one broke off. The daemon may restart meanwhile; the run does not notice.
//!
//! ```text
//!  output ──┬─ event ─▶ RunOutput          broken off ─▶ again from the last offset, for a while
//!  input ───┼─ a chunk ─▶ acknowledged ─▶ the next
//!  signals ─┘─ forwarded, or kept until the daemon is back
//! ```

use super::connection;
use super::event_stream::{Events, ServerSentEvent};
use super::request::Request;
use super::run_input::{self, DetachKeys, RunChannel, Sent};
use super::server::Server;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use std::io::Read;
use std::pin::Pin;
use std::time::Duration;
use terms::{ErrorKind, Fault, Outcome, Phase, Retry, Unread};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Options of an attachment.
#[derive(Default)]
pub struct AttachOptions {
    /// Read on a thread of its own and sent to the command's input.
    pub input: Option<Box<dyn Read + Send>>,
    /// The command has a terminal, whose size follows the caller's.
    pub terminal: bool,
    /// Offset of the first byte of output.
    pub from: u64,
    /// Random id of this writer, unique among the writers to the run.
    pub writer: [u8; 16],
}

/// The end of an attachment.
#[derive(Debug)]
pub enum AttachEnd {
    Ended(Box<Outcome>),
    /// The detach keys were pressed: the run goes on.
    Detached,
}

/// The stream that a piece of output belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    Stdout,
    Stderr,
}

/// The receiver of a run's output.
pub trait RunOutput {
    /// Takes output. False when its reader is gone and the command is to be told so, as a pipe would.
    fn write(&mut self, stream: OutputKind, bytes: &[u8]) -> bool;
    /// Takes note of output that is no longer kept.
    fn gap(&mut self, bytes: u64);
    /// Returns rows and columns of the caller's terminal.
    fn terminal_size(&self) -> (u16, u16);
}

/// Time to wait for a daemon that is gone, and the pauses between attempts.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Events that carry output.
const OUTPUT_EVENTS: [&str; 5] = ["stdout", "stderr", "terminal", "gap", "dropped"];
/// Signals that are forwarded to the command: HUP, INT, QUIT, USR1, USR2, TERM, CONT. WINCH is sent as a size.
const FORWARDED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, WINCH];
const WINCH: i32 = 28;

pub async fn attach(
    server: &Server,
    run: &str,
    options: AttachOptions,
    output: &mut dyn RunOutput,
) -> Result<AttachEnd, Fault> {
    let AttachOptions { input, terminal, from, writer } = options;
    let mut signals = Signals::new()?;
    let mut attachment = Attachment {
        run,
        events: OutputStream::new(server, run, from).read_ahead(),
        control: RunChannel::new(server, run, writer),
        unsent_signals: Vec::new(),
        unread_since: None,
        unread: Unread::default(),
        keys: DetachKeys::default(),
        output,
    };
    let mut channel = input.is_some().then(|| RunChannel::new(server, run, writer));
    let mut chunks = input.map(run_input::read_chunks);
    let mut sending: Option<Sending> = None;
    if terminal {
        attachment.unsent_signals.push(WINCH);
    }
    loop {
        attachment.send_signals(terminal).await;
        tokio::select! {
            event = attachment.events.0.recv() => {
                let gone = || Fault::internal(format!("attach {run}: the task that reads its output ended without an event"));
                if let Some(outcome) = attachment.handle(event.ok_or_else(gone)??)? {
                    return Ok(AttachEnd::Ended(Box::new(outcome)));
                }
            }
            chunk = next_chunk(&mut chunks), if channel.is_some() => {
                if terminal && attachment.keys.pressed(&chunk) {
                    return Ok(AttachEnd::Detached);
                }
                if chunk.is_empty() {
                    chunks = None;
                }
                sending = channel.take().map(|channel| Box::pin(send(channel, chunk)) as Sending);
            }
            (back, chunk, sent) = finished(&mut sending) => {
                sending = None;
                match sent {
                    Sent::Acknowledged if chunks.is_some() => channel = Some(back),
                    Sent::Acknowledged | Sent::Closed => chunks = None,
                    // Output and input resume together once the daemon is back.
                    Sent::Lost => sending = Some(Box::pin(send_later(back, chunk)) as Sending),
                    Sent::Refused(fault) => return Err(fault),
                }
            }
            number = signals.next() => attachment.unsent_signals.push(number),
            // The daemon may be back.
            () = tokio::time::sleep(FIRST_PAUSE * 4), if !attachment.unsent_signals.is_empty() => {}
        }
    }
}

type Sending = Pin<Box<dyn Future<Output = (RunChannel, Vec<u8>, Sent)>>>;

async fn send(mut channel: RunChannel, chunk: Vec<u8>) -> (RunChannel, Vec<u8>, Sent) {
    let sent = channel.send_input(&chunk).await;
    (channel, chunk, sent)
}

async fn send_later(channel: RunChannel, chunk: Vec<u8>) -> (RunChannel, Vec<u8>, Sent) {
    tokio::time::sleep(FIRST_PAUSE * 4).await;
    send(channel, chunk).await
}

async fn next_chunk(chunks: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Vec<u8> {
    match chunks {
        Some(chunks) => chunks.recv().await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

async fn finished(sending: &mut Option<Sending>) -> (RunChannel, Vec<u8>, Sent) {
    match sending {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}

struct Attachment<'a> {
    run: &'a str,
    events: ReadAhead,
    control: RunChannel,
    unsent_signals: Vec<i32>,
    /// Time at which the output's reader was first found gone, and the signal that the command was sent for it.
    unread_since: Option<Instant>,
    unread: Unread,
    keys: DetachKeys,
    output: &'a mut dyn RunOutput,
}

#[derive(Deserialize)]
struct Output {
    encoding: String,
    data: String,
}

#[derive(Deserialize)]
struct Gap {
    from: u64,
    to: u64,
}

impl Attachment<'_> {
    /// Forwards signals and sizes, up to the first that the daemon cannot be sent now.
    async fn send_signals(&mut self, terminal: bool) {
        while let Some(number) = self.unsent_signals.first().copied() {
            let settled = match number {
                WINCH if terminal => {
                    let (rows, columns) = self.output.terminal_size();
                    self.control.send_control("resize", &json!({ "rows": rows, "columns": columns })).await
                }
                WINCH => true,
                _ => self.control.send_control("signal", &json!({ "signal": number })).await,
            };
            if !settled {
                return;
            }
            self.unsent_signals.remove(0);
        }
    }

    /// Passes the output of an event on. Returns the outcome where the event is the last.
    fn handle(&mut self, event: ServerSentEvent) -> Result<Option<Outcome>, Fault> {
        let unreadable = |e: serde_json::Error| {
            let message = format!("attach {}: the event {:?} cannot be read: {e}", self.run, event.name);
            Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
        };
        match event.name.as_str() {
            "end" => return serde_json::from_str(&event.data).map(Some).map_err(unreadable),
            "gap" => {
                let Gap { from, to } = serde_json::from_str(&event.data).map_err(unreadable)?;
                self.output.gap(to.saturating_sub(from));
            }
            "stdout" | "terminal" | "stderr" => {
                let stream = if event.name == "stderr" { OutputKind::Stderr } else { OutputKind::Stdout };
                let output: Output = serde_json::from_str(&event.data).map_err(unreadable)?;
                if !self.output.write(stream, &decode(output, self.run)?) {
                    let since = self.unread_since.get_or_insert_with(Instant::now).elapsed();
                    self.unsent_signals.extend(self.unread.due(since));
                }
            }
            // Dropped bytes are counted in the outcome.
            _ => {}
        }
        Ok(None)
    }
}

fn decode(output: Output, run: &str) -> Result<Vec<u8>, Fault> {
    if output.encoding == "text" {
        return Ok(output.data.into_bytes());
    }
    super::decode_base64(&output.data).ok_or_else(|| {
        let message = format!("attach {run}: output in encoding {:?} is not base64", output.encoding);
        Fault::new(ErrorKind::ProviderFailed, message).phase(Phase::Delivery)
    })
}

/// A run's output, over as many connections as it takes.
struct OutputStream {
    server: Server,
    run: String,
    events: Option<Events<Incoming>>,
    from: u64,
    /// Time at which the connection was lost, and the pause before the next attempt.
    lost: Option<(Instant, Duration)>,
    /// The daemon's reason for closing the stream.
    reason: Option<Fault>,
}

impl OutputStream {
    fn new(server: &Server, run: &str, from: u64) -> OutputStream {
        OutputStream { server: server.clone(), run: run.to_owned(), events: None, from, lost: None, reason: None }
    }

    /// Reads on a task of its own, a few events ahead: a reconnect that has begun is not cancelled by input or signals.
    fn read_ahead(mut self) -> ReadAhead {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let task = tokio::spawn(async move {
            loop {
                let next = self.next().await;
                let is_last = next.as_ref().map_or(true, |event| event.name == "end");
                if sender.send(next).await.is_err() || is_last {
                    return;
                }
            }
        });
        ReadAhead(receiver, task)
    }

    async fn next(&mut self) -> Result<ServerSentEvent, Fault> {
        loop {
            if self.events.is_none() {
                self.open().await?;
            }
            let Some(events) = &mut self.events else { continue };
            match events.next().await {
                // The daemon shuts down.
                Ok(Some(event)) if event.name == "closing" => self.disconnected(None)?,
                // The stream cannot continue although the run may; the event has the reason.
                Ok(Some(event)) if event.name == "lost" => {
                    self.reason = serde_json::from_str(&event.data).ok();
                    self.disconnected(None)?;
                }
                Ok(Some(event)) if event.name == "end" => return Ok(event),
                // Offsets only grow: nothing is shown twice.
                Ok(Some(event)) if event.id.is_some_and(|id| id > self.from) => {
                    self.from = event.id.unwrap_or(self.from);
                    (self.lost, self.reason) = (None, None);
                    return Ok(event);
                }
                // Output without a larger offset would come again with every connection.
                Ok(Some(event)) if event.id.is_some() || OUTPUT_EVENTS.contains(&event.name.as_str()) => {
                    return Err(backwards(&self.run));
                }
                // An event of a later version, about the stream itself.
                Ok(Some(_)) => {}
                Ok(None) => self.disconnected(None)?,
                Err(fault) => self.disconnected(Some(fault))?,
            }
        }
    }

    async fn open(&mut self) -> Result<(), Fault> {
        if let Some((_, pause)) = &mut self.lost {
            let now = *pause;
            *pause = (now * 2).min(LONGEST_PAUSE);
            tokio::time::sleep(now).await;
        }
        let request = Request::get(&["v1", "runs", &self.run, "output"]);
        let request = request.query("encoding", "base64").query("from", self.from.to_string());
        let opened = connection::send(&self.server, request).await.and_then(|answer| Events::of(&self.server, answer));
        match opened {
            Ok(events) => {
                self.events = Some(events);
                Ok(())
            }
            Err(fault) if fault.error_kind == ErrorKind::Unavailable => self.disconnected(Some(fault)),
            Err(fault) => Err(fault),
        }
    }

    /// Drops the connection. A fault only when no event came for too long: then the stream is lost, and the run is not.
    fn disconnected(&mut self, why: Option<Fault>) -> Result<(), Fault> {
        self.events = None;
        let (since, _) = *self.lost.get_or_insert((Instant::now(), FIRST_PAUSE));
        if since.elapsed() < self.server.timeout(RECONNECT_TIMEOUT) {
            return Ok(());
        }
        let run = &self.run;
        let hint = match &why {
            Some(_) => format!("use `cofferdam attach {run}` when the daemon is back"),
            None => format!("`cofferdam logs {run}` shows the recorded output, and the daemon's log the reason"),
        };
        let why = why.or(self.reason.take()).map(|fault| fault.message);
        let why = why.unwrap_or_else(|| "its stream ends again and again".to_owned());
        let fault = Fault::new(ErrorKind::Unavailable, format!("stream lost; the run is still running: {why}"));
        let fault = fault.subject(run).phase(Phase::Delivery).retry(Retry::Later);
        Err(fault.hint(hint))
    }
}

/// A fault for a stream whose offsets do not grow, which no daemon of this version sends.
pub fn backwards(run: &str) -> Fault {
    let fault =
        Fault::new(ErrorKind::ProviderFailed, format!("the output of {run} does not continue at the last position"));
    let fault = fault.subject(run).phase(Phase::Delivery);
    fault.hint("check that --server names a daemon of the same version")
}

/// Events that are read ahead.
const AHEAD: usize = 4;

/// The receiving end of an output stream; its task ends with it.
struct ReadAhead(mpsc::Receiver<Result<ServerSentEvent, Fault>>, tokio::task::JoinHandle<()>);

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.1.abort();
    }
}

/// Signals that this process receives.
struct Signals(Vec<(i32, Signal)>);

impl Signals {
    fn new() -> Result<Signals, Fault> {
        let open = |number: i32| match signal(SignalKind::from_raw(number)) {
            Ok(heard) => Ok((number, heard)),
            Err(e) => Err(Fault::internal(format!("cannot handle signal {number}: {e}"))),
        };
        FORWARDED.into_iter().map(open).collect::<Result<_, _>>().map(Signals)
    }

    async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, heard) in &mut self.0 {
                if heard.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
