//! Deciding about the network. A name and the address it led to are asked together, so that a rule about one
//! cannot be dodged by the other. What cannot be known counts against the request, never for it.

use crate::cidr::{faces, is_special};
use crate::decide::{Decision, Matched};
use crate::document::{NetRule, Proto, Target};
use crate::host::{Host, HostPattern};
use crate::policy::Labelled;
use crate::resolve::{Resolved, grants, names_special};
use crate::write;
use std::net::IpAddr;
use std::path::Path;
use terms::Action;

/// One request to reach something.
#[derive(Clone, Copy, Debug)]
pub struct NetAsk<'a> {
    pub proto: Proto,
    /// The name the client used, when it used one.
    pub host: Option<&'a str>,
    /// The address it leads to, once known.
    pub addr: Option<IpAddr>,
    pub port: u16,
    /// The HTTP method and path, when the request can be read.
    pub method: Option<&'a str>,
    pub path: Option<&'a str>,
    /// The socket's path, for `Proto::Unix`.
    pub unix: Option<&'a Path>,
}

impl<'a> NetAsk<'a> {
    pub fn tcp(host: &'a str, port: u16) -> NetAsk<'a> {
        NetAsk { proto: Proto::Tcp, host: Some(host), addr: None, port, method: None, path: None, unix: None }
    }

    /// An echo request.
    pub fn icmp(host: &'a str) -> NetAsk<'a> {
        NetAsk { proto: Proto::Icmp, ..NetAsk::tcp(host, 0) }
    }

    pub fn unix(path: &'a Path) -> NetAsk<'a> {
        NetAsk { proto: Proto::Unix, host: None, addr: None, port: 0, method: None, path: None, unix: Some(path) }
    }
}

impl Resolved {
    pub fn net(&self, ask: &NetAsk<'_>) -> Decision {
        let Ok(known) = Known::of(ask, &self.own) else {
            return no_name();
        };
        if let Some(path) = ask.unix.filter(|_| ask.proto == Proto::Unix) {
            return self.reaches(path);
        }
        let matches = self.policy.net.iter().filter(|r| known.meets(&r.rule)).map(matched).collect();
        let open = self.policy.default_net() == Action::Allow && ask.proto != Proto::Unix && !known.special;
        let default = if open { Action::Allow } else { Action::Deny };
        let decision = Decision::of(matches, (default, "defaults.net"));
        if decision.action == Action::Ask && known.special && !self.names_special(&known) {
            // A person who is asked about all the world does not mean the services of this host.
            let denied = Decision::of(Vec::new(), (Action::Deny, "defaults.net"));
            return Decision { matches: decision.matches, ..denied.with_hint(|| known.hint()) };
        }
        decision.with_hint(|| match ask.port == NAMES && ask.host.is_none() && self.needs_network().is_none() {
            true => Some(NAME_ASKED.to_owned()),
            false => known.hint(),
        })
    }

    /// Whether some rule that does not deny names the special place that is asked about.
    fn names_special(&self, known: &Known<'_>) -> bool {
        let mut rules = self.policy.net.iter().map(|r| &r.rule).filter(|rule| rule.action != Action::Deny);
        rules.any(|rule| known.meets(rule) && known.names(rule))
    }

    /// The same policy on a host with these addresses. They are special, whatever range they are from: a rule about
    /// the world does not mean the services of this host.
    pub fn on_host(mut self, own: Vec<IpAddr>) -> Resolved {
        self.own = own.into_iter().map(|addr| addr.to_canonical()).collect();
        self
    }

    /// Whether a rule about this place looks at methods or paths, so that the broker must read the request.
    pub fn inspects(&self, ask: &NetAsk<'_>) -> bool {
        let Ok(known) = Known::of(ask, &self.own) else {
            return false;
        };
        let about = |rule: &NetRule| (rule.methods.is_some() || rule.paths.is_some()) && known.is_at(rule);
        let host = known.host.as_ref();
        self.policy.net.iter().any(|r| about(&r.rule)) || self.policy.secrets.iter().any(|s| Some(&s.rule.host) == host)
    }

    /// Whether a rule about this place says that address and port alone decide. That it is let through at all is for `net` to say.
    pub fn is_opaque(&self, ask: &NetAsk<'_>) -> bool {
        let Ok(known) = Known::of(ask, &self.own) else {
            return false;
        };
        self.policy.net.iter().any(|r| r.rule.opaque && r.rule.action != Action::Deny && known.meets(&r.rule))
    }

    /// Whether a name may be asked for: whether some connection to it could be let through. Rules that deny or ask
    /// count only where they are about all of the name; what is left is decided when somebody connects. Where nothing but a
    /// person could let any connection through, the person is asked before the name is.
    pub fn resolves(&self, name: &str) -> Decision {
        let host = match Host::parse(name) {
            Ok(host @ Host::Name(_)) => host,
            Ok(Host::Addr(_)) | Err(_) => return no_name(),
        };
        let about = |rule: &NetRule| match &rule.to {
            Target::Host(pattern) => pattern.matches(&host) && (grants(rule.action) || is_sweeping(rule)),
            Target::Cidr(_) | Target::Unix(_) => false,
        };
        let mut matches: Vec<Matched> = self.policy.net.iter().filter(|r| about(&r.rule)).map(matched).collect();
        let open = self.policy.default_net() == Action::Allow && is_public(&host);
        if matches.is_empty() && !open {
            let asks = |rule: &NetRule| match &rule.to {
                Target::Host(pattern) => rule.action == Action::Ask && pattern.matches(&host),
                Target::Cidr(_) | Target::Unix(_) => false,
            };
            matches = self.policy.net.iter().filter(|r| asks(&r.rule)).map(matched).collect();
        }
        let default = if open { Action::Allow } else { Action::Deny };
        let hint =
            || Some(format!(r#"add {{"action":"allow","host":"{host}"}} to net.rules, or run with --net {host}"#));
        Decision::of(matches, (default, "defaults.net")).with_hint(hint)
    }

    /// Whether a name may lead to an address: a special one needs a rule that names it, on whatever port.
    pub fn leads_to(&self, name: &str, addr: IpAddr) -> bool {
        let ask = NetAsk { addr: Some(addr), ..NetAsk::tcp(name, 0) };
        let Ok(known) = Known::of(&ask, &self.own) else {
            return false;
        };
        let mut rules = self.policy.net.iter().map(|r| &r.rule).filter(|rule| known.is_target(rule));
        let barred = rules.clone().any(|rule| rule.action == Action::Deny && is_sweeping(rule));
        !barred && (!known.special || rules.any(|rule| rule.action != Action::Deny && known.names(rule)))
    }

    /// What holds for datagrams: only a rule that says `proto: "udp"` lets them through, because what most rules mean
    /// by a host is its web server, and the same server over datagrams cannot be told from anything else. In the same
    /// way echo requests need a rule that says `proto: "icmp"`.
    pub fn datagrams(&self, ask: &NetAsk<'_>) -> Decision {
        let decision = self.net(ask);
        let Ok(known) = Known::of(ask, &self.own) else {
            return decision;
        };
        let meant = |rule: &NetRule| rule.proto == Some(ask.proto) && rule.action != Action::Deny && known.meets(rule);
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

/// Whether a rule is about all of its target, whatever the port, the protocol and the request.
fn is_sweeping(rule: &NetRule) -> bool {
    rule.ports.is_none() && rule.proto.is_none() && rule.methods.is_none() && rule.paths.is_none()
}

/// Whether a name can be one of the public network: not a single label, nor below what is set aside for one machine,
/// one link or one cloud.
pub(crate) fn is_public(host: &Host) -> bool {
    const LOCAL: [&str; 6] = ["localhost", "local", "internal", "invalid", "onion", "alt"];
    match host {
        Host::Name(name) => name.rsplit_once('.').is_some_and(|(_, last)| !LOCAL.contains(&last)),
        Host::Addr(_) => false,
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
struct Known<'a> {
    ask: &'a NetAsk<'a>,
    host: Option<Host>,
    addr: Option<IpAddr>,
    special: bool,
    /// It is an address of this host itself.
    own: bool,
}

impl<'a> Known<'a> {
    fn of(ask: &'a NetAsk<'a>, own: &[IpAddr]) -> Result<Known<'a>, ()> {
        let host = ask.host.map(Host::parse).transpose().map_err(|_| ())?;
        let literal = match host {
            Some(Host::Addr(addr)) => Some(addr),
            _ => None,
        };
        let addr = ask.addr.or(literal).map(|a| a.to_canonical());
        let own = addr.is_some_and(|addr| own.contains(&addr));
        Ok(Known { ask, host, addr, special: own || addr.is_some_and(is_special), own })
    }

    fn meets(&self, rule: &NetRule) -> bool {
        let reaches = !grants(rule.action) || !self.special || self.names(rule);
        reaches && self.is_at(rule) && self.says(rule)
    }

    /// Whether the rule names the special place it is about: a range inside the special ones, or the one address.
    fn names(&self, rule: &NetRule) -> bool {
        let single = match &rule.to {
            Target::Cidr(cidr) => cidr.single(),
            Target::Host(HostPattern::Exact(Host::Addr(addr))) => Some(addr.to_canonical()),
            _ => None,
        };
        names_special(rule) || (self.own && single.is_some() && single == self.addr)
    }

    /// Whether the rule is about this place: protocol, port, name or address.
    fn is_at(&self, rule: &NetRule) -> bool {
        let proto = match rule.proto {
            Some(proto) => proto == self.ask.proto,
            // What denies a host denies all of it; what allows it means its servers.
            None if self.ask.proto == Proto::Icmp => !grants(rule.action),
            None => self.ask.proto != Proto::Unix,
        };
        proto && rule.ports.as_ref().is_none_or(|p| p.contains(self.ask.port)) && self.is_target(rule)
    }

    fn is_target(&self, rule: &NetRule) -> bool {
        let allows = grants(rule.action);
        match &rule.to {
            Target::Unix(_) => false,
            Target::Cidr(cidr) => match (self.addr, allows) {
                (None, _) => false,
                (Some(addr), true) => cidr.contains(addr),
                (Some(addr), false) => faces(addr).any(|face| cidr.contains(face)),
            },
            Target::Host(HostPattern::Any) if !allows => true,
            Target::Host(pattern @ HostPattern::Exact(Host::Addr(_))) => {
                let by_addr = self.addr.is_some_and(|addr| pattern.matches(&Host::Addr(addr)));
                by_addr || self.host.as_ref().is_some_and(|host| pattern.matches(host))
            }
            Target::Host(pattern) => self.host.as_ref().is_some_and(|host| pattern.matches(host)),
        }
    }

    /// Whether the request says what the rule is about. Where it cannot be read, denials count and allowances do not.
    fn says(&self, rule: &NetRule) -> bool {
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
                let proto = if self.ask.proto == Proto::Icmp { proto.as_str() } else { "" };
                return Some(format!(
                    r#"{addr} is a special address, which only a rule that names it covers: add {{"action":"allow",{proto}"cidr":"{cidr}"{port}}} to net.rules"#
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

    /// What the flag is given for the same place. It has no word for datagrams, and an address of the newer kind has colons of its own.
    fn flag(&self) -> Option<String> {
        let host = match (&self.host, self.addr) {
            (Some(host @ Host::Name(_)), _) => host.to_string(),
            (_, Some(IpAddr::V4(addr))) => addr.to_string(),
            _ => return None,
        };
        match self.ask.proto {
            Proto::Tcp => Some(format!("{host}:{}", self.ask.port)),
            Proto::Icmp => Some(format!("icmp:{host}")),
            _ => None,
        }
    }
}

/// The port at which names are asked for.
const NAMES: u16 = 53;

/// Without any network a program asks the host's own server for names, and is refused there. To allow that server would lead nowhere:
/// names are answered for those hosts that a rule allows.
const NAME_ASKED: &str = r#"a name was asked for; for the host that is meant, add {"action":"allow","host":"HOST"} to net.rules, or run with --net HOST"#;

/// The path of a URL, decoded once and without its query. `None` when servers could read it in two ways:
/// an encoded slash, a dot segment, an empty segment, a backslash, a semicolon, a control character. Behind a semicolon
/// some servers see parameters that are no part of the name: to them `..;` goes up.
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
