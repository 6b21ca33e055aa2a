//! What runs between clone and exec, and the guest's pid 1. Walks a finished list with raw calls only:
//! no allocation, no lock, no panic. The memory it sees is a private copy of the supervisor's.

use crate::bpf::Insn;
use crate::first::Realm;
use crate::meeting::Meeting;
use crate::op::{Attr, Op, Place};
use crate::raw::kernel;
use crate::spawn::{Command, END_SIGNAL, KeptSpace, MOST_KEPT, Message, NAMED, Order, Report};
use crate::{diag, doors, first, landlock, mount, netlink, shepherd};
use std::ffi::CStr;
use std::os::fd::RawFd;

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

/// Only the line to the supervisor is kept: an end of a pipe held here would hide that the other side closed it.
pub(crate) fn close_all_but(keep: RawFd) {
    // SAFETY: closes descriptors of this process alone; the command has its own copies.
    unsafe {
        if keep > 0 {
            let _ = kernel!(SYS_close_range, 0, keep - 1, 0);
        }
        let _ = kernel!(SYS_close_range, keep + 1, u32::MAX, 0);
    }
}

pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: ends the process without running anything of the supervisor's copied state.
    unsafe {
        loop {
            let _ = kernel!(SYS_exit_group, code);
        }
    }
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
        Op::Overlay { at, options, attr } => {
            mount(c"overlay", at, Some(c"overlay"), legacy_flags(*attr), Some(options))
        }
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

pub(crate) fn close(fd: RawFd) {
    // SAFETY: closes a descriptor this process opened.
    let _ = unsafe { kernel!(SYS_close, fd) };
}

fn legacy_flags(attr: Attr) -> libc::c_ulong {
    let mut flags = 0;
    for (attr_bit, flag) in [
        (Attr::READ_ONLY, libc::MS_RDONLY),
        (Attr::NO_SUID, libc::MS_NOSUID),
        (Attr::NO_DEV, libc::MS_NODEV),
        (Attr::NO_EXEC, libc::MS_NOEXEC),
    ] {
        if attr.has(attr_bit) {
            flags |= flag;
        }
    }
    flags
}

fn mount(source: &CStr, at: &CStr, kind: Option<&CStr>, flags: u64, data: Option<&CStr>) -> Result<(), i32> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: C strings or null, all outliving the call.
    unsafe { kernel!(SYS_mount, source.as_ptr(), at.as_ptr(), pointer(kind), flags, pointer(data)) }.map(drop)
}

fn await_supervisor(control: RawFd) -> Result<(), i32> {
    let mut byte = 0u8;
    // SAFETY: one byte into a local.
    match unsafe { kernel!(SYS_read, control, &raw mut byte, 1) }? {
        // The supervisor is gone; so are we.
        0 => exit(1),
        _ => Ok(()),
    }
}

/// Whether the supervisor is gone. It may have been killed before we had ourselves tied to it.
fn hung_up(control: RawFd) -> bool {
    let mut asked = libc::pollfd { fd: control, events: 0, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: locals that outlive the call.
    let found = unsafe { kernel!(SYS_ppoll, &raw mut asked, 1, &raw const at_once, 0, 0) };
    found == Ok(1) && asked.revents & libc::POLLHUP != 0
}

/// Takes the handles of one message; those that did not come stay -1.
fn receive(control: RawFd, handles: &mut [RawFd; MOST_HANDLES]) -> Result<(), i32> {
    #[repr(C, align(8))]
    struct Ancillary([u8; 16 + 4 * MOST_HANDLES + 16]);
    let mut space = Ancillary([0; 16 + 4 * MOST_HANDLES + 16]);
    let mut byte = 0u8;
    *handles = [-1; MOST_HANDLES];
    // SAFETY: all buffers are locals with their true lengths, and the control message is walked with the kernel's own
    // macros.
    unsafe {
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = space.0.as_mut_ptr().cast();
        message.msg_controllen = space.0.len() as _;
        if kernel!(SYS_recvmsg, control, &raw mut message, libc::MSG_CMSG_CLOEXEC)? == 0 {
            // The supervisor is gone; so are we.
            exit(1);
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
            let slots = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, handle) in handles.iter_mut().enumerate().take(count) {
                *handle = slots.add(i).read_unaligned();
            }
        }
    }
    Ok(())
}

fn join_groups(control: RawFd) -> Result<(), i32> {
    let mut entries = [-1; MOST_HANDLES];
    receive(control, &mut entries)?;
    for fd in entries.into_iter().take_while(|fd| *fd >= 0) {
        // SAFETY: one byte from a constant.
        unsafe { kernel!(SYS_write, fd, c"0".as_ptr(), 1) }?;
        close(fd);
    }
    Ok(())
}

fn identity(uid: u32, gid: u32, drop_groups: bool) -> Result<(), i32> {
    // SAFETY: numbers only; the group list is empty.
    unsafe {
        // The modes in the list are meant as they stand.
        kernel!(SYS_umask, 0)?;
        if drop_groups {
            kernel!(SYS_setgroups, 0, 0)?;
        }
        kernel!(SYS_setresgid, gid, gid, gid)?;
        kernel!(SYS_setresuid, uid, uid, uid)?;
    }
    Ok(())
}

/// After the ids, because changing them clears both settings.
fn tie_to_supervisor() -> Result<(), i32> {
    // SAFETY: numbers only.
    unsafe {
        kernel!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)?;
        kernel!(SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0)?;
        kernel!(SYS_setsid)?;
    }
    crate::process::blank_arguments();
    Ok(())
}

fn pivot(root: &CStr, old: &CStr) -> Result<(), i32> {
    // SAFETY: C strings that outlive the calls.
    unsafe {
        kernel!(SYS_chdir, root.as_ptr())?;
        kernel!(SYS_mkdirat, libc::AT_FDCWD, old.as_ptr(), 0o700)?;
        kernel!(SYS_pivot_root, c".".as_ptr(), old.as_ptr())?;
        kernel!(SYS_chdir, c"/".as_ptr()).map(drop)
    }
}

fn make_dir(at: &CStr, mode: u32) -> Result<(), i32> {
    // SAFETY: a C string that outlives the call.
    match unsafe { kernel!(SYS_mkdirat, libc::AT_FDCWD, at.as_ptr(), mode) } {
        Err(libc::EEXIST) => Ok(()),
        other => other.map(drop),
    }
}

fn make_file(at: &CStr, mode: u32, bytes: &[u8]) -> Result<(), i32> {
    let first = libc::S_IFREG | if bytes.is_empty() { mode } else { 0o600 };
    // SAFETY: a C string that outlives the call; making a plain file needs no privilege.
    unsafe { kernel!(SYS_mknodat, libc::AT_FDCWD, at.as_ptr(), first, 0) }?;
    if bytes.is_empty() {
        return Ok(());
    }
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a C string, and a buffer written with its true length.
    unsafe {
        let fd = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), flags, 0)?;
        let mut rest = bytes;
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            match kernel!(SYS_write, fd, rest.as_ptr(), rest.len()) {
                Ok(wrote) => rest = rest.get(wrote as usize..).unwrap_or(&[]),
                Err(errno) => result = Err(errno),
            }
        }
        let result = result.and_then(|()| kernel!(SYS_fchmod, fd, mode).map(drop));
        close(fd);
        result
    }
}

fn put(at: &CStr, bytes: &[u8]) -> Result<(), i32> {
    // SAFETY: a C string, and a buffer with its true length.
    unsafe {
        let fd = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
        let wrote = kernel!(SYS_write, fd, bytes.as_ptr(), bytes.len()).map(drop);
        close(fd);
        wrote
    }
}

/// Binds between places that only we and the system's owner can have made.
fn bind_known(from: &CStr, at: &CStr, attr: Attr) -> Result<(), i32> {
    let tree = mount::clone_path(from)?;
    let result = mount::set_attr(tree, attr, true, None).and_then(|()| mount::move_to_path(tree, at));
    close(tree);
    result
}

fn bind(from: &CStr, at: &CStr, attr: Attr) -> Result<(), i32> {
    let source = mount::open_straight(from)?;
    let tree = mount::clone_tree(source);
    close(source);
    let tree = tree?;
    let result = mount::set_attr(tree, attr, true, None).and_then(|()| attach(tree, at));
    close(tree);
    result
}

fn attach(tree: RawFd, at: &CStr) -> Result<(), i32> {
    let target = mount::open_straight(at)?;
    let result = mount::move_to(tree, target);
    close(target);
    result
}

pub(crate) fn loopback_up() -> Result<(), i32> {
    // SAFETY: ifreq is plain old data; zeroed is a valid value. The name fits with its terminator.
    unsafe {
        let socket = kernel!(SYS_socket, libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let result = kernel!(SYS_ioctl, socket, libc::SIOCSIFFLAGS, &raw const request).map(drop);
        close(socket);
        result
    }
}

pub(crate) fn rlimit(resource: u32, value: u64) -> Result<(), i32> {
    let limit = libc::rlimit64 { rlim_cur: value, rlim_max: value };
    // SAFETY: a structure that outlives the call; no old value wanted.
    unsafe { kernel!(SYS_prlimit64, 0, resource, &raw const limit, 0) }.map(drop)
}

/// A new terminal of the guest's own: the supervisor's end and the command's.
pub(crate) fn open_terminal(at: &CStr, rows: u16, columns: u16) -> Result<(RawFd, RawFd), i32> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let unlocked: i32 = 0;
    const OPEN_PEER: libc::c_ulong = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: C strings and locals that outlive the calls.
    unsafe {
        let master = kernel!(SYS_openat, libc::AT_FDCWD, at.as_ptr(), flags, 0)?;
        kernel!(SYS_ioctl, master, libc::TIOCSPTLCK, &raw const unlocked)?;
        kernel!(SYS_ioctl, master, libc::TIOCSWINSZ, &raw const size)?;
        Ok((master, kernel!(SYS_ioctl, master, OPEN_PEER, flags)?))
    }
}

/// Gives up what an exec could bring; what we hold stays. Who holds nothing to begin with may not, and need not.
fn bound_capabilities() -> Result<(), i32> {
    for cap in 0..64 {
        // SAFETY: numbers only.
        match unsafe { kernel!(SYS_prctl, libc::PR_CAPBSET_DROP, cap, 0, 0, 0) } {
            Ok(_) => {}
            // There are no more of them.
            Err(libc::EINVAL | libc::EPERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn drop_capabilities() -> Result<(), i32> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let nothing = [0u32; 6];
    // SAFETY: numbers, and structures of the sizes that version 3 of the call defines.
    unsafe {
        kernel!(SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)?;
        kernel!(SYS_capset, &raw const header, nothing.as_ptr()).map(drop)
    }
}

fn install_filter(program: &[Insn], listener: bool) -> Result<RawFd, i32> {
    #[repr(C)]
    struct Program {
        len: u16,
        insns: *const Insn,
    }
    const SET_MODE_FILTER: u32 = 1;
    const NEW_LISTENER: u32 = 1 << 3;
    const WAIT_KILLABLE: u32 = 1 << 5;
    let wanted = Program { len: program.len() as u16, insns: program.as_ptr() };
    let flags = if listener { NEW_LISTENER | WAIT_KILLABLE } else { 0 };
    // SAFETY: `Insn` has the kernel's layout and the pointer is valid for `len` of them.
    let fd = unsafe { kernel!(SYS_seccomp, SET_MODE_FILTER, flags, &raw const wanted) }?;
    Ok(if listener { fd } else { -1 })
}

fn ready(kept: &mut Kept) -> Result<(), i32> {
    let mut handles: [RawFd; MOST_KEPT] = [-1; _];
    let named = [kept.listener, kept.master, kept.sockets].into_iter().chain(kept.places).chain(kept.doors.everywhere);
    let mut which = 0;
    for (at, (slot, fd)) in handles.iter_mut().zip(named.chain(kept.doors.loopback)).enumerate() {
        *slot = fd;
        if at < NAMED {
            which |= u64::from(fd >= 0) << at;
        }
    }
    send(kept.control, &Report { message: Message::Ready, handles: which, ..Report::default() }, &handles)?;
    for fd in handles {
        if fd >= 0 {
            close(fd);
        }
    }
    (kept.listener, kept.master, kept.sockets, kept.places) = (-1, -1, -1, NO_PLACES);
    kept.doors = doors::Opened::NONE;
    Ok(())
}

/// Sends a report with the given handles (negative ones are left out).
pub(crate) fn send(control: RawFd, report: &Report, handles: &[RawFd]) -> Result<(), i32> {
    let mut space = KeptSpace([0; _]);
    let count = handles.iter().filter(|fd| **fd >= 0).count();
    // SAFETY: the buffer holds one header and the most descriptors there are; every pointer is a local that
    // outlives the call.
    unsafe {
        let mut part =
            libc::iovec { iov_base: (report as *const Report as *mut Report).cast(), iov_len: size_of::<Report>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE((count * 4) as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN((count * 4) as u32) as _;
            let mut slot = libc::CMSG_DATA(header).cast::<RawFd>();
            for fd in handles.iter().filter(|fd| **fd >= 0) {
                slot.write_unaligned(*fd);
                slot = slot.add(1);
            }
        }
        kernel!(SYS_sendmsg, control, &raw const message, libc::MSG_NOSIGNAL).map(drop)
    }
}
