//! Runs by id, with or without a keeper: their output, their outcome, and the verbs on them.

use runtime::Node;
use runtime::keeper::client::{Contact, Follow, INSPECTION, Keeper};
use runtime::keeper::place::{Card, KeeperDir};
use runtime::keeper::spool::{ReadError, Record, RecordKind, SpoolPage, SpoolReader};
use runtime::keeper::{lost, wire};
use state::Caller;
use state::sandbox::Run;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::{Kept, Store, Tx};
use terms::{ErrorKind, Exit, Fault, Outcome, Phase, Retry, RunId};

/// Maximum number of bytes of a log in one read.
const PAGE: usize = 256 << 10;
/// Minimum length of an id prefix, without `run_`.
const LEAST_BEGINNING: usize = 4;

/// A run, with the state directory of its keeper.
#[derive(Clone, Debug)]
pub struct RunRef {
    pub id: String,
    pub run: Run,
    state: PathBuf,
}

/// Finds a run by id or by an unambiguous id prefix.
pub fn find(node: &Node, caller: &Caller, word: &str) -> Result<RunRef, Fault> {
    let state = node.states.lend(caller)?;
    let Kept { id, record, .. } = state.store.read(|tx| pick(tx, word, caller))?;
    Ok(RunRef { id, run: record, state: state.path.clone() })
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
            let hint = "`cofferdam ps` lists running commands; records of runs that ended long ago are collected";
            Err(fault.phase(Phase::Admission).hint(hint))
        }
        _ => {
            let message = format!("several runs begin with {word:?}");
            Err(Fault::invalid(message).hint("give more of the id").phase(Phase::Admission))
        }
    }
}

impl RunRef {
    pub(super) fn new(id: String, run: Run, state: PathBuf) -> RunRef {
        RunRef { id, run, state }
    }

    /// Connects to the run's keeper, if it is alive. The keeper may be silent.
    pub fn keeper(&self, node: &Node) -> Option<Keeper> {
        Keeper::find(node, &self.state, &self.run.sandbox).filter(|keeper| keeper.card.pid == self.run.pid)
    }

    /// Connects to the run's keeper and waits for its greeting; a fault if it is silent.
    pub fn heard(&self, node: &Node) -> Result<Option<Keeper>, Fault> {
        Ok(Keeper::heard(node, &self.state, &self.run.sandbox)?.filter(|keeper| keeper.card.pid == self.run.pid))
    }

    /// Connects to the run's keeper within the deadline of a listing; `None` if it is silent.
    pub fn glance(&self, node: &Node) -> Option<Keeper> {
        match Keeper::contact(node, &self.state, &self.run.sandbox, INSPECTION) {
            Contact::Answered(keeper, _) if keeper.card.pid == self.run.pid => {
                Some(keeper.answering_within(INSPECTION))
            }
            _ => None,
        }
    }

    /// Returns true if the process in the record is the keeper of the sandbox, even if it does not
    /// answer.
    fn is_kept(&self) -> bool {
        let of = |card: Card| (card.pid, card.pid_start) == (self.run.pid, self.run.pid_start);
        self.place().card().is_some_and(of)
    }

    fn place(&self) -> KeeperDir {
        KeeperDir::of(&self.state, &self.run.sandbox)
    }

    /// Returns the record as it is now. A run whose supervisor died is recorded as lost first.
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

    /// Returns the outcome of an ended run: from its log, else from its keeper, else as much as the
    /// record has.
    pub fn outcome(&self, node: &Node) -> Result<Option<Outcome>, Fault> {
        let now = self.now()?;
        if now.ended_ms.is_none() {
            return Ok(None);
        }
        // A keeper whose log is gone knows no more than that the run ended; the record has the verdict.
        let agrees = |outcome: &Outcome| now.verdict.is_none_or(|verdict| verdict == outcome.verdict);
        Ok(self.logged().or_else(|| self.logged_soon(node).filter(agrees)).or_else(|| recorded(&self.id, &now)))
    }

    /// Waits briefly for the outcome in the log: the end is recorded before it is logged, and on a full disk it is never logged.
    fn logged_soon(&self, node: &Node) -> Option<Outcome> {
        let waited = self.glance(node)?.wait(&self.id, MOMENT).ok()?;
        self.logged().or(waited.outcome)
    }

    fn logged(&self) -> Option<Outcome> {
        let last = SpoolReader::last(&self.place().run(&self.id)).ok()??;
        (last.kind == RecordKind::End).then(|| serde_json::from_slice(&last.bytes).ok()).flatten()
    }

    /// Waits for the end of the run; returns none on a timeout.
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
            // If the keeper is gone, or no longer knows the run, the end is in the record, which
            // the next round reads.
            let waited = self.keeper(node).map(|mut keeper| keeper.wait(&self.id, left.min(STEP)));
            match waited {
                Some(Ok(wire::Waited { outcome: Some(outcome), .. })) => return Ok(Some(outcome)),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => std::thread::sleep(left.min(PAUSE)),
            }
        }
    }

    /// Opens the log of the run at its beginning.
    pub fn reader(&self) -> Result<SpoolReader, Fault> {
        SpoolReader::open(&self.place().run(&self.id)).map_err(|e| self.unkept(&e))
    }

    /// Returns the last records of the log, up to `most` bytes but at least one record, and whether there are others before them; `None`
    /// where no log is kept.
    pub fn tail(&self, most: usize) -> Option<(Vec<Record>, bool)> {
        SpoolReader::tail(&self.place().run(&self.id), most).ok()
    }

    fn unkept(&self, error: &io::Error) -> Fault {
        match error.kind() == io::ErrorKind::NotFound && self.is_elsewhere() {
            true => elsewhere(&self.id, &self.run.sandbox),
            false => unkept(&self.id, error),
        }
    }

    /// Returns true if the run continues without a keeper: its streams are those of the command
    /// that started it.
    pub fn is_elsewhere(&self) -> bool {
        !self.is_kept() && state::process::handle(&self.run).is_some()
    }

    /// Removes the log of an ended run and returns whether there was one. A conflict while the run continues.
    pub fn forget(&self) -> Result<bool, Fault> {
        if self.now()?.ended_ms.is_none() {
            let fault = Fault::new(ErrorKind::Conflict, format!("{} is still running", self.id)).subject(&self.id);
            return Err(fault.hint("end it first").phase(Phase::Admission));
        }
        match std::fs::remove_dir_all(self.place().run(&self.id)) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Fault::new(ErrorKind::Unavailable, format!("{}: {e}", self.id)).subject(&self.id)),
        }
    }

    /// Kills the whole process tree, through the keeper if there is one; returns false when it is gone already.
    pub fn kill(&self, node: &Node) -> Result<bool, Fault> {
        match self.run.ended_ms {
            None => match self.heard(node)? {
                Some(mut keeper) => keeper.kill(&self.id),
                None => self.signal(node, 9),
            },
            Some(_) => self.signal(node, 9),
        }
    }

    /// Thaws the sandbox of a run that continues, for a client that attaches.
    pub fn wake(&self, node: &Node) -> Result<(), Fault> {
        if self.now()?.ended_ms.is_some() {
            return Ok(());
        }
        self.heard(node)?.map_or(Ok(()), |mut keeper| keeper.thaw())
    }

    /// Sends a signal to the command; SIGKILL kills the whole tree. Returns false when it is gone
    /// already.
    pub fn signal(&self, node: &Node, signal: i32) -> Result<bool, Fault> {
        if self.now()?.ended_ms.is_some() {
            return Ok(false);
        }
        match self.heard(node)? {
            Some(mut keeper) => keeper.signal(&self.id, signal),
            // A keeper would not forward the signal but obey it, and end with all its runs.
            None if self.is_kept() => Err(unheard(&self.run.sandbox)),
            None => match state::process::handle(&self.run) {
                // The supervisor forwards the signal.
                Some(supervisor) => Ok(sys::process::signal(std::os::fd::AsFd::as_fd(&supervisor), signal)),
                None => Ok(false),
            },
        }
    }
}

fn unheard(sandbox: &str) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the keeper of {sandbox} cannot be asked")).subject(sandbox);
    fault.retry(Retry::Later).hint("try again; `cofferdam inspect` shows its state").phase(Phase::Execution)
}

/// Longest wait for the log entry of an end that is already recorded.
const MOMENT: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_millis(20);

/// Builds the outcome that a record alone supports.
fn recorded(id: &str, run: &Run) -> Option<Outcome> {
    let stamp = terms::PolicyStamp::default();
    let missing = vec!["unknown: only the record of the run is left".to_owned()];
    let unknown = terms::Enforcement { level: terms::EnforcementLevel::Partial, missing };
    let mut outcome = Outcome::new(RunId::parse(id)?, stamp, unknown);
    outcome.verdict = run.verdict?;
    outcome.success = outcome.verdict == terms::Verdict::Ok;
    outcome.exit = run.status.map(|code| Exit::Code { code: code.into() });
    outcome.sandbox = Some(run.sandbox.clone());
    outcome.message = Some("its output is no longer kept".to_owned());
    Some(outcome)
}

/// A reader of a run's output from an offset on, which can wait for more.
pub struct RunLog {
    found: RunRef,
    reader: SpoolReader,
    next: u64,
    follow: Option<Follow>,
    follows: bool,
}

/// Result of one read.
#[derive(Debug)]
pub enum LogRead {
    Page(SpoolPage),
    /// No record arrived in time.
    Nothing,
    /// The run has ended or was lost, and all records were returned.
    Over,
}

impl RunLog {
    pub fn open(found: RunRef, from: u64, follows: bool) -> Result<RunLog, Fault> {
        let reader = SpoolReader::open(&found.place().run(&found.id)).map_err(|e| found.unkept(&e))?;
        Ok(RunLog { found, reader, next: from, follow: None, follows })
    }

    /// Returns the offset of the next record.
    pub fn offset(&self) -> u64 {
        self.next
    }

    /// Returns the next records, waiting up to `patience` for them.
    pub fn next(&mut self, node: &Node, patience: Duration) -> Result<LogRead, Fault> {
        let end = Instant::now() + patience;
        loop {
            let page = self.reader.read(self.next, PAGE).map_err(|e| unread(&self.found.id, e))?;
            self.next = page.next;
            if !page.records.is_empty() || page.gap.is_some() {
                return Ok(LogRead::Page(page));
            }
            if page.ended || !self.follows {
                return Ok(LogRead::Over);
            }
            if !self.listen(node)? {
                // The run has ended, so the log is complete.
                let page = self.reader.read(self.next, PAGE).map_err(|e| unread(&self.found.id, e))?;
                self.next = page.next;
                return Ok(if page.records.is_empty() { LogRead::Over } else { LogRead::Page(page) });
            }
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.follow.as_mut().map(|follow| follow.next(left));
            match heard {
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) => return Ok(LogRead::Nothing),
                // Either the keeper is gone, and the next read shows what became of the run; or it
                // has too many subscribers, and may accept one later.
                Some(Err(_)) | None => {
                    if self.follow.take().is_some_and(|follow| !follow.is_accepted()) {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    /// Subscribes to the run's notices; returns false if the run has ended. If it has not, and
    /// there is no keeper to subscribe to, pauses and returns true.
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

/// Builds the fault for a run whose output went only to the command that started it.
pub fn elsewhere(run: &str, sandbox: &str) -> Fault {
    let message = format!("{run} uses the terminal or pipe that it was started on, and its output is not recorded");
    let fault = Fault::new(ErrorKind::NotFound, message).subject(run).phase(Phase::Admission);
    fault.hint(format!(
        "look there; `cofferdam diff {sandbox}` shows what it has changed, `cofferdam stop {sandbox}` ends it; output is kept of \
         commands in live sandboxes, such as those of `cofferdam run --live`"
    ))
}

fn unkept(run: &str, error: &io::Error) -> Fault {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "its output was not recorded, or is no longer kept".to_owned(),
        _ => error.to_string(),
    };
    let fault = Fault::new(ErrorKind::NotFound, format!("{run}: {what}")).subject(run).phase(Phase::Admission);
    fault.hint("only output of commands in live sandboxes is recorded: `cofferdam start --live`, `cofferdam exec -d`")
}

pub fn unread(run: &str, error: ReadError) -> Fault {
    match error {
        ReadError::NoRecord { offset } => {
            let fault = Fault::invalid(format!("{run}: no output begins at offset {offset}")).subject(run);
            fault.phase(Phase::Admission).hint("use an offset from an earlier response, or 0")
        }
        ReadError::Io(error) => unkept(run, &error),
    }
}
