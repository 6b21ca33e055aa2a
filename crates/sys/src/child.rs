//! What runs between clone and exec, and the guest's pid 1. Walks a finished list with raw calls only:
//! no allocation, no lock, no panic. The memory it sees is a private copy of the supervisor's.

mod places;
mod seal;
mod talk;

use self::places::{attach, bind, bind_known, legacy_flags, make_dir, make_file, mount, overlay, pivot, put};
use self::seal::{bound_capabilities, drop_capabilities, identity, install_filter, tie_to_supervisor};
use self::talk::{await_supervisor, hung_up, join_groups, ready, receive};
use crate::first::Realm;
use crate::meeting::Meeting;
use crate::op::{Op, Place};
use crate::raw::kernel;
use crate::spawn::{Command, END_SIGNAL, Message, Order, Report};
use crate::{diag, doors, first, landlock, mount, netlink, shepherd};
use std::os::fd::RawFd;

pub(crate) use places::open_terminal;
pub(crate) use seal::{loopback_up, rlimit};
pub(crate) use talk::{close, close_all_but, exit, send};

/// Handles collected on the way, to be given to the supervisor at the end; and whom one sets up the guest with.
struct Kept {
    control: RawFd,
    meeting: Option<&'static Meeting>,
    listener: RawFd,
    places: Opened,
    master: RawFd,
    slave: RawFd,
    sockets: RawFd,
    doors: doors::Opened,
    /// Mounts that came by message; ours to close.
    mounts: [RawFd; MOST_HANDLES],
    lent: Option<Lent>,
    /// The step of another that failed, where that is why ours does.
    blamed: Option<u32>,
}

impl Kept {
    fn new(control: RawFd, meeting: Option<&'static Meeting>) -> Kept {
        let (mounts, doors) = ([-1; MOST_HANDLES], doors::Opened::NONE);
        let (listener, master, slave, sockets) = (-1, -1, -1, -1);
        let places = NO_PLACES;
        let (lent, blamed) = (None, None);
        Kept { control, meeting, listener, places, master, slave, sockets, doors, mounts, lent, blamed }
    }
}

/// Handles on places, by `Place::index`; -1 where there is none.
pub(crate) type Opened = [RawFd; Place::COUNT];
pub(crate) const NO_PLACES: Opened = [-1; _];

/// Mounts in a table of descriptors that we share with the supervisor; his to close.
struct Lent {
    all: &'static [RawFd],
    /// How many the messages would have brought so far.
    told: usize,
}

impl Lent {
    fn get(&self, slot: usize) -> RawFd {
        let at = (self.told + slot).checked_sub(MOST_HANDLES);
        at.and_then(|at| self.all.get(at)).copied().unwrap_or(-1)
    }
}

/// Handles in one message; the kernel takes a few more. Mounts are numbered anew after so many.
pub const MOST_HANDLES: usize = 200;

/// Walks the steps that need no first process, but for those that take long and that nothing needs until it is born.
pub(crate) fn walk_frame(ops: &[Op]) -> Result<(), i32> {
    let mut kept = Kept::new(-1, None);
    let mut now = ops.iter().filter(|op| !matches!(op, Op::AwaitSupervisor | Op::Loopback));
    now.try_for_each(|op| perform(op, &mut kept))
}

/// Walks what `walk_frame` left; which step failed and why.
pub(crate) fn walk_rest(ops: &[Op]) -> Result<(), (u32, i32)> {
    let mut rest = ops.iter().enumerate().filter(|(_, op)| matches!(op, Op::Loopback));
    rest.try_for_each(|(step, op)| perform(op, &mut Kept::new(-1, None)).map_err(|errno| (step as u32, errno)))
}

/// Walks the steps that make a guest's places, which follow upon `before` others; the handles on some of them.
pub(crate) fn walk_places(
    ops: &[Op],
    before: usize,
    mounts: &'static [RawFd],
    meeting: &'static Meeting,
) -> Result<Opened, (u32, i32)> {
    let mut kept = Kept::new(-1, Some(meeting));
    kept.lent = Some(Lent { all: mounts, told: 0 });
    for (at, op) in ops.iter().enumerate() {
        perform(op, &mut kept).map_err(|errno| ((before + at) as u32, errno))?;
    }
    Ok(kept.places)
}

/// The life of a guest's pid 1.
pub(crate) fn run(ops: &[Op], command: &Command, control: RawFd) -> ! {
    live(ops, 0, command, Kept::new(control, None))
}

/// The life of one that is born before its plan is known: it walks the steps that every plan has, which follow upon
/// `before` others, and then waits for its order. Others make its places meanwhile.
pub(crate) fn run_early(early: &[Op], before: usize, control: RawFd, meeting: &'static Meeting) -> ! {
    let mut kept = Kept::new(control, Some(meeting));
    walk(early.iter().enumerate().map(|(i, op)| (before + i, op)), &mut kept);
    meeting.early_is(true);
    let order = await_order(control);
    // Where it woke up was chosen for it; what it starts may go anywhere.
    // SAFETY: a buffer with its true length, in the arena.
    let _ = unsafe { kernel!(SYS_sched_setaffinity, 0, order.mask_len, order.mask) };
    // SAFETY: the supervisor sends an order only when all of it lies in the arena, which was mapped before we were
    // born and is never changed where something was written.
    let (ops, command) = unsafe { (std::slice::from_raw_parts(order.ops, order.count), &*order.command) };
    live(ops, order.done, command, kept)
}

fn await_order(control: RawFd) -> Order {
    let mut order = std::mem::MaybeUninit::<Order>::uninit();
    // SAFETY: a buffer with its true length, complete when as much was read.
    unsafe {
        match kernel!(SYS_read, control, order.as_mut_ptr(), size_of::<Order>()) {
            Ok(len) if len as usize == size_of::<Order>() => order.assume_init(),
            // The supervisor is gone, or changed its mind.
            _ => exit(1),
        }
    }
}

/// Walks steps with their numbers; the first that fails is reported and the last.
fn walk<'a>(ops: impl Iterator<Item = (usize, &'a Op)>, kept: &mut Kept) {
    for (step, op) in ops {
        if let Err(errno) = perform(op, kept) {
            fail(kept, kept.blamed.unwrap_or(step as u32), errno);
        }
    }
}

fn fail(kept: &Kept, step: u32, errno: i32) -> ! {
    let report = Report { message: Message::StepFailed, step, errno, ..Report::default() };
    let _ = send(kept.control, &report, &[]);
    kept.meeting.iter().for_each(|meeting| meeting.early_is(false));
    exit(1)
}

fn live(ops: &[Op], done: usize, command: &Command, mut kept: Kept) -> ! {
    // Before the walls: whoever hears what they ask about is not there yet.
    let signals = command.stays.then(|| shepherd::prepare().unwrap_or_else(|errno| fail(&kept, u32::MAX, errno)));
    walk(ops.iter().enumerate().skip(done), &mut kept);
    if let Some(signals) = signals {
        shepherd::serve(kept.control, signals)
    }
    let pid = match first::start(command, kept.slave) {
        Ok(pid) => pid,
        Err((step, errno)) => {
            let report = Report { message: Message::ExecFailed, step, errno, ..Report::default() };
            let _ = send(kept.control, &report, &[]);
            exit(1);
        }
    };
    close_all_but(kept.control);
    let realm = if command.own_pids { Realm::Namespace } else { Realm::Descendants };
    first::reap(pid, realm, kept.control)
}

fn perform(op: &Op, kept: &mut Kept) -> Result<(), i32> {
    match op {
        Op::AwaitSupervisor => await_supervisor(kept.control),
        // Who is alone did all that comes before.
        Op::AwaitEarly => kept.meeting.map_or(Ok(()), Meeting::await_early),
        Op::AwaitPlaces => {
            let Some(meeting) = kept.meeting else { return Ok(()) };
            let control = kept.control;
            meeting.await_places(|| hung_up(control)).map_err(|(step, errno)| {
                kept.blamed = step;
                errno
            })
        }
        Op::JoinGroups => join_groups(kept.control),
        Op::ReceiveMounts => match &mut kept.lent {
            Some(lent) => {
                lent.told += MOST_HANDLES;
                Ok(())
            }
            None => receive(kept.control, &mut kept.mounts),
        },
        Op::Identity { uid, gid, drop_groups } => identity(*uid, *gid, *drop_groups),
        Op::TieToSupervisor => tie_to_supervisor(),
        // SAFETY: numbers only. Without a pid namespace the end of the supervisor must reach us as a signal that we
        // hear, because our own end would not take our descendants along.
        Op::TakeOrphans => unsafe {
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
        Op::Put { at, bytes } => put(at, bytes),
        Op::Queues { at } => {
            mount(c"mqueue", at, Some(c"mqueue"), libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, None)
        }
        Op::Bind { from, at, attr } => bind(from, at, *attr),
        Op::BindKnown { from, at, attr } => bind_known(from, at, *attr),
        Op::Attach { slot, at } => {
            if let Some(lent) = &kept.lent {
                return attach(lent.get(*slot), at);
            }
            let fd = kept.mounts.get(*slot).copied().unwrap_or(-1);
            let result = attach(fd, at);
            close(fd);
            result
        }
        Op::Overlay { at, options, attr } => overlay(at, options, *attr),
        // SAFETY: a C string that outlives the call; device 0:0 needs no privilege and gives none.
        Op::StrikeOut { at } => unsafe {
            kernel!(SYS_mknodat, libc::AT_FDCWD, at.as_ptr(), libc::S_IFCHR, 0).map(drop)
        },
        Op::Proc { at } => {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            mount(c"proc", at, Some(c"proc"), flags, None)
        }
        Op::Terminals { at } => {
            let options = c"newinstance,ptmxmode=0666,mode=0620";
            mount(c"devpts", at, Some(c"devpts"), libc::MS_NOSUID | libc::MS_NOEXEC, Some(options))
        }
        Op::Seal { at, attr } => {
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
            kept.sockets = diag::open();
            doors::open(*ipv6, loopback, *filters, &mut kept.doors)
        }
        // SAFETY: takes flags only.
        Op::NewNamespace { flags, .. } => unsafe { kernel!(SYS_unshare, *flags) }.map(drop),
        Op::Rlimit { resource, value, .. } => rlimit(*resource, *value),
        Op::Processors { mask } => {
            // SAFETY: the mask is as long as stated.
            unsafe { kernel!(SYS_sched_setaffinity, 0, mask.len() * 8, mask.as_ptr()) }.map(drop)
        }
        // SAFETY: a C string that outlives the call.
        Op::ChangeDir { at } => unsafe { kernel!(SYS_chdir, at.as_ptr()) }.map(drop),
        Op::OpenPlace { at, place } => match kept.places.get_mut(place.index()) {
            Some(slot) => mount::open_straight(at).map(|fd| *slot = fd),
            None => Err(libc::EMFILE),
        },
        Op::OpenTerminal { at, rows, columns } => {
            open_terminal(at, *rows, *columns).map(|(master, slave)| (kept.master, kept.slave) = (master, slave))
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
        Op::Seccomp { program, listener } => install_filter(program, *listener).map(|fd| kept.listener = fd),
        Op::Ready => ready(kept),
    }
}
