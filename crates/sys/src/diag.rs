//! Which socket has which ends, asked of the kernel through a socket that stands in a guest's network and is held by the
//! supervisor. It only asks.

use crate::raw::kernel;
use crate::{CallError, errno};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const HEADER: usize = 16;
/// Family, protocol, what else to tell, padding, states; then the ends.
const ASKED: usize = HEADER + 8 + ENDS;
/// Two ports, two addresses, an interface, a number that makes sure.
const ENDS: usize = 48;
const ANY_STATE: u32 = u32::MAX;
/// Where an answer has its ports, and the number by which `/proc` knows the socket.
const PORTS: usize = HEADER + 4;
const INODE: usize = HEADER + 4 + ENDS + 16;
const ANSWERED: usize = INODE + 4;

/// Opens such a socket; between clone and exec, so raw calls only. -1 where the kernel cannot be asked.
pub(crate) fn open() -> RawFd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    unsafe { kernel!(SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) }.unwrap_or(-1)
}

/// The sockets of one network.
#[derive(Debug)]
pub struct Sockets(OwnedFd);

impl Sockets {
    /// On a socket that was opened in that network.
    pub(crate) fn new(socket: OwnedFd) -> Sockets {
        Sockets(socket)
    }

    /// The number of the connection with these ends, made or being made; `None` where there is none.
    pub fn connection(&self, own: SocketAddr, to: SocketAddr) -> Result<Option<u64>, CallError> {
        self.forget();
        let asked = question(own, to);
        // SAFETY: a buffer with its true length.
        if unsafe { libc::send(self.0.as_raw_fd(), asked.as_ptr().cast(), asked.len(), 0) } < 0 {
            return Err(CallError::last("send"));
        }
        let mut answer = [0; 1024];
        let got = self.receive(&mut answer).ok_or_else(|| CallError { call: "recv", errno: errno() })?;
        read(&answer[..got], own, to)
    }

    /// What an earlier question left unread.
    fn forget(&self) {
        while self.receive(&mut [0; 1024]).is_some() {}
    }

    fn receive(&self, into: &mut [u8]) -> Option<usize> {
        // SAFETY: a buffer with its true length. The kernel has answered when the question was sent, so nothing waits.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
        usize::try_from(got).ok()
    }
}

fn question(own: SocketAddr, to: SocketAddr) -> [u8; ASKED] {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut out = [0; ASKED];
    out[..4].copy_from_slice(&(ASKED as u32).to_ne_bytes());
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
    // No number that makes sure: whichever it is.
    ends[40..48].fill(0xff);
    out
}

fn put(at: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => at[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => at.copy_from_slice(&v6.octets()),
    }
}

fn read(answer: &[u8], own: SocketAddr, to: SocketAddr) -> Result<Option<u64>, CallError> {
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
    if kind != BY_FAMILY || answer.len() < ANSWERED {
        return Err(short);
    }
    // Where there is no such connection, whoever listens at the port is answered with.
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
            // Neither one that listens nor one that is gone.
            let gone = one.local_addr().unwrap();
            assert_eq!(sockets.connection(to, SocketAddr::new(to.ip(), 9)), Ok(None), "{at}");
            assert_eq!(sockets.connection(SocketAddr::new(gone.ip(), 9), to), Ok(None), "{at}");
        }
    }

    /// A call to a port, not waited for.
    fn begin(port: u16) -> OwnedFd {
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
        // Once a queue of the least length is full, the kernel answers nobody.
        // SAFETY: numbers only.
        unsafe { libc::listen(server.as_raw_fd(), 0) };
        let streams: Vec<TcpStream> = (0..4).map(|_| begin(to.port()).into()).collect();
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
