//! Keepers: one small process for each live sandbox, which holds its enclosure, runs commands in it, keeps what they say, and can be
//! asked over a socket. Whoever asks may come and go.

pub mod attach;
pub mod begin;
mod birth;
pub mod client;
pub mod exec;
pub mod journal;
mod keep;
pub mod lost;
pub(crate) mod parts;
pub mod place;
pub mod resting;
pub mod runs;
pub mod services;
pub mod spool;
pub(crate) mod starting;
pub mod survey;
pub mod suspend;
pub mod watch;
pub mod wire;

pub use birth::{announce, stand_alone};
pub use client::{Come, Contact, Follow, Keeper, Pending, Said};
pub use keep::{Begin, MOST_RUNS, keep};
pub use starting::{Wanted, remember_descriptors};

use crate::Caller;
use std::path::Path;
use terms::Fault;

/// Words that a keeper is started with, beside its sandbox and how long it stays with nothing to do.
const FOR_FILES: &str = "files";
const DESCRIPTORS: &str = "descriptors=";

/// The keeper of a sandbox that shall do something: made live where it is not, and so woken where it is hibernated. What is frozen
/// wakes when it is asked for a command or a port, or for something of a command in it: input, a size, a signal.
pub fn wake(state: &Path, sandbox: &str, caller: &Caller) -> Result<Keeper, Fault> {
    Keeper::ensure(state, sandbox, caller)
}
