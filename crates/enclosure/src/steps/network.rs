//! Steps of a guest with a network: the doors, and the files for name resolution and certificates.

use super::{Builder, LAYERS, QUIET};
use crate::trust;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use sys::arena::Text;
use sys::doors::{OWN_V4, RESOLVER};
use sys::op::{Attr, Op};
use sys::{net, netfilter, netlink, syn_capture};

/// Symbolic links followed before the chain counts as a loop.
const MOST_LINKS: usize = 8;

/// The location that a path resolves to inside.
enum InsideLocation {
    /// Outside of all mounts: only generated files are there.
    Bare(PathBuf),
    /// A file of the host's, by its real path.
    File(PathBuf),
    /// A directory of the host without such a file.
    Missing(PathBuf),
}

impl Builder<'_> {
    /// Adds the steps that open the doors: early among the first process's own steps, while it has CAP_NET_ADMIN.
    pub(super) fn doors(&mut self) {
        let Some(plan) = &self.spec.network else { return };
        if plan.names_only {
            self.own.push(Op::OpenResolver { batch: self.arena.list(&netlink::resolver_address()) });
            return;
        }
        let ipv6 = net::has_ipv6();
        let loopback = plan.loopback.iter().filter(|place| ipv6 || place.is_ipv4()).copied().collect::<Vec<_>>();
        self.own.push(Op::Netlink {
            family: netlink::ROUTE,
            batch: self.arena.list(&netlink::routes(ipv6)),
            what: "routes",
        });
        self.own.push(Op::Netlink {
            family: netlink::NETFILTER,
            batch: self.arena.list(&netfilter::rules(ipv6, &loopback)),
            what: "rules",
        });
        let filters = [false, true].map(|ipv6| self.arena.list(&syn_capture::filter(ipv6, &loopback)));
        self.own.push(Op::OpenDoors { ipv6, loopback: self.arena.list(&loopback), filters });
        if plan.echoes {
            self.let_echo();
        }
    }

    /// Permits ICMP echo sockets to the guest's group, which a new network namespace permits to no group. /proc/sys is
    /// read-only by then, so its cover is removed for that one write.
    fn let_echo(&mut self) {
        let gid = self.guest.gid;
        let (at, attr) = (Text::from(c"/proc/sys"), QUIET.with(Attr::READ_ONLY).with(Attr::NO_EXEC));
        self.own.push(Op::Unmount { at: at.clone() });
        let bytes = self.arena.list(format!("{gid} {gid}").as_bytes());
        self.own.push(Op::WriteFile { at: c"/proc/sys/net/ipv4/ping_group_range".into(), bytes });
        self.own.push(Op::BindKnown { from: at.clone(), at, attr });
    }

    /// Generates resolv.conf, hosts and CA bundles. The host's own files are for the broker, which a guest asks for
    /// every name but its own.
    pub(super) fn network_files(&mut self) {
        let Some(plan) = &self.spec.network else { return };
        if plan.names_only {
            // Where there is no such file, nothing is put there for a guest that has no network.
            if let InsideLocation::File(real) = self.place(Path::new("/etc/resolv.conf")) {
                self.made_file("resolv.conf", resolver_file(false), 0o444, &real);
            }
            return;
        }
        self.show("resolv.conf", resolver_file(plan.asks), Path::new("/etc/resolv.conf"));
        self.show("hosts", hosts_file(&rustix::system::uname().nodename().to_string_lossy()), Path::new("/etc/hosts"));
        let Some(authority) = &plan.authority else { return };
        let bundles = trust::bundles(authority);
        self.show("ca-bundle.pem", trust::whole(&bundles, authority), Path::new(trust::BUNDLE));
        self.show("ca.pem", authority.clone().into_bytes(), Path::new(trust::OWN));
        for (i, (path, bytes)) in bundles.into_iter().enumerate() {
            if self.is_mounted(&path) {
                self.show(&format!("bundle-{i}"), bytes, &path);
            }
        }
    }

    /// Shows a generated file at `at`, whatever the host has there.
    fn show(&mut self, name: &str, bytes: Vec<u8>, at: &Path) {
        match self.place(at) {
            InsideLocation::File(real) => self.made_file(name, bytes, 0o444, &real),
            InsideLocation::Missing(path) => self.layered_file(bytes, &path),
            InsideLocation::Bare(path) => {
                if let Some(parent) = path.parent() {
                    self.dir(parent);
                }
                self.push(Op::File { at: self.cpath(&path), mode: 0o444, bytes: self.arena.list(&bytes) });
                self.generated_files.push(path);
            }
        }
    }

    /// Follows symbolic links as they will be inside: the host's where a mount shows them, and none elsewhere.
    fn place(&self, at: &Path) -> InsideLocation {
        let mut at = at.to_path_buf();
        for _ in 0..MOST_LINKS {
            if !self.is_mounted(&at) {
                return InsideLocation::Bare(at);
            }
            match std::fs::read_link(&at) {
                Ok(target) => at = joined(&at, &target),
                Err(_) => break,
            }
        }
        match std::fs::canonicalize(&at) {
            Ok(real) if real.is_file() => InsideLocation::File(real),
            _ => InsideLocation::Missing(at),
        }
    }

    /// Adds a file to a read-only directory, by an overlay whose upper layer has the file.
    fn layered_file(&mut self, bytes: Vec<u8>, at: &Path) {
        let (Some(dir), Some(name)) = (at.parent().filter(|d| d.is_dir()), at.file_name()) else { return };
        let layer = self.new_layer();
        let file = Path::new(&layer).join(name);
        self.push(Op::File { at: self.cpath(&file), mode: 0o444, bytes: self.arena.list(&bytes) });
        self.overlay(&layer, dir, QUIET);
    }

    pub(super) fn layers_place(&mut self) {
        if !std::mem::replace(&mut self.layers, true) {
            self.push(Op::Tmpfs { at: self.cstring(LAYERS), options: c"mode=700".into(), attr: QUIET });
        }
    }

    /// Creates an empty directory as a layer.
    pub(super) fn new_layer(&mut self) -> String {
        self.layers_place();
        let layer = format!("{LAYERS}/layer-{}", self.ops.len());
        self.push(Op::Dir { at: self.cstring(&layer), mode: 0o755 });
        layer
    }
}

/// Returns a symbolic link's target as an absolute path. The guest's tree has no `..` that a link could redirect.
fn joined(link: &Path, target: &Path) -> PathBuf {
    let mut whole: Vec<OsString> = Vec::new();
    let base = link.parent().unwrap_or(Path::new("/"));
    for part in base.join(target).components() {
        match part {
            Component::Normal(name) => whole.push(name.into()),
            Component::ParentDir => drop(whole.pop()),
            _ => {}
        }
    }
    Path::new("/").join(whole.iter().collect::<PathBuf>())
}

/// Generates resolv.conf: one resolver that answers at once, so a second try is not worth waiting for; no search list.
fn resolver_file(asks: bool) -> Vec<u8> {
    // The maxima that resolvers accept.
    let patience = if asks { "timeout:30 attempts:5" } else { "timeout:10 attempts:2" };
    format!("nameserver {RESOLVER}\noptions {patience}\n").into_bytes()
}

/// Generates /etc/hosts with the guest's own names.
fn hosts_file(name: &str) -> Vec<u8> {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let own = if plain && name != "localhost" { format!("{OWN_V4} {name}\n") } else { String::new() };
    format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n{own}").into_bytes()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn links_are_joined_to_where_they_stand() {
        for (link, target, whole) in [
            ("/etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/stub-resolv.conf"),
            ("/etc/resolv.conf", "/var/run/x", "/var/run/x"),
            ("/etc/resolv.conf", "resolv.other", "/etc/resolv.other"),
            ("/etc/resolv.conf", "../../../../a", "/a"),
        ] {
            assert_eq!(joined(Path::new(link), Path::new(target)), Path::new(whole));
        }
    }

    #[test]
    fn only_the_guest_itself_has_a_name_in_its_file() {
        let text = |name: &str| String::from_utf8(hosts_file(name)).unwrap();
        assert_eq!(text("box"), "127.0.0.1 localhost\n::1 localhost ip6-localhost\n192.0.0.8 box\n");
        assert_eq!(text("a b\nc"), text(""));
        assert_eq!(text("localhost"), text(""));
        assert!(String::from_utf8(resolver_file(false)).unwrap().starts_with("nameserver 192.0.0.53\n"));
    }
}
