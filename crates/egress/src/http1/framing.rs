//! Message framing and connection persistence: the two properties that request smuggling exploits.

use super::fields::HeaderFields;
use super::{BodyFraming, Connection, HeadError, Version};

/// Returns the body that the fields declare, or `None`. Duplicate fields are refused even if they agree: the next
/// parser may see only one of them.
pub(super) fn declared(fields: &HeaderFields, version: Version) -> Result<Option<BodyFraming>, HeadError> {
    check_names(fields)?;
    let lengths: Vec<&[u8]> = fields.all("content-length").collect();
    let codings: Vec<&[u8]> = fields.all("transfer-encoding").collect();
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(None),
        ([text], []) => {
            length(text).map(|len| Some(BodyFraming::Length(len))).ok_or((400, "Content-Length is malformed"))
        }
        (_, []) => Err((400, "Content-Length comes twice")),
        ([], [_]) if version == Version::Http10 => Err((400, "Transfer-Encoding does not exist in HTTP/1.0")),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Some(BodyFraming::Chunked)),
        ([], [_]) => Err((501, "Transfer-Encoding is not chunked")),
        ([], _) => Err((400, "Transfer-Encoding comes twice")),
        _ => Err((400, "Content-Length and Transfer-Encoding come together")),
    }
}

/// Refuses field names that parsers treat differently. Some servers read an underscore as a hyphen, and would see a
/// framing field here. A proxy that obeys Connection drops the fields named there, so that the next server sees another
/// message.
fn check_names(fields: &HeaderFields) -> Result<(), HeadError> {
    const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "host"];
    let looks_like = |name: &str| name.contains('_') && FRAMING.iter().any(|f| same_but_for_hyphens(name, f));
    if fields.0.iter().any(|f| looks_like(&f.name)) {
        return Err((400, "a field looks like one that frames the message"));
    }
    let dropped = |word: &[u8]| FRAMING.iter().any(|f| word.eq_ignore_ascii_case(f.as_bytes()));
    match fields.words("connection").any(dropped) {
        true => Err((400, "Connection names a field that frames the message")),
        false => Ok(()),
    }
}

fn same_but_for_hyphens(name: &str, other: &str) -> bool {
    name.replace('_', "-").eq_ignore_ascii_case(other)
}

/// Parses a length in canonical form that fits into a signed 64-bit integer.
fn length(text: &[u8]) -> Option<u64> {
    let plain = text.iter().all(u8::is_ascii_digit) && (text == b"0" || !text.starts_with(b"0"));
    let number: i64 = std::str::from_utf8(text).ok().filter(|_| plain)?.parse().ok()?;
    u64::try_from(number).ok()
}

/// Returns the connection's use as the fields say. `close` wins over everything.
pub(super) fn connection(fields: &HeaderFields, version: Version) -> Connection {
    let says = |wanted: &[u8]| fields.words("connection").any(|word| word.eq_ignore_ascii_case(wanted));
    if says(b"close") {
        return Connection::Close;
    }
    let protocols: Vec<_> = fields.words("upgrade").map(String::from_utf8_lossy).collect();
    match version {
        Version::Http11 if says(b"upgrade") && !protocols.is_empty() => Connection::Upgrade(protocols.join(", ")),
        Version::Http11 => Connection::KeepAlive,
        Version::Http10 if says(b"keep-alive") => Connection::KeepAlive,
        Version::Http10 => Connection::Close,
    }
}
