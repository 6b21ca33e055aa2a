//! Follows a run without a thread: its progress, its output from the spool, its input. A slow reader delays only itself: the output is on
//! the disk.

use crate::admission::Permit;
use crate::readiness::Ready;
use crate::refuse::Refusal;
use crate::run_progress::{RunState, register_duplex};
use crate::{Principal, Shared};
use api::{RunStatus, RunTail};
use node::Node;
use node::keeper::attach::count_missing;
use node::keeper::begin::{self, RunKeeper};
use node::keeper::runs::{self, RunRef};
use node::keeper::spool::{self, Record, RecordKind, SpoolPage, SpoolReader};
use node::keeper::wire::{InputWriter, Waited};
use node::keeper::{FromReply, Keeper, Pending, RunEnd};
use std::time::Duration;
use terms::{Fault, Outcome, OutputEncoding};
use tokio::io::Interest;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Bytes of output per read.
const PAGE: usize = 128 << 10;
/// Maximum number of bytes per stream in a document.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// Maximum number of bytes of the last part of an output.
const MAX_TAIL_BYTES: usize = 64 << 10;
/// Maximum number of bytes per write to a command's input.
pub const PIECE: usize = 256 << 10;

impl<T: FromReply> Ready<Pending<T>> {
    async fn answer(&mut self) -> Result<T, Fault> {
        loop {
            // Sending may take several steps; after that only the response is awaited.
            let sends = self.get().sends();
            let ready = if sends { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            let step = |pending: &mut Pending<T>| match pending.step()? {
                Some(answer) => Ok(Some(Some(answer))),
                None => Ok((sends && !pending.sends()).then_some(None)),
            };
            if let Some(answer) = self.until(ready, step).await? {
                return Ok(answer);
            }
        }
    }
}

/// News of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunNews {
    /// There may be more output.
    Output,
    /// The run has ended: nothing of its tree is left.
    Ended,
}

/// A run's end, as reported by its keeper.
pub struct Ended {
    outcome: Outcome,
    ended_ms: Option<u64>,
    /// The output, where the keeper included it.
    log: Option<Vec<u8>>,
}

/// A listener to one run.
pub struct Listener {
    shared: Shared,
    /// The client whose permits are used for reading.
    principal: Principal,
    pub found: RunRef,
    progress: Option<watch::Receiver<RunState>>,
}

impl Listener {
    pub async fn new(shared: &Shared, principal: &Principal, word: String) -> Result<Listener, Refusal> {
        let found = shared.verb(principal, move |node, caller| runs::find(node, caller, &word)).await?;
        Ok(Listener::of(shared, principal, found))
    }

    pub fn of(shared: &Shared, principal: &Principal, found: RunRef) -> Listener {
        Listener { shared: shared.clone(), principal: principal.clone(), found, progress: None }
    }

    /// A second listener to the same run.
    pub fn another(&self) -> Listener {
        Listener::of(&self.shared, &self.principal, self.found.clone())
    }

    /// Runs a short blocking operation on the run.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RunRef, &Node) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, found) = (self.shared.node().clone(), self.found.clone());
        self.shared.blocking_for(&self.principal, move || work(&found, &node)).await
    }

    /// Resolves when there is news: at once for a new listener, and at once after the end.
    pub async fn next(&mut self) -> Result<RunNews, Refusal> {
        let listen = || self.shared.run_progress().listen(&self.shared, &self.principal, &self.found);
        let progress = self.progress.get_or_insert_with(listen);
        if !matches!(*progress.borrow(), RunState::Ended) && progress.changed().await.is_err() {
            return Err(Fault::internal("the task that follows the run has ended").into());
        }
        let state = progress.borrow_and_update().clone();
        match state {
            RunState::Failed(refusal) => {
                self.progress = None;
                Err(refusal)
            }
            RunState::Ended => Ok(RunNews::Ended),
            RunState::Unknown | RunState::Running => Ok(RunNews::Output),
        }
    }

    /// Waits for the outcome; none when the time is over or the daemon is shutting down.
    pub async fn end(&mut self, time: Duration) -> Result<Option<Outcome>, Refusal> {
        let end = Instant::now() + time;
        let mut ended = self.with(RunRef::outcome).await?;
        while ended.is_none() {
            let shared = self.shared.clone();
            tokio::select! {
                heard = self.next() => if heard? == RunNews::Output { continue },
                () = tokio::time::sleep_until(end) => return Ok(None),
                () = shared.until_end() => return Ok(None),
            }
            ended = self.with(RunRef::outcome).await?;
            if ended.is_none() {
                // The end was reported, and its record is about to be written.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok(ended)
    }

    /// Waits for the outcome and adds the output.
    pub async fn outcome_with_output(&mut self, time: Duration) -> Result<Option<Outcome>, Refusal> {
        match self.end(time).await? {
            Some(outcome) => self.with_output(outcome, None).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the last part of the output so far; none where no log is kept.
    pub async fn tail(&self) -> Result<Option<RunTail>, Refusal> {
        self.with(|found, _| Ok(found.tail(MAX_TAIL_BYTES).map(|(records, cut)| tail_of(records, cut)))).await
    }

    async fn with_output(&self, outcome: Outcome, log: Option<Vec<u8>>) -> Result<Outcome, Refusal> {
        let collected = match log {
            Some(log) => {
                let mut collected = CollectedOutput::default();
                collected.add(spool::records(&log));
                collected
            }
            None => self.with(|found, _| Ok(collect_output(found))).await?,
        };
        Ok(collected.add_to(outcome))
    }

    /// Returns the run after its end, with its output.
    pub async fn ended(&self, ended: Ended) -> Result<RunStatus, Refusal> {
        let Ended { outcome, ended_ms, log } = ended;
        let (verdict, status) = (Some(outcome.verdict), Some(outcome.status()));
        let outcome = self.with_output(outcome, log).await?;
        let mut shown = begin::ended(&self.found);
        (shown.ended_ms, shown.verdict, shown.status, shown.outcome) = (ended_ms, verdict, status, Some(outcome));
        Ok(shown)
    }

    /// Holds a permit until the run has ended, and sends its end to the receiver. The permit is also held when the receiver is dropped.
    pub fn watch_end(self, keeper: RunKeeper, permit: Permit) -> oneshot::Receiver<Ended> {
        let (sender, receiver) = oneshot::channel();
        self.shared.tasks().clone().spawn(async move {
            match await_end(&self.shared, keeper, &self.found.id).await {
                Ok(RunEnd { waited: Waited { outcome: Some(outcome), ended_ms, .. }, log }) => {
                    drop(permit);
                    let _ = sender.send(Ended { outcome, ended_ms, log }); // the request may be gone
                }
                // The keeper is gone or did not report the end; the records have it.
                _ => self.hold_permit(permit),
            }
        });
        receiver
    }

    /// Holds a permit until the run has ended.
    pub fn hold_permit(mut self, permit: Permit) {
        self.shared.tasks().clone().spawn(async move {
            let _permit = permit;
            while !matches!(self.next().await, Ok(RunNews::Ended) | Err(_)) {}
        });
    }
}

/// Takes permits for runs that were started before this daemon.
pub async fn adopt(shared: Shared) {
    for tenant in shared.tenants() {
        let principal = Principal { tenant: tenant.clone(), ..crate::shared::owner("daemon") };
        let Ok(going) = shared.verb(&principal, |node, caller| begin::list(node, caller, None, true)).await else {
            continue;
        };
        for run in going {
            if let Ok(listener) = Listener::new(&shared, &principal, run.run).await {
                listener.hold_permit(shared.admission().adopt(&tenant));
            }
        }
    }
}

async fn await_end(shared: &Shared, keeper: RunKeeper, run: &str) -> Result<RunEnd, Fault> {
    let (pending, is_current) = match keeper {
        RunKeeper::Notifies(keeper) => (keeper.waits(), true),
        RunKeeper::Polled(keeper) => (keeper.put_wait(run)?, false),
    };
    let mut pending = register_duplex(pending)?;
    let said = pending.answer().await?;
    // Connections to keepers of an older version are not reused: their abilities are queried each time.
    if is_current {
        shared.node().keepers.rest(pending.into_inner().done());
        shared.sweeper().sweep_soon();
    }
    Ok(said)
}

/// Output of a run by stream, as far as it is kept and fits, and the number of bytes that do not fit.
#[derive(Default)]
struct CollectedOutput {
    streams: [Vec<u8>; 2],
    cut: [u64; 2],
}

impl CollectedOutput {
    fn add(&mut self, records: Vec<Record>) {
        for record in records {
            let at = match record.kind {
                RecordKind::Stdout | RecordKind::Terminal => 0,
                RecordKind::Stderr => 1,
                RecordKind::Dropped | RecordKind::End => continue,
            };
            let room = MAX_OUTPUT_BYTES - self.streams[at].len();
            self.streams[at].extend_from_slice(&record.bytes[..record.bytes.len().min(room)]);
            self.cut[at] += record.bytes.len().saturating_sub(room) as u64;
        }
    }

    fn add_to(self, mut outcome: Outcome) -> Outcome {
        let CollectedOutput { streams, cut } = self;
        let [stdout, stderr] = streams;
        let seen = (stdout.len() + stderr.len()) as u64 + cut.iter().sum::<u64>();
        count_missing(&mut outcome, seen, [!stdout.is_empty(), !stderr.is_empty()]);
        outcome.set_output(stdout, stderr);
        outcome.truncated.stdout += cut[0];
        outcome.truncated.stderr += cut[1];
        outcome
    }
}

/// Joins the last records of a log, at most `MAX_TAIL_BYTES`.
fn tail_of(records: Vec<Record>, mut cut: bool) -> RunTail {
    let mut streams: [Vec<u8>; 2] = Default::default();
    let mut size: usize = records.iter().map(|record| record.bytes.len()).sum();
    for record in records {
        let at = match record.kind {
            RecordKind::Stdout | RecordKind::Terminal => 0,
            RecordKind::Stderr => 1,
            RecordKind::Dropped | RecordKind::End => continue,
        };
        let over = size.saturating_sub(MAX_TAIL_BYTES).min(record.bytes.len());
        cut |= over > 0;
        size -= over;
        streams[at].extend_from_slice(&record.bytes[over..]);
    }
    let [(stdout, stdout_encoding), (stderr, stderr_encoding)] =
        streams.map(|bytes| OutputEncoding::of(whole_characters(bytes, cut)));
    RunTail { stdout, stdout_encoding, stderr, stderr_encoding, cut }
}

/// Drops the parts of characters at either end of a text, so that it stays text: the beginning may have been cut, and more may come.
fn whole_characters(bytes: Vec<u8>, cut: bool) -> Vec<u8> {
    const LONGEST: usize = 4;
    let is_inside = |byte: &&u8| **byte & 0xc0 == 0x80;
    let skipped = if cut { bytes.iter().take(LONGEST - 1).take_while(is_inside).count() } else { 0 };
    let text = &bytes[skipped..];
    match std::str::from_utf8(text) {
        Ok(_) => text.to_vec(),
        Err(error) if error.error_len().is_none() => text[..error.valid_up_to()].to_vec(),
        Err(_) => bytes,
    }
}

fn collect_output(found: &RunRef) -> CollectedOutput {
    let mut collected = CollectedOutput::default();
    let Ok(mut reader) = found.reader() else { return collected };
    let mut next = 0;
    while let Ok(page) = reader.read(next, PAGE) {
        next = page.next;
        if page.records.is_empty() && page.gap.is_none() {
            break;
        }
        collected.add(page.records);
    }
    collected
}

/// An item of a run's log.
pub enum LogItem {
    Page(SpoolPage),
    /// The outcome of a run whose log has no end record: the keeper was lost, or the disk was full.
    End(Box<Outcome>),
}

/// A reader of a run's log that waits for more.
pub struct RunLog {
    pub listener: Listener,
    reader: Option<SpoolReader>,
    next: u64,
    /// The listener has reported the end.
    has_ended: bool,
    is_over: bool,
}

impl RunLog {
    pub async fn open(listener: Listener, from: u64) -> Result<RunLog, Refusal> {
        let reader = listener.with(|found, _| found.reader()).await?;
        let mut log = RunLog { listener, reader: Some(reader), next: from, has_ended: false, is_over: false };
        // An offset that is not the beginning of a record is refused before anything is sent.
        log.page().await?;
        log.next = from;
        Ok(log)
    }

    async fn page(&mut self) -> Result<SpoolPage, Refusal> {
        let (reader, from, id) = (self.reader.take(), self.next, self.listener.found.id.clone());
        let read = move |found: &RunRef, _: &Node| {
            let mut reader = reader.map_or_else(|| found.reader(), Ok)?;
            let page = reader.read(from, PAGE).map_err(|e| runs::unread(&id, e))?;
            Ok((reader, page))
        };
        let (reader, page) = self.listener.with(read).await?;
        (self.reader, self.next) = (Some(reader), page.next);
        Ok(page)
    }

    /// Returns the next page that exists already; none at the end.
    pub async fn next_available(&mut self) -> Result<Option<LogItem>, Refusal> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.page().await?;
        self.is_over = page.ended;
        Ok((!page.records.is_empty() || page.gap.is_some()).then_some(LogItem::Page(page)))
    }

    /// Waits for the next page; none at the end of the log. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<LogItem>, Refusal> {
        while !self.is_over {
            let page = self.page().await?;
            self.is_over = page.ended;
            if !page.records.is_empty() || page.gap.is_some() {
                return Ok(Some(LogItem::Page(page)));
            }
            if self.has_ended {
                // The whole log was read after the end was known.
                if let Some(outcome) = self.listener.with(RunRef::outcome).await? {
                    return self.last(outcome).await.map(Some);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if !self.is_over && !self.has_ended {
                self.has_ended = self.listener.next().await? == RunNews::Ended;
            }
        }
        Ok(None)
    }

    /// Returns a page that was written before the outcome was known; else the outcome, which is not in the log.
    async fn last(&mut self, outcome: Outcome) -> Result<LogItem, Refusal> {
        let page = self.page().await?;
        if !page.records.is_empty() || page.gap.is_some() {
            self.is_over = page.ended;
            return Ok(LogItem::Page(page));
        }
        self.is_over = true;
        Ok(LogItem::End(Box::new(outcome)))
    }
}

/// A writer to a command's input.
pub struct Input {
    keeper: Option<Keeper>,
    run: String,
}

impl Input {
    /// Opens the input. With `counted`, for writers that may send bytes again, a keeper that cannot count is refused first.
    pub async fn open(listener: &Listener, counted: bool) -> Result<Input, Refusal> {
        let keeper = listener.with(move |found, node| {
            // A counting writer may repeat bytes that a run took before it ended.
            let keeper = found.heard(node)?.filter(|_| counted || found.now().is_ok_and(|run| run.ended_ms.is_none()));
            let mut keeper = keeper.ok_or_else(|| not_there(&found.id))?;
            if counted {
                let hello = keeper.hello()?;
                keeper.check_counts(&hello)?;
            }
            Ok(keeper)
        });
        Ok(Input { keeper: Some(keeper.await?), run: listener.found.id.clone() })
    }

    /// Writes bytes. Resolves when the command's side has them; returns the writer's offset where it counts.
    pub async fn write(&mut self, bytes: Vec<u8>, eof: bool, by: Option<InputWriter>) -> Result<Option<u64>, Refusal> {
        let keeper = self.keeper.take().ok_or_else(|| not_there(&self.run))?;
        let pending = keeper.put_input(&self.run, bytes, eof, by)?;
        let mut pending = register_duplex(pending)?;
        let fed = pending.answer().await?;
        self.keeper = Some(pending.into_inner().done());
        Ok(fed.map(|fed| fed.offset))
    }
}

fn not_there(run: &str) -> Fault {
    let fault = Fault::new(terms::ErrorKind::Conflict, format!("{run} takes no input")).subject(run);
    fault.hint("the run has ended, or its sandbox is not live").phase(terms::Phase::Execution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_of_text_is_text() {
        let record = |kind, bytes: &[u8]| Record { offset: 0, kind, at_ms: 0, bytes: bytes.to_vec() };
        let euro = "€".as_bytes();
        let tail = tail_of(
            vec![
                record(RecordKind::Stdout, &euro[1..]),
                record(RecordKind::Stdout, b"a"),
                record(RecordKind::Stderr, &euro[..2]),
            ],
            true,
        );
        assert_eq!((tail.stdout.as_str(), tail.stdout_encoding), ("a", OutputEncoding::Utf8));
        assert_eq!((tail.stderr.as_str(), tail.cut), ("", true));
        let tail = tail_of(vec![record(RecordKind::Stdout, b"\xff\xfe")], false);
        assert_eq!((tail.stdout.as_str(), tail.stdout_encoding, tail.cut), ("//4=", OutputEncoding::Base64, false));
        let tail = tail_of(vec![record(RecordKind::Terminal, &[b'x'; MAX_TAIL_BYTES + 1])], false);
        assert_eq!((tail.stdout.len(), tail.cut), (MAX_TAIL_BYTES, true));
    }
}
