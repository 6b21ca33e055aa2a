//! Table of resolved names: which name led to which address. A guest may connect to an address under a name only if
//! that name resolved to it; a name that only the guest's own bytes claim does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Limit on names, more than a run usually resolves. The least recently resolved name is evicted; a guest that still
/// needs it resolves it again.
const MAX_NAMES: usize = 4096;
/// Limit on addresses per name. DNS answers vary from query to query, and the addresses of all of them stay valid.
const MAX_ADDRESSES: usize = 128;
/// Limit on names that a connection to one address is judged by, the most recent first.
const MAX_CANDIDATES: usize = 256;

#[derive(Default)]
pub(crate) struct Pins {
    names: BTreeMap<String, Pinned>,
    addresses: BTreeMap<IpAddr, BTreeSet<String>>,
    clock: u64,
}

#[derive(Default)]
struct Pinned {
    addresses: Vec<IpAddr>,
    asked: u64,
}

impl Pins {
    /// Records that `name` resolved to `addresses`.
    pub fn add(&mut self, name: &str, addresses: &[IpAddr]) {
        if addresses.is_empty() {
            return;
        }
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(name) {
            self.forget_oldest();
        }
        self.clock += 1;
        let pinned = self.names.entry(name.to_owned()).or_default();
        pinned.asked = self.clock;
        for addr in addresses.iter().map(IpAddr::to_canonical) {
            if pinned.addresses.contains(&addr) {
                continue;
            }
            if pinned.addresses.len() == MAX_ADDRESSES {
                let gone = pinned.addresses.remove(0);
                unlink(&mut self.addresses, gone, name);
            }
            pinned.addresses.push(addr);
            self.addresses.entry(addr).or_default().insert(name.to_owned());
        }
    }

    pub fn addresses_of(&self, name: &str) -> &[IpAddr] {
        self.names.get(name).map_or(&[], |pinned| &pinned.addresses)
    }

    pub fn has(&self, name: &str, addr: IpAddr) -> bool {
        self.addresses.get(&addr.to_canonical()).is_some_and(|names| names.contains(name))
    }

    /// Returns the names that resolved to an address, the most recent first.
    pub fn names_of(&self, addr: IpAddr) -> Vec<String> {
        let names = self.addresses.get(&addr.to_canonical()).into_iter().flatten();
        let mut dated: Vec<(u64, &String)> = names.map(|name| (self.asked(name), name)).collect();
        dated.sort_unstable_by(|a, b| b.cmp(a));
        dated.into_iter().take(MAX_CANDIDATES).map(|(_, name)| name.clone()).collect()
    }

    fn asked(&self, name: &str) -> u64 {
        self.names.get(name).map_or(0, |pinned| pinned.asked)
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.names.iter().min_by_key(|(_, pinned)| pinned.asked).map(|(name, _)| name.clone())
        else {
            return;
        };
        let gone = self.names.remove(&oldest).unwrap_or_default();
        gone.addresses.into_iter().for_each(|addr| unlink(&mut self.addresses, addr, &oldest));
    }
}

fn unlink(addresses: &mut BTreeMap<IpAddr, BTreeSet<String>>, addr: IpAddr, name: &str) {
    if let Some(names) = addresses.get_mut(&addr) {
        names.remove(name);
        if names.is_empty() {
            addresses.remove(&addr);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn addr(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn names_stay_with_their_addresses() {
        let mut pins = Pins::default();
        pins.add("a", &[addr(1), addr(2)]);
        pins.add("b", &[addr(2)]);
        pins.add("a", &[addr(3)]);
        assert!(pins.has("a", addr(1)) && pins.has("a", addr(3)) && !pins.has("b", addr(1)));
        assert_eq!(pins.names_of(addr(2)), ["a", "b"]);
        assert_eq!(pins.names_of("::ffff:0.0.0.2".parse().unwrap()), ["a", "b"]);
        assert!(pins.names_of(addr(9)).is_empty());
    }

    #[test]
    fn the_table_has_an_end() {
        let mut pins = Pins::default();
        for n in 0..2 * MAX_NAMES as u32 {
            pins.add(&format!("n{n}"), &[addr(n), addr(7)]);
        }
        assert_eq!(pins.names.len(), MAX_NAMES);
        assert_eq!(pins.addresses.len(), MAX_NAMES + 1);
        assert_eq!(pins.names_of(addr(7)).len(), MAX_CANDIDATES);
        assert!(!pins.has("n0", addr(0)));
        for n in 0..2 * MAX_ADDRESSES as u32 {
            pins.add("same", &[addr(100_000 + n)]);
        }
        assert_eq!(pins.names["same"].addresses.len(), MAX_ADDRESSES);
        assert!(!pins.has("same", addr(100_000)));
    }
}
