//! Ranges of addresses, and which of them are special: they lead to this host, its neighbours or its cloud,
//! never to the public network.

use crate::path::Refusal;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range in CIDR form; the bits past the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    addr: IpAddr,
    prefix: u8,
}

impl Cidr {
    pub fn parse(text: &str) -> Result<Cidr, Refusal> {
        let bad =
            || Refusal::new(format!("{text:?} is not a range of addresses")).hint("such as 10.0.0.0/8 or fd00::/8");
        let Some((addr, prefix)) = text.split_once('/') else {
            return match text.parse::<IpAddr>() {
                Ok(addr) => Err(Refusal::new(format!("{text:?} has no prefix length"))
                    .hint(format!("write \"{addr}/{}\"", width(addr)))),
                Err(_) => Err(bad()),
            };
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let plain = !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = match prefix.parse() {
            Ok(prefix) if plain && prefix <= width(addr) => prefix,
            _ => {
                return Err(Refusal::new(format!("{text:?} has a bad prefix length"))
                    .hint(format!("it goes from 0 to {}", width(addr))));
            }
        };
        if addr.to_canonical() != addr {
            return Err(Refusal::new(format!("{text:?} maps IPv4 into IPv6")).hint("write the IPv4 range itself"));
        }
        let cidr = Cidr::new(addr, prefix);
        match cidr.addr == addr {
            true => Ok(cidr),
            false => Err(Refusal::new(format!("{text:?} has bits set past the prefix"))
                .hint(format!("write \"{cidr}\" for the range or \"{addr}/{}\" for the address", width(addr)))),
        }
    }

    /// The range of `prefix` bits that holds `addr`.
    pub fn new(addr: IpAddr, prefix: u8) -> Cidr {
        let prefix = prefix.min(width(addr));
        let addr = match addr {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & mask32(prefix)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & mask128(prefix)).into(),
        };
        Cidr { addr, prefix }
    }

    /// The one address as a range.
    pub fn of(addr: IpAddr) -> Cidr {
        Cidr { addr, prefix: width(addr) }
    }

    /// The only address of the range, where there is only one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.prefix == width(self.addr)).then_some(self.addr)
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        self.covers(&Cidr::of(addr))
    }

    /// Whether every address of `other` is in this range.
    pub fn covers(&self, other: &Cidr) -> bool {
        same_family(self.addr, other.addr) && self.prefix <= other.prefix && Cidr::new(other.addr, self.prefix) == *self
    }

    /// Whether the range lies inside a special one, so that naming it means it.
    pub fn is_special(&self) -> bool {
        special_ranges().any(|special| special.covers(self)) || self.embedded().is_some_and(|inner| inner.is_special())
    }

    /// The IPv4 range that this IPv6 range translates to: NAT64, 6to4 and translated forms carry one inside.
    fn embedded(&self) -> Option<Cidr> {
        let IpAddr::V6(v6) = self.addr else {
            return None;
        };
        let bits = v6.to_bits();
        let (shift, skip) = match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] if self.prefix >= 96 => (0, 96),
            [0x2002, ..] if self.prefix >= 16 => (80, 16),
            _ => return None,
        };
        let inner = Ipv4Addr::from_bits((bits >> shift) as u32);
        Some(Cidr::new(inner.into(), (self.prefix - skip).min(32)))
    }
}

/// Whether an address is special: only a rule that names a range inside the special ones covers it.
pub fn is_special(addr: IpAddr) -> bool {
    Cidr::of(addr.to_canonical()).is_special()
}

/// The address and, when it carries another inside, that one too: a denial of either holds.
pub(crate) fn faces(addr: IpAddr) -> impl Iterator<Item = IpAddr> {
    let addr = addr.to_canonical();
    std::iter::once(addr).chain(Cidr::of(addr).embedded().map(|inner| inner.addr))
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

/// Each range with why it is special.
const SPECIAL_V4: [([u8; 4], u8, &str); 16] = [
    ([0, 0, 0, 0], 8, "this host"),
    ([10, 0, 0, 0], 8, "private"),
    ([100, 64, 0, 0], 10, "carrier NAT, and metadata of one cloud"),
    ([127, 0, 0, 0], 8, "loopback"),
    ([168, 63, 129, 16], 32, "platform service of one cloud, on a public address"),
    ([169, 254, 0, 0], 16, "link-local, and metadata of most clouds"),
    ([172, 16, 0, 0], 12, "private"),
    ([192, 0, 0, 0], 24, "protocol assignments, and metadata of one cloud"),
    ([192, 0, 2, 0], 24, "documentation"),
    ([192, 88, 99, 0], 24, "6to4 relays"),
    ([192, 168, 0, 0], 16, "private"),
    ([198, 18, 0, 0], 15, "benchmarks"),
    ([198, 51, 100, 0], 24, "documentation"),
    ([203, 0, 113, 0], 24, "documentation"),
    ([224, 0, 0, 0], 4, "multicast"),
    ([240, 0, 0, 0], 4, "reserved, and broadcast"),
];

const SPECIAL_V6: [([u16; 8], u8, &str); 9] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 16, "unspecified, loopback, and IPv4 inside IPv6 as it was once written"),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "NAT64 of the local network"),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, "discard"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "protocol assignments, Teredo"),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "documentation"),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "private, and metadata of one cloud"),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "link-local"),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, "site-local"),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "multicast"),
];

fn special_ranges() -> impl Iterator<Item = Cidr> {
    let v4 = SPECIAL_V4.iter().map(|(addr, prefix, _)| Cidr { addr: Ipv4Addr::from(*addr).into(), prefix: *prefix });
    let v6 = SPECIAL_V6.iter().map(|(addr, prefix, _)| Cidr { addr: Ipv6Addr::from(*addr).into(), prefix: *prefix });
    v4.chain(v6)
}

/// The special ranges with their reasons, for the reference.
pub(crate) fn special_table() -> impl Iterator<Item = (String, &'static str)> {
    let reasons = SPECIAL_V4.iter().map(|row| row.2).chain(SPECIAL_V6.iter().map(|row| row.2));
    special_ranges().map(|cidr| cidr.to_string()).zip(reasons)
}

fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

fn mask32(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask128(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reading() {
        assert_eq!(Cidr::parse("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(Cidr::parse("::/0").unwrap().to_string(), "::/0");
        for (text, message) in [
            ("10.0.0.1/8", "\"10.0.0.1/8\" has bits set past the prefix"),
            ("10.0.0.0", "\"10.0.0.0\" has no prefix length"),
            ("10.0.0.0/33", "\"10.0.0.0/33\" has a bad prefix length"),
            ("10.0.0.0/", "\"10.0.0.0/\" has a bad prefix length"),
            ("10.0.0.0/+8", "\"10.0.0.0/+8\" has a bad prefix length"),
            ("10/8", "\"10/8\" is not a range of addresses"),
            ("", "\"\" is not a range of addresses"),
            ("::ffff:10.0.0.0/104", "\"::ffff:10.0.0.0/104\" maps IPv4 into IPv6"),
        ] {
            assert_eq!(Cidr::parse(text).unwrap_err().message, message);
        }
    }

    #[test]
    fn special() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "192.168.1.1",
            "172.31.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "::ffff:0:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:0:a9fe:a9fe",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:1::1",
        ] {
            assert!(is_special(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"] {
            assert!(!is_special(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn ranges_inside_special_ones() {
        for (text, special) in [
            ("10.0.0.0/8", true),
            ("10.1.0.0/16", true),
            ("127.0.0.1/32", true),
            ("fd00::/8", true),
            ("64:ff9b::a00:0/104", true),
            ("0.0.0.0/0", false),
            ("172.0.0.0/8", false),
            ("::/0", false),
            ("64:ff9b::/96", false),
        ] {
            assert_eq!(Cidr::parse(text).unwrap().is_special(), special, "{text}");
        }
    }
}
