//! Events of a worker, read from its frames. Payloads are JSON that a guest wrote.

use crate::Broken;
use crate::frame::{Frame, Kind};
use api::{CodeChecked, CodeError, MimeBundle};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// An event, with the request that its worker names.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// 0 where no request is meant.
    pub request: u32,
    pub event: Event,
    /// Number of bytes that count as output: the whole payload, names included.
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The interpreter has started.
    Ready {
        version: String,
    },
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Display(MimeBundle),
    Result(MimeBundle),
    Error(CodeError),
    End {
        status: EndStatus,
        execution_count: u64,
    },
    Checked(CodeChecked),
}

/// How a request ended, as its worker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndStatus {
    Ok,
    Error,
    Interrupted,
}

#[derive(Deserialize)]
struct Ready {
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct End {
    status: EndStatus,
    #[serde(default)]
    execution_count: u64,
}

/// Reads a frame whose payload is whole.
pub fn read(frame: Frame) -> Result<Received, Broken> {
    let Frame { kind, request, payload, .. } = frame;
    let size = if kind.counts_as_output() { payload.len() as u64 } else { 0 };
    let event = match kind {
        Kind::Stdout => Event::Stdout(payload),
        Kind::Stderr => Event::Stderr(payload),
        Kind::Display => Event::Display(document(kind, &payload)?),
        Kind::Result => Event::Result(document(kind, &payload)?),
        Kind::Error => Event::Error(document(kind, &payload)?),
        Kind::Ready => Event::Ready { version: document::<Ready>(kind, &payload)?.version },
        Kind::End => {
            let End { status, execution_count } = document(kind, &payload)?;
            Event::End { status, execution_count }
        }
        Kind::Complete => Event::Checked(document(kind, &payload)?),
        Kind::Hello | Kind::Execute | Kind::Completeness => {
            return Err(Broken::rule("a frame that only a supervisor sends"));
        }
    };
    Ok(Received { request, event, size })
}

fn document<T: DeserializeOwned>(kind: Kind, payload: &[u8]) -> Result<T, Broken> {
    if count_parts(payload) > MOST_PARTS {
        return Err(Broken::rule(format!("a document of more than {MOST_PARTS} parts")));
    }
    serde_json::from_slice(payload).map_err(|e| {
        let why: String = e.to_string().chars().take(LONGEST_REASON).collect();
        Broken::rule(format!("the document of a {kind:?} frame: {why}"))
    })
}

/// Bound on the values of a document: each takes far more memory than its text.
const MOST_PARTS: usize = 1 << 20;
/// Bound on what is told of a document that cannot be read: the guest wrote it.
const LONGEST_REASON: usize = 200;

/// Counts what separates values, outside of strings.
fn count_parts(payload: &[u8]) -> usize {
    let (mut parts, mut in_string, mut escaped) = (0, false, false);
    for byte in payload {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => parts += 1,
            _ => {}
        }
    }
    parts
}
