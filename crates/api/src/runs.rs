//! Runs: requests that start, explain or signal one, and the documents that show them.

use crate::{InputBytes, PathText, SandboxCreate, SecretValue};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use terms::{Limits, Outcome, OutputEncoding, Verdict};
use utoipa::ToSchema;

/// A run that was ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndedRun {
    pub run: String,
    pub pid: u32,
    /// True if it did not end on request and was killed.
    pub killed: bool,
}

/// A run that has not ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveRun {
    pub run: String,
    /// Sandbox of the run; absent while it is not known whether the run leaves changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    pub command: Vec<String>,
    pub started_ms: u64,
    /// The keeper that did not respond, if that of its sandbox is silent; it is then not known whether the run is still running.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PastRun {
    pub run: String,
    #[serde(flatten)]
    pub record: Run,
}

/// A command to run. The sandbox becomes live for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunCreate {
    /// The command and its arguments; with `shell`, the arguments after the shell's text.
    pub command: Vec<PathText>,
    /// Run this text with `sh -c`.
    pub shell: Option<PathText>,
    /// Variables to set.
    pub env: BTreeMap<String, PathText>,
    /// More variables, each `NAME=VALUE`; for names that are not UTF-8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<PathText>,
    /// Values of secrets with the source `brought:run`, by name. They are valid while the command runs and are not stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
    /// Working directory, relative to the sandbox's directory.
    pub workdir: Option<PathText>,
    /// Absolute path of the caller's directory: the command starts there without `workdir`, if it is in the sandbox's directory.
    pub cwd: Option<PathText>,
    /// Limits of this command alone: `max_wall_ms`, `max_output_bytes`, `on_output_limit`.
    pub limits: Limits,
    /// True if the client will write to its input; else the input is `stdin` and ends there.
    pub input: bool,
    /// Beginning of its input, at most 1 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<InputBytes>,
    /// A terminal of its own.
    pub terminal: Option<TerminalSize>,
    /// Also reports refused reads. This is a property of the sandbox: one that was created without it refuses the command.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// Timeout of the command's questions; it must equal that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 600_000)]
    pub ask_timeout_ms: Option<u64>,
}

/// A command to be run in a sandbox that is made for it, and removed when it has ended.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunOnce {
    /// The command and its arguments; with `shell`, the arguments after the shell's text.
    pub command: Vec<PathText>,
    /// Run this text with `sh -c`.
    pub shell: Option<PathText>,
    /// Input of the command, at most 1 MiB; else it is empty.
    pub stdin: Option<InputBytes>,
    /// Variables to set.
    pub env: BTreeMap<String, PathText>,
    /// Working directory, relative to the sandbox's directory.
    pub workdir: Option<PathText>,
    /// Limits of the command and its sandbox. `max_wall_ms` is at most ten minutes, which is also its default.
    pub limits: Limits,
    /// Values of secrets that the sandbox is made to be brought, by name. They hold as long as the command runs, and are kept nowhere.
    pub secrets: BTreeMap<String, SecretValue>,
    /// The sandbox to make.
    pub sandbox: SandboxCreate,
    /// Keep the sandbox with its changes; else it is removed with them.
    pub keep: bool,
}

impl RunOnce {
    /// Longest time for the command, in milliseconds: one request waits for all of it.
    pub const MAX_WALL_MS: u64 = 600_000;
}

/// How a command ended that was run in a sandbox of its own.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunOnceEnded {
    pub run: String,
    pub sandbox: String,
    /// The sandbox is still there.
    pub kept: bool,
    /// The status that the command line would exit with.
    pub status: u8,
    /// Outcome of the run with its output and the number of its changes.
    pub outcome: Outcome,
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    #[schema(minimum = 1)]
    pub rows: u16,
    #[schema(minimum = 1)]
    pub columns: u16,
}

/// A run, with its outcome once it has ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunStatus {
    pub run: String,
    pub sandbox: String,
    pub command: Vec<String>,
    pub running: bool,
    pub started_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<Verdict>,
    /// Exit status that the command line would have.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u8>,
    /// Name of the service, if the run is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// An earlier request under the same key started it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub existed: bool,
    /// Streams to attach to; for a single open run of a live sandbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<RunStreams>,
    /// Last part of its output so far, while it runs; for a single run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tail: Option<RunTail>,
    /// Outcome of the run with its output, once it has ended; for a single run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub outcome: Option<Outcome>,
}

/// Last part of a run's output, up to 64 KiB of both streams. What a terminal shows is in `stdout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunTail {
    pub stdout: String,
    pub stdout_encoding: OutputEncoding,
    pub stderr: String,
    pub stderr_encoding: OutputEncoding,
    /// True if there was output before it.
    pub cut: bool,
}

/// Streams of a live run, and the length of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunStreams {
    /// True if it reads input.
    pub input: bool,
    /// True if it has a terminal.
    pub terminal: bool,
    /// Offset of its next output.
    pub offset: u64,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunStatus>,
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunRemoved {
    pub run: String,
    /// True if it was open and was killed.
    pub killed: bool,
    /// True if stored output was deleted.
    pub forgotten: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSignal {
    /// Number of the signal: 15 requests the end, 2 interrupts.
    #[schema(minimum = 1, maximum = 64)]
    pub signal: i32,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunInputTaken {
    pub run: String,
    /// Number of bytes of the body that were accepted.
    pub bytes: u64,
    /// Number of bytes of this writer that were accepted so far.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub offset: Option<u64>,
    /// True once its input is closed.
    pub eof: bool,
}

/// The data of `stdout`, `stderr` and `terminal`.
#[derive(Serialize, ToSchema)]
pub struct RunOutput {
    /// Offset of the data in the run's output.
    pub offset: u64,
    pub at_ms: u64,
    /// `text` or `base64`.
    pub encoding: &'static str,
    pub data: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunExplained {
    /// The complete policy that the command would run under.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    pub notes: Vec<String>,
    /// Source of each secret.
    pub secrets: Vec<String>,
    /// The steps of the setup, in order. They name paths of the host, so they are absent for callers without access to it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub setup: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct LiveRunList {
    pub runs: Vec<LiveRun>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct RunSignalled {
    pub run: String,
    /// False if it had ended already.
    pub changed: bool,
}

/// A command, and the sandbox that it would run in: an existing one, or one that would be created for it.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunExplain {
    /// An existing sandbox. Nothing may run in it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    /// A sandbox that would be created for the command; instead of `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub create: Option<SandboxCreate>,
    pub run: RunCreate,
}

/// A command that was run in a sandbox; ids are `run_…`. While it lives, its supervisor holds the lock of the top layer.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Run {
    pub sandbox: String,
    pub command: Vec<String>,
    /// Process that supervises it, with its start time in ticks since boot and the id of that boot.
    pub pid: u32,
    pub pid_start: u64,
    pub boot: String,
    pub started_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_ms: Option<u64>,
    /// `verdict` and exit status, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u8>,
    /// Name of the service, if the run is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Digest of the request that started it under an idempotency key, to detect another request under the same key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request: Option<String>,
}
