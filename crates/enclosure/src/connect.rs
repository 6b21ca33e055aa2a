//! Making a guest's connection for it, where the kernel alone would let it reach too far: a socket on the host that
//! lies in a directory the guest may only read. The address is copied once and what was judged is what is connected
//! to; the guest's own call never runs. Used where mounts cannot be shifted, i.e. for ordinary callers, whose guests
//! have the same user id as we, so the other side sees the right one.

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, connect};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// A listener whose queue is full must not hold the supervisor.
const PATIENCE: Duration = Duration::from_millis(100);

/// An address as copied from the guest.
pub enum Address {
    Inet(IpAddr, u16),
    /// A socket's real path, and the handle that was found there.
    Path(PathBuf, OwnedFd),
    /// A path that leads nowhere; the error number says why.
    Missing(i32),
    /// A name without a file, private to the guest's network namespace.
    Abstract(Vec<u8>),
    /// Breaks an association; needs no judging.
    Unspecified,
}

/// Connects the guest's socket. The error number is what the guest's call shall give.
pub fn make(socket: &OwnedFd, to: &Address) -> Result<(), i32> {
    let family = sockopt::socket_domain(socket).map_err(Errno::raw_os_error)?;
    let before = sockopt::socket_timeout(socket, Timeout::Send).ok().flatten();
    if before.is_none_or(|t| t > PATIENCE) {
        let _ = sockopt::set_socket_timeout(socket, Timeout::Send, Some(PATIENCE));
    }
    let result = match to {
        Address::Inet(ip, port) => connect(socket, &SocketAddrAny::from(SocketAddr::new(*ip, *port))),
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name).and_then(|a| connect(socket, &a)),
        Address::Path(_, target) if family == AddressFamily::UNIX => {
            let handle = format!("/proc/self/fd/{}", target.as_raw_fd());
            SocketAddrUnix::new(handle.as_str()).and_then(|a| connect(socket, &a))
        }
        Address::Path(..) => Err(Errno::AFNOSUPPORT),
        Address::Missing(errno) => Err(Errno::from_raw_os_error(*errno)),
        Address::Unspecified => rustix::net::connect_unspec(socket),
    };
    let _ = sockopt::set_socket_timeout(socket, Timeout::Send, before);
    result.map_err(Errno::raw_os_error)
}
