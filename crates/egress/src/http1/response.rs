//! Response heads.

use super::fields::{self, HeaderFields};
use super::{BodyFraming, Connection, Head, HeadError, Version, framing, scan, scan::HeadScan, version};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub version: Version,
    pub status: u16,
    /// Reason phrase; any bytes but control characters.
    pub reason: Vec<u8>,
    pub fields: HeaderFields,
    /// Length of the head, where the body starts.
    pub consumed: usize,
    pub body: BodyFraming,
    /// `Upgrade` only with status 101.
    pub connection: Connection,
}

/// Parses the head at the start of the bytes, as the response to a request with that method.
pub fn read_response(bytes: &[u8], request_method: &str) -> Head<Response> {
    resume_response(bytes, request_method, &mut HeadScan::default())
}

/// Parses the head of a growing buffer: `seen` keeps the position between calls.
pub fn resume_response(bytes: &[u8], request_method: &str, seen: &mut HeadScan) -> Head<Response> {
    let head = scan::head_len(bytes, seen);
    let read = head.and_then(|len| len.map(|len| response(&bytes[..len], request_method)).transpose());
    // The client gets 502 for every malformed response.
    read.map_err(|(_, reason)| (502, reason)).into()
}

fn response(head: &[u8], method: &str) -> Result<Response, HeadError> {
    let mut lines = fields::lines(head);
    let (version, status, reason) = first_line(lines.next().unwrap_or_default())?;
    let fields = HeaderFields::read(lines)?;
    let declared = framing::declared(&fields, version)?;
    let body = body(method, status, declared)?;
    let connection = connection(&fields, version, status, body)?;
    Ok(Response { version, status, reason, fields, consumed: head.len(), body, connection })
}

/// Parses the status line. The reason may be empty, and many servers then leave out the space before it.
fn first_line(line: &[u8]) -> Result<(Version, u16, Vec<u8>), HeadError> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let version = version(words.next().unwrap_or_default())?;
    let status = match words.next() {
        Some([a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
            [a, b, c].iter().fold(0, |sum, digit| sum * 10 + u16::from(**digit - b'0'))
        }
        _ => return Err((400, "the status is malformed or missing")),
    };
    Ok((version, status, words.next().unwrap_or_default().to_vec()))
}

fn body(method: &str, status: u16, declared: Option<BodyFraming>) -> Result<BodyFraming, HeadError> {
    match (status, declared) {
        (100..=199 | 204, None | Some(BodyFraming::Length(0))) => Ok(BodyFraming::None),
        (100..=199 | 204, Some(_)) => Err((400, "a response that has no body declares one")),
        (304, _) => Ok(BodyFraming::None),
        _ if method == "HEAD" => Ok(BodyFraming::None),
        // The tunnel follows.
        (200..=299, _) if method == "CONNECT" => Ok(BodyFraming::None),
        (_, declared) => Ok(declared.unwrap_or(BodyFraming::UntilClose)),
    }
}

fn connection(
    fields: &HeaderFields,
    version: Version,
    status: u16,
    body: BodyFraming,
) -> Result<Connection, HeadError> {
    match (status, framing::connection(fields, version)) {
        (101, Connection::Upgrade(protocol)) => Ok(Connection::Upgrade(protocol)),
        (101, _) => Err((400, "the status is 101 and no protocol is named")),
        // Some servers offer another protocol in every response, which has no effect.
        (_, Connection::Upgrade(_)) if body != BodyFraming::UntilClose => Ok(Connection::KeepAlive),
        (_, connection) if body != BodyFraming::UntilClose => Ok(connection),
        _ => Ok(Connection::Close),
    }
}
