//! Questions that rules put to a person, and their answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An operation that waits for an answer because a rule says `ask`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Question {
    /// Number of the question, counted from 1 in each run or live sandbox.
    pub number: u64,
    /// `net.resolve`, `net.connect`, `net.request`, `fs.read`, `fs.write`, `fs.read_write`, `fs.create` or `exec`.
    pub op: String,
    /// `host:port`, a name, a method with a URL that has no query, `unix:` with a path, or a path.
    pub target: String,
    pub rule: String,
    /// Process that waits, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    pub asked_ms: u64,
    /// Time at which it is refused if no answer was given.
    pub deadline_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuestionDecision {
    Allow,
    Deny,
}

/// Duration for which an answer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remember {
    /// For what waits now; an answer about a name or about datagrams, for half a minute. A program that was let start stays so.
    #[default]
    Once,
    /// As long as the run, or the live sandbox.
    Run,
}

/// A question of a live sandbox; the id includes that of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenQuestion {
    /// `qst_…`
    pub id: String,
    pub sandbox: String,
    #[serde(flatten)]
    pub question: Question,
}

impl OpenQuestion {
    pub fn of(sandbox: &str, question: Question) -> OpenQuestion {
        let whose = sandbox.strip_prefix("sbx_").unwrap_or(sandbox);
        OpenQuestion { id: format!("qst_{whose}_{}", question.number), sandbox: sandbox.to_owned(), question }
    }
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuestionList {
    /// Open questions, the oldest first.
    pub questions: Vec<OpenQuestion>,
}

/// An answer to a question.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuestionAnswer {
    pub answer: QuestionDecision,
    #[serde(default)]
    pub remember: Remember,
}
