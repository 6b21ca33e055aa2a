//! An enclosure that stands while commands come and go: its first process waits for orders instead of starting one command.

mod begin;
mod hear;
mod still;

use self::still::Stillness;
pub use self::still::{Frozen, Use};
use crate::launch::internal;
use crate::limits::Cpus;
use crate::publish::{self, Published};
use crate::standing::Standing;
use crate::terminal;
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use sys::janitor::Janitor;
use sys::job::{self, Fate, Heard, Line};
use sys::process;
use terms::{Denial, ErrorKind, Fault, LimitHit, Limits, Phase};

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
    /// The number outside of the process that all of it is below.
    pub shepherd: Option<i32>,
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
    /// A refusal of a kind that was not refused before, with the job whose processes it concerns where that can be told.
    Denied { job: Option<Job>, denial: Denial },
    /// A limit of the whole enclosure was met. What runs is being ended. What is started once nothing runs any more begins with
    /// nothing used, but for bytes over the network, which are counted for as long as the enclosure stands.
    Limit(LimitHit),
    /// The first process is gone, and with it everything; nothing can be started any more. Told after the ends of all jobs.
    Fell { reason: String },
}

#[derive(Debug)]
pub struct End {
    /// As `waitpid` gives it; none when whoever watched over it was killed from inside.
    pub status: Option<i32>,
    pub cpu_us: u64,
    pub max_rss_kb: u64,
    /// The kernel killed one of its processes because the enclosure's memory was used up.
    pub out_of_memory: Option<LimitHit>,
    /// All its refusals with their counts, and how many more there were than are listed.
    pub denials: Vec<Denial>,
    pub denials_dropped: u64,
}

/// A standing enclosure. Dropped, it falls, and everything in it ends.
pub struct Residence<'a> {
    guest: Standing<'a>,
    janitor: Option<Janitor>,
    epoll: OwnedFd,
    jobs: BTreeMap<Job, Running>,
    last: u64,
    umask: u32,
    told: Vec<Happened>,
    look_at: Option<Instant>,
    /// A limit was met, and what ran then is not gone yet.
    limited: bool,
    memory: Memory,
    still: Option<Stillness>,
    /// Signals that wait for those who stand still.
    held: Vec<(Job, i32)>,
    /// The most memory that `usage` saw.
    peak: u64,
    fell: bool,
}

/// A command that is not known to have ended.
struct Running {
    line: Line,
    shepherd: OwnedFd,
    terminal: Option<OwnedFd>,
    /// Kept open, where it tells why its program does not run after all.
    _fate: Option<Fate>,
    /// That it is over, where that was told before its start was known.
    over: Option<Heard>,
    /// It is to end, and by then somebody else ends it.
    end_by: Option<Instant>,
    ending: bool,
    /// It was this one's process that memory was short for.
    out_of_memory: bool,
}

/// Who was lost to memory and is nobody's yet.
#[derive(Default)]
struct Memory {
    kills: u64,
    unclaimed: u64,
    since: Option<Instant>,
}

/// How long a shepherd may take to end its tree before it is ended itself, and its tree by the first process.
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// How many signals are kept for those who stand still.
const MOST_HELD: usize = 256;

impl Residence<'_> {
    /// Passes a signal to the command's group; false when it is gone. Numbers 60 to 62 are not passed on.
    pub fn signal(&mut self, job: Job, signal: i32) -> bool {
        let Some(running) = self.jobs.get(&job) else { return false };
        if self.still.is_some() {
            let room = self.held.len() < MOST_HELD;
            if room {
                self.held.push((job, signal));
            }
            return room;
        }
        job::signal(running.shepherd.as_fd(), signal)
    }

    /// Kills the command and all that came of it. One that stands still ends when it is woken.
    pub fn end(&mut self, job: Job) {
        let still = self.still.is_some();
        let Some(running) = self.jobs.get_mut(&job) else { return };
        if !std::mem::replace(&mut running.ending, true) && !still {
            running.end();
        }
    }

    /// False where it has no terminal.
    pub fn resize(&mut self, job: Job, rows: u16, columns: u16) -> bool {
        let master = self.jobs.get(&job).and_then(|running| running.terminal.as_ref());
        master.map(|master| terminal::resize(master.as_fd(), (rows, columns))).is_some()
    }

    /// Sets other limits on memory and processes, and other processors, for all that runs and will run. False where it was built
    /// without what would hold them.
    pub fn change_limits(&mut self, limits: &Limits, cpus: &Cpus) -> Result<bool, Fault> {
        let ours = 1 + self.jobs.len() as u64;
        self.guest.meter.change(limits, cpus, ours)
    }

    /// What to poll for reading, and when to look even so.
    pub fn waits(&self) -> (Vec<BorrowedFd<'_>>, Option<Instant>) {
        let ends = self.jobs.values().filter_map(|running| running.end_by);
        let look = self.look_at.filter(|_| self.still.is_none());
        (vec![self.epoll.as_fd()], ends.chain(look).min())
    }

    /// The workspace as the guest sees it: for files of a live sandbox, always through `openat2` and its handles. What is made
    /// there must be made under `owner`. None where the guest has no workspace.
    pub fn root(&self) -> Option<BorrowedFd<'_>> {
        self.guest.places.workspace.as_ref().map(AsFd::as_fd)
    }

    /// The guest's private `/tmp`, in the same way. What is mounted below it is the host's: with `NO_XDEV` nothing leads
    /// there. The guest's whole tree is not handed out: it has devices, and files about processes that tell the host more than
    /// they tell the guest.
    pub fn tmp(&self) -> Option<BorrowedFd<'_>> {
        self.guest.places.tmp.as_ref().map(AsFd::as_fd)
    }

    /// The first process, by its number on the host.
    pub fn first(&self) -> i32 {
        self.guest.spawned.pid
    }

    /// The ids on the host that the guest's own files have in its mounts.
    pub fn owner(&self) -> (u32, u32) {
        let guest = self.guest.steps.guest;
        (guest.host_uid, guest.host_gid)
    }

    /// A stream to a port that something inside listens on, on its loopback. It does not block.
    pub fn connect(&mut self, port: u16) -> Result<OwnedFd, Fault> {
        let helper = self.guest.helper.as_ref().ok_or_else(unreachable_inside)?;
        let stream = publish::reach(helper, port).filter(|_| !self.fell);
        stream.map(OwnedFd::from).ok_or_else(|| {
            Fault::new(ErrorKind::Unavailable, format!("nothing inside listens on port {port}"))
                .hint("start a server there that listens on 127.0.0.1, [::1] or all addresses")
                .phase(Phase::Execution)
        })
    }

    /// Publishes just these ports from now on: `opened` brings listeners for those that were not before. Connections to what is
    /// published no more are broken off.
    pub fn publish(&mut self, wanted: Vec<(SocketAddr, u16)>, opened: Vec<Published>) -> Result<(), Fault> {
        let over = || {
            let message = "nothing is published any more: the limit on bytes was met, or everything ends";
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
                wake.map_or(Ok(()), |wake| watch(&self.epoll, wake, Slot::Network, epoll::EventFlags::IN))
            }
        }
    }

    /// Ends everything and waits until it is gone.
    pub fn close(self) {}
}

impl Drop for Residence<'_> {
    fn drop(&mut self) {
        self.guest.kill();
        self.still = None;
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
        drop(self.janitor.take().map(Janitor::dismiss));
    }
}

impl Running {
    fn end(&mut self) {
        job::end(self.shepherd.as_fd());
        self.end_by = Some(Instant::now() + ENDS_WITHIN);
    }

    /// The shepherd does not do its part: its end leaves the tree to the first process.
    fn give_up(&mut self) {
        process::signal(self.shepherd.as_fd(), crate::standing::SIGKILL);
        self.end_by = None;
    }
}

/// What one entry of the list of descriptors stands for.
#[derive(Clone, Copy)]
enum Slot {
    Control,
    Listener,
    Network,
    Event,
    Job(Job),
}

impl Slot {
    fn word(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Slot::Control => 0,
            Slot::Listener => 1,
            Slot::Network => 2,
            Slot::Event => 3,
            Slot::Job(job) => 4 + job.0,
        })
    }

    fn of(word: epoll::EventData) -> Slot {
        match word.u64() {
            0 => Slot::Control,
            1 => Slot::Listener,
            2 => Slot::Network,
            3 => Slot::Event,
            job => Slot::Job(Job(job - 4)),
        }
    }
}

/// Its first process is gone, and everything goes with it.
fn fallen(phase: Phase) -> Fault {
    again("the enclosure fell", phase)
}

/// What may well succeed when it is asked again: by then there is another enclosure.
fn again(message: impl Into<String>, phase: Phase) -> Fault {
    Fault::new(ErrorKind::Unavailable, message)
        .hint("try again; `cofferdam inspect` says what became of it")
        .phase(phase)
}

fn unreachable_inside() -> Fault {
    let message = "ports inside cannot be reached here: the guest's network can be neither made ahead nor entered";
    Fault::new(ErrorKind::UnsupportedHost, message).phase(Phase::Execution)
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, slot: Slot, flags: epoll::EventFlags) -> Result<(), Fault> {
    epoll::add(epoll, fd, slot.word(), flags).map_err(|e| {
        let error = sys::CallError { call: "epoll_ctl", errno: e.raw_os_error() };
        internal(Phase::Start, error)
    })
}
