//! Standard output of this process. A closed pipe is no error. Bytes that are lost for another reason, e.g. on a full
//! disk, are reported at the end of the verb, also by its exit status: a truncated document must not pass for a whole
//! one.

use crate::render;
use std::io::{self, ErrorKind, StdoutLock, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use terms::{Fault, Outcome, Phase};

/// Cause of the first loss.
static LOST: OnceLock<String> = OnceLock::new();

pub struct Stdout(StdoutLock<'static>);

pub fn lock() -> Stdout {
    Stdout(io::stdout().lock())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        noted(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(self.0.flush())
    }
}

/// Records a write error other than a closed pipe.
pub fn noted<T>(done: io::Result<T>) -> io::Result<T> {
    if let Err(e) = &done
        && !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted)
    {
        LOST.get_or_init(|| e.to_string());
    }
    done
}

/// Returns the exit status of a verb, or that of a fault if output was lost.
pub fn settle(code: ExitCode) -> ExitCode {
    // The buffer would be flushed at exit, after errors were last checked.
    let _ = lock().flush();
    match LOST.get() {
        Some(why) => render::fault(&lost(&format!("standard output: {why}")), false),
        None => code,
    }
}

/// Returns a fault if output of a command was lost.
pub fn arrived(outcome: &Outcome) -> Result<(), Fault> {
    outcome.output_lost.as_ref().map_or(Ok(()), |why| Err(lost(why)))
}

fn lost(why: &str) -> Fault {
    Fault::internal(format!("output of this command was lost: {why}")).phase(Phase::Delivery)
}
