//! Answers: documents that fit in memory, bytes that need not, and faults.

use crate::connect::told;
use crate::server::Server;
use crate::unavailable;
use bytes::Bytes;
use http::Response;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::time::{Duration, Instant};
use terms::{ErrorKind, Fault, PROTOCOL_VERSION, Phase};

/// The largest document that is taken.
const LARGEST: usize = 64 << 20;
/// A fault is small.
const LARGEST_FAULT: usize = 1 << 20;
/// How long an answer that has begun may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// A whole answer may take so long, and longer for what it brings at a pace.
const WHOLE: Duration = Duration::from_secs(600);
const LEAST_PACE: u64 = 16 << 10;

/// How an answer comes: one that drips for ever is given up, although it never falls silent.
struct Pace {
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn begin() -> Pace {
        Pace { begun: Instant::now(), bytes: 0 }
    }

    fn is_lost(&mut self, server: &Server, more: usize) -> bool {
        self.bytes += more as u64;
        self.begun.elapsed() > server.patience(WHOLE) + Duration::from_secs(self.bytes / LEAST_PACE)
    }
}

/// Reads a document that follows our version of the contract.
pub async fn document<T: DeserializeOwned>(server: &Server, answer: Response<Incoming>) -> Result<T, Fault> {
    let bytes = whole(server, answer.into_body(), LARGEST).await?;
    check_version(server, &bytes)?;
    serde_json::from_slice(&bytes).map_err(|e| foreign(server, &format!("its answer cannot be read: {e}")))
}

#[derive(Deserialize)]
struct Versioned {
    protocol_version: Option<u32>,
}

fn check_version(server: &Server, bytes: &[u8]) -> Result<(), Fault> {
    match serde_json::from_slice::<Versioned>(bytes) {
        Ok(Versioned { protocol_version: Some(PROTOCOL_VERSION) }) => Ok(()),
        Ok(Versioned { protocol_version: Some(version) }) => Err(foreign(
            server,
            &format!("it speaks version {version} of the protocol, and this is {PROTOCOL_VERSION}"),
        )),
        _ => Err(foreign(server, "its answer is no document of ours")),
    }
}

/// Something answers that is no daemon, or none that we understand.
fn foreign(server: &Server, why: &str) -> Fault {
    let fault = Fault::new(ErrorKind::ProviderFailed, format!("{}: {why}", server.address)).phase(Phase::Delivery);
    fault.hint("see that --server or COFFERDAM_SERVER names a daemon of the same version")
}

async fn whole(server: &Server, body: Incoming, most: usize) -> Result<Bytes, Fault> {
    let mut body = Limited::new(body, most);
    let (mut bytes, mut pace) = (Vec::new(), Pace::begin());
    loop {
        match tokio::time::timeout(server.patience(SILENCE), body.frame()).await {
            Err(_) => return Err(unavailable(server, "its answer does not come to an end")),
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Ok(frame))) => {
                let piece = frame.into_data().unwrap_or_default();
                if pace.is_lost(server, piece.len()) {
                    return Err(unavailable(server, "its answer does not come to an end"));
                }
                bytes.extend(piece);
            }
            Ok(Some(Err(e))) if e.is::<LengthLimitError>() => {
                return Err(foreign(server, &format!("its answer has more than {most} bytes")));
            }
            Ok(Some(Err(e))) => return Err(unavailable(server, format!("its answer broke off: {}", told(e.as_ref())))),
        }
    }
}

/// What a refusal says. One that is no document of ours comes from somebody else.
pub async fn fault(server: &Server, answer: Response<Incoming>) -> Fault {
    let status = answer.status();
    let seconds = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match whole(server, answer.into_body(), LARGEST_FAULT).await {
        Err(fault) => fault,
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(fault) => fitting(fault, seconds),
            Err(_) => foreign(server, &format!("it answers {status}, and in no words of ours")),
        },
    }
}

/// A hint that speaks of headers is for programs: who asks by this one sets none and sees none.
fn fitting(fault: Fault, seconds: Option<u64>) -> Fault {
    let hint = fault.hint.clone().unwrap_or_default();
    match seconds {
        _ if fault.error_kind == ErrorKind::Unauthenticated && hint.contains("Authorization") => {
            fault.hint("name a file with a token that is good with --token-file or COFFERDAM_TOKEN_FILE")
        }
        Some(1) if hint.contains("Retry-After") => fault.hint("ask again in a second"),
        Some(seconds) if hint.contains("Retry-After") => fault.hint(format!("ask again in {seconds} seconds")),
        _ => fault,
    }
}

/// Writes a body as it comes. One that is shorter than was told is an error of the connection.
pub async fn bytes(server: &Server, mut body: Incoming, out: &mut dyn Write) -> Result<(), Fault> {
    let mut pace = Pace::begin();
    loop {
        let frame = match tokio::time::timeout(server.patience(SILENCE), body.frame()).await {
            Err(_) => return Err(unavailable(server, "its answer does not come to an end")),
            Ok(None) => return Ok(()),
            Ok(Some(Err(e))) => return Err(unavailable(server, format!("its answer broke off: {}", told(&e)))),
            Ok(Some(Ok(frame))) => frame,
        };
        let piece = frame.into_data().unwrap_or_default();
        if pace.is_lost(server, piece.len()) {
            return Err(unavailable(server, "its answer does not come to an end"));
        }
        out.write_all(&piece).map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe => Fault::new(ErrorKind::Unavailable, "Broken pipe").phase(Phase::Delivery),
            _ => Fault::new(ErrorKind::Unavailable, format!("what was asked for cannot be written: {e}"))
                .phase(Phase::Delivery)
                .hint("write it where there is space"),
        })?;
    }
}
