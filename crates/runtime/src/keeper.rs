//! Keepers: one small process for each live sandbox, which holds its enclosure, runs commands in it, spools their output and answers
//! requests over a socket. Clients may connect and disconnect at any time.

mod birth;
pub mod client;
pub mod journal;
mod keep;
mod keepers;
pub mod request_digest;
pub mod starting;
pub mod survey;
pub mod wire;

pub use crate::keeper_dir::{lost, place, services, spool};
pub use crate::watch;
pub use birth::{announce, stand_alone};
pub use client::{Contact, Follow, FromReply, Keeper, Pending, RunEnd};
pub use keep::{Begin, MOST_RUNS, keep};
pub use keepers::Keepers;
pub use starting::KeeperPurpose;

use crate::Node;
use state::Caller;
use std::path::Path;
use terms::Fault;

/// Arguments of `cofferdam keep`, besides the sandbox and its idle timeout.
const FOR_FILES: &str = "files";
const DESCRIPTORS: &str = "descriptors=";
const KEPT_SECRETS: &str = "kept-secrets";

/// Returns the keeper of a sandbox, starting it where the sandbox is not live or is hibernated. A frozen sandbox is thawed by requests for
/// a command or a port, and by input, a terminal size or a signal for a command in it.
pub fn wake(node: &Node, caller: &Caller, state: &Path, sandbox: &str) -> Result<Keeper, Fault> {
    Keeper::ensure(node, caller, state, sandbox)
}
