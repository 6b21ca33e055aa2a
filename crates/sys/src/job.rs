//! Jobs: commands that the supervisor sends to a pid 1 that stays. Each has a control socket of its own, over which its
//! shepherd reports.

use crate::clone::Spawned;
use crate::control::{Control, END_SIGNAL, KILL_SIGNAL, Message, STOP_SIGNAL, socket_pair};
use crate::{CallError, process};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bound on concurrent jobs of one guest. All its shepherds are listed in one page.
pub const MOST_JOBS: usize = 256;
/// Bound on the bytes of a command with its arguments, environment and directory.
pub const MOST_BYTES: usize = 4 << 20;

/// Bound on descriptors that a command inherits beside its streams.
pub const MOST_INHERITED: usize = 4;
/// Number of the first of them in the command: above all that the shepherd opens.
pub const FIRST_INHERITED: i32 = 100;
/// Descriptors of a job: a file with the command, a control socket, three streams, and what else the command inherits.
pub(crate) const HANDLES: usize = 5 + MOST_INHERITED;

/// The job message, sent with the descriptors. Any bytes are a valid value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct JobMessage {
    /// Size of the command file in bytes.
    pub(crate) size: u64,
    /// Limit on open files; `u64::MAX` to keep the limit of pid 1.
    pub(crate) open_files: u64,
    pub(crate) start_mark: [u32; 2],
    pub(crate) umask: u32,
    /// Nonzero if a terminal of this size is wanted.
    pub(crate) terminal: u32,
    pub(crate) rows: u16,
    pub(crate) columns: u16,
    pub(crate) _rest: u32,
}

/// Header of the command file: offsets of its parts, and lengths of the arrays. The arrays contain offsets, too.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CommandHeader {
    pub(crate) path: u64,
    pub(crate) cwd: u64,
    pub(crate) argv: u64,
    pub(crate) arguments: u64,
    pub(crate) envp: u64,
    pub(crate) variables: u64,
}

/// A command to start.
pub struct JobSpec<'a> {
    pub path: &'a [u8],
    pub argv: Vec<&'a [u8]>,
    /// `NAME=VALUE` each.
    pub env: Vec<Vec<u8>>,
    pub cwd: &'a [u8],
    pub streams: Streams<'a>,
    /// Descriptors that the command gets as `FIRST_INHERITED` and the numbers behind it; only beside pipes.
    pub inherit: Vec<BorrowedFd<'a>>,
    pub umask: u32,
    pub open_files: Option<u64>,
    /// Start mark, equal to `start_mark` of the filter's `NotifyOptions`.
    pub start_mark: [u32; 2],
}

#[derive(Clone, Copy)]
pub enum Streams<'a> {
    Pipes([BorrowedFd<'a>; 3]),
    Terminal { rows: u16, columns: u16 },
}

/// The reason why a job was not sent.
#[derive(Debug)]
pub enum JobError {
    /// The command takes this many bytes.
    TooLong(usize),
    Call(CallError),
}

impl From<CallError> for JobError {
    fn from(error: CallError) -> JobError {
        JobError::Call(error)
    }
}

/// The supervisor's end of the control socket to one shepherd.
pub struct JobControl(Control);

/// An event of a job.
#[derive(Debug)]
pub enum JobEvent {
    /// The shepherd was started; its pidfd. May arrive after the shepherd's own first event.
    Born(OwnedFd),
    /// The command starts, with this pid inside, and the master of its terminal.
    Begins {
        pid: i32,
        fate: ExecStatus,
        terminal: Option<OwnedFd>,
    },
    NotStarted {
        at: StartStage,
        errno: i32,
    },
    /// The command ended and the tree is gone.
    Ended {
        status: i32,
        cpu_us: u64,
        max_rss_kb: u64,
    },
    /// The shepherd was killed, and the tree is gone.
    Lost {
        cpu_us: u64,
        max_rss_kb: u64,
    },
    /// The shepherd closed the socket.
    Closed,
}

/// A pipe that reports whether exec succeeded.
#[derive(Debug)]
pub struct ExecStatus(OwnedFd);

impl ExecStatus {
    /// Reads the pipe once it is readable: returns the failed stage and error number; `None` if the command runs, or is
    /// gone already.
    pub fn read_failure(&self) -> Option<(StartStage, i32)> {
        let mut words = [0u32; 2];
        // SAFETY: a buffer with its true length.
        let got = unsafe { libc::read(self.0.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
        (got == size_of_val(&words) as isize).then(|| (StartStage::of(words[0]), words[1] as i32))
    }
}

impl AsFd for ExecStatus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The stage at which a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStage {
    Setup,
    Directory,
    Exec,
}

impl StartStage {
    fn of(step: u32) -> StartStage {
        match step {
            crate::init::AT_EXEC => StartStage::Exec,
            crate::init::AT_DIRECTORY => StartStage::Directory,
            _ => StartStage::Setup,
        }
    }
}

impl Spawned {
    /// Sends a job to a pid 1 that stays; events arrive on the returned socket.
    pub fn start(&self, job: &JobSpec<'_>) -> Result<JobControl, JobError> {
        let bytes = pack(job)?;
        let file = sealed_memfd(&bytes)?;
        let (ours, theirs) = socket_pair()?;
        let (terminal, rows, columns) = match job.streams {
            Streams::Pipes(_) => (0, 0, 0),
            Streams::Terminal { rows, columns } => (1, rows, columns),
        };
        let message = JobMessage {
            size: bytes.len() as u64,
            open_files: job.open_files.unwrap_or(u64::MAX),
            start_mark: job.start_mark,
            umask: job.umask,
            terminal,
            rows,
            columns,
            _rest: 0,
        };
        let mut handles = vec![file.as_fd(), theirs.as_fd()];
        if let Streams::Pipes(streams) = &job.streams {
            handles.extend(streams);
            handles.extend(job.inherit.iter().take(MOST_INHERITED));
        }
        // SAFETY: plain numbers without gaps, read as bytes for as long as they are borrowed.
        let message = unsafe { std::slice::from_raw_parts((&raw const message).cast::<u8>(), size_of::<JobMessage>()) };
        self.control_socket().send_message(message, &handles, libc::MSG_DONTWAIT)?;
        Ok(JobControl(Control(ours)))
    }
}

impl JobControl {
    /// Waits for the next event.
    pub fn next_event(&self) -> Result<JobEvent, CallError> {
        let Some((report, handles)) = self.0.receive_report()? else { return Ok(JobEvent::Closed) };
        let mut handles = handles.into_iter();
        let (cpu_us, max_rss_kb) = (report.cpu_us, report.max_rss_kb);
        Ok(match report.message {
            Message::ShepherdStarted => handles.next().map_or(JobEvent::Closed, JobEvent::Born),
            Message::Started => match handles.next() {
                Some(fate) => JobEvent::Begins { pid: report.status, fate: ExecStatus(fate), terminal: handles.next() },
                None => JobEvent::Closed,
            },
            Message::ExecFailed => JobEvent::NotStarted { at: StartStage::of(report.step), errno: report.errno },
            Message::Ended => JobEvent::Ended { status: report.status, cpu_us, max_rss_kb },
            Message::Lost => JobEvent::Lost { cpu_us, max_rss_kb },
            Message::Nothing | Message::StepFailed | Message::Ready => JobEvent::Closed,
        })
    }
}

impl AsFd for JobControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// Makes a shepherd forward a signal to its command's process group. False if the shepherd is gone, or if the signal is
/// one that it interprets itself.
pub fn signal(shepherd: BorrowedFd<'_>, signal: i32) -> bool {
    match signal {
        libc::SIGKILL => process::signal(shepherd, KILL_SIGNAL),
        libc::SIGSTOP => process::signal(shepherd, STOP_SIGNAL),
        // The shepherd would take it for the end of a child.
        libc::SIGCHLD | STOP_SIGNAL | KILL_SIGNAL | END_SIGNAL => false,
        other => process::signal(shepherd, other),
    }
}

/// Makes a shepherd kill its process tree, even one that was stopped from inside.
pub fn end(shepherd: BorrowedFd<'_>) -> bool {
    let message = process::signal(shepherd, END_SIGNAL);
    process::signal(shepherd, libc::SIGCONT);
    message
}

fn pack(job: &JobSpec<'_>) -> Result<Vec<u8>, JobError> {
    let env: Vec<&[u8]> = job.env.iter().map(Vec::as_slice).collect();
    let texts = job.argv.iter().chain(&env).chain([&job.path, &job.cwd]);
    let (arguments, variables) = (job.argv.len(), env.len());
    let lists = size_of::<CommandHeader>() + 8 * (arguments + variables + 2);
    let size = texts.clone().fold(lists, |sum, text| sum.saturating_add(text.len() + 1));
    if size > MOST_BYTES {
        return Err(JobError::TooLong(size));
    }
    let mut at = lists as u64;
    let mut place = |text: &&[u8]| {
        let here = at;
        at += text.len() as u64 + 1;
        here
    };
    let offsets: Vec<u64> = texts.clone().map(&mut place).collect();
    let (words, [path, cwd]) = offsets.split_at(arguments + variables) else { return Err(JobError::TooLong(size)) };
    let argv = size_of::<CommandHeader>() as u64;
    let envp = argv + 8 * (arguments as u64 + 1);
    let mut bytes = Vec::with_capacity(size);
    let (argv_words, env_words) = words.split_at(arguments);
    let head = [*path, *cwd, argv, arguments as u64, envp, variables as u64];
    for word in head.iter().chain(argv_words).chain([&0]).chain(env_words).chain([&0]) {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    for text in texts {
        bytes.extend_from_slice(text);
        bytes.push(0);
    }
    Ok(bytes)
}

/// Creates a sealed memfd with these bytes, which no process can change.
fn sealed_memfd(bytes: &[u8]) -> Result<OwnedFd, CallError> {
    let failed = |e: std::io::Error| CallError { call: "write", errno: e.raw_os_error().unwrap_or(0) };
    // SAFETY: a C string and numbers; the descriptor is owned once.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"command".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        if fd < 0 {
            return Err(CallError::last("memfd_create"));
        }
        std::fs::File::from_raw_fd(fd)
    };
    file.write_all(bytes).map_err(failed)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: numbers only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(file.into()),
        _ => Err(CallError::last("fcntl")),
    }
}
