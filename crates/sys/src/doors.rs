//! The doors of a guest: sockets that stand in its network namespace and are held by the supervisor. All that the
//! guest sends anywhere but to itself arrives at one of them (see `netlink::routes` and `netfilter::rules`).
//! `open` runs between clone and exec: raw calls only.

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

const BACKLOG: i32 = 4096;

/// For each protocol: connections, names, datagrams, answers.
pub(crate) const EACH: usize = 4;
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

/// Opens the doors. Those on `loopback` stand at one place each: what the guest sends to itself meets no rule.
pub(crate) fn open(ipv6: bool, loopback: &[SocketAddr], opened: &mut Opened) -> Result<(), i32> {
    for (place, slot) in loopback.iter().zip(&mut opened.loopback) {
        let family = if place.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        *slot = socket(family, libc::SOCK_STREAM, 0)?;
        bind(*slot, place.ip(), place.port())?;
        // SAFETY: numbers only.
        unsafe { kernel!(SYS_listen, *slot, BACKLOG) }?;
    }
    let families = [libc::AF_INET, libc::AF_INET6];
    let slots = opened.everywhere.chunks_mut(EACH);
    for (family, slots) in families.into_iter().zip(slots).take(1 + usize::from(ipv6)) {
        let [tcp, dns, udp, out] = slots else { return Err(libc::EINVAL) };
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
