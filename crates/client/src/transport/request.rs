//! Requests: a method, a path whose parts are percent-encoded one by one, a query, headers, and a body.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::body::Frame;
use serde::Serialize;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use terms::Fault;
use tokio::sync::mpsc;

/// A request of the HTTP API.
pub struct Request {
    pub(super) method: Method,
    pub(super) target: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: RequestBody,
    /// Timeout until the response begins; `None` where it waits for a command.
    pub(super) timeout: Option<Duration>,
}

/// The body of a request.
pub enum RequestBody {
    Empty,
    Document(Vec<u8>),
    Bytes(Vec<u8>),
    /// Read while it is sent, with its media type.
    Stream(Box<dyn Read + Send>, &'static str),
}

/// Verbs may work for some minutes before they answer.
const TIMEOUT: Duration = Duration::from_secs(600);

impl Request {
    fn new(method: Method, path: &[&str]) -> Request {
        let target = path.iter().map(|part| format!("/{}", percent_encoded(part.as_bytes()))).collect();
        Request { method, target, headers: Vec::new(), body: RequestBody::Empty, timeout: Some(TIMEOUT) }
    }

    pub fn get(path: &[&str]) -> Request {
        Request::new(Method::GET, path)
    }

    pub fn post(path: &[&str]) -> Request {
        Request::new(Method::POST, path)
    }

    pub fn put(path: &[&str]) -> Request {
        Request::new(Method::PUT, path)
    }

    pub fn patch(path: &[&str]) -> Request {
        Request::new(Method::PATCH, path)
    }

    pub fn delete(path: &[&str]) -> Request {
        Request::new(Method::DELETE, path)
    }

    pub fn query(mut self, name: &str, value: impl AsRef<[u8]>) -> Request {
        let mark = if self.target.contains('?') { '&' } else { '?' };
        self.target.push(mark);
        self.target.push_str(&format!("{name}={}", percent_encoded(value.as_ref())));
        self
    }

    /// Adds a query parameter where there is a value.
    pub fn query_if(self, name: &str, value: Option<impl AsRef<[u8]>>) -> Request {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Result<Request, Fault> {
        let value = HeaderValue::from_str(value)
            .map_err(|e| Fault::invalid(format!("cannot set header {name} to {value:?}: {e}")))?;
        self.headers.push((HeaderName::from_static(name), value));
        Ok(self)
    }

    /// Adds `If-Match`: the verb is refused if the sandbox has another version.
    pub fn if_version(mut self, version: Option<u64>) -> Request {
        let value = version.and_then(|version| HeaderValue::from_str(&format!("\"{version}\"")).ok());
        self.headers.extend(value.map(|value| (http::header::IF_MATCH, value)));
        self
    }

    pub fn document(mut self, document: &impl Serialize) -> Result<Request, Fault> {
        let text = serde_json::to_vec(document)
            .map_err(|e| Fault::internal(format!("{} {}: cannot write its document: {e}", self.method, self.target)))?;
        self.body = RequestBody::Document(text);
        Ok(self)
    }

    pub fn body(mut self, body: RequestBody) -> Request {
        self.body = body;
        self
    }
}

/// Encodes every byte but unreserved ones as `%XX`.
fn percent_encoded(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(*byte)),
            // `.` and `..` would be resolved as path segments.
            b'.' if bytes != b"." && bytes != b".." => out.push('.'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A body as hyper sends it.
pub(super) type SentBody = BoxBody<Bytes, io::Error>;

impl RequestBody {
    pub(super) fn media_type(&self) -> Option<&'static str> {
        match self {
            RequestBody::Empty => None,
            RequestBody::Document(_) => Some("application/json"),
            RequestBody::Bytes(_) => Some("application/octet-stream"),
            RequestBody::Stream(_, media_type) => Some(media_type),
        }
    }

    pub(super) fn into_sent(self) -> SentBody {
        match self {
            RequestBody::Empty => Empty::new().map_err(|never| match never {}).boxed(),
            RequestBody::Document(bytes) | RequestBody::Bytes(bytes) => {
                Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed()
            }
            RequestBody::Stream(from, _) => StreamedBody::of(from).boxed(),
        }
    }
}

/// Chunks that are read ahead of the connection, and the size of one.
const CHUNKS_AHEAD: usize = 2;
const CHUNK_BYTES: usize = 128 << 10;

/// A body that a thread reads, no faster than it is sent.
struct StreamedBody(mpsc::Receiver<io::Result<Bytes>>);

impl StreamedBody {
    fn of(mut from: Box<dyn Read + Send>) -> StreamedBody {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        std::thread::spawn(move || {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let next = match from.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(count) => {
                        chunk.truncate(count);
                        Ok(Bytes::from(chunk))
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(e) => Err(e),
                };
                let is_over = next.is_err();
                // A receiver that is gone has reported its own fault.
                if sender.blocking_send(next).is_err() || is_over {
                    return;
                }
            }
        });
        StreamedBody(receiver)
    }
}

impl hyper::body::Body for StreamedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|next| next.map(|chunk| chunk.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_to_another_route() {
        let target = |name: &str| Request::get(&["v1", "sandboxes", name]).target;
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
        let request = Request::get(&["v1"]).query("path", b"a b&\xff").query_if("x", None::<&str>).query("n", "1");
        assert_eq!(request.target, "/v1?path=a%20b%26%FF&n=1");
    }
}
