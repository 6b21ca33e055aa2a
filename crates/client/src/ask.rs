//! What is asked: a method, a path of which every part is spelled safely, a query, headers, and a body.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::body::{Body, Frame};
use serde::Serialize;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use terms::Fault;
use tokio::sync::mpsc;

/// One request.
pub struct Ask {
    pub(crate) method: Method,
    pub(crate) target: String,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) content: Content,
    /// How long the answer may take to begin.
    pub(crate) patience: Duration,
    /// It is answered when a command has done something, whenever that is.
    pub(crate) waits: bool,
}

/// What is sent along.
pub enum Content {
    Nothing,
    Document(Vec<u8>),
    Bytes(Vec<u8>),
    /// Read as it is sent, with its sort.
    Stream(Box<dyn Read + Send>, &'static str),
}

/// A verb may work for some minutes before it answers.
const PATIENCE: Duration = Duration::from_secs(600);

impl Ask {
    fn new(method: Method, path: &[&str]) -> Ask {
        let target = path.iter().map(|part| format!("/{}", spelled(part.as_bytes()))).collect();
        Ask { method, target, headers: Vec::new(), content: Content::Nothing, patience: PATIENCE, waits: false }
    }

    pub fn get(path: &[&str]) -> Ask {
        Ask::new(Method::GET, path)
    }

    pub fn post(path: &[&str]) -> Ask {
        Ask::new(Method::POST, path)
    }

    pub fn put(path: &[&str]) -> Ask {
        Ask::new(Method::PUT, path)
    }

    pub fn patch(path: &[&str]) -> Ask {
        Ask::new(Method::PATCH, path)
    }

    pub fn delete(path: &[&str]) -> Ask {
        Ask::new(Method::DELETE, path)
    }

    pub fn query(mut self, name: &str, value: impl AsRef<[u8]>) -> Ask {
        let mark = if self.target.contains('?') { '&' } else { '?' };
        self.target.push(mark);
        self.target.push_str(&format!("{name}={}", spelled(value.as_ref())));
        self
    }

    /// The same where there is a value.
    pub fn query_if(self, name: &str, value: Option<impl AsRef<[u8]>>) -> Ask {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Result<Ask, Fault> {
        let value =
            HeaderValue::from_str(value).map_err(|_| Fault::invalid(format!("{name}: {value:?} is no header")))?;
        self.headers.push((HeaderName::from_static(name), value));
        Ok(self)
    }

    /// Only if it still has this version.
    pub fn if_version(mut self, version: Option<u64>) -> Ask {
        let value = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
        self.headers.extend(value.map(|value| (http::header::IF_MATCH, value)));
        self
    }

    pub fn document(mut self, document: &impl Serialize) -> Result<Ask, Fault> {
        let text = serde_json::to_vec(document).map_err(|e| Fault::internal(format!("a request: {e}")))?;
        self.content = Content::Document(text);
        Ok(self)
    }

    pub fn content(mut self, content: Content) -> Ask {
        self.content = content;
        self
    }
}

/// Letters, digits and few others as they are, every other byte as two digits.
fn spelled(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(*byte)),
            // A part that is `.` or `..` would be taken for a way.
            b'.' if bytes != b"." && bytes != b".." => out.push('.'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(crate) type Sent = BoxBody<Bytes, io::Error>;

impl Content {
    pub(crate) fn sort(&self) -> Option<&'static str> {
        match self {
            Content::Nothing => None,
            Content::Document(_) => Some("application/json"),
            Content::Bytes(_) => Some("application/octet-stream"),
            Content::Stream(_, sort) => Some(sort),
        }
    }

    pub(crate) fn body(self) -> Sent {
        match self {
            Content::Nothing => Empty::new().map_err(|never| match never {}).boxed(),
            Content::Document(bytes) | Content::Bytes(bytes) => {
                Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed()
            }
            Content::Stream(from, _) => Streamed::of(from).boxed(),
        }
    }
}

/// Pieces that wait between whoever reads and the connection, and how large one is.
const WAITING: usize = 2;
const PIECE: usize = 128 << 10;

/// A body that a thread reads, no faster than it is sent.
struct Streamed(mpsc::Receiver<io::Result<Bytes>>);

impl Streamed {
    fn of(mut from: Box<dyn Read + Send>) -> Streamed {
        let (sender, receiver) = mpsc::channel(WAITING);
        std::thread::spawn(move || {
            loop {
                let mut piece = vec![0; PIECE];
                let next = match from.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) => {
                        piece.truncate(count);
                        Ok(Bytes::from(piece))
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => Err(e),
                };
                let is_over = next.is_err();
                // Whoever takes no more has said why, or will.
                if sender.blocking_send(next).is_err() || is_over {
                    return;
                }
            }
        });
        Streamed(receiver)
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|next| next.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_to_another_route() {
        let target = |name: &str| Ask::get(&["v1", "sandboxes", name]).target;
        for (name, spelling) in [
            ("sbx_1", "sbx_1"),
            ("a/b", "a%2Fb"),
            ("/srv/x", "%2Fsrv%2Fx"),
            ("..", "%2E%2E"),
            (".", "%2E"),
            ("a.b", "a.b"),
            ("a?b#c%", "a%3Fb%23c%25"),
            ("ä\n", "%C3%A4%0A"),
        ] {
            assert_eq!(target(name), format!("/v1/sandboxes/{spelling}"));
        }
        let ask = Ask::get(&["v1"]).query("path", b"a b&\xff").query_if("x", None::<&str>).query("n", "1");
        assert_eq!(ask.target, "/v1?path=a%20b%26%FF&n=1");
    }
}
