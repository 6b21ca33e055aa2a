//! What is said between a keeper and those who ask it: questions, answers and notices. How they go over is in `line`.
//!
//! ```text
//!  JSON of a question: {"ask": "start", …}; of an answer: {"value": …} or {"fault": …}
//! ```
//!
//! A connection asks one thing at a time. After `follow` it only hears notices.

mod line;

use super::watch::Watch;
use crate::Caller;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use terms::{Fault, Limits, Outcome};
use utoipa::ToSchema;
use workspace::Target;

pub use line::{Frame, Line, MOST, MOST_HANDLES, Pulled};

/// Grows when a keeper could no longer be understood by an older or newer side.
pub const PROTOCOL: u32 = 1;

/// A name, an argument or a value: text, or base64 where it is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Word(Target);

impl Word {
    pub fn of(text: impl AsRef<OsStr>) -> Word {
        Word(Target::of(text.as_ref().as_bytes()))
    }

    /// As a document has it.
    pub fn spelled(target: &Target) -> Word {
        Word(target.clone())
    }

    /// None where it is not spelled as `of` does it.
    pub fn text(&self) -> Option<OsString> {
        self.0.bytes().map(OsString::from_vec)
    }
}

/// A value that nobody is to see: it is sent, and shown nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(as = SecretValue)]
pub struct Hidden(Target);

impl Hidden {
    pub fn of(bytes: &[u8]) -> Hidden {
        Hidden(Target::of(bytes))
    }

    /// None where it is not spelled as `of` does it.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.0.bytes()
    }
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hidden(…)")
    }
}

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    Hello,
    /// Answered by `Started` once the command runs.
    Start(Box<Start>),
    /// The payload is written to the command's input; answered once it is taken, so that who writes too fast waits.
    Input {
        run: String,
        /// Nothing follows.
        #[serde(default)]
        eof: bool,
        /// Where the payload stands in its writer's own stream; then the answer is `Fed`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<By>,
    },
    Resize {
        run: String,
        rows: u16,
        columns: u16,
    },
    /// To the command's process group.
    Signal {
        run: String,
        signal: i32,
    },
    /// The whole tree, at once.
    Kill {
        run: String,
    },
    List,
    /// Answered by `Waited` when the run has ended or the time is over.
    Wait {
        run: String,
        timeout_ms: u64,
    },
    /// From now on this connection hears `Notice`s of these runs, or of all.
    Follow {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runs: Option<Vec<String>>,
    },
    /// It is wanted for more than its files: it is suspended no more, and its services run.
    Rise,
    Freeze,
    Thaw,
    /// The directory of the workspace as the guest has it, or its private `/tmp`: `Rooted`, and a handle.
    Root {
        #[serde(default)]
        tmp: bool,
    },
    /// A stream to a port inside: a handle.
    Connect {
        port: u16,
    },
    Usage,
    /// What waits for a person's answer.
    Questions,
    /// Somebody's answer to one of them; what was asked.
    Answer {
        number: u64,
        answer: crate::questions::Answer,
        #[serde(default)]
        remember: crate::questions::Remember,
    },
    /// Other network rules and limits, for all that runs and will run.
    Revise(Box<Revision>),
    /// These ports of the host lead inside from now on, and no others; whether they do.
    Publish {
        ports: Vec<String>,
    },
    /// The one that stood ready is somebody's now, as its record says.
    Claim {
        /// The caller's variables, for services.
        around: Vec<(Word, Word)>,
        actor: String,
    },
    /// It stays until it is told to end, whether anything runs or not.
    Stay,
    /// Ends everything in order and then itself: answered by `Left` when nothing runs any more.
    End {
        grace_ms: u64,
        /// Only if nothing runs.
        #[serde(default)]
        if_idle: bool,
    },
}

/// Who writes to an input, and how much of theirs went before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// A name that nobody else has.
    pub writer: String,
    pub offset: u64,
}

/// How much of a writer's stream the command's side has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fed {
    pub offset: u64,
}

/// What a sandbox's record says of its policy and limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    pub revision: u64,
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
}

/// A command, and who wants it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Its id; made anew where none is given. One that is known already is not started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub command: Vec<Word>,
    /// Run this text with `sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<Word>,
    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    #[serde(default)]
    pub env: Vec<Word>,
    /// The caller's variables, of which the policy passes some.
    #[serde(default)]
    pub around: Vec<(Word, Word)>,
    /// Where the caller is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Word>,
    /// Where the command starts, seen from the sandbox's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Word>,
    /// Those that one command of many can have: wall time and output.
    #[serde(default)]
    pub limits: Limits,
    /// Somebody will write to its input.
    #[serde(default)]
    pub input: bool,
    /// Rows and columns of a terminal of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<(u16, u16)>,
    pub actor: String,
    /// The service that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// A digest of the request that asks for it under a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Values of secrets, for as long as the command runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, Hidden>,
    /// Its end is waited for on the same connection: `Started` is followed by `Waited`, with what it said as payload where that is
    /// little. One of an older version does not hear this, and does not say so.
    #[serde(default, skip_serializing_if = "is_not")]
    pub waits: bool,
    /// How it counts on being watched. One of an older version does not hear this either; see `Hello::heeds_watch`.
    #[serde(default, skip_serializing_if = "Watch::is_usual")]
    pub watch: Watch,
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
    /// Runs that go on.
    pub running: usize,
    pub frozen: bool,
    /// It does not end by itself.
    pub stays: bool,
    /// It stands for files alone: nobody has asked for more.
    #[serde(default)]
    pub rests: bool,
    /// It counts what each writer gives to an input, so that a piece can be sent again. One of an older version does not say so.
    #[serde(default)]
    pub counts_input: bool,
    /// It refuses a command that counts on being watched otherwise than it is. One of an older version would start it all the same.
    #[serde(default)]
    pub heeds_watch: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub run: String,
    /// The command's number inside.
    pub pid: i32,
    /// It was started by an earlier request with the same id.
    #[serde(default)]
    pub existed: bool,
    /// What its record says of it, where it was started by this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default)]
    pub started_ms: u64,
    /// `Waited` follows.
    #[serde(default, skip_serializing_if = "is_not")]
    pub waits: bool,
}

impl Start {
    /// A variable of the caller's.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let wanted = Word::of(name);
        self.around.iter().find(|(known, _)| *known == wanted).and_then(|(_, value)| value.text())
    }
}

/// A caller's variables, as they are sent.
pub fn words_of(caller: &Caller) -> Vec<(Word, Word)> {
    caller.env.iter().map(|(name, value)| (Word::of(name), Word::of(value))).collect()
}

/// A run that this keeper started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub run: String,
    pub command: Vec<String>,
    pub pid: i32,
    pub started_ms: u64,
    pub terminal: bool,
    /// Its input can be written to.
    pub input: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where the next record of its output begins.
    pub offset: u64,
    /// There once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// None when the time was over first.
    pub outcome: Option<Outcome>,
    pub offset: u64,
    /// When it ended, as its record has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// The payload is its log, but for the end: all that it said.
    #[serde(default, skip_serializing_if = "is_not")]
    pub whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub run: String,
    /// So far its output goes.
    pub offset: u64,
    pub ended: bool,
}

/// What a freeze was done with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Froze {
    /// "cgroup" or "signals".
    pub with: String,
    /// Bytes of memory that the kernel took back; none where it cannot be asked to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paged_out: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rooted {
    /// Where the directory is inside, and on the host what it covers.
    pub at: Word,
    /// Under these ids of the host files must be made there.
    pub uid: u32,
    pub gid: u32,
}

/// What all of it uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
    /// Runs that go on.
    pub running: u64,
}

/// What an end has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Runs, and whether each had to be killed.
    pub ended: Vec<(String, bool)>,
}

/// An answer: a value, or why there is none.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fault: Option<Fault>,
    /// Of the fault, where its kind does not decide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_status: Option<u8>,
}

pub fn value(of: &impl Serialize) -> Frame {
    let value = serde_json::to_value(of).map_err(|e| Fault::internal(e.to_string()));
    value.map_or_else(
        |fault| refusal(&fault),
        |value| Frame::of(&Answer { value: Some(value), fault: None, exit_status: None }),
    )
}

pub fn refusal(fault: &Fault) -> Frame {
    Frame::of(&Answer { value: None, fault: Some(fault.clone()), exit_status: fault.exit_status })
}

/// What an answer's frame holds.
pub fn read_answer<T: DeserializeOwned>(frame: &Frame) -> Result<T, Fault> {
    let answer: Answer = serde_json::from_slice(&frame.json).map_err(|e| misspoken(&e))?;
    match answer {
        Answer { fault: Some(fault), exit_status, .. } => Err(Fault { exit_status, ..fault }),
        Answer { value, .. } => serde_json::from_value(value.unwrap_or_default()).map_err(|e| misspoken(&e)),
    }
}

fn misspoken(error: &serde_json::Error) -> Fault {
    let fault = Fault::internal(format!("the keeper's answer cannot be read: {error}"));
    fault.hint("it may be of another version; `cofferdam stop` ends it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn words_keep_every_byte(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let word = Word::of(OsStr::from_bytes(&bytes));
            let read: Word = serde_json::from_str(&serde_json::to_string(&word).unwrap()).unwrap();
            prop_assert_eq!(read.text().unwrap().into_vec(), bytes);
        }
    }

    #[test]
    fn a_fault_arrives_with_its_status() {
        let fault = Fault::invalid("no").hint("do").exit(126);
        let read = read_answer::<Left>(&refusal(&fault)).unwrap_err();
        assert_eq!(read, fault);
        assert_eq!(read_answer::<Left>(&value(&Left::default())).unwrap(), Left::default());
    }
}
