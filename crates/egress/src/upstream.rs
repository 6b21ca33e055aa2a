//! The host's name service: its resolvers and its hosts table, reloaded when the files change, because hosts move
//! between networks.

use crate::hosts::Hosts;
use crate::resolv_conf::Resolv;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

const RESOLV: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// Size limit for either file, far above real ones.
const MAX_FILE: u64 = 32 * 1024 * 1024;
/// Minimum interval between checks of the files' modification times.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const DNS_PORT: u16 = 53;

/// Resolvers with the timeout and the number of attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolvers {
    pub servers: Vec<SocketAddr>,
    pub timeout: Duration,
    pub attempts: u32,
}

impl From<Resolv> for Resolvers {
    fn from(resolv: Resolv) -> Resolvers {
        let servers = resolv.servers.into_iter().map(|addr| SocketAddr::new(addr, DNS_PORT)).collect();
        Resolvers { servers, timeout: Duration::from_secs(resolv.timeout.into()), attempts: resolv.attempts }
    }
}

pub struct Upstream(ResolverSource);

enum ResolverSource {
    Given(Arc<Resolvers>, Arc<Hosts>),
    Files(Mutex<Files>),
}

struct Files {
    resolvers: Arc<Resolvers>,
    hosts: Arc<Hosts>,
    changed: [Option<SystemTime>; 2],
    looked: Instant,
}

impl Upstream {
    /// Uses `/etc/resolv.conf` and `/etc/hosts` of this host.
    pub fn of_host() -> Upstream {
        Upstream(ResolverSource::Files(Mutex::new(Files::read())))
    }

    /// Uses the given resolvers, and names in the format of `/etc/hosts`.
    pub fn given(resolvers: Resolvers, hosts: &str) -> Upstream {
        Upstream(ResolverSource::Given(Arc::new(resolvers), Arc::new(Hosts::parse(hosts))))
    }

    pub(crate) fn now(&self) -> (Arc<Resolvers>, Arc<Hosts>) {
        match &self.0 {
            ResolverSource::Given(resolvers, hosts) => (resolvers.clone(), hosts.clone()),
            ResolverSource::Files(files) => {
                let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                files.refresh();
                (files.resolvers.clone(), files.hosts.clone())
            }
        }
    }
}

impl Files {
    fn read() -> Files {
        Files {
            changed: [changed(RESOLV), changed(HOSTS)],
            resolvers: Arc::new(Resolv::parse(&text(RESOLV)).into()),
            hosts: Arc::new(Hosts::parse(&text(HOSTS))),
            looked: Instant::now(),
        }
    }

    fn refresh(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        if self.changed != [changed(RESOLV), changed(HOSTS)] {
            *self = Files::read();
        }
    }
}

fn changed(path: &str) -> Option<SystemTime> {
    std::fs::metadata(Path::new(path)).and_then(|m| m.modified()).ok()
}

/// Reads a file; an unreadable file counts as empty, as with the C library.
fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
