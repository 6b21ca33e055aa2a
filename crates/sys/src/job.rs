//! Commands for a first process that stays, as the supervisor gives them: each with a line of its own, over which its shepherd
//! tells what becomes of it.

use crate::spawn::{Control, END_SIGNAL, KILL_SIGNAL, Message, STOP_SIGNAL, Spawned, socket_pair};
use crate::{CallError, process};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands at a time in one guest. All its shepherds are listed in one page.
pub const MOST_JOBS: usize = 256;
/// The longest command with its arguments, variables and directory.
pub const MOST_BYTES: usize = 4 << 20;

/// A file with the command, a line, and three streams.
pub(crate) const HANDLES: usize = 5;

/// What comes with the handles of an order. Any bytes are one.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Told {
    /// Of the file.
    pub(crate) size: u64,
    /// As many as this process may have, `u64::MAX` for as many as it has.
    pub(crate) open_files: u64,
    pub(crate) start_mark: [u32; 2],
    pub(crate) umask: u32,
    /// A terminal is wanted, of this size.
    pub(crate) terminal: u32,
    pub(crate) rows: u16,
    pub(crate) columns: u16,
    pub(crate) _rest: u32,
}

/// The beginning of the file: where in it everything is, and how long the lists are. The lists hold offsets, too.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Packed {
    pub(crate) path: u64,
    pub(crate) cwd: u64,
    pub(crate) argv: u64,
    pub(crate) arguments: u64,
    pub(crate) envp: u64,
    pub(crate) variables: u64,
}

/// A command to start.
pub struct Errand<'a> {
    pub path: &'a [u8],
    pub argv: Vec<&'a [u8]>,
    /// `NAME=VALUE` each.
    pub env: Vec<Vec<u8>>,
    pub cwd: &'a [u8],
    pub streams: Streams<'a>,
    pub umask: u32,
    pub open_files: Option<u64>,
    /// The same as in the filter's `Watch`.
    pub start_mark: [u32; 2],
}

#[derive(Clone, Copy)]
pub enum Streams<'a> {
    Pipes([BorrowedFd<'a>; 3]),
    Terminal { rows: u16, columns: u16 },
}

/// Why a command was not even asked for.
#[derive(Debug)]
pub enum Trouble {
    /// It takes this many bytes.
    TooLong(usize),
    Call(CallError),
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Trouble {
        Trouble::Call(error)
    }
}

/// The line to one shepherd.
pub struct Line(Control);

/// What a line tells.
#[derive(Debug)]
pub enum Heard {
    /// There is a shepherd. May come after what it says first.
    Born(OwnedFd),
    /// The command begins, under this number inside; with the supervisor's end of its terminal.
    Begins {
        pid: i32,
        fate: Fate,
        terminal: Option<OwnedFd>,
    },
    NotStarted {
        at: At,
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
    /// Nobody is there any more.
    Closed,
}

/// Whether a command that begins runs.
#[derive(Debug)]
pub struct Fate(OwnedFd);

impl Fate {
    /// Once there is something to read: why it does not run; none when it does, or is gone already.
    pub fn learn(&self) -> Option<(At, i32)> {
        let mut words = [0u32; 2];
        // SAFETY: a buffer with its true length.
        let got = unsafe { libc::read(self.0.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
        (got == size_of_val(&words) as isize).then(|| (At::of(words[0]), words[1] as i32))
    }
}

impl AsFd for Fate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Setup,
    Directory,
    Exec,
}

impl At {
    fn of(step: u32) -> At {
        match step {
            crate::first::AT_EXEC => At::Exec,
            crate::first::AT_DIRECTORY => At::Directory,
            _ => At::Setup,
        }
    }
}

impl Spawned {
    /// Asks a first process that stays to start a command; what becomes of that is told by the line.
    pub fn start(&self, errand: &Errand<'_>) -> Result<Line, Trouble> {
        let bytes = pack(errand)?;
        let file = sealed(&bytes)?;
        let (ours, theirs) = socket_pair()?;
        let (terminal, rows, columns) = match errand.streams {
            Streams::Pipes(_) => (0, 0, 0),
            Streams::Terminal { rows, columns } => (1, rows, columns),
        };
        let told = Told {
            size: bytes.len() as u64,
            open_files: errand.open_files.unwrap_or(u64::MAX),
            start_mark: errand.start_mark,
            umask: errand.umask,
            terminal,
            rows,
            columns,
            _rest: 0,
        };
        let mut handles = vec![file.as_fd(), theirs.as_fd()];
        if let Streams::Pipes(streams) = &errand.streams {
            handles.extend(streams);
        }
        // SAFETY: plain numbers without gaps, read as bytes for as long as they are borrowed.
        let told = unsafe { std::slice::from_raw_parts((&raw const told).cast::<u8>(), size_of::<Told>()) };
        self.line().tell(told, &handles, libc::MSG_DONTWAIT)?;
        Ok(Line(Control(ours)))
    }
}

impl Line {
    /// What it tells next; waits for it.
    pub fn hear(&self) -> Result<Heard, CallError> {
        let Some((report, handles)) = self.0.hear()? else { return Ok(Heard::Closed) };
        let mut handles = handles.into_iter();
        let (cpu_us, max_rss_kb) = (report.cpu_us, report.max_rss_kb);
        Ok(match report.message {
            Message::Born => handles.next().map_or(Heard::Closed, Heard::Born),
            Message::Started => match handles.next() {
                Some(fate) => Heard::Begins { pid: report.status, fate: Fate(fate), terminal: handles.next() },
                None => Heard::Closed,
            },
            Message::ExecFailed => Heard::NotStarted { at: At::of(report.step), errno: report.errno },
            Message::Ended => Heard::Ended { status: report.status, cpu_us, max_rss_kb },
            Message::Lost => Heard::Lost { cpu_us, max_rss_kb },
            Message::Nothing | Message::StepFailed | Message::Ready => Heard::Closed,
        })
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// Has a shepherd pass a signal to its command's group. False when it is gone, or when the signal is one of those that it
/// understands itself.
pub fn signal(shepherd: BorrowedFd<'_>, signal: i32) -> bool {
    match signal {
        libc::SIGKILL => process::signal(shepherd, KILL_SIGNAL),
        libc::SIGSTOP => process::signal(shepherd, STOP_SIGNAL),
        // A child of its own that ended, as it would understand it.
        libc::SIGCHLD | STOP_SIGNAL | KILL_SIGNAL | END_SIGNAL => false,
        other => process::signal(shepherd, other),
    }
}

/// Has a shepherd end its tree, even one that was stopped from inside.
pub fn end(shepherd: BorrowedFd<'_>) -> bool {
    let told = process::signal(shepherd, END_SIGNAL);
    process::signal(shepherd, libc::SIGCONT);
    told
}

fn pack(errand: &Errand<'_>) -> Result<Vec<u8>, Trouble> {
    let env: Vec<&[u8]> = errand.env.iter().map(Vec::as_slice).collect();
    let texts = errand.argv.iter().chain(&env).chain([&errand.path, &errand.cwd]);
    let (arguments, variables) = (errand.argv.len(), env.len());
    let lists = size_of::<Packed>() + 8 * (arguments + variables + 2);
    let size = texts.clone().fold(lists, |sum, text| sum.saturating_add(text.len() + 1));
    if size > MOST_BYTES {
        return Err(Trouble::TooLong(size));
    }
    let mut at = lists as u64;
    let mut place = |text: &&[u8]| {
        let here = at;
        at += text.len() as u64 + 1;
        here
    };
    let offsets: Vec<u64> = texts.clone().map(&mut place).collect();
    let (words, [path, cwd]) = offsets.split_at(arguments + variables) else { return Err(Trouble::TooLong(size)) };
    let argv = size_of::<Packed>() as u64;
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

/// A file in memory with these bytes, which nobody can change.
fn sealed(bytes: &[u8]) -> Result<OwnedFd, CallError> {
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
