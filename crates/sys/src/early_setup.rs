//! Early setup of a guest: a helper process, which shares our memory, creates the namespaces in parallel with planning.
//! A new network namespace takes the kernel longer than any other part of a start, and neither it nor the frame of the
//! guest's root depends on the policy. The helper works on another processor and clones the guest's pid 1 inside, as a
//! child of ours. Pid 1 executes the steps that every plan has, waits for its order, and drops its privileges, while
//! the helper makes the places that the plan names. Later the helper opens sockets in the guest's network namespace for
//! published ports, and permits the execution of programs that a person has allowed.
//!
//! Starting the helper copies no memory; while we work it touches only the structures shared here. It makes system
//! calls without the C library, whose `errno` it would share with us.

use crate::arena::{Arena, ArenaRef};
use crate::clone::{CloneRequest, SetupSteps, Spawned};
use crate::command::{Command, Order};
use crate::control::{InsideHandles, socket_pair};
use crate::dont_fork::{self, DontFork};
use crate::entry::EntryHelper;
use crate::namespaces::{HELPER_MAKES, NEW_MOUNT, NEW_NET, NEW_PID, NEW_TIME, NEW_USER};
use crate::op::{InsideDir, Op};
use crate::raw::{close, exit, kernel};
use crate::setup_barrier::{SetupBarrier, spin, wait, wait_past, wake};
use crate::{CallError, child, entry, host, mount, process};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

/// Namespaces that belong to pid 1 alone.
const PID1_NAMESPACES: u64 = NEW_PID | NEW_TIME;

/// State of the helper. It goes from `HELD` to `WORKING`, by `ENTERED` to `CLONED`, or to `FAILED`; and from `REQUESTED`
/// back to `CLONED` for every request.
const HELD: i32 = -1;
const WORKING: i32 = 0;
const ENTERED: i32 = 1;
const CLONED: i32 = 2;
const FAILED: i32 = 3;
const REQUESTED: i32 = 4;

/// A request to permit execution; not an address family.
const ALLOW_EXEC: i32 = -1;

/// Progress of our own part: ids mapped and the first steps known; then, the places known.
const PENDING: i32 = 0;
const GRANTED: i32 = 1;
const REFUSED: i32 = 2;

/// Stack size in bytes. The guest's pid 1 continues on its copy of the helper's stack.
const STACK: usize = 256 * 1024;
type Mask = [u64; entry::WORDS];

/// Memory shared between the supervisor and the helper.
struct SharedMemory {
    state: AtomicI32,
    frame_gate: AtomicI32,
    /// The request: an address family for a socket, or `ALLOW_EXEC`; then the reply: a descriptor, 0, or a negative error
    /// number.
    request: AtomicI32,
    /// The file whose execution is requested.
    file: AtomicI32,
    parent: i32,
    /// Steps for the helper before the clone, and first steps of pid 1; valid once `frame_gate`.
    frame: SharedList<Op>,
    early: SharedList<Op>,
    /// Set once pid 1 may be cloned.
    clone_gate: AtomicI32,
    /// Set once `places` and `mounts` are valid: steps for the helper after the clone, and mounts for them.
    places_gate: AtomicI32,
    places: SharedList<Op>,
    mounts: SharedList<RawFd>,
    /// Descriptors that those steps opened.
    opened: [AtomicI32; InsideDir::COUNT],
    barrier: ArenaRef<SetupBarrier>,
    /// Both ends of the control socket between us and pid 1.
    ours: RawFd,
    theirs: RawFd,
    /// A pidfd of an existing pid 1 whose network and mount namespaces to enter, for a helper that was started after
    /// it.
    target_pidfd: RawFd,
    clone_request: CloneRequest,
    /// The helper was started at the entry point, and created its namespaces there.
    started_at_entry: bool,
    /// Our own affinity mask, with its length in bytes; 0 when unknown.
    mask: Mask,
    mask_len: usize,
}

impl SharedMemory {
    fn new(arena: &Arena) -> SharedMemory {
        SharedMemory {
            state: AtomicI32::new(HELD),
            frame_gate: AtomicI32::new(PENDING),
            request: AtomicI32::new(0),
            file: AtomicI32::new(-1),
            parent: std::process::id() as i32,
            frame: SharedList::new(),
            early: SharedList::new(),
            clone_gate: AtomicI32::new(PENDING),
            places_gate: AtomicI32::new(PENDING),
            places: SharedList::new(),
            mounts: SharedList::new(),
            opened: child::NO_PLACES.map(AtomicI32::new),
            barrier: SetupBarrier::new(arena),
            ours: -1,
            theirs: -1,
            target_pidfd: -1,
            clone_request: CloneRequest { flags: PID1_NAMESPACES, group: None, pid: 0, pidfd: -1 },
            started_at_entry: false,
            mask: [0; entry::WORDS],
            mask_len: 0,
        }
    }
}

/// A finished list in the arena, which one side stores and the other reads after a flag was set.
struct SharedList<T>(AtomicPtr<T>, AtomicUsize);

impl<T> SharedList<T> {
    const fn new() -> SharedList<T> {
        SharedList(AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0))
    }

    /// Stores the list, which must live as long as the helper: in the arena of its `EarlySetup`.
    fn store(&self, list: &[T]) {
        self.0.store(list.as_ptr().cast_mut(), Ordering::Relaxed);
        self.1.store(list.len(), Ordering::Relaxed);
    }

    fn load(&self) -> &[T] {
        let at = self.0.load(Ordering::Relaxed);
        if at.is_null() {
            return &[];
        }
        // SAFETY: `store` wrote both words from one list, and its caller guarantees the lifetime.
        unsafe { std::slice::from_raw_parts(at, self.1.load(Ordering::Relaxed)) }
    }
}

/// The helper while it lives. Dropping this kills and reaps it, and pid 1 too unless it got its order.
pub struct EarlySetup {
    pid: i32,
    pidfd: OwnedFd,
    control: Option<(OwnedFd, OwnedFd)>,
    // A raw pointer, because the helper changes the structure.
    shared: *mut SharedMemory,
    /// Memory of everything that the helper and pid 1 read. Unmapped here after the helper has ended.
    arena: Arena,
    /// Excludes heap and stack from pid 1's copy, from when it may be cloned until it is.
    excluded: Cell<Option<DontFork>>,
    _stack: Vec<u8>,
}

// SAFETY: memory is shared with the helper by design, and only one owner at a time uses this handle.
unsafe impl Send for EarlySetup {}

/// Starts the helper; `settle` must follow. `None` if that fails; the caller then creates the namespaces itself and
/// gets the kernel's own error.
pub fn start(arena: &Arena) -> Option<EarlySetup> {
    if !arena.is_shared() {
        return None;
    }
    let (ours, theirs) = socket_pair().ok()?;
    let mut shared =
        Box::new(SharedMemory { ours: ours.as_raw_fd(), theirs: theirs.as_raw_fd(), ..SharedMemory::new(arena) });
    let mut setup = match entry::take_helper() {
        Some(early) => take_over(&early, shared, arena)?,
        None => {
            shared.mask_len = processors(&mut shared.mask);
            let setup = launch(helper_main, shared, arena)?;
            pin_elsewhere(setup.pid, setup.shared());
            setup.shared().state.store(WORKING, Ordering::Release);
            wake(&setup.shared().state);
            setup
        }
    };
    setup.control = Some((ours, theirs));
    Some(setup)
}

/// Takes over the helper that was started at the entry point.
fn take_over(early: &EntryHelper, mut shared: Box<SharedMemory>, arena: &Arena) -> Option<EarlySetup> {
    // SAFETY: numbers only.
    let pidfd = unsafe { kernel!(SYS_pidfd_open, early.pid, 0) };
    let Ok(pidfd) = pidfd else {
        end(early.pid);
        return None;
    };
    *shared = SharedMemory { started_at_entry: true, mask: early.mask, mask_len: early.mask_len, ..*shared };
    shared.state.store(WORKING, Ordering::Relaxed);
    let shared = Box::into_raw(shared);
    entry::resume(early, helper_main, shared.cast());
    // SAFETY: a fresh descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let (arena, excluded) = (arena.clone(), Cell::new(None));
    Some(EarlySetup { pid: early.pid, pidfd, control: None, shared, arena, excluded, _stack: Vec::new() })
}

/// Ends the helper that was started at the entry point, for a command that needs no enclosure here.
pub fn forgo() {
    entry::take_helper().iter().for_each(|early| end(early.pid));
}

/// Kills and reaps a helper.
fn end(pid: i32) {
    // SAFETY: our own child, not reaped yet, so the pid cannot be reused; no status wanted.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
    }
}

/// Starts a helper for an existing pid 1 that was made without one. That process must not yet have executed
/// `TieToSupervisor`: from then on only root can open its namespaces.
pub fn visit(first: BorrowedFd<'_>, arena: &Arena) -> Option<EarlySetup> {
    let setup = launch(
        visitor_main,
        Box::new(SharedMemory { target_pidfd: first.as_raw_fd(), ..SharedMemory::new(arena) }),
        arena,
    )?;
    setup.shared().state.store(WORKING, Ordering::Release);
    wake(&setup.shared().state);
    setup.wait_while(WORKING);
    (setup.shared().state.load(Ordering::Acquire) == CLONED).then_some(setup)
}

/// Starts a helper, which waits in the state `HELD`.
fn launch(
    main: extern "C" fn(*mut libc::c_void) -> i32,
    mut shared: Box<SharedMemory>,
    arena: &Arena,
) -> Option<EarlySetup> {
    let mut stack = vec![0u8; STACK];
    let mut pidfd: RawFd = -1;
    // SAFETY: the stack and the shared structure live in allocations that are kept until the helper has been reaped.
    // The helper runs `main` only, which allocates nothing and takes no lock. The descriptor table is shared, so that
    // the process that the helper clones has our descriptors, and its pidfd reaches us.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(STACK & !15).cast();
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD | libc::SIGCHLD;
        libc::clone(main, top, flags, (&raw mut *shared).cast(), &raw mut pidfd)
    };
    if pid < 0 {
        return None;
    }
    // SAFETY: CLONE_PIDFD stored a fresh descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let (arena, excluded) = (arena.clone(), Cell::new(None));
    Some(EarlySetup { pid, pidfd, control: None, shared: Box::into_raw(shared), arena, excluded, _stack: stack })
}

fn processors(mask: &mut Mask) -> usize {
    // SAFETY: a buffer with its true length; the kernel says how much of it counts.
    let got = unsafe { kernel!(SYS_sched_getaffinity, 0, size_of::<Mask>(), mask.as_mut_ptr()) };
    got.map_or(0, |bytes| bytes as usize)
}

/// Sets the helper's affinity to other processors, if there are any. A new process starts on its parent's processor,
/// and one of the two would wait for the other; so it is held until this is done.
fn pin_elsewhere(pid: i32, shared: &SharedMemory) {
    let here = current_cpu();
    let mut elsewhere = shared.mask;
    if let Some(word) = elsewhere.get_mut(here / 64) {
        *word &= !(1 << (here % 64));
        if elsewhere.iter().any(|word| *word != 0) {
            // SAFETY: a buffer at least as long as stated. A failure only costs time.
            let _ = unsafe { kernel!(SYS_sched_setaffinity, pid, shared.mask_len, elsewhere.as_ptr()) };
        }
    }
}

/// Moves pid 1 to this processor. It was cloned on the helper's processor, and would wait for the helper there while we
/// wait for both. Its affinity is reset once it has its order.
fn pin_here(pid: i32, words: usize) {
    let mut only: Mask = [0; _];
    let here = current_cpu();
    if let Some(word) = only.get_mut(here / 64).filter(|_| here / 64 < words) {
        *word = 1 << (here % 64);
        // SAFETY: a buffer as long as stated. A failure only costs time.
        let _ = unsafe { kernel!(SYS_sched_setaffinity, pid, words * 8, only.as_ptr()) };
    }
}

fn current_cpu() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

impl EarlySetup {
    fn shared(&self) -> &SharedMemory {
        // SAFETY: from a box that lives until `drop` has reaped the helper. The helper changes only `clone_request`, which is
        // read after it said so or is gone, and the atomic words.
        unsafe { &*self.shared }
    }

    /// Returns true if the helper already waits for `settle`.
    pub fn is_waiting(&self) -> bool {
        self.shared().started_at_entry
    }

    /// Provides the input that the helper waits for: the id maps, `(inside, outside)`, the steps of the frame, and the
    /// first steps of pid 1. Descriptors that these need must be open by now.
    pub fn settle(&self, uid: (u32, u32), gid: (u32, u32), freeze_groups: bool, frame: &[Op], early: &[Op]) {
        let shared = self.shared();
        let lists = self.share_ops(frame).zip(self.share_ops(early));
        self.wait_while(WORKING);
        let mapped = lists.is_some() && host::write_id_maps(self.pid, uid, gid, freeze_groups).is_ok();
        if let Some((frame, early)) = lists {
            shared.frame.store(frame);
            shared.early.store(early);
        }
        shared.frame_gate.store(if mapped { GRANTED } else { REFUSED }, Ordering::Release);
        wake(&shared.frame_gate);
    }

    /// Copies steps into the arena, where the helper and pid 1 see them; `None` if they could not see all of them.
    fn share_ops(&self, ops: &[Op]) -> Option<&[Op]> {
        let all = ops.iter().all(|op| op.is_in(&self.arena));
        // SAFETY: what the steps refer to is in this arena or part of the program.
        all.then(|| unsafe { self.arena.copy_bits(ops) }).flatten()
    }

    /// Permits the clone of pid 1, after `settle`. Pid 1 is a copy of our memory: the clone, and page faults of later
    /// writes, delay us. So this is called once the plan is made.
    pub fn release(&self) {
        if self.shared().clone_gate.load(Ordering::Relaxed) == GRANTED {
            return;
        }
        self.excluded.set(Some(dont_fork::exclude()));
        self.shared().clone_gate.store(GRANTED, Ordering::Release);
        wake(&self.shared().clone_gate);
    }

    /// Sends pid 1 and the helper their orders: the list of steps and the command. `None` if there is no such process,
    /// or if it could not see the list.
    pub(crate) fn start_pid1(&mut self, steps: SetupSteps<'_>, command: &Command) -> Option<Spawned> {
        self.release();
        self.wait_while(WORKING);
        self.wait_while(ENTERED);
        self.excluded.set(None);
        let shared = self.shared();
        if shared.state.load(Ordering::Acquire) != CLONED {
            return None;
        }
        let done = shared.frame.load().len() + shared.early.load().len();
        let ops = self.share_ops(steps.ops)?;
        let places = ops.get(done..steps.first_of_pid1)?;
        let mounts: Vec<RawFd> = steps.mounts.iter().map(AsRawFd::as_raw_fd).collect();
        let mask = shared.mask.get(..shared.mask_len / 8).unwrap_or_default();
        let seen = command.is_in(&self.arena);
        // SAFETY: what the command refers to is in this arena, and numbers refer to nothing.
        let (command, mounts, mask) = unsafe {
            let command = self.arena.copy_bits(std::slice::from_ref(command)).filter(|_| seen)?;
            (command, self.arena.copy_bits(&mounts)?, self.arena.copy_bits(mask)?)
        };
        let order = Order {
            ops: ops.as_ptr(),
            count: ops.len(),
            done: steps.first_of_pid1,
            command: command.as_ptr(),
            mask: mask.as_ptr(),
            mask_len: size_of_val(mask),
        };
        let mask_words = mask.len();
        shared.places.store(places);
        shared.mounts.store(mounts);
        let (ours, theirs) = self.control.take()?;
        // Closed here, or the end of pid 1 would not show as a hang-up.
        drop(theirs);
        let spawned = self.shared().clone_request.spawned(ours);
        pin_here(spawned.pid, mask_words);
        if spawned.control_socket().order(&order).is_err() {
            // Without an order it would wait forever.
            process::kill_child(spawned.pid);
            return None;
        }
        let shared = self.shared();
        shared.places_gate.store(GRANTED, Ordering::Release);
        wake(&shared.places_gate);
        Some(spawned)
    }

    /// Waits until the helper has executed all its steps, or one of the two processes is gone; returns the descriptors
    /// that it opened. Until then it has files open in the descriptor table that it shares with us.
    pub fn finish(&self, first: BorrowedFd<'_>) -> InsideHandles {
        let barrier = &self.shared().barrier;
        while !barrier.has_places() && !process::has_ended(first) {
            // Read again after the process ended: its last result counts.
            if process::has_ended(self.pidfd.as_fd()) && !barrier.has_places() {
                barrier.set_places_lost();
                break;
            }
            barrier.wait_briefly();
        }
        InsideHandles::from(self.shared().opened.each_ref().map(|slot| {
            let fd = slot.swap(-1, Ordering::AcqRel);
            // SAFETY: the descriptor table is shared: the helper opened this descriptor for us and does not use it again.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        }))
    }

    /// Opens a non-blocking TCP socket in the guest's network namespace. Only after pid 1 was cloned, and from one
    /// thread at a time.
    pub fn socket(&self, ipv6: bool) -> Result<OwnedFd, CallError> {
        let family = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        let fd = self.request(family).map_err(|errno| CallError { call: "socket", errno })?;
        // SAFETY: the descriptor table is shared: the helper opened this descriptor for us and does not use it again.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Permits the execution of one file of the guest's tree although its mount is noexec. Same conditions as `socket`.
    pub fn allow_exec(&self, file: BorrowedFd<'_>) -> Result<(), CallError> {
        self.shared().file.store(file.as_raw_fd(), Ordering::Relaxed);
        self.request(ALLOW_EXEC).map(drop).map_err(|errno| CallError { call: "mount_setattr", errno })
    }

    /// Sends a request to the helper; returns its reply, or an error number.
    fn request(&self, what: i32) -> Result<i32, i32> {
        let shared = self.shared();
        if shared.state.load(Ordering::Acquire) != CLONED {
            return Err(libc::ECANCELED);
        }
        shared.request.store(what, Ordering::Relaxed);
        shared.state.store(REQUESTED, Ordering::Release);
        wake(&shared.state);
        self.wait_while(REQUESTED);
        match (shared.state.load(Ordering::Acquire), shared.request.load(Ordering::Relaxed)) {
            (CLONED, given) if given >= 0 => Ok(given),
            (CLONED, errno) => Err(-errno),
            _ => Err(libc::ECANCELED),
        }
    }

    fn wait_while(&self, state: i32) {
        let word = &self.shared().state;
        spin(word, state);
        while word.load(Ordering::Acquire) == state {
            // A helper that was killed never changes the word, so its pidfd is checked now and then.
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            wait(word, state, Some(&pause));
            if word.load(Ordering::Acquire) == state && process::has_ended(self.pidfd.as_fd()) {
                return;
            }
        }
    }
}

impl Drop for EarlySetup {
    fn drop(&mut self) {
        end(self.pid);
        // SAFETY: the helper is gone, so the shared memory is ours alone. A pid 1 that got no order is our own child,
        // not reaped yet: its pid cannot be reused.
        unsafe {
            let shared = Box::from_raw(self.shared);
            if self.control.is_some() && shared.clone_request.pid > 0 {
                process::kill_child(shared.clone_request.pid);
                libc::close(shared.clone_request.pidfd);
            }
        }
    }
}

extern "C" fn helper_main(shared: *mut libc::c_void) -> i32 {
    let raw = shared.cast::<SharedMemory>();
    // SAFETY: points into the box that `EarlySetup` keeps until this process has ended.
    let shared = unsafe { &*raw };
    die_with_parent(shared);
    wait_past(&shared.state, HELD);
    // The helper runs on another processor by now; the mask is reset, because pid 1 inherits it.
    // SAFETY: a buffer with its true length.
    let _ = unsafe { kernel!(SYS_sched_setaffinity, 0, shared.mask_len, shared.mask.as_ptr()) };
    let made = build_frame(shared).is_ok();
    // The change of ids among the steps cleared PR_SET_PDEATHSIG.
    die_with_parent(shared);
    let rest = made.then(|| walk_deferred_while_waiting(shared)).flatten();
    // SAFETY: no other process touches this field until the state says that it is done, or this process is gone.
    let cloned = made && unsafe { clone_pid1(shared, &mut (*raw).clone_request) };
    shared.state.store(if cloned { CLONED } else { FAILED }, Ordering::Release);
    wake(&shared.state);
    if cloned {
        make_places(shared, rest);
    }
    serve(shared)
}

extern "C" fn visitor_main(shared: *mut libc::c_void) -> i32 {
    // SAFETY: points into the box that `EarlySetup` keeps until this process has ended.
    let shared = unsafe { &*shared.cast::<SharedMemory>() };
    die_with_parent(shared);
    wait_past(&shared.state, HELD);
    let all = u64::MAX;
    // SAFETY: numbers, and the address of a local.
    let entered = unsafe {
        kernel!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8)
            .and_then(|_| kernel!(SYS_setns, shared.target_pidfd, NEW_USER | NEW_NET | NEW_MOUNT))
    };
    die_with_parent(shared);
    shared.state.store(if entered.is_ok() { CLONED } else { FAILED }, Ordering::Release);
    wake(&shared.state);
    serve(shared)
}

/// Serves requests until this process is killed.
fn serve(shared: &SharedMemory) -> ! {
    loop {
        match shared.state.load(Ordering::Acquire) {
            REQUESTED => {
                let given = match shared.request.load(Ordering::Relaxed) {
                    ALLOW_EXEC => mount::allow_exec(shared.file.load(Ordering::Relaxed)).map(|()| 0),
                    family => make_socket(family),
                };
                shared.request.store(given.unwrap_or_else(|errno| -errno), Ordering::Relaxed);
                shared.state.store(CLONED, Ordering::Release);
                wake(&shared.state);
            }
            state => wait(&shared.state, state, None),
        }
    }
}

/// Waits until pid 1 may be cloned. Steps that fit before or after the clone are executed now, unless it may be cloned
/// already.
fn walk_deferred_while_waiting(shared: &SharedMemory) -> Option<Result<(), (u32, i32)>> {
    let early = shared.clone_gate.load(Ordering::Acquire) == PENDING;
    let rest = early.then(|| child::walk_deferred(shared.frame.load()));
    wait_past(&shared.clone_gate, PENDING);
    rest
}

/// Executes the rest of the frame, then the plan's places, while pid 1 drops its privileges.
fn make_places(shared: &SharedMemory, rest: Option<Result<(), (u32, i32)>>) {
    let (frame, early) = (shared.frame.load(), shared.early.load());
    let made = rest.unwrap_or_else(|| child::walk_deferred(frame)).and_then(|()| {
        wait_past(&shared.places_gate, PENDING);
        child::walk_places(shared.places.load(), frame.len() + early.len(), shared.mounts.load(), &shared.barrier)
    });
    for (slot, fd) in shared.opened.iter().zip(made.unwrap_or(child::NO_PLACES)) {
        slot.store(fd, Ordering::Release);
    }
    shared.barrier.set_places(made.map(drop));
}

fn clone_pid1(shared: &SharedMemory, request: &mut CloneRequest) -> bool {
    let (early, before) = (shared.early.load(), shared.frame.load().len());
    // Read before the clone: the shared structure lies on our heap, which pid 1 does not get.
    let (ours, theirs, barrier): (_, _, &SetupBarrier) = (shared.ours, shared.theirs, &shared.barrier);
    let given = request.clone_process(libc::CLONE_PARENT as u64, || {
        // The other end must be closed here, or the supervisor's death would go unnoticed.
        close(ours);
        child::run_early(early, before, theirs, barrier)
    });
    given.is_ok()
}

fn make_socket(family: i32) -> Result<i32, i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_socket, family, kind, 0) }
}

/// Ends this process with its parent, which may be gone already.
fn die_with_parent(shared: &SharedMemory) {
    // SAFETY: numbers only.
    unsafe {
        let tied = kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if tied.is_err() || kernel!(SYS_getppid) != Ok(shared.parent) {
            exit(1);
        }
    }
}

fn build_frame(shared: &SharedMemory) -> Result<(), i32> {
    if shared.started_at_entry {
        entry::namespaces_result()?;
        shared.state.store(ENTERED, Ordering::Release);
        wake(&shared.state);
    } else {
        enter_namespaces(shared)?;
    }
    wait_past(&shared.frame_gate, PENDING);
    match shared.frame_gate.load(Ordering::Acquire) {
        GRANTED => child::walk_frame(shared.frame.load()),
        _ => Err(libc::EPERM),
    }
}

fn enter_namespaces(shared: &SharedMemory) -> Result<(), i32> {
    let all = u64::MAX;
    // SAFETY: numbers, and the address of a local.
    unsafe {
        // Signals from a terminal are for the supervisor; and pid 1 needs its signals blocked from the start.
        kernel!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, 0, 8)?;
        kernel!(SYS_unshare, NEW_USER)?;
        shared.state.store(ENTERED, Ordering::Release);
        wake(&shared.state);
        kernel!(SYS_unshare, HELPER_MAKES).map(drop)
    }
}
