//! The protocol between a keeper and its clients: requests, answers and notices. Framing is in `line`.
//!
//! ```text
//!  JSON of a request: {"ask": "start", …}; of an answer: {"value": …} or {"fault": …}
//! ```
//!
//! A connection makes one request at a time. After `follow` it only receives notices.

mod line;

use api::{CodeTraffic, Language, QuestionDecision, Remember};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use terms::{Denial, Fault, Limits, Outcome};

pub use crate::request::{Revision, Start, WireText, trace_of, words_of};
pub use line::{Frame, MOST, MOST_HANDLES, ReadResult, WireConnection};

/// Protocol version; raised when a keeper could no longer be understood by an older or newer side.
pub const PROTOCOL: u32 = 1;

/// A request to a keeper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum KeeperRequest {
    Hello,
    /// Answered by `Started` once the command runs.
    Start(Box<Start>),
    /// Writes the payload to the command's input; answered once it is taken, which gives back-pressure to fast writers.
    Input {
        run: String,
        /// End of file follows the payload.
        #[serde(default)]
        eof: bool,
        /// Position of the payload in its writer's own stream; then the answer is `AcceptedInput`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<InputWriter>,
    },
    Resize {
        run: String,
        rows: u16,
        columns: u16,
    },
    /// Sends a signal to the command's process group.
    Signal {
        run: String,
        signal: i32,
    },
    /// Kills the whole process tree, at once.
    Kill {
        run: String,
    },
    List,
    /// Answered by `Waited` when the run has ended or the timeout has passed.
    Wait {
        run: String,
        timeout_ms: u64,
    },
    /// Subscribes this connection to `Notice`s of these runs, or of all.
    Follow {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runs: Option<Vec<String>>,
    },
    /// Leaves files-only mode: the sandbox is resumed, and its services run.
    Rise,
    Freeze,
    Thaw,
    /// Returns `Rooted` and a handle on the workspace as the guest sees it, or on its private `/tmp`; with a path, on that of the
    /// workspace, the sandbox's own home and `/tmp` in which it is.
    Root {
        #[serde(default)]
        tmp: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<WireText>,
    },
    /// Returns a handle on a stream to a port inside.
    Connect {
        port: u16,
    },
    Usage,
    /// Lists the questions that wait for a person's answer.
    Questions,
    /// Answers a question, and returns it.
    Answer {
        number: u64,
        answer: QuestionDecision,
        #[serde(default)]
        remember: Remember,
    },
    /// Replaces the network rules and limits, for running and future commands.
    Revise(Box<Revision>),
    /// Replaces the published ports; returns whether they are open.
    Publish {
        ports: Vec<String>,
    },
    /// Hands a spare to the owner that its record names.
    Claim {
        /// Environment of the caller, for services.
        around: Vec<(WireText, WireText)>,
        actor: String,
    },
    /// Opens a context for one call, and makes it where it does not exist. Returns `ContextOpened` and the supervisor's ends of its
    /// worker's channel, once no other call is under way in it. The context is this connection's until `CloseContext`.
    OpenContext(Box<OpenContext>),
    /// Makes a context without a call.
    CreateContext(Box<OpenContext>),
    /// Ends the call of this connection.
    CloseContext {
        name: String,
        /// The end of the call was read, or none was made.
        finished: bool,
    },
    Contexts,
    /// Sends SIGINT to the worker of a context in which a call is under way.
    InterruptContext {
        name: String,
    },
    /// Returns the request id of the call that is under way in a context, as `ContextSignalled`.
    ContextCall {
        name: String,
    },
    /// Starts the worker of a context anew; only if this call is still under way in it, where one is given.
    RestartContext {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<u32>,
    },
    RemoveContext {
        name: String,
    },
    /// Disables the idle timeout: the keeper lives until it is told to end.
    Stay,
    /// Ends everything in order and then the keeper; answered by `EndedRuns` when nothing runs any more.
    End {
        grace_ms: u64,
        /// Refused where something runs.
        #[serde(default)]
        if_idle: bool,
    },
}

/// A context to open or to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenContext {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// `NAME=VALUE` sets a variable in a context that is made.
    #[serde(default)]
    pub env: Vec<WireText>,
    /// Environment of the caller, of which the policy passes some variables.
    #[serde(default)]
    pub around: Vec<(WireText, WireText)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<WireText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<WireText>,
    pub actor: String,
    /// Time to wait for another call.
    #[serde(default)]
    pub queue_ms: u64,
    /// Opens only a context in which a call goes on whose client is gone, to read the rest of it.
    #[serde(default, skip_serializing_if = "is_not")]
    pub resume: bool,
}

/// An open context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextOpened {
    pub name: String,
    pub language: Language,
    pub run: String,
    /// The context was made by this request.
    pub created: bool,
    /// Request id of the next call.
    pub request: u32,
    /// Calls before this one.
    pub calls: u64,
    /// Request id of a call whose client is gone, which may still go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<u32>,
    /// Limits of the sandbox, which hold for each call.
    #[serde(default)]
    pub limits: Limits,
}

/// A call as the keeper saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextClosed {
    /// Another client interrupted it.
    pub interrupted: bool,
    /// Operations that the policy refused during it.
    pub denials: Vec<Denial>,
}

/// The call that is under way in a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSignalled {
    /// Its request id; none where no call is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u32>,
}

/// A writer to an input, and the offset of a piece in its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputWriter {
    /// Unique name of the writer.
    pub writer: String,
    pub offset: u64,
}

/// Offset up to which a writer's stream was taken by the command's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedInput {
    pub offset: u64,
}

fn is_not(set: &bool) -> bool {
    !set
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub sandbox: String,
    pub pid: u32,
    pub since_ms: u64,
    /// Number of running commands.
    pub running: usize,
    pub frozen: bool,
    /// The idle timeout is disabled.
    pub stays: bool,
    /// Files-only mode: no client has asked for more.
    #[serde(default)]
    pub rests: bool,
    /// Input is counted by writer, so that a piece can be sent again. Absent in older versions.
    #[serde(default)]
    pub counts_input: bool,
    /// Commands with a watch mode that is not in force are refused. Older versions would start them all the same.
    #[serde(default)]
    pub heeds_watch: bool,
    /// A command can be started with its input. Older versions would start it without.
    #[serde(default)]
    pub takes_stdin: bool,
    /// Contexts can be opened. Older versions know none.
    #[serde(default)]
    pub has_contexts: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub run: String,
    /// Pid of the command inside.
    pub pid: i32,
    /// An earlier request with the same id started the run.
    #[serde(default)]
    pub existed: bool,
    /// Command as recorded, where this request started it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default)]
    pub started_ms: u64,
    /// `Waited` follows on this connection.
    #[serde(default, skip_serializing_if = "is_not")]
    pub waits: bool,
}

/// A run that this keeper started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    pub run: String,
    pub command: Vec<String>,
    pub pid: i32,
    pub started_ms: u64,
    pub terminal: bool,
    /// Input can be written.
    pub input: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Offset of the next record of its output.
    pub offset: u64,
    /// Set once the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// `None` when the timeout passed first.
    pub outcome: Option<Outcome>,
    pub offset: u64,
    /// Time of the end, as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The payload is the whole log, without the end record.
    #[serde(default, skip_serializing_if = "is_not")]
    pub whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub run: String,
    /// Offset of the end of its output so far.
    pub offset: u64,
    pub ended: bool,
}

/// Result of a freeze.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeResult {
    /// Mechanism: "cgroup" or "signals".
    pub with: String,
    /// Bytes of memory that the kernel reclaimed; `None` where it cannot be asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_out: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rooted {
    /// Path of the directory inside, and of the host directory that it covers.
    pub at: WireText,
    /// Host ids that files created there must belong to.
    pub uid: u32,
    pub gid: u32,
}

/// Present resource usage of the whole sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUsage {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
    /// Number of running commands.
    pub running: u64,
    #[serde(default)]
    pub code: CodeTraffic,
}

/// Runs that a shutdown ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRuns {
    /// Run ids, and whether each had to be killed.
    pub ended: Vec<(String, bool)>,
}

/// An answer: a value or a fault.
#[derive(Debug, Serialize, Deserialize)]
struct ReplyBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,
    /// Exit status of the fault, where its kind does not decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_status: Option<u8>,
}

pub fn value(of: &impl Serialize) -> Frame {
    let value = serde_json::to_value(of).map_err(|e| Fault::internal(e.to_string()));
    value.map_or_else(
        |fault| refusal(&fault),
        |value| Frame::of(&ReplyBody { value: Some(value), fault: None, exit_status: None }),
    )
}

pub fn refusal(fault: &Fault) -> Frame {
    Frame::of(&ReplyBody { value: None, fault: Some(fault.clone()), exit_status: fault.exit_status })
}

/// Reads the value or the fault of an answer frame.
pub fn read_answer<T: DeserializeOwned>(frame: &Frame) -> Result<T, Fault> {
    let answer: ReplyBody = serde_json::from_slice(&frame.json).map_err(|e| misspoken(&e))?;
    match answer {
        ReplyBody { fault: Some(fault), exit_status, .. } => Err(Fault { exit_status, ..fault }),
        ReplyBody { value, .. } => serde_json::from_value(value.unwrap_or_default()).map_err(|e| misspoken(&e)),
    }
}

fn misspoken(error: &serde_json::Error) -> Fault {
    let fault = Fault::internal(format!("the keeper's answer cannot be read: {error}"));
    fault.hint("it may be of another version; `cofferdam stop` ends it")
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_fault_arrives_with_its_status() {
        let fault = Fault::invalid("no").hint("do").exit(126);
        let read = read_answer::<EndedRuns>(&refusal(&fault)).unwrap_err();
        assert_eq!(read, fault);
        assert_eq!(read_answer::<EndedRuns>(&value(&EndedRuns::default())).unwrap(), EndedRuns::default());
    }
}
