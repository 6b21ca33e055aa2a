//! Heads of HTTP/1.x, read strictly. Whoever stands between a client and a server must see the same requests as both of
//! them; so everything that two readers may take differently is refused, and nothing is repaired.
//!
//! A head is judged as a whole when its last byte is there. Only bytes that no head may hold are refused sooner.

mod fields;
mod framing;
mod request;
mod response;
mod scan;
mod target;
mod write;

pub use fields::{Field, Fields};
pub use request::{Request, read_request, resume_proxied, resume_request};
pub use response::{Response, read_response, resume_response};
pub use scan::Seen;
pub use target::Target;
pub use write::{Unwritable, write_request, write_response};

pub(crate) use fields::{field, is_token_byte, lines};
pub(crate) use request::without_offer;

/// The longest head, its empty line included.
pub const MAX_HEAD: usize = 64 * 1024;
pub const MAX_FIELDS: usize = 128;

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head<T> {
    NeedMore,
    /// What to answer with, and why. For a response, what to answer the client with in its place.
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

/// Where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    Length(u64),
    Chunked,
    /// Responses only: with the connection.
    UntilClose,
}

/// What becomes of the connection after the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    KeepAlive,
    Close,
    /// The protocols asked for, or the one agreed on.
    Upgrade(String),
}

/// Why a head is refused, while reading it: the status and the reason.
type Refused = (u16, &'static str);

impl<T> From<Result<Option<T>, Refused>> for Head<T> {
    fn from(read: Result<Option<T>, Refused>) -> Head<T> {
        match read {
            Ok(Some(done)) => Head::Done(done),
            Ok(None) => Head::NeedMore,
            Err((status, reason)) => Head::Bad { status, reason },
        }
    }
}

/// The version in its one spelling. A version that is well formed but not ours is told apart from no version at all.
fn version(word: &[u8]) -> Result<Version, Refused> {
    match word {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Err((505, "the version is neither HTTP/1.0 nor HTTP/1.1"))
        }
        _ => Err((400, "the version is malformed or missing")),
    }
}
