//! Learning: from what a command did, the smallest readable document that lets it do exactly that again.
//! Files are named one by one; when several entries of a directory were used, the directory stands for them, but
//! never one that would open a home directory, the root or a place that keeps credentials.

use crate::cidr::Cidr;
use crate::document::{Defaults, Document, ExecRule, FsRule, NetRule, Proto, Target};
use crate::host::{Host, HostPattern};
use crate::net::is_public;
use crate::path::RulePath;
use crate::perms::{Perm, Perms};
use crate::ports::Ports;
use crate::resolve::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use terms::Action;

/// From how many entries on their directory stands for them.
const MANY: usize = 3;

/// What was seen during a run. Paths are absolute, normalised and real.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// As landlock counts: making and removing is a use of the directory.
    pub files: Vec<(PathBuf, Perms)>,
    /// What was not there before. A rule on such a path would have no effect, so its directory stands for it.
    pub made: Vec<PathBuf>,
    /// Names that left their directory for another: where from and where to.
    pub moved: Vec<(PathBuf, PathBuf)>,
    pub programs: Vec<PathBuf>,
    pub reached: Vec<Reached>,
}

/// What the command connected to, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    pub place: Place,
    /// Whether it was let through, which it is only where the caller said so.
    pub passed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Net {
        proto: Proto,
        /// As the command named it; without, it went to the address itself.
        host: Option<String>,
        addr: IpAddr,
        /// An address of this host, its neighbours or its cloud.
        is_special: bool,
        port: u16,
    },
    /// A socket of the host that is a file.
    Socket(PathBuf),
}

impl Place {
    /// Whether the same rule would be about both: the addresses of a name make no difference.
    pub fn is_same(&self, other: &Place) -> bool {
        match (self, other) {
            (
                Place::Net { proto, host: Some(host), port, is_special: false, .. },
                Place::Net { proto: p, host: Some(h), port: q, is_special: false, .. },
            ) => (proto, host, port) == (p, h, q),
            _ => self == other,
        }
    }

    /// Whether the command named it so.
    pub fn is_named(&self, name: &str) -> bool {
        matches!(self, Place::Net { host: Some(host), .. } if host == name)
    }
}

/// A learned document, and what it could not allow.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    pub document: Document,
    pub notes: Vec<String>,
}

/// Names below a home directory, and places elsewhere, that keep credentials. A rule learned from other files never
/// covers one of them.
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

/// The document that allows what was seen. Its `fs` and `exec` defaults deny, so that it stands alone.
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
    document.net = reached(seen, ctx, &mut notes);
    Learned { document, notes }
}

/// Services that do for whoever reaches them whatever root, or the caller's whole session, can do.
const MIGHTY_SOCKETS: [&str; 8] = [
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
/// Programs that try datagrams here go on without them.
const QUIC: u16 = 443;

/// Rules about the network, one for each host. What was not let through gets one as well, like a file that could not be
/// written; but never an address that is special, nor a service that is the whole host.
fn reached(seen: &Observed, ctx: &Context, notes: &mut Vec<String>) -> Vec<NetRule> {
    let mut ports: BTreeMap<(Proto, Key), BTreeSet<u16>> = BTreeMap::new();
    let mut sockets = BTreeSet::new();
    for Reached { place, passed } in &seen.reached {
        match place {
            Place::Socket(path) => match withheld_socket(path, seen, ctx).filter(|_| !passed) {
                Some(why) => notes.push(format!("unix:{}: {why}, so no rule was written for it", path.display())),
                None if seen.made.contains(path) => {}
                None => sockets.extend(rule_path(path, ctx)),
            },
            Place::Net { proto, host, addr, is_special, port } => {
                // Whoever names an address means the address.
                let host = host.as_ref().filter(|name| !matches!(Host::parse(name), Ok(Host::Addr(_))));
                let why = match port {
                    // No rule can name it, and one without a port would be about all of them.
                    0 if *proto != Proto::Icmp => Some(NO_PORT),
                    _ => withheld(*proto, host.map(String::as_str), *is_special, *port).filter(|_| !passed),
                };
                if let Some(why) = why {
                    let name = host.cloned().unwrap_or_else(|| Host::Addr(*addr).to_string());
                    notes.push(format!("{}:{name}:{port}: {why}, so no rule was written for it", proto.name()));
                    continue;
                }
                let named = host.and_then(|name| Host::parse(name).ok()).map(Key::Host);
                // A name does not open a special address that it leads to; the caller's word does.
                let bare = (named.is_none() || (*is_special && *passed)).then_some(Key::Addr(*addr));
                for key in named.into_iter().chain(bare) {
                    ports.entry((*proto, key)).or_default().insert(*port);
                }
            }
        }
    }
    let unix = sockets.into_iter().map(|path| net_rule(Proto::Unix, Target::Unix(path), None));
    ports.into_iter().map(|((proto, key), ports)| net_rule(proto, key.target(), Some(&ports))).chain(unix).collect()
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Host(Host),
    Addr(IpAddr),
}

impl Key {
    fn target(self) -> Target {
        match self {
            Key::Host(host) => Target::Host(HostPattern::Exact(host)),
            Key::Addr(addr) => Target::Cidr(Cidr::of(addr)),
        }
    }
}

fn net_rule(proto: Proto, to: Target, ports: Option<&BTreeSet<u16>>) -> NetRule {
    let ports = ports.and_then(|ports| {
        let list: Vec<String> = ports.iter().map(u16::to_string).collect();
        Ports::parse(&list.join(",")).ok()
    });
    // A rule without a protocol is about connections.
    let proto = Some(proto).filter(|proto| *proto != Proto::Tcp);
    NetRule { action: Action::Allow, proto, to, ports, methods: None, paths: None, opaque: false }
}

/// Why a place that was not let through gets no rule.
fn withheld(proto: Proto, host: Option<&str>, is_special: bool, port: u16) -> Option<&'static str> {
    let public = host.is_none_or(|name| Host::parse(name).is_ok_and(|host| is_public(&host)));
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
        () if MIGHTY_SOCKETS.contains(&name) => {
            Some("whoever reaches it can do whatever it can; learn with --net unix:PATH if that is meant")
        }
        () => None,
    }
}

/// Whether a rule on `path` would reach credentials.
pub fn holds_credentials(path: &Path, ctx: &Context) -> bool {
    let home = HOME_CREDENTIALS.iter().map(|name| ctx.home.join(name));
    // Root's own home is judged like anybody's, by what is in it.
    let system = SYSTEM_CREDENTIALS.iter().map(PathBuf::from).filter(|p| *p != ctx.home);
    home.chain(system).any(|secret| secret.starts_with(path) || path.starts_with(&secret))
}

/// Uses per path. A program's own file needs no file rule: the exec rule lets it be read and run.
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
        if place != path && !may_stand_for_all(place, ctx) {
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

/// The path, or the nearest directory above it that was there before.
fn existing<'a>(path: &'a Path, made: &BTreeSet<&PathBuf>) -> &'a Path {
    path.ancestors().find(|a| !made.iter().any(|m| m.as_path() == *a)).unwrap_or(path)
}

/// From the deepest directories up, so that a tree that was used all over ends as one rule. Only entries that were
/// used in the same way are put together: reading three files must not let a fourth be written.
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
            if entries.len() >= MANY && may_stand_for_all(&parent, ctx) {
                files.retain(|path, _| entries.binary_search(path).is_err());
                let entry = files.entry(parent).or_insert(Perms::NONE);
                *entry = entry.union(perms);
            }
        }
    }
}

/// Two directories between which names are moved must be one place inside, with the same permissions: what is above both stands for
/// them and for all that leads to them.
fn join_moved(seen: &Observed, files: &mut BTreeMap<PathBuf, Perms>, ctx: &Context, notes: &mut Vec<String>) {
    let made: BTreeSet<&PathBuf> = seen.made.iter().collect();
    let dirs = |path: &Path| path.parent().map(|dir| existing(dir, &made).to_owned());
    let pairs = seen.moved.iter().filter_map(|(from, to)| Some((dirs(from)?, dirs(to)?)));
    for (from, to) in pairs.collect::<BTreeSet<_>>() {
        let Some(both) = from.ancestors().find(|above| to.starts_with(above)) else { continue };
        if !may_stand_for_all(both, ctx) {
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

fn may_stand_for_all(dir: &Path, ctx: &Context) -> bool {
    let too_wide = dir == Path::new("/") || ctx.home.starts_with(dir) || is_some_home(dir) || is_shared(dir);
    !too_wide && !holds_credentials(dir, ctx)
}

/// `/home/anyone`, and the directory of all homes.
fn is_some_home(dir: &Path) -> bool {
    let mut parts = dir.components().skip(1);
    let first = parts.next().is_some_and(|c| c.as_os_str() == "home" || c.as_os_str() == "Users");
    first && parts.count() <= 1
}

/// Directories whose entries have nothing to do with each other.
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

/// The path as people would write it: below the workspace or home when it is there.
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
