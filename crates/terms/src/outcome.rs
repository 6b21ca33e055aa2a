//! The outcome of a run. The same document on the command line and over HTTP.

use crate::{ErrorKind, Limit, LimitKind, PROTOCOL_VERSION, Phase};
use base64::Engine;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

/// Identifies one run; 128 random bits behind a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    pub fn from_random(bytes: [u8; 16]) -> RunId {
        RunId(crate::id("run", bytes))
    }

    /// Parses a run id.
    pub fn parse(text: &str) -> Option<RunId> {
        let hex = text.strip_prefix("run_").filter(|hex| hex.len() == 32)?;
        hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).then(|| RunId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Failed,
    Denied,
    LimitExceeded,
    Cancelled,
    Lost,
}

impl Verdict {
    /// The name used in documents and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "failed",
            Verdict::Denied => "denied",
            Verdict::LimitExceeded => "limit_exceeded",
            Verdict::Cancelled => "cancelled",
            Verdict::Lost => "lost",
        }
    }
}

/// Exit status of the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Exit {
    Code { code: i32 },
    Signal { signal: i32, name: String },
}

/// The action of a rule for an operation that matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Allow,
    Warn,
    Ask,
    Deny,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Warn => "warn",
            Action::Ask => "ask",
            Action::Deny => "deny",
        }
    }
}

/// An operation that a rule refused (or, with `warn`, permitted and reported), counted over the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Denial {
    pub op: String,
    pub target: String,
    pub rule: String,
    pub action: Action,
    pub count: u64,
    pub pid: i32,
    pub exe: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    /// A rule says that such refusals are expected; they are not shown at the end of a run and do not make it `denied`.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub quiet: bool,
}

impl Denial {
    /// Returns true if an operation was refused that no rule calls expected, as opposed to allowed with a warning.
    pub fn is_refusal(&self) -> bool {
        matches!(self.action, Action::Deny | Action::Ask) && !self.quiet
    }
}

/// The process behind an operation, by its pid inside, and the program that it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    pub pid: i32,
    pub exe: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    pub wall_ms: u64,
    pub cpu_ms: u64,
    pub memory_peak_bytes: u64,
    pub output_bytes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
    /// Absent if no mechanism counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_peak: Option<u64>,
}

/// Bytes of each stream that were dropped past the cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Truncated {
    pub stdout: u64,
    pub stderr: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changes {
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyStamp {
    pub digest: String,
    pub revision: u64,
    /// Settings of another tool's file that have no equivalent here, one line for each key.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnforcementLevel {
    Full,
    Partial,
}

/// Enforcement during the run. `partial` names every missing mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Enforcement {
    pub level: EnforcementLevel,
    pub missing: Vec<String>,
}

/// The limit that ended a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitHit {
    pub kind: LimitKind,
    pub phase: Phase,
    pub limit: Limit,
    pub used: Limit,
}

/// Encoding of a command's bytes in a text field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]

pub enum OutputEncoding {
    #[serde(rename = "utf-8")]
    Utf8,
    /// Base64 of the whole stream, with padding.
    #[serde(rename = "base64")]
    Base64,
}

impl OutputEncoding {
    /// Encodes bytes: text as it is, other bytes as base64.
    pub fn of(bytes: Vec<u8>) -> (String, OutputEncoding) {
        match String::from_utf8(bytes) {
            Ok(text) => (text, OutputEncoding::Utf8),
            Err(error) => (BASE64.encode(error.as_bytes()), OutputEncoding::Base64),
        }
    }

    /// Decodes the bytes. Documents of earlier versions name no encoding; they contain text.
    fn bytes(encoding: Option<OutputEncoding>, text: &str) -> Option<Vec<u8>> {
        match encoding {
            Some(OutputEncoding::Base64) => BASE64.decode(text).ok(),
            Some(OutputEncoding::Utf8) | None => Some(text.as_bytes().to_vec()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    pub protocol_version: u32,
    pub run_id: RunId,
    pub success: bool,
    pub verdict: Verdict,
    pub exit: Option<Exit>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_kind: Option<ErrorKind>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit_kind: Option<LimitKind>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub phase: Option<Phase>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    pub denials: Vec<Denial>,
    /// Number of distinct denials that did not fit the list; 0 unless a guest floods it.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub denials_dropped: u64,
    /// Advice on failures that no rule caused, such as a service that listens on the host and not inside.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Number of events that the requested journal lacks; 0 if it is complete.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub events_dropped: u64,
    /// The reason for missing events.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub events_reason: Option<String>,
    pub usage: Usage,
    /// Standard output, only if the caller requested it in the document, encoded as in `stdout_encoding`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stdout: Option<String>,
    /// Present if `stdout` is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stdout_encoding: Option<OutputEncoding>,
    /// Standard error, as with `stdout`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stderr: Option<String>,
    /// Present if `stderr` is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stderr_encoding: Option<OutputEncoding>,
    pub truncated: Truncated,
    /// The reason why output was not delivered to the caller's target, such as a full disk. A reader that closed early
    /// is no loss.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_lost: Option<String>,
    pub changes: Changes,
    /// The sandbox that holds the changes, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    pub policy: PolicyStamp,
    pub enforcement: Enforcement,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Outcome {
    pub fn new(run_id: RunId, policy: PolicyStamp, enforcement: Enforcement) -> Outcome {
        Outcome {
            protocol_version: PROTOCOL_VERSION,
            run_id,
            success: false,
            verdict: Verdict::Lost,
            exit: None,
            error_kind: None,
            limit_kind: None,
            phase: None,
            limit: None,
            used: None,
            message: None,
            denials: Vec::new(),
            denials_dropped: 0,
            notes: Vec::new(),
            events_dropped: 0,
            events_reason: None,
            usage: Usage::default(),
            stdout: None,
            stdout_encoding: None,
            stderr: None,
            stderr_encoding: None,
            truncated: Truncated::default(),
            output_lost: None,
            changes: Changes::default(),
            sandbox: None,
            policy,
            enforcement,
        }
    }

    /// Stores a command's output byte for byte: text as text, other bytes as base64.
    pub fn set_output(&mut self, stdout: Vec<u8>, stderr: Vec<u8>) {
        let (text, encoding) = OutputEncoding::of(stdout);
        (self.stdout, self.stdout_encoding) = (Some(text), Some(encoding));
        let (text, encoding) = OutputEncoding::of(stderr);
        (self.stderr, self.stderr_encoding) = (Some(text), Some(encoding));
    }

    /// Returns the bytes of standard output; `None` if the document has none or the encoding is invalid.
    pub fn stdout_bytes(&self) -> Option<Vec<u8>> {
        OutputEncoding::bytes(self.stdout_encoding, self.stdout.as_deref()?)
    }

    /// Returns the bytes of standard error, as `stdout_bytes`.
    pub fn stderr_bytes(&self) -> Option<Vec<u8>> {
        OutputEncoding::bytes(self.stderr_encoding, self.stderr.as_deref()?)
    }

    /// Returns the exit status of `cofferdam run`: the command's own, or the one reserved for our verdict.
    pub fn status(&self) -> u8 {
        match (&self.verdict, self.limit_kind, &self.exit) {
            (Verdict::LimitExceeded, Some(LimitKind::WallMs), _) => 124,
            (Verdict::LimitExceeded, _, _) => 137,
            (_, _, Some(Exit::Code { code })) => (*code & 0xff) as u8,
            (_, _, Some(Exit::Signal { signal, .. })) => (128 + signal).clamp(0, 255) as u8,
            (_, _, None) => 125,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_carried_to_the_byte() {
        let policy = PolicyStamp { digest: String::new(), revision: 1, left_out: Vec::new() };
        let enforcement = Enforcement { level: EnforcementLevel::Full, missing: Vec::new() };
        let mut outcome = Outcome::new(RunId::from_random([7; 16]), policy, enforcement);
        assert_eq!((outcome.stdout_bytes(), outcome.stderr_bytes()), (None, None));
        outcome.set_output("grün\n".into(), b"\xff\xfe\0".to_vec());
        assert_eq!((outcome.stdout.as_deref(), outcome.stdout_encoding), (Some("grün\n"), Some(OutputEncoding::Utf8)));
        assert_eq!((outcome.stderr.as_deref(), outcome.stderr_encoding), (Some("//4A"), Some(OutputEncoding::Base64)));
        assert_eq!(outcome.stdout_bytes().as_deref(), Some("grün\n".as_bytes()));
        assert_eq!(outcome.stderr_bytes().as_deref(), Some(&b"\xff\xfe\0"[..]));
        outcome.stderr = Some("no base64".into());
        assert_eq!(outcome.stderr_bytes(), None);
    }
}
