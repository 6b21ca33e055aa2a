//! What goes to a run: pieces of input one after the other, each by its offset and taken before the next is sent, so that one whose
//! answer was lost is sent again and nothing arrives twice; signals and sizes of the terminal beside them, so that neither waits for
//! a command that does not read.

use crate::ask::{Ask, Content, Sent};
use crate::connect;
use crate::server::Server;
use hyper::client::conn::http1::SendRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::Read;
use terms::{ErrorKind, Fault, Phase};
use tokio::sync::mpsc;

/// Read at once.
const PIECE: usize = 64 << 10;
/// Ctrl-P Ctrl-Q, as people know it.
const LEAVE: [u8; 2] = [16, 17];

/// Standard input, read by a thread: nothing else can wait for it together with connections. One piece is read ahead.
pub fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let mut piece = vec![0; PIECE];
            let count = match std::io::stdin().lock().read(&mut piece) {
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            piece.truncate(count);
            if sender.blocking_send(piece).is_err() || count == 0 {
                return;
            }
        }
    });
    receiver
}

/// Whether the keys to leave were pressed, also over several pieces.
#[derive(Default)]
pub struct Keys(usize);

impl Keys {
    pub fn leave(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            self.0 = match LEAVE.get(self.0) {
                Some(key) if key == byte => self.0 + 1,
                _ => usize::from(*byte == LEAVE[0]),
            };
            if self.0 == LEAVE.len() {
                self.0 = 0;
                return true;
            }
        }
        false
    }
}

/// A connection that is kept between requests.
pub struct Line {
    server: Server,
    run: String,
    sender: Option<SendRequest<Sent>>,
    /// Who we are among those who write to the run, and how much of ours it has.
    writer: String,
    offset: u64,
}

/// What became of a piece.
pub enum Given {
    Taken,
    /// The run takes no input any more.
    Closed,
    /// Nobody answered: it can be sent again.
    Lost,
    /// It is refused, and so would be the next.
    Refused(Fault),
}

#[derive(Deserialize)]
struct Acknowledged {
    #[serde(default)]
    offset: Option<u64>,
}

impl Line {
    pub fn new(server: &Server, run: &str, writer: [u8; 16]) -> Line {
        let writer = writer.iter().map(|byte| format!("{byte:02x}")).collect();
        Line { server: server.clone(), run: run.to_owned(), sender: None, writer, offset: 0 }
    }

    async fn ask<T: DeserializeOwned>(&mut self, ask: Ask) -> Result<T, Fault> {
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => {
                let made = connect::line(&self.server).await;
                made?
            }
        };
        let ready = sender.ready().await;
        ready.map_err(|e| crate::unavailable(&self.server, connect::told(&e)))?;
        let answer = connect::on(&self.server, &mut sender, ask).await?;
        let read = crate::answer::document(&self.server, answer).await?;
        self.sender = Some(sender);
        Ok(read)
    }

    /// Gives a piece to the run's input; an empty one is its end.
    pub async fn give(&mut self, piece: &[u8]) -> Given {
        let mut ask = Ask::post(&["v1", "runs", &self.run, "input"]);
        ask = ask.query("writer", &self.writer).query("offset", self.offset.to_string());
        if piece.is_empty() {
            ask = ask.query("eof", "true");
        } else {
            ask = ask.content(Content::Bytes(piece.to_vec()));
        }
        // It may wait as long as the command does not read.
        ask.waits = true;
        let behind = self.offset + piece.len() as u64;
        match self.ask(ask).await {
            Ok(Acknowledged { offset }) if offset == Some(behind) || piece.is_empty() => {
                self.offset = behind;
                Given::Taken
            }
            Ok(Acknowledged { offset }) => Given::Refused(misled(&self.run, behind, offset)),
            Err(fault) if fault.error_kind == ErrorKind::Unavailable => Given::Lost,
            // It does not read any more, or has ended.
            Err(fault) if matches!(fault.error_kind, ErrorKind::Conflict | ErrorKind::NotFound) => Given::Closed,
            Err(fault) => Given::Refused(fault),
        }
    }

    /// Sends a signal or a size. True when it need not be sent again.
    pub async fn tell(&mut self, what: &str, document: &impl Serialize) -> bool {
        let Ok(mut ask) = Ask::post(&["v1", "runs", &self.run, what]).document(document) else { return true };
        ask.patience = std::time::Duration::from_secs(10);
        match self.ask::<serde::de::IgnoredAny>(ask).await {
            Ok(_) => true,
            Err(fault) => fault.error_kind != ErrorKind::Unavailable,
        }
    }
}

/// An answer that no daemon of ours gives.
fn misled(run: &str, sent: u64, told: Option<u64>) -> Fault {
    let told = told.map_or_else(|| "nothing".to_owned(), |told| told.to_string());
    let message = format!("of {sent} bytes of input that {run} was sent, {told} are said to have arrived");
    let hint = format!("the run goes on: `cofferdam attach {run}`");
    Fault::new(ErrorKind::ProviderFailed, message).hint(hint).subject(run).phase(Phase::Delivery)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_to_leave_are_heard_over_several_pieces() {
        let leaves = |pieces: &[&[u8]]| {
            let mut keys = Keys::default();
            pieces.iter().any(|piece| keys.leave(piece))
        };
        assert!(leaves(&[b"\x10\x11"]) && leaves(&[b"a\x10", b"\x11"]) && leaves(&[b"\x10\x10\x11"]));
        assert!(!leaves(&[b"\x10a\x11"]) && !leaves(&[b"\x11\x10"]) && !leaves(&[b""]));
    }
}
