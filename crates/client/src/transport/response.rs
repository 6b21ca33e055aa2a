//! Responses: documents that fit in memory, bytes that need not, and faults.

use super::connection::with_causes;
use super::server::Server;
use super::unavailable;
use bytes::Bytes;
use http::Response;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, LimitKind, PROTOCOL_VERSION, Phase};

/// The largest document that is accepted.
const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// The largest fault that is accepted.
const MAX_FAULT_BYTES: usize = 1 << 20;
/// Timeout for a pause within a body.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout for a whole body, beside the time for its bytes at the slowest pace.
const BODY_TIMEOUT: Duration = Duration::from_secs(600);
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;

/// The pace of a body: one that drips for ever is given up although it never pauses for long.
struct Pace {
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn begin() -> Pace {
        Pace { begun: Instant::now(), bytes: 0 }
    }

    fn is_too_slow(&mut self, server: &Server, more: usize) -> bool {
        self.bytes += more as u64;
        let allowed = server.timeout(BODY_TIMEOUT) + Duration::from_secs(self.bytes / MIN_BYTES_PER_SECOND);
        self.begun.elapsed() > allowed
    }
}

/// Reads a document of this version of the protocol.
pub async fn document<T: DeserializeOwned>(server: &Server, response: Response<Incoming>) -> Result<T, Fault> {
    let bytes = collect(server, response.into_body(), MAX_DOCUMENT_BYTES).await?;
    check_version(server, &bytes)?;
    serde_json::from_slice(&bytes).map_err(|e| foreign(server, &format!("its response cannot be read: {e}")))
}

#[derive(Deserialize)]
struct Versioned {
    protocol_version: Option<u32>,
}

fn check_version(server: &Server, bytes: &[u8]) -> Result<(), Fault> {
    match serde_json::from_slice::<Versioned>(bytes) {
        Ok(Versioned { protocol_version: Some(PROTOCOL_VERSION) }) => Ok(()),
        Ok(Versioned { protocol_version: Some(version) }) => {
            Err(foreign(server, &format!("it uses protocol version {version}; this client uses {PROTOCOL_VERSION}")))
        }
        _ => Err(foreign(server, "its response is not a document of the API")),
    }
}

/// A fault for a response that no daemon of this version sends.
fn foreign(server: &Server, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("{}: {why}", server.address)).phase(Phase::Delivery);
    fault.hint("see that --server or COFFERDAM_SERVER names a daemon of the same version")
}

async fn collect(server: &Server, body: Incoming, max_bytes: usize) -> Result<Bytes, Fault> {
    let mut body = Limited::new(body, max_bytes);
    let (mut bytes, mut pace) = (Vec::new(), Pace::begin());
    loop {
        match tokio::time::timeout(server.timeout(SILENCE_TIMEOUT), body.frame()).await {
            Err(_) => return Err(unavailable(server, "its response does not end")),
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Ok(frame))) => {
                let chunk = frame.into_data().unwrap_or_default();
                if pace.is_too_slow(server, chunk.len()) {
                    return Err(unavailable(server, "its response does not end"));
                }
                bytes.extend(chunk);
            }
            Ok(Some(Err(e))) if e.is::<LengthLimitError>() => {
                return Err(foreign(server, &format!("its response has more than {max_bytes} bytes")));
            }
            Ok(Some(Err(e))) => {
                return Err(unavailable(server, format!("its response broke off: {}", with_causes(e.as_ref()))));
            }
        }
    }
}

/// Reads the fault of a response without success. One that is no document of the protocol comes from another program.
pub async fn fault(server: &Server, response: Response<Incoming>) -> Fault {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match collect(server, response.into_body(), MAX_FAULT_BYTES).await {
        Err(fault) => fault,
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(fault) => with_client_hint(fault, retry_after),
            Err(_) => foreign(server, &format!("it responds {status} without a fault document")),
        },
    }
}

/// Replaces hints about headers, which users of this client neither set nor see.
fn with_client_hint(fault: Fault, retry_after: Option<u64>) -> Fault {
    let is_busy = matches!(fault.limit_kind, Some(LimitKind::RequestsPerMinute | LimitKind::Runs | LimitKind::Waiting));
    match (fault.error_kind, retry_after) {
        (ErrorKind::Unauthenticated, _) => {
            fault.hint("name a file with a valid token by --token-file or COFFERDAM_TOKEN_FILE")
        }
        (ErrorKind::LimitExceeded, Some(1)) if is_busy => fault.hint("retry in a second"),
        (ErrorKind::LimitExceeded, Some(seconds)) if is_busy => fault.hint(format!("retry in {seconds} seconds")),
        _ => fault,
    }
}

/// Writes a body as it arrives. A body that is shorter than announced is an error of the connection.
pub async fn bytes(server: &Server, mut body: Incoming, out: &mut dyn Write) -> Result<(), Fault> {
    let mut pace = Pace::begin();
    loop {
        let frame = match tokio::time::timeout(server.timeout(SILENCE_TIMEOUT), body.frame()).await {
            Err(_) => return Err(unavailable(server, "its response does not end")),
            Ok(None) => return Ok(()),
            Ok(Some(Err(e))) => {
                return Err(unavailable(server, format!("its response broke off: {}", with_causes(&e))));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let chunk = frame.into_data().unwrap_or_default();
        if pace.is_too_slow(server, chunk.len()) {
            return Err(unavailable(server, "its response does not end"));
        }
        out.write_all(&chunk).map_err(|e| {
            Fault::new(ErrorKind::Unavailable, format!("cannot write the received data: {e}"))
                .phase(Phase::Delivery)
                .hint("write to a file system with free space")
        })?;
    }
}
