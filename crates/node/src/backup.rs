//! Backup and restore of the records and the journal. A backup may run beside other verbs; a restore needs the store to be
//! unused.

use api::JournalStep;
use runtime::Node;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::Serialize;
use serde_json::json;
use state::Caller;
use state::journal::note;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use store::{BackupContent, Restored};
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Debug, Serialize)]
pub struct BackupWritten {
    pub file: PathBuf,
    #[serde(flatten)]
    pub copied: BackupContent,
    /// Tenants with stores of their own, which the copy does not contain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<String>,
}

/// Copies the store to a new file.
pub fn make(node: &Node, caller: &Caller, file: &Path) -> Result<BackupWritten, Fault> {
    let (file, state) = (caller.cwd.join(file), node.states.open(caller)?);
    let copied = state.store.backup(&file)?;
    Ok(BackupWritten { file, copied, tenants: tenants(&state.path) })
}

/// Lists the tenants that have a state of their own.
pub fn tenants(state: &Path) -> Vec<String> {
    const MOST: usize = 10_000;
    let found = std::fs::read_dir(state.join("tenants")).into_iter().flatten().flatten();
    let mut names: Vec<String> = found.filter_map(|e| e.file_name().into_string().ok()).take(MOST).collect();
    names.sort();
    names
}

/// Returns the same caller, bound to the state of a tenant.
pub fn within(tenant: &str, caller: &Caller) -> Result<Caller, Fault> {
    let state = state::directory::place(caller)?;
    if !tenants(&state).iter().any(|name| name == tenant) {
        let fault = Fault::new(ErrorKind::NotFound, format!("there is no tenant {tenant:?}")).phase(Phase::Admission);
        return Err(fault.hint(format!("{} lists them", state.join("tenants").display())));
    }
    Ok(caller.clone().in_state(&state.join("tenants").join(tenant)))
}

/// Replaces the store by a copy. Refused while a process lives that has the store open or whose record would be lost.
pub fn restore(node: &Node, caller: &Caller, file: &Path) -> Result<Restored, Fault> {
    let file = caller.cwd.join(file);
    // The copy is checked before the store is touched.
    store::examine(&file)?;
    let (path, _) = state::directory::prepare(caller)?;
    let _held = exclude_users(node, &path, caller)?;
    let restored = store::restore(&path, &file, terms::clock::now_ms())?;
    let state = node.states.open(caller)?;
    let body = json!({"entries": restored.copied.entries, "entries_before": restored.entries_before});
    state.store.write(|tx| note(tx, "restore_backup", JournalStep::Done, "state", caller, body))?;
    Ok(restored)
}

/// Refuses if a daemon or a run uses the store, which would continue from the old records. Holds the locks of the daemons until
/// the result is dropped.
fn exclude_users(node: &Node, path: &Path, caller: &Caller) -> Result<Vec<OwnedFd>, Fault> {
    let busy = |who: String, hint: &str| {
        let fault = Fault::new(ErrorKind::Conflict, format!("{who} uses the store")).phase(Phase::Admission);
        Err(fault.hint(hint))
    };
    let mut held = Vec::new();
    for dir in daemons(path) {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let unusable = |e: rustix::io::Errno| state::directory::unusable(&dir, &e.to_string());
        let lock = rustix::fs::open(dir.join("daemon.lock"), flags, Mode::from_raw_mode(0o600)).map_err(unusable)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => held.push(lock),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return busy("the daemon".into(), "end it first: `systemctl stop cofferdam`, or SIGTERM");
            }
            Err(e) => return Err(unusable(e)),
        }
    }
    // A store that cannot be opened has no users, and is the usual reason for a restore.
    let Ok(state) = node.states.open(caller) else { return Ok(held) };
    for id in state.layer_names()? {
        if state.layers.get(&id).is_ok_and(|layer| state::lock::holds(&layer)) {
            return busy(format!("a run on layer {id}"), "end it first: `cofferdam ps`, `cofferdam stop`");
        }
    }
    Ok(held)
}

/// Lists the state directories whose daemon may have the store open: this one, and for a tenant's state the one that contains it.
fn daemons(path: &Path) -> Vec<PathBuf> {
    let tenants = path.parent().filter(|above| above.file_name().is_some_and(|name| name == "tenants"));
    let above = tenants.and_then(Path::parent).map(Path::to_path_buf);
    std::iter::once(path.to_path_buf()).chain(above).collect()
}
