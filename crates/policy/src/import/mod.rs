//! Import of settings of other tools. Settings with an equivalent become a document; all others are named. A denial
//! without an equivalent and an unknown key (known.rs) are errors, so that an import never silently widens access.

mod codex;
mod known;
mod srt;

use crate::cursor::{Cursor, Problem};
use crate::document::{Document, Format, FsRule, NetRule, NetTarget, Proto};
use crate::host::HostPattern;
use crate::node::Node;
use crate::path::{PathRefusal, RulePath};
use crate::perms::{Perm, Perms};
use crate::ports::Ports;
use crate::read;
use terms::Action;

pub use codex::codex;
pub use srt::srt;

/// Read access, including execution.
const READ: Perms = Perms::READ.union_const(Perms::of(&[Perm::Execute]));
const WRITE: Perms = READ.union_const(Perms::WRITE);

/// A document made from foreign settings, and what its user should know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub document: Document,
    /// Settings that have no equivalent here, one per key; the user of the document must be warned of them.
    pub left_out: Vec<String>,
    /// Further differences.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFormat {
    Srt,
    Codex,
}

/// Detects the tool whose settings a text holds, if it is not a document of ours.
pub fn detect(text: &str) -> Option<SettingsFormat> {
    let has = |node: &Node, names: &[&str]| match node {
        Node::Map(entries) => entries.iter().any(|(key, _)| names.contains(&key.as_str())),
        _ => false,
    };
    if let Ok(node) = read::tree(text, Format::Json, "") {
        let ours = has(&node, &["version", "extends", "defaults"]);
        return (!ours && has(&node, &["network", "filesystem"])).then_some(SettingsFormat::Srt);
    }
    let node = read::tree(text, Format::Toml, "").ok()?;
    let theirs = has(&node, &["permissions", "default_permissions"]);
    (theirs && !has(&node, &["version"])).then_some(SettingsFormat::Codex)
}

/// The document being made.
struct Import {
    document: Document,
    left_out: Vec<String>,
    notes: Vec<String>,
}

impl Import {
    fn new(source: &str) -> Import {
        Import { document: Document::new(source), left_out: Vec::new(), notes: Vec::new() }
    }

    fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn left_out(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.left_out.contains(&text) {
            self.left_out.push(text);
        }
    }

    fn fs(&mut self, action: Action, path: RulePath, perms: Perms) {
        let rule = FsRule { action, path, perms };
        if !self.document.fs.contains(&rule) {
            self.document.fs.push(rule);
        }
    }

    fn net(&mut self, rule: NetRule) {
        if !self.document.net.contains(&rule) {
            self.document.net.push(rule);
        }
    }

    fn done(self) -> Imported {
        Imported { document: self.document, left_out: self.left_out, notes: self.notes }
    }

    /// Handles an entry that could not be parsed: an error for a denial, a note for an allowance.
    fn unreadable(&mut self, at: &Cursor<'_>, action: Action, refusal: PathRefusal) -> Result<(), Problem> {
        match action {
            Action::Deny => Err(at.refused(refusal)),
            _ => {
                self.note(format!("{}: left out", refusal.message));
                Ok(())
            }
        }
    }
}

/// Parses a path of foreign settings; a relative one is relative to the workspace.
fn foreign_path(text: &str) -> Result<RulePath, PathRefusal> {
    let text = text.strip_suffix("/**").filter(|rest| !rest.is_empty()).unwrap_or(text);
    if text.starts_with(['/', '~', '$']) {
        return RulePath::parse(text);
    }
    let inner = text.strip_prefix("./").unwrap_or(text);
    match inner {
        "" if text.is_empty() => Err(PathRefusal::new("the path is empty")),
        "" | "." => RulePath::parse("$WORKSPACE"),
        inner => RulePath::parse(&format!("$WORKSPACE/{inner}"))
            .map_err(|refusal| PathRefusal { message: refusal.message.replace("$WORKSPACE/", ""), ..refusal }),
    }
}

/// Parses `host`, `*.host`, `host:port`, `[v6]:port`.
fn foreign_host(text: &str) -> Result<(HostPattern, Option<Ports>), PathRefusal> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    };
    let pattern = HostPattern::parse(host)?;
    let ports = port.map(Ports::parse).transpose()?;
    Ok((pattern, ports))
}

fn host_rule(action: Action, host: HostPattern, ports: Option<Ports>) -> NetRule {
    NetRule {
        action,
        proto: Some(Proto::Tcp),
        to: NetTarget::Host(host),
        ports,
        methods: None,
        paths: None,
        opaque: false,
        quiet: false,
    }
}

fn socket_rule(action: Action, path: RulePath) -> NetRule {
    NetRule {
        action,
        proto: Some(Proto::Unix),
        to: NetTarget::Unix(path),
        ports: None,
        methods: None,
        paths: None,
        opaque: false,
        quiet: false,
    }
}

/// Returns rules for the loopback addresses if the name is `localhost`: a name does not open special addresses, only
/// ranges do.
fn loopback_rules(host: &HostPattern, ports: &Option<Ports>) -> Vec<NetRule> {
    let local = host.to_string() == "localhost";
    let ranges =
        ["127.0.0.0/8", "::1/128"].into_iter().filter(|_| local).filter_map(|r| crate::cidr::Cidr::parse(r).ok());
    ranges
        .map(|cidr| NetRule { to: NetTarget::Cidr(cidr), ..host_rule(Action::Allow, host.clone(), ports.clone()) })
        .collect()
}
