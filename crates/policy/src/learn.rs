//! Learning of a policy: the smallest readable document that permits exactly the operations observed in a run. Files
//! are named one by one; if several entries of a directory were used, the directory is named instead, but never a home
//! directory, the root or a directory with credentials.

use crate::cidr::Cidr;
use crate::document::{Defaults, Document, ExecRule, FsRule, NetRule, NetTarget, Proto};
use crate::host::{HostName, HostPattern};
use crate::net::is_public;
use crate::path::RulePath;
use crate::perms::{Perm, Perms};
use crate::ports::Ports;
use crate::resolve::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use terms::Action;

/// Number of entries from which on their directory is named instead.
const COLLAPSE_FROM: usize = 3;

/// Operations observed during a run. Paths are absolute, normalised and real.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Files with the permissions used, as landlock counts: making and removing is a use of the directory.
    pub files: Vec<(PathBuf, Perms)>,
    /// Paths made during the run. A rule on such a path would have no effect, so its directory is named instead.
    pub made: Vec<PathBuf>,
    /// Renames across directories: source and target.
    pub moved: Vec<(PathBuf, PathBuf)>,
    pub programs: Vec<PathBuf>,
    pub reached: Vec<ObservedConnection>,
}

/// A connection, or an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedConnection {
    pub place: Destination,
    /// True if the connection was permitted, which happens only where the caller allowed it.
    pub passed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Net {
        proto: Proto,
        /// The name that the command used; `None` for a connection by address.
        host: Option<String>,
        addr: IpAddr,
        /// An address of this host, its neighbours or its cloud.
        is_special: bool,
        port: u16,
    },
    /// A socket of the host that is a file.
    Socket(PathBuf),
}

impl Destination {
    /// Returns true if one rule covers both: the addresses of a name make no difference.
    pub fn is_same(&self, other: &Destination) -> bool {
        match (self, other) {
            (
                Destination::Net { proto, host: Some(host), port, is_special: false, .. },
                Destination::Net { proto: p, host: Some(h), port: q, is_special: false, .. },
            ) => (proto, host, port) == (p, h, q),
            _ => self == other,
        }
    }

    /// Returns true if the command used this name.
    pub fn is_named(&self, name: &str) -> bool {
        matches!(self, Destination::Net { host: Some(host), .. } if host == name)
    }
}

/// A learned document, and notes on what it does not allow.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    pub document: Document,
    pub notes: Vec<String>,
}

/// Files with credentials below a home directory, and elsewhere. A rule learned from other files never covers one of
/// them.
const HOME_CREDENTIALS: [&str; 27] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".gitconfig",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".password-store",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/git",
    ".config/rclone",
    ".local/share/keyrings",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
    ".cargo/credentials.toml",
    ".gem/credentials",
];
const SYSTEM_CREDENTIALS: [&str; 8] = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/ssh",
    "/etc/ssl/private",
    "/root",
    "/run/secrets",
    "/var/run/secrets",
];

/// Builds the document that allows the observed operations. Its `fs` and `exec` defaults deny, so that it is complete
/// by itself.
pub fn learn(seen: &Observed, ctx: &Context, source: &str) -> Learned {
    let mut notes = Vec::new();
    let mut files = by_path(seen, ctx, &mut notes);
    collapse(&mut files, ctx);
    join_moved(seen, &mut files, ctx, &mut notes);
    drop_covered(&mut files);
    let mut document = Document::new(source);
    document.defaults = Defaults { fs: Some(Action::Deny), net: None, exec: Some(Action::Deny) };
    let mut path_of = |path: &Path| {
        let rule = rule_path(path, ctx);
        if rule.is_none() {
            notes.push(format!("{}: no rule can name it", path.display()));
        }
        rule
    };
    for (path, perms) in &files {
        let path = path_of(path);
        document.fs.extend(path.map(|path| FsRule { action: Action::Allow, path, perms: *perms }));
    }
    for path in seen.programs.iter().collect::<BTreeSet<_>>() {
        let path = path_of(path);
        document.exec.extend(path.map(|path| ExecRule { action: Action::Allow, path, sha256: None }));
    }
    document.net = net_rules(seen, ctx, &mut notes);
    Learned { document, notes }
}

/// Sockets of services that give every client the rights of root, or of the user's whole session.
const PRIVILEGED_SOCKETS: [&str; 8] = [
    "docker.sock",
    "containerd.sock",
    "podman.sock",
    "crio.sock",
    "buildkitd.sock",
    "system_bus_socket",
    "bus",
    "private",
];
const NO_PORT: &str = "it names no port";
/// UDP port of QUIC; programs fall back to TCP.
const QUIC: u16 = 443;

/// Builds the network rules, one per host. A refused connection gets a rule too, like a file that could not be written;
/// but never a special address, nor a service that controls the whole host.
fn net_rules(seen: &Observed, ctx: &Context, notes: &mut Vec<String>) -> Vec<NetRule> {
    let mut ports: BTreeMap<(Proto, RuleTarget), BTreeSet<u16>> = BTreeMap::new();
    let mut sockets = BTreeSet::new();
    for ObservedConnection { place, passed } in &seen.reached {
        match place {
            Destination::Socket(path) => match withheld_socket(path, seen, ctx).filter(|_| !passed) {
                Some(why) => notes.push(format!("unix:{}: {why}, so no rule was written for it", path.display())),
                None if seen.made.contains(path) => {}
                None => sockets.extend(rule_path(path, ctx)),
            },
            Destination::Net { proto, host, addr, is_special, port } => {
                // A host that is an address counts as an address.
                let host = host.as_ref().filter(|name| !matches!(HostName::parse(name), Ok(HostName::Addr(_))));
                let why = match port {
                    // No rule can name port 0, and a rule without a port would cover all ports.
                    0 if *proto != Proto::Icmp => Some(NO_PORT),
                    _ => withheld(*proto, host.map(String::as_str), *is_special, *port).filter(|_| !passed),
                };
                if let Some(why) = why {
                    let name = host.cloned().unwrap_or_else(|| HostName::Addr(*addr).to_string());
                    notes.push(format!("{}:{name}:{port}: {why}, so no rule was written for it", proto.name()));
                    continue;
                }
                let named = host.and_then(|name| HostName::parse(name).ok()).map(RuleTarget::Host);
                // A name does not open a special address that it resolves to; the caller's consent does.
                let bare = (named.is_none() || (*is_special && *passed)).then_some(RuleTarget::Addr(*addr));
                for key in named.into_iter().chain(bare) {
                    ports.entry((*proto, key)).or_default().insert(*port);
                }
            }
        }
    }
    let unix = sockets.into_iter().map(|path| net_rule(Proto::Unix, NetTarget::Unix(path), None));
    ports.into_iter().map(|((proto, key), ports)| net_rule(proto, key.target(), Some(&ports))).chain(unix).collect()
}

/// Target of a learned rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RuleTarget {
    Host(HostName),
    Addr(IpAddr),
}

impl RuleTarget {
    fn target(self) -> NetTarget {
        match self {
            RuleTarget::Host(host) => NetTarget::Host(HostPattern::Exact(host)),
            RuleTarget::Addr(addr) => NetTarget::Cidr(Cidr::of(addr)),
        }
    }
}

fn net_rule(proto: Proto, to: NetTarget, ports: Option<&BTreeSet<u16>>) -> NetRule {
    let ports = ports.and_then(|ports| {
        let list: Vec<String> = ports.iter().map(u16::to_string).collect();
        Ports::parse(&list.join(",")).ok()
    });
    // A rule without a protocol covers TCP connections.
    let proto = Some(proto).filter(|proto| *proto != Proto::Tcp);
    NetRule { action: Action::Allow, proto, to, ports, methods: None, paths: None, opaque: false, quiet: false }
}

/// Returns the reason why a refused connection gets no rule.
fn withheld(proto: Proto, host: Option<&str>, is_special: bool, port: u16) -> Option<&'static str> {
    let public = host.is_none_or(|name| HostName::parse(name).is_ok_and(|host| is_public(&host)));
    match host {
        _ if port == 0 => Some(NO_PORT),
        _ if !public => Some("the name is one of this machine or its network; learn with --net and its address"),
        None if is_special => {
            Some("it is an address of this host, its neighbours or its cloud; learn with --net if it is meant")
        }
        _ if proto == Proto::Udp && port == QUIC => Some("the command was not let through and can do without"),
        _ => None,
    }
}

fn withheld_socket(path: &Path, seen: &Observed, ctx: &Context) -> Option<&'static str> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match () {
        () if seen.made.iter().any(|made| made == path) => None,
        () if holds_credentials(path, ctx) => Some("it lies where credentials are kept"),
        () if PRIVILEGED_SOCKETS.contains(&name) => Some(
            "a program that connects to it gets the powers of its service; learn with --net unix:PATH if that is intended",
        ),
        () => None,
    }
}

/// Returns true if a rule on `path` would cover credentials.
pub fn holds_credentials(path: &Path, ctx: &Context) -> bool {
    let home = HOME_CREDENTIALS.iter().map(|name| ctx.home.join(name));
    // Root's home, as the user's own, is judged by its contents.
    let system = SYSTEM_CREDENTIALS.iter().map(PathBuf::from).filter(|p| *p != ctx.home);
    home.chain(system).any(|secret| secret.starts_with(path) || path.starts_with(&secret))
}

/// Collects permissions per path. A program's own file needs no file rule: the exec rule permits reading and executing
/// it.
fn by_path(seen: &Observed, ctx: &Context, notes: &mut Vec<String>) -> BTreeMap<PathBuf, Perms> {
    let programs: BTreeSet<&PathBuf> = seen.programs.iter().collect();
    let made: BTreeSet<&PathBuf> = seen.made.iter().collect();
    let mut files: BTreeMap<PathBuf, Perms> = BTreeMap::new();
    for (path, perms) in &seen.files {
        let mut used = perms.minus(Perms::of(&[Perm::Execute]));
        if programs.contains(path) {
            used = used.minus(Perms::of(&[Perm::ReadFile]));
        }
        if used.is_empty() || !path.is_absolute() {
            continue;
        }
        let place = existing(path, &made);
        if place != path && !may_collapse(place, ctx) {
            let (path, dir) = (path.display(), place.display());
            let note = format!("{path}: it was made during the run, and a rule on {dir} would open too much");
            if !notes.contains(&note) {
                notes.push(note);
            }
            continue;
        }
        let entry = files.entry(place.to_owned()).or_insert(Perms::NONE);
        *entry = entry.union(used);
    }
    files
}

/// Returns the path, or the nearest directory above it that existed before the run.
fn existing<'a>(path: &'a Path, made: &BTreeSet<&PathBuf>) -> &'a Path {
    path.ancestors().find(|a| !made.iter().any(|m| m.as_path() == *a)).unwrap_or(path)
}

/// Replaces entries by their directory, from the deepest up, so that a tree that was used all over ends as one rule.
/// Only entries with equal permissions are combined: reading three files must not permit writing a fourth.
fn collapse(files: &mut BTreeMap<PathBuf, Perms>, ctx: &Context) {
    let depth = |path: &Path| path.components().count();
    let deepest = files.keys().map(|p| depth(p)).max().unwrap_or(0);
    for level in (1..deepest).rev() {
        let mut alike: BTreeMap<(PathBuf, Perms), Vec<PathBuf>> = BTreeMap::new();
        for (path, perms) in files.iter().filter(|(p, _)| depth(p) == level + 1) {
            if let Some(parent) = path.parent() {
                alike.entry((parent.to_owned(), *perms)).or_default().push(path.clone());
            }
        }
        for ((parent, perms), entries) in alike {
            if entries.len() >= COLLAPSE_FROM && may_collapse(&parent, ctx) {
                files.retain(|path, _| entries.binary_search(path).is_err());
                let entry = files.entry(parent).or_insert(Perms::NONE);
                *entry = entry.union(perms);
            }
        }
    }
}

/// Combines directories between which names are renamed: they must be one mount inside, with the same permissions, so
/// the common ancestor is named instead of both and all directories on the way.
fn join_moved(seen: &Observed, files: &mut BTreeMap<PathBuf, Perms>, ctx: &Context, notes: &mut Vec<String>) {
    let made: BTreeSet<&PathBuf> = seen.made.iter().collect();
    let dirs = |path: &Path| path.parent().map(|dir| existing(dir, &made).to_owned());
    let pairs = seen.moved.iter().filter_map(|(from, to)| Some((dirs(from)?, dirs(to)?)));
    for (from, to) in pairs.collect::<BTreeSet<_>>() {
        let Some(both) = from.ancestors().find(|above| to.starts_with(above)) else { continue };
        if !may_collapse(both, ctx) {
            let (from, to, both) = (from.display(), to.display(), both.display());
            notes.push(format!(
                "{from} and {to}: names are moved between them, and a rule on {both} would open too much"
            ));
            continue;
        }
        let leads =
            |path: &Path| path != both && (from.starts_with(path) || to.starts_with(path)) && path.starts_with(both);
        let joined =
            files.iter().filter(|(path, _)| leads(path)).fold(Perms::NONE, |all, (_, perms)| all.union(*perms));
        files.retain(|path, _| !leads(path));
        let entry = files.entry(both.to_owned()).or_insert(Perms::NONE);
        *entry = entry.union(joined).union(Perms::of(&[Perm::Refer]));
    }
}

fn may_collapse(dir: &Path, ctx: &Context) -> bool {
    let too_wide = dir == Path::new("/") || ctx.home.starts_with(dir) || is_some_home(dir) || is_shared(dir);
    !too_wide && !holds_credentials(dir, ctx)
}

/// Returns true for a user's home, and for the directory of all homes.
fn is_some_home(dir: &Path) -> bool {
    let mut parts = dir.components().skip(1);
    let first = parts.next().is_some_and(|c| c.as_os_str() == "home" || c.as_os_str() == "Users");
    first && parts.count() <= 1
}

/// Returns true for directories with unrelated entries.
fn is_shared(dir: &Path) -> bool {
    ["/tmp", "/var", "/var/tmp", "/run", "/dev", "/proc", "/sys", "/mnt", "/media", "/srv", "/etc"]
        .iter()
        .any(|shared| dir == Path::new(shared))
}

fn drop_covered(files: &mut BTreeMap<PathBuf, Perms>) {
    let all = files.clone();
    files.retain(|path, perms| {
        let above = path.ancestors().skip(1).filter_map(|a| all.get(a)).fold(Perms::NONE, |all, p| all.union(*p));
        *perms = perms.minus(above);
        !perms.is_empty()
    });
}

/// Writes the path relative to the workspace or home if it is below them.
fn rule_path(path: &Path, ctx: &Context) -> Option<RulePath> {
    let whole = RulePath::literal(path)?;
    for (base, name) in [(&ctx.workspace, "$WORKSPACE"), (&ctx.home, "~")] {
        if base == Path::new("/") {
            continue;
        }
        if let Ok(rest) = path.strip_prefix(base) {
            let rest: Vec<String> =
                crate::glob::names(rest).filter_map(|n| n.to_str()).map(crate::component::escape).collect();
            let text = std::iter::once(name.to_owned()).chain(rest).collect::<Vec<_>>().join("/");
            return RulePath::parse(&text).ok().or(Some(whole));
        }
    }
    Some(whole)
}

#[cfg(test)]
#[path = "learn_test.rs"]
mod test;
