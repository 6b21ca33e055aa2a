//! Lookup of TCP sockets by their addresses (sock_diag), through a netlink socket in a guest's network namespace that
//! the supervisor holds. Read only.

use crate::raw::kernel;
use crate::{CallError, errno};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const HEADER: usize = 16;
/// Request length: family, protocol, extensions, padding, states; then the socket id.
const REQUEST_LEN: usize = HEADER + 8 + SOCKET_ID_LEN;
/// Socket id length: two ports, two addresses, an interface, a cookie.
const SOCKET_ID_LEN: usize = 48;
const ANY_STATE: u32 = u32::MAX;
/// Offsets in a reply: the ports, and the socket's inode number as in `/proc`.
const PORTS: usize = HEADER + 4;
const INODE: usize = HEADER + 4 + SOCKET_ID_LEN + 16;
const REPLY_LEN: usize = INODE + 4;

/// Opens the netlink socket; runs between clone and exec, so raw calls only. -1 where the kernel does not support it.
pub(crate) fn open() -> RawFd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) }.unwrap_or(-1)
}

/// Lookup of the sockets of one network namespace.
#[derive(Debug)]
pub struct Sockets(OwnedFd);

impl Sockets {
    /// Wraps a netlink socket that was opened in that network namespace.
    pub(crate) fn new(socket: OwnedFd) -> Sockets {
        Sockets(socket)
    }

    /// Returns the inode number of the connection with these addresses, established or being established; `None` if
    /// there is none.
    pub fn connection(&self, own: SocketAddr, to: SocketAddr) -> Result<Option<u64>, CallError> {
        self.drain();
        let asked = request(own, to);
        // SAFETY: a buffer with its true length.
        if unsafe { libc::send(self.0.as_raw_fd(), asked.as_ptr().cast(), asked.len(), 0) } < 0 {
            return Err(CallError::last("send"));
        }
        let mut answer = [0; 1024];
        let got = self.receive(&mut answer).ok_or_else(|| CallError { call: "recv", errno: errno() })?;
        parse_reply(&answer[..got], own, to)
    }

    /// Drains replies that an earlier request left unread.
    fn drain(&self) {
        while self.receive(&mut [0; 1024]).is_some() {}
    }

    fn receive(&self, into: &mut [u8]) -> Option<usize> {
        // SAFETY: a buffer with its true length. The kernel has replied when the request was sent, so no wait is
        // needed.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
        usize::try_from(got).ok()
    }
}

fn request(own: SocketAddr, to: SocketAddr) -> [u8; REQUEST_LEN] {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut out = [0; REQUEST_LEN];
    out[..4].copy_from_slice(&(REQUEST_LEN as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    out[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    out[HEADER] = family as u8;
    out[HEADER + 1] = libc::IPPROTO_TCP as u8;
    out[HEADER + 4..HEADER + 8].copy_from_slice(&ANY_STATE.to_ne_bytes());
    let ends = &mut out[HEADER + 8..];
    ends[..2].copy_from_slice(&own.port().to_be_bytes());
    ends[2..4].copy_from_slice(&to.port().to_be_bytes());
    put(&mut ends[4..20], own.ip());
    put(&mut ends[20..36], to.ip());
    // No cookie: any socket with these addresses matches.
    ends[40..48].fill(0xff);
    out
}

fn put(at: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => at[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => at.copy_from_slice(&v6.octets()),
    }
}

fn parse_reply(answer: &[u8], own: SocketAddr, to: SocketAddr) -> Result<Option<u64>, CallError> {
    let short = CallError { call: "sock_diag", errno: libc::EBADMSG };
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(short)
    };
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes).ok_or(short)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        return match -(word(HEADER)? as i32) {
            libc::ENOENT => Ok(None),
            errno => Err(CallError { call: "sock_diag", errno }),
        };
    }
    if kind != BY_FAMILY || answer.len() < REPLY_LEN {
        return Err(short);
    }
    // Without such a connection the kernel replies with the listener on the port.
    let ports = [own.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let is_it = answer[PORTS..PORTS + 4] == *ports;
    Ok(Some(u64::from(word(INODE)?)).filter(|inode| is_it && *inode != 0))
}

#[cfg(test)]
mod test {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::FromRawFd;

    fn sockets() -> Sockets {
        let fd = open();
        assert!(fd >= 0);
        // SAFETY: just opened, and owned once.
        Sockets::new(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn inode(stream: &impl AsRawFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap();
        let text = link.to_str().unwrap();
        text.strip_prefix("socket:[").and_then(|t| t.strip_suffix(']')).unwrap().parse().unwrap()
    }

    #[test]
    fn a_connection_is_found_by_its_ends() {
        let sockets = sockets();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(at).unwrap();
            let to = server.local_addr().unwrap();
            let (one, two) = (TcpStream::connect(to).unwrap(), TcpStream::connect(to).unwrap());
            for stream in [&one, &two] {
                let own = stream.local_addr().unwrap();
                assert_eq!(sockets.connection(own, to), Ok(Some(inode(stream))), "{at}");
                assert_ne!(sockets.connection(to, own), Ok(Some(inode(stream))), "{at}");
            }
            // Neither a listener nor a connection that is gone.
            let gone = one.local_addr().unwrap();
            assert_eq!(sockets.connection(to, SocketAddr::new(to.ip(), 9)), Ok(None), "{at}");
            assert_eq!(sockets.connection(SocketAddr::new(gone.ip(), 9), to), Ok(None), "{at}");
        }
    }

    /// Starts a connection to a port without waiting for it.
    fn start_connect(port: u16) -> OwnedFd {
        // SAFETY: numbers, and a structure for which zeroed is valid with its true length; the descriptor is owned once.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
            let mut name: libc::sockaddr_in = std::mem::zeroed();
            name.sin_family = libc::AF_INET as u16;
            name.sin_port = port.to_be();
            name.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
            libc::connect(fd, (&raw const name).cast(), size_of::<libc::sockaddr_in>() as u32);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn one_that_is_being_made_is_found() {
        let sockets = sockets();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        // Once a backlog of the least length is full, the kernel answers no further SYN.
        // SAFETY: numbers only.
        unsafe { libc::listen(server.as_raw_fd(), 0) };
        let streams: Vec<TcpStream> = (0..4).map(|_| start_connect(to.port()).into()).collect();
        let (made, making): (Vec<_>, Vec<_>) = streams.iter().partition(|s| s.peer_addr().is_ok());
        assert!(!made.is_empty() && !making.is_empty());
        for stream in streams.iter() {
            assert_eq!(sockets.connection(stream.local_addr().unwrap(), to), Ok(Some(inode(stream))));
        }
    }

    #[test]
    fn a_mapped_one_is_a_plain_one() {
        let sockets = sockets();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mapped = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")).unwrap();
        let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        let (own, to) = (plain(mapped.local_addr().unwrap()), plain(mapped.peer_addr().unwrap()));
        assert_eq!(sockets.connection(own, to), Ok(Some(inode(&mapped))));
    }
}
