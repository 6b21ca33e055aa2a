//! Is somebody at work in a sandbox? A run is a process with a number, a start time and a boot: only all three together
//! mean the same process. Asked of the kernel, never of a record alone.

use super::admission::Standing;
use crate::keeper::client::{GREETING, LISTING, silence, silent};
use crate::keeper::survey::{self, Reply, survey};
use crate::keeper::{Contact, Keeper, lost};
use crate::sandbox::{self, Lifecycle, Run, Sandbox};
use crate::state::State;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use store::{Kept, Tx};
use terms::{ErrorKind, Fault, Phase, Retry};
use workspace::{Layer, Lock};

/// Which boot this is. Asked for with every run and every look at a keeper; it is the same for as long as we live.
pub fn boot() -> String {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(known) = BOOT.get() {
        return known.clone();
    }
    match sys::host::kernel_file("/proc/sys/kernel/random/boot_id") {
        Some(read) => BOOT.get_or_init(|| read.trim().to_owned()).clone(),
        None => String::new(),
    }
}

/// When we were started ourselves.
pub fn own_start() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| start_of(std::process::id()).unwrap_or_default())
}

/// When a process was started, in ticks since the boot.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last bracket may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// A handle on the process that supervises a run, if it is still that process.
pub fn handle(run: &Run) -> Option<OwnedFd> {
    if run.ended_ms.is_some() || run.boot != boot() {
        return None;
    }
    let pid = Pid::from_raw(i32::try_from(run.pid).ok()?)?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Looked at once it is held: the number cannot have changed hands since.
    let same = start_of(run.pid) == Some(run.pid_start);
    (same && !sys::process::has_ended(std::os::fd::AsFd::as_fd(&held))).then_some(held)
}

/// Runs that go on in a sandbox.
pub fn runs(tx: &Tx<'_>, sandbox: &str) -> Result<Vec<Kept<Run>>, Fault> {
    let open = tx.list_open::<Run>()?;
    Ok(open.into_iter().filter(|run| run.record.sandbox == sandbox && handle(&run.record).is_some()).collect())
}

fn top(state: &State, sandbox: &Sandbox) -> Option<Layer> {
    sandbox.layers.last().and_then(|id| state.layers.get(id).ok())
}

/// Whether the top layer is held by somebody.
pub fn is_held(state: &State, sandbox: &Sandbox) -> bool {
    top(state, sandbox).is_some_and(|layer| holds(&layer))
}

/// What cannot be told is taken for held.
pub fn holds(layer: &Layer) -> bool {
    layer.is_held().unwrap_or(true)
}

/// An attempt to have a sandbox for oneself: its record as it is then, and the lock of its top layer.
#[derive(Debug)]
pub struct Hold {
    pub sandbox: Kept<Sandbox>,
    pub whose: Whose,
}

#[derive(Debug)]
pub enum Whose {
    /// Nobody else runs in it or changes its layers until this is let go. A sandbox whose top layer is gone needs no lock.
    Mine(Option<Lock>),
    /// Somebody else has it.
    Taken,
}

/// How often the layers of a sandbox may be found replaced between a look and the lock.
const REPLACED: u32 = 64;
/// How long somebody is waited for who holds a sandbox without a run in it.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Tries once. The record is read again under the lock: until then a snapshot or a restore may have put other layers in the
/// place of those that were seen, and then it was the wrong one that was locked.
pub fn hold(state: &State, id: &str) -> Result<Hold, Fault> {
    let get = || state.store.read(|tx| tx.get::<Sandbox>(id))?.ok_or_else(|| sandbox::unknown(id));
    let mut seen = get()?;
    for _ in 0..REPLACED {
        let whose = match top(state, &seen.record).map(|layer| layer.lock()) {
            None => Whose::Mine(None),
            Some(Ok(Some(lock))) => Whose::Mine(Some(lock)),
            Some(_) => Whose::Taken,
        };
        let now = get()?;
        if now.record.layers == seen.record.layers {
            return Ok(Hold { sandbox: now, whose });
        }
        seen = now;
    }
    let fault = Fault::new(ErrorKind::Conflict, format!("{id}: others change it all the time")).retry(Retry::Later);
    Err(fault.hint("try again").subject(id).phase(Phase::Admission))
}

/// Waits for other verbs, which are done soon, and asks a keeper to leave that has nothing to do. A run is not waited for, and a silent
/// keeper is a fault.
pub fn hold_patiently(state: &State, id: &str) -> Result<Hold, Fault> {
    let begun = Instant::now();
    loop {
        let hold = hold(state, id)?;
        let is_mine = matches!(hold.whose, Whose::Mine(_));
        if is_mine || begun.elapsed() > PATIENCE || !state.store.read(|tx| runs(tx, id))?.is_empty() {
            return Ok(hold);
        }
        match Keeper::contact(&state.path, id, GREETING) {
            Contact::Answered(keeper, _) => match keeper.end_if_idle() {
                Ok(()) => continue,
                Err(fault) if fault.error_kind == ErrorKind::Conflict => return Ok(hold),
                // It went away while it was asked.
                Err(_) => {}
            },
            Contact::Silent(card) => return Err(silent(id, &card, GREETING)),
            Contact::Refused(_) | Contact::Absent => {}
        }
        std::thread::sleep(PAUSE);
    }
}

/// How a sandbox stands. Its keeper is asked, and has `deadline` to answer.
pub fn standing(state: &State, kept: &Kept<Sandbox>, deadline: Duration) -> Standing {
    look(state, kept, deadline).standing
}

/// How a sandbox stands, and whether it is live.
#[derive(Clone, Debug)]
pub struct Look {
    pub standing: Standing,
    pub live: bool,
    /// Why it is lost, where it is.
    pub lost: Option<String>,
    /// What is known of a keeper that did not answer, where it did not.
    pub silent: Option<String>,
}

pub fn look(state: &State, kept: &Kept<Sandbox>, deadline: Duration) -> Look {
    let facts = Facts::of(state, kept);
    let reply = facts.is_held.then(|| survey(&[facts.subject()], None, deadline).pop()).flatten();
    facts.look(reply.unwrap_or(Reply::Absent), deadline)
}

/// The same for many: their keepers are asked beside each other.
pub fn look_all(all: &[Facts]) -> Vec<Look> {
    let subjects: Vec<_> = all.iter().filter(|facts| facts.is_held).map(Facts::subject).collect();
    let mut replies = survey(&subjects, None, LISTING).into_iter();
    let mut reply_of = |facts: &Facts| facts.is_held.then(|| replies.next()).flatten();
    all.iter().map(|facts| facts.look(reply_of(facts).unwrap_or(Reply::Absent), LISTING)).collect()
}

/// What is known of a sandbox without asking its keeper.
#[derive(Clone, Debug)]
pub struct Facts {
    state: PathBuf,
    id: String,
    lifecycle: Lifecycle,
    is_suspended: bool,
    /// Somebody holds the lock of its top layer.
    is_held: bool,
}

impl Facts {
    pub fn of(state: &State, kept: &Kept<Sandbox>) -> Facts {
        Facts {
            state: state.path.clone(),
            id: kept.id.clone(),
            lifecycle: kept.record.state,
            is_suspended: kept.record.suspended.is_some(),
            is_held: is_held(state, &kept.record),
        }
    }

    /// Whether somebody holds the lock of its top layer.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    fn subject(&self) -> survey::Subject {
        survey::Subject::new(&self.state, &self.id)
    }

    fn look(&self, reply: Reply, deadline: Duration) -> Look {
        let keeper = match reply {
            Reply::Answered(hello, _) => Some(hello),
            Reply::Silent(card) => {
                let silent = Some(silence(&self.id, &card, deadline));
                return Look { standing: Standing::Silent, live: true, lost: None, silent };
            }
            Reply::Absent | Reply::Refused(_) => None,
        };
        // One that stands for its files alone makes nothing of it live.
        let is_held = self.is_held && !keeper.as_ref().is_some_and(|hello| hello.rests);
        let keeper = keeper.filter(|hello| !hello.rests);
        let lost = if is_held { None } else { lost::reason(&self.state, &self.id) };
        let standing = match (self.lifecycle, is_held) {
            (Lifecycle::Active, false) if self.is_suspended => Standing::Hibernated,
            (Lifecycle::Active, false) if lost.is_some() => Standing::Lost,
            (Lifecycle::Active, false) => Standing::Active,
            (Lifecycle::Active, true) => match &keeper {
                Some(hello) if hello.frozen => Standing::Frozen,
                Some(hello) if hello.running == 0 => Standing::Active,
                _ => Standing::Running,
            },
            (Lifecycle::Stopped, false) => Standing::Stopped,
            (Lifecycle::Stopped, true) => Standing::Stopping,
        };
        Look { standing, live: keeper.is_some(), lost, silent: None }
    }
}
