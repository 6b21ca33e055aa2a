//! Code in warm interpreters: requests, the events of a call, its outcome, and contexts.

use crate::PathText;
use base64::Engine;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use terms::{Denial, ErrorKind, Limit, LimitKind, Limits, OutputEncoding, Phase, Verdict};
use utoipa::ToSchema;

/// Language of an interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    Python,
    Javascript,
    Bash,
}

impl Language {
    pub const ALL: [Language; 3] = [Language::Python, Language::Javascript, Language::Bash];

    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Javascript => "javascript",
            Language::Bash => "bash",
        }
    }

    /// Returns the language of this name, or of a short form of it.
    pub fn parse(text: &str) -> Option<Language> {
        match text {
            "python" | "python3" | "py" => Some(Language::Python),
            "javascript" | "js" | "node" => Some(Language::Javascript),
            "bash" | "sh" | "shell" => Some(Language::Bash),
            _ => None,
        }
    }
}

/// Code to run in a context of a sandbox. The context is made where it does not exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodeRequest {
    /// Source text, at most 8 MiB.
    pub code: String,
    /// Name of the context, which keeps its globals between calls. Without one, the context is called like the language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Language of a context that is made; it must be that of one that exists. Without it a context that is made has Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Working directory of a context that is made, relative to the sandbox's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<PathText>,
    /// Absolute path of the caller's directory: without `workdir` a context that is made starts there, if it is in the sandbox's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathText>,
    /// Variables to set in a context that is made.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Limits of this call: `max_wall_ms`, `max_output_bytes`. The sandbox's hold as well.
    pub limits: Limits,
    /// Time to wait for another call in the same context [default: 30000]; 0 refuses at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 600_000)]
    pub queue_ms: Option<u64>,
}

/// A context to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContextCreate {
    /// Unique in its sandbox; without one, the context is called like the language.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub language: Language,
    /// Working directory, relative to the sandbox's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<PathText>,
    /// Absolute path of the caller's directory: the context starts there without `workdir`, if it is in the sandbox's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathText>,
    /// Variables to set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// An interpreter that keeps its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextStatus {
    pub name: String,
    pub sandbox: String,
    pub language: Language,
    /// The run that the interpreter is; `logs` of it shows what it wrote outside of calls.
    pub run: String,
    pub state: ContextState,
    /// Working directory that it began in.
    pub cwd: String,
    pub created_ms: u64,
    /// Time of the last call's begin or end.
    pub used_ms: u64,
    /// Calls so far.
    pub calls: u64,
    /// Times that it was started anew: its globals were lost each time.
    pub restarts: u64,
    /// Figures of its rings; absent for Bash, which has pipes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rings: Option<RingFigures>,
}

/// State of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ContextState {
    Idle,
    /// A call is under way.
    Busy,
    /// The interpreter ended; the next call starts it anew, without the old globals.
    Ended,
}

/// Figures of the two rings of a worker, as the worker's side of the memory tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingFigures {
    /// Size of each ring.
    pub capacity_bytes: u64,
    pub to_worker: RingFigure,
    pub from_worker: RingFigure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RingFigure {
    /// Bytes that are written and not yet read.
    pub queued_bytes: u64,
    /// Bytes ever written.
    pub bytes: u64,
    /// Frames ever written.
    pub frames: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ContextList {
    pub contexts: Vec<ContextStatus>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ContextRemoved {
    pub sandbox: String,
    pub name: String,
    /// A call was under way and was ended.
    pub was_busy: bool,
}

/// How to interrupt the call that is under way in a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContextInterrupt {
    /// Time that the interpreter has before it is started anew [default: 100].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 60_000)]
    pub grace_ms: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ContextInterrupted {
    pub sandbox: String,
    pub name: String,
    /// False if no call was under way.
    pub interrupted: bool,
    /// The interpreter did not answer and was started anew: its globals are lost.
    pub context_lost: bool,
}

/// Code to be judged: is it a whole input, or do lines follow?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeCheck {
    pub code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeChecked {
    pub status: Completeness,
    /// Indentation of the next line, where lines follow.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub indent: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Completeness {
    Complete,
    Incomplete,
    Invalid,
}

/// An event of a call, in the order in which the code caused it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum CodeEvent {
    /// The context is ready and the code was sent.
    Started(CodeStarted),
    Stdout(CodeText),
    Stderr(CodeText),
    /// A rich value that the code showed.
    Display(MimeBundle),
    /// The value of the last expression.
    Result(MimeBundle),
    Error(CodeError),
    /// The last event of a call.
    End(CodeOutcome),
}

impl CodeEvent {
    /// Returns the name of the event in a stream.
    pub fn name(&self) -> &'static str {
        match self {
            CodeEvent::Started(_) => "started",
            CodeEvent::Stdout(_) => "stdout",
            CodeEvent::Stderr(_) => "stderr",
            CodeEvent::Display(_) => "display",
            CodeEvent::Result(_) => "result",
            CodeEvent::Error(_) => "error",
            CodeEvent::End(_) => "end",
        }
    }

    /// Returns the data of the event in a stream: its JSON without the name.
    pub fn data(&self) -> serde_json::Result<String> {
        match self {
            CodeEvent::Started(content) => serde_json::to_string(content),
            CodeEvent::Stdout(content) | CodeEvent::Stderr(content) => serde_json::to_string(content),
            CodeEvent::Display(content) | CodeEvent::Result(content) => serde_json::to_string(content),
            CodeEvent::Error(content) => serde_json::to_string(content),
            CodeEvent::End(content) => serde_json::to_string(content),
        }
    }

    /// Reads an event of a stream; none if it has another name.
    pub fn read(name: &str, data: &str) -> serde_json::Result<Option<CodeEvent>> {
        Ok(Some(match name {
            "started" => CodeEvent::Started(serde_json::from_str(data)?),
            "stdout" => CodeEvent::Stdout(serde_json::from_str(data)?),
            "stderr" => CodeEvent::Stderr(serde_json::from_str(data)?),
            "display" => CodeEvent::Display(serde_json::from_str(data)?),
            "result" => CodeEvent::Result(serde_json::from_str(data)?),
            "error" => CodeEvent::Error(serde_json::from_str(data)?),
            "end" => CodeEvent::End(serde_json::from_str(data)?),
            _ => return Ok(None),
        }))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeStarted {
    pub sandbox: String,
    pub context: String,
    pub language: Language,
    /// The context was made for this call.
    pub created: bool,
}

/// Output. Bytes that are not UTF-8 come as base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeText {
    pub text: String,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub base64: bool,
}

impl CodeText {
    /// Encodes output: text as it is, other bytes as base64.
    pub fn of(bytes: Vec<u8>) -> CodeText {
        match String::from_utf8(bytes) {
            Ok(text) => CodeText { text, base64: false },
            Err(error) => CodeText { text: BASE64.encode(error.as_bytes()), base64: true },
        }
    }

    /// Returns the bytes; those of text that is no base64, although it says so, are the text itself.
    pub fn into_bytes(self) -> Vec<u8> {
        let decoded = self.base64.then(|| BASE64.decode(&self.text).ok()).flatten();
        decoded.unwrap_or_else(|| self.text.into_bytes())
    }
}

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

/// A value in several representations, by MIME type. Images are base64, `application/json` holds a JSON value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MimeBundle {
    #[schema(value_type = BTreeMap<String, Object>)]
    pub data: BTreeMap<String, serde_json::Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    #[schema(value_type = BTreeMap<String, Object>)]
    pub metadata: BTreeMap<String, serde_json::Value>,
}

/// An exception that the code did not catch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeOutcome {
    pub protocol_version: u32,
    pub success: bool,
    /// `ok`; `failed` on an exception; `cancelled` when it was interrupted; `limit_exceeded`; `lost` when the interpreter ended.
    pub verdict: Verdict,
    /// The interpreter was started anew or is gone: its globals are lost.
    pub context_lost: bool,
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
    /// Number of the call in its context, from 1.
    pub execution_count: u64,
    pub usage: CodeUsage,
    /// Operations that the policy refused during the call.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub denials: Vec<Denial>,
}

impl CodeOutcome {
    /// Returns the status that the command line exits with.
    pub fn status(&self) -> u8 {
        match (self.verdict, self.limit_kind) {
            (Verdict::Ok, _) => 0,
            (Verdict::LimitExceeded, Some(LimitKind::WallMs)) => 124,
            (Verdict::LimitExceeded, _) => 137,
            (Verdict::Cancelled, _) => 130,
            (Verdict::Lost, _) => 125,
            (Verdict::Failed | Verdict::Denied, _) => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeUsage {
    pub wall_ms: u64,
    /// Bytes of output and results.
    pub output_bytes: u64,
}

/// A whole call in one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeAnswer {
    pub sandbox: String,
    pub context: String,
    pub language: Language,
    /// Standard output, encoded as in `stdout_encoding`.
    pub stdout: String,
    pub stdout_encoding: OutputEncoding,
    /// Standard error, encoded as in `stderr_encoding`.
    pub stderr: String,
    pub stderr_encoding: OutputEncoding,
    /// What the code showed, in order; the value of the last expression is the last one, with `is_result`.
    pub results: Vec<CodeResult>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<CodeError>,
    pub outcome: CodeOutcome,
}

impl CodeAnswer {
    /// Bound on the output of a call that is gathered to one document. As a stream it has none.
    pub const MAX_OUTPUT_BYTES: u64 = 64 << 20;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CodeResult {
    /// The value of the last expression.
    pub is_result: bool,
    #[serde(flatten)]
    pub bundle: MimeBundle,
}

/// Events of a call, gathered to one document.
#[derive(Debug)]
pub struct CodeGathered {
    started: CodeStarted,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    results: Vec<CodeResult>,
    error: Option<CodeError>,
}

impl CodeGathered {
    pub fn new(started: CodeStarted) -> CodeGathered {
        CodeGathered { started, stdout: Vec::new(), stderr: Vec::new(), results: Vec::new(), error: None }
    }

    /// Adds an event; the last one gives the document.
    pub fn add(&mut self, event: CodeEvent) -> Option<CodeAnswer> {
        match event {
            CodeEvent::Started(started) => self.started = started,
            CodeEvent::Stdout(text) => self.stdout.extend(text.into_bytes()),
            CodeEvent::Stderr(text) => self.stderr.extend(text.into_bytes()),
            CodeEvent::Display(bundle) => self.results.push(CodeResult { is_result: false, bundle }),
            CodeEvent::Result(bundle) => self.results.push(CodeResult { is_result: true, bundle }),
            CodeEvent::Error(error) => self.error = Some(error),
            CodeEvent::End(outcome) => return Some(self.end(outcome)),
        }
        None
    }

    fn end(&mut self, outcome: CodeOutcome) -> CodeAnswer {
        let (stdout, stdout_encoding) = OutputEncoding::of(std::mem::take(&mut self.stdout));
        let (stderr, stderr_encoding) = OutputEncoding::of(std::mem::take(&mut self.stderr));
        let CodeStarted { sandbox, context, language, .. } = self.started.clone();
        let (results, error) = (std::mem::take(&mut self.results), self.error.take());
        CodeAnswer {
            sandbox,
            context,
            language,
            stdout,
            stdout_encoding,
            stderr,
            stderr_encoding,
            results,
            error,
            outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bundle(text: &str) -> MimeBundle {
        MimeBundle { data: BTreeMap::from([("text/plain".into(), json!(text))]), ..MimeBundle::default() }
    }

    fn outcome() -> CodeOutcome {
        serde_json::from_value(json!({"protocol_version": 1, "success": true, "verdict": "ok", "context_lost": false,
            "execution_count": 3, "usage": {"wall_ms": 1, "output_bytes": 2}}))
        .unwrap()
    }

    fn call() -> Vec<CodeEvent> {
        let started = CodeStarted {
            sandbox: "sbx_1".into(),
            context: "python".into(),
            language: Language::Python,
            created: true,
        };
        let text = |text: &str| CodeText { text: text.into(), base64: false };
        vec![
            CodeEvent::Started(started),
            CodeEvent::Stdout(text("a\n")),
            CodeEvent::Stdout(CodeText { text: "//4=".into(), base64: true }),
            CodeEvent::Stderr(text("grün")),
            CodeEvent::Display(bundle("shown")),
            CodeEvent::Result(bundle("7")),
            CodeEvent::Error(CodeError { name: "E".into(), value: "v".into(), traceback: "t".into() }),
            CodeEvent::End(outcome()),
        ]
    }

    #[test]
    fn events_are_the_same_behind_a_stream() {
        for event in call() {
            let read = CodeEvent::read(event.name(), &event.data().unwrap()).unwrap();
            assert_eq!(read, Some(event.clone()));
            let tagged = serde_json::to_value(&event).unwrap();
            assert_eq!(tagged["type"], event.name(), "the tag is the name");
        }
        assert_eq!(CodeEvent::read("from_a_later_version", "{}").unwrap(), None);
        assert!(CodeEvent::read("end", "{}").is_err());
    }

    #[test]
    fn a_call_is_gathered() {
        let mut gathered = CodeGathered::new(CodeStarted {
            sandbox: String::new(),
            context: String::new(),
            language: Language::Bash,
            created: false,
        });
        let mut answers: Vec<CodeAnswer> = call().into_iter().filter_map(|event| gathered.add(event)).collect();
        let answer = answers.pop().unwrap();
        assert!(answers.is_empty() && answer.language == Language::Python && answer.context == "python");
        assert_eq!((answer.stdout.as_str(), answer.stdout_encoding), ("YQr//g==", OutputEncoding::Base64));
        assert_eq!((answer.stderr.as_str(), answer.stderr_encoding), ("grün", OutputEncoding::Utf8));
        let kinds: Vec<bool> = answer.results.iter().map(|result| result.is_result).collect();
        assert_eq!((kinds, answer.error.unwrap().name.as_str()), (vec![false, true], "E"));
        assert_eq!(answer.outcome.status(), 0);
    }
}
