//! Copies of outgoing SYN and ICMP echo packets, read from a packet socket; the guest's kernel drops the packets
//! themselves (see `netfilter::rules`). A connection reaches its door only when its SYN is reinjected (`admit`), and
//! until then it can be refused with the destination as the source. All packets stay within the guest's own namespace;
//! no packet here reaches a network.

use crate::bpf::Insn;
use crate::doors::{MARK, MARK_REINJECTED, OWN_V4, OWN_V6};
use crate::net::{checksum, deliver, ip_header};
use crate::{CallError, errno};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// TCP flags: a segment with SYN and without ACK requests a connection.
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
const RESET: u8 = 0x04;
/// Offset of the flags in a segment.
pub(crate) const FLAGS: usize = 13;
const SHORTEST_SEGMENT: usize = 20;
const LONGEST_HEADER: usize = 60;

const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REPLY_V6: u8 = 129;

/// The SYN of a connection that the guest opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The guest's address.
    pub peer: SocketAddr,
    /// The destination.
    pub original: SocketAddr,
    /// The TCP header of the SYN. Data that a guest sends along (fast open) is retransmitted after the SYN is admitted,
    /// so it need not be kept.
    segment: Vec<u8>,
}

/// An echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Echo {
    pub from: IpAddr,
    pub to: IpAddr,
    pub id: u16,
    pub sequence: u16,
    pub payload: Vec<u8>,
}

impl Echo {
    /// Returns the request as an ICMP socket of the host takes it, which fills in an id of its own and the checksum.
    pub fn request(&self) -> Vec<u8> {
        let mut message = self.header(if self.to.is_ipv4() { ECHO_V4 } else { ECHO_V6 }).to_vec();
        message.extend(&self.payload);
        message
    }

    /// Parses a message received on such a socket: sequence number and payload, if it is an echo reply.
    pub fn answered(message: &[u8], ipv4: bool) -> Option<(u16, &[u8])> {
        let kind = if ipv4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
        let is_answer = message.len() >= 8 && message[..2] == [kind, 0];
        is_answer.then(|| (u16::from_be_bytes([message[6], message[7]]), &message[8..]))
    }

    fn header(&self, kind: u8) -> [u8; 8] {
        let ([a, b], [c, d]) = (self.id.to_be_bytes(), self.sequence.to_be_bytes());
        [kind, 0, 0, 0, a, b, c, d]
    }
}

impl Syn {
    /// Returns true if the other is a retransmission of this SYN.
    pub fn is_same(&self, other: &Syn) -> bool {
        self.sequence() == other.sequence()
    }

    fn sequence(&self) -> u32 {
        u32::from_be_bytes(array(&self.segment, 4).unwrap_or_default())
    }
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    Syn(Syn),
    Echo(Echo),
}

/// The reason why a destination is unreachable; the guest's connect fails as it would outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    Network,
    Host,
    /// Exists in ICMPv6 only; IPv4 gets "host unreachable".
    Forbidden,
}

/// Reads the next captured packet; `None` if there is none now. Malformed packets are skipped: the guest's own kernel
/// made them, and no process waits for a reply to them.
pub fn next_packet(door: impl AsFd, buffer: &mut [u8]) -> Result<Option<Packet>, CallError> {
    loop {
        // SAFETY: the kernel writes at most the given length into the caller's buffer.
        let got = unsafe { libc::recv(door.as_fd().as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got < 0 {
            match errno() {
                libc::EAGAIN => return Ok(None),
                libc::EINTR => continue,
                errno => return Err(CallError { call: "recv", errno }),
            }
        }
        if let Some(packet) = buffer.get(..got as usize).and_then(read) {
            return Ok(Some(packet));
        }
    }
}

/// Parses a packet from the IP header on.
fn read(packet: &[u8]) -> Option<Packet> {
    let (from, to, protocol, rest): (IpAddr, IpAddr, u8, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let whole = packet.get(..usize::from(half(packet, 2)?))?;
            let (from, to): ([u8; 4], [u8; 4]) = (array(packet, 12)?, array(packet, 16)?);
            (Ipv4Addr::from(from).into(), Ipv4Addr::from(to).into(), *packet.get(9)?, whole.get(header.max(20)..)?)
        }
        6 => {
            let whole = packet.get(..40 + usize::from(half(packet, 4)?))?;
            let (from, to): ([u8; 16], [u8; 16]) = (array(packet, 8)?, array(packet, 24)?);
            (Ipv6Addr::from(from).into(), Ipv6Addr::from(to).into(), *packet.get(6)?, whole.get(40..)?)
        }
        _ => return None,
    };
    match (i32::from(protocol), from.is_ipv4()) {
        (libc::IPPROTO_TCP, _) => syn(from, to, rest).map(Packet::Syn),
        (libc::IPPROTO_ICMP, true) => echo(from, to, ECHO_V4, rest).map(Packet::Echo),
        (libc::IPPROTO_ICMPV6, false) => echo(from, to, ECHO_V6, rest).map(Packet::Echo),
        _ => None,
    }
}

fn syn(from: IpAddr, to: IpAddr, segment: &[u8]) -> Option<Syn> {
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let sound = (SHORTEST_SEGMENT..=segment.len()).contains(&header);
    if !sound || segment[FLAGS] & (SYN | ACK) != SYN {
        return None;
    }
    let peer = SocketAddr::new(from, half(segment, 0)?);
    Some(Syn { peer, original: SocketAddr::new(to, half(segment, 2)?), segment: segment[..header].to_vec() })
}

fn echo(from: IpAddr, to: IpAddr, kind: u8, message: &[u8]) -> Option<Echo> {
    let (id, sequence) = (half(message, 4)?, half(message, 6)?);
    (message[..2] == [kind, 0]).then(|| Echo { from, to, id, sequence, payload: message[8..].to_vec() })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Reinjects a SYN, which then reaches the door. `again` is the socket of the same protocol family.
pub fn admit(again: &OwnedFd, syn: &Syn) -> Result<(), CallError> {
    let mut segment = syn.segment.clone();
    // The kernel computes no checksum for its own packets on loopback, but a reinjected packet needs one.
    segment[16..18].fill(0);
    let sum = checksum(syn.peer, syn.original, libc::IPPROTO_TCP, &[&segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    deliver(again, syn.peer, syn.original, libc::IPPROTO_TCP, &[&segment])
}

/// Sends a RST: the connect fails with "connection refused". `out` is the socket of the same protocol family.
pub fn refuse(out: &OwnedFd, syn: &Syn) -> Result<(), CallError> {
    let mut segment = [0; SHORTEST_SEGMENT];
    segment[..2].copy_from_slice(&syn.original.port().to_be_bytes());
    segment[2..4].copy_from_slice(&syn.peer.port().to_be_bytes());
    segment[8..12].copy_from_slice(&syn.sequence().wrapping_add(1).to_be_bytes());
    segment[12] = (SHORTEST_SEGMENT as u8 / 4) << 4;
    segment[FLAGS] = RESET | ACK;
    let sum = checksum(syn.original, syn.peer, libc::IPPROTO_TCP, &[&segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    deliver(out, syn.original, syn.peer, libc::IPPROTO_TCP, &[&segment])
}

/// Sends an ICMP destination-unreachable.
pub fn unreachable(out: &OwnedFd, syn: &Syn, why: Unreachable) -> Result<(), CallError> {
    let header = &syn.segment[..syn.segment.len().min(LONGEST_HEADER)];
    let (refused, len) = ip_header(syn.peer, syn.original, libc::IPPROTO_TCP, header.len())?;
    let refused = &refused[..len];
    let (protocol, kind, code) = match (syn.original, why) {
        (SocketAddr::V4(_), Unreachable::Network) => (libc::IPPROTO_ICMP, 3, 0),
        (SocketAddr::V4(_), _) => (libc::IPPROTO_ICMP, 3, 1),
        (SocketAddr::V6(_), Unreachable::Network) => (libc::IPPROTO_ICMPV6, 1, 0),
        (SocketAddr::V6(_), Unreachable::Forbidden) => (libc::IPPROTO_ICMPV6, 1, 1),
        (SocketAddr::V6(_), Unreachable::Host) => (libc::IPPROTO_ICMPV6, 1, 3),
    };
    let mut control = [kind, code, 0, 0, 0, 0, 0, 0];
    let sum = checksum(syn.original, syn.peer, protocol, &[&control, refused, header]);
    control[2..4].copy_from_slice(&sum.to_be_bytes());
    deliver(out, syn.original, syn.peer, protocol, &[&control, refused, header])
}

/// Sends an echo reply with the destination as the source. `out` is the socket of the same protocol family.
pub fn answer(out: &OwnedFd, echo: &Echo) -> Result<(), CallError> {
    let (from, to) = (SocketAddr::new(echo.to, 0), SocketAddr::new(echo.from, 0));
    let (protocol, kind) = match echo.to {
        IpAddr::V4(_) => (libc::IPPROTO_ICMP, ECHO_REPLY_V4),
        IpAddr::V6(_) => (libc::IPPROTO_ICMPV6, ECHO_REPLY_V6),
    };
    let mut header = echo.header(kind);
    let sum = checksum(from, to, protocol, &[&header, &echo.payload]);
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    deliver(out, from, to, protocol, &[&header, &echo.payload])
}

// Classic BPF opcodes that a packet filter needs.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// Loads at an offset from the index register: the TCP or ICMP header.
const LOAD_HALF_INSIDE: u16 = 0x48;
const LOAD_BYTE_INSIDE: u16 = 0x50;
/// Load into the index register: the length of an IPv4 header, or a number.
const HEADER_LEN: u16 = 0xb1;
const NUMBER: u16 = 0x01;
const KEEP_BITS: u16 = 0x54;
const SKIP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const ANSWER: u16 = 0x06;

const REJECT: Insn = insn(ANSWER, 0);
const ACCEPT: Insn = insn(ANSWER, 0x0001_0000);
/// Ancillary offset at which the kernel provides a packet's mark.
const PACKET_MARK: u32 = 0xffff_f000 + 20;

/// Offsets and constants that differ between IPv4 and IPv6.
struct IpVersion {
    begin: Insn,
    protocol: Insn,
    destination: u32,
    control: u32,
    echo: u32,
    own: IpAddr,
}

const V4: IpVersion = IpVersion {
    begin: insn(HEADER_LEN, 0),
    protocol: insn(LOAD_BYTE, 9),
    destination: 16,
    control: libc::IPPROTO_ICMP as u32,
    echo: ECHO_V4 as u32,
    own: IpAddr::V4(OWN_V4),
};

const V6: IpVersion = IpVersion {
    begin: insn(NUMBER, 40),
    protocol: insn(LOAD_BYTE, 6),
    destination: 24,
    control: libc::IPPROTO_ICMPV6 as u32,
    echo: ECHO_V6 as u32,
    own: IpAddr::V6(OWN_V6),
};

/// Builds the packet filter of one protocol family: accepts SYNs and echo requests to any address but the guest's own,
/// and SYNs to these addresses on its loopback. Packets with our own marks are not captured.
pub fn filter(ipv6: bool, loopback: &[SocketAddr]) -> Vec<Insn> {
    let version = if ipv6 { V6 } else { V4 };
    // Nearly all packets belong to established connections; they are rejected first.
    let mut out = require_syn_or_echo(&version);
    if !ipv6 {
        // Only the first fragment of a packet has the headers.
        out.extend([insn(LOAD_HALF, 6), Insn { code: IF_ANY_BIT, jt: 0, jf: 1, k: 0x3fff }, REJECT]);
    }
    for mark in [MARK, MARK_REINJECTED] {
        out.extend(when(insn(LOAD_WORD, PACKET_MARK), mark, vec![REJECT]));
    }
    out.extend(when_to(&version, version.own, vec![REJECT]));
    let mut inside = vec![version.protocol];
    inside.extend(require(libc::IPPROTO_TCP as u32));
    for place in loopback.iter().filter(|place| place.is_ipv6() == ipv6) {
        let there = when(insn(LOAD_HALF_INSIDE, 2), place.port().into(), vec![ACCEPT]);
        inside.extend(when_to(&version, place.ip(), there));
    }
    inside.push(REJECT);
    out.extend(match ipv6 {
        false => when(insn(LOAD_BYTE, version.destination), Ipv4Addr::LOCALHOST.octets()[0].into(), inside),
        true => when_to(&version, Ipv6Addr::LOCALHOST.into(), inside),
    });
    out.push(ACCEPT);
    out
}

/// Rejects a packet unless it is a SYN or an echo request.
fn require_syn_or_echo(version: &IpVersion) -> Vec<Insn> {
    let mut echo = require(version.control).to_vec();
    echo.push(insn(LOAD_BYTE_INSIDE, 0));
    echo.extend(require(version.echo));
    let mut connection = vec![insn(LOAD_BYTE_INSIDE, FLAGS as u32), insn(KEEP_BITS, u32::from(SYN | ACK))];
    connection.extend(require(SYN.into()));
    connection.push(insn(SKIP, echo.len() as u32));
    let mut out = vec![version.begin];
    out.extend(when(version.protocol, libc::IPPROTO_TCP as u32, connection));
    out.extend(echo);
    out
}

/// Executes `then` if the loaded value is equal; otherwise skips it, at any length.
fn when(load: Insn, value: u32, then: Vec<Insn>) -> Vec<Insn> {
    let mut out = vec![load, Insn { code: IF_EQUAL, jt: 1, jf: 0, k: value }, insn(SKIP, then.len() as u32)];
    out.extend(then);
    out
}

/// Executes `then` if the packet's destination is this address.
fn when_to(version: &IpVersion, address: IpAddr, then: Vec<Insn>) -> Vec<Insn> {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let words = words.enumerate().collect::<Vec<_>>().into_iter().rev();
    words.fold(then, |then, (at, word)| when(insn(LOAD_WORD, version.destination + 4 * at as u32), word, then))
}

/// Rejects the packet unless the loaded value is equal.
fn require(value: u32) -> [Insn; 2] {
    [Insn { code: IF_EQUAL, jt: 1, jf: 0, k: value }, REJECT]
}

const fn insn(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let mut v4 = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 0, 8, 1, 2, 3, 4];
        v4.extend([0x30, 0x39, 0, 80, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, SYN, 0, 0, 0, 0, 0, 0]);
        let Some(Packet::Syn(syn)) = read(&v4) else { panic!("a connection is asked for") };
        assert_eq!((syn.peer, syn.original), (([192, 0, 0, 8], 12345).into(), ([1, 2, 3, 4], 80).into()));
        for len in 0..v4.len() {
            assert_eq!(read(&v4[..len]), None, "{len}");
        }
        for (at, byte) in
            [(0, 0x55), (0, 0x4f), (3, 39), (3, 41), (9, 17), (32, 0x40), (32, 0x60), (33, SYN | ACK), (33, ACK)]
        {
            let mut other = v4.clone();
            other[at] = byte;
            assert_eq!(read(&other), None, "{at}");
        }
        // Data in the SYN is not kept.
        let mut more = v4.clone();
        more[3] = 45;
        more.extend(b"bytes");
        assert_eq!(read(&more), Some(Packet::Syn(syn)));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 10, 58, 64];
        v6.extend(OWN_V6.octets());
        v6.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets());
        v6.extend([128, 0, 0, 0, 0, 3, 0, 4, 5, 6]);
        let Some(Packet::Echo(echo)) = read(&v6) else { panic!("an echo is asked for") };
        assert_eq!((echo.id, echo.sequence, echo.payload), (3, 4, vec![5, 6]));
        for len in 0..v6.len() {
            assert_eq!(read(&v6[..len]), None, "{len}");
        }
        // An echo of the other protocol family is ignored.
        v6[6] = 1;
        assert_eq!(read(&v6), None);
    }
}
