//! The head of a response.

use super::fields::{self, Fields};
use super::{Body, Connection, Head, Refused, Version, framing, scan, scan::Seen, version};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub version: Version,
    pub status: u16,
    /// What stands after the status; any bytes but control characters.
    pub reason: Vec<u8>,
    pub fields: Fields,
    /// The length of the head. The body starts there.
    pub consumed: usize,
    pub body: Body,
    /// `Upgrade` only with status 101.
    pub connection: Connection,
}

/// Reads the head at the start of the bytes, as the response to a request with that method.
pub fn read_response(bytes: &[u8], request_method: &str) -> Head<Response> {
    resume_response(bytes, request_method, &mut Seen::default())
}

/// The same for bytes that grow: `seen` stays with them from one call to the next.
pub fn resume_response(bytes: &[u8], request_method: &str, seen: &mut Seen) -> Head<Response> {
    let head = scan::end(bytes, seen);
    let read = head.and_then(|len| len.map(|len| response(&bytes[..len], request_method)).transpose());
    // Whatever a server does wrong, the client hears one thing about it.
    read.map_err(|(_, reason)| (502, reason)).into()
}

fn response(head: &[u8], method: &str) -> Result<Response, Refused> {
    let mut lines = fields::lines(head);
    let (version, status, reason) = first_line(lines.next().unwrap_or_default())?;
    let fields = Fields::read(lines)?;
    let declared = framing::declared(&fields, version)?;
    let body = body(method, status, declared)?;
    let connection = connection(&fields, version, status, body)?;
    Ok(Response { version, status, reason, fields, consumed: head.len(), body, connection })
}

/// The reason may be empty, and many servers leave out the space before it then.
fn first_line(line: &[u8]) -> Result<(Version, u16, Vec<u8>), Refused> {
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

fn body(method: &str, status: u16, declared: Option<Body>) -> Result<Body, Refused> {
    match (status, declared) {
        (100..=199 | 204, None | Some(Body::Length(0))) => Ok(Body::None),
        (100..=199 | 204, Some(_)) => Err((400, "a response that has no body declares one")),
        (304, _) => Ok(Body::None),
        _ if method == "HEAD" => Ok(Body::None),
        // What follows is the tunnel.
        (200..=299, _) if method == "CONNECT" => Ok(Body::None),
        (_, declared) => Ok(declared.unwrap_or(Body::UntilClose)),
    }
}

fn connection(fields: &Fields, version: Version, status: u16, body: Body) -> Result<Connection, Refused> {
    match (status, framing::connection(fields, version)) {
        (101, Connection::Upgrade(protocol)) => Ok(Connection::Upgrade(protocol)),
        (101, _) => Err((400, "the status is 101 and no protocol is named")),
        // Offering another protocol, as some servers do in every response, changes nothing.
        (_, Connection::Upgrade(_)) if body != Body::UntilClose => Ok(Connection::KeepAlive),
        (_, said) if body != Body::UntilClose => Ok(said),
        _ => Ok(Connection::Close),
    }
}
