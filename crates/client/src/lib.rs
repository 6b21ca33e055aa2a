//! A daemon from the other side: where it is, who we are to it, what is asked and what it answers. Knows HTTP and nothing of
//! sandboxes; what the documents mean is known to whoever asks. Everything here blocks its caller, and has an end.
//!
//! ```text
//!  Address ─▶ Server ─▶ Client ─▶ Ask ─▶ a document, bytes, or events
//!  where      trust     one thread       visit: being at a run, over several connections if need be
//! ```

mod address;
mod answer;
mod ask;
mod connect;
mod events;
mod input;
mod server;
pub mod trust;
mod visit;

pub use address::Address;
pub use ask::{Ask, Content};
pub use events::{Event, Heard};
pub use server::{Server, Token};
pub use visit::{Left, Manner, Stream, Visitor, backwards};

use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::io::Write;
use terms::{Fault, Phase};
use tokio::runtime::{Builder, Runtime};

/// Speaks to one daemon.
pub struct Client {
    server: Server,
    runtime: Runtime,
}

impl Client {
    pub fn new(server: Server) -> Result<Client, Fault> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Fault::internal(format!("no runtime: {e}")))?;
        Ok(Client { server, runtime })
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Asks for a document.
    pub fn document<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Fault> {
        self.runtime.block_on(async {
            let answer = connect::send(&self.server, ask).await?;
            answer::document(&self.server, answer).await
        })
    }

    /// Asks for bytes, which are written as they come. A stream that breaks off is a fault: what was written is not all.
    pub fn bytes(&self, ask: Ask, out: &mut dyn Write) -> Result<http::HeaderMap, Fault> {
        self.runtime.block_on(async {
            let answer = connect::send(&self.server, ask).await?;
            let (parts, body) = answer.into_parts();
            answer::bytes(&self.server, body, out).await?;
            Ok(parts.headers)
        })
    }

    /// Hears events until `each` has heard enough, or the stream has ended: then false.
    pub fn events(&self, ask: Ask, each: &mut dyn FnMut(Event) -> Result<Heard, Fault>) -> Result<bool, Fault> {
        self.runtime.block_on(async {
            let answer = connect::send(&self.server, ask).await?;
            let mut events: events::Events<Incoming> = events::Events::of(&self.server, answer)?;
            while let Some(event) = events.next().await? {
                if each(event)? == Heard::Enough {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Stays with a run until its end, or until the keys to leave are pressed. A connection that is lost is made again, and
    /// goes on where the one before was.
    pub fn visit(&self, run: &str, manner: Manner, visitor: &mut dyn Visitor) -> Result<Left, Fault> {
        self.runtime.block_on(visit::visit(&self.server, run, manner, visitor))
    }
}

/// Bytes that a daemon has written as text.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// There is nobody to be asked; nothing was sent.
fn unreachable(server: &Server, why: impl std::fmt::Display) -> Fault {
    unavailable(server, why).phase(Phase::Admission)
}

/// The daemon is lost in the middle of a request or its answer.
fn unavailable(server: &Server, why: impl std::fmt::Display) -> Fault {
    let message = format!("the daemon at {} cannot be spoken to: {why}", server.address);
    let fault = Fault::new(terms::ErrorKind::Unavailable, message).phase(Phase::Delivery).retry(terms::Retry::Later);
    fault.hint("see whether it runs (`cofferdam serve`) and --server or COFFERDAM_SERVER names it")
}
