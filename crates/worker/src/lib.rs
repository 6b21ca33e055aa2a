//! The supervisor's side of a worker: how an interpreter is started, the channel to it, and the events that come back. A worker is a process
//! of the guest, so everything that it writes is checked, and what breaks a rule ends that worker alone. Nothing here knows sandboxes,
//! keepers or limits.
//!
//! ```text
//!   launch      command line, descriptors and greeting of a worker     python.py, javascript.js, bash.sh: the workers
//!   channel     one interface for both kinds:  rings (Python, JavaScript)   shell (Bash)
//!   frame       frames in a ring                message    frames ─▶ events
//! ```

mod channel;
mod frame;
mod launch;
mod message;
mod rings;
mod shell;

pub use channel::Channel;
pub use launch::{Ends, Hello, Launch, figures, hang_up, interrupted};
pub use message::{EndStatus, Event, Received};

use std::fmt;
use sys::ring::RingError;

/// The reason why a worker is not used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It ended, or closed its channel.
    Gone,
    /// What it wrote breaks this rule of the protocol.
    Rule(String),
}

impl Broken {
    fn rule(text: impl Into<String>) -> Broken {
        Broken::Rule(text.into())
    }
}

impl From<RingError> for Broken {
    fn from(error: RingError) -> Broken {
        Broken::Rule(error.to_string())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Gone => write!(f, "the interpreter ended"),
            Broken::Rule(rule) => write!(f, "the interpreter broke the worker protocol: {rule}"),
        }
    }
}

impl std::error::Error for Broken {}
