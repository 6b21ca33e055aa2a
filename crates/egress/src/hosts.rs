//! `/etc/hosts`: names that the host itself knows. Lines that cannot be read are passed over, as the C library does.

use policy::HostName;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Lists that block advertisements have some hundred thousand lines; beyond that it is no table of hosts.
const MAX_NAMES: usize = 1_000_000;
const MAX_ADDRESSES: usize = 64;

/// Names with their addresses, each in the order of the file.
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

    /// The addresses of a name, however it is spelled; none when the file does not name it.
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

/// An address as configuration files of the host spell it. A zone names a link of this machine, which a socket takes
/// from elsewhere; it is left out.
pub(crate) fn address(word: &str) -> Option<IpAddr> {
    let bare = match word.split_once('%') {
        Some((bare, zone)) if !zone.is_empty() && bare.contains(':') => bare,
        Some(_) => return None,
        None => word,
    };
    bare.parse().ok()
}
