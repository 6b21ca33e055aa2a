//! Making a guest's connection for it, where the kernel alone would let it reach too far: a socket on the host that
//! lies in a directory the guest may only read. The address is copied once and what was judged is what is connected
//! to; the guest's own call never runs. Used where mounts cannot be shifted, i.e. for ordinary callers, whose guests
//! have the same user id as we; and where rules speak of sockets. The other side sees the guest's ids, or the
//! caller's where a rule let the guest through.

use crate::guest::Guest;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, connect};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use sys::notify::{Call, Listener};

/// An address as copied from the guest.
pub enum Address {
    Inet(IpAddr, u16),
    /// A socket's real path, and the handle that was found there.
    Path(PathBuf, OwnedFd),
    /// What a rule lets the guest connect to, as it stands on the host now.
    Service(OwnedFd),
    /// A path that leads nowhere; the error number says why.
    Missing(i32),
    /// A name without a file, private to the guest's network namespace.
    Abstract(Vec<u8>),
    /// Breaks an association; needs no judging.
    Unspecified,
}

/// How long one try may take before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);
/// Connections that may be waiting at a time; a guest that fills queues on purpose gets no more.
static QUEUED: Waiting = Waiting { now: AtomicUsize::new(0), most: 64 };
/// The same for servers, which are far away and may take long to answer.
static CALLING: Waiting = Waiting { now: AtomicUsize::new(0), most: 512 };

struct Waiting {
    now: AtomicUsize,
    most: usize,
}

/// The socket at a real path of the host. No link is followed: nobody can put one in its place meanwhile.
pub fn service(path: &Path) -> Result<Address, i32> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = openat2(CWD, path, flags, Mode::empty(), resolve).map_err(Errno::raw_os_error)?;
    let mode = fstat(&found).map_err(Errno::raw_os_error)?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::Socket => Ok(Address::Service(found)),
        _ => Err(Errno::CONNREFUSED.raw_os_error()),
    }
}

/// Connects the guest's socket and answers its call. On a thread of its own: a listener whose queue is full makes a
/// connection wait, and the supervisor must not.
pub fn answer(listener: &Listener, call: &Call, guest: Guest, socket: OwnedFd, to: Address) {
    const EAGAIN: i32 = 11;
    let line = if matches!(to, Address::Inet(..)) { &CALLING } else { &QUEUED };
    let Some(own) = listener.try_clone().filter(|_| line.now.load(Ordering::Relaxed) < line.most) else {
        return listener.refuse(call, EAGAIN);
    };
    let waiting = *call;
    line.now.fetch_add(1, Ordering::Relaxed);
    let started = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let made = become_guest(&guest, &to).and_then(|()| patiently(&own, &waiting, &socket, &to));
        // Before the guest goes on: what it then closes is closed, and the address is free for it to use again.
        drop(socket);
        match made {
            Ok(()) => own.answer(&waiting, 0),
            Err(errno) => own.refuse(&waiting, errno),
        }
        line.now.fetch_sub(1, Ordering::Relaxed);
    });
    if started.is_err() {
        line.now.fetch_sub(1, Ordering::Relaxed);
        listener.refuse(call, EAGAIN);
    }
}

/// Root's guest has ids of its own. Without a rule its connections are made with these, so that it reaches what they
/// reach and its peers see them; only this thread takes them on.
fn become_guest(guest: &Guest, to: &Address) -> Result<(), i32> {
    if matches!(to, Address::Service(_)) { Ok(()) } else { guest.take_on() }
}

/// Tries until it is done, the guest's thread is gone, or a signal waits for it, as a blocking call would.
pub fn patiently(listener: &Listener, call: &Call, socket: &OwnedFd, to: &Address) -> Result<(), i32> {
    const EINTR: i32 = 4;
    let waits = rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
    // What leads nowhere needs no patience, whatever its error number is.
    if !waits || matches!(to, Address::Missing(_)) {
        return make(socket, to);
    }
    let before = sockopt::socket_timeout(socket, Timeout::Send).ok().flatten();
    let deadline = before.map(|limit| Instant::now() + limit);
    let result = loop {
        // The guest shares the socket and may take the patience back; then only this thread waits.
        let _ = sockopt::set_socket_timeout(socket, Timeout::Send, Some(PATIENCE));
        let tried = make(socket, to).map_err(Errno::from_raw_os_error);
        match tried {
            Err(Errno::AGAIN | Errno::INPROGRESS | Errno::ALREADY) => {}
            Err(Errno::ISCONN) if matches!(to, Address::Inet(..)) => break Ok(()),
            other => break other.map_err(Errno::raw_os_error),
        }
        if !listener.is_live(call) || has_signal(call.tid) {
            break Err(EINTR);
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            // That it was tried before is our own doing.
            let told = tried.map_err(|error| if error == Errno::ALREADY { Errno::INPROGRESS } else { error });
            break told.map_err(Errno::raw_os_error);
        }
    };
    let _ = sockopt::set_socket_timeout(socket, Timeout::Send, before);
    result
}

/// Whether a signal that the thread does not block is waiting for it.
pub fn has_signal(tid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        status.lines().find_map(|l| u64::from_str_radix(l.strip_prefix(name)?.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

/// Connects the guest's socket. The error number is what the guest's call shall give.
fn make(socket: &OwnedFd, to: &Address) -> Result<(), i32> {
    let family = sockopt::socket_domain(socket).map_err(Errno::raw_os_error)?;
    let result = match to {
        Address::Inet(ip, port) => connect(socket, &SocketAddrAny::from(SocketAddr::new(*ip, *port))),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name).and_then(|a| connect(socket, &a)),
        Address::Path(_, target) | Address::Service(target) if family == AddressFamily::UNIX => {
            let handle = format!("/proc/self/fd/{}", target.as_raw_fd());
            SocketAddrUnix::new(handle.as_str()).and_then(|a| connect(socket, &a))
        }
        Address::Path(..) | Address::Service(_) => Err(Errno::AFNOSUPPORT),
        Address::Missing(errno) => Err(Errno::from_raw_os_error(*errno)),
        Address::Unspecified => rustix::net::connect_unspec(socket),
    };
    result.map_err(Errno::raw_os_error)
}
