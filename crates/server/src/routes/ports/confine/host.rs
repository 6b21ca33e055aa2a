//! Parses the host of a URL as clients do: many spellings mean one address, and comparing texts would miss most of them. A host that
//! clients may read in different ways is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names of the local machine, besides those below `localhost`.
const SELF: [&str; 5] = ["localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"];

#[derive(Debug, PartialEq, Eq)]
pub enum UrlHost {
    Address(IpAddr),
    /// In lower case, without the trailing dot.
    Name(String),
}

impl UrlHost {
    /// Parses a host; none for escapes, and for numbers that are not an address.
    pub fn parse(text: &str) -> Option<UrlHost> {
        if let Some(inner) = text.strip_prefix('[') {
            let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
            return Some(UrlHost::Address(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)));
        }
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if name.is_empty() || !name.bytes().all(plain) || name.split('.').any(is_disguised) {
            return None;
        }
        match name.rsplit('.').next().is_some_and(is_number) {
            true => ipv4(&name).map(|address| UrlHost::Address(address.into())),
            false => Some(UrlHost::Name(name)),
        }
    }

    /// Returns true for the local machine. A connection to an unspecified address also reaches it.
    pub fn is_self(&self) -> bool {
        match self {
            UrlHost::Address(address) => address.is_loopback() || address.is_unspecified(),
            UrlHost::Name(name) => SELF.contains(&name.as_str()) || name.ends_with(".localhost"),
        }
    }
}

/// Returns true for a punycode label without non-ASCII characters, which some clients decode.
fn is_disguised(label: &str) -> bool {
    label.strip_prefix("xn--").is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
}

/// Returns true for a last label with which a name is parsed as an IPv4 address.
fn is_number(label: &str) -> bool {
    let is_hex = label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    is_hex || !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit())
}

/// Parses one to four numbers; the last fills all remaining bytes.
fn ipv4(name: &str) -> Option<Ipv4Addr> {
    let numbers: Vec<u32> = name.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = numbers.split_last()?;
    let left = 32 - 8 * u32::try_from(first.len()).ok().filter(|count| *count < 4)?;
    let fits = first.iter().all(|part| *part < 256) && u64::from(*last) < 1 << left;
    let above = first.iter().fold(0u64, |sum, part| sum << 8 | u64::from(*part)) << left;
    fits.then(|| Ipv4Addr::from_bits(above as u32 | last))
}

/// Parses a decimal, octal (`0`) or hexadecimal (`0x`) number; `0x` alone is zero.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (text, 10),
    };
    match digits.is_empty() && radix != 10 {
        true => Some(0),
        false => u32::from_str_radix(digits, radix).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_address_are_one() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("127.0.1.", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("0x7F.1", "127.0.0.1"),
            ("0x7f000001", "127.0.0.1"),
            ("017700000001", "127.0.0.1"),
            ("0177.0.0x0.01", "127.0.0.1"),
            ("0", "0.0.0.0"),
            ("0x", "0.0.0.0"),
            ("255.255.65535", "255.255.255.255"),
            ("192.0.2.7", "192.0.2.7"),
            ("[0:0:0:0:0:0:0:1]", "::1"),
            ("[::ffff:7f00:1]", "127.0.0.1"),
            ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ] {
            assert_eq!(UrlHost::parse(text), Some(UrlHost::Address(address.parse().unwrap())), "{text}");
        }
        for text in ["", ".", "1.2.3.4.5", "127.0.0.256", "256.1", "4294967296", "08", "a.1", "1..2", "127%2e1"] {
            assert_eq!(UrlHost::parse(text), None, "{text}");
        }
        for text in ["[::1", "[::1%251]", "[fe80::1%eth0]", "xn--localhost-", "local host", "a,b", "[]", "a.0x"] {
            assert_eq!(UrlHost::parse(text), None, "{text}");
        }
        for (text, name) in
            [("BOX.example.", "box.example"), ("1.example", "1.example"), ("xn--bcher-kva", "xn--bcher-kva")]
        {
            assert_eq!(UrlHost::parse(text), Some(UrlHost::Name(name.to_owned())), "{text}");
        }
    }

    /// The `url` crate reads a host as browsers do. A host that both accept is the same to both; the rest is refused here, and `url`
    /// accepts more than is safe: it decodes escapes and folds other scripts, which not every client does.
    #[test]
    fn a_host_is_read_as_the_url_standard_reads_it() {
        const LABELS: [&str; 22] = [
            "",
            "0",
            "1",
            "127",
            "255",
            "256",
            "65535",
            "4294967295",
            "4294967296",
            "017",
            "08",
            "0x",
            "0x7f",
            "0X7F",
            "0xg",
            "a",
            "A",
            "a-b",
            "a_b",
            "1a",
            "xn--bcher-kva",
            "localhost",
        ];
        let numbers = &LABELS[..14];
        let mut texts: Vec<String> = Vec::new();
        for a in LABELS {
            texts.extend([a.to_owned(), format!("{a}.")]);
            for b in LABELS {
                texts.extend([format!("{a}.{b}"), format!("{a}.{b}.")]);
                texts.extend(LABELS.map(|c| format!("{a}.{b}.{c}")));
                let both = numbers.contains(&a) && numbers.contains(&b);
                let four = numbers.iter().filter(|_| both).map(|c| format!("{a}.{b}.{c}.{}", numbers[c.len() + 1]));
                texts.extend(four);
            }
        }
        for v6 in
            ["::", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:1", "2001:db8::7", "1::2::3", "::1%1"]
        {
            texts.push(format!("[{v6}]"));
        }
        // A host with two trailing dots does not resolve; here the dots are dropped, so that such an address counts as one.
        texts.retain(|text| !text.ends_with(".."));
        let (mut addresses, mut names) = (0, 0);
        for text in &texts {
            let standard = url::Host::parse(text);
            match (UrlHost::parse(text), standard) {
                (None, _) => {}
                (Some(UrlHost::Address(ours)), Ok(url::Host::Ipv4(theirs))) => {
                    assert_eq!(ours, IpAddr::V4(theirs), "{text}");
                    addresses += 1;
                }
                (Some(UrlHost::Address(ours)), Ok(url::Host::Ipv6(theirs))) => {
                    assert_eq!(ours, IpAddr::V6(theirs).to_canonical(), "{text}");
                    addresses += 1;
                }
                (Some(UrlHost::Name(ours)), Ok(url::Host::Domain(theirs))) => {
                    assert_eq!(ours, theirs.trim_end_matches('.'), "{text}");
                    names += 1;
                }
                // A name that the standard refuses cannot be reached.
                (Some(UrlHost::Name(_)), Err(_)) => {}
                (ours, theirs) => panic!("{text:?}: {ours:?}, and to the standard {theirs:?}"),
            }
        }
        assert!(addresses > 500 && names > 500, "both kinds are compared: {addresses} {names} of {}", texts.len());
        // Every address of the standard in plain digits and dots is accepted here.
        for text in texts.iter().filter(|text| !text.contains("..") && !text.starts_with('.')) {
            if let Ok(url::Host::Ipv4(theirs)) = url::Host::parse(text) {
                assert_eq!(UrlHost::parse(text), Some(UrlHost::Address(theirs.into())), "{text}");
            }
        }
    }
}
