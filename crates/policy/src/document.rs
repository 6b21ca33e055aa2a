//! A policy document as written. Every section may be absent; it is neither merged nor expanded.

use crate::cidr::Cidr;
use crate::error::PolicyError;
use crate::host::{HostName, HostPattern};
use crate::path::RulePath;
use crate::perms::Perms;
use crate::ports::Ports;
use crate::{read, write};
use std::collections::BTreeMap;
use std::fmt;
use terms::{Action, Limits};

/// The version of the document that this crate reads and writes.
pub const VERSION: u32 = 1;

/// A text format of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Toml,
}

impl Format {
    /// Returns TOML for a name with that extension, JSON for every other name.
    pub fn of_name(name: &str) -> Format {
        match name.to_ascii_lowercase().ends_with(".toml") {
            true => Format::Toml,
            false => Format::Json,
        }
    }
}

/// Parses a document. `source` is the name used in messages and rule labels: `policy.json`, `--read`.
pub fn parse(text: &str, format: Format, source: &str) -> Result<Document, PolicyError> {
    read::document(text, format, source)
}

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The origin of the document: the first half of every label. A flag (`--read`) is the whole label.
    pub source: String,
    pub version: u32,
    pub extends: Vec<String>,
    pub defaults: Defaults,
    pub fs: Vec<FsRule>,
    pub net: Vec<NetRule>,
    pub exec: Vec<ExecRule>,
    pub syscalls_deny: Vec<String>,
    pub env: Option<Env>,
    /// Paths below the home that are copied into the sandbox's own.
    pub home_copy: Vec<RulePath>,
    pub secrets: Vec<Secret>,
    pub audit_events: Vec<String>,
    pub limits: Limits,
    pub capabilities: BTreeMap<String, Capability>,
    /// Mechanisms that may be missing. Absent leaves it to other documents; an empty list permits none to be missing.
    pub degrade: Option<Vec<String>>,
}

impl Document {
    /// An empty document.
    pub fn new(source: &str) -> Document {
        Document {
            source: source.to_owned(),
            version: VERSION,
            extends: Vec::new(),
            defaults: Defaults::default(),
            fs: Vec::new(),
            net: Vec::new(),
            exec: Vec::new(),
            syscalls_deny: Vec::new(),
            env: None,
            home_copy: Vec::new(),
            secrets: Vec::new(),
            audit_events: Vec::new(),
            limits: Limits::default(),
            capabilities: BTreeMap::new(),
            degrade: None,
        }
    }

    /// Pretty JSON in canonical order.
    pub fn to_json(&self) -> String {
        write::document(self).to_json()
    }

    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&write::document(self)).unwrap_or_default()
    }
}

/// Actions where no rule matches. Unset resolves to deny for files and network, to allow for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub fs: Option<Action>,
    pub net: Option<Action>,
    pub exec: Option<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsRule {
    pub action: Action,
    pub path: RulePath,
    pub perms: Perms,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecRule {
    pub action: Action,
    pub path: RulePath,
    pub sha256: Option<[u8; 32]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proto {
    Tcp,
    Udp,
    /// Echo requests, which `ping` sends.
    Icmp,
    Unix,
}

impl Proto {
    pub const ALL: [Proto; 4] = [Proto::Tcp, Proto::Udp, Proto::Icmp, Proto::Unix];

    pub fn name(self) -> &'static str {
        match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
            Proto::Icmp => "icmp",
            Proto::Unix => "unix",
        }
    }
}

/// The target of a network rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetTarget {
    Host(HostPattern),
    Cidr(Cidr),
    Unix(RulePath),
}

impl fmt::Display for NetTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetTarget::Host(host) => write!(f, "{host}"),
            NetTarget::Cidr(range) => write!(f, "{range}"),
            NetTarget::Unix(path) => write!(f, "{path}"),
        }
    }
}

impl NetTarget {
    /// Returns true for a target by address, independent of names.
    pub fn is_address(&self) -> bool {
        matches!(self, NetTarget::Cidr(_) | NetTarget::Host(HostPattern::Exact(HostName::Addr(_))))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetRule {
    pub action: Action,
    /// Absent: tcp and udp. Always `Unix` with a socket path.
    pub proto: Option<Proto>,
    pub to: NetTarget,
    pub ports: Option<Ports>,
    /// HTTP methods in capitals.
    pub methods: Option<Vec<String>>,
    /// Patterns over the whole path of the URL.
    pub paths: Option<Vec<UrlPath>>,
    /// Only address and port decide: the host name in the client's first bytes is ignored.
    pub opaque: bool,
    /// Refusals by this rule are expected: they are recorded, and neither shown at the end nor counted for the verdict.
    pub quiet: bool,
}

/// A pattern over a URL's path: the wildcards of file paths, matched against the whole path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UrlPath(pub(crate) RulePath);

impl fmt::Display for UrlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// Names that pass from outside; a final `*` stands for any rest. Absent: the built-in list.
    pub pass: Option<Vec<String>>,
    pub set: BTreeMap<String, String>,
}

/// A secret that never enters the guest: the broker adds it to requests for one host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret {
    pub name: String,
    pub host: HostName,
    pub header: String,
    /// `{}` stands for the secret.
    pub format: String,
    /// A run without a value for it goes on without the secret.
    pub optional: bool,
}

/// The right to call a capability, with a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub allow: bool,
    pub budget: Option<u64>,
}
