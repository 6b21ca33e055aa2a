//! Detaches a keeper from the process that started it, and reports to that process whether the keeper is ready.

use super::wire;
use rustix::fs::{CWD, Mode, OFlags};
use std::io::Write;
use terms::Fault;

/// Detaches the keeper from its parent: closes every descriptor but the standard three, changes to `/` and leaves the terminal's session.
/// Must be called first.
pub fn stand_alone() {
    sys::process::close_from(3);
    // Done in the child: a spawn with another working directory would need a full fork.
    let _ = rustix::process::chdir(c"/"); // the root directory always exists
    // Cannot fail: a fresh child is not a process group leader. With a terminal it would only receive SIGHUP.
    let _ = rustix::process::setsid();
}

/// Writes to standard output that the keeper is ready, or the fault, and redirects standard output to `/dev/null`.
pub fn announce(result: &Result<(), Fault>) {
    let frame = match result {
        Ok(()) => wire::value(&()),
        Err(fault) => wire::refusal(fault),
    };
    let mut out = std::io::stdout();
    let _ = out.write_all(&frame.json).and_then(|()| out.flush()); // the parent may have gone
    if let Ok(nowhere) = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdout(&nowhere);
    }
}
