//! Our standard output. A reader that left early is no error of ours; what is lost for another reason, on a full disk say, is told when
//! the verb is over, by its exit status, too. A document that was cut off must not pass for a whole one.

use crate::render;
use std::io::{self, ErrorKind, StdoutLock, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use terms::{Fault, Outcome, Phase};

/// Why something of it was lost first.
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

/// Remembers a loss that nobody chose.
pub fn noted<T>(done: io::Result<T>) -> io::Result<T> {
    if let Err(e) = &done
        && !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted)
    {
        LOST.get_or_init(|| e.to_string());
    }
    done
}

/// The exit status of a verb, unless something of what it said was lost.
pub fn settle(code: ExitCode) -> ExitCode {
    // What waits for the end of a line would be written when nobody looks any more.
    let _ = lock().flush();
    match LOST.get() {
        Some(why) => render::fault(&lost(&format!("standard output: {why}")), false),
        None => code,
    }
}

/// The same for what a command said.
pub fn arrived(outcome: &Outcome) -> Result<(), Fault> {
    outcome.output_lost.as_ref().map_or(Ok(()), |why| Err(lost(why)))
}

fn lost(why: &str) -> Fault {
    Fault::internal(format!("output of this command was lost: {why}")).phase(Phase::Delivery)
}
