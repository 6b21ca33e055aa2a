//! Parsing of a network rule: which keys go together is decided here.

use super::action;
use crate::cidr::Cidr;
use crate::cursor::{Cursor, ObjectFields, Problem, parsed};
use crate::document::{NetRule, NetTarget, Proto, UrlPath};
use crate::host::HostPattern;
use crate::path::{PathRefusal, RulePath};
use crate::ports::Ports;
use crate::schema;
use terms::Action;

pub(super) fn rule(at: &Cursor<'_>) -> Result<NetRule, Problem> {
    let fields = at.object(&schema::NET_RULE)?;
    let action = action(&fields.need("action")?)?;
    let proto = fields.get("proto").map(|at| at.one_of(&Proto::ALL.map(|p| (p.name(), p)))).transpose()?;
    let to = target(&fields, proto)?;
    let http = matches!(proto, None | Some(Proto::Tcp));
    for name in ["methods", "paths"] {
        if let Some(at) = fields.get(name)
            && !http
        {
            return Err(at.problem(format!("{name:?} needs \"proto\": \"tcp\"")));
        }
    }
    let portless = match proto {
        Some(Proto::Unix) => Some("a unix socket has no ports"),
        Some(Proto::Icmp) => Some("an echo request has no ports"),
        _ => None,
    };
    if let (Some(at), Some(why)) = (fields.get("ports"), portless) {
        return Err(at.problem(why));
    }
    let opaque = opaque(&fields, action, http, &to)?;
    Ok(NetRule {
        action,
        proto,
        to,
        ports: fields.get("ports").map(|at| parsed(&at, Ports::parse)).transpose()?,
        methods: fields.get("methods").map(|at| each(&at, method)).transpose()?,
        paths: fields.get("paths").map(|at| each(&at, url_path)).transpose()?,
        opaque,
        quiet: quiet(&fields, action, proto)?,
    })
}

/// Parses `opaque`: address and port alone decide, and the traffic is not read. It is refused on
/// rules that deny, are not for TCP or name an address, where it means nothing, and with `methods`
/// or `paths`, which need the traffic.
fn opaque(fields: &ObjectFields<'_>, action: Action, is_tcp: bool, to: &NetTarget) -> Result<bool, Problem> {
    let Some(at) = fields.get("opaque") else { return Ok(false) };
    let why = match to {
        _ if !at.boolean()? => return Ok(false),
        _ if action == Action::Deny => "a rule that denies covers all traffic already; leave \"opaque\" out",
        _ if !is_tcp => "\"opaque\" needs \"proto\": \"tcp\"",
        _ if fields.get("methods").or(fields.get("paths")).is_some() => {
            "\"opaque\" switches inspection off, which \"methods\" and \"paths\" need"
        }
        to if to.is_address() => "a rule about addresses considers only address and port already; leave \"opaque\" out",
        _ => return Ok(true),
    };
    Err(at.problem(why))
}

/// Parses `quiet`, which hides expected refusals by the broker; so it is only for rules that deny,
/// and not for unix sockets.
fn quiet(fields: &ObjectFields<'_>, action: Action, proto: Option<Proto>) -> Result<bool, Problem> {
    let Some(at) = fields.get("quiet") else { return Ok(false) };
    let why = match at.boolean()? {
        false => return Ok(false),
        true if action != Action::Deny => "only a rule that denies can be quiet; leave \"quiet\" out",
        true if proto == Some(Proto::Unix) => "refusals of sockets are always shown; leave \"quiet\" out",
        true => return Ok(true),
    };
    Err(at.problem(why))
}

fn target(fields: &ObjectFields<'_>, proto: Option<Proto>) -> Result<NetTarget, Problem> {
    let hint = "name exactly one of \"host\", \"cidr\" and, with \"proto\": \"unix\", \"path\"";
    match (fields.get("host"), fields.get("cidr"), fields.get("path")) {
        (Some(at), None, None) if proto != Some(Proto::Unix) => parsed(&at, HostPattern::parse).map(NetTarget::Host),
        (None, Some(at), None) if proto != Some(Proto::Unix) => parsed(&at, Cidr::parse).map(NetTarget::Cidr),
        (None, None, Some(at)) if proto == Some(Proto::Unix) => parsed(&at, RulePath::parse).map(NetTarget::Unix),
        (None, None, Some(at)) => {
            Err(at.problem("\"path\" is for sockets").hint("add \"proto\": \"unix\", or use \"paths\" for URLs"))
        }
        (None, None, None) => Err(fields.problem("the rule names no host, range or socket").hint(hint)),
        _ if proto == Some(Proto::Unix) => {
            Err(fields.problem("a rule for unix sockets names only a \"path\"").hint(hint))
        }
        _ => Err(fields.problem("the rule names more than one of host, range and socket").hint(hint)),
    }
}

fn each<T: PartialEq>(at: &Cursor<'_>, read: impl Fn(&Cursor<'_>) -> Result<T, Problem>) -> Result<Vec<T>, Problem> {
    let mut out = Vec::new();
    for item in at.items()? {
        let value = read(&item)?;
        if out.contains(&value) {
            return Err(item.problem("it is already in the list"));
        }
        out.push(value);
    }
    Ok(out)
}

fn method(at: &Cursor<'_>) -> Result<String, Problem> {
    let text = at.text()?;
    match text.len() <= 32 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
        true => Ok(text.to_owned()),
        false => {
            Err(at.problem(format!("{text:?} is not an HTTP method")).hint("write it in capitals, such as \"GET\""))
        }
    }
}

fn url_path(at: &Cursor<'_>) -> Result<UrlPath, Problem> {
    let read = |text: &str| {
        if !text.starts_with('/') {
            return Err(PathRefusal::new(format!("{text:?} does not start with \"/\"")));
        }
        if let Some(bad) = text.chars().find(|c| matches!(c, '#' | '%' | '\\') || c.is_whitespace()) {
            return Err(PathRefusal::new(format!("{text:?} contains the character {bad:?}"))
                .hint("write the path decoded and without a query"));
        }
        RulePath::parse_shape(text)
    };
    parsed(at, read).map(UrlPath)
}
