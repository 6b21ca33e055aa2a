//! Questions to a person: their types, the table that holds those of one guest (`table`), and the prompt at a terminal (`person`). The
//! operation blocks in the guest's network or its supervisor until the answer comes.

mod person;
mod table;

pub use self::person::Person;
pub(crate) use self::person::Prompter;
pub use self::table::Questions;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// Default timeout of a question.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const LEAST_PATIENCE: Duration = Duration::from_secs(1);
/// Longest timeout: clients give up sooner than this in any case.
pub const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// Parses the time that an answer is waited for, which a request gives in milliseconds.
pub fn patience(field: &str, ms: u64) -> Result<Duration, Fault> {
    let patience = Duration::from_millis(ms);
    if (LEAST_PATIENCE..=MOST_PATIENCE).contains(&patience) {
        return Ok(patience);
    }
    let (least, most) = (LEAST_PATIENCE.as_millis(), MOST_PATIENCE.as_millis());
    let fault = Fault::invalid(format!("{field} {ms}: must be between {least} and {most}"));
    Err(fault.hint("give milliseconds, from one second to ten minutes").phase(Phase::Admission))
}

pub(crate) fn not_open(number: u64) -> Fault {
    let message = format!("question {number} is not open: it was answered, given up, or never asked");
    Fault::new(ErrorKind::NotFound, message).phase(Phase::Execution)
}
