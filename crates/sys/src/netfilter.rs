//! The packet rules of a guest with doors, as one nf_tables batch.
//!
//! Packets pass the rules once, when they arrive on loopback. Packets of the supervisor (by their mark) and between the
//! guest's own addresses are accepted; TCP and UDP to other addresses are redirected to our sockets by `tproxy`, which
//! changes no packet and keeps no state, so there is no connection table that could fill up; other packets are dropped.
//! A SYN is dropped too, unless we reinjected it: the guest's own SYN was captured by then (see `syn_capture`), and is
//! pending.

use crate::doors::{CATCH_ALL_PORT, DNS_PORT, MARK, MARK_REINJECTED, OWN_V4, OWN_V6};
use crate::netlink::{APPEND, CREATE, MessageBatch, attribute, nest};
use crate::syn_capture::{ACK, FLAGS, SYN};
use std::net::{IpAddr, SocketAddr};

const TABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = TABLES << 8;
const NEW_CHAIN: u16 = TABLES << 8 | 3;
const NEW_RULE: u16 = TABLES << 8 | 6;

const TABLE: &[u8] = b"cofferdam\0";
const CHAIN: &[u8] = b"doors\0";
/// The prerouting hook, before routing; a priority of its own among the usual ones.
const PREROUTING: u32 = 0;
const PRIORITY: i32 = -150;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

const META_MARK: u32 = 3;
const META_PROTOCOL: u32 = 16;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

const TCP: &[u8] = &[libc::IPPROTO_TCP as u8];
const UDP: &[u8] = &[libc::IPPROTO_UDP as u8];
/// The destination port of TCP and UDP.
const TO_PORT: Expr = Expr::Payload { base: TRANSPORT, offset: 2, len: 2 };
/// The TCP flags, which distinguish a SYN.
const FLAGS_READ: Expr = Expr::Payload { base: TRANSPORT, offset: FLAGS as u32, len: 1 };
const SYN_ACK_BITS: Expr = Expr::Bits(SYN | ACK);

/// An expression of a rule. Values are loaded into and compared in the first register unless stated otherwise.
#[derive(Clone, Copy)]
enum Expr<'a> {
    Meta(u32),
    Payload {
        base: u32,
        offset: u32,
        len: u32,
    },
    Is(&'a [u8]),
    IsNot(&'a [u8]),
    /// Masks the first byte.
    Bits(u8),
    Load(u32, &'a [u8]),
    Tproxy(u8),
    Accept,
    Drop,
}

/// Parameters that differ between IPv4 and IPv6.
struct IpVersion {
    family: u8,
    /// Offset of the destination address in the IP header.
    destination: u32,
    /// Prefix of a destination on the guest's own loopback.
    loopback: Vec<u8>,
    own: Vec<u8>,
}

/// Builds the batch. `places` are the addresses on the guest's loopback that lead outside.
pub fn rules(ipv6: bool, places: &[SocketAddr]) -> Vec<u8> {
    let mut batch = MessageBatch::default();
    batch.silent(BATCH_BEGIN, |out| out.extend(family_header(0, TABLES)));
    version_rules(&mut batch, &v4(), places.iter().filter(|place| place.is_ipv4()));
    if ipv6 {
        version_rules(&mut batch, &v6(), places.iter().filter(|place| place.is_ipv6()));
    }
    batch.silent(BATCH_END, |out| out.extend(family_header(0, TABLES)));
    batch.finish()
}

fn v4() -> IpVersion {
    IpVersion { family: libc::NFPROTO_IPV4 as u8, destination: 16, loopback: vec![127], own: OWN_V4.octets().to_vec() }
}

fn v6() -> IpVersion {
    IpVersion {
        family: libc::NFPROTO_IPV6 as u8,
        destination: 24,
        loopback: std::net::Ipv6Addr::LOCALHOST.octets().to_vec(),
        own: OWN_V6.octets().to_vec(),
    }
}

fn version_rules<'a>(batch: &mut MessageBatch, version: &IpVersion, places: impl Iterator<Item = &'a SocketAddr>) {
    table_and_chain(batch, version.family);
    let (mark, again) = (MARK.to_ne_bytes(), MARK_REINJECTED.to_ne_bytes());
    rule(batch, version.family, &[Expr::Meta(META_MARK), Expr::Is(&mark), Expr::Accept]);
    let to = |destination: &[u8]| Expr::Payload {
        base: NETWORK,
        offset: version.destination,
        len: destination.len() as u32,
    };
    for place in places {
        let (address, port) = (octets(place.ip()), place.port().to_be_bytes());
        let mut list = vec![Expr::Meta(META_MARK), Expr::IsNot(&again), to(&address), Expr::Is(&address)];
        list.extend([Expr::Meta(META_PROTOCOL), Expr::Is(TCP), TO_PORT, Expr::Is(&port)]);
        list.extend([FLAGS_READ, SYN_ACK_BITS, Expr::Is(&[SYN]), Expr::Drop]);
        rule(batch, version.family, &list);
    }
    for destination in [&version.loopback, &version.own] {
        rule(batch, version.family, &[to(destination), Expr::Is(destination), Expr::Accept]);
    }
    to_door(batch, version, TCP, &[FLAGS_READ, SYN_ACK_BITS, Expr::IsNot(&[SYN])], CATCH_ALL_PORT);
    to_door(batch, version, TCP, &[Expr::Meta(META_MARK), Expr::Is(&again)], CATCH_ALL_PORT);
    to_door(batch, version, UDP, &[TO_PORT, Expr::Is(&DNS_PORT.to_be_bytes())], DNS_PORT);
    to_door(batch, version, UDP, &[], CATCH_ALL_PORT);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Redirects packets of a protocol that match the conditions to our socket at port `door`.
fn to_door(batch: &mut MessageBatch, version: &IpVersion, protocol: &[u8], conditions: &[Expr], door: u16) {
    let door = door.to_be_bytes();
    let mut list = vec![Expr::Meta(META_PROTOCOL), Expr::Is(protocol)];
    list.extend_from_slice(conditions);
    list.extend([Expr::Load(1, &version.own), Expr::Load(2, &door), Expr::Tproxy(version.family), Expr::Accept]);
    rule(batch, version.family, &list);
}

fn family_header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn number(out: &mut Vec<u8>, kind: u16, value: u32) {
    attribute(out, kind, &value.to_be_bytes());
}

fn table_and_chain(batch: &mut MessageBatch, family: u8) {
    batch.message(NEW_TABLE, CREATE, |out| {
        out.extend(family_header(family, 0));
        attribute(out, 1, TABLE);
        number(out, 2, 0);
    });
    batch.message(NEW_CHAIN, CREATE, |out| {
        out.extend(family_header(family, 0));
        attribute(out, 1, TABLE);
        attribute(out, 3, CHAIN);
        attribute(out, 7, b"filter\0");
        number(out, 5, DROP);
        nest(out, 4, |out| {
            number(out, 1, PREROUTING);
            number(out, 2, PRIORITY as u32);
        });
    });
}

fn rule(batch: &mut MessageBatch, family: u8, list: &[Expr]) {
    batch.message(NEW_RULE, CREATE | APPEND, |out| {
        out.extend(family_header(family, 0));
        attribute(out, 1, TABLE);
        attribute(out, 2, CHAIN);
        nest(out, 4, |out| list.iter().for_each(|one| expression(out, one)));
    });
}

fn expression(out: &mut Vec<u8>, one: &Expr) {
    let name: &[u8] = match one {
        Expr::Meta(_) => b"meta\0",
        Expr::Payload { .. } => b"payload\0",
        Expr::Is(_) | Expr::IsNot(_) => b"cmp\0",
        Expr::Bits(_) => b"bitwise\0",
        Expr::Load(..) | Expr::Accept | Expr::Drop => b"immediate\0",
        Expr::Tproxy(_) => b"tproxy\0",
    };
    nest(out, 1, |out| {
        attribute(out, 1, name);
        nest(out, 2, |out| arguments(out, one));
    });
}

fn arguments(out: &mut Vec<u8>, one: &Expr) {
    match one {
        Expr::Meta(key) => {
            number(out, 2, *key);
            number(out, 1, 1);
        }
        Expr::Payload { base, offset, len } => {
            number(out, 1, 1);
            number(out, 2, *base);
            number(out, 3, *offset);
            number(out, 4, *len);
        }
        Expr::Is(value) | Expr::IsNot(value) => {
            number(out, 1, 1);
            number(out, 2, u32::from(matches!(one, Expr::IsNot(_))));
            nest(out, 3, |out| attribute(out, 1, value));
        }
        Expr::Bits(mask) => {
            number(out, 1, 1);
            number(out, 2, 1);
            number(out, 3, 1);
            nest(out, 4, |out| attribute(out, 1, &[*mask]));
            nest(out, 5, |out| attribute(out, 1, &[0]));
        }
        Expr::Load(register, value) => {
            number(out, 1, *register);
            nest(out, 2, |out| attribute(out, 1, value));
        }
        Expr::Tproxy(family) => {
            number(out, 1, u32::from(*family));
            number(out, 2, 1);
            number(out, 3, 2);
        }
        Expr::Accept | Expr::Drop => {
            let verdict = if matches!(one, Expr::Accept) { ACCEPT } else { DROP };
            number(out, 1, 0);
            nest(out, 2, |out| nest(out, 2, |out| number(out, 1, verdict)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `nft` sends for `udp dport 53 tproxy to 192.0.0.8:53 accept`.
    const DNS_RULE: &[u8] = b"\x24\x00\x01\x80\x09\x00\x01\x00meta\x00\x00\x00\x00\x14\x00\x02\x80\x08\x00\x02\x00\
        \x00\x00\x00\x10\x08\x00\x01\x00\x00\x00\x00\x01\x2c\x00\x01\x80\x08\x00\x01\x00cmp\x00\x20\x00\x02\x80\x08\
        \x00\x01\x00\x00\x00\x00\x01\x08\x00\x02\x00\x00\x00\x00\x00\x0c\x00\x03\x80\x05\x00\x01\x00\x11\x00\x00\x00\
        \x34\x00\x01\x80\x0c\x00\x01\x00payload\x00\x24\x00\x02\x80\x08\x00\x01\x00\x00\x00\x00\x01\x08\x00\x02\x00\
        \x00\x00\x00\x02\x08\x00\x03\x00\x00\x00\x00\x02\x08\x00\x04\x00\x00\x00\x00\x02\x2c\x00\x01\x80\x08\x00\x01\
        \x00cmp\x00\x20\x00\x02\x80\x08\x00\x01\x00\x00\x00\x00\x01\x08\x00\x02\x00\x00\x00\x00\x00\x0c\x00\x03\x80\
        \x06\x00\x01\x00\x00\x35\x00\x00\x2c\x00\x01\x80\x0e\x00\x01\x00immediate\x00\x00\x00\x18\x00\x02\x80\x08\x00\
        \x01\x00\x00\x00\x00\x01\x0c\x00\x02\x80\x08\x00\x01\x00\xc0\x00\x00\x08\x2c\x00\x01\x80\x0e\x00\x01\x00\
        immediate\x00\x00\x00\x18\x00\x02\x80\x08\x00\x01\x00\x00\x00\x00\x02\x0c\x00\x02\x80\x06\x00\x01\x00\x00\x35\
        \x00\x00\x2c\x00\x01\x80\x0b\x00\x01\x00tproxy\x00\x00\x1c\x00\x02\x80\x08\x00\x01\x00\x00\x00\x00\x02\x08\
        \x00\x02\x00\x00\x00\x00\x01\x08\x00\x03\x00\x00\x00\x00\x02\x30\x00\x01\x80\x0e\x00\x01\x00immediate\x00\x00\
        \x00\x1c\x00\x02\x80\x08\x00\x01\x00\x00\x00\x00\x00\x10\x00\x02\x80\x0c\x00\x02\x80\x08\x00\x01\x00\x00\x00\
        \x00\x01";

    #[test]
    fn a_rule_is_what_nft_sends() {
        let all = rules(true, &[]);
        if cfg!(target_endian = "little") {
            assert!(all.windows(DNS_RULE.len()).any(|part| part == DNS_RULE));
        }
    }

    #[test]
    fn a_place_on_loopback_is_one_more_rule_for_its_protocol() {
        let count = |bytes: Vec<u8>| bytes.windows(6).filter(|part| *part == b"doors\0").count();
        let places = [SocketAddr::from(([127, 0, 0, 1], 80)), "[::1]:80".parse().unwrap()];
        assert_eq!(count(rules(false, &places)), count(rules(false, &[])) + 1);
        assert_eq!(count(rules(true, &places)), count(rules(true, &[])) + 2);
    }
}
