//! Being at a run of a daemon: what it says comes as events, each with the offset behind it, so that whoever was cut off goes on
//! there. The daemon may go away and come back meanwhile; the run does not notice.
//!
//! ```text
//!  output ──┬─ said ─▶ visitor          broken off ─▶ again from the last offset, for a while
//!  typed ───┼─ a piece ─▶ taken ─▶ the next
//!  signals ─┘─ told, or kept until the daemon is back
//! ```

use crate::ask::Ask;
use crate::connect;
use crate::events::{Event, Events};
use crate::input::{self, Given, Keys, Line};
use crate::server::Server;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use std::pin::Pin;
use std::time::Duration;
use terms::{ErrorKind, Fault, Outcome, Phase, Retry, Unread};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How to be there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Our standard input goes to the command's.
    pub input: bool,
    /// It has a terminal, whose size follows ours.
    pub terminal: bool,
    /// From this offset on.
    pub from: u64,
    /// A number of our own, among all who write to the run.
    pub writer: [u8; 16],
}

/// How it went.
#[derive(Debug)]
pub enum Left {
    Ended(Box<Outcome>),
    /// The keys for it were pressed: the run goes on.
    Detached,
}

/// Where something was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Whoever is shown what a run says.
pub trait Visitor {
    /// False when nobody reads it any more, and the command is to be told so, as a pipe would.
    fn said(&mut self, stream: Stream, bytes: &[u8]) -> bool;
    /// So many bytes are no longer kept.
    fn missed(&mut self, bytes: u64);
    /// Rows and columns of our terminal.
    fn size(&self) -> (u16, u16);
}

/// How long a daemon that is gone is waited for, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Events that tell what a run said.
const SAID: [&str; 5] = ["stdout", "stderr", "terminal", "gap", "dropped"];
/// Signals that are passed to the command: HUP, INT, QUIT, USR1, USR2, TERM, CONT; and WINCH, which is for us.
const PASSED: [i32; 8] = [1, 2, 3, 10, 12, 15, 18, WINCH];
const WINCH: i32 = 28;

pub async fn visit(server: &Server, run: &str, manner: Manner, visitor: &mut dyn Visitor) -> Result<Left, Fault> {
    let mut signals = Signals::new()?;
    let mut visit = Visit {
        run,
        output: Output::new(server, run, manner.from).pumped(),
        beside: Line::new(server, run, manner.writer),
        untold: Vec::new(),
        since: None,
        unread: Unread::default(),
        keys: Keys::default(),
        visitor,
    };
    let mut typed = manner.input.then(input::typed);
    let mut giving: Option<Giving> = None;
    let mut line = manner.input.then(|| Line::new(server, run, manner.writer));
    if manner.terminal {
        visit.untold.push(WINCH);
    }
    loop {
        visit.tell(manner.terminal).await;
        tokio::select! {
            event = visit.output.0.recv() => {
                let gone = || Fault::internal("a stream that ends without a word");
                if let Some(outcome) = visit.hear(event.ok_or_else(gone)??)? {
                    return Ok(Left::Ended(Box::new(outcome)));
                }
            }
            piece = next(&mut typed), if line.is_some() => {
                if manner.terminal && visit.keys.leave(&piece) {
                    return Ok(Left::Detached);
                }
                if piece.is_empty() {
                    typed = None;
                }
                giving = line.take().map(|line| Box::pin(give(line, piece)) as Giving);
            }
            (back, piece, given) = done(&mut giving) => {
                giving = None;
                match given {
                    Given::Taken if typed.is_some() => line = Some(back),
                    Given::Taken | Given::Closed => typed = None,
                    // When the daemon is back the output goes on, and so does this; or neither does.
                    Given::Lost => giving = Some(Box::pin(later(back, piece)) as Giving),
                    Given::Refused(fault) => return Err(fault),
                }
            }
            number = signals.next() => visit.untold.push(number),
            // Somebody may be there again to be told.
            () = tokio::time::sleep(FIRST_PAUSE * 4), if !visit.untold.is_empty() => {}
        }
    }
}

type Giving = Pin<Box<dyn Future<Output = (Line, Vec<u8>, Given)>>>;

async fn give(mut line: Line, piece: Vec<u8>) -> (Line, Vec<u8>, Given) {
    let given = line.give(&piece).await;
    (line, piece, given)
}

async fn later(line: Line, piece: Vec<u8>) -> (Line, Vec<u8>, Given) {
    tokio::time::sleep(FIRST_PAUSE * 4).await;
    give(line, piece).await
}

async fn next(typed: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Vec<u8> {
    match typed {
        Some(typed) => typed.recv().await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

async fn done(giving: &mut Option<Giving>) -> (Line, Vec<u8>, Given) {
    match giving {
        Some(giving) => giving.await,
        None => std::future::pending().await,
    }
}

struct Visit<'a> {
    run: &'a str,
    output: Pumped,
    beside: Line,
    /// Signals that the run was not told of yet.
    untold: Vec<i32>,
    /// Since when nobody reads what it says, and what it was told.
    since: Option<Instant>,
    unread: Unread,
    keys: Keys,
    visitor: &'a mut dyn Visitor,
}

#[derive(Deserialize)]
struct Said {
    encoding: String,
    data: String,
}

#[derive(Deserialize)]
struct Gap {
    from: u64,
    to: u64,
}

impl Visit<'_> {
    /// Tells the run of signals, as long as somebody is there to tell them to.
    async fn tell(&mut self, terminal: bool) {
        while let Some(number) = self.untold.first().copied() {
            let told = match number {
                WINCH if terminal => {
                    let (rows, columns) = self.visitor.size();
                    self.beside.tell("resize", &json!({ "rows": rows, "columns": columns })).await
                }
                WINCH => true,
                _ => self.beside.tell("signal", &json!({ "signal": number })).await,
            };
            if !told {
                return;
            }
            self.untold.remove(0);
        }
    }

    /// Passes on what an event says; the outcome, where it is the last.
    fn hear(&mut self, event: Event) -> Result<Option<Outcome>, Fault> {
        let unread = |e: serde_json::Error| {
            Fault::new(ErrorKind::ProviderFailed, format!("what {} says cannot be read: {e}", self.run))
                .phase(Phase::Delivery)
        };
        match event.name.as_str() {
            "end" => return serde_json::from_str(&event.data).map(Some).map_err(unread),
            "gap" => {
                let Gap { from, to } = serde_json::from_str(&event.data).map_err(unread)?;
                self.visitor.missed(to.saturating_sub(from));
            }
            "stdout" | "terminal" | "stderr" => {
                let stream = if event.name == "stderr" { Stream::Stderr } else { Stream::Stdout };
                let said: Said = serde_json::from_str(&event.data).map_err(unread)?;
                if !self.visitor.said(stream, &bytes(said, self.run)?) {
                    let since = self.since.get_or_insert_with(Instant::now).elapsed();
                    self.untold.extend(self.unread.due(since));
                }
            }
            // Bytes that were dropped stand in the outcome.
            _ => {}
        }
        Ok(None)
    }
}

fn bytes(said: Said, run: &str) -> Result<Vec<u8>, Fault> {
    if said.encoding == "text" {
        return Ok(said.data.into_bytes());
    }
    crate::decoded(&said.data).ok_or_else(|| {
        Fault::new(ErrorKind::ProviderFailed, format!("what {run} says is no base64")).phase(Phase::Delivery)
    })
}

/// What a run says, over as many connections as it takes.
struct Output {
    server: Server,
    run: String,
    events: Option<Events<Incoming>>,
    from: u64,
    /// Since when nothing was heard.
    lost: Option<(Instant, Duration)>,
    /// What the daemon said of that.
    told: Option<Fault>,
}

impl Output {
    fn new(server: &Server, run: &str, from: u64) -> Output {
        Output { server: server.clone(), run: run.to_owned(), events: None, from, lost: None, told: None }
    }

    /// Reads on by itself, a little ahead of whoever takes it: what is begun here to come back is not given up for a key that is typed.
    fn pumped(mut self) -> Pumped {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let pump = tokio::spawn(async move {
            loop {
                let next = self.next().await;
                let is_last = next.as_ref().map_or(true, |event| event.name == "end");
                if sender.send(next).await.is_err() || is_last {
                    return;
                }
            }
        });
        Pumped(receiver, pump)
    }

    async fn next(&mut self) -> Result<Event, Fault> {
        loop {
            if self.events.is_none() {
                self.open().await?;
            }
            let Some(events) = &mut self.events else { continue };
            match events.next().await {
                // The daemon goes.
                Ok(Some(event)) if event.name == "closing" => self.lose(None)?,
                // The stream cannot go on although the run may; why, the daemon says.
                Ok(Some(event)) if event.name == "lost" => {
                    self.told = serde_json::from_str(&event.data).ok();
                    self.lose(None)?;
                }
                Ok(Some(event)) if event.name == "end" => return Ok(event),
                // Nothing is told twice, and nothing from before.
                Ok(Some(event)) if event.id.is_some_and(|id| id > self.from) => {
                    self.from = event.id.unwrap_or(self.from);
                    (self.lost, self.told) = (None, None);
                    return Ok(event);
                }
                // What the run said has its place; what has none would come again with every connection.
                Ok(Some(event)) if event.id.is_some() || SAID.contains(&event.name.as_str()) => {
                    return Err(backwards(&self.run));
                }
                // A word that is not known here, of the stream itself.
                Ok(Some(_)) => {}
                Ok(None) => self.lose(None)?,
                Err(fault) => self.lose(Some(fault))?,
            }
        }
    }

    async fn open(&mut self) -> Result<(), Fault> {
        if let Some((_, pause)) = &mut self.lost {
            let now = *pause;
            *pause = (now * 2).min(LONGEST_PAUSE);
            tokio::time::sleep(now).await;
        }
        let ask = Ask::get(&["v1", "runs", &self.run, "output"]);
        let ask = ask.query("encoding", "base64").query("from", self.from.to_string());
        let opened = connect::send(&self.server, ask).await.and_then(|answer| Events::of(&self.server, answer));
        match opened {
            Ok(events) => {
                self.events = Some(events);
                Ok(())
            }
            Err(fault) if fault.error_kind == ErrorKind::Unavailable => self.lose(Some(fault)),
            Err(fault) => Err(fault),
        }
    }

    /// The connection is gone. Only when nothing was heard for too long is the stream lost; the run is not.
    fn lose(&mut self, why: Option<Fault>) -> Result<(), Fault> {
        self.events = None;
        let (since, _) = *self.lost.get_or_insert((Instant::now(), FIRST_PAUSE));
        if since.elapsed() < self.server.patience(PATIENCE) {
            return Ok(());
        }
        let run = &self.run;
        let hint = match &why {
            Some(_) => format!("`cofferdam attach {run}` when the daemon is back"),
            None => format!("`cofferdam logs {run}` shows what is kept, and the daemon's log why there is no more"),
        };
        let why = why.or(self.told.take()).map(|fault| fault.message);
        let why = why.unwrap_or_else(|| "its stream ends again and again".to_owned());
        let fault = Fault::new(ErrorKind::Unavailable, format!("stream lost; the run goes on: {why}"));
        let fault = fault.subject(run).phase(Phase::Delivery).retry(Retry::Later);
        Err(fault.hint(hint))
    }
}

/// A stream that does what none of ours does.
pub fn backwards(run: &str) -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("what {run} says does not go on where it was"));
    let fault = fault.subject(run).phase(Phase::Delivery);
    fault.hint("see that --server names a daemon of the same version")
}

/// Events that are read ahead.
const AHEAD: usize = 4;

/// The other end of an output that reads on by itself, as long as this is here.
struct Pumped(mpsc::Receiver<Result<Event, Fault>>, tokio::task::JoinHandle<()>);

impl Drop for Pumped {
    fn drop(&mut self) {
        self.1.abort();
    }
}

/// Signals that we are sent.
struct Signals(Vec<(i32, Signal)>);

impl Signals {
    fn new() -> Result<Signals, Fault> {
        let open = |number: i32| signal(SignalKind::from_raw(number)).map(|heard| (number, heard));
        let all = PASSED.into_iter().map(open).collect::<Result<_, _>>();
        all.map(Signals).map_err(|e| Fault::internal(format!("signals: {e}")))
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
