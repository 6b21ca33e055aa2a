//! Server-sent events, read as they come. A daemon sends something on every stream now and then, so silence is a dead connection.

use super::connection::with_causes;
use super::server::Server;
use super::unavailable;
use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Body;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};

/// A daemon sends something every fifteen seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest event that is accepted.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSentEvent {
    pub name: String,
    pub id: Option<u64>,
    pub data: String,
}

/// The answer of a function that is given events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamControl {
    Continue,
    Stop,
}

/// A stream of events.
pub struct Events<B> {
    server: Server,
    body: B,
    buffer: Buffer,
}

impl<B> Events<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    pub fn of(server: &Server, answer: Response<B>) -> Result<Events<B>, Fault> {
        let sort = answer.headers().get(http::header::CONTENT_TYPE).and_then(|sort| sort.to_str().ok());
        if !sort.is_some_and(|sort| sort.starts_with("text/event-stream")) {
            let fault = Fault::new(
                ErrorKind::ProviderFailed,
                format!("{}: its response is not a stream of events", server.address),
            );
            return Err(fault.phase(Phase::Delivery).hint("check that --server names a daemon of the same version"));
        }
        Ok(Events { server: server.clone(), body: answer.into_body(), buffer: Buffer::default() })
    }

    /// Returns the next event; none when the stream has ended in order.
    pub async fn next(&mut self) -> Result<Option<ServerSentEvent>, Fault> {
        loop {
            if let Some(event) = self.buffer.event() {
                return Ok(Some(event));
            }
            if self.buffer.bytes.len() > MAX_EVENT_BYTES {
                return Err(unavailable(&self.server, format!("an event has more than {MAX_EVENT_BYTES} bytes")));
            }
            match tokio::time::timeout(self.server.timeout(SILENCE_TIMEOUT), self.body.frame()).await {
                Err(_) => return Err(unavailable(&self.server, "the stream is silent")),
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => self.buffer.bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Ok(Some(Err(e))) => {
                    return Err(unavailable(&self.server, format!("the stream broke off: {}", with_causes(&e))));
                }
            }
        }
    }
}

/// Bytes that were received and not yet returned as events.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// The length of the prefix that is known to contain no end of an event.
    searched: usize,
}

impl Buffer {
    /// Removes the next complete event. Comments are skipped.
    fn event(&mut self) -> Option<ServerSentEvent> {
        loop {
            let from = self.searched.saturating_sub(1);
            let Some(end) = self.bytes[from..].windows(2).position(|two| two == b"\n\n") else {
                self.searched = self.bytes.len();
                return None;
            };
            let end = from + end + 2;
            let rest = self.bytes.split_off(end);
            let text = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            let event = read(&String::from_utf8_lossy(&text));
            if event.is_some() {
                return event;
            }
        }
    }
}

fn read(text: &str) -> Option<ServerSentEvent> {
    let (mut event, mut lines) = (ServerSentEvent::default(), 0);
    for line in text.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut event.name),
            "id" => event.id = value.parse().ok(),
            "data" => {
                if lines > 0 {
                    event.data.push('\n');
                }
                event.data.push_str(value);
                lines += 1;
            }
            _ => {}
        }
    }
    (lines > 0 || !event.name.is_empty()).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = b": hello\n\nevent: stdout\nid: 7\ndata: {\"a\":1}\n\n:\n\ndata: x\ndata:y\n\nevent: end\ndata: z\n\nevent: half";
        let whole = |name: &str, id, data: &str| ServerSentEvent { name: name.into(), id, data: data.into() };
        let wanted = vec![whole("stdout", Some(7), "{\"a\":1}"), whole("", None, "x\ny"), whole("end", None, "z")];
        for piece in [1, 2, 3, 7, text.len()] {
            let (mut buffer, mut found) = (Buffer::default(), Vec::new());
            for part in text.chunks(piece) {
                buffer.bytes.extend_from_slice(part);
                while let Some(event) = buffer.event() {
                    found.push(event);
                }
            }
            assert_eq!(found, wanted, "in pieces of {piece}");
        }
    }
}
