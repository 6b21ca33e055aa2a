//! Being at a run without a thread for it: hearing from its keeper how far it has come, reading what it said, giving it input. Who
//! reads slowly makes nobody wait but themselves: what was said is on the disk.

use crate::admission::Turn;
use crate::refuse::Refusal;
use crate::resting::sweep_soon;
use crate::{Shared, Who};
use node::keeper::attach::count_missing;
use node::keeper::begin::{self, Shown, Waits};
use node::keeper::runs::{self, Found};
use node::keeper::spool::{self, Kind, Page, Reader, Record};
use node::keeper::wire::{By, Waited};
use node::keeper::{Come, Follow, Keeper, Pending, Said, resting};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use terms::{Fault, Outcome};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Read at once of what a run has said.
const PAGE: usize = 128 << 10;
/// How often a run is looked at that has no keeper to tell of it.
const PAUSE: Duration = Duration::from_millis(100);
/// What is put of each stream into a document.
const MOST_TOLD: usize = 4 << 20;
/// The most that is given to a command's input at once.
pub const PIECE: usize = 256 << 10;

/// A keeper's connection, and a second handle on it that tells when it is ready.
struct Watched<T> {
    of: T,
    line: UnixStream,
}

impl<T: AsFd> Watched<T> {
    fn new(of: T) -> io::Result<Watched<T>> {
        let line = std::os::unix::net::UnixStream::from(of.as_fd().try_clone_to_owned()?);
        line.set_nonblocking(true)?;
        Ok(Watched { of, line: UnixStream::from_std(line)? })
    }

    /// Tries again whenever the connection is ready, until there is something.
    async fn until<R>(
        &mut self,
        ready: Interest,
        mut look: impl FnMut(&mut T) -> Result<Option<R>, Fault>,
    ) -> Result<R, Fault> {
        if let Some(found) = look(&mut self.of)? {
            return Ok(found);
        }
        let (of, mut fault) = (&mut self.of, None);
        let found = self.line.async_io(ready, || match look(of) {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => {
                fault = Some(e);
                Err(io::ErrorKind::Other.into())
            }
        });
        let found = found.await;
        found.map_err(|e| fault.unwrap_or_else(|| Fault::internal(format!("a keeper's connection: {e}"))))
    }
}

impl<T: Come> Watched<Pending<T>> {
    async fn answer(&mut self) -> Result<T, Fault> {
        loop {
            // Sending may take several turns; then only the answer is waited for.
            let sends = self.of.sends();
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

fn unheard(e: io::Error) -> Refusal {
    Fault::internal(format!("a keeper's connection: {e}")).into()
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It said more, perhaps.
    More,
    /// It has ended: nothing of its tree is left.
    Ended,
}

/// A run's end, as its keeper told it.
pub struct Ended {
    outcome: Outcome,
    ended_ms: Option<u64>,
    /// What it said, where that came along.
    log: Option<Vec<u8>>,
}

/// Somebody who listens to one run.
pub struct Listener {
    shared: Shared,
    /// Whose turns its reading takes.
    who: Who,
    pub found: Found,
    follow: Option<Watched<Follow>>,
}

impl Listener {
    pub async fn new(shared: &Shared, who: &Who, word: String) -> Result<Listener, Refusal> {
        let found = shared.verb(who, move |caller| runs::find(&word, caller)).await?;
        Ok(Listener::of(shared, who, found))
    }

    pub fn of(shared: &Shared, who: &Who, found: Found) -> Listener {
        Listener { shared: shared.clone(), who: who.clone(), found, follow: None }
    }

    /// Another who hears of the same run from now on.
    pub fn again(&self) -> Listener {
        Listener::of(&self.shared, &self.who, self.found.clone())
    }

    /// Carries out something with the run that takes a moment.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Found) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Refusal> {
        let found = self.found.clone();
        self.shared.blocking_for(&self.who, move || work(&found)).await
    }

    /// Resolves when there is news. Where it stands is news to one who has just come.
    pub async fn next(&mut self) -> Result<Heard, Refusal> {
        loop {
            if let Some(follow) = &mut self.follow {
                match heard(follow).await {
                    Ok(ended) => return Ok(if ended { Heard::Ended } else { Heard::More }),
                    // It is gone, and its records tell what became of the run; or it has no room for us, and may later.
                    Err(_) => {
                        let was_accepted = follow.of.is_accepted();
                        self.follow = None;
                        if !was_accepted {
                            return self.look_later().await;
                        }
                    }
                }
            }
            let id = self.found.id.clone();
            let found =
                self.with(move |found| Ok(found.keeper().and_then(|keeper| keeper.follow(Some(vec![id])).ok())));
            match found.await? {
                Some(follow) => self.follow = Some(Watched::new(follow).map_err(unheard)?),
                None => return self.look_later().await,
            }
        }
    }

    /// What the records say, where no keeper tells.
    async fn look_later(&self) -> Result<Heard, Refusal> {
        if self.with(|found| Ok(found.now()?.ended_ms.is_some())).await? {
            return Ok(Heard::Ended);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(Heard::More)
    }

    /// How it ended; none when the time is over first.
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

    /// The same with what it said.
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
            None => self.with(|found| Ok(gather(found))).await?,
        };
        Ok(gathered.told_in(outcome))
    }

    /// The run after its end, with what it said.
    pub async fn ended(&self, ended: Ended) -> Result<Shown, Refusal> {
        let Ended { outcome, ended_ms, log } = ended;
        let (verdict, status) = (Some(outcome.verdict), Some(outcome.status()));
        let outcome = self.with_output(outcome, log).await?;
        let mut shown = begin::ended(&self.found);
        (shown.ended_ms, shown.verdict, shown.status, shown.outcome) = (ended_ms, verdict, status, Some(outcome));
        Ok(shown)
    }

    /// Holds a turn until the run has ended, and tells of that whoever waits. One connection does for both; nobody who gives up waiting
    /// gives the turn away with it.
    pub fn stay(self, keeper: Waits, turn: Turn) -> oneshot::Receiver<Ended> {
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            match waited(keeper, &self.found.id).await {
                Ok(Said { waited: Waited { outcome: Some(outcome), ended_ms, .. }, log }) => {
                    drop(turn);
                    let _nobody_waits = tell.send(Ended { outcome, ended_ms, log });
                }
                // The keeper is gone, or does not say; the records will.
                _ => self.hold(turn),
            }
        });
        told
    }

    /// Holds a turn until the run has ended.
    pub fn hold(mut self, turn: Turn) {
        tokio::spawn(async move {
            let _turn = turn;
            while !matches!(self.next().await, Ok(Heard::Ended) | Err(_)) {}
        });
    }
}

/// Runs that go on from before there was this daemon have their turns.
pub async fn adopt(shared: Shared) {
    for tenant in shared.tenants() {
        let who = Who { tenant: tenant.clone(), ..crate::shared::owner("daemon") };
        let Ok(going) = shared.verb(&who, |caller| begin::list(None, true, caller)).await else { continue };
        for run in going {
            if let Ok(listener) = Listener::new(&shared, &who, run.run).await {
                listener.hold(shared.admission().adopt(&tenant));
            }
        }
    }
}

async fn waited(keeper: Waits, run: &str) -> Result<Said, Fault> {
    let lost = |e: io::Error| Fault::internal(format!("a keeper's connection: {e}"));
    let (pending, of_today) = match keeper {
        Waits::Told(keeper) => (keeper.waits(), true),
        Waits::Ask(keeper) => (keeper.put_wait(run)?, false),
    };
    let mut pending = Watched::new(pending).map_err(lost)?;
    let said = pending.answer().await?;
    // One of an older version is asked each time what it can do.
    if of_today {
        resting::rest(pending.of.done());
        sweep_soon();
    }
    Ok(said)
}

/// Waits for a notice; whether it says that the run has ended.
async fn heard(follow: &mut Watched<Follow>) -> Result<bool, Fault> {
    follow.until(Interest::READABLE, Follow::heard).await.map(|notice| notice.ended)
}

/// What a run said, stream by stream, as far as it is kept and fits; and how much does not.
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

/// What somebody who reads along is told.
pub enum Told {
    Page(Page),
    /// It ended, and its log does not say so: its keeper was lost, or the disk was full.
    End(Box<Outcome>),
}

/// Somebody who reads along.
pub struct Log {
    pub listener: Listener,
    reader: Option<Reader>,
    next: u64,
    /// Its end was heard of.
    has_ended: bool,
    is_over: bool,
}

impl Log {
    pub async fn open(listener: Listener, from: u64) -> Result<Log, Refusal> {
        let reader = listener.with(Found::reader).await?;
        let mut log = Log { listener, reader: Some(reader), next: from, has_ended: false, is_over: false };
        // An offset that none of its records begins at is refused before anything is told.
        log.page().await?;
        log.next = from;
        Ok(log)
    }

    async fn page(&mut self) -> Result<Page, Refusal> {
        let (reader, from, id) = (self.reader.take(), self.next, self.listener.found.id.clone());
        let read = move |found: &Found| {
            let mut reader = reader.map_or_else(|| found.reader(), Ok)?;
            let page = reader.read(from, PAGE).map_err(|e| runs::unread(&id, e))?;
            Ok((reader, page))
        };
        let (reader, page) = self.listener.with(read).await?;
        (self.reader, self.next) = (Some(reader), page.next);
        Ok(page)
    }

    /// What is there already; none when all of that was told.
    pub async fn there(&mut self) -> Result<Option<Told>, Refusal> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.page().await?;
        self.is_over = page.ended;
        Ok((!page.records.is_empty() || page.gap.is_some()).then_some(Told::Page(page)))
    }

    /// What comes next; none when all was told. Who gives up waiting misses nothing.
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
}

impl Log {
    /// What came until its outcome was known; else the outcome, which is not in the log.
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
        let keeper = listener.with(move |found| {
            // Who counts may send again what a run took that is over by now.
            let keeper = found.heard()?.filter(|_| counted || found.now().is_ok_and(|run| run.ended_ms.is_none()));
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
        let mut pending = Watched::new(pending).map_err(unheard)?;
        let fed = pending.answer().await?;
        self.keeper = Some(pending.of.done());
        Ok(fed.map(|fed| fed.offset))
    }
}

fn not_there(run: &str) -> Fault {
    let fault = Fault::new(terms::ErrorKind::Conflict, format!("{run} takes no input")).subject(run);
    fault.hint("it has ended, or is no command of a live sandbox").phase(terms::Phase::Execution)
}
