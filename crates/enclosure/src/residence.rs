//! A resident guest: a live enclosure for many commands, whose first process waits for orders instead of starting one
//! command.

mod begin;
mod freeze;
mod hear;

use self::freeze::FreezeMethod;
pub use self::freeze::{FreezeResult, ResourceUsage};
use crate::faults::internal;
use crate::flock::JobId;
use crate::limits::Cpus;
use crate::publish::{self, Published};
use crate::running::RunningGuest;
use crate::terminal;
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::job::{self, ExecStatus, JobControl, JobEvent};
use sys::process;
use terms::{Denial, ErrorKind, Fault, LimitHit, Limits, Phase};

/// A command to start in a residence, fully decided.
#[derive(Debug)]
pub struct PlannedCommand {
    /// Absolute path of the program, as it is inside.
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// Absolute path inside.
    pub cwd: PathBuf,
    pub streams: Streams,
    /// Descriptors that the command gets as 100 and the numbers behind it, at most four; only beside pipes.
    pub inherit: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// A pipe for each stream; without `input` the command reads an end of file.
    Pipes { input: bool },
    /// A pty of the enclosure's own.
    Terminal { rows: u16, columns: u16 },
}

/// A started command with the supervisor's non-blocking ends of its streams.
#[derive(Debug)]
pub struct Started {
    pub job: JobId,
    /// Pid inside.
    pub pid: i32,
    /// Host pid of the shepherd above all processes of the command.
    pub shepherd: Option<i32>,
    pub input: Option<OwnedFd>,
    pub output: OwnedFd,
    /// `None` for a pty, which has one stream.
    pub error: Option<OwnedFd>,
}

/// An event in a residence.
#[derive(Debug)]
pub enum ResidenceEvent {
    /// The last process of the command is gone. Its streams may still hold bytes.
    Ended { job: JobId, end: CommandEnd },
    /// The first refusal of its kind, with its job where that is known.
    Denied { job: Option<JobId>, denial: Denial },
    /// A limit of the whole enclosure was exceeded, and its commands are being killed. A command that starts when none
    /// runs any more has fresh accounts, but for bytes over the network, which are counted over the life of the
    /// enclosure.
    Limit(LimitHit),
    /// The first process is gone, and every other with it; no command can be started any more. Follows the `Ended` of
    /// all jobs.
    Fell { reason: String },
}

/// The end of a command.
#[derive(Debug)]
pub struct CommandEnd {
    /// Wait status as `waitpid` gives it; `None` when the shepherd was killed from inside.
    pub status: Option<i32>,
    pub cpu_us: u64,
    pub max_rss_kb: u64,
    /// Set when the kernel killed one of its processes because the enclosure's memory was used up.
    pub out_of_memory: Option<LimitHit>,
    /// Refusals of the command with their counts, and how many more there were than are listed.
    pub denials: Vec<Denial>,
    pub denials_dropped: u64,
    /// Advice on failures that are no refusals.
    pub notes: Vec<String>,
}

/// A live enclosure for many commands. Dropping it kills every process in it.
pub struct Residence<'a> {
    guest: RunningGuest<'a>,
    epoll: OwnedFd,
    jobs: BTreeMap<JobId, Running>,
    last_job: u64,
    umask: u32,
    events: Vec<ResidenceEvent>,
    next_check: Option<Instant>,
    /// A limit was exceeded, and the commands of that time are not all gone yet.
    limited: bool,
    memory: OomKills,
    frozen: Option<FreezeMethod>,
    /// Signals to deliver after the thaw.
    pending_signals: Vec<(JobId, i32)>,
    /// Peak of the memory that `usage` measured.
    memory_peak: u64,
    is_gone: bool,
    /// The sandbox's own home, where it has one.
    home: Option<OwnedFd>,
}

/// A command that has not been reported as ended.
struct Running {
    control: JobControl,
    shepherd: OwnedFd,
    terminal: Option<OwnedFd>,
    /// Kept open to report an exec failure that is still unknown.
    _exec_status: Option<ExecStatus>,
    /// The end, where it was reported before the start was complete.
    early_end: Option<JobEvent>,
    /// Deadline after which the shepherd itself is killed.
    end_by: Option<Instant>,
    ending: bool,
    /// The OOM kill was attributed to this command.
    out_of_memory: bool,
}

/// OOM kills that are not attributed to a command yet.
#[derive(Default)]
struct OomKills {
    kills: u64,
    unclaimed: u64,
    since: Option<Instant>,
}

/// Time for a shepherd to kill its processes. After that it is killed itself, and the first process kills the rest.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// Signals kept during a freeze.
const MOST_PENDING_SIGNALS: usize = 256;

impl Residence<'_> {
    /// Sends a signal to the command's process group; false when it is gone. Signals 60 to 62 are not passed on.
    pub fn signal(&mut self, job: JobId, signal: i32) -> bool {
        let Some(running) = self.jobs.get(&job) else { return false };
        if self.frozen.is_some() {
            let room = self.pending_signals.len() < MOST_PENDING_SIGNALS;
            if room {
                self.pending_signals.push((job, signal));
            }
            return room;
        }
        job::signal(running.shepherd.as_fd(), signal)
    }

    /// Kills all processes of the command. A frozen command is killed after the thaw.
    pub fn end(&mut self, job: JobId) {
        let is_frozen = self.frozen.is_some();
        let Some(running) = self.jobs.get_mut(&job) else { return };
        if !std::mem::replace(&mut running.ending, true) && !is_frozen {
            running.end();
        }
    }

    /// Returns the refusals of a running command so far, with their counts.
    pub fn denials(&mut self, job: JobId) -> Vec<Denial> {
        self.guest.hear_reports();
        let flock = self.guest.judge.flock.as_mut();
        flock.and_then(|flock| flock.denials(job)).map(|denials| denials.list().to_vec()).unwrap_or_default()
    }

    /// Sets the size of a command's pty. False where it has none.
    pub fn resize(&mut self, job: JobId, rows: u16, columns: u16) -> bool {
        let master = self.jobs.get(&job).and_then(|running| running.terminal.as_ref());
        master.map(|master| terminal::resize(master.as_fd(), (rows, columns))).is_some()
    }

    /// Changes memory, process and processor limits of present and later commands. False where the enclosure was
    /// created without the controllers for them.
    pub fn change_limits(&mut self, limits: &Limits, cpus: &Cpus) -> Result<bool, Fault> {
        let ours = 1 + self.jobs.len() as u64;
        self.guest.meter.change(limits, cpus, ours)
    }

    /// Returns the descriptors to poll for reading, and the deadline of the next `turn`.
    pub fn waits(&self) -> (Vec<BorrowedFd<'_>>, Option<Instant>) {
        let ends = self.jobs.values().filter_map(|running| running.end_by);
        let look = self.next_check.filter(|_| self.frozen.is_none());
        (vec![self.epoll.as_fd()], ends.chain(look).min())
    }

    /// Returns the workspace as the guest sees it: for file access in a live sandbox, always through `openat2` and its
    /// handles. Files must be created with the ids of `owner`. `None` where the guest has no workspace.
    pub fn root(&self) -> Option<BorrowedFd<'_>> {
        self.guest.places.workspace.as_ref().map(AsFd::as_fd)
    }

    /// Returns the guest's private `/tmp`, for the same use. Mounts below it are the host's, and NO_XDEV keeps out of
    /// them. The guest's whole root is not handed out: it has devices, and files of /proc that show the host more than
    /// they show the guest.
    pub fn tmp(&self) -> Option<BorrowedFd<'_>> {
        self.guest.places.tmp.as_ref().map(AsFd::as_fd)
    }

    /// Returns the sandbox's own home with its path inside, for the same use as the private `/tmp`. `None` where it has none.
    pub fn home(&self) -> Option<(&Path, BorrowedFd<'_>)> {
        Some((self.guest.steps.home.as_deref()?, self.home.as_ref()?.as_fd()))
    }

    /// Returns the first process's pid on the host.
    pub fn first(&self) -> i32 {
        self.guest.spawned.pid
    }

    /// Returns the host ids of the guest's own files.
    pub fn owner(&self) -> (u32, u32) {
        let guest = self.guest.steps.guest;
        (guest.host_uid, guest.host_gid)
    }

    /// Connects to a server inside, on its loopback. The stream is non-blocking.
    pub fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        let helper = self.guest.helper.as_ref().ok_or_else(unreachable_inside)?;
        let stream = publish::reach(helper, port).filter(|_| !self.is_gone);
        stream.map(OwnedFd::from).ok_or_else(|| {
            Fault::new(ErrorKind::Unavailable, format!("nothing inside listens on port {port}"))
                .hint("start a server there that listens on 127.0.0.1, [::1] or all addresses")
                .phase(Phase::Execution)
        })
    }

    /// Replaces the set of published ports: `opened` has listeners for the new ones. Connections to ports that are no
    /// longer published are reset.
    pub fn publish(&mut self, wanted: Vec<(SocketAddr, u16)>, opened: Vec<Published>) -> Result<(), Fault> {
        let over = || {
            let message = "no port is published any more: the limit on bytes was reached, or the sandbox is ending";
            Fault::new(ErrorKind::Conflict, message).hint("start the sandbox again").phase(Phase::Execution)
        };
        match (&self.guest.publisher, opened.is_empty()) {
            (Some(publisher), _) => publisher.set(wanted, opened).then_some(()).ok_or_else(over),
            (None, true) => Ok(()),
            (None, false) => {
                if !self.guest.begin_to_publish(opened)? {
                    return Err(unreachable_inside());
                }
                let wake = self.guest.publisher.as_ref().map(|publisher| publisher.wake());
                wake.map_or(Ok(()), |wake| watch(&self.epoll, wake, EpollSlot::Network, epoll::EventFlags::IN))
            }
        }
    }

    /// Kills every process and waits until all are gone.
    pub fn close(self) {}
}

impl Drop for Residence<'_> {
    fn drop(&mut self) {
        self.guest.kill();
        self.frozen = None;
        self.guest.reap();
        if let Some(publisher) = &mut self.guest.publisher {
            publisher.close();
        }
        if let Some(asking) = &mut self.guest.judge.asking {
            asking.close();
        }
        if let Some(network) = &mut self.guest.network {
            network.close();
        }
        self.guest.meter.close();
    }
}

impl Running {
    fn end(&mut self) {
        job::end(self.shepherd.as_fd());
        self.end_by = Some(Instant::now() + ENDS_WITHIN);
    }

    /// Kills a shepherd that did not end in time; the first process then kills its descendants.
    fn give_up(&mut self) {
        process::signal(self.shepherd.as_fd(), crate::running::SIGKILL);
        self.end_by = None;
    }
}

/// The meaning of an epoll entry.
#[derive(Clone, Copy)]
enum EpollSlot {
    Control,
    Listener,
    Network,
    Event,
    Job(JobId),
}

impl EpollSlot {
    fn word(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            EpollSlot::Control => 0,
            EpollSlot::Listener => 1,
            EpollSlot::Network => 2,
            EpollSlot::Event => 3,
            EpollSlot::Job(job) => 4 + job.0,
        })
    }

    fn of(word: epoll::EventData) -> EpollSlot {
        match word.u64() {
            0 => EpollSlot::Control,
            1 => EpollSlot::Listener,
            2 => EpollSlot::Network,
            3 => EpollSlot::Event,
            job => EpollSlot::Job(JobId(job - 4)),
        }
    }
}

/// Returns the fault of an enclosure whose first process is gone.
fn enclosure_gone(phase: Phase) -> Fault {
    retryable("the enclosure ended unexpectedly", phase)
}

/// Returns a fault that a retry may resolve, because there is another enclosure by then.
fn retryable(message: impl Into<String>, phase: Phase) -> Fault {
    Fault::new(ErrorKind::Unavailable, message).hint("try again; `cofferdam inspect` shows its state").phase(phase)
}

fn unreachable_inside() -> Fault {
    let message =
        "ports inside cannot be reached here: the guest's network namespace can be neither created early nor entered";
    Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Execution)
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, slot: EpollSlot, flags: epoll::EventFlags) -> Result<(), Fault> {
    epoll::add(epoll, fd, slot.word(), flags).map_err(|e| {
        let error = sys::CallError { call: "epoll_ctl", errno: e.raw_os_error() };
        internal(Phase::Start, error)
    })
}
