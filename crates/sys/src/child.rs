//! Code between clone and exec, and the guest's pid 1. Executes a finished list of steps with raw system calls only: no
//! allocation, no lock, no panic. The memory is a private copy of the supervisor's.

mod messages;
mod mounts;
mod privileges;

use self::messages::{await_supervisor, has_hung_up, join_groups, ready, receive};
use self::mounts::{attach, bind, bind_known, legacy_flags, make_dir, make_file, mount, overlay, pivot, put};
use self::privileges::{
    bound_capabilities, drop_capabilities, identity, install_filter, loopback_up, tie_to_supervisor,
};
use crate::command::{Command, Order};
use crate::control::{END_SIGNAL, MOST_HANDLES, Message, Report, send};
use crate::init::KillScope;
use crate::op::{InsideDir, Op};
use crate::raw::{close, close_all_but, exit, kernel, rlimit};
use crate::setup_barrier::SetupBarrier;
use crate::terminal::open_terminal;
use crate::{diag, doors, init, landlock, mount, netlink, shepherd};
use std::os::fd::RawFd;

/// State of the setup: descriptors that are sent to the supervisor at the end, and the barrier shared with the setup
/// helper.
struct SetupState<'a> {
    control: RawFd,
    barrier: Option<&'a SetupBarrier>,
    listener: RawFd,
    places: Opened,
    master: RawFd,
    slave: RawFd,
    sockets: RawFd,
    doors: doors::Opened,
    /// Mounts received by message; owned by this process.
    mounts: [RawFd; MOST_HANDLES],
    shared_mounts: Option<SharedMounts<'a>>,
    /// The failed step of the setup helper, if it is the cause of our failure.
    helper_failed_step: Option<u32>,
}

impl<'a> SetupState<'a> {
    fn new(control: RawFd, barrier: Option<&'a SetupBarrier>) -> SetupState<'a> {
        let (mounts, doors) = ([-1; MOST_HANDLES], doors::Opened::NONE);
        let (listener, master, slave, sockets) = (-1, -1, -1, -1);
        let places = NO_PLACES;
        let (shared_mounts, helper_failed_step) = (None, None);
        SetupState {
            control,
            barrier,
            listener,
            places,
            master,
            slave,
            sockets,
            doors,
            mounts,
            shared_mounts,
            helper_failed_step,
        }
    }
}

/// Descriptors of places, by `InsideDir::index`; -1 where there is none.
pub(crate) type Opened = [RawFd; InsideDir::COUNT];
pub(crate) const NO_PLACES: Opened = [-1; _];

/// Mounts in the descriptor table that is shared with the supervisor, who closes them.
struct SharedMounts<'a> {
    all: &'a [RawFd],
    /// Number of mounts that messages would have delivered so far.
    received: usize,
}

impl SharedMounts<'_> {
    fn get(&self, slot: usize) -> RawFd {
        let at = (self.received + slot).checked_sub(MOST_HANDLES);
        at.and_then(|at| self.all.get(at)).copied().unwrap_or(-1)
    }
}

/// Executes the steps that need no pid 1, except those that take long and that no step needs before pid 1 exists.
pub(crate) fn walk_frame(ops: &[Op]) -> Result<(), i32> {
    let mut state = SetupState::new(-1, None);
    let mut now = ops.iter().filter(|op| !matches!(op, Op::AwaitSupervisor | Op::Loopback));
    now.try_for_each(|op| perform(op, &mut state))
}

/// Executes the steps that `walk_frame` left out; on failure the step and its error number.
pub(crate) fn walk_deferred(ops: &[Op]) -> Result<(), (u32, i32)> {
    let mut rest = ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::Loopback));
    rest.try_for_each(|(step, op)| perform(op, &mut SetupState::new(-1, None)).map_err(|errno| (step as u32, errno)))
}

/// Executes the steps that make a guest's places, which follow `before` other steps; returns the descriptors that they
/// opened.
pub(crate) fn walk_places(
    ops: &[Op],
    before: usize,
    mounts: &[RawFd],
    barrier: &SetupBarrier,
) -> Result<Opened, (u32, i32)> {
    let mut state = SetupState::new(-1, Some(barrier));
    state.shared_mounts = Some(SharedMounts { all: mounts, received: 0 });
    for (at, op) in ops.iter().enumerate() {
        perform(op, &mut state).map_err(|errno| ((before + at) as u32, errno))?;
    }
    Ok(state.places)
}

/// Main function of a guest's pid 1.
pub(crate) fn run(ops: &[Op], command: &Command, control: RawFd) -> ! {
    run_guest(ops, 0, command, SetupState::new(control, None))
}

/// Main function of a pid 1 that is cloned before its plan is known: it executes the steps that every plan has, which
/// follow `before` other steps, and then waits for its order. The setup helper makes its places meanwhile.
pub(crate) fn run_early(early: &[Op], before: usize, control: RawFd, barrier: &SetupBarrier) -> ! {
    let mut state = SetupState::new(control, Some(barrier));
    walk(early.iter().enumerate().map(|(i, op)| (before + i, op)), &mut state);
    barrier.set_early(true);
    let order = await_order(control);
    // The initial affinity was chosen by the supervisor; the command may run on any processor that the supervisor may
    // use.
    // SAFETY: a buffer with its true length, in the arena.
    let _ = unsafe { kernel!(SYS_sched_setaffinity, 0, order.mask_len, order.mask) };
    // SAFETY: the supervisor sends an order only when all of it lies in the arena, which was mapped before this process
    // was cloned and is never changed after it was written. Our own mapping of it stays when the supervisor unmaps its
    // own.
    let (ops, command) = unsafe { (std::slice::from_raw_parts(order.ops, order.count), &*order.command) };
    run_guest(ops, order.done, command, state)
}

fn await_order(control: RawFd) -> Order {
    let mut order = std::mem::MaybeUninit::<Order>::uninit();
    // SAFETY: a buffer with its true length, complete when as much was read.
    unsafe {
        match kernel!(SYS_read, control, order.as_mut_ptr(), size_of::<Order>()) {
            Ok(len) if len as usize == size_of::<Order>() => order.assume_init(),
            // The supervisor is gone, or cancelled the start.
            _ => exit(1),
        }
    }
}

/// Executes numbered steps; the first failure is reported and ends the process.
fn walk<'a>(ops: impl Iterator<Item = (usize, &'a Op)>, state: &mut SetupState<'_>) {
    for (step, op) in ops {
        if let Err(errno) = perform(op, state) {
            fail(state, state.helper_failed_step.unwrap_or(step as u32), errno);
        }
    }
}

fn fail(state: &SetupState<'_>, step: u32, errno: i32) -> ! {
    let report = Report { message: Message::StepFailed, step, errno, ..Report::default() };
    let _ = send(state.control, &report, &[]);
    state.barrier.iter().for_each(|barrier| barrier.set_early(false));
    exit(1)
}

fn run_guest(ops: &[Op], done: usize, command: &Command, mut state: SetupState<'_>) -> ! {
    // Before the seccomp filter: the supervisor does not yet answer its notifications.
    let signals =
        command.accepts_jobs.then(|| shepherd::prepare().unwrap_or_else(|errno| fail(&state, u32::MAX, errno)));
    walk(ops.iter().enumerate().skip(done), &mut state);
    if let Some(signals) = signals {
        shepherd::serve(state.control, signals)
    }
    let pid = match init::start(command, state.slave) {
        Ok(pid) => pid,
        Err((step, errno)) => {
            let report = Report { message: Message::ExecFailed, step, errno, ..Report::default() };
            let _ = send(state.control, &report, &[]);
            exit(1);
        }
    };
    close_all_but(state.control);
    let realm = if command.own_pids { KillScope::Namespace } else { KillScope::Descendants };
    init::reap(pid, realm, state.control)
}

fn perform(op: &Op, state: &mut SetupState<'_>) -> Result<(), i32> {
    match op {
        Op::AwaitSupervisor => await_supervisor(state.control),
        // A process without a helper has executed all earlier steps itself.
        Op::AwaitEarly => state.barrier.map_or(Ok(()), SetupBarrier::await_early),
        Op::AwaitPlaces => {
            let Some(barrier) = state.barrier else { return Ok(()) };
            let control = state.control;
            barrier.await_places(|| has_hung_up(control)).map_err(|(step, errno)| {
                state.helper_failed_step = step;
                errno
            })
        }
        Op::JoinGroups => join_groups(state.control),
        Op::ReceiveMounts => match &mut state.shared_mounts {
            Some(shared_mounts) => {
                shared_mounts.received += MOST_HANDLES;
                Ok(())
            }
            None => receive(state.control, &mut state.mounts),
        },
        Op::Identity { uid, gid, drop_groups } => identity(*uid, *gid, *drop_groups),
        Op::TieToSupervisor => tie_to_supervisor(),
        // SAFETY: numbers only. Without a pid namespace the end of the supervisor must reach us as a signal that we
        // handle, because our own end would not kill our descendants.
        Op::Subreaper => unsafe {
            kernel!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)?;
            kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, END_SIGNAL, 0, 0, 0).map(drop)
        },
        Op::PrivateMounts => mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE, None),
        Op::Tmpfs { at, options, attr } => mount(c"tmpfs", at, Some(c"tmpfs"), legacy_flags(*attr), Some(options)),
        Op::Pivot { root, old } => pivot(root, old),
        Op::Dir { at, mode } => make_dir(at, *mode),
        Op::File { at, mode, bytes } => make_file(at, *mode, bytes),
        // SAFETY: two C strings that outlive the call.
        Op::Link { at, target } => unsafe {
            kernel!(SYS_symlinkat, target.as_ptr(), libc::AT_FDCWD, at.as_ptr()).map(drop)
        },
        Op::WriteFile { at, bytes } => put(at, bytes),
        Op::Mqueue { at } => {
            mount(c"mqueue", at, Some(c"mqueue"), libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, None)
        }
        Op::Bind { from, at, attr } => bind(from, at, *attr),
        Op::BindKnown { from, at, attr } => bind_known(from, at, *attr),
        Op::Attach { slot, at } => {
            if let Some(shared_mounts) = &state.shared_mounts {
                return attach(shared_mounts.get(*slot), at);
            }
            let fd = state.mounts.get(*slot).copied().unwrap_or(-1);
            let result = attach(fd, at);
            close(fd);
            result
        }
        Op::Overlay { at, options, attr } => overlay(at, options, *attr),
        // SAFETY: a C string that outlives the call; device 0:0 needs no privilege and gives none.
        Op::Whiteout { at } => unsafe { kernel!(SYS_mknodat, libc::AT_FDCWD, at.as_ptr(), libc::S_IFCHR, 0).map(drop) },
        Op::Proc { at } => {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            mount(c"proc", at, Some(c"proc"), flags, None)
        }
        Op::Devpts { at } => {
            let options = c"newinstance,ptmxmode=0666,mode=0620";
            mount(c"devpts", at, Some(c"devpts"), libc::MS_NOSUID | libc::MS_NOEXEC, Some(options))
        }
        Op::SetMountAttr { at, attr } => {
            let fd = mount::open_straight(at)?;
            let result = mount::set_attr(fd, *attr, false, None);
            close(fd);
            result
        }
        // SAFETY: C strings that outlive the calls.
        Op::Unmount { at } => unsafe { kernel!(SYS_umount2, at.as_ptr(), libc::MNT_DETACH) }.map(drop),
        // SAFETY: as above.
        Op::RemoveDir { at } => unsafe {
            kernel!(SYS_unlinkat, libc::AT_FDCWD, at.as_ptr(), libc::AT_REMOVEDIR).map(drop)
        },
        // SAFETY: as above.
        Op::RemoveFile { at } => unsafe { kernel!(SYS_unlinkat, libc::AT_FDCWD, at.as_ptr(), 0) }.map(drop),
        Op::Loopback => loopback_up(),
        Op::Netlink { family, batch, .. } => netlink::send(*family, batch),
        Op::OpenDoors { ipv6, loopback, filters } => {
            state.sockets = diag::open();
            doors::open(*ipv6, loopback, filters.each_ref().map(|filter| &**filter), &mut state.doors)
        }
        Op::OpenResolver { batch } => {
            let opened = netlink::send(netlink::ROUTE, batch).and_then(|()| doors::open_resolver());
            state.doors.everywhere[doors::DNS_SLOT] = opened.unwrap_or(-1);
            Ok(())
        }
        // SAFETY: takes flags only.
        Op::NewNamespace { flags, .. } => unsafe { kernel!(SYS_unshare, *flags) }.map(drop),
        Op::Rlimit { resource, value, .. } => rlimit(*resource, *value),
        Op::CpuAffinity { mask } => {
            // SAFETY: the mask is as long as stated.
            unsafe { kernel!(SYS_sched_setaffinity, 0, mask.len() * 8, mask.as_ptr()) }.map(drop)
        }
        // SAFETY: a C string that outlives the call.
        Op::ChangeDir { at } => unsafe { kernel!(SYS_chdir, at.as_ptr()) }.map(drop),
        Op::OpenPlace { at, place } => match state.places.get_mut(place.index()) {
            Some(slot) => mount::open_straight(at).map(|fd| *slot = fd),
            None => Err(libc::EMFILE),
        },
        Op::OpenTerminal { at, rows, columns } => {
            open_terminal(at, *rows, *columns).map(|(master, slave)| (state.master, state.slave) = (master, slave))
        }
        // SAFETY: takes numbers only.
        Op::NoNewPrivileges => unsafe { kernel!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.map(drop),
        Op::BoundCapabilities => bound_capabilities(),
        Op::DropCapabilities => drop_capabilities(),
        Op::LandlockRule { ruleset, at, rights } => {
            let fd = mount::open_straight(at)?;
            let result = landlock::add_rule(*ruleset, fd, *rights);
            close(fd);
            result
        }
        Op::LandlockRestrict { ruleset } => landlock::restrict_self(*ruleset),
        Op::Seccomp { program, listener } => install_filter(program, *listener).map(|fd| state.listener = fd),
        Op::Ready => ready(state),
    }
}
