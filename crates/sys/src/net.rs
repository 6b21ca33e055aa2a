//! The supervisor's side of the doors: accepted connections and datagrams with their original destination, and replies
//! with that destination as the source.

use crate::doors::SOCKETS_PER_FAMILY;
use crate::{CallError, errno};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The sockets that `Op::OpenDoors` made; all are non-blocking.
#[derive(Debug)]
pub struct Doors {
    pub v4: Door,
    pub v6: Option<Door>,
    /// Listeners for single addresses on the guest's own loopback that lead outside: `accept_from`, which reports the
    /// address as the original destination.
    pub loopback: Vec<OwnedFd>,
}

/// The sockets of one protocol family.
#[derive(Debug)]
pub struct Door {
    /// Connections to any address: `accept_from`.
    pub tcp: OwnedFd,
    /// Datagrams to port 53 of any address: `receive_from`.
    pub dns: OwnedFd,
    /// Datagrams to other ports: `receive_from`.
    pub udp: OwnedFd,
    /// Replies: `send_from`, `refuse_from`, `syn_capture::refuse`, `syn_capture::unreachable`.
    pub out: OwnedFd,
    /// Captured SYNs and echo requests: `syn_capture::next_packet`.
    pub captured: OwnedFd,
    /// Reinjects a SYN, which then reaches the door: `syn_capture::admit`.
    pub again: OwnedFd,
}

impl Doors {
    /// Assigns descriptors in the order in which they were opened; `None` if those of IPv4 are not complete.
    pub(crate) fn new(
        mut handles: impl Iterator<Item = Option<OwnedFd>>,
        loopback: impl FnOnce() -> Vec<OwnedFd>,
    ) -> Option<Doors> {
        let mut each = || -> Option<Door> {
            let these: [Option<OwnedFd>; SOCKETS_PER_FAMILY] = std::array::from_fn(|_| handles.next().flatten());
            let [tcp, dns, udp, out, captured, again] = these;
            Some(Door { tcp: tcp?, dns: dns?, udp: udp?, out: out?, captured: captured?, again: again? })
        };
        let v4 = each()?;
        Some(Doors { v4, v6: each(), loopback: loopback() })
    }
}

/// Returns the addresses of this host's interfaces.
pub fn own_addresses() -> Vec<IpAddr> {
    let mut found = Vec::new();
    // SAFETY: the C library makes the list, whose entries are read until it is freed; the family of an address gives
    // its length. The list is freed once.
    unsafe {
        let mut list = std::ptr::null_mut();
        if libc::getifaddrs(&mut list) < 0 {
            return found;
        }
        let mut entry = list;
        while let Some(here) = entry.as_ref() {
            let mut name = SockAddr::default();
            let len = match here.ifa_addr.as_ref().map(|addr| i32::from(addr.sa_family)) {
                Some(libc::AF_INET) => size_of::<libc::sockaddr_in>(),
                Some(libc::AF_INET6) => size_of::<libc::sockaddr_in6>(),
                _ => 0,
            };
            std::ptr::copy_nonoverlapping(here.ifa_addr.cast::<u8>(), name.pointer().cast(), len);
            found.extend(name.address().filter(|_| len > 0).map(|address| address.ip()));
            entry = here.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// Returns true if a new network namespace of this host has IPv6.
pub fn has_ipv6() -> bool {
    // SAFETY: numbers only; the descriptor is closed at once.
    let known = unsafe {
        let fd = libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        fd >= 0 && libc::close(fd) == 0
    };
    let says = |path: &str, answers: &[&str]| {
        std::fs::read_to_string(path).is_ok_and(|text| answers.contains(&text.trim_end()))
    };
    // Namespaces inherit the host's disable_ipv6 only where devconf_inherit_init_net says so.
    let inherited = says("/proc/sys/net/core/devconf_inherit_init_net", &["1", "3"])
        && says("/proc/sys/net/ipv6/conf/default/disable_ipv6", &["1"]);
    known && !inherited && !says("/sys/module/ipv6/parameters/disable_ipv6", &["1"])
}

/// A connection accepted at a door.
#[derive(Debug)]
pub struct Arrival {
    /// A non-blocking socket.
    pub socket: OwnedFd,
    /// The original destination.
    pub original: SocketAddr,
    /// The guest's address.
    pub peer: SocketAddr,
}

/// Accepts the next connection at a door; `None` if there is none now.
pub fn accept_from(door: impl AsFd) -> Result<Option<Arrival>, CallError> {
    loop {
        let mut peer = SockAddr::default();
        // SAFETY: the kernel writes at most the given length into a local.
        let fd = unsafe {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            libc::accept4(door.as_fd().as_raw_fd(), peer.pointer(), &mut peer.len, flags)
        };
        if fd < 0 {
            match errno() {
                libc::EAGAIN => return Ok(None),
                // The connection was closed before it was accepted.
                libc::EINTR | libc::ECONNABORTED | libc::EPROTO => continue,
                errno => return Err(CallError { call: "accept4", errno }),
            }
        }
        // SAFETY: the kernel just gave us this descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let original = own_name(&socket)?;
        let peer = peer.address().ok_or(CallError { call: "accept4", errno: libc::EAFNOSUPPORT })?;
        return Ok(Some(Arrival { socket, original, peer }));
    }
}

/// Returns the local address of an accepted socket; with `tproxy` it is the original destination.
fn own_name(socket: &OwnedFd) -> Result<SocketAddr, CallError> {
    let mut name = SockAddr::default();
    // SAFETY: the kernel writes at most the given length into a local.
    if unsafe { libc::getsockname(socket.as_raw_fd(), name.pointer(), &mut name.len) } < 0 {
        return Err(CallError::last("getsockname"));
    }
    name.address().ok_or(CallError { call: "getsockname", errno: libc::EAFNOSUPPORT })
}

/// A datagram received at a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Length in the buffer. Bytes that did not fit are lost; 65536 bytes are always enough.
    pub len: usize,
    pub original: SocketAddr,
    pub peer: SocketAddr,
}

/// Receives the next datagram at a door; `None` if there is none now.
pub fn receive_from(door: impl AsFd, buffer: &mut [u8]) -> Result<Option<Datagram>, CallError> {
    #[repr(C, align(8))]
    struct Ancillary([u8; 128]);
    loop {
        let mut space = Ancillary([0; 128]);
        let mut peer = SockAddr::default();
        // SAFETY: all buffers are locals or the caller's, with their true lengths; the control message is read with
        // the kernel's own macros.
        let (got, original) = unsafe {
            let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = peer.pointer().cast();
            message.msg_namelen = peer.len;
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = space.0.as_mut_ptr().cast();
            message.msg_controllen = space.0.len() as _;
            let got = libc::recvmsg(door.as_fd().as_raw_fd(), &mut message, 0);
            (got, if got < 0 { None } else { original_of(&message) })
        };
        if got < 0 {
            match errno() {
                libc::EAGAIN => return Ok(None),
                libc::EINTR => continue,
                errno => return Err(CallError { call: "recvmsg", errno }),
            }
        }
        // Both addresses are always given; a datagram without them could not be answered.
        let (Some(original), Some(peer)) = (original, peer.address()) else { continue };
        return Ok(Some(Datagram { len: got as usize, original, peer }));
    }
}

/// # Safety
/// `message` must have been filled by `recvmsg`.
unsafe fn original_of(message: &libc::msghdr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise; the address is copied with a length that fits both sides.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let cmsg_kind = ((*header).cmsg_level, (*header).cmsg_type);
            if [(libc::SOL_IP, libc::IP_ORIGDSTADDR), (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR)].contains(&cmsg_kind) {
                let mut name = SockAddr::default();
                let len = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize).min(name.len as usize);
                std::ptr::copy_nonoverlapping(libc::CMSG_DATA(header), name.pointer().cast(), len);
                return name.address();
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// Sends `bytes` to `peer` with `original` as the source address. `out` is the raw socket of the same protocol family.
/// A full queue is an error (`EAGAIN`) that loses the datagram, as on any network.
pub fn send_from(out: &OwnedFd, original: SocketAddr, peer: SocketAddr, bytes: &[u8]) -> Result<(), CallError> {
    let mut udp = udp_header(original, peer, bytes.len());
    if original.is_ipv6() {
        let sum = checksum(original, peer, libc::IPPROTO_UDP, &[&udp, bytes]);
        // A checksum of zero means "none", which IPv6 forbids; IPv4 works without, and loopback corrupts no packet.
        udp[6..].copy_from_slice(&if sum == 0 { [0xff; 2] } else { sum.to_be_bytes() });
    }
    deliver(out, original, peer, libc::IPPROTO_UDP, &[&udp, bytes])
}

/// Sends an ICMP port-unreachable to `peer` from `original`: a connected socket there gets "connection refused".
pub fn refuse_from(out: &OwnedFd, original: SocketAddr, peer: SocketAddr) -> Result<(), CallError> {
    let udp = udp_header(peer, original, 0);
    let (refused, len) = ip_header(peer, original, libc::IPPROTO_UDP, udp.len())?;
    let refused = &refused[..len];
    let (protocol, kind, code) = match original {
        SocketAddr::V4(_) => (libc::IPPROTO_ICMP, 3, 3),
        SocketAddr::V6(_) => (libc::IPPROTO_ICMPV6, 1, 4),
    };
    let mut control = [kind, code, 0, 0, 0, 0, 0, 0];
    let sum = checksum(original, peer, protocol, &[&control, refused, &udp]);
    control[2..4].copy_from_slice(&sum.to_be_bytes());
    deliver(out, original, peer, protocol, &[&control, refused, &udp])
}

fn udp_header(from: SocketAddr, to: SocketAddr, payload: usize) -> [u8; 8] {
    let [a, b] = from.port().to_be_bytes();
    let [c, d] = to.port().to_be_bytes();
    let [e, f] = ((payload + 8) as u16).to_be_bytes();
    [a, b, c, d, e, f, 0, 0]
}

/// Builds an IP header and returns it with its length. For IPv4 the kernel fills in checksum and total length.
pub(crate) fn ip_header(
    from: SocketAddr,
    to: SocketAddr,
    protocol: i32,
    payload: usize,
) -> Result<([u8; 40], usize), CallError> {
    const TIME_TO_LIVE: u8 = 64;
    let mut header = [0; 40];
    match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            header[0] = 0x45;
            (header[8], header[9]) = (TIME_TO_LIVE, protocol as u8);
            header[12..16].copy_from_slice(&from.ip().octets());
            header[16..20].copy_from_slice(&to.ip().octets());
            Ok((header, 20))
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            (header[6], header[7]) = (protocol as u8, TIME_TO_LIVE);
            header[8..24].copy_from_slice(&from.ip().octets());
            header[24..40].copy_from_slice(&to.ip().octets());
            Ok((header, 40))
        }
        _ => Err(CallError { call: "sendmsg", errno: libc::EAFNOSUPPORT }),
    }
}

/// Computes the internet checksum. All protocols but ICMPv4 include a pseudo-header: both addresses, the protocol and
/// the length.
pub(crate) fn checksum(from: SocketAddr, to: SocketAddr, protocol: i32, parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    // Each part but the last must have an even length, which headers have.
    let mut add = |bytes: &[u8]| {
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    };
    if protocol != libc::IPPROTO_ICMP {
        for address in [from.ip(), to.ip()] {
            match address {
                IpAddr::V4(address) => add(&address.octets()),
                IpAddr::V6(address) => add(&address.octets()),
            }
        }
        add(&(protocol as u32).to_be_bytes());
        add(&(parts.iter().map(|p| p.len()).sum::<usize>() as u32).to_be_bytes());
    }
    parts.iter().for_each(|part| add(part));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sends a packet with any source address to `peer`.
pub(crate) fn deliver(
    out: &OwnedFd,
    original: SocketAddr,
    peer: SocketAddr,
    protocol: i32,
    payload: &[&[u8]],
) -> Result<(), CallError> {
    let len = payload.iter().map(|part| part.len()).sum::<usize>();
    let (header, header_len) = ip_header(original, peer, protocol, len)?;
    // A length that does not fit its 16-bit field must not be truncated.
    if len + 20 > usize::from(u16::MAX) {
        return Err(CallError { call: "sendmsg", errno: libc::EMSGSIZE });
    }
    let part = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut parts: Vec<libc::iovec> =
        std::iter::once(part(&header[..header_len])).chain(payload.iter().map(|p| part(p))).collect();
    let mut name = SockAddr::of(peer);
    // SAFETY: every part and the name outlive the call and have their true lengths; the kernel only reads them.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = name.pointer().cast();
        message.msg_namelen = name.len;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        while libc::sendmsg(out.as_raw_fd(), &message, libc::MSG_NOSIGNAL) < 0 {
            if errno() != libc::EINTR {
                return Err(CallError::last("sendmsg"));
            }
        }
    }
    Ok(())
}

/// A socket address as the kernel reads and writes it.
struct SockAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Default for SockAddr {
    fn default() -> SockAddr {
        // SAFETY: plain data, for which zeroed is valid.
        SockAddr { storage: unsafe { std::mem::zeroed() }, len: size_of::<libc::sockaddr_storage>() as u32 }
    }
}

impl SockAddr {
    /// Builds a destination for raw packets: without the port, which raw sockets take for a protocol.
    fn of(address: SocketAddr) -> SockAddr {
        let mut name = SockAddr::default();
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: the storage is large enough and aligned for every kind of name.
                let inside = unsafe { &mut *name.pointer().cast::<libc::sockaddr_in>() };
                inside.sin_family = libc::AF_INET as u16;
                inside.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                name.len = size_of::<libc::sockaddr_in>() as u32;
            }
            SocketAddr::V6(v6) => {
                // SAFETY: as above.
                let inside = unsafe { &mut *name.pointer().cast::<libc::sockaddr_in6>() };
                inside.sin6_family = libc::AF_INET6 as u16;
                inside.sin6_addr.s6_addr = v6.ip().octets();
                inside.sin6_scope_id = v6.scope_id();
                name.len = size_of::<libc::sockaddr_in6>() as u32;
            }
        }
        name
    }

    fn pointer(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    fn address(&self) -> Option<SocketAddr> {
        let at = &raw const self.storage;
        // SAFETY: the storage is large enough and aligned for both, and every bit pattern is a valid one.
        unsafe {
            match i32::from(self.storage.ss_family) {
                libc::AF_INET => {
                    let v4 = &*at.cast::<libc::sockaddr_in>();
                    let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let v6 = &*at.cast::<libc::sockaddr_in6>();
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}
