//! Listening to a run without a thread: its progress, its output from the spool, its input. A slow reader slows only itself: the output
//! is on the disk.

use crate::admission::Turn;
use crate::readiness::Ready;
use crate::refuse::Refusal;
use crate::run_progress::{State, both_ways};
use crate::{Shared, Who};
use node::Node;
use node::keeper::attach::count_missing;
use node::keeper::begin::{self, Shown, Waits};
use node::keeper::runs::{self, Found};
use node::keeper::spool::{self, Kind, Page, Reader, Record};
use node::keeper::wire::{By, Waited};
use node::keeper::{Come, Keeper, Pending, Said};
use std::time::Duration;
use terms::{Fault, Outcome};
use tokio::io::Interest;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Bytes of output that are read at once.
const PAGE: usize = 128 << 10;
/// The most of each stream that a document holds, in bytes.
const MOST_TOLD: usize = 4 << 20;
/// The most that is given to a command's input at once.
pub const PIECE: usize = 256 << 10;

impl<T: Come> Ready<Pending<T>> {
    async fn answer(&mut self) -> Result<T, Fault> {
        loop {
            // Sending may take several turns; then only the answer is waited for.
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
pub enum Heard {
    /// There may be more output.
    More,
    /// The run has ended: nothing of its tree is left.
    Ended,
}

/// A run's end, as its keeper told it.
pub struct Ended {
    outcome: Outcome,
    ended_ms: Option<u64>,
    /// The output, where the keeper sent it along.
    log: Option<Vec<u8>>,
}

/// A listener to one run.
pub struct Listener {
    shared: Shared,
    /// The client whose turns the reading takes.
    who: Who,
    pub found: Found,
    progress: Option<watch::Receiver<State>>,
}

impl Listener {
    pub async fn new(shared: &Shared, who: &Who, word: String) -> Result<Listener, Refusal> {
        let found = shared.verb(who, move |node, caller| runs::find(node, caller, &word)).await?;
        Ok(Listener::of(shared, who, found))
    }

    pub fn of(shared: &Shared, who: &Who, found: Found) -> Listener {
        Listener { shared: shared.clone(), who: who.clone(), found, progress: None }
    }

    /// A second listener to the same run.
    pub fn again(&self) -> Listener {
        Listener::of(&self.shared, &self.who, self.found.clone())
    }

    /// Carries out something with the run that takes a moment.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Found, &Node) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (node, found) = (self.shared.node().clone(), self.found.clone());
        self.shared.blocking_for(&self.who, move || work(&found, &node)).await
    }

    /// Resolves when there is news. The state of the run is news to a listener that has just come, and its end to every one.
    pub async fn next(&mut self) -> Result<Heard, Refusal> {
        let listen = || self.shared.run_progress().listen(&self.shared, &self.who, &self.found);
        let progress = self.progress.get_or_insert_with(listen);
        if !matches!(*progress.borrow(), State::Ended) && progress.changed().await.is_err() {
            return Err(Fault::internal("the progress of a run is told no more").into());
        }
        let state = progress.borrow_and_update().clone();
        match state {
            State::Failed(refusal) => {
                self.progress = None;
                Err(refusal)
            }
            State::Ended => Ok(Heard::Ended),
            State::Unknown | State::Going => Ok(Heard::More),
        }
    }

    /// Waits for the outcome; none when the time is over first.
    pub async fn end(&mut self, time: Duration) -> Result<Option<Outcome>, Refusal> {
        let end = Instant::now() + time;
        let mut ended = self.with(Found::outcome).await?;
        while ended.is_none() {
            let shared = self.shared.clone();
            tokio::select! {
                heard = self.next() => if heard? == Heard::More { continue },
                () = tokio::time::sleep_until(end) => return Ok(None),
                () = shared.until_end() => return Ok(None),
            }
            ended = self.with(Found::outcome).await?;
            if ended.is_none() {
                // Its end was heard of, and is about to be written down.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        Ok(ended)
    }

    /// The same with the output.
    pub async fn told(&mut self, time: Duration) -> Result<Option<Outcome>, Refusal> {
        match self.end(time).await? {
            Some(outcome) => self.with_output(outcome, None).await.map(Some),
            None => Ok(None),
        }
    }

    async fn with_output(&self, outcome: Outcome, log: Option<Vec<u8>>) -> Result<Outcome, Refusal> {
        let gathered = match log {
            Some(log) => {
                let mut gathered = Gathered::default();
                gathered.add(spool::records(&log));
                gathered
            }
            None => self.with(|found, _| Ok(gather(found))).await?,
        };
        Ok(gathered.told_in(outcome))
    }

    /// The run after its end, with its output.
    pub async fn ended(&self, ended: Ended) -> Result<Shown, Refusal> {
        let Ended { outcome, ended_ms, log } = ended;
        let (verdict, status) = (Some(outcome.verdict), Some(outcome.status()));
        let outcome = self.with_output(outcome, log).await?;
        let mut shown = begin::ended(&self.found);
        (shown.ended_ms, shown.verdict, shown.status, shown.outcome) = (ended_ms, verdict, status, Some(outcome));
        Ok(shown)
    }

    /// Holds a turn until the run has ended, and tells the receiver of the end. The turn is held also when the receiver is dropped.
    pub fn stay(self, keeper: Waits, turn: Turn) -> oneshot::Receiver<Ended> {
        let (tell, told) = oneshot::channel();
        self.shared.tasks().clone().spawn(async move {
            match waited(&self.shared, keeper, &self.found.id).await {
                Ok(Said { waited: Waited { outcome: Some(outcome), ended_ms, .. }, log }) => {
                    drop(turn);
                    let _ = tell.send(Ended { outcome, ended_ms, log }); // the request may be gone
                }
                // The keeper is gone, or does not say; the records will.
                _ => self.hold(turn),
            }
        });
        told
    }

    /// Holds a turn until the run has ended.
    pub fn hold(mut self, turn: Turn) {
        self.shared.tasks().clone().spawn(async move {
            let _turn = turn;
            while !matches!(self.next().await, Ok(Heard::Ended) | Err(_)) {}
        });
    }
}

/// Gives turns to runs that were begun before this daemon.
pub async fn adopt(shared: Shared) {
    for tenant in shared.tenants() {
        let who = Who { tenant: tenant.clone(), ..crate::shared::owner("daemon") };
        let Ok(going) = shared.verb(&who, |node, caller| begin::list(node, caller, None, true)).await else { continue };
        for run in going {
            if let Ok(listener) = Listener::new(&shared, &who, run.run).await {
                listener.hold(shared.admission().adopt(&tenant));
            }
        }
    }
}

async fn waited(shared: &Shared, keeper: Waits, run: &str) -> Result<Said, Fault> {
    let (pending, of_today) = match keeper {
        Waits::Told(keeper) => (keeper.waits(), true),
        Waits::Ask(keeper) => (keeper.put_wait(run)?, false),
    };
    let mut pending = both_ways(pending)?;
    let said = pending.answer().await?;
    // One of an older version is asked each time what it can do.
    if of_today {
        shared.node().keepers.rest(pending.into_inner().done());
        shared.sweeper().sweep_soon();
    }
    Ok(said)
}

/// Output of a run by stream, as far as it is kept and fits; and the number of bytes that do not.
#[derive(Default)]
struct Gathered {
    streams: [Vec<u8>; 2],
    cut: [u64; 2],
}

impl Gathered {
    fn add(&mut self, records: Vec<Record>) {
        for record in records {
            let at = match record.kind {
                Kind::Stdout | Kind::Terminal => 0,
                Kind::Stderr => 1,
                Kind::Dropped | Kind::End => continue,
            };
            let room = MOST_TOLD - self.streams[at].len();
            self.streams[at].extend_from_slice(&record.bytes[..record.bytes.len().min(room)]);
            self.cut[at] += record.bytes.len().saturating_sub(room) as u64;
        }
    }

    fn told_in(self, mut outcome: Outcome) -> Outcome {
        let Gathered { streams, cut } = self;
        let [stdout, stderr] = streams;
        let seen = (stdout.len() + stderr.len()) as u64 + cut.iter().sum::<u64>();
        count_missing(&mut outcome, seen, [!stdout.is_empty(), !stderr.is_empty()]);
        outcome.set_output(stdout, stderr);
        outcome.truncated.stdout += cut[0];
        outcome.truncated.stderr += cut[1];
        outcome
    }
}

fn gather(found: &Found) -> Gathered {
    let mut gathered = Gathered::default();
    let Ok(mut reader) = found.reader() else { return gathered };
    let mut next = 0;
    while let Ok(page) = reader.read(next, PAGE) {
        next = page.next;
        if page.records.is_empty() && page.gap.is_none() {
            break;
        }
        gathered.add(page.records);
    }
    gathered
}

/// A piece of a run's log.
pub enum Told {
    Page(Page),
    /// The run has ended and its log does not say so: its keeper was lost, or the disk was full.
    End(Box<Outcome>),
}

/// A reader of a run's log that waits for more.
pub struct Log {
    pub listener: Listener,
    reader: Option<Reader>,
    next: u64,
    /// The listener has told of the end.
    has_ended: bool,
    is_over: bool,
}

impl Log {
    pub async fn open(listener: Listener, from: u64) -> Result<Log, Refusal> {
        let reader = listener.with(|found, _| found.reader()).await?;
        let mut log = Log { listener, reader: Some(reader), next: from, has_ended: false, is_over: false };
        // An offset that none of its records begins at is refused before anything is told.
        log.page().await?;
        log.next = from;
        Ok(log)
    }

    async fn page(&mut self) -> Result<Page, Refusal> {
        let (reader, from, id) = (self.reader.take(), self.next, self.listener.found.id.clone());
        let read = move |found: &Found, _: &Node| {
            let mut reader = reader.map_or_else(|| found.reader(), Ok)?;
            let page = reader.read(from, PAGE).map_err(|e| runs::unread(&id, e))?;
            Ok((reader, page))
        };
        let (reader, page) = self.listener.with(read).await?;
        (self.reader, self.next) = (Some(reader), page.next);
        Ok(page)
    }

    /// The next page that is there already; none at the end of those.
    pub async fn there(&mut self) -> Result<Option<Told>, Refusal> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.page().await?;
        self.is_over = page.ended;
        Ok((!page.records.is_empty() || page.gap.is_some()).then_some(Told::Page(page)))
    }

    /// Waits for the next page; none when all was told. A caller that gives up waiting misses nothing.
    pub async fn next(&mut self) -> Result<Option<Told>, Refusal> {
        while !self.is_over {
            let page = self.page().await?;
            self.is_over = page.ended;
            if !page.records.is_empty() || page.gap.is_some() {
                return Ok(Some(Told::Page(page)));
            }
            if self.has_ended {
                // All of it was read after its end was known.
                if let Some(outcome) = self.listener.with(Found::outcome).await? {
                    return self.last(outcome).await.map(Some);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if !self.is_over && !self.has_ended {
                self.has_ended = self.listener.next().await? == Heard::Ended;
            }
        }
        Ok(None)
    }

    /// The page that came until the outcome was known; else the outcome, which is not in the log.
    async fn last(&mut self, outcome: Outcome) -> Result<Told, Refusal> {
        let page = self.page().await?;
        if !page.records.is_empty() || page.gap.is_some() {
            self.is_over = page.ended;
            return Ok(Told::Page(page));
        }
        self.is_over = true;
        Ok(Told::End(Box::new(outcome)))
    }
}

/// Writes to a command's input, as fast as it takes it.
pub struct Input {
    keeper: Option<Keeper>,
    run: String,
}

impl Input {
    /// `counted` by who sends pieces again: a keeper that could not tell is refused before anything is sent.
    pub async fn open(listener: &Listener, counted: bool) -> Result<Input, Refusal> {
        let keeper = listener.with(move |found, node| {
            // A writer that counts may send again what a run took that is over by now.
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

    /// Resolves when the bytes are taken; how much of the writer's own was, where they count.
    pub async fn give(&mut self, bytes: Vec<u8>, eof: bool, by: Option<By>) -> Result<Option<u64>, Refusal> {
        let keeper = self.keeper.take().ok_or_else(|| not_there(&self.run))?;
        let pending = keeper.put_input(&self.run, bytes, eof, by)?;
        let mut pending = both_ways(pending)?;
        let fed = pending.answer().await?;
        self.keeper = Some(pending.into_inner().done());
        Ok(fed.map(|fed| fed.offset))
    }
}

fn not_there(run: &str) -> Fault {
    let fault = Fault::new(terms::ErrorKind::Conflict, format!("{run} takes no input")).subject(run);
    fault.hint("it has ended, or is no command of a live sandbox").phase(terms::Phase::Execution)
}
