//! Asking a person before a call of the guest's is carried out. The call waits on a thread of its own, and nothing of it has
//! happened before the answer; what is then opened, connected or let run is what was shown, by the handle that was found.

use crate::connect;
use crate::guest::Guest;
use crate::publish::Helper;
use crate::residence::Job;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::notify::{Call, Listener};
use terms::Actor;

/// Whoever puts questions to a person, and knows the answers.
pub trait Asking {
    /// Asks, or joins those who wait for the same. `Err` says why nobody is asked.
    fn ask(&mut self, question: Question<'_>) -> Result<Begun, String>;

    /// Readable when a turn is wanted.
    fn changed(&self) -> Option<BorrowedFd<'_>>;

    /// Passes answers on and puts the next question.
    fn turn(&mut self);

    /// Set while somebody at the terminal is asked something: what they type can be read here and is for `turn` to take, and
    /// until then nothing of the guest's goes to the terminal or comes from it.
    fn asks_at(&self) -> Option<BorrowedFd<'_>>;

    /// Nothing more is asked.
    fn close(&mut self);
}

/// What a person is asked.
pub struct Question<'q> {
    pub op: &'static str,
    pub target: &'q str,
    pub rule: &'q str,
    pub actor: Actor,
}

/// What came of asking.
pub enum Begun {
    /// It was answered before, and that still holds.
    Known(bool),
    /// `fresh` when it was asked now, and not before by somebody else.
    Waits { waiting: Box<dyn Waiting>, fresh: bool },
}

/// One that waits. Dropped, it waits no longer.
pub trait Waiting: Send {
    /// The answer, once there is one or there will be none.
    fn heard(&mut self) -> Option<Answer>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Allow,
    Deny,
    /// Nobody answered in time.
    Nobody,
}

/// What is done for the guest once somebody said yes.
pub(crate) enum Errand {
    Open(Opening),
    /// The guest's socket, and the service's real path.
    Connect(OwnedFd, PathBuf),
    LetRun(Bar),
}

/// A program on a mount that lets nothing run, its real path, and who can change that.
pub(crate) struct Bar {
    pub file: OwnedFd,
    pub path: PathBuf,
    pub helper: Helper,
}

/// A file to be opened by its handle; with a name, one to be made in the directory of that handle.
pub(crate) struct Opening {
    pub handle: OwnedFd,
    pub name: Option<OsString>,
    pub flags: OFlags,
    pub mode: u32,
    pub close_on_exec: bool,
}

/// A call that waits for an answer.
pub(crate) struct Waiter {
    pub listener: Listener,
    pub call: Call,
    pub guest: Guest,
    /// None where the answer is known to be yes.
    pub waiting: Option<Box<dyn Waiting>>,
    pub errand: Errand,
    pub matter: Matter,
    pub reports: Arc<Reports>,
    pub still: Arc<AtomicBool>,
}

/// What it is about, as it is told afterwards.
#[derive(Clone)]
pub(crate) struct Matter {
    pub op: &'static str,
    pub target: String,
    pub rule: String,
    pub actor: Actor,
    pub job: Option<Job>,
}

/// How it ended.
pub(crate) enum Report {
    Refused(Matter, &'static str),
    Connected(Matter, PathBuf),
    /// The program at this real path can run now; the call is to be looked at again.
    Ready(Listener, Call, PathBuf),
}

/// Reports of those who waited, for the supervisor to take.
pub(crate) struct Reports {
    list: Mutex<Vec<Report>>,
    wake: Option<OwnedFd>,
}

impl Reports {
    pub fn new() -> Arc<Reports> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Arc::new(Reports { list: Mutex::default(), wake })
    }

    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    fn put(&self, report: Report) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        // A counter that is full wakes, too.
        let _ = self.wake.as_ref().map(|wake| rustix::io::write(wake, &1u64.to_ne_bytes()));
    }

    pub fn take(&self) -> Vec<Report> {
        let _ = self.wake.as_ref().map(|wake| rustix::io::read(wake, &mut [0u8; 8]));
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Calls that may wait for answers at a time.
pub(crate) const MOST_WAITING: usize = 64;
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// How often a waiting call looks whether there is an answer, and whether anybody still waits for it.
const LOOK: Duration = Duration::from_millis(50);
/// How long a question stays open whose call was put off by a signal and comes again.
const LINGER: Duration = Duration::from_secs(2);
const EACCES: i32 = 13;

impl Waiter {
    /// Whether one more may wait.
    pub fn has_room() -> bool {
        WAITING.load(Ordering::Relaxed) < MOST_WAITING
    }

    /// Waits on a thread of its own, which answers the call. False where there can be none.
    pub fn begin(self) -> bool {
        WAITING.fetch_add(1, Ordering::Relaxed);
        let started = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            self.live();
            WAITING.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
        started.is_ok()
    }

    fn live(mut self) {
        let mut signals = 0;
        let answer = loop {
            let Some(waiting) = &mut self.waiting else { break Answer::Allow };
            if let Some(answer) = waiting.heard() {
                break answer;
            }
            if !self.listener.is_live(&self.call) {
                return;
            }
            // One that was meant for another thread is gone at the second look.
            signals = if connect::has_signal(self.call.tid) { signals + 1 } else { 0 };
            if signals > 1 || self.still.load(Ordering::Acquire) {
                self.listener.again(&self.call);
                return std::thread::sleep(LINGER);
            }
            std::thread::sleep(LOOK);
        };
        match answer {
            Answer::Allow => self.carry_out(),
            Answer::Deny => self.refuse("a person refused it"),
            Answer::Nobody => self.refuse("nobody answered in time"),
        }
    }

    /// Told before the call is answered: whoever goes on may end at once.
    fn refuse(&self, why: &'static str) {
        self.reports.put(Report::Refused(self.matter.clone(), why));
        self.listener.refuse(&self.call, EACCES);
    }

    fn carry_out(&self) {
        let done = match &self.errand {
            Errand::Open(opening) => self.open(opening),
            Errand::Connect(socket, path) => self.connect(socket, path),
            Errand::LetRun(bar) => return self.let_run(bar),
        };
        if let Err(errno) = done {
            self.listener.refuse(&self.call, errno);
        }
    }

    fn open(&self, opening: &Opening) -> Result<(), i32> {
        // What the guest could not open by its own rights it does not get from us.
        self.guest.take_on()?;
        let file = opening.open().map_err(Errno::raw_os_error)?;
        self.listener.hand_over(&self.call, file.as_fd(), opening.close_on_exec)
    }

    fn connect(&self, socket: &OwnedFd, path: &std::path::Path) -> Result<(), i32> {
        let service = connect::service(path)?;
        connect::patiently(&self.listener, &self.call, socket, &service)?;
        self.reports.put(Report::Connected(self.matter.clone(), path.to_path_buf()));
        self.listener.answer(&self.call, 0);
        Ok(())
    }
}

impl Waiter {
    /// Nothing but the wall is changed here. Whoever hears the report looks at what the call names by then.
    fn let_run(&self, bar: &Bar) {
        let changed = bar.helper.lock().unwrap_or_else(PoisonError::into_inner).let_run(bar.file.as_fd());
        match (changed, self.listener.try_clone()) {
            (Ok(()), Some(listener)) => self.reports.put(Report::Ready(listener, self.call, bar.path.clone())),
            _ => self.refuse("its mount cannot be made to let it run"),
        }
    }
}

impl Opening {
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = self.flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let Some(name) = &self.name else {
            // The link of a handle leads to what the handle is on, whatever stands at its name by now.
            let handle = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
            return rustix::fs::open(handle, flags, Mode::empty());
        };
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = Mode::from_raw_mode(self.mode);
        let made = openat2(&self.handle, name, flags, mode, resolve)?;
        // Our own mask has taken from the mode what the guest's would have left.
        rustix::fs::fchmod(&made, mode)?;
        Ok(made)
    }
}
