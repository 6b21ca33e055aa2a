//! Runs by their id, whether a keeper has them or nobody is left: what they said, how they ended, and what can still be done.

use runtime::Node;
use runtime::keeper::client::{Contact, Follow, INSPECTION, Keeper};
use runtime::keeper::place::{Card, Place};
use runtime::keeper::spool::{Kind, Page, Reader, Unread};
use runtime::keeper::{lost, wire};
use state::Caller;
use state::sandbox::Run;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::{Kept, Store, Tx};
use terms::{ErrorKind, Exit, Fault, Outcome, Phase, Retry, RunId};

/// Read at once of what a run has said.
const PAGE: usize = 256 << 10;
/// So much of an id stands for the whole.
const LEAST_BEGINNING: usize = 4;

/// A run, and where its keeper would be.
#[derive(Clone, Debug)]
pub struct Found {
    pub id: String,
    pub run: Run,
    state: PathBuf,
}

/// By id, or by the beginning of one that no other has.
pub fn find(node: &Node, caller: &Caller, word: &str) -> Result<Found, Fault> {
    let state = node.states.lend(caller)?;
    let Kept { id, record, .. } = state.store.read(|tx| pick(tx, word, caller))?;
    Ok(Found { id, run: record, state: state.path.clone() })
}

fn pick(tx: &Tx<'_>, word: &str, caller: &Caller) -> Result<Kept<Run>, Fault> {
    if let Some(found) = tx.get::<Run>(word)?
        && caller.sees_id(tx, &found.record.sandbox)?
    {
        return Ok(found);
    }
    let most = if caller.is_bound() { u32::MAX } else { 2 };
    let bare = word.strip_prefix("run_").unwrap_or(word);
    let mut alike = match bare.len() >= LEAST_BEGINNING {
        true => tx.list_from::<Run>(&format!("run_{bare}"), most)?,
        false => Vec::new(),
    };
    caller.keep_own(tx, &mut alike, |run| &run.record.sandbox)?;
    match (alike.len(), alike.pop()) {
        (1, Some(found)) => Ok(found),
        (0, _) => {
            let fault = Fault::new(ErrorKind::NotFound, format!("there is no run {word:?}")).subject(word);
            let hint = "`cofferdam ps` lists those that go on; records of runs that ended long ago are collected";
            Err(fault.phase(Phase::Admission).hint(hint))
        }
        _ => {
            let message = format!("several runs begin with {word:?}");
            Err(Fault::invalid(message).hint("give more of the id").phase(Phase::Admission))
        }
    }
}

impl Found {
    pub(super) fn new(id: String, run: Run, state: PathBuf) -> Found {
        Found { id, run, state }
    }

    /// A connection to the keeper that has it, if it still goes on there. That keeper may be silent.
    pub fn keeper(&self, node: &Node) -> Option<Keeper> {
        Keeper::find(node, &self.state, &self.run.sandbox).filter(|keeper| keeper.card.pid == self.run.pid)
    }

    /// The same once it has answered; a fault where it is silent.
    pub fn heard(&self, node: &Node) -> Result<Option<Keeper>, Fault> {
        Ok(Keeper::heard(node, &self.state, &self.run.sandbox)?.filter(|keeper| keeper.card.pid == self.run.pid))
    }

    /// The same within the deadline of a look; none where it is silent.
    pub fn glance(&self, node: &Node) -> Option<Keeper> {
        match Keeper::contact(node, &self.state, &self.run.sandbox, INSPECTION) {
            Contact::Answered(keeper, _) if keeper.card.pid == self.run.pid => {
                Some(keeper.answering_within(INSPECTION))
            }
            _ => None,
        }
    }

    /// Whether the process on its record is the keeper of its sandbox, though it cannot be asked.
    fn is_kept(&self) -> bool {
        let of = |card: Card| (card.pid, card.pid_start) == (self.run.pid, self.run.pid_start);
        self.place().card().is_some_and(of)
    }

    fn place(&self) -> Place {
        Place::of(&self.state, &self.run.sandbox)
    }

    /// Its record as it is now. One whose supervisor is gone without a word is written down as lost first.
    pub fn now(&self) -> Result<Run, Fault> {
        let store = Store::open(&self.state)?;
        let get = || store.read(|tx| tx.get::<Run>(&self.id));
        let now = get()?.map_or_else(|| self.run.clone(), |kept| kept.record);
        if now.ended_ms.is_none() && state::process::handle(&now).is_none() {
            lost::settle(&self.state, &now.sandbox)?;
            return Ok(get()?.map_or(now, |kept| kept.record));
        }
        Ok(now)
    }

    /// How it ended, if it has: as its log says it, else as far as its record does.
    pub fn outcome(&self, node: &Node) -> Result<Option<Outcome>, Fault> {
        let now = self.now()?;
        if now.ended_ms.is_none() {
            return Ok(None);
        }
        // A keeper whose log of it is gone knows no more than that; the record does.
        let agrees = |outcome: &Outcome| now.verdict.is_none_or(|verdict| verdict == outcome.verdict);
        Ok(self.logged().or_else(|| self.told(node).filter(agrees)).or_else(|| recorded(&self.id, &now)))
    }

    /// An end is written down before it is told, so that for a moment it has a record and is not in its log yet; on a full disk it
    /// never is.
    fn told(&self, node: &Node) -> Option<Outcome> {
        let waited = self.glance(node)?.wait(&self.id, MOMENT).ok()?;
        self.logged().or(waited.outcome)
    }

    fn logged(&self) -> Option<Outcome> {
        let last = Reader::last(&self.place().run(&self.id)).ok()??;
        (last.kind == Kind::End).then(|| serde_json::from_slice(&last.bytes).ok()).flatten()
    }

    /// Waits for its end; none when the time is over first.
    pub fn wait(&self, node: &Node, time: Duration) -> Result<Option<Outcome>, Fault> {
        let end = Instant::now().checked_add(time);
        loop {
            if let Some(outcome) = self.outcome(node)? {
                return Ok(Some(outcome));
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            // A keeper that went away is seen in the records, and one that forgot it wrote it down.
            let waited = self.keeper(node).map(|mut keeper| keeper.wait(&self.id, left.min(STEP)));
            match waited {
                Some(Ok(wire::Waited { outcome: Some(outcome), .. })) => return Ok(Some(outcome)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => std::thread::sleep(left.min(PAUSE)),
            }
        }
    }

    /// What it has said, to be read from its beginning.
    pub fn reader(&self) -> Result<Reader, Fault> {
        Reader::open(&self.place().run(&self.id)).map_err(|e| unkept(&self.id, &e))
    }

    /// Drops what is kept of what it said; whether there was something. A conflict while it goes on.
    pub fn forget(&self) -> Result<bool, Fault> {
        if self.now()?.ended_ms.is_none() {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} goes on", self.id)).subject(&self.id);
            return Err(fault.hint("end it first").phase(Phase::Admission));
        }
        match std::fs::remove_dir_all(self.place().run(&self.id)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Fault::new(ErrorKind::Unavailable, format!("{}: {e}", self.id)).subject(&self.id)),
        }
    }

    /// Ends the whole tree at once, by its keeper where it has one; false when it is gone already.
    pub fn kill(&self, node: &Node) -> Result<bool, Fault> {
        match self.run.ended_ms {
            None => match self.heard(node)? {
                Some(mut keeper) => keeper.kill(&self.id),
                None => self.signal(node, 9),
            },
            Some(_) => self.signal(node, 9),
        }
    }

    /// Wakes its sandbox where that is frozen, for whoever comes to the run; nothing to do for one that has ended.
    pub fn wake(&self, node: &Node) -> Result<(), Fault> {
        if self.now()?.ended_ms.is_some() {
            return Ok(());
        }
        self.heard(node)?.map_or(Ok(()), |mut keeper| keeper.thaw())
    }

    /// Sends a signal to the command, or ends the whole tree at once; false when it is gone already.
    pub fn signal(&self, node: &Node, signal: i32) -> Result<bool, Fault> {
        if self.now()?.ended_ms.is_some() {
            return Ok(false);
        }
        match self.heard(node)? {
            Some(mut keeper) => keeper.signal(&self.id, signal),
            // It would not pass the signal on but follow it, with all that it keeps.
            None if self.is_kept() => Err(unheard(&self.run.sandbox)),
            None => match state::process::handle(&self.run) {
                // Whoever supervises it passes the signal on.
                Some(supervisor) => Ok(sys::process::signal(std::os::fd::AsFd::as_fd(&supervisor), signal)),
                None => Ok(false),
            },
        }
    }
}

fn unheard(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {sandbox} cannot be asked")).subject(sandbox);
    fault.retry(Retry::Later).hint("try again; `cofferdam inspect` says what became of it").phase(Phase::Execution)
}

/// What a keeper takes at most to tell of an end that is written down.
const MOMENT: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_millis(20);

/// What a record alone tells of an end.
fn recorded(id: &str, run: &Run) -> Option<Outcome> {
    let stamp = terms::PolicyStamp::default();
    let missing = vec!["unknown: only the record of the run is left".to_owned()];
    let unknown = terms::Enforcement { level: terms::Level::Partial, missing };
    let mut outcome = Outcome::new(RunId::parse(id)?, stamp, unknown);
    outcome.verdict = run.verdict?;
    outcome.success = outcome.verdict == terms::Verdict::Ok;
    outcome.exit = run.status.map(|code| Exit::Code { code: code.into() });
    outcome.sandbox = Some(run.sandbox.clone());
    outcome.message = Some("what it said is no longer kept".to_owned());
    Some(outcome)
}

/// What a run says, from an offset on, and on request as it comes.
pub struct Log {
    found: Found,
    reader: Reader,
    next: u64,
    follow: Option<Follow>,
    follows: bool,
}

/// One look at a log.
#[derive(Debug)]
pub enum Heard {
    Page(Page),
    /// Nothing came in time.
    Nothing,
    /// It goes no further: the run has ended, or was lost, and all of it was told.
    Over,
}

impl Log {
    pub fn open(found: Found, from: u64, follows: bool) -> Result<Log, Fault> {
        let reader = Reader::open(&found.place().run(&found.id)).map_err(|e| unkept(&found.id, &e))?;
        Ok(Log { found, reader, next: from, follow: None, follows })
    }

    /// Where the next record begins.
    pub fn offset(&self) -> u64 {
        self.next
    }

    /// What is there, or comes within `patience`.
    pub fn next(&mut self, node: &Node, patience: Duration) -> Result<Heard, Fault> {
        let end = Instant::now() + patience;
        loop {
            let page = self.reader.read(self.next, PAGE).map_err(|e| unread(&self.found.id, e))?;
            self.next = page.next;
            if !page.records.is_empty() || page.gap.is_some() {
                return Ok(Heard::Page(page));
            }
            if page.ended || !self.follows {
                return Ok(Heard::Over);
            }
            if !self.listen(node)? {
                // Nobody has it any more: what is there now is all there will be.
                let page = self.reader.read(self.next, PAGE).map_err(|e| unread(&self.found.id, e))?;
                self.next = page.next;
                return Ok(if page.records.is_empty() { Heard::Over } else { Heard::Page(page) });
            }
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.follow.as_mut().map(|follow| follow.next(left));
            match heard {
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) => return Ok(Heard::Nothing),
                // It is gone, and the next look tells what became of the run; or it has no room for us, and may later.
                Some(Err(_)) | None => {
                    if self.follow.take().is_some_and(|follow| !follow.is_accepted()) {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    /// Makes sure that we hear of news; false where nobody is left to tell, and the records say so.
    fn listen(&mut self, node: &Node) -> Result<bool, Fault> {
        if self.follow.is_some() {
            return Ok(true);
        }
        if let Some(keeper) = self.found.keeper(node)
            && let Ok(follow) = keeper.follow(Some(vec![self.found.id.clone()]))
        {
            self.follow = Some(follow);
            return Ok(true);
        }
        match self.found.now()?.ended_ms {
            Some(_) => Ok(false),
            None => {
                std::thread::sleep(PAUSE);
                Ok(true)
            }
        }
    }
}

fn unkept(run: &str, error: &io::Error) -> Fault {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "what it said was not kept, or no longer is".to_owned(),
        _ => error.to_string(),
    };
    let fault = Fault::new(ErrorKind::NotFound, format!("{run}: {what}")).subject(run).phase(Phase::Admission);
    fault.hint("output is kept of commands in live sandboxes: `cofferdam start --live`, `cofferdam exec -d`")
}

pub fn unread(run: &str, error: Unread) -> Fault {
    match error {
        Unread::NoRecord { offset } => {
            let fault = Fault::invalid(format!("{run}: nothing it said begins at {offset}")).subject(run);
            fault.phase(Phase::Admission).hint("take an offset that was told before, or 0")
        }
        Unread::Io(error) => unkept(run, &error),
    }
}
