//! HTTP to one daemon: its address, authentication of both sides, requests and responses. Knows nothing of sandboxes;
//! the meaning of a document is the caller's. Every call blocks its thread, and every wait has a timeout.
//!
//! ```text
//!  Address ─▶ Server ─▶ Client ─▶ Request ─▶ a document, bytes, or events
//!             trust     runtime              attach: a run's output and input, over several connections if need be
//! ```

mod address;
mod attach;
mod connection;
mod event_stream;
mod request;
mod response;
mod run_input;
mod server;

pub use address::Address;
pub use attach::{AttachEnd, AttachOptions, OutputKind, RunOutput, backwards};
pub use event_stream::{ServerSentEvent, StreamControl};
pub use request::{Request, RequestBody};
pub use server::{BearerToken, Server};

use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use std::io::Write;
use terms::{ErrorKind, Fault, Phase, Retry};
use tokio::runtime::{Builder, Runtime};

/// A client of one daemon.
pub struct Client {
    server: Server,
    runtime: Runtime,
}

impl Client {
    pub fn new(server: Server) -> Result<Client, Fault> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Fault::internal(format!("cannot start the runtime of the client: {e}")))?;
        Ok(Client { server, runtime })
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Sends a request and reads the response as a document.
    pub fn document<T: DeserializeOwned>(&self, request: Request) -> Result<T, Fault> {
        self.runtime.block_on(async {
            let response = connection::send(&self.server, request).await?;
            response::document(&self.server, response).await
        })
    }

    /// Sends a request and writes the body of the response as it arrives. A body that breaks off is a fault: `out` has a part of it.
    pub fn bytes(&self, request: Request, out: &mut dyn Write) -> Result<http::HeaderMap, Fault> {
        self.runtime.block_on(async {
            let response = connection::send(&self.server, request).await?;
            let (parts, body) = response.into_parts();
            response::bytes(&self.server, body, out).await?;
            Ok(parts.headers)
        })
    }

    /// Reads a stream of events until `each` stops it (true) or the stream ends (false).
    pub fn events(
        &self,
        request: Request,
        each: &mut dyn FnMut(ServerSentEvent) -> Result<StreamControl, Fault>,
    ) -> Result<bool, Fault> {
        self.runtime.block_on(async {
            let response = connection::send(&self.server, request).await?;
            let mut events: event_stream::Events<Incoming> = event_stream::Events::of(&self.server, response)?;
            while let Some(event) = events.next().await? {
                if each(event)? == StreamControl::Stop {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Attaches to a run until it ends or the detach keys are pressed. A lost connection is made again and continues at the last offset.
    pub fn attach(&self, run: &str, options: AttachOptions, output: &mut dyn RunOutput) -> Result<AttachEnd, Fault> {
        self.runtime.block_on(attach::attach(&self.server, run, options, output))
    }
}

/// Decodes base64 as the daemon writes it.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// A fault for a daemon that no connection reaches; nothing was sent.
fn unreachable(server: &Server, why: impl std::fmt::Display) -> Fault {
    unavailable(server, why).phase(Phase::Admission)
}

/// A fault for a connection that is lost in the middle of a request or its response.
fn unavailable(server: &Server, why: impl std::fmt::Display) -> Fault {
    let message = format!("cannot talk to the daemon at {}: {why}", server.address);
    let fault = Fault::new(ErrorKind::Unavailable, message).phase(Phase::Delivery).retry(Retry::Later);
    fault.hint("check that it runs (`cofferdam serve`) and that --server or COFFERDAM_SERVER names it")
}
