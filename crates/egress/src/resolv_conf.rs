//! Parser for `/etc/resolv.conf`: resolvers, timeout and attempts, read as the C library reads them. Search lists are
//! ignored, because the broker resolves only fully qualified names.

use crate::hosts::address;
use std::net::{IpAddr, Ipv4Addr};

/// Limit of the C library on servers.
const MAX_SERVERS: usize = 3;
const MAX_TIMEOUT: u32 = 30;
const MAX_ATTEMPTS: u32 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolv {
    /// Resolvers in order of use; never empty, since the default is the loopback address.
    pub servers: Vec<IpAddr>,
    /// Seconds to wait for one server: 1 to 30.
    pub timeout: u32,
    /// Rounds over all servers: 1 to 5.
    pub attempts: u32,
}

impl Resolv {
    pub fn parse(text: &str) -> Resolv {
        let mut resolv = Resolv { servers: Vec::new(), timeout: 5, attempts: 2 };
        for line in text.lines() {
            resolv.read_line(line);
        }
        if resolv.servers.is_empty() {
            resolv.servers.push(Ipv4Addr::LOCALHOST.into());
        }
        resolv
    }

    /// Parses a line. A keyword counts only at the start of its line.
    fn read_line(&mut self, line: &str) {
        let Some((keyword, rest)) = line.split_once([' ', '\t']) else {
            return;
        };
        let mut words = rest.split_ascii_whitespace();
        match keyword {
            "nameserver" => {
                let server = words.next().and_then(address).filter(|_| self.servers.len() < MAX_SERVERS);
                self.servers.extend(server);
            }
            "options" => words.for_each(|word| self.read_option(word)),
            _ => {}
        }
    }

    fn read_option(&mut self, word: &str) {
        let Some((name, value)) = word.split_once(':') else {
            return;
        };
        let all_digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        // A number too large for `u32` is clamped to the maximum as well.
        let value = value.parse().unwrap_or(u32::MAX);
        match name {
            "timeout" if all_digits => self.timeout = value.clamp(1, MAX_TIMEOUT),
            "attempts" if all_digits => self.attempts = value.clamp(1, MAX_ATTEMPTS),
            _ => {}
        }
    }
}
