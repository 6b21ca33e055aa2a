//! Connecting on the guest's behalf, where the kernel alone would let it reach too far: a Unix socket of the host in a
//! directory that the guest may only read. The address is copied once and the judged copy is used; the guest's own
//! connect(2) never runs, so it cannot change the address in between. Applies where mounts cannot be id-mapped, i.e.
//! for ordinary callers, whose guests share the supervisor's user id; and where rules name sockets. The peer sees the
//! guest's ids, or the caller's where a rule allowed the connection.

use crate::guest::Guest;
use crate::waiting_calls::{WaitReason, WaitingCalls};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, connect};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::notify::{Call, Listener};

/// An address as copied from the guest.
pub enum Address {
    Inet(IpAddr, u16),
    /// A socket's real path, and the handle that was found there.
    Path(PathBuf, OwnedFd),
    /// The socket on the host that a rule allows, looked up anew.
    Service(OwnedFd),
    /// A path that cannot be resolved, with the errno.
    Missing(i32),
    /// An abstract Unix socket, private to the guest's network namespace.
    Abstract(Vec<u8>),
    /// AF_UNSPEC, which dissolves an association and needs no judgement.
    Unspecified,
}

/// Send timeout of one attempt, after which pending signals are checked.
const PATIENCE: Duration = Duration::from_millis(100);

/// Opens the socket at a real path of the host. No symbolic link is followed, so none can be put in its place
/// meanwhile.
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

/// Connects the guest's socket and answers its call, on a thread of its own: a listener with a full backlog blocks the
/// connection, and the supervisor must not block.
pub fn answer(calls: &WaitingCalls, listener: &Listener, call: &Call, guest: Guest, socket: OwnedFd, to: Address) {
    const EAGAIN: i32 = 11;
    let kind = if matches!(to, Address::Inet(..)) { WaitReason::RemoteConnection } else { WaitReason::LocalConnection };
    let Some((own, counted)) = listener.try_clone().zip(calls.enter(kind)) else {
        return listener.refuse(call, EAGAIN);
    };
    let waiting = *call;
    let started = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        let made = become_guest(&guest, &to).and_then(|()| connect_until_done(&own, &waiting, &socket, &to));
        // Closed before the call returns: the guest may close its descriptor and reuse the address at once.
        drop(socket);
        match made {
            Ok(()) => own.answer(&waiting, 0),
            Err(errno) => own.refuse(&waiting, errno),
        }
        drop(counted);
    });
    if started.is_err() {
        listener.refuse(call, EAGAIN);
    }
}

/// Takes on the ids of root's guest on this thread alone, so that the connection has its rights and the peer sees its
/// credentials. A connection that a rule allowed keeps the caller's ids.
fn become_guest(guest: &Guest, to: &Address) -> Result<(), i32> {
    if matches!(to, Address::Service(_)) { Ok(()) } else { guest.take_on() }
}

/// Retries until the connection stands, the guest's thread is gone, or a signal is pending for it, as a blocking call
/// would.
pub fn connect_until_done(listener: &Listener, call: &Call, socket: &OwnedFd, to: &Address) -> Result<(), i32> {
    const EINTR: i32 = 4;
    let waits = rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
    // An unresolvable path fails at once, whatever its errno.
    if !waits || matches!(to, Address::Missing(_)) {
        return connect_once(socket, to);
    }
    let before = sockopt::socket_timeout(socket, Timeout::Send).ok().flatten();
    let deadline = before.map(|limit| Instant::now() + limit);
    let result = loop {
        // The guest shares the socket and may reset the timeout; then only this thread blocks.
        let _ = sockopt::set_socket_timeout(socket, Timeout::Send, Some(PATIENCE));
        let tried = connect_once(socket, to).map_err(Errno::from_raw_os_error);
        match tried {
            Err(Errno::AGAIN | Errno::INPROGRESS | Errno::ALREADY) => {}
            Err(Errno::ISCONN) if matches!(to, Address::Inet(..)) => break Ok(()),
            other => break other.map_err(Errno::raw_os_error),
        }
        if !listener.is_live(call) || has_signal(call.tid) {
            break Err(EINTR);
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            // EALREADY comes from our own earlier attempt; the guest's first call would have got EINPROGRESS.
            let told = tried.map_err(|error| if error == Errno::ALREADY { Errno::INPROGRESS } else { error });
            break told.map_err(Errno::raw_os_error);
        }
    };
    let _ = sockopt::set_socket_timeout(socket, Timeout::Send, before);
    result
}

/// True when a signal that the thread does not block is pending for it.
pub fn has_signal(tid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        status.lines().find_map(|l| u64::from_str_radix(l.strip_prefix(name)?.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

/// Connects the guest's socket. The error is the errno for the guest's call.
fn connect_once(socket: &OwnedFd, to: &Address) -> Result<(), i32> {
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
