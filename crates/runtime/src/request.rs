//! Requests to a live sandbox as front ends and keepers exchange them: a command to start, values of secrets, a change of policy.

use crate::watch::WatchOptions;
use api::{PathText, SecretValue};
use serde::{Deserialize, Serialize};
use state::Caller;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use terms::Limits;

/// A name, an argument or a value: text, or base64 where it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WireText(PathText);

impl WireText {
    pub fn of(text: impl AsRef<OsStr>) -> WireText {
        WireText(PathText::of(text.as_ref().as_bytes()))
    }

    /// Wraps a document's spelling.
    pub fn spelled(target: &PathText) -> WireText {
        WireText(target.clone())
    }

    /// Decodes the word; `None` where it is not spelled as `of` spells it.
    pub fn text(&self) -> Option<OsString> {
        self.0.bytes().map(OsString::from_vec)
    }
}

/// Policy and limits of a sandbox's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    pub revision: u64,
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
}

/// The message that has a keeper start a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Run id; generated where none is given. A known id is not started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub command: Vec<WireText>,
    /// Text to run with `sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<WireText>,
    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    #[serde(default)]
    pub env: Vec<WireText>,
    /// Environment of the caller, of which the policy passes some variables.
    #[serde(default)]
    pub around: Vec<(WireText, WireText)>,
    /// Working directory of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<WireText>,
    /// Working directory of the command, relative to the sandbox's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<WireText>,
    /// Limits of this command alone: wall time and output.
    #[serde(default)]
    pub limits: Limits,
    /// A client will write to its input.
    #[serde(default)]
    pub input: bool,
    /// The payload of the request is the beginning of its input; unless `input` is set, also the end.
    #[serde(default, skip_serializing_if = "is_not")]
    pub has_stdin: bool,
    /// What is sent as the payload.
    #[serde(skip)]
    pub stdin: Vec<u8>,
    /// Rows and columns of its terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<(u16, u16)>,
    pub actor: String,
    /// Service that the command runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Digest of the request that carries an idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Values of secrets, for as long as the command runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretValue>,
    /// Waits for the end on the same connection: `Started` is followed by `Waited`, with the log as payload where it is short. A keeper of
    /// an older version ignores this, and does not confirm it.
    #[serde(default, skip_serializing_if = "is_not")]
    pub waits: bool,
    /// Watch mode that the command relies on. Ignored by keepers of an older version; see `Hello::heeds_watch`.
    #[serde(default, skip_serializing_if = "WatchOptions::is_usual")]
    pub watch: WatchOptions,
    /// Trace that the command belongs to, in `traceparent` notation. Ignored by keepers of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<WireText>,
}

fn is_not(set: &bool) -> bool {
    !set
}

/// The variable in which a process that is started finds the trace that it belongs to.
pub const TRACE_PARENT: &str = "TRACEPARENT";

/// Returns a caller's variables as they are sent. `TRACEPARENT` is the trace of the caller's request, not the one that this
/// process was started with.
pub fn words_of(caller: &Caller) -> Vec<(WireText, WireText)> {
    let is_trace = |name: &OsStr| name == TRACE_PARENT;
    let plain = caller.env.iter().filter(|(name, _)| !is_trace(name)).map(|(name, value)| (name.as_os_str(), value));
    let trace = caller.trace_parent.iter().map(|value| (OsStr::new(TRACE_PARENT), value));
    plain.chain(trace).map(|(name, value)| (WireText::of(name), WireText::of(value))).collect()
}

/// Returns the trace among a caller's variables, for services and interpreters that a keeper starts by itself.
pub fn trace_in(around: &[(WireText, WireText)]) -> Option<WireText> {
    let wanted = WireText::of(TRACE_PARENT);
    around.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone())
}

/// Returns the trace of a caller's request as it is sent.
pub fn trace_of(caller: &Caller) -> Option<WireText> {
    caller.trace_parent.as_ref().map(WireText::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn words_keep_every_byte(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let word = WireText::of(OsStr::from_bytes(&bytes));
            let read: WireText = serde_json::from_str(&serde_json::to_string(&word).unwrap()).unwrap();
            prop_assert_eq!(read.text().unwrap().into_vec(), bytes);
        }
    }
}
