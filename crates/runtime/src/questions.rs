//! Questions to a person: their types, the table that holds those of one guest (`table`), and the prompt at a terminal (`person`). The
//! operation blocks in the guest's network or its supervisor until the answer comes.

mod person;
mod table;

pub use self::person::Person;
pub(crate) use self::person::Prompter;
pub use self::table::Questions;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;

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

/// Something that a rule says `ask` of, and that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// Counted from 1 by each run or live sandbox.
    pub number: u64,
    /// `net.resolve`, `net.connect`, `net.request`, `fs.read`, `fs.write`, `fs.read_write`, `fs.create` or `exec`.
    pub op: String,
    /// `host:port`, a name, a method with a URL that has no query, `unix:` with a path, or a path.
    pub target: String,
    pub rule: String,
    /// Who wants it, where that was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    pub asked_ms: u64,
    /// When it is refused because nobody answered.
    pub deadline_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Allow,
    Deny,
}

/// How long an answer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remember {
    /// For what waits now; an answer about a name or about datagrams, for half a minute. A program that was let start stays so.
    #[default]
    Once,
    /// As long as the run, or the live sandbox.
    Run,
}

pub(crate) fn not_open(number: u64) -> Fault {
    let message = format!("question {number} is not open: it was answered, given up, or never asked");
    Fault::new(ErrorKind::NotFound, message).phase(Phase::Execution)
}

/// A question of a live sandbox, under an id that says whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OpenQuestion)]
pub struct Open {
    /// `qst_…`
    pub id: String,
    pub sandbox: String,
    #[serde(flatten)]
    pub question: Question,
}

impl Open {
    pub fn of(sandbox: &str, question: Question) -> Open {
        let whose = sandbox.strip_prefix("sbx_").unwrap_or(sandbox);
        Open { id: format!("qst_{whose}_{}", question.number), sandbox: sandbox.to_owned(), question }
    }
}
