//! The doors of a guest: sockets in its network namespace that the supervisor holds. All traffic of the guest, except
//! to itself, arrives at one of them (see `netlink::routes` and `netfilter::rules`). `open` runs between clone and
//! exec: raw calls only.

use crate::bpf::Insn;
use crate::raw::kernel;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// The guest's address, the source of its connections. The IPv4 dummy address (RFC 7600) belongs to no host, so no
/// destination becomes unreachable by it.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// The guest's IPv6 address, from a random unique local prefix (RFC 4193). Address selection then prefers IPv4
/// destinations, which work in more networks.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd9c, 0x0f62, 0x6b5e, 0, 0, 0, 0, 8);

/// The name server in the guest's `resolv.conf`. Any address outside its loopback would do, because port 53 of every
/// address leads to the same door; loopback itself belongs to the guest. From a range that is never routed.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 53);

/// Ports of the doors. A guest without privileges cannot bind a port this low, so they are never taken.
pub(crate) const CATCH_ALL_PORT: u16 = 1;
pub(crate) const DNS_PORT: u16 = 53;

/// Mark of every packet sent from a door; only privileges in the namespace can set it, which no guest has.
pub(crate) const MARK: u32 = 0x00c0_ffda;
/// Mark of a reinjected SYN; only SYNs with this mark reach a door.
pub(crate) const MARK_REINJECTED: u32 = 0x00c0_ffdb;

const BACKLOG: i32 = 4096;

/// Receive buffer for captured packets in bytes; the kernel reduces it to its maximum. A packet that does not fit is
/// retransmitted, as after any loss.
const CAPTURE_BUFFER_BYTES: i32 = 1 << 20;
/// Index of the loopback interface, the first of every network namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// Sockets per protocol family: TCP, DNS, UDP, raw replies, captured packets, reinjected SYNs.
pub(crate) const SOCKETS_PER_FAMILY: usize = 6;
/// Slot of the IPv4 DNS socket among the opened ones.
pub(crate) const DNS_SLOT: usize = 1;
/// Bound on addresses on the guest's loopback that lead outside; each takes a port away from the guest.
pub const MOST_LOOPBACK: usize = 64;

/// Opened sockets, in the order in which `net::Doors` takes them; -1 where there is none.
pub(crate) struct Opened {
    pub(crate) everywhere: [RawFd; 2 * SOCKETS_PER_FAMILY],
    pub(crate) loopback: [RawFd; MOST_LOOPBACK],
}

impl Opened {
    pub(crate) const NONE: Opened = Opened { everywhere: [-1; _], loopback: [-1; _] };
}

/// Opens the doors. Each address of `loopback` gets a listener of its own. `filters` are those of
/// `syn_capture::filter`, for each protocol family.
pub(crate) fn open(ipv6: bool, loopback: &[SocketAddr], filters: [&[Insn]; 2], opened: &mut Opened) -> Result<(), i32> {
    for (place, slot) in loopback.iter().zip(&mut opened.loopback) {
        let family = if place.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        *slot = socket(family, libc::SOCK_STREAM, 0)?;
        bind(*slot, place.ip(), place.port())?;
        // SAFETY: numbers only.
        unsafe { kernel!(SYS_listen, *slot, BACKLOG) }?;
    }
    let families = [libc::AF_INET, libc::AF_INET6];
    let slots = opened.everywhere.chunks_mut(SOCKETS_PER_FAMILY);
    for ((family, slots), filter) in families.into_iter().zip(slots).zip(filters).take(1 + usize::from(ipv6)) {
        let [tcp, dns, udp, out, captured, again] = slots else { return Err(libc::EINVAL) };
        *tcp = transparent_socket(family, libc::SOCK_STREAM, CATCH_ALL_PORT)?;
        // An accepted connection counts as bound to the port that the guest connected to. SO_REUSEADDR, inherited from
        // here, lets a server of the guest bind that port at the same time, if it sets SO_REUSEADDR too, as nearly all
        // do.
        set(*tcp, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        // SAFETY: numbers only.
        unsafe { kernel!(SYS_listen, *tcp, BACKLOG) }?;
        *dns = transparent_socket(family, libc::SOCK_DGRAM, DNS_PORT)?;
        *udp = transparent_socket(family, libc::SOCK_DGRAM, CATCH_ALL_PORT)?;
        // Replies carry any address and port as their source without a bound socket, which could conflict with one of
        // the guest's. This protocol number receives nothing.
        *out = socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
        *captured = packet_socket(family, filter)?;
        *again = socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
        set(*again, libc::SOL_SOCKET, libc::SO_MARK, MARK_REINJECTED as i32)?;
    }
    Ok(())
}

/// Opens the name server of a guest without doors: a socket at `RESOLVER`, an address that `netlink::resolver_address`
/// gave to the guest's loopback.
pub(crate) fn open_resolver() -> Result<RawFd, i32> {
    let fd = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    bind(fd, RESOLVER.into(), DNS_PORT)?;
    Ok(fd)
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<RawFd, i32> {
    // SAFETY: numbers only.
    let fd = unsafe { kernel!(SYS_socket, family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) }?;
    set(fd, libc::SOL_SOCKET, libc::SO_MARK, MARK as i32)?;
    Ok(fd)
}

/// Binds a transparent socket, which accepts packets for other addresses and reports the original destination.
fn transparent_socket(family: i32, kind: i32, port: u16) -> Result<RawFd, i32> {
    let fd = socket(family, kind, 0)?;
    let (level, transparent, original_dst) = match family {
        libc::AF_INET => (libc::SOL_IP, libc::IP_TRANSPARENT, libc::IP_RECVORIGDSTADDR),
        _ => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT, libc::IPV6_RECVORIGDSTADDR),
    };
    set(fd, level, transparent, 1)?;
    if kind == libc::SOCK_DGRAM {
        set(fd, level, original_dst, 1)?;
    }
    bind(fd, if family == libc::AF_INET { OWN_V4.into() } else { OWN_V6.into() }, port)?;
    Ok(fd)
}

/// Opens a packet socket that receives a copy of the packets that pass the filter, from the IP header on. It receives
/// no packet before it is bound, and then only incoming ones: a packet socket of one protocol sees no outgoing packets.
fn packet_socket(family: i32, filter: &[Insn]) -> Result<RawFd, i32> {
    #[repr(C)]
    struct Program {
        len: u16,
        insns: *const Insn,
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let wanted = Program { len: filter.len() as u16, insns: filter.as_ptr() };
    let protocol = if family == libc::AF_INET { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
    // SAFETY: numbers; a program whose pointer is valid for its length; and a name, for which zeroed is valid, with its
    // true length.
    unsafe {
        let fd = kernel!(SYS_socket, libc::AF_PACKET, kind, 0)?;
        let attach = libc::SO_ATTACH_FILTER;
        kernel!(SYS_setsockopt, fd, libc::SOL_SOCKET, attach, &raw const wanted, size_of::<Program>())?;
        set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, CAPTURE_BUFFER_BYTES)?;
        let mut name: libc::sockaddr_ll = std::mem::zeroed();
        name.sll_family = libc::AF_PACKET as u16;
        name.sll_protocol = (protocol as u16).to_be();
        name.sll_ifindex = LOOPBACK as i32;
        kernel!(SYS_bind, fd, &raw const name, size_of::<libc::sockaddr_ll>())?;
        Ok(fd)
    }
}

fn set(fd: RawFd, level: i32, option: i32, value: i32) -> Result<(), i32> {
    // SAFETY: one number from a local with its true length.
    unsafe { kernel!(SYS_setsockopt, fd, level, option, &raw const value, size_of::<i32>()) }.map(drop)
}

fn bind(fd: RawFd, at: IpAddr, port: u16) -> Result<(), i32> {
    // SAFETY: both structures are plain data, for which zeroed is valid, and are passed with their true lengths.
    let got = unsafe {
        match at {
            IpAddr::V4(at) => {
                let mut name: libc::sockaddr_in = std::mem::zeroed();
                name.sin_family = libc::AF_INET as u16;
                name.sin_port = port.to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(at.octets());
                kernel!(SYS_bind, fd, &raw const name, size_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(at) => {
                let mut name: libc::sockaddr_in6 = std::mem::zeroed();
                name.sin6_family = libc::AF_INET6 as u16;
                name.sin6_port = port.to_be();
                name.sin6_addr.s6_addr = at.octets();
                kernel!(SYS_bind, fd, &raw const name, size_of::<libc::sockaddr_in6>())
            }
        }
    };
    got.map(drop)
}
