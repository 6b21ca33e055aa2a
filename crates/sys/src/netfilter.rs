//! The packet rules of a guest with doors, as one nf_tables batch.
//!
//! Packets come by once, on their way in from loopback. Those of the supervisor (by their mark) and those between the
//! guest's own addresses pass; TCP and UDP to anywhere else are given to our sockets by `tproxy`, which changes no
//! packet and keeps no state, so there is no table of connections that could fill up; the rest is dropped.

use crate::doors::{CATCH_ALL_PORT, DNS_PORT, MARK, OWN_V4, OWN_V6};
use crate::netlink::{APPEND, Batch, CREATE, attribute, nest};

const TABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = TABLES << 8;
const NEW_CHAIN: u16 = TABLES << 8 | 3;
const NEW_RULE: u16 = TABLES << 8 | 6;

const TABLE: &[u8] = b"cofferdam\0";
const CHAIN: &[u8] = b"doors\0";
/// Where packets come in, before anything is done with them; a place of its own among the usual ones.
const PREROUTING: u32 = 0;
const PRIORITY: i32 = -150;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

const META_MARK: u32 = 3;
const META_PROTOCOL: u32 = 16;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

/// One expression of a rule. Values are compared in and loaded into the first register unless told otherwise.
enum Expr<'a> {
    Meta(u32),
    Payload { base: u32, offset: u32, len: u32 },
    Is(&'a [u8]),
    Load(u32, &'a [u8]),
    Tproxy(u8),
    Accept,
}

/// What differs between the two protocols.
struct Layer {
    family: u8,
    /// Where a packet's destination stands.
    destination: u32,
    /// How a destination on the guest's own loopback begins.
    loopback: Vec<u8>,
    own: Vec<u8>,
    control: u8,
}

/// The finished batch. With `ping` the guest's kernel answers echo requests to every address by itself.
pub fn rules(ipv6: bool, ping: bool) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.silent(BATCH_BEGIN, |out| out.extend(family_header(0, TABLES)));
    layer(&mut batch, &v4(), ping);
    if ipv6 {
        layer(&mut batch, &v6(), ping);
    }
    batch.silent(BATCH_END, |out| out.extend(family_header(0, TABLES)));
    batch.finish()
}

fn v4() -> Layer {
    Layer {
        family: libc::NFPROTO_IPV4 as u8,
        destination: 16,
        loopback: vec![127],
        own: OWN_V4.octets().to_vec(),
        control: libc::IPPROTO_ICMP as u8,
    }
}

fn v6() -> Layer {
    Layer {
        family: libc::NFPROTO_IPV6 as u8,
        destination: 24,
        loopback: std::net::Ipv6Addr::LOCALHOST.octets().to_vec(),
        own: OWN_V6.octets().to_vec(),
        control: libc::IPPROTO_ICMPV6 as u8,
    }
}

fn layer(batch: &mut Batch, layer: &Layer, ping: bool) {
    table_and_chain(batch, layer.family);
    let mark = MARK.to_ne_bytes();
    rule(batch, layer.family, &[Expr::Meta(META_MARK), Expr::Is(&mark), Expr::Accept]);
    for destination in [&layer.loopback, &layer.own] {
        let read = Expr::Payload { base: NETWORK, offset: layer.destination, len: destination.len() as u32 };
        rule(batch, layer.family, &[read, Expr::Is(destination), Expr::Accept]);
    }
    to_door(batch, layer, libc::IPPROTO_TCP, None, CATCH_ALL_PORT);
    to_door(batch, layer, libc::IPPROTO_UDP, Some(DNS_PORT), DNS_PORT);
    to_door(batch, layer, libc::IPPROTO_UDP, None, CATCH_ALL_PORT);
    if ping {
        rule(batch, layer.family, &[Expr::Meta(META_PROTOCOL), Expr::Is(&[layer.control]), Expr::Accept]);
    }
}

/// Gives a protocol's packets (only those to port `only`, where one is given) to our socket at `door`.
fn to_door(batch: &mut Batch, layer: &Layer, protocol: i32, only: Option<u16>, door: u16) {
    let (protocol, wanted, door) = ([protocol as u8], only.map(u16::to_be_bytes), door.to_be_bytes());
    let mut list = vec![Expr::Meta(META_PROTOCOL), Expr::Is(&protocol)];
    if let Some(port) = &wanted {
        list.extend([Expr::Payload { base: TRANSPORT, offset: 2, len: 2 }, Expr::Is(port)]);
    }
    list.extend([Expr::Load(1, &layer.own), Expr::Load(2, &door), Expr::Tproxy(layer.family), Expr::Accept]);
    rule(batch, layer.family, &list);
}

fn family_header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn number(out: &mut Vec<u8>, kind: u16, value: u32) {
    attribute(out, kind, &value.to_be_bytes());
}

fn table_and_chain(batch: &mut Batch, family: u8) {
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

fn rule(batch: &mut Batch, family: u8, list: &[Expr]) {
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
        Expr::Is(_) => b"cmp\0",
        Expr::Load(..) | Expr::Accept => b"immediate\0",
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
        Expr::Is(value) => {
            number(out, 1, 1);
            number(out, 2, 0);
            nest(out, 3, |out| attribute(out, 1, value));
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
        Expr::Accept => {
            number(out, 1, 0);
            nest(out, 2, |out| nest(out, 2, |out| number(out, 1, ACCEPT)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `nft` sends for `udp dport 53 tproxy to 192.0.0.8:53 accept`.
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
        let all = rules(true, false);
        if cfg!(target_endian = "little") {
            assert!(all.windows(DNS_RULE.len()).any(|part| part == DNS_RULE));
        }
    }

    #[test]
    fn ping_is_one_more_rule_for_each_protocol() {
        let count = |bytes: Vec<u8>| bytes.windows(6).filter(|part| *part == b"doors\0").count();
        assert_eq!(count(rules(false, true)), count(rules(false, false)) + 1);
        assert_eq!(count(rules(true, true)), count(rules(true, false)) + 2);
    }
}
