//! The first and the last word of a keeper to whoever started it.

use super::wire;
use rustix::fs::{CWD, Mode, OFlags};
use std::io::Write;
use terms::Fault;

/// Nothing of whoever started it stays with a keeper: no descriptor but the standard three, no directory, and no terminal. To be
/// called first.
pub fn stand_alone() {
    sys::process::close_from(3);
    // Done here and not by who starts it: a process that starts another elsewhere must be copied for that.
    let _there_is_always_a_root = rustix::process::chdir(c"/");
    // It is no leader of a group yet, so that this cannot fail; and with a terminal it would only hear its hangup.
    let _ = rustix::process::setsid();
}

/// Says on the standard output that it stands, or why not, and then nothing more ever.
pub fn announce(result: &Result<(), Fault>) {
    let frame = match result {
        Ok(()) => wire::value(&()),
        Err(fault) => wire::refusal(fault),
    };
    let mut out = std::io::stdout();
    let _nobody_waits = out.write_all(&frame.json).and_then(|()| out.flush());
    if let Ok(nowhere) = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdout(&nowhere);
    }
}
