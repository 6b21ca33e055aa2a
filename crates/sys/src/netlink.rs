//! Netlink messages that configure a guest's network: built before the clone and only sent after it. Builders allocate
//! and run in the supervisor; `send` runs in the new namespace and does not allocate.

use crate::doors::{LOOPBACK, OWN_V4, OWN_V6, RESOLVER};
use crate::raw::kernel;
use std::os::fd::RawFd;

pub const ROUTE: i32 = libc::NETLINK_ROUTE;
pub const NETFILTER: i32 = libc::NETLINK_NETFILTER;

const HEADER: usize = 16;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
pub(crate) const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
pub(crate) const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;

/// Concatenated messages, as one `send` takes them.
#[derive(Default)]
pub(crate) struct MessageBatch {
    bytes: Vec<u8>,
    sequence: u32,
}

impl MessageBatch {
    /// Appends a message that the kernel acknowledges, on success and on failure.
    pub(crate) fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Vec<u8>)) {
        self.put(kind, flags | ACK, fill);
    }

    /// Appends a message without acknowledgement; the kernel replies only on failure.
    pub(crate) fn silent(&mut self, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
        self.put(kind, 0, fill);
    }

    fn put(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.sequence += 1;
        fill(&mut self.bytes);
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        pad(&mut self.bytes);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(crate) fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((value.len() as u16 + 4).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    pad(out);
}

pub(crate) fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 2]);
    out.extend((kind | NESTED).to_ne_bytes());
    fill(out);
    let len = (out.len() - start) as u16;
    out[start..start + 2].copy_from_slice(&len.to_ne_bytes());
}

/// Builds the routes: loopback up, with an address outside 127.0.0.0/8 and ::1, and a local route for every address: a
/// connection to any address arrives in the namespace itself, where the rules redirect it to a door.
///
/// Without the address the kernel would use the destination as the source, too, and a connection could be made to
/// itself.
pub fn routes(ipv6: bool) -> Vec<u8> {
    let mut batch = MessageBatch::default();
    link_up(&mut batch);
    let mut layers = vec![(libc::AF_INET as u8, OWN_V4.octets().to_vec())];
    if ipv6 {
        layers.push((libc::AF_INET6 as u8, OWN_V6.octets().to_vec()));
    }
    for (family, own) in layers {
        address(&mut batch, family, &own);
        local_default_route(&mut batch, family, &own);
    }
    batch.finish()
}

/// Builds the address of the name server of a guest without doors, on the guest's loopback. No other address gets a
/// route.
pub fn resolver_address() -> Vec<u8> {
    let mut batch = MessageBatch::default();
    address(&mut batch, libc::AF_INET as u8, &RESOLVER.octets());
    batch.finish()
}

fn link_up(batch: &mut MessageBatch) {
    batch.message(libc::RTM_NEWLINK, 0, |out| {
        out.extend([libc::AF_UNSPEC as u8, 0, 0, 0]);
        out.extend(LOOPBACK.to_ne_bytes());
        out.extend((libc::IFF_UP as u32).to_ne_bytes());
        out.extend((libc::IFF_UP as u32).to_ne_bytes());
    });
}

fn address(batch: &mut MessageBatch, family: u8, own: &[u8]) {
    const NO_DUPLICATE_CHECK: u8 = 2;
    batch.message(libc::RTM_NEWADDR, CREATE | EXCLUSIVE, |out| {
        out.extend([family, own.len() as u8 * 8, NO_DUPLICATE_CHECK, libc::RT_SCOPE_UNIVERSE]);
        out.extend(LOOPBACK.to_ne_bytes());
        attribute(out, libc::IFA_LOCAL, own);
        attribute(out, libc::IFA_ADDRESS, own);
    });
}

fn local_default_route(batch: &mut MessageBatch, family: u8, own: &[u8]) {
    // The kernel requires this scope for a local IPv4 route and ignores it for IPv6.
    let (table, scope) = (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST);
    batch.message(libc::RTM_NEWROUTE, CREATE | EXCLUSIVE, |out| {
        out.extend([family, 0, 0, 0, table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL]);
        out.extend([0; 4]);
        attribute(out, libc::RTA_PREFSRC, own);
        attribute(out, libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
    });
}

/// Sends a finished batch in this network namespace and reads every reply; returns the error number of the first
/// failure.
pub(crate) fn send(family: i32, batch: &[u8]) -> Result<(), i32> {
    // SAFETY: numbers only.
    let socket = unsafe { kernel!(SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, family) }?;
    let result = send_and_check(socket, batch);
    // SAFETY: opened above, with no other owner.
    let _ = unsafe { kernel!(SYS_close, socket) };
    result
}

fn send_and_check(socket: RawFd, batch: &[u8]) -> Result<(), i32> {
    // SAFETY: a buffer with its true length. An unconnected netlink socket sends to the kernel.
    let sent = unsafe { kernel!(SYS_sendto, socket, batch.as_ptr(), batch.len(), 0, 0, 0) }?;
    if sent as usize != batch.len() {
        return Err(libc::EMSGSIZE);
    }
    let mut missing = acks_due(batch);
    let mut answer = [0u8; 1024];
    while missing > 0 {
        // The kernel has replied before `send` returned: a reply that is not here will never come.
        // SAFETY: a buffer with its true length.
        let got =
            unsafe { kernel!(SYS_recvfrom, socket, answer.as_mut_ptr(), answer.len(), libc::MSG_DONTWAIT, 0, 0) }?;
        match verdict(answer.get(..got as usize).unwrap_or(&[])) {
            Some(0) => missing -= 1,
            Some(errno) => return Err(errno),
            None => return Err(libc::EPROTO),
        }
    }
    Ok(())
}

/// Counts the messages of a batch that ask for an acknowledgement.
fn acks_due(batch: &[u8]) -> usize {
    let (mut rest, mut due) = (batch, 0);
    while let (Some(len), Some(flags)) = (word(rest, 0), half(rest, 6)) {
        due += usize::from(flags & ACK != 0);
        rest = rest.get((len as usize).max(HEADER).next_multiple_of(4)..).unwrap_or(&[]);
    }
    due
}

/// Returns the error number (0: success) in a reply; `None` if the reply is something else.
fn verdict(answer: &[u8]) -> Option<i32> {
    let kind = half(answer, 4)?;
    if kind != libc::NLMSG_ERROR as u16 {
        return None;
    }
    word(answer, HEADER).map(|code| (code as i32).wrapping_neg())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_asks_is_counted() {
        assert_eq!(acks_due(&routes(false)), 3);
        assert_eq!(acks_due(&routes(true)), 5);
        assert_eq!(acks_due(&[]), 0);
        // Wrong lengths neither loop forever nor read beyond the end.
        assert_eq!(acks_due(&[0; 16]), 0);
        assert_eq!(acks_due(&[255; 16]), 1);
    }

    #[test]
    fn the_route_is_what_ip_sends() {
        // `ip route add local default dev lo src 192.0.0.8 table local proto static`
        let expected = [
            44, 0, 0, 0, 24, 0, 5, 6, 2, 0, 0, 0, 0, 0, 0, 0, // header
            2, 0, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0, // the route
            8, 0, 7, 0, 192, 0, 0, 8, 8, 0, 4, 0, 1, 0, 0, 0, // source, interface
        ];
        if cfg!(target_endian = "little") {
            assert!(routes(false).ends_with(&expected));
        }
    }

    #[test]
    fn an_answer_is_read() {
        let answer = |code: i32| {
            let mut bytes = [0u8; 20];
            bytes[4..6].copy_from_slice(&2u16.to_ne_bytes());
            bytes[16..].copy_from_slice(&code.to_ne_bytes());
            bytes
        };
        assert_eq!(verdict(&answer(0)), Some(0));
        assert_eq!(verdict(&answer(-libc::EPERM)), Some(libc::EPERM));
        assert_eq!(verdict(&answer(0)[..16]), None);
        assert_eq!(verdict(&[0; 20]), None);
    }
}
