//! Access to the files of a sandbox. Its keeper, which is started where none lives, hands out a handle on the workspace and stays
//! as long as the handle is in use. The right to use it ends with the keeper.

use api::{JournalStep, Lifecycle};
use runtime::Node;
use runtime::denied::Denied;
use runtime::keeper::wire::Rooted;
use runtime::keeper::{Keeper, Keepers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use state::State;
use state::directory;
use state::sandbox::{self, Sandbox};
use state::{Caller, total};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Kept, Store};
use terms::{ErrorKind, Fault, Phase};
use workspace::disk_usage;
use workspace::files::{ChangeRules, Lease};
pub use workspace::files::{Interest, Root, WriteAllowance, own_ids};
pub use workspace::files::{change, copy, list, read, search, tar, watch, write};

/// Least time between two updates of a sandbox's time of last use.
const NOTED_EVERY_MS: u64 = 60_000;
/// Attempts at keepers that are about to end.
const LEAVING: u32 = 3;

/// Purpose of the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    Reading,
    /// Measures the remaining space and the paths that may not be changed first.
    Writing,
}

/// A lease on the workspace, valid as long as the keeper lives. Returned on drop.
#[derive(Debug)]
struct KeeperLease {
    keeper: Mutex<Option<Keeper>>,
    keepers: Keepers,
    sandbox: String,
    /// The sandbox is stopped, so that its keeper serves only this lease.
    stopped: bool,
}

impl Lease for KeeperLease {
    /// Fails once the keeper has ended: the handle would show an outdated view of the workspace.
    fn check(&self) -> Result<(), Fault> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = keeper.as_ref().is_none_or(|keeper| {
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut fds = [PollFd::from_borrowed_fd(keeper.as_fd(), PollFlags::IN)];
            // No request is open, so anything readable is the end of the connection.
            poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
        });
        if !gone {
            return Ok(());
        }
        let message = format!("{} was stopped or crashed while its files were in use", self.sandbox);
        let fault = Fault::new(ErrorKind::Conflict, message).subject(&self.sandbox).phase(Phase::Execution);
        Err(fault.hint("`cofferdam inspect` shows its state; then try again"))
    }

    fn sandbox(&self) -> &str {
        &self.sandbox
    }
}

impl Drop for KeeperLease {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(keeper), true) = (keeper, self.stopped) {
            // Another lease on the same keeper ends it.
            let _ = keeper.end_if_idle(&self.keepers);
        }
    }
}

/// Opens the files of a sandbox, by id, name or beginning of an id. A sandbox that is not live gets a keeper for files alone: no
/// service is started in it, and it is not woken. An absolute path in the sandbox's own home or in its `/tmp` opens these instead of the
/// workspace.
pub fn open(node: &Node, caller: &Caller, word: &str, purpose: FileAccess, path: &[u8]) -> Result<Root, Fault> {
    let opened = open_with(node, (word, path), purpose, KeeperChoice::Started, caller)?;
    opened.ok_or_else(|| Fault::internal("opening the files with a new keeper returned none"))
}

/// Opens the files if a keeper lives already; returns none if a process would have to be started.
pub fn open_standing(
    node: &Node,
    caller: &Caller,
    word: &str,
    purpose: FileAccess,
    path: &[u8],
) -> Result<Option<Root>, Fault> {
    open_with(node, (word, path), purpose, KeeperChoice::Existing, caller)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeeperChoice {
    Existing,
    Started,
}

fn open_with(
    node: &Node,
    (word, asked): (&str, &[u8]),
    purpose: FileAccess,
    how: KeeperChoice,
    caller: &Caller,
) -> Result<Option<Root>, Fault> {
    let state = node.states.open(caller)?;
    let found = state.store.read(|tx| sandbox::find(tx, Some(word), caller))?;
    let room = match purpose {
        FileAccess::Reading => WriteAllowance::default(),
        FileAccess::Writing => room(&state, &found.record, caller)?,
    };
    let (path, id, stopped) = (state.path.clone(), found.id.clone(), found.record.state == Lifecycle::Stopped);
    let denied = match purpose {
        FileAccess::Reading => None,
        FileAccess::Writing => Denied::of(&found, caller)?,
    };
    let base = found.record.base.clone();
    touch(&state.store, found)?;
    drop(state);
    let asked = asked.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(asked)));
    let Some((keeper, rooted, handle)) = rooted(node, &path, (&id, asked), how, caller)? else { return Ok(None) };
    let place = rooted.at.text().map(PathBuf::from).ok_or_else(|| Fault::internal("a place that is no path"))?;
    let (keeper, keepers) = (Mutex::new(Some(keeper)), node.keepers.clone());
    let lease = KeeperLease { keeper, keepers, sandbox: id, stopped };
    let denied = denied.map(|denied| Arc::new(denied.below(&place)) as Arc<dyn ChangeRules>);
    let within_mount = place != directory::path_inside(&base);
    let root = Root::new(handle, (rooted.uid, rooted.gid), place).with_room(room).within_mount(within_mount);
    Ok(Some(root.with_rules(denied).with_lease(Arc::new(lease))))
}

/// Returns a keeper and its handle on the files. A keeper for files alone may end between the lookup and the request: then the
/// result is none, or another keeper is started.
fn rooted(
    node: &Node,
    path: &Path,
    (id, asked): (&str, Option<&Path>),
    how: KeeperChoice,
    caller: &Caller,
) -> Result<Option<(Keeper, Rooted, OwnedFd)>, Fault> {
    let mut tries = 0;
    loop {
        let keeper = match how {
            KeeperChoice::Existing => Keeper::heard(node, path, id)?,
            KeeperChoice::Started => Some(Keeper::ensure_for_files(node, caller, path, id)?),
        };
        let Some(mut keeper) = keeper else { return Ok(None) };
        let rooted = match asked {
            Some(asked) => keeper.root_of(asked),
            None => keeper.root(),
        };
        match rooted {
            Ok((rooted, handle)) => return Ok(Some((keeper, rooted, handle))),
            Err(fault) if fault.error_kind != ErrorKind::Unavailable => return Err(fault),
            Err(_) if how == KeeperChoice::Existing => return Ok(None),
            Err(fault) if tries == LEAVING => return Err(fault),
            Err(_) => tries += 1,
        }
    }
}

/// Records the use of the sandbox, so that it is not collected as idle.
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

/// Returns the space that the sandbox's limits and the file system leave.
fn room(state: &State, sandbox: &Sandbox, caller: &Caller) -> Result<WriteAllowance, Fault> {
    state::directory::check_space(&state.dir, &state.path)?;
    let (bytes, files) = total::left(&state.layers, &state.path, caller)?;
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let mut room = WriteAllowance { bytes: least(state::directory::space_left(&state.dir), bytes), files };
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

/// Writes to the journal which caller changed files of a sandbox.
pub fn note(node: &Node, caller: &Caller, sandbox: &str, verb: &str, body: Value) -> Result<(), Fault> {
    let (state, step) = (node.states.lend(caller)?, JournalStep::Done);
    state.store.write(|tx| state::journal::note(tx, verb, step, sandbox, caller, body).map(drop))
}
