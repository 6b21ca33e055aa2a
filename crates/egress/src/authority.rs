//! The authority part of a URL, `host[:port]`, as in a request target or a Host field. Both use one parser, so that the
//! two can be compared.

use policy::HostName;

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`. Returns `None` for userinfo, an empty or non-canonical port, and
/// any host that the policy rejects.
pub(crate) fn parse(text: &str) -> Option<(HostName, Option<u16>)> {
    let name_end = match text.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at_checked(name_end)?;
    let port = match rest.strip_prefix(':') {
        Some(digits) => Some(port(digits)?),
        None if rest.is_empty() => None,
        None => return None,
    };
    Some((HostName::parse(host).ok()?, port))
}

/// Parses a port from 1 to 65535 without sign or leading zeros.
fn port(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn taken() {
        for (text, host, at) in [
            ("Example.org", "example.org", None),
            ("example.org.:80", "example.org", Some(80)),
            ("192.0.2.1:65535", "192.0.2.1", Some(65535)),
            ("[2001:DB8::1]", "[2001:db8::1]", None),
            ("[::ffff:192.0.2.1]:1", "192.0.2.1", Some(1)),
        ] {
            assert_eq!(parse(text).map(|(h, p)| (h.to_string(), p)), Some((host.to_owned(), at)), "{text}");
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            ":80",
            "a:",
            "a:0",
            "a:080",
            "a:+80",
            "a:65536",
            "a:80:80",
            "a:8o",
            "::1",
            "[::1",
            "[::1]80",
            "[::1]]",
            "[example.org]",
            "[1.2.3.4]",
            "[]",
            "u@a",
            "u:p@a",
            "a b",
            "a,b",
            "a/b",
            "127.1",
            "é",
            "[é]",
            "[fe80::1%1]",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
