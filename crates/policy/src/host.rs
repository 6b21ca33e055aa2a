//! Host names and patterns of them. Every name passes one canonicaliser, so that two spellings of one host get the same
//! decision.

use crate::path::PathRefusal;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A host as a client names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostName {
    Name(String),
    Addr(IpAddr),
}

/// A pattern of host names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPattern {
    /// `*`: any name.
    Any,
    Exact(HostName),
    /// `*.example.org`: everything below, not the name itself.
    Below(String),
    /// `**.example.org`: the name itself and everything below.
    Tree(String),
}

impl HostName {
    /// Parses a host into canonical form: lower case, no final dot, addresses in plain form; an ambiguous spelling is
    /// refused.
    pub fn parse(text: &str) -> Result<HostName, PathRefusal> {
        if text.is_empty() {
            return Err(PathRefusal::new("the host is empty"));
        }
        if !text.is_ascii() {
            return Err(PathRefusal::new(format!("{text:?} is not ASCII")).hint("write an international name as xn--…"));
        }
        if let Some(addr) = parse_v6(text)? {
            return Ok(HostName::Addr(addr));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        check_shape(&name, text)?;
        match ends_in_number(&name) {
            false => Ok(HostName::Name(name)),
            true => match name.parse::<Ipv4Addr>() {
                Ok(addr) => Ok(HostName::Addr(addr.into())),
                Err(_) => Err(PathRefusal::new(format!("{text:?} is an address in an unusual notation"))
                    .hint("write four decimal numbers, such as 192.0.2.1")),
            },
        }
    }
}

impl HostPattern {
    pub fn parse(text: &str) -> Result<HostPattern, PathRefusal> {
        if text == "*" {
            return Ok(HostPattern::Any);
        }
        let (make, rest): (fn(String) -> HostPattern, &str) = if let Some(rest) = text.strip_prefix("**.") {
            (HostPattern::Tree, rest)
        } else if let Some(rest) = text.strip_prefix("*.") {
            (HostPattern::Below, rest)
        } else if text.contains('*') {
            return Err(PathRefusal::new(format!("{text:?} has a wildcard inside a name"))
                .hint("use \"*.example.org\" (below) or \"**.example.org\" (itself and below)"));
        } else {
            return HostName::parse(text).map(HostPattern::Exact);
        };
        match HostName::parse(rest)? {
            HostName::Name(name) => Ok(make(name)),
            HostName::Addr(_) => Err(PathRefusal::new(format!("{text:?} puts a wildcard before an address"))
                .hint("use \"cidr\" for a range of addresses")),
        }
    }

    pub fn matches(&self, host: &HostName) -> bool {
        match (self, host) {
            (HostPattern::Any, _) => true,
            (HostPattern::Exact(wanted), host) => wanted == host,
            (HostPattern::Below(domain), HostName::Name(name)) => is_below(name, domain),
            (HostPattern::Tree(domain), HostName::Name(name)) => name == domain || is_below(name, domain),
            _ => false,
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Name(name) => f.write_str(name),
            HostName::Addr(IpAddr::V6(addr)) => write!(f, "[{addr}]"),
            HostName::Addr(addr) => write!(f, "{addr}"),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Exact(host) => write!(f, "{host}"),
            HostPattern::Below(domain) => write!(f, "*.{domain}"),
            HostPattern::Tree(domain) => write!(f, "**.{domain}"),
        }
    }
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Parses an IPv6 address, with or without brackets. A zone is specific to one machine and not valid in a policy.
fn parse_v6(text: &str) -> Result<Option<IpAddr>, PathRefusal> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(addr) = bracketed.unwrap_or(text).parse::<Ipv6Addr>() {
        return Ok(Some(IpAddr::V6(addr).to_canonical()));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', ':', '?']).next().unwrap_or(rest);
        return Err(PathRefusal::new(format!("{text:?} is a URL, where a host is expected"))
            .hint(format!("write \"host\": {host:?}, with \"ports\" and \"paths\" beside it")));
    }
    if bracketed.is_some() || text.matches(':').count() > 1 {
        return Err(PathRefusal::new(format!("{text:?} is not an IPv6 address")));
    }
    match text.split_once(':') {
        Some((name, port)) => Err(PathRefusal::new(format!("{text:?} contains a port"))
            .hint(format!("write \"host\": {name:?} and \"ports\": {port:?}"))),
        None => Ok(None),
    }
}

fn check_shape(name: &str, text: &str) -> Result<(), PathRefusal> {
    if text.contains('/') {
        return Err(PathRefusal::new(format!("{text:?} contains a slash"))
            .hint("write the name alone; ranges go to \"cidr\", URL paths to \"paths\""));
    }
    if name.len() > 253 {
        return Err(PathRefusal::new(format!("{text:?} is longer than 253 characters")));
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err(PathRefusal::new(format!("{text:?} has a label that is empty or longer than 63 characters")));
        }
        if let Some(bad) = label.chars().find(|c| !c.is_ascii_alphanumeric() && *c != '-' && *c != '_') {
            return Err(PathRefusal::new(format!("{text:?} contains the character {bad:?}")));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(PathRefusal::new(format!("{text:?} has a label that starts or ends with \"-\"")));
        }
    }
    Ok(())
}

/// Returns true if the last label is a number (decimal, octal or hexadecimal): resolvers take such a name for an IPv4
/// address.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    hex || last.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn one_spelling() {
        for (text, spelled) in [
            ("Example.ORG.", "example.org"),
            ("localhost", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "[::1]"),
            ("[::1]", "[::1]"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("*.Example.org", "*.example.org"),
            ("**.example.org", "**.example.org"),
            ("*", "*"),
        ] {
            let pattern = HostPattern::parse(text).unwrap();
            assert_eq!(pattern.to_string(), spelled);
            assert_eq!(HostPattern::parse(spelled).unwrap(), pattern);
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            ".",
            "a..b",
            "-a.org",
            "a-.org",
            "a b",
            "exämple.org",
            "0x7f.1",
            "0x7f000001",
            "127.1",
            "2130706433",
            "127.0.0.01",
            "1.2.3.4.5",
            "a.*.org",
            "*a.org",
            "*.1.2.3.4",
            "example.org:443",
            "[::1",
            "fe80::1%eth0",
            "10.0.0.0/8",
            "http://example.org",
            "a\0b",
            "*.",
        ] {
            assert!(HostPattern::parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn matching() {
        let check =
            |pattern: &str, host: &str| HostPattern::parse(pattern).unwrap().matches(&HostName::parse(host).unwrap());
        assert!(check("example.org", "EXAMPLE.org."));
        assert!(!check("example.org", "www.example.org"));
        assert!(check("*.example.org", "a.b.example.org"));
        assert!(!check("*.example.org", "example.org"));
        assert!(!check("*.example.org", "notexample.org"));
        assert!(check("**.example.org", "example.org"));
        assert!(check("**.example.org", "a.example.org"));
        assert!(!check("**.example.org", "badexample.org"));
    }
}
