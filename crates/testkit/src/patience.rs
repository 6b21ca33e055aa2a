//! Timeouts of tests: a test that waits for an event that never comes fails, by its name, instead of blocking all
//! others.

use super::times;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Bound of every wait for an event. It is not a measure: it only ends a wait for an event that never comes, so it is
/// far longer than any operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Bound on a test; longer than any test that is not stuck.
fn longest() -> Duration {
    Duration::from_secs(times(900, 7200))
}

/// Watchdog of a place: kills the processes of a place that exists too long, so that a test that waits for one of them
/// fails.
pub struct Watch {
    _over: mpsc::Sender<()>,
}

impl Watch {
    pub fn over(root: &Path) -> Watch {
        let (over, is_over) = mpsc::channel();
        let (root, longest) = (root.to_path_buf(), longest());
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        std::thread::spawn(move || {
            if is_over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{test}: not over after {longest:?}; what it started is killed");
                processes(&root).for_each(|pid| drop(Command::new("kill").args(["-KILL", &pid]).status()));
            }
        });
        Watch { _over: over }
    }
}

/// Returns processes with the place in their environment or arguments.
fn processes(root: &Path) -> impl Iterator<Item = String> {
    let (root, own) = (root.as_os_str().as_encoded_bytes().to_vec(), std::process::id().to_string());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().into_string().ok());
    numbers.filter(move |pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != own).filter(move |pid| {
        let has = |file: &str| {
            let bytes = fs::read(PathBuf::from("/proc").join(pid).join(file)).unwrap_or_default();
            bytes.windows(root.len() + 1).any(|part| part.starts_with(&root) && b"/\0".contains(&part[root.len()]))
        };
        has("environ") || has("cmdline")
    })
}

/// A reader with a deadline, for streams that are kept alive forever.
pub struct Until<R>(pub R, pub Instant);

impl<R: Read> Read for Until<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match Instant::now() < self.1 {
            true => self.0.read(buffer),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Guard that sets a flag at every end of a test: threads of its scope stop then, and are waited for.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
