//! From a sandbox to its files: its keeper, which is started where none lives, hands out a handle on the workspace and stays as long
//! as somebody works with it. When the keeper goes, so does the right to go on.

use runtime::Node;
use runtime::denied::Denied;
use runtime::keeper::wire::Rooted;
use runtime::keeper::{Keeper, Keepers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use state::State;
use state::sandbox::{self, Lifecycle, Sandbox};
use state::{Caller, total};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Kept, Step, Store};
use terms::{ErrorKind, Fault, Phase};
use workspace::disk_usage;
use workspace::files::{ChangeRules, Lease};
pub use workspace::files::{Entry, FileKind, Interest, Rel, Room, Root, Target, own_ids};
pub use workspace::files::{change, copy, list, read, search, tar, watch, write};

/// That a sandbox is used is written down no more often than this.
const NOTED_EVERY_MS: u64 = 60_000;
/// How often a keeper may be met that is about to leave.
const LEAVING: u32 = 3;

/// What the files are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Reading,
    /// How much may still be written is found out first, and what may not be changed.
    Writing,
}

/// The right to work with files, as long as the keeper lives. Given back when dropped.
#[derive(Debug)]
struct KeeperLease {
    keeper: Mutex<Option<Keeper>>,
    keepers: Keepers,
    sandbox: String,
    /// The sandbox is stopped: nobody but us wants its keeper.
    stopped: bool,
}

impl Lease for KeeperLease {
    /// A keeper that was told to end, or died, takes the workspace with it: what we hold would be a view of the past.
    fn check(&self) -> Result<(), Fault> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = keeper.as_ref().is_none_or(|keeper| {
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(keeper.as_fd(), PollFlags::IN)];
            // It has been asked for nothing: whatever it has to say is its end.
            poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
        });
        if !gone {
            return Ok(());
        }
        let message = format!("{} was stopped or fell while its files were used", self.sandbox);
        let fault = Fault::new(ErrorKind::Conflict, message).subject(&self.sandbox).phase(Phase::Execution);
        Err(fault.hint("`cofferdam inspect` says how it stands; then try again"))
    }

    fn sandbox(&self) -> &str {
        &self.sandbox
    }
}

impl Drop for KeeperLease {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(keeper), true) = (keeper, self.stopped) {
            // Somebody else who works with them ends it.
            let _ = keeper.end_if_idle(&self.keepers);
        }
    }
}

/// The files of a sandbox, by id, name or beginning of an id. One that is not live stands for them alone: nothing is started in it, and
/// it is not woken.
pub fn open(node: &Node, caller: &Caller, word: &str, purpose: Purpose) -> Result<Root, Fault> {
    let opened = open_how(node, word, purpose, How::Started, caller)?;
    opened.ok_or_else(|| Fault::internal("files of a sandbox that stands, and does not"))
}

/// The same where it stands already; none where a process would have to be started for it.
pub fn open_standing(node: &Node, caller: &Caller, word: &str, purpose: Purpose) -> Result<Option<Root>, Fault> {
    open_how(node, word, purpose, How::Found, caller)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Found,
    Started,
}

fn open_how(node: &Node, word: &str, purpose: Purpose, how: How, caller: &Caller) -> Result<Option<Root>, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let room = match purpose {
        Purpose::Reading => Room::default(),
        Purpose::Writing => room(&state, &found.record, caller)?,
    };
    let (path, id, stopped) = (state.path.clone(), found.id.clone(), found.record.state == Lifecycle::Stopped);
    let denied = match purpose {
        Purpose::Reading => None,
        Purpose::Writing => Denied::of(&found, caller)?.map(|denied| Arc::new(denied) as Arc<dyn ChangeRules>),
    };
    touch(&state.store, found)?;
    drop(state);
    let Some((keeper, rooted, handle)) = rooted(node, &path, &id, how, caller)? else { return Ok(None) };
    let place = rooted.at.text().map(PathBuf::from).ok_or_else(|| Fault::internal("a place that is no path"))?;
    let (keeper, keepers) = (Mutex::new(Some(keeper)), node.keepers.clone());
    let lease = KeeperLease { keeper, keepers, sandbox: id, stopped };
    let root = Root::new(handle, (rooted.uid, rooted.gid), place).with_room(room);
    Ok(Some(root.with_rules(denied).with_lease(Arc::new(lease))))
}

/// A keeper, and a handle on the files that it stands for. One that stood for files alone may leave between being found and being
/// asked: then there is none, or another is started.
fn rooted(
    node: &Node,
    path: &Path,
    id: &str,
    how: How,
    caller: &Caller,
) -> Result<Option<(Keeper, Rooted, OwnedFd)>, Fault> {
    let mut tries = 0;
    loop {
        let keeper = match how {
            How::Found => Keeper::heard(node, path, id)?,
            How::Started => Some(Keeper::ensure_for_files(node, caller, path, id)?),
        };
        let Some(mut keeper) = keeper else { return Ok(None) };
        match keeper.root() {
            Ok((rooted, handle)) => return Ok(Some((keeper, rooted, handle))),
            Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
            Err(_) if how == How::Found => return Ok(None),
            Err(fault) if tries == LEAVING => return Err(fault),
            Err(_) => tries += 1,
        }
    }
}

/// Whoever reads and writes files in it uses it: it is not collected for lying idle.
fn touch(store: &Store, found: Kept<Sandbox>) -> Result<(), Fault> {
    let now = terms::clock::now_ms();
    if found.record.used_ms + NOTED_EVERY_MS > now {
        return Ok(());
    }
    store.write(|tx| {
        if let Some(mut kept) = tx.get::<Sandbox>(&found.id)? {
            kept.record.used_ms = now;
            tx.change(kept)?;
        }
        Ok(())
    })
}

/// What the sandbox's limits and the file system leave.
fn room(state: &State, sandbox: &Sandbox, caller: &Caller) -> Result<Room, Fault> {
    state::directory::check_space(&state.dir, &state.path)?;
    let (bytes, files) = total::left(&state.layers, &state.path, caller)?;
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let mut room = Room { bytes: least(state::directory::space_left(&state.dir), bytes), files };
    let (disk, files) = (sandbox.limits.max_disk_mb, sandbox.limits.max_files);
    if disk.is_none() && files.is_none() {
        return Ok(room);
    }
    let used = sandbox.layers.last().map(|id| disk_usage::layer(&state.layers, id)).unwrap_or_default();
    if let Some(most) = disk.map(|mb| (mb * 1_048_576.0) as u64) {
        room.bytes = least(room.bytes, Some(most.saturating_sub(used.bytes)));
    }
    room.files = least(room.files, files.map(|most| most.saturating_sub(used.files)));
    Ok(room)
}

/// Writes down who changed files of a sandbox from outside.
pub fn note(node: &Node, caller: &Caller, sandbox: &str, verb: &str, body: Value) -> Result<(), Fault> {
    let (state, step) = (node.states.lend(caller)?, Step::Done);
    state.store.write(|tx| state::journal::note(tx, verb, step, sandbox, caller, body).map(drop))
}
