//! Network targets on command lines: `HOST[:PORTS]`, where HOST is a name, a pattern, an address or a range and PORTS a
//! list. Policy documents keep both apart.

use crate::cidr::Cidr;
use crate::document::NetTarget;
use crate::host::HostPattern;
use crate::path::PathRefusal;
use crate::ports::Ports;

/// Splits a list of targets at its commas. Ports have commas of their own: in `a.org:80,443,b.org` the second part
/// belongs to the first.
pub fn split_targets(list: &str) -> Vec<String> {
    let mut targets: Vec<String> = Vec::new();
    for part in list.split(',') {
        match targets.last_mut().filter(|last| is_ports(part) && split_ports(last).1.is_some()) {
            Some(last) => *last = format!("{last},{part}"),
            None => targets.push(part.to_owned()),
        }
    }
    targets
}

/// Parses `HOST[:PORTS]`. An IPv6 address with ports needs brackets: `[::1]:443`, `[fd00::/8]:443`.
pub fn parse_target(text: &str) -> Result<(NetTarget, Option<Ports>), PathRefusal> {
    if is_ports(text) {
        return Err(PathRefusal::new(format!("{text:?} is a port without a host"))
            .hint(format!("write HOST:{text}, such as example.org:{text}")));
    }
    let (host, ports) = split_ports(text);
    let ports = ports.map(Ports::parse).transpose()?;
    let to = match host.contains('/') {
        true => NetTarget::Cidr(Cidr::parse(&without_brackets(host))?),
        false => NetTarget::Host(HostPattern::parse(host)?),
    };
    Ok((to, ports))
}

/// Splits the host from the text after its colon. The colons of an IPv6 address without brackets belong to the address.
pub fn split_ports(text: &str) -> (&str, Option<&str>) {
    let is_host = |host: &str| !host.contains(':') || host.starts_with('[') && host.contains(']');
    match text.rsplit_once(':') {
        Some((host, ports)) if is_host(host) => (host, Some(ports)),
        _ => (text, None),
    }
}

fn is_ports(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'-')
}

/// Removes the brackets of a range such as `[fd00::]/8` or `[fd00::/8]`.
fn without_brackets(range: &str) -> String {
    match range.strip_prefix('[') {
        Some(rest) => rest.replacen(']', "", 1),
        None => range.to_owned(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn lists() {
        for (list, targets) in [
            ("a.org", &["a.org"][..]),
            ("a.org,b.org", &["a.org", "b.org"]),
            ("127.0.0.1:80,443", &["127.0.0.1:80,443"]),
            (
                "a.org:80,443,8000-8999,b.org:22,[::1]:1,2,10.0.0.0/8:5,6",
                &["a.org:80,443,8000-8999", "b.org:22", "[::1]:1,2", "10.0.0.0/8:5,6"],
            ),
            ("a.org,443", &["a.org", "443"]),
            ("::1,443", &["::1", "443"]),
            ("a.org:80,", &["a.org:80", ""]),
            ("a.org:80,1.2.3.4", &["a.org:80", "1.2.3.4"]),
        ] {
            assert_eq!(split_targets(list), targets, "{list}");
        }
    }

    #[test]
    fn targets() {
        for (text, host, ports) in [
            ("example.org", "example.org", None),
            ("example.org:80,443", "example.org", Some("80,443")),
            ("*.example.org:8000-8999", "*.example.org", Some("8000-8999")),
            ("127.0.0.1:80,443", "127.0.0.1", Some("80,443")),
            ("::1", "[::1]", None),
            ("[::1]", "[::1]", None),
            ("[::1]:80,443", "[::1]", Some("80,443")),
            ("10.0.0.0/8", "10.0.0.0/8", None),
            ("10.0.0.0/8:80,443", "10.0.0.0/8", Some("80,443")),
            ("fd00::/8", "fd00::/8", None),
            ("[fd00::]/8:443", "fd00::/8", Some("443")),
            ("[fd00::/8]:443-444", "fd00::/8", Some("443-444")),
        ] {
            let (to, at) = parse_target(text).unwrap_or_else(|refusal| panic!("{text}: {}", refusal.message));
            let to = match to {
                NetTarget::Host(host) => host.to_string(),
                NetTarget::Cidr(cidr) => cidr.to_string(),
                NetTarget::Unix(_) => unreachable!(),
            };
            assert_eq!((to.as_str(), at.map(|ports| ports.to_string()).as_deref()), (host, ports), "{text}");
        }
        for (text, named) in [
            ("443", "port without a host"),
            ("80-90", "port without a host"),
            ("a.org:", "\"\" is not a port"),
            ("a.org:http", "\"http\" is not a port"),
            ("a.org:80,x", "\"x\" is not a port"),
            ("a.org:90-80", "\"90-80\" is not a port"),
            ("127.1:80", "unusual notation"),
            ("[::1:80", "not an IPv6 address"),
            ("[fd00::x]/8:80", "not a range"),
            ("", "empty"),
        ] {
            let refusal = parse_target(text).expect_err(text);
            assert!(refusal.message.contains(named), "{text}: {}", refusal.message);
        }
    }
}
