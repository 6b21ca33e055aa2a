//! Network features that a policy needs: inspection of requests, addresses on the host's loopback, sockets of the host.

use crate::cidr::Cidr;
use crate::document::{NetRule, NetTarget, Proto};
use crate::host::{HostName, HostPattern};
use crate::path::PathRefusal;
use crate::policy::Labelled;
use crate::resolve::Resolved;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use terms::Action;

impl Resolved {
    /// Returns true if a rule or secret makes the broker read requests, so that the guest must trust its certificates.
    pub fn inspects_anything(&self) -> bool {
        let read = |rule: &NetRule| rule.methods.is_some() || rule.paths.is_some();
        self.policy.net.iter().any(|r| read(&r.rule)) || !self.policy.secrets.is_empty()
    }

    /// Returns the rule that permits connecting to a socket of the host by its path.
    pub fn reaches_socket(&self) -> Option<&str> {
        let granting = self.policy.net.iter().filter(|r| r.rule.action != Action::Deny);
        granting.filter(|r| matches!(r.rule.to, NetTarget::Unix(_))).map(|r| r.label.as_str()).next()
    }

    /// Returns the rule that permits echo requests.
    pub fn sends_echoes(&self) -> Option<&str> {
        let granting = self.policy.net.iter().filter(|r| r.rule.action != Action::Deny);
        granting.filter(|r| r.rule.proto == Some(Proto::Icmp)).map(|r| r.label.as_str()).next()
    }

    /// Returns the addresses on the host's loopback that rules name, at most `most`. A guest has a loopback of its own,
    /// so each of these takes the same address there away from it; that is why ports must be named.
    pub fn loopback_places(&self, most: usize) -> Result<Vec<SocketAddr>, PathRefusal> {
        let mut places = BTreeSet::new();
        for Labelled { rule, label } in self.policy.net.iter().filter(|r| r.rule.action != Action::Deny) {
            let Some(range) = range_of(rule).filter(|range| loopback().any(|l| l.covers(range))) else { continue };
            let refuse = |why: String, hint: &str| PathRefusal::new(format!("{label}: {why}")).hint(hint);
            if matches!(rule.proto, Some(Proto::Udp | Proto::Icmp)) {
                return Err(refuse(
                    format!("{range} is the host's loopback, and only TCP can be led there"),
                    "leave \"proto\" out",
                ));
            }
            let Some(ports) = &rule.ports else {
                let why = format!("{range} is the host's loopback, and a guest has one of its own");
                return Err(refuse(why, "name the ports that shall lead to the host, such as \"ports\": \"5432\""));
            };
            let Some(at) = address_in(&range) else {
                let why = format!("{range} holds several addresses of the host's loopback, and no 127.0.0.1");
                return Err(refuse(why, "name one address"));
            };
            places.extend(ports.each().take(most + 1).map(|port| SocketAddr::new(at, port)));
            if places.len() > most {
                let why = format!("more than {most} ports of the host's loopback");
                return Err(refuse(why, "name fewer; each is taken away from the guest's own loopback"));
            }
        }
        Ok(places.into_iter().collect())
    }
}

fn range_of(rule: &NetRule) -> Option<Cidr> {
    match &rule.to {
        NetTarget::Cidr(range) => Some(*range),
        NetTarget::Host(HostPattern::Exact(HostName::Addr(addr))) => Some(Cidr::of(*addr)),
        _ => None,
    }
}

fn loopback() -> impl Iterator<Item = Cidr> {
    [Cidr::new(Ipv4Addr::LOCALHOST.into(), 8), Cidr::of(std::net::Ipv6Addr::LOCALHOST.into())].into_iter()
}

/// Returns the address that represents a range: its only one, or 127.0.0.1.
fn address_in(range: &Cidr) -> Option<IpAddr> {
    let usual = IpAddr::from(Ipv4Addr::LOCALHOST);
    range.single().or_else(|| range.contains(usual).then_some(usual))
}

#[cfg(test)]
mod test {
    use crate::{Context, Format, Resolved};

    fn resolved(rules: &str) -> Resolved {
        let text = format!(r#"{{"version": 1, "net": {{"rules": {rules}}}}}"#);
        let document = crate::parse(&text, Format::Json, "p.json").unwrap();
        let context = Context { home: "/h".into(), workspace: "/w".into(), toolchains: Vec::new() };
        crate::resolve(&crate::effective(&[document]).unwrap(), &context).unwrap()
    }

    #[test]
    fn named_ports_of_loopback_are_places() {
        for (rules, places) in [
            (r#"[{"action":"allow","host":"127.0.0.1","ports":"5432"}]"#, "127.0.0.1:5432"),
            (r#"[{"action":"warn","host":"::1","ports":"1-2"}]"#, "[::1]:1 [::1]:2"),
            (r#"[{"action":"allow","cidr":"127.0.0.0/8","ports":"80"}]"#, "127.0.0.1:80"),
            (r#"[{"action":"allow","cidr":"127.0.0.9/32","ports":"80"}]"#, "127.0.0.9:80"),
            (r#"[{"action":"deny","cidr":"127.0.0.0/8"},{"action":"allow","cidr":"10.0.0.0/8"}]"#, ""),
            (r#"[{"action":"allow","host":"example.org"}]"#, ""),
        ] {
            let found = resolved(rules).loopback_places(64).unwrap();
            let text: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(text.join(" "), places, "{rules}");
        }
    }

    #[test]
    fn what_cannot_be_a_place_is_refused() {
        for rules in [
            r#"[{"action":"allow","host":"127.0.0.1"}]"#,
            r#"[{"action":"allow","host":"127.0.0.1","ports":"1-65"}]"#,
            r#"[{"action":"allow","host":"127.0.0.1","ports":"1-65535"}]"#,
            r#"[{"action":"allow","cidr":"127.1.0.0/16","ports":"80"}]"#,
            r#"[{"action":"allow","proto":"udp","host":"127.0.0.1","ports":"53"}]"#,
            r#"[{"action":"allow","proto":"icmp","host":"127.0.0.1"}]"#,
        ] {
            assert!(resolved(rules).loopback_places(64).unwrap_err().hint.is_some(), "{rules}");
        }
    }

    #[test]
    fn what_must_be_read_is_known_beforehand() {
        assert!(!resolved(r#"[{"action":"allow","host":"a.org"}]"#).inspects_anything());
        assert!(resolved(r#"[{"action":"allow","host":"a.org","methods":["GET"]}]"#).inspects_anything());
        let socket = resolved(r#"[{"action":"allow","proto":"unix","path":"/run/x.sock"}]"#);
        assert_eq!(socket.reaches_socket(), Some("p.json:net.rules[0]"));
    }
}
