//! Parser for `/etc/hosts`. Malformed lines are skipped, as the C library does.

use policy::HostName;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Limit on names. Blocklists for advertisements have some hundred thousand lines.
const MAX_NAMES: usize = 1_000_000;
const MAX_ADDRESSES: usize = 64;

/// Names with their addresses in file order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    names: BTreeMap<String, Vec<IpAddr>>,
}

impl Hosts {
    pub fn parse(text: &str) -> Hosts {
        let mut hosts = Hosts::default();
        for line in text.lines() {
            hosts.read_line(line.split('#').next().unwrap_or_default());
        }
        hosts
    }

    /// Returns the addresses of a name in any spelling; empty if the file does not list it.
    pub fn lookup(&self, name: &str) -> &[IpAddr] {
        match HostName::parse(name) {
            Ok(HostName::Name(name)) => self.names.get(&name).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    fn read_line(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let Some(addr) = words.next().and_then(address) else {
            return;
        };
        for word in words {
            if let Ok(HostName::Name(name)) = HostName::parse(word) {
                self.add(name, addr);
            }
        }
    }

    fn add(&mut self, name: String, addr: IpAddr) {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(&name) {
            return;
        }
        let addresses = self.names.entry(name).or_default();
        if addresses.len() < MAX_ADDRESSES && !addresses.contains(&addr) {
            addresses.push(addr);
        }
    }
}

/// Parses an address of a configuration file. An IPv6 zone (`%eth0`) is dropped, because a socket takes the interface
/// from elsewhere.
pub(crate) fn address(word: &str) -> Option<IpAddr> {
    let bare = match word.split_once('%') {
        Some((bare, zone)) if !zone.is_empty() && bare.contains(':') => bare,
        Some(_) => return None,
        None => word,
    };
    bare.parse().ok()
}
