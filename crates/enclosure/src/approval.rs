//! Asking a person before a call of the guest is carried out. The seccomp notification waits on a thread of its own and
//! has no effect before the answer. The supervisor then acts on the handle that was resolved for the question, so the
//! guest cannot swap the file in between (TOCTOU).

use crate::connect;
use crate::flock::JobId;
use crate::guest::Guest;
use crate::publish::Helper;
use crate::waiting_calls::WaitingCall;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::notify::{Call, Listener};
use terms::Actor;

/// A table of questions to a person, and of the answers.
pub trait Approvals {
    /// Asks, or joins the calls that wait for the same question. `Err` says why no question can be put.
    fn ask(&mut self, question: Question<'_>) -> Result<AskResult, String>;

    /// Returns a descriptor that is readable when `turn` has work.
    fn changed(&self) -> Option<BorrowedFd<'_>>;

    /// Passes answers on and puts the next question.
    fn turn(&mut self);

    /// Returns the terminal's descriptor while a question is open there. Input on it belongs to `turn`, and until then
    /// no stream of the guest is connected to the terminal.
    fn asks_at(&self) -> Option<BorrowedFd<'_>>;

    /// Ends all questions; no more are put.
    fn close(&mut self);
}

/// A question to a person.
pub struct Question<'q> {
    pub op: &'static str,
    pub target: &'q str,
    pub rule: &'q str,
    pub actor: Actor,
}

/// The result of a question.
pub enum AskResult {
    /// An earlier answer that still holds.
    Known(bool),
    /// `fresh` when this call put the question, rather than joining one that was open.
    Waits { waiting: Box<dyn PendingAnswer>, fresh: bool },
}

/// A pending answer. Dropping this gives the wait up.
pub trait PendingAnswer: Send {
    /// Returns the answer, once it is given or has become impossible.
    fn heard(&mut self) -> Option<QuestionAnswer>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionAnswer {
    Allow,
    Deny,
    /// The question timed out.
    Nobody,
}

/// The work that is done for the guest once the answer is yes.
pub(crate) enum OnAllow {
    Open(Opening),
    /// The guest's socket, and the service's real path.
    Connect(OwnedFd, PathBuf),
    LetRun(Bar),
}

/// A program on a noexec mount, its real path, and the helper that can lift the flag.
pub(crate) struct Bar {
    pub file: OwnedFd,
    pub path: PathBuf,
    pub helper: Helper,
}

/// A file to open by its handle; with a name, a file to create in the directory of that handle.
pub(crate) struct Opening {
    pub handle: OwnedFd,
    pub name: Option<OsString>,
    pub flags: OFlags,
    pub mode: u32,
    pub close_on_exec: bool,
}

/// A seccomp notification that waits for an answer.
pub(crate) struct ApprovalWaiter {
    pub listener: Listener,
    pub call: Call,
    pub guest: Guest,
    /// `None` where the answer is already known to be yes.
    pub waiting: Option<Box<dyn PendingAnswer>>,
    pub on_allow: OnAllow,
    pub subject: AskedOperation,
    pub reports: Arc<Reports>,
    pub freezing: Arc<AtomicBool>,
}

/// The subject of a call that waits, as it is reported afterwards.
#[derive(Clone)]
pub(crate) struct AskedOperation {
    pub op: &'static str,
    pub target: String,
    pub rule: String,
    pub actor: Actor,
    pub job: Option<JobId>,
}

/// The end of a call that waited.
pub(crate) enum WaitEnd {
    Refused(AskedOperation, &'static str),
    Connected(AskedOperation, PathBuf),
    /// The program's mount is executable now; the call is to be judged again.
    Ready(Listener, Call, PathBuf),
}

/// Reports of calls that waited, for the supervisor to take.
pub(crate) struct Reports {
    list: Mutex<Vec<WaitEnd>>,
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

    fn put(&self, report: WaitEnd) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        // A full counter wakes the reader, too.
        let _ = self.wake.as_ref().map(|wake| rustix::io::write(wake, &1u64.to_ne_bytes()));
    }

    pub fn take(&self) -> Vec<WaitEnd> {
        let _ = self.wake.as_ref().map(|wake| rustix::io::read(wake, &mut [0u8; 8]));
        std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Interval at which a waiting call polls for its answer and for the guest's thread still being there.
const LOOK: Duration = Duration::from_millis(50);
/// Time for which a question stays open after a signal restarted its call: the guest makes the call again.
const LINGER: Duration = Duration::from_secs(2);
const EACCES: i32 = 13;

impl ApprovalWaiter {
    /// Waits on a thread of its own, which answers the call. False where no thread can be started.
    pub fn begin(self, counted: WaitingCall) -> bool {
        let started = std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            self.run();
            drop(counted);
        });
        started.is_ok()
    }

    fn run(mut self) {
        let mut signals = 0;
        let answer = loop {
            let Some(waiting) = &mut self.waiting else { break QuestionAnswer::Allow };
            if let Some(answer) = waiting.heard() {
                break answer;
            }
            if !self.listener.is_live(&self.call) {
                return;
            }
            // A process-directed signal may be taken by another thread; then it is gone at the second look.
            signals = if connect::has_signal(self.call.tid) { signals + 1 } else { 0 };
            if signals > 1 || self.freezing.load(Ordering::Acquire) {
                self.listener.restart(&self.call);
                return std::thread::sleep(LINGER);
            }
            std::thread::sleep(LOOK);
        };
        match answer {
            QuestionAnswer::Allow => self.carry_out(),
            QuestionAnswer::Deny => self.refuse("the person who was asked refused it"),
            QuestionAnswer::Nobody => self.refuse("no answer came in time"),
        }
    }

    /// Reports before it answers: the guest may exit as soon as its call returns.
    fn refuse(&self, why: &'static str) {
        self.reports.put(WaitEnd::Refused(self.subject.clone(), why));
        self.listener.refuse(&self.call, EACCES);
    }

    fn carry_out(&self) {
        let done = match &self.on_allow {
            OnAllow::Open(opening) => self.open(opening),
            OnAllow::Connect(socket, path) => self.connect(socket, path),
            OnAllow::LetRun(bar) => return self.let_run(bar),
        };
        if let Err(errno) = done {
            self.listener.refuse(&self.call, errno);
        }
    }

    fn open(&self, opening: &Opening) -> Result<(), i32> {
        // The thread takes on the guest's ids first: a file that the guest may not open by its own rights stays closed.
        self.guest.take_on()?;
        let file = opening.open().map_err(Errno::raw_os_error)?;
        self.listener.complete_with_fd(&self.call, file.as_fd(), opening.close_on_exec)
    }

    fn connect(&self, socket: &OwnedFd, path: &std::path::Path) -> Result<(), i32> {
        let service = connect::service(path)?;
        connect::connect_until_done(&self.listener, &self.call, socket, &service)?;
        self.reports.put(WaitEnd::Connected(self.subject.clone(), path.to_path_buf()));
        self.listener.answer(&self.call, 0);
        Ok(())
    }
}

impl ApprovalWaiter {
    /// Makes the one file executable on its mount and changes nothing else. The supervisor reads anew what the call names
    /// when it takes the report.
    fn let_run(&self, bar: &Bar) {
        let changed = bar.helper.lock().unwrap_or_else(PoisonError::into_inner).allow_exec(bar.file.as_fd());
        match (changed, self.listener.try_clone()) {
            (Ok(()), Some(listener)) => self.reports.put(WaitEnd::Ready(listener, self.call, bar.path.clone())),
            _ => self.refuse("its mount cannot be made executable"),
        }
    }
}

impl Opening {
    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = self.flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        let Some(name) = &self.name else {
            // The magic link leads to the inode of the handle, whatever the name refers to by now.
            let handle = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
            return rustix::fs::open(handle, flags, Mode::empty());
        };
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = Mode::from_raw_mode(self.mode);
        let made = openat2(&self.handle, name, flags, mode, resolve)?;
        // The supervisor's umask was applied on creation; the guest's umask is already in `mode`.
        rustix::fs::fchmod(&made, mode)?;
        Ok(made)
    }
}
