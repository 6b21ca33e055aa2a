//! Strict parser for HTTP/1.x heads. A proxy must see the same requests as client and server do; so everything that two
//! parsers may read differently is refused, and nothing is repaired.
//!
//! A head is judged as a whole when its last byte has arrived. Only bytes that no head may contain are refused sooner.

mod fields;
mod framing;
mod request;
mod response;
mod scan;
mod target;
mod write;

pub use fields::{Field, HeaderFields};
pub use request::{RequestHead, read_request, resume_proxied, resume_request};
pub use response::{Response, read_response, resume_response};
pub use scan::HeadScan;
pub use target::RequestTarget;
pub use write::{Unwritable, write_request, write_response};

pub(crate) use fields::{field, is_token_byte, lines};
pub(crate) use request::without_upgrade_offer;

/// Limit on the size of a head, its empty line included.
pub const MAX_HEAD: usize = 64 * 1024;
pub const MAX_FIELDS: usize = 128;

/// Result of parsing the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head<T> {
    NeedMore,
    /// Status and reason of the refusal. For a response, the status to send to the client in its place.
    Bad {
        status: u16,
        reason: &'static str,
    },
    Done(T),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Http10,
    Http11,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    None,
    Length(u64),
    Chunked,
    /// Responses only: the body ends with the connection.
    UntilClose,
}

/// Use of the connection after the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    KeepAlive,
    Close,
    /// The protocols requested, or the one agreed on.
    Upgrade(String),
}

/// Status and reason with which a head is refused.
type HeadError = (u16, &'static str);

impl<T> From<Result<Option<T>, HeadError>> for Head<T> {
    fn from(read: Result<Option<T>, HeadError>) -> Head<T> {
        match read {
            Ok(Some(done)) => Head::Done(done),
            Ok(None) => Head::NeedMore,
            Err((status, reason)) => Head::Bad { status, reason },
        }
    }
}

/// Parses the version. A well-formed but unsupported version gets another status than a malformed one.
fn version(word: &[u8]) -> Result<Version, HeadError> {
    match word {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Err((505, "the version is neither HTTP/1.0 nor HTTP/1.1"))
        }
        _ => Err((400, "the version is malformed or missing")),
    }
}
