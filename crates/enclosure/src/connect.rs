//! Making a guest's connection for it, where the kernel alone would let it reach too far: a socket on the host that
//! lies in a directory the guest may only read. The address is copied once and what was judged is what is connected
//! to; the guest's own call never runs. Used where mounts cannot be shifted, i.e. for ordinary callers, whose guests
//! have the same user id as we, so the other side sees the right one.

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, connect};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// A listener whose queue is full must not hold the supervisor.
const PATIENCE: Duration = Duration::from_millis(100);

/// An address as copied from the guest.
pub enum Address {
    Inet(IpAddr, u16),
    /// A path as the guest sees it.
    Path(std::path::PathBuf),
    /// A name without a file, private to the guest's network namespace.
    Abstract(Vec<u8>),
    /// Breaks an association; needs no judging.
    Unspecified,
}

/// Connects the guest's socket. The error number is what the guest's call shall give.
pub fn make(socket: &OwnedFd, root: Option<BorrowedFd<'_>>, to: &Address) -> Result<(), i32> {
    let family = sockopt::socket_domain(socket).map_err(Errno::raw_os_error)?;
    let before = sockopt::socket_timeout(socket, Timeout::Send).ok().flatten();
    if before.is_none_or(|t| t > PATIENCE) {
        let _ = sockopt::set_socket_timeout(socket, Timeout::Send, Some(PATIENCE));
    }
    let result = match to {
        Address::Inet(ip, port) => connect(socket, &SocketAddrAny::from(SocketAddr::new(*ip, *port))),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name).and_then(|a| connect(socket, &a)),
        Address::Path(path) if family == AddressFamily::UNIX => connect_path(socket, root, path),
        Address::Path(_) => Err(Errno::AFNOSUPPORT),
        Address::Unspecified => rustix::net::connect_unspec(socket),
    };
    let _ = sockopt::set_socket_timeout(socket, Timeout::Send, before);
    result.map_err(Errno::raw_os_error)
}

/// By handle: the path is followed once, in the guest's root.
fn connect_path(socket: &OwnedFd, root: Option<BorrowedFd<'_>>, path: &Path) -> Result<(), Errno> {
    let root = root.ok_or(Errno::ACCESS)?;
    let inside = path.strip_prefix("/").map_err(|_| Errno::NOENT)?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let target = rustix::fs::openat2(root, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let handle = format!("/proc/self/fd/{}", target.as_raw_fd());
    connect(socket, &SocketAddrUnix::new(handle.as_str())?)
}
