//! Input of a run: chunks one after the other, each by its offset and acknowledged before the next is sent, so that a chunk whose
//! acknowledgement was lost is sent again and nothing arrives twice. Signals and terminal sizes have a connection of their own, so that
//! neither waits for a command that does not read.

use super::connection;
use super::request::{Request, RequestBody, SentBody};
use super::server::Server;
use hyper::client::conn::http1::SendRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::time::Duration;
use terms::{ErrorKind, Fault, Phase};
use tokio::sync::mpsc;

/// The largest chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Ctrl-P Ctrl-Q, as in other container tools.
const DETACH_KEYS: [u8; 2] = [16, 17];
/// Timeout for the acknowledgement of a signal or size.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads input on a thread, which can block where a task cannot. One chunk is read ahead; an empty one is the end.
pub fn read_chunks(mut input: Box<dyn Read + Send>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let count = match input.read(&mut chunk) {
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            chunk.truncate(count);
            if sender.blocking_send(chunk).is_err() || count == 0 {
                return;
            }
        }
    });
    receiver
}

/// The detach keys, recognised also over several chunks.
#[derive(Default)]
pub struct DetachKeys(usize);

impl DetachKeys {
    pub fn pressed(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.0 = match DETACH_KEYS.get(self.0) {
                Some(key) if key == byte => self.0 + 1,
                _ => usize::from(*byte == DETACH_KEYS[0]),
            };
            if self.0 == DETACH_KEYS.len() {
                self.0 = 0;
                return true;
            }
        }
        false
    }
}

/// A connection to a run that is kept between requests.
pub struct RunChannel {
    server: Server,
    run: String,
    sender: Option<SendRequest<SentBody>>,
    /// The id of this writer, and how many of its bytes are acknowledged.
    writer: String,
    offset: u64,
}

/// The fate of a chunk.
pub enum Sent {
    Acknowledged,
    /// The run takes no input any more.
    Closed,
    /// No response came: it can be sent again.
    Lost,
    /// The chunk is refused, and so would be the next.
    Refused(Fault),
}

#[derive(Deserialize)]
struct Acknowledgement {
    #[serde(default)]
    offset: Option<u64>,
}

impl RunChannel {
    pub fn new(server: &Server, run: &str, writer: [u8; 16]) -> RunChannel {
        let writer = terms::hex::encode(writer);
        RunChannel { server: server.clone(), run: run.to_owned(), sender: None, writer, offset: 0 }
    }

    async fn document<T: DeserializeOwned>(&mut self, request: Request) -> Result<T, Fault> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let made = connection::connect(&self.server).await;
                made?
            }
        };
        let ready = sender.ready().await;
        ready.map_err(|e| super::unavailable(&self.server, connection::with_causes(&e)))?;
        let response = connection::send_on(&self.server, &mut sender, request).await?;
        let document = super::response::document(&self.server, response).await?;
        self.sender = Some(sender);
        Ok(document)
    }

    /// Sends a chunk to the run's input; an empty one closes it.
    pub async fn send_input(&mut self, chunk: &[u8]) -> Sent {
        let mut request = Request::post(&["v1", "runs", &self.run, "input"]);
        request = request.query("writer", &self.writer).query("offset", self.offset.to_string());
        if chunk.is_empty() {
            request = request.query("eof", "true");
        } else {
            request = request.body(RequestBody::Bytes(chunk.to_vec()));
        }
        // The acknowledgement waits for the command to read.
        request.timeout = None;
        let behind = self.offset + chunk.len() as u64;
        match self.document(request).await {
            Ok(Acknowledgement { offset }) if offset == Some(behind) || chunk.is_empty() => {
                self.offset = behind;
                Sent::Acknowledged
            }
            Ok(Acknowledgement { offset }) => Sent::Refused(wrong_offset(&self.run, behind, offset)),
            Err(fault) if fault.error_kind == ErrorKind::Unavailable => Sent::Lost,
            // The command closed its input, or has ended.
            Err(fault) if matches!(fault.error_kind, ErrorKind::Conflict | ErrorKind::NotFound) => Sent::Closed,
            Err(fault) => Sent::Refused(fault),
        }
    }

    /// Sends a signal or a size. True when it need not be sent again.
    pub async fn send_control(&mut self, verb: &str, document: &impl Serialize) -> bool {
        let Ok(mut request) = Request::post(&["v1", "runs", &self.run, verb]).document(document) else { return true };
        request.timeout = Some(CONTROL_TIMEOUT);
        match self.document::<serde::de::IgnoredAny>(request).await {
            Ok(_) => true,
            Err(fault) => fault.error_kind != ErrorKind::Unavailable,
        }
    }
}

/// A fault for an acknowledgement that does not match what was sent.
fn wrong_offset(run: &str, sent: u64, acknowledged: Option<u64>) -> Fault {
    let acknowledged = acknowledged.map_or_else(|| "nothing".to_owned(), |offset| offset.to_string());
    let message = format!("{run} received {acknowledged} of {sent} bytes of input that were sent");
    let hint = format!("the run is still running: `cofferdam attach {run}`");
    Fault::new(ErrorKind::ProviderFailed, message).hint(hint).subject(run).phase(Phase::Delivery)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_detach_keys_are_recognised_over_several_chunks() {
        let pressed = |chunks: &[&[u8]]| {
            let mut keys = DetachKeys::default();
            chunks.iter().any(|chunk| keys.pressed(chunk))
        };
        assert!(pressed(&[b"\x10\x11"]) && pressed(&[b"a\x10", b"\x11"]) && pressed(&[b"\x10\x10\x11"]));
        assert!(!pressed(&[b"\x10a\x11"]) && !pressed(&[b"\x11\x10"]) && !pressed(&[b""]));
    }
}
