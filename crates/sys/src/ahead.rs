//! What a start needs whatever its plan, made ahead. A new network namespace takes the kernel longer than anything else
//! in a start, and neither it nor the frame of the guest's root depends on the policy. So a helper makes them on
//! another processor while the plan is still being made, and gives birth to the guest's first process inside, in our
//! name. That one walks the steps that every plan has, waits for its order, and seals itself, while the helper makes the
//! places that the plan names. Later the helper makes sockets in the guest's network for those who publish a port of it, and
//! lets programs run that somebody said yes to.
//!
//! The helper shares our memory, so starting it copies nothing; while we work it touches none of it but what is shared
//! here. It makes its calls without the C library, whose error number it would share with us.

use crate::entry::Early;
use crate::meeting::{Meeting, look, wait, wait_past, wake};
use crate::op::{Op, Place};
use crate::raw::kernel;
use crate::spawn::{self, Birth, Command, Order, Places, Spawned, Walk};
use crate::withheld::{self, Withheld};
use crate::{CallError, arena, child, entry, host, mount, process};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// What the helper makes besides its user namespace.
pub(crate) const MADE: u64 = spawn::NEW_NET | spawn::NEW_IPC | spawn::NEW_UTS | spawn::NEW_MOUNT;
/// What belongs to the first process alone.
const BORN_WITH: u64 = spawn::NEW_PID | spawn::NEW_TIME;

/// Where the helper is. It goes from `HELD` to `WORKING`, by `ENTERED` to `BORN`, or to `FAILED`; and from `WANTED` back to
/// `BORN` as often as something is wanted.
const HELD: i32 = -1;
const WORKING: i32 = 0;
const ENTERED: i32 = 1;
const BORN: i32 = 2;
const FAILED: i32 = 3;
const WANTED: i32 = 4;

/// No family of sockets.
const LET_RUN: i32 = -1;

/// Whether our own part is done: ids mapped and the first steps known; then, the places known.
const NOT_YET: i32 = 0;
const SETTLED: i32 = 1;
const NEVER: i32 = 2;

/// The guest's first process goes on with its copy of the helper's stack.
const STACK: usize = 256 * 1024;
type Mask = [u64; entry::WORDS];

/// What both sides see.
struct Shared {
    state: AtomicI32,
    settled: AtomicI32,
    /// What is wanted: the family of a socket, or `LET_RUN`; then the socket or nothing, or the error number below zero.
    want: AtomicI32,
    /// The file that shall be let run.
    file: AtomicI32,
    parent: i32,
    /// Steps to walk before the birth, and those of the first process; known when all is settled.
    frame: List<Op>,
    early: List<Op>,
    /// Whether the birth may be given.
    rest: AtomicI32,
    /// Whether these are known: steps to walk after the birth, and mounts for them.
    placing: AtomicI32,
    places: List<Op>,
    mounts: List<RawFd>,
    /// Handles that those steps opened.
    opened: [AtomicI32; Place::COUNT],
    meeting: &'static Meeting,
    /// Both ends of the line between us and the first process.
    ours: RawFd,
    theirs: RawFd,
    /// A first process whose network and mounts to enter, for a helper that was started after it.
    visited: RawFd,
    birth: Birth,
    /// It was begun with the program, and made its namespaces by itself.
    begun: bool,
    /// The processors we may use, in bytes that count; none when unknown.
    mask: Mask,
    mask_len: usize,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            state: AtomicI32::new(HELD),
            settled: AtomicI32::new(NOT_YET),
            want: AtomicI32::new(0),
            file: AtomicI32::new(-1),
            parent: std::process::id() as i32,
            frame: List::new(),
            early: List::new(),
            rest: AtomicI32::new(NOT_YET),
            placing: AtomicI32::new(NOT_YET),
            places: List::new(),
            mounts: List::new(),
            opened: child::NO_PLACES.map(AtomicI32::new),
            meeting: Meeting::new(),
            ours: -1,
            theirs: -1,
            visited: -1,
            birth: Birth { flags: BORN_WITH, group: None, pid: 0, pidfd: -1 },
            begun: false,
            mask: [0; entry::WORDS],
            mask_len: 0,
        }
    }
}

/// A finished list that one side stores and the other reads once it was told that it may.
struct List<T>(AtomicPtr<T>, AtomicUsize);

impl<T> List<T> {
    const fn new() -> List<T> {
        List(AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0))
    }

    fn store(&self, list: &'static [T]) {
        self.0.store(list.as_ptr().cast_mut(), Ordering::Relaxed);
        self.1.store(list.len(), Ordering::Relaxed);
    }

    fn load(&self) -> &'static [T] {
        let at = self.0.load(Ordering::Relaxed);
        if at.is_null() {
            return &[];
        }
        // SAFETY: `store` put in both from one list that lives for ever.
        unsafe { std::slice::from_raw_parts(at, self.1.load(Ordering::Relaxed)) }
    }
}

/// The helper while it lives. Dropping this ends and collects it, and the first process too unless it got its order.
pub struct Ahead {
    pid: i32,
    pidfd: OwnedFd,
    line: Option<(OwnedFd, OwnedFd)>,
    // As a pointer, because the helper changes what is behind it.
    shared: *mut Shared,
    /// What the first process does not get, from when its birth may be given until it is.
    withheld: Cell<Option<Withheld>>,
    _stack: Vec<u8>,
}

// SAFETY: what is shared with the helper is shared by design, and only one owner at a time uses this handle.
unsafe impl Send for Ahead {}

/// Starts the helper on what takes longest; `settle` must tell it the rest. `None` when even that fails; whoever needs the
/// namespaces then makes them himself and gets the kernel's own error.
pub fn start() -> Option<Ahead> {
    if !arena::open() {
        return None;
    }
    let (ours, theirs) = spawn::socket_pair().ok()?;
    let mut shared = Box::new(Shared { ours: ours.as_raw_fd(), theirs: theirs.as_raw_fd(), ..Shared::new() });
    let mut ahead = match entry::begun() {
        Some(early) => take_over(&early, shared)?,
        None => {
            shared.mask_len = processors(&mut shared.mask);
            let ahead = launch(help, shared)?;
            send_away(ahead.pid, ahead.shared());
            ahead.shared().state.store(WORKING, Ordering::Release);
            wake(&ahead.shared().state);
            ahead
        }
    };
    ahead.line = Some((ours, theirs));
    Some(ahead)
}

/// A helper that was begun with the program goes on as ours.
fn take_over(early: &Early, mut shared: Box<Shared>) -> Option<Ahead> {
    // SAFETY: numbers only.
    let pidfd = unsafe { kernel!(SYS_pidfd_open, early.pid, 0) };
    let Ok(pidfd) = pidfd else {
        end(early.pid);
        return None;
    };
    *shared = Shared { begun: true, mask: early.mask, mask_len: early.mask_len, ..*shared };
    shared.state.store(WORKING, Ordering::Relaxed);
    let shared = Box::into_raw(shared);
    entry::go_on(early, help, shared.cast());
    // SAFETY: a fresh descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Some(Ahead { pid: early.pid, pidfd, line: None, shared, withheld: Cell::new(None), _stack: Vec::new() })
}

/// For a call that turns out to enclose nothing here: the helper that was begun with the program is ended.
pub fn forgo() {
    entry::begun().iter().for_each(|early| end(early.pid));
}

/// Ends and collects a helper.
fn end(pid: i32) {
    // SAFETY: our own child, not collected yet, so the number can mean nobody else; no status wanted.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
    }
}

/// A helper that was not there before, for a first process that was made without one. That process must not
/// have been tied to us yet: from then on nobody but root may look into it.
pub fn visit(first: BorrowedFd<'_>) -> Option<Ahead> {
    let ahead = launch(enter, Box::new(Shared { visited: first.as_raw_fd(), ..Shared::new() }))?;
    ahead.shared().state.store(WORKING, Ordering::Release);
    wake(&ahead.shared().state);
    ahead.wait_while(WORKING);
    (ahead.shared().state.load(Ordering::Acquire) == BORN).then_some(ahead)
}

/// Starts a helper, which waits in the state `HELD`.
fn launch(life: extern "C" fn(*mut libc::c_void) -> i32, mut shared: Box<Shared>) -> Option<Ahead> {
    let mut stack = vec![0u8; STACK];
    let mut pidfd: RawFd = -1;
    // SAFETY: the stack and what is shared live in allocations that are kept until the helper has been collected. The
    // helper runs `life` only, which allocates nothing and takes no lock. One table of descriptors, so that what the
    // helper gives birth to has ours, and its handle reaches us.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(STACK & !15).cast();
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD | libc::SIGCHLD;
        libc::clone(life, top, flags, (&raw mut *shared).cast(), &raw mut pidfd)
    };
    if pid < 0 {
        return None;
    }
    // SAFETY: CLONE_PIDFD stored a fresh descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Some(Ahead { pid, pidfd, line: None, shared: Box::into_raw(shared), withheld: Cell::new(None), _stack: stack })
}

fn processors(mask: &mut Mask) -> usize {
    // SAFETY: a buffer with its true length; the kernel says how much of it counts.
    let got = unsafe { kernel!(SYS_sched_getaffinity, 0, size_of::<Mask>(), mask.as_mut_ptr()) };
    got.map_or(0, |bytes| bytes as usize)
}

/// A new process starts where its parent runs, and one of the two would wait for the other. So it is held until it has
/// been told to go elsewhere, where there is an elsewhere.
fn send_away(pid: i32, shared: &Shared) {
    let here = here();
    let mut elsewhere = shared.mask;
    if let Some(word) = elsewhere.get_mut(here / 64) {
        *word &= !(1 << (here % 64));
        if elsewhere.iter().any(|word| *word != 0) {
            // SAFETY: a buffer at least as long as stated. A failure only costs time.
            let _ = unsafe { kernel!(SYS_sched_setaffinity, pid, shared.mask_len, elsewhere.as_ptr()) };
        }
    }
}

/// The guest's first process was born where the helper runs, and would wait for it there while we wait for both. It is told to
/// wake up here; it goes where it likes once it has its order.
fn call_here(pid: i32, words: usize) {
    let mut only: Mask = [0; _];
    let here = here();
    if let Some(word) = only.get_mut(here / 64).filter(|_| here / 64 < words) {
        *word = 1 << (here % 64);
        // SAFETY: a buffer as long as stated. A failure only costs time.
        let _ = unsafe { kernel!(SYS_sched_setaffinity, pid, words * 8, only.as_ptr()) };
    }
}

fn here() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

impl Ahead {
    fn shared(&self) -> &Shared {
        // SAFETY: from a box that lives until `drop` has collected the helper. The helper changes only `birth`, which
        // is read after it said so or is gone, and the atomic words.
        unsafe { &*self.shared }
    }

    /// Whether it waits for our part already.
    pub fn waits(&self) -> bool {
        self.shared().begun
    }

    /// Our own part, which the helper waits for: the map of its ids, `(inside, outside)`, the steps of the frame, and those
    /// of the first process. Descriptors that these need must be open by now.
    pub fn settle(
        &self,
        uid: (u32, u32),
        gid: (u32, u32),
        freeze_groups: bool,
        frame: &'static [Op],
        early: &'static [Op],
    ) {
        let shared = self.shared();
        self.wait_while(WORKING);
        let mapped = host::write_id_maps(self.pid, uid, gid, freeze_groups).is_ok();
        shared.frame.store(frame);
        shared.early.store(early);
        shared.settled.store(if mapped { SETTLED } else { NEVER }, Ordering::Release);
        wake(&shared.settled);
    }

    /// Lets the birth be given, after `settle`. The first process is a copy of our memory: while it is made, and where we
    /// change anything afterwards, we wait for the kernel. So this is for when the plan is made.
    pub fn release(&self) {
        if self.shared().rest.load(Ordering::Relaxed) == SETTLED {
            return;
        }
        self.withheld.set(Some(withheld::withhold()));
        self.shared().rest.store(SETTLED, Ordering::Release);
        wake(&self.shared().rest);
    }

    /// Gives the first process and the helper their orders: the list of steps and the command. `None` when there is no
    /// such process, or when it could not see the list.
    pub(crate) fn give(&mut self, walk: Walk<'_>, command: Command) -> Option<Spawned> {
        self.release();
        self.wait_while(WORKING);
        self.wait_while(ENTERED);
        self.withheld.set(None);
        let shared = self.shared();
        if shared.state.load(Ordering::Acquire) != BORN {
            return None;
        }
        let done = shared.frame.load().len() + shared.early.load().len();
        let (ops, command) = (arena::list(walk.ops), arena::list(&[command]));
        let mounts = arena::list(&walk.mounts.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>());
        let places = ops.get(done..walk.own).filter(|_| arena::holds_all())?;
        let mask = arena::list(shared.mask.get(..shared.mask_len / 8).unwrap_or_default());
        let order = Order {
            ops: ops.as_ptr(),
            count: ops.len(),
            done: walk.own,
            command: command.as_ptr(),
            mask: mask.as_ptr(),
            mask_len: size_of_val(mask),
        };
        let (ours, theirs) = self.line.take()?;
        // Closed here, or the end of the first process would not show.
        drop(theirs);
        let spawned = self.shared().birth.spawned(ours);
        call_here(spawned.pid, mask.len());
        if spawned.line().order(&order).is_err() {
            // It would wait for ever.
            process::kill_child(spawned.pid);
            return None;
        }
        let shared = self.shared();
        shared.places.store(places);
        shared.mounts.store(mounts);
        shared.placing.store(SETTLED, Ordering::Release);
        wake(&shared.placing);
        Some(spawned)
    }

    /// Waits until the helper has walked all its steps, or one of the two is gone; the handles that it opened. Until then it
    /// has files open in the table of descriptors that is ours, too.
    pub fn finish(&self, first: BorrowedFd<'_>) -> Places {
        let meeting = self.shared().meeting;
        while !meeting.has_places() && !process::has_ended(first) {
            // Looked at anew once it is gone: what it said last stands.
            if process::has_ended(self.pidfd.as_fd()) && !meeting.has_places() {
                meeting.places_are_lost();
                break;
            }
            meeting.rest();
        }
        Places::from(self.shared().opened.each_ref().map(|slot| {
            let fd = slot.swap(-1, Ordering::AcqRel);
            // SAFETY: one table of descriptors: what the helper opened is ours, and nobody else knows of it.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        }))
    }

    /// A TCP socket in the guest's network, which does not block. Only after the birth, and from one thread at a time.
    pub fn socket(&self, ipv6: bool) -> Result<OwnedFd, CallError> {
        let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        let fd = self.want(family).map_err(|errno| CallError { call: "socket", errno })?;
        // SAFETY: one table of descriptors: what the helper just made is ours, and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Lets a file of the guest's tree be executed there, and no other, although its mount says no. On the same terms.
    pub fn let_run(&self, file: BorrowedFd<'_>) -> Result<(), CallError> {
        self.shared().file.store(file.as_raw_fd(), Ordering::Relaxed);
        self.want(LET_RUN).map(drop).map_err(|errno| CallError { call: "mount_setattr", errno })
    }

    /// Has the helper do something; the number that came of it, or of the error.
    fn want(&self, what: i32) -> Result<i32, i32> {
        let shared = self.shared();
        if shared.state.load(Ordering::Acquire) != BORN {
            return Err(libc::ECANCELED);
        }
        shared.want.store(what, Ordering::Relaxed);
        shared.state.store(WANTED, Ordering::Release);
        wake(&shared.state);
        self.wait_while(WANTED);
        match (shared.state.load(Ordering::Acquire), shared.want.load(Ordering::Relaxed)) {
            (BORN, given) if given >= 0 => Ok(given),
            (BORN, errno) => Err(-errno),
            _ => Err(libc::ECANCELED),
        }
    }

    fn wait_while(&self, state: i32) {
        let word = &self.shared().state;
        look(word, state);
        while word.load(Ordering::Acquire) == state {
            // A helper that was killed says nothing more, so this looks up now and then.
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            wait(word, state, Some(&pause));
            if word.load(Ordering::Acquire) == state && process::has_ended(self.pidfd.as_fd()) {
                return;
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        end(self.pid);
        // SAFETY: the helper is gone, so what was shared with it is ours again. A first process that got no order is our own
        // child, not collected yet: the number can mean nobody else.
        unsafe {
            let shared = Box::from_raw(self.shared);
            if self.line.is_some() && shared.birth.pid > 0 {
                process::kill_child(shared.birth.pid);
                libc::close(shared.birth.pidfd);
            }
        }
    }
}

extern "C" fn help(shared: *mut libc::c_void) -> i32 {
    let raw = shared.cast::<Shared>();
    // SAFETY: points into the box that `Ahead` keeps until we are gone.
    let shared = unsafe { &*raw };
    tie(shared);
    wait_past(&shared.state, HELD);
    // Being elsewhere is enough: from here on the kernel may choose, and the first process must inherit nothing.
    // SAFETY: a buffer with its true length.
    let _ = unsafe { kernel!(SYS_sched_setaffinity, 0, shared.mask_len, shared.mask.as_ptr()) };
    let made = make(shared).is_ok();
    // The change of ids among the steps undid it.
    tie(shared);
    let rest = made.then(|| while_waiting(shared)).flatten();
    // SAFETY: nobody else touches this field until we say that it is done, or are gone.
    let born = made && unsafe { give_birth(shared, &mut (*raw).birth) };
    shared.state.store(if born { BORN } else { FAILED }, Ordering::Release);
    wake(&shared.state);
    if born {
        make_places(shared, rest);
    }
    serve(shared)
}

extern "C" fn enter(shared: *mut libc::c_void) -> i32 {
    // SAFETY: points into the box that `Ahead` keeps until we are gone.
    let shared = unsafe { &*shared.cast::<Shared>() };
    tie(shared);
    wait_past(&shared.state, HELD);
    let all = u64::MAX;
    // SAFETY: numbers, and the address of a local.
    let entered = unsafe {
        kernel!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8)
            .and_then(|_| kernel!(SYS_setns, shared.visited, spawn::NEW_USER | spawn::NEW_NET | spawn::NEW_MOUNT))
    };
    tie(shared);
    shared.state.store(if entered.is_ok() { BORN } else { FAILED }, Ordering::Release);
    wake(&shared.state);
    serve(shared)
}

/// Does what is wanted, until somebody ends us.
fn serve(shared: &Shared) -> ! {
    loop {
        match shared.state.load(Ordering::Acquire) {
            WANTED => {
                let given = match shared.want.load(Ordering::Relaxed) {
                    LET_RUN => mount::let_run(shared.file.load(Ordering::Relaxed)).map(|()| 0),
                    family => make_socket(family),
                };
                shared.want.store(given.unwrap_or_else(|errno| -errno), Ordering::Relaxed);
                shared.state.store(BORN, Ordering::Release);
                wake(&shared.state);
            }
            state => wait(&shared.state, state, None),
        }
    }
}

/// Waits for the time to give birth. What can be done before or after is done now, unless it is time already.
fn while_waiting(shared: &Shared) -> Option<Result<(), (u32, i32)>> {
    let early = shared.rest.load(Ordering::Acquire) == NOT_YET;
    let rest = early.then(|| child::walk_rest(shared.frame.load()));
    wait_past(&shared.rest, NOT_YET);
    rest
}

/// What is left of the frame, then what the plan wants, while the first process seals itself.
fn make_places(shared: &Shared, rest: Option<Result<(), (u32, i32)>>) {
    let (frame, early) = (shared.frame.load(), shared.early.load());
    let made = rest.unwrap_or_else(|| child::walk_rest(frame)).and_then(|()| {
        wait_past(&shared.placing, NOT_YET);
        child::walk_places(shared.places.load(), frame.len() + early.len(), shared.mounts.load(), shared.meeting)
    });
    for (slot, fd) in shared.opened.iter().zip(made.unwrap_or(child::NO_PLACES)) {
        slot.store(fd, Ordering::Release);
    }
    shared.meeting.places_are(made.map(drop));
}

fn give_birth(shared: &Shared, birth: &mut Birth) -> bool {
    let (early, before) = (shared.early.load(), shared.frame.load().len());
    let (ours, theirs, meeting) = (shared.ours, shared.theirs, shared.meeting);
    let given = birth.give(libc::CLONE_PARENT as u64, || {
        // The other end must be closed here, or the supervisor's death would go unnoticed.
        child::close(ours);
        child::run_early(early, before, theirs, meeting)
    });
    given.is_ok()
}

fn make_socket(family: i32) -> Result<i32, i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_socket, family, kind, 0) }
}

/// Has us end with the one we help; he may be gone already.
fn tie(shared: &Shared) {
    // SAFETY: numbers only.
    unsafe {
        let tied = kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if tied.is_err() || kernel!(SYS_getppid) != Ok(shared.parent) {
            child::exit(1);
        }
    }
}

fn make(shared: &Shared) -> Result<(), i32> {
    if shared.begun {
        entry::made()?;
        shared.state.store(ENTERED, Ordering::Release);
        wake(&shared.state);
    } else {
        enter_namespaces(shared)?;
    }
    wait_past(&shared.settled, NOT_YET);
    match shared.settled.load(Ordering::Acquire) {
        SETTLED => child::walk_frame(shared.frame.load()),
        _ => Err(libc::EPERM),
    }
}

fn enter_namespaces(shared: &Shared) -> Result<(), i32> {
    let all = u64::MAX;
    // SAFETY: numbers, and the address of a local.
    unsafe {
        // What a terminal sends is for us to answer; and the first process wants its signals blocked from the start.
        kernel!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8)?;
        kernel!(SYS_unshare, spawn::NEW_USER)?;
        shared.state.store(ENTERED, Ordering::Release);
        wake(&shared.state);
        kernel!(SYS_unshare, MADE).map(drop)
    }
}
