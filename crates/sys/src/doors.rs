//! The doors of a guest: sockets that stand in its network namespace and are held by the supervisor. All that the
//! guest sends anywhere but to itself arrives at one of them (see `netlink::routes` and `netfilter::rules`).
//! `open` runs between clone and exec: raw calls only.

use crate::bpf::Insn;
use crate::raw::kernel;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// The guest's address, which its connections come from. This one is set aside as an address that nobody has
/// (RFC 7600), so no place in the world becomes unreachable by it.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// The same, from a random local prefix (RFC 4193). Programs that sort addresses by the rules take such a source for
/// a reason to try IPv4 first, which works in more places.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd9c, 0x0f62, 0x6b5e, 0, 0, 0, 0, 8);

/// What the guest's `resolv.conf` names. Any address outside its loopback would do, because port 53 of all of them
/// leads to the same door; loopback itself belongs to the guest. From a range that is never routed.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 53);

/// Where the doors are bound. A guest without privileges cannot have a port this low, so it never finds one taken.
pub(crate) const CATCH_ALL_PORT: u16 = 1;
pub(crate) const DNS_PORT: u16 = 53;

/// On every packet that comes from a door; only privileges in the namespace can set it, which no guest has.
pub(crate) const MARK: u32 = 0x00c0_ffda;
/// On requests for connections that we send again; only these come to a door.
pub(crate) const MARK_AGAIN: u32 = 0x00c0_ffdb;

const BACKLOG: i32 = 4096;

/// What waits to be heard of what the guest begins; the kernel cuts it down to what it allows. What has no room comes
/// again, as after any loss.
const KNOCKS: i32 = 1 << 20;
/// The loopback interface is the first of every network namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// For each protocol: connections, names, datagrams, answers, what the guest begins, requests that are sent again.
pub(crate) const EACH: usize = 6;
/// The most places on the guest's own loopback that lead outside; each takes a port away from the guest.
pub const MOST_LOOPBACK: usize = 64;

/// What was opened, in the order in which `net::Doors` takes it; -1 where there is none.
pub(crate) struct Opened {
    pub(crate) everywhere: [RawFd; 2 * EACH],
    pub(crate) loopback: [RawFd; MOST_LOOPBACK],
}

impl Opened {
    pub(crate) const NONE: Opened = Opened { everywhere: [-1; _], loopback: [-1; _] };
}

/// Opens the doors. Those on `loopback` stand at one place each. `filters` are those of `knock::filter`, for each protocol.
pub(crate) fn open(ipv6: bool, loopback: &[SocketAddr], filters: [&[Insn]; 2], opened: &mut Opened) -> Result<(), i32> {
    for (place, slot) in loopback.iter().zip(&mut opened.loopback) {
        let family = if place.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        *slot = socket(family, libc::SOCK_STREAM, 0)?;
        bind(*slot, place.ip(), place.port())?;
        // SAFETY: numbers only.
        unsafe { kernel!(SYS_listen, *slot, BACKLOG) }?;
    }
    let families = [libc::AF_INET, libc::AF_INET6];
    let slots = opened.everywhere.chunks_mut(EACH);
    for ((family, slots), filter) in families.into_iter().zip(slots).zip(filters).take(1 + usize::from(ipv6)) {
        let [tcp, dns, udp, out, knocks, again] = slots else { return Err(libc::EINVAL) };
        *tcp = bound(family, libc::SOCK_STREAM, CATCH_ALL_PORT)?;
        // Each connection counts as bound to the port that was called. Inherited from here, this lets the guest's
        // servers have that port at the same time, if they ask for it in the same way, as nearly all do.
        set(*tcp, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        // SAFETY: numbers only.
        unsafe { kernel!(SYS_listen, *tcp, BACKLOG) }?;
        *dns = bound(family, libc::SOCK_DGRAM, DNS_PORT)?;
        *udp = bound(family, libc::SOCK_DGRAM, CATCH_ALL_PORT)?;
        // Answers carry any address and port as their source without a socket bound to it, which could be in the way
        // of one of the guest's. This protocol number receives nothing.
        *out = socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
        *knocks = listening(family, filter)?;
        *again = socket(family, libc::SOCK_RAW, libc::IPPROTO_RAW)?;
        set(*again, libc::SOL_SOCKET, libc::SO_MARK, MARK_AGAIN as i32)?;
    }
    Ok(())
}

fn socket(family: i32, kind: i32, protocol: i32) -> Result<RawFd, i32> {
    // SAFETY: numbers only.
    let fd = unsafe { kernel!(SYS_socket, family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) }?;
    set(fd, libc::SOL_SOCKET, libc::SO_MARK, MARK as i32)?;
    Ok(fd)
}

/// A socket that takes what was meant for other addresses and knows which.
fn bound(family: i32, kind: i32, port: u16) -> Result<RawFd, i32> {
    let fd = socket(family, kind, 0)?;
    let (level, transparent, tell) = match family {
        libc::AF_INET => (libc::SOL_IP, libc::IP_TRANSPARENT, libc::IP_RECVORIGDSTADDR),
        _ => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT, libc::IPV6_RECVORIGDSTADDR),
    };
    set(fd, level, transparent, 1)?;
    if kind == libc::SOCK_DGRAM {
        set(fd, level, tell, 1)?;
    }
    bind(fd, if family == libc::AF_INET { OWN_V4.into() } else { OWN_V6.into() }, port)?;
    Ok(fd)
}

/// A socket that gets a copy of the packets that pass the filter, from the header of IP on. It hears nothing before it
/// is bound, and then only what comes in: of what goes out, sockets of one protocol are told nothing.
fn listening(family: i32, filter: &[Insn]) -> Result<RawFd, i32> {
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
        set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, KNOCKS)?;
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
