//! Decisions about the network. A name and the address it resolved to are judged together, so that a rule about one
//! cannot be bypassed by the other. Missing information counts against the request, never for it.

use crate::cidr::{is_special, with_embedded};
use crate::decide::{Decision, Matched};
use crate::document::{NetRule, NetTarget, Proto};
use crate::host::{HostName, HostPattern};
use crate::policy::Labelled;
use crate::resolve::{Resolved, grants, names_special};
use crate::write;
use std::net::IpAddr;
use std::path::Path;
use terms::Action;

/// A connection or request to judge.
#[derive(Clone, Copy, Debug)]
pub struct NetRequest<'a> {
    pub proto: Proto,
    /// The name the client used, when it used one.
    pub host: Option<&'a str>,
    /// The address that the name resolved to, once known.
    pub addr: Option<IpAddr>,
    pub port: u16,
    /// The HTTP method and path, when the request can be read.
    pub method: Option<&'a str>,
    pub path: Option<&'a str>,
    /// The socket's path, for `Proto::Unix`.
    pub unix: Option<&'a Path>,
}

impl<'a> NetRequest<'a> {
    pub fn tcp(host: &'a str, port: u16) -> NetRequest<'a> {
        NetRequest { proto: Proto::Tcp, host: Some(host), addr: None, port, method: None, path: None, unix: None }
    }

    /// An ICMP echo request.
    pub fn icmp(host: &'a str) -> NetRequest<'a> {
        NetRequest { proto: Proto::Icmp, ..NetRequest::tcp(host, 0) }
    }

    pub fn unix(path: &'a Path) -> NetRequest<'a> {
        NetRequest { proto: Proto::Unix, host: None, addr: None, port: 0, method: None, path: None, unix: Some(path) }
    }
}

impl Resolved {
    pub fn net(&self, ask: &NetRequest<'_>) -> Decision {
        let Ok(known) = CanonicalRequest::of(ask, &self.own) else {
            return no_name();
        };
        if let Some(path) = ask.unix.filter(|_| ask.proto == Proto::Unix) {
            return self.reaches(path);
        }
        let matches = self.policy.net.iter().filter(|r| known.matches(&r.rule)).map(matched).collect();
        let open = self.policy.default_net() == Action::Allow && ask.proto != Proto::Unix && !known.special;
        let default = if open { Action::Allow } else { Action::Deny };
        let decision = Decision::of(matches, (default, "defaults.net"));
        if decision.action == Action::Ask && known.special && !self.names_special(&known) {
            // Approving a broad rule does not include the services of this host.
            let denied = Decision::of(Vec::new(), (Action::Deny, "defaults.net"));
            return Decision { matches: decision.matches, ..denied.with_hint(|| known.hint()) };
        }
        decision.with_hint(|| match ask.port == DNS_PORT && ask.host.is_none() && self.needs_network().is_none() {
            true => Some(DNS_HINT.to_owned()),
            false => known.hint(),
        })
    }

    /// Returns true if a rule that does not deny names the special address of the request.
    fn names_special(&self, known: &CanonicalRequest<'_>) -> bool {
        let mut rules = self.policy.net.iter().map(|r| &r.rule).filter(|rule| rule.action != Action::Deny);
        rules.any(|rule| known.matches(rule) && known.names(rule))
    }

    /// Sets the host's own addresses. They are special in any range: a broad rule does not include the services of this
    /// host.
    pub fn on_host(mut self, own: Vec<IpAddr>) -> Resolved {
        self.own = own.into_iter().map(|addr| addr.to_canonical()).collect();
        self
    }

    /// Returns true if a rule for this target checks methods or paths, so that the broker must read the request.
    pub fn inspects(&self, ask: &NetRequest<'_>) -> bool {
        let Ok(known) = CanonicalRequest::of(ask, &self.own) else {
            return false;
        };
        let about = |rule: &NetRule| (rule.methods.is_some() || rule.paths.is_some()) && known.matches_endpoint(rule);
        let host = known.host.as_ref();
        self.policy.net.iter().any(|r| about(&r.rule)) || self.policy.secrets.iter().any(|s| Some(&s.rule.host) == host)
    }

    /// Returns true if a rule for this target says that only address and port decide. Whether the connection is
    /// permitted is decided by `net`.
    pub fn is_opaque(&self, ask: &NetRequest<'_>) -> bool {
        let Ok(known) = CanonicalRequest::of(ask, &self.own) else {
            return false;
        };
        self.policy.net.iter().any(|r| r.rule.opaque && r.rule.action != Action::Deny && known.matches(&r.rule))
    }

    /// Decides whether a name may be resolved: whether some connection to it could be permitted. Deny and ask rules
    /// count only if they cover the whole name; the rest is decided at connect. If only an approval could permit any
    /// connection, the person is asked before the name is resolved.
    pub fn resolves(&self, name: &str) -> Decision {
        let host = match HostName::parse(name) {
            Ok(host @ HostName::Name(_)) => host,
            Ok(HostName::Addr(_)) | Err(_) => return no_name(),
        };
        let about = |rule: &NetRule| match &rule.to {
            NetTarget::Host(pattern) => pattern.matches(&host) && (grants(rule.action) || is_sweeping(rule)),
            NetTarget::Cidr(_) | NetTarget::Unix(_) => false,
        };
        let mut matches: Vec<Matched> = self.policy.net.iter().filter(|r| about(&r.rule)).map(matched).collect();
        let open = self.policy.default_net() == Action::Allow && is_public(&host);
        if matches.is_empty() && !open {
            let asks = |rule: &NetRule| match &rule.to {
                NetTarget::Host(pattern) => rule.action == Action::Ask && pattern.matches(&host),
                NetTarget::Cidr(_) | NetTarget::Unix(_) => false,
            };
            matches = self.policy.net.iter().filter(|r| asks(&r.rule)).map(matched).collect();
        }
        let default = if open { Action::Allow } else { Action::Deny };
        let hint =
            || Some(format!(r#"add {{"action":"allow","host":"{host}"}} to net.rules, or run with --net {host}"#));
        Decision::of(matches, (default, "defaults.net")).with_hint(hint)
    }

    /// Returns true if a name may resolve to an address: a special one needs a rule that names it, on any port.
    pub fn leads_to(&self, name: &str, addr: IpAddr) -> bool {
        let ask = NetRequest { addr: Some(addr), ..NetRequest::tcp(name, 0) };
        let Ok(known) = CanonicalRequest::of(&ask, &self.own) else {
            return false;
        };
        let mut rules = self.policy.net.iter().map(|r| &r.rule).filter(|rule| known.is_target(rule));
        let barred = rules.clone().any(|rule| rule.action == Action::Deny && is_sweeping(rule));
        !barred && (!known.special || rules.any(|rule| rule.action != Action::Deny && known.names(rule)))
    }

    /// Returns how to let an allowed name lead to its addresses, which no rule covers: a rule for the first of them, at
    /// the ports of the rules that allow the name.
    pub fn covering(&self, name: &str, addresses: &[IpAddr]) -> Option<String> {
        let host = HostName::parse(name).ok()?;
        let addr = addresses.first()?.to_canonical();
        let barred = |rule: &NetRule| {
            rule.action == Action::Deny
                && match &rule.to {
                    NetTarget::Cidr(cidr) => cidr.contains(addr),
                    NetTarget::Host(pattern) => pattern.matches(&HostName::Addr(addr)),
                    NetTarget::Unix(_) => false,
                }
        };
        if let Some(rule) = self.policy.net.iter().find(|r| barred(&r.rule)) {
            return Some(format!("an allow rule cannot lift {}; remove or narrow it", rule.label));
        }
        let about = |rule: &&NetRule| {
            grants(rule.action) && matches!(&rule.to, NetTarget::Host(pattern) if pattern.matches(&host))
        };
        let ports: Vec<_> = self.policy.net.iter().map(|r| &r.rule).filter(about).map(|r| r.ports.as_ref()).collect();
        // Ports of this host's loopback are opened one by one.
        let ports = match ports.first().copied().flatten().filter(|_| ports.len() == 1) {
            Some(ports) => Some(ports.to_string()),
            None => addr.is_loopback().then(|| HTTPS_PORT.to_string()),
        };
        let (key, flag) = match ports {
            Some(ports) => (format!(r#","ports":"{ports}""#), format!("{}:{ports}", bracketed(addr))),
            None => (String::new(), addr.to_string()),
        };
        let cidr = crate::cidr::Cidr::of(addr);
        Some(format!(r#"add {{"action":"allow","cidr":"{cidr}"{key}}} to net.rules, or run with --net {flag}"#))
    }

    /// Decides about datagrams: only a rule with `proto: "udp"` permits them, because most rules for a host mean its
    /// web server, and QUIC cannot be told from other datagrams. Likewise echo requests need a rule with `proto:
    /// "icmp"`.
    pub fn datagrams(&self, ask: &NetRequest<'_>) -> Decision {
        let decision = self.net(ask);
        let Ok(known) = CanonicalRequest::of(ask, &self.own) else {
            return decision;
        };
        let meant =
            |rule: &NetRule| rule.proto == Some(ask.proto) && rule.action != Action::Deny && known.matches(rule);
        if decision.action == Action::Deny || self.policy.net.iter().any(|r| meant(&r.rule)) {
            return decision;
        }
        Decision { matches: decision.matches, ..Decision::of(Vec::new(), (Action::Deny, "defaults.net")) }
            .with_hint(|| known.hint())
    }
}

fn matched(labelled: &Labelled<NetRule>) -> Matched {
    let text = write::net_rule(&labelled.rule).to_compact_json();
    Matched { rule: labelled.label.clone(), action: labelled.rule.action, text }
}

/// Returns true if a rule covers its whole target, at any port, protocol and request.
fn is_sweeping(rule: &NetRule) -> bool {
    rule.ports.is_none() && rule.proto.is_none() && rule.methods.is_none() && rule.paths.is_none()
}

/// Returns true for a name of the public network: not a single label, nor below a domain reserved for one machine, one
/// link or one cloud.
pub(crate) fn is_public(host: &HostName) -> bool {
    const LOCAL: [&str; 6] = ["localhost", "local", "internal", "invalid", "onion", "alt"];
    match host {
        HostName::Name(name) => name.rsplit_once('.').is_some_and(|(_, last)| !LOCAL.contains(&last)),
        HostName::Addr(_) => false,
    }
}

fn no_name() -> Decision {
    Decision {
        action: Action::Deny,
        rule: "defaults.net".to_owned(),
        hint: Some("the host's name is not well formed; no rule can name it".to_owned()),
        matches: Vec::new(),
    }
}

/// A request with its names in canonical form.
struct CanonicalRequest<'a> {
    ask: &'a NetRequest<'a>,
    host: Option<HostName>,
    addr: Option<IpAddr>,
    special: bool,
    /// The target is an address of this host itself.
    own: bool,
}

impl<'a> CanonicalRequest<'a> {
    fn of(ask: &'a NetRequest<'a>, own: &[IpAddr]) -> Result<CanonicalRequest<'a>, ()> {
        let host = ask.host.map(HostName::parse).transpose().map_err(|_| ())?;
        let literal = match host {
            Some(HostName::Addr(addr)) => Some(addr),
            _ => None,
        };
        let addr = ask.addr.or(literal).map(|a| a.to_canonical());
        let own = addr.is_some_and(|addr| own.contains(&addr));
        Ok(CanonicalRequest { ask, host, addr, special: own || addr.is_some_and(is_special), own })
    }

    fn matches(&self, rule: &NetRule) -> bool {
        let reaches = !grants(rule.action) || !self.special || self.names(rule);
        reaches && self.matches_endpoint(rule) && self.matches_request(rule)
    }

    /// Returns true if the rule names the special address: a range inside the special ones, or the single address.
    fn names(&self, rule: &NetRule) -> bool {
        let single = match &rule.to {
            NetTarget::Cidr(cidr) => cidr.single(),
            NetTarget::Host(HostPattern::Exact(HostName::Addr(addr))) => Some(addr.to_canonical()),
            _ => None,
        };
        names_special(rule) || (self.own && single.is_some() && single == self.addr)
    }

    /// Returns true if protocol, port, and name or address match.
    fn matches_endpoint(&self, rule: &NetRule) -> bool {
        let proto = match rule.proto {
            Some(proto) => proto == self.ask.proto,
            // A denial of a host includes ICMP; an allowance means its servers.
            None if self.ask.proto == Proto::Icmp => !grants(rule.action),
            None => self.ask.proto != Proto::Unix,
        };
        proto && rule.ports.as_ref().is_none_or(|p| p.contains(self.ask.port)) && self.is_target(rule)
    }

    fn is_target(&self, rule: &NetRule) -> bool {
        let allows = grants(rule.action);
        match &rule.to {
            NetTarget::Unix(_) => false,
            NetTarget::Cidr(cidr) => match (self.addr, allows) {
                (None, _) => false,
                (Some(addr), true) => cidr.contains(addr),
                (Some(addr), false) => with_embedded(addr).any(|face| cidr.contains(face)),
            },
            NetTarget::Host(HostPattern::Any) if !allows => true,
            NetTarget::Host(pattern @ HostPattern::Exact(HostName::Addr(_))) => {
                let by_addr = self.addr.is_some_and(|addr| pattern.matches(&HostName::Addr(addr)));
                by_addr || self.host.as_ref().is_some_and(|host| pattern.matches(host))
            }
            NetTarget::Host(pattern) => self.host.as_ref().is_some_and(|host| pattern.matches(host)),
        }
    }

    /// Returns true if method and path match. Where the request cannot be read, denials match and allowances do not.
    fn matches_request(&self, rule: &NetRule) -> bool {
        let unknown = !grants(rule.action);
        let method = rule.methods.as_ref().is_none_or(|methods| match self.ask.method {
            Some(method) => methods.iter().any(|m| m == method),
            None => unknown && !methods.is_empty(),
        });
        let path = rule.paths.as_ref().is_none_or(|paths| match self.ask.path.map(url_path) {
            Some(Some(path)) => {
                paths.iter().any(|p| p.0.on(Path::new("/")).is_some_and(|p| p.matches(Path::new(&path))))
            }
            Some(None) | None => unknown && !paths.is_empty(),
        });
        method && path
    }

    fn hint(&self) -> Option<String> {
        let (proto, port) = match self.ask.proto {
            Proto::Icmp => (r#""proto":"icmp","#.to_owned(), String::new()),
            proto => (format!(r#""proto":"{}","#, proto.name()), format!(r#","ports":"{}""#, self.ask.port)),
        };
        let rule = match (self.addr, &self.host) {
            (Some(addr), _) if self.special => {
                let cidr = crate::cidr::Cidr::of(addr);
                let proto = if self.ask.proto == Proto::Tcp { "" } else { proto.as_str() };
                let flag = self.flag_for(&bracketed(addr)).map(|flag| format!(", or run with --net {flag}"));
                let flag = flag.unwrap_or_default();
                return Some(format!(
                    r#"{addr} is a special address, which only a rule that names it covers: add {{"action":"allow",{proto}"cidr":"{cidr}"{port}}} to net.rules{flag}"#
                ));
            }
            (_, Some(host)) => format!(r#"{{"action":"allow",{proto}"host":"{host}"{port}}}"#),
            (Some(addr), None) => {
                let cidr = crate::cidr::Cidr::of(addr);
                format!(r#"{{"action":"allow",{proto}"cidr":"{cidr}"{port}}}"#)
            }
            (None, None) => return None,
        };
        let flag = self.flag().map(|flag| format!(", or run with --net {flag}")).unwrap_or_default();
        Some(format!("add {rule} to net.rules{flag}"))
    }

    /// Returns the value of `--net` for this target.
    fn flag(&self) -> Option<String> {
        match (&self.host, self.addr) {
            (Some(host @ HostName::Name(_)), _) => self.flag_for(&host.to_string()),
            (_, Some(addr)) => self.flag_for(&bracketed(addr)),
            _ => None,
        }
    }

    /// Returns the value of `--net` for a host; there is none for datagrams.
    fn flag_for(&self, host: &str) -> Option<String> {
        match self.ask.proto {
            Proto::Tcp => Some(format!("{host}:{}", self.ask.port)),
            Proto::Icmp => Some(format!("icmp:{host}")),
            _ => None,
        }
    }
}

/// Formats an address as the flag takes it before a port.
fn bracketed(addr: IpAddr) -> String {
    if addr.is_ipv6() { format!("[{addr}]") } else { addr.to_string() }
}

/// Port that a name most probably is asked for.
const HTTPS_PORT: u16 = 443;

/// Port of DNS.
const DNS_PORT: u16 = 53;

/// Hint for a program without network that queries the host's name server, and is refused there. Allowing that server
/// would not help: only names of allowed hosts are resolved.
const DNS_HINT: &str = r#"a name was asked for; for the host that is meant, add {"action":"allow","host":"HOST"} to net.rules, or run with --net HOST"#;

/// Decodes the path of a URL once and removes its query. `None` if servers could read it in two ways: an encoded slash,
/// a dot segment, an empty segment, a backslash, a semicolon, a control character. Behind a semicolon some servers see
/// parameters that are not part of the name: for them `..;` goes up.
fn url_path(text: &str) -> Option<String> {
    let text = text.split(['?', '#']).next().unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let hex = std::str::from_utf8(&digits).ok().filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))?;
                match u8::from_str_radix(hex, 16).ok()? {
                    b'/' | b'\\' | b'%' => return None,
                    byte => bytes.push(byte),
                }
            }
            b'\\' => return None,
            byte => bytes.push(byte),
        }
    }
    let path = String::from_utf8(bytes).ok()?;
    let body = path.strip_prefix('/')?;
    let body = body.strip_suffix('/').unwrap_or(body);
    let odd = body.chars().any(|c| c.is_control() || c == ';')
        || (!body.is_empty() && body.split('/').any(|segment| matches!(segment, "" | "." | "..")));
    (!odd).then_some(path)
}

#[cfg(test)]
#[path = "net_test.rs"]
mod test;
