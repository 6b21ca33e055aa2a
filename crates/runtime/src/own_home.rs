//! The place of a sandbox's own home: where the caller's home is, and whether a sandbox can have one of its own there.

use policy::{Perm, Resolved};
use state::Caller;
use std::io;
use std::path::{Path, PathBuf};

/// Gives a sandbox its own home, unless the workspace shows the host's: such a one holds the home, and can be read.
pub fn with_own_home(resolved: Resolved, caller: &Caller, workspace: &Path) -> Resolved {
    let Some(home) = place(caller) else { return resolved };
    let readable = || [Perm::ReadDir, Perm::ReadFile].into_iter().all(|perm| resolved.fs(workspace, perm).allowed());
    if home.starts_with(workspace) && readable() {
        return resolved;
    }
    resolved.with_own_home(&home)
}

/// Directories of the system, at or below which no home is laid.
const NO_HOME: [&str; 10] = ["/proc", "/dev", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/run"];

/// Returns the real path of the caller's home, where a sandbox can have one of its own.
fn place(caller: &Caller) -> Option<PathBuf> {
    let real = match std::fs::canonicalize(&caller.home) {
        Ok(real) if real.is_dir() => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound && caller.home.is_absolute() => caller.home.clone(),
        _ => return None,
    };
    let plain = real.components().all(|part| part.as_os_str() != "..");
    let holds_private = policy::PRIVATE.iter().any(|place| Path::new(place).starts_with(&real));
    let is_system = NO_HOME.iter().any(|dir| real.starts_with(dir));
    (plain && !holds_private && !is_system).then_some(real)
}
