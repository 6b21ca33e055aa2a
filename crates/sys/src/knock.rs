//! What a guest begins: connections that it asks for and echo requests. The guest's kernel hands a copy of each to a
//! packet socket of ours and drops the packet itself (see `netfilter::rules`). So a connection comes to its door only
//! when we send its request again, and until then we can answer in the name of the place that was called.
//! Everything is sent within the guest's own namespace; nothing here reaches a network.

use crate::bpf::Insn;
use crate::doors::{MARK, MARK_AGAIN, OWN_V4, OWN_V6};
use crate::net::{checksum, deliver, ip_header};
use crate::{CallError, errno};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Of the flags of TCP: a segment that has the first and not the second asks for a connection.
pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
const RESET: u8 = 0x04;
/// Where the flags stand in a segment.
pub(crate) const FLAGS: usize = 13;
const SHORTEST_SEGMENT: usize = 20;
const LONGEST_HEADER: usize = 60;

const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V4: u8 = 0;
const ECHO_REPLY_V6: u8 = 129;

/// A connection that the guest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The guest's end.
    pub peer: SocketAddr,
    /// Where it wants to go.
    pub original: SocketAddr,
    /// The request itself: the header of TCP. What a guest sends along (fast open) it sends again once it is let in, and
    /// we need not hold it until then.
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
    /// The request as a socket of the host for such requests takes it, which puts in an id of its own and the sum.
    pub fn request(&self) -> Vec<u8> {
        let mut message = self.header(if self.to.is_ipv4() { ECHO_V4 } else { ECHO_V6 }).to_vec();
        message.extend(&self.payload);
        message
    }

    /// The sequence number and the payload of what came to such a socket, if it is an answer.
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

impl Call {
    /// Whether the other is the same request, sent once more.
    pub fn is_same(&self, other: &Call) -> bool {
        self.sequence() == other.sequence()
    }

    fn sequence(&self) -> u32 {
        u32::from_be_bytes(array(&self.segment, 4).unwrap_or_default())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knock {
    Call(Call),
    Echo(Echo),
}

/// Why a place cannot be reached; the guest's call fails as it would outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    Network,
    Host,
    /// Only IPv6 knows of it; with IPv4 it is the host that cannot be reached.
    Forbidden,
}

/// The next that the guest begins; `None` when there is nothing now. What cannot be read is left out: the guest's own
/// kernel made it, and nobody waits for an answer that comes from us alone.
pub fn hear(door: impl AsFd, buffer: &mut [u8]) -> Result<Option<Knock>, CallError> {
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
        if let Some(knock) = buffer.get(..got as usize).and_then(read) {
            return Ok(Some(knock));
        }
    }
}

/// Reads a packet from the header of IP on.
fn read(packet: &[u8]) -> Option<Knock> {
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
        (libc::IPPROTO_TCP, _) => call(from, to, rest).map(Knock::Call),
        (libc::IPPROTO_ICMP, true) => echo(from, to, ECHO_V4, rest).map(Knock::Echo),
        (libc::IPPROTO_ICMPV6, false) => echo(from, to, ECHO_V6, rest).map(Knock::Echo),
        _ => None,
    }
}

fn call(from: IpAddr, to: IpAddr, segment: &[u8]) -> Option<Call> {
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let sound = (SHORTEST_SEGMENT..=segment.len()).contains(&header);
    if !sound || segment[FLAGS] & (SYN | ACK) != SYN {
        return None;
    }
    let peer = SocketAddr::new(from, half(segment, 0)?);
    Some(Call { peer, original: SocketAddr::new(to, half(segment, 2)?), segment: segment[..header].to_vec() })
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

/// Sends a request again, and now it comes to the door. `again` is the one of the same protocol.
pub fn admit(again: &OwnedFd, call: &Call) -> Result<(), CallError> {
    let mut segment = call.segment.clone();
    // On loopback nobody computes the sum of a packet that the kernel makes; of this one somebody must.
    segment[16..18].fill(0);
    let sum = checksum(call.peer, call.original, libc::IPPROTO_TCP, &[&segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    deliver(again, call.peer, call.original, libc::IPPROTO_TCP, &[&segment])
}

/// Answers that nobody listens there: the call fails with "connection refused". `out` is the one of the same protocol.
pub fn refuse(out: &OwnedFd, call: &Call) -> Result<(), CallError> {
    let mut segment = [0; SHORTEST_SEGMENT];
    segment[..2].copy_from_slice(&call.original.port().to_be_bytes());
    segment[2..4].copy_from_slice(&call.peer.port().to_be_bytes());
    segment[8..12].copy_from_slice(&call.sequence().wrapping_add(1).to_be_bytes());
    segment[12] = (SHORTEST_SEGMENT as u8 / 4) << 4;
    segment[FLAGS] = RESET | ACK;
    let sum = checksum(call.original, call.peer, libc::IPPROTO_TCP, &[&segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    deliver(out, call.original, call.peer, libc::IPPROTO_TCP, &[&segment])
}

/// Answers that the place cannot be reached.
pub fn unreachable(out: &OwnedFd, call: &Call, why: Unreachable) -> Result<(), CallError> {
    let header = &call.segment[..call.segment.len().min(LONGEST_HEADER)];
    let (refused, len) = ip_header(call.peer, call.original, libc::IPPROTO_TCP, header.len())?;
    let refused = &refused[..len];
    let (protocol, kind, code) = match (call.original, why) {
        (SocketAddr::V4(_), Unreachable::Network) => (libc::IPPROTO_ICMP, 3, 0),
        (SocketAddr::V4(_), _) => (libc::IPPROTO_ICMP, 3, 1),
        (SocketAddr::V6(_), Unreachable::Network) => (libc::IPPROTO_ICMPV6, 1, 0),
        (SocketAddr::V6(_), Unreachable::Forbidden) => (libc::IPPROTO_ICMPV6, 1, 1),
        (SocketAddr::V6(_), Unreachable::Host) => (libc::IPPROTO_ICMPV6, 1, 3),
    };
    let mut control = [kind, code, 0, 0, 0, 0, 0, 0];
    let sum = checksum(call.original, call.peer, protocol, &[&control, refused, header]);
    control[2..4].copy_from_slice(&sum.to_be_bytes());
    deliver(out, call.original, call.peer, protocol, &[&control, refused, header])
}

/// Answers an echo request in the name of the one it was for. `out` is the one of the same protocol.
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

// Instructions of classic BPF, as far as a filter of packets needs them.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// Counted from where the second register says: the header of TCP or ICMP.
const LOAD_HALF_INSIDE: u16 = 0x48;
const LOAD_BYTE_INSIDE: u16 = 0x50;
/// Into the second register: the length of a header of IPv4, or a number.
const HEADER_LEN: u16 = 0xb1;
const NUMBER: u16 = 0x01;
const KEEP_BITS: u16 = 0x54;
const SKIP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const ANSWER: u16 = 0x06;

const NONE: Insn = insn(ANSWER, 0);
const WHOLE: Insn = insn(ANSWER, 0x0001_0000);
/// The kernel keeps the mark of a packet at a place that no packet has.
const PACKET_MARK: u32 = 0xffff_f000 + 20;

/// Where things stand in a packet.
struct Layer {
    begin: Insn,
    protocol: Insn,
    destination: u32,
    control: u32,
    echo: u32,
    own: IpAddr,
}

const V4: Layer = Layer {
    begin: insn(HEADER_LEN, 0),
    protocol: insn(LOAD_BYTE, 9),
    destination: 16,
    control: libc::IPPROTO_ICMP as u32,
    echo: ECHO_V4 as u32,
    own: IpAddr::V4(OWN_V4),
};

const V6: Layer = Layer {
    begin: insn(NUMBER, 40),
    protocol: insn(LOAD_BYTE, 6),
    destination: 24,
    control: libc::IPPROTO_ICMPV6 as u32,
    echo: ECHO_V6 as u32,
    own: IpAddr::V6(OWN_V6),
};

/// Which packets of one protocol are for us: requests for connections and echo requests to anywhere but the guest itself,
/// and requests for connections to these places on its loopback. Our own, by their marks, are not.
pub fn filter(ipv6: bool, loopback: &[SocketAddr]) -> Vec<Insn> {
    let layer = if ipv6 { V6 } else { V4 };
    // Nearly all packets are of connections that stand; they are told apart first.
    let mut out = beginnings(&layer);
    if !ipv6 {
        // Of a packet in parts, only the first tells what it is.
        out.extend([insn(LOAD_HALF, 6), Insn { code: IF_ANY_BIT, jt: 0, jf: 1, k: 0x3fff }, NONE]);
    }
    for mark in [MARK, MARK_AGAIN] {
        out.extend(when(insn(LOAD_WORD, PACKET_MARK), mark, vec![NONE]));
    }
    out.extend(when_to(&layer, layer.own, vec![NONE]));
    let mut inside = vec![layer.protocol];
    inside.extend(need(libc::IPPROTO_TCP as u32));
    for place in loopback.iter().filter(|place| place.is_ipv6() == ipv6) {
        let there = when(insn(LOAD_HALF_INSIDE, 2), place.port().into(), vec![WHOLE]);
        inside.extend(when_to(&layer, place.ip(), there));
    }
    inside.push(NONE);
    out.extend(match ipv6 {
        false => when(insn(LOAD_BYTE, layer.destination), Ipv4Addr::LOCALHOST.octets()[0].into(), inside),
        true => when_to(&layer, Ipv6Addr::LOCALHOST.into(), inside),
    });
    out.push(WHOLE);
    out
}

/// Ends with "none" unless a packet begins something.
fn beginnings(layer: &Layer) -> Vec<Insn> {
    let mut echo = need(layer.control).to_vec();
    echo.push(insn(LOAD_BYTE_INSIDE, 0));
    echo.extend(need(layer.echo));
    let mut connection = vec![insn(LOAD_BYTE_INSIDE, FLAGS as u32), insn(KEEP_BITS, u32::from(SYN | ACK))];
    connection.extend(need(SYN.into()));
    connection.push(insn(SKIP, echo.len() as u32));
    let mut out = vec![layer.begin];
    out.extend(when(layer.protocol, libc::IPPROTO_TCP as u32, connection));
    out.extend(echo);
    out
}

/// `then`, if what is loaded is this value; otherwise it is skipped, however long it is.
fn when(load: Insn, value: u32, then: Vec<Insn>) -> Vec<Insn> {
    let mut out = vec![load, Insn { code: IF_EQUAL, jt: 1, jf: 0, k: value }, insn(SKIP, then.len() as u32)];
    out.extend(then);
    out
}

/// `then`, if the packet goes to this address.
fn when_to(layer: &Layer, address: IpAddr, then: Vec<Insn>) -> Vec<Insn> {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let words = words.enumerate().collect::<Vec<_>>().into_iter().rev();
    words.fold(then, |then, (at, word)| when(insn(LOAD_WORD, layer.destination + 4 * at as u32), word, then))
}

/// "None", unless what was loaded is this value.
fn need(value: u32) -> [Insn; 2] {
    [Insn { code: IF_EQUAL, jt: 1, jf: 0, k: value }, NONE]
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
        let Some(Knock::Call(call)) = read(&v4) else { panic!("a connection is asked for") };
        assert_eq!((call.peer, call.original), (([192, 0, 0, 8], 12345).into(), ([1, 2, 3, 4], 80).into()));
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
        // What comes with a request is not kept.
        let mut more = v4.clone();
        more[3] = 45;
        more.extend(b"bytes");
        assert_eq!(read(&more), Some(Knock::Call(call)));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 10, 58, 64];
        v6.extend(OWN_V6.octets());
        v6.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets());
        v6.extend([128, 0, 0, 0, 0, 3, 0, 4, 5, 6]);
        let Some(Knock::Echo(echo)) = read(&v6) else { panic!("an echo is asked for") };
        assert_eq!((echo.id, echo.sequence, echo.payload), (3, 4, vec![5, 6]));
        for len in 0..v6.len() {
            assert_eq!(read(&v6[..len]), None, "{len}");
        }
        // An echo of the other protocol means nothing here.
        v6[6] = 1;
        assert_eq!(read(&v6), None);
    }
}
