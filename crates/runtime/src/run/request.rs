//! A run as it is requested: by flags of the command line, a document over HTTP, or a keeper for its sandbox. Decides nothing.

use super::place::ChangeDestination;
use crate::policies::{Flag, RequestedPolicy};
use crate::watch::WatchOptions;
use enclosure::Stdio;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use terms::Limits;

/// A request for one run.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// The command and its arguments; or, with `shell`, the arguments after the shell string.
    pub command: Vec<OsString>,
    /// Text to run with `sh -c`.
    pub shell: Option<OsString>,
    pub policies: Vec<RequestedPolicy>,
    pub flags: Vec<Flag>,
    pub limits: Limits,
    pub cpus: Option<f64>,
    /// `NAME` passes the caller's value, `NAME=VALUE` sets one.
    pub env: Vec<OsString>,
    /// The directory in which the command starts, relative to the one that it works on.
    pub workdir: Option<PathBuf>,
    pub place: ChangeDestination,
    /// Ports of the guest to publish on the host, each `[ADDRESS:]HOST:GUEST`.
    pub publish: Vec<String>,
    /// Sources of secrets, each `NAME=env:VAR|file:PATH|cmd:COMMAND`.
    pub secrets: Vec<String>,
    /// Network events are written to a file.
    pub events: bool,
    pub stdio: Stdio,
    pub report_reads: bool,
    /// Timeout of a question to a person; the default where none is given.
    pub ask_timeout: Option<Duration>,
    pub learn: Learn,
}

impl RunRequest {
    /// Returns the watch mode that the command relies on.
    pub fn watch(&self) -> WatchOptions {
        let ask_timeout_ms = self.ask_timeout.and_then(|time| u64::try_from(time.as_millis()).ok());
        WatchOptions { report_reads: self.report_reads, ask_timeout_ms }
    }
}

/// Detail of the reports to a run's observer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learn {
    /// Denials only.
    #[default]
    Nothing,
    /// Used files, programs and sockets, as well.
    Files,
    /// Attempted network traffic, as well; names that may not be resolved get unreachable addresses that accept connections.
    All,
}
