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

impl Event {
    /// Number of bytes that count as output.
    pub fn size(&self) -> u64 {
        let value = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string().len(), str::len) as u64;
        match self {
            Event::Stdout(bytes) | Event::Stderr(bytes) => bytes.len() as u64,
            Event::Display(bundle) | Event::Result(bundle) => {
                bundle.data.values().chain(bundle.metadata.values()).map(value).sum()
            }
            Event::Error(error) => (error.name.len() + error.value.len() + error.traceback.len()) as u64,
            Event::Ready { .. } | Event::End { .. } | Event::Checked(_) => 0,
        }
    }
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
    Ok(Received { request, event })
}

fn document<T: DeserializeOwned>(kind: Kind, payload: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(payload).map_err(|e| Broken::rule(format!("the document of a {kind:?} frame: {e}")))
}
