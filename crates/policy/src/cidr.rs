//! Address ranges (CIDR), and the special ranges: they lead to this host, its neighbours or its cloud, never to the
//! public network.

use crate::path::PathRefusal;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range in CIDR form; the bits past the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr(IpNet);

impl Cidr {
    pub fn parse(text: &str) -> Result<Cidr, PathRefusal> {
        let bad =
            || PathRefusal::new(format!("{text:?} is not a range of addresses")).hint("such as 10.0.0.0/8 or fd00::/8");
        let Some((addr, prefix)) = text.split_once('/') else {
            return match text.parse::<IpAddr>() {
                Ok(addr) => Err(PathRefusal::new(format!("{text:?} has no prefix length"))
                    .hint(format!("write \"{addr}/{}\"", width(addr)))),
                Err(_) => Err(bad()),
            };
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let plain = !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = match prefix.parse() {
            Ok(prefix) if plain && prefix <= width(addr) => prefix,
            _ => {
                return Err(PathRefusal::new(format!("{text:?} has a bad prefix length"))
                    .hint(format!("it goes from 0 to {}", width(addr))));
            }
        };
        if addr.to_canonical() != addr {
            return Err(PathRefusal::new(format!("{text:?} maps IPv4 into IPv6")).hint("write the IPv4 range itself"));
        }
        let cidr = Cidr::new(addr, prefix);
        match cidr.0.addr() == addr {
            true => Ok(cidr),
            false => Err(PathRefusal::new(format!("{text:?} has bits set past the prefix"))
                .hint(format!("write \"{cidr}\" for the range or \"{addr}/{}\" for the address", width(addr)))),
        }
    }

    /// Returns the range of `prefix` bits that holds `addr`; a longer prefix than the family has is the address itself.
    pub fn new(addr: IpAddr, prefix: u8) -> Cidr {
        Cidr(IpNet::new(addr, prefix).unwrap_or(IpNet::from(addr)).trunc())
    }

    /// Returns the one address as a range.
    pub fn of(addr: IpAddr) -> Cidr {
        Cidr(addr.into())
    }

    /// Returns the only address of the range, where there is only one.
    pub fn single(&self) -> Option<IpAddr> {
        (self.0.prefix_len() == self.0.max_prefix_len()).then_some(self.0.addr())
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(&addr)
    }

    /// Returns whether every address of `other` is in this range.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns true if the range lies inside a special one, so that a rule that names it covers special addresses.
    pub fn is_special(&self) -> bool {
        special_ranges().any(|special| special.covers(self)) || self.embedded().is_some_and(|inner| inner.is_special())
    }

    /// Returns the IPv4 range embedded in this IPv6 range: NAT64, 6to4 and translated forms carry one.
    fn embedded(&self) -> Option<Cidr> {
        let IpNet::V6(v6) = self.0 else {
            return None;
        };
        let prefix = v6.prefix_len();
        let (shift, skip) = match v6.addr().segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] if prefix >= 96 => (0, 96),
            [0x2002, ..] if prefix >= 16 => (80, 16),
            _ => return None,
        };
        let inner = Ipv4Addr::from_bits((v6.addr().to_bits() >> shift) as u32);
        Some(Cidr::new(inner.into(), (prefix - skip).min(32)))
    }
}

/// Returns true for a special address: only a rule that names a range inside the special ones covers it.
pub fn is_special(addr: IpAddr) -> bool {
    Cidr::of(addr.to_canonical()).is_special()
}

/// Returns the address and, if it embeds an IPv4 address, that one too: a denial of either holds.
pub(crate) fn with_embedded(addr: IpAddr) -> impl Iterator<Item = IpAddr> {
    let addr = addr.to_canonical();
    std::iter::once(addr).chain(Cidr::of(addr).embedded().map(|inner| inner.0.addr()))
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Special ranges with the reason for each.
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
    let v4 = SPECIAL_V4.iter().map(|(addr, prefix, _)| Ipv4Net::new_assert(Ipv4Addr::from(*addr), *prefix).into());
    let v6 = SPECIAL_V6.iter().map(|(addr, prefix, _)| Ipv6Net::new_assert(Ipv6Addr::from(*addr), *prefix).into());
    v4.chain(v6).map(Cidr)
}

/// Returns the special ranges with their reasons, for the reference.
pub(crate) fn special_table() -> impl Iterator<Item = (String, &'static str)> {
    let reasons = SPECIAL_V4.iter().map(|row| row.2).chain(SPECIAL_V6.iter().map(|row| row.2));
    special_ranges().map(|cidr| cidr.to_string()).zip(reasons)
}

fn width(addr: IpAddr) -> u8 {
    IpNet::from(addr).max_prefix_len()
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
    fn ranges_hold_what_their_prefix_says() {
        let new = |addr: &str, prefix| Cidr::new(addr.parse().unwrap(), prefix).to_string();
        assert_eq!(new("10.1.2.3", 8), "10.0.0.0/8");
        assert_eq!(new("10.1.2.3", 31), "10.1.2.2/31");
        assert_eq!(new("255.255.255.255", 0), "0.0.0.0/0");
        assert_eq!(new("10.1.2.3", 200), "10.1.2.3/32");
        assert_eq!(new("2001:db8:ffff::1", 33), "2001:db8:8000::/33");
        assert_eq!(new("::1", 255), "::1/128");
        for (range, inside, outside) in [
            ("0.0.0.0/0", &["0.0.0.0/0", "255.255.255.255/32"][..], &["::/0", "::1/128"][..]),
            ("::/0", &["::/0", "ffff::/16"], &["0.0.0.0/0", "10.0.0.0/8"]),
            ("10.0.0.0/8", &["10.0.0.0/8", "10.255.255.255/32"], &["0.0.0.0/0", "8.0.0.0/6", "11.0.0.0/8"]),
            ("10.0.0.4/31", &["10.0.0.4/32", "10.0.0.5/32"], &["10.0.0.4/30", "10.0.0.6/32"]),
            ("10.0.0.4/32", &["10.0.0.4/32"], &["10.0.0.4/31", "10.0.0.5/32"]),
            ("fe80::/10", &["febf:ffff::/32"], &["fec0::/10", "fe00::/8"]),
            ("::1/128", &["::1/128"], &["::/127", "::/128"]),
        ] {
            let range = Cidr::parse(range).unwrap();
            let parsed = |texts: &[&str]| texts.iter().map(|t| Cidr::parse(t).unwrap()).collect::<Vec<_>>();
            for other in parsed(inside) {
                assert!(range.covers(&other), "{range} {other}");
                assert!(other.single().is_none_or(|addr| range.contains(addr)), "{range} {other}");
            }
            for other in parsed(outside) {
                assert!(!range.covers(&other), "{range} {other}");
                assert!(other.single().is_none_or(|addr| !range.contains(addr)), "{range} {other}");
            }
        }
        assert!(!Cidr::parse("127.0.0.0/8").unwrap().contains("::ffff:127.0.0.1".parse().unwrap()));
        let single = |text: &str| Cidr::parse(text).unwrap().single();
        assert_eq!((single("10.0.0.4/31"), single("::/127")), (None, None));
        assert_eq!(single("10.0.0.4/32"), Some("10.0.0.4".parse().unwrap()));
        let mut sorted = ["::/0", "10.0.0.0/16", "9.0.0.0/8", "10.0.0.0/8"].map(|t| Cidr::parse(t).unwrap());
        sorted.sort();
        assert_eq!(sorted.map(|c| c.to_string()), ["9.0.0.0/8", "10.0.0.0/8", "10.0.0.0/16", "::/0"]);
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
