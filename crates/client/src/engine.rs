//! The engine: one method for each verb, carried out in this process through `node` or by a daemon over HTTP, with the same answer either way.

mod access;
mod audit;
mod code;
mod file_place;
mod files;
mod network;
mod policies;
mod remote;
mod review;
mod runs;
mod sandbox_create;
mod sandboxes;
mod snapshots;

pub use audit::EventQuery;
pub use file_place::SandboxPath;
pub use network::NetworkLog;
pub use remote::Remote;
pub use runs::{RunRecord, SecretValues};

use node::{Caller, Node};
use terms::{ErrorKind, Fault, Phase};

/// The place where verbs are carried out.
pub enum Engine {
    /// In this process, on this host.
    Local(Node, Caller),
    /// By a daemon.
    Remote(Remote),
}

impl Engine {
    /// Returns the caller on whose behalf verbs are carried out.
    pub fn caller(&self) -> &Caller {
        match self {
            Engine::Local(_, caller) => caller,
            Engine::Remote(remote) => &remote.caller,
        }
    }
}

/// A fault for something that the HTTP API does not offer.
pub fn unsupported_by_daemon(what: &str, why: &str, hint: &str) -> Fault {
    let message = format!("{what} is not available over a daemon: {why}");
    Fault::new(ErrorKind::UnsupportedHost, message).hint(hint).phase(Phase::Admission)
}
