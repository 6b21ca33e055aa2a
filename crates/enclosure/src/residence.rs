//! An enclosure that stands while commands come and go: its first process waits for orders instead of starting one command.

use crate::launch::{Beside, Prepared};
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;
use terms::{Denial, Fault, LimitHit};

/// One command in a standing enclosure, by number; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Job(pub u64);

/// What to start.
#[derive(Debug)]
pub struct Start {
    /// Absolute path of the program, as it is inside.
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// Absolute, as it is inside.
    pub cwd: PathBuf,
    pub streams: Streams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// A pipe each; without `input` the command reads an end of file.
    Pipes { input: bool },
    /// A terminal of the enclosure's own.
    Terminal { rows: u16, columns: u16 },
}

/// Our ends of a command's streams; none of them blocks.
#[derive(Debug)]
pub struct Started {
    pub job: Job,
    /// Its number inside.
    pub pid: i32,
    pub input: Option<OwnedFd>,
    pub output: OwnedFd,
    /// None for a terminal, which has one stream.
    pub error: Option<OwnedFd>,
}

/// What happened since the last look.
#[derive(Debug)]
pub enum Happened {
    /// The command and all that came of it are gone. Its streams may still hold bytes.
    Ended { job: Job, end: End },
    /// A refusal, with the job whose processes it concerns where that can be told.
    Denied { job: Option<Job>, denial: Denial },
    /// A limit of the whole enclosure was met. What runs is being ended.
    Limit(LimitHit),
    /// The first process is gone, and with it everything; nothing can be started any more.
    Fell { reason: String },
}

#[derive(Debug)]
pub struct End {
    /// As `waitpid` gives it; none when whoever watched over it was killed from inside.
    pub status: Option<i32>,
    pub cpu_us: u64,
    pub max_rss_kb: u64,
    /// The kernel killed it because the enclosure's memory was used up.
    pub out_of_memory: Option<LimitHit>,
}

/// What the whole enclosure uses now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
}

/// A standing enclosure. Dropped, it falls, and everything in it ends.
pub struct Residence<'a> {
    _held: std::marker::PhantomData<&'a ()>,
}

impl Prepared {
    /// Builds the enclosure and waits until it stands. The request's command is not started.
    pub fn reside<'a>(self, beside: Beside<'a>) -> Result<Residence<'a>, Fault> {
        let _ = beside;
        Err(Fault::internal("not built"))
    }
}

impl Residence<'_> {
    pub fn start(&mut self, start: Start) -> Result<Started, Fault> {
        let _ = start;
        Err(Fault::internal("not built"))
    }

    /// Passes a signal to the command's group; false when it is gone.
    pub fn signal(&mut self, _job: Job, _signal: i32) -> bool {
        false
    }

    /// Kills the command and all that came of it.
    pub fn end(&mut self, _job: Job) {}

    pub fn resize(&mut self, _job: Job, _rows: u16, _columns: u16) {}

    /// What to poll for reading, and when to look even so.
    pub fn waits(&self) -> (Vec<BorrowedFd<'_>>, Option<Instant>) {
        (Vec::new(), None)
    }

    /// Deals with whatever happened; to be called whenever one of those is ready or the time has come. Never blocks for long.
    pub fn turn(&mut self) -> Result<Vec<Happened>, Fault> {
        Ok(Vec::new())
    }

    /// The workspace as the guest sees it: for files of a live sandbox, always through `openat2` and its handles. What is made
    /// there must be made under `owner`.
    pub fn root(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The ids on the host that the guest's own files have in its mounts.
    pub fn owner(&self) -> (u32, u32) {
        (0, 0)
    }

    /// Stops every process, until `thaw`. Says what it was done with: "cgroup" or "signals".
    pub fn freeze(&mut self) -> Result<&'static str, Fault> {
        Err(Fault::internal("not built"))
    }

    pub fn thaw(&mut self) -> Result<(), Fault> {
        Err(Fault::internal("not built"))
    }

    pub fn usage(&mut self) -> Use {
        Use::default()
    }

    /// A stream to a port that something inside listens on, on its loopback.
    pub fn connect(&mut self, _port: u16) -> Result<OwnedFd, Fault> {
        Err(Fault::internal("not built"))
    }

    /// Ends everything and waits until it is gone.
    pub fn close(self) {}
}
