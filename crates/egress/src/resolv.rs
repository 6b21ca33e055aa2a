//! `/etc/resolv.conf`: which resolvers the host uses, and how patient it is with them. Read as the C library reads it;
//! search lists are left out, because the broker asks for whole names only.

use crate::hosts::address;
use std::net::{IpAddr, Ipv4Addr};

/// The C library uses no more servers than these, whatever the file says.
const MAX_SERVERS: usize = 3;
const MAX_TIMEOUT: u32 = 30;
const MAX_ATTEMPTS: u32 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolv {
    /// In the order to ask them; never empty, since without any the host asks itself.
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

    /// A keyword counts only at the start of its line: anything before it makes the line another one.
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
        // Digits beyond what a number holds are more than the most all the same.
        let value = value.parse().unwrap_or(u32::MAX);
        match name {
            "timeout" if all_digits => self.timeout = value.clamp(1, MAX_TIMEOUT),
            "attempts" if all_digits => self.attempts = value.clamp(1, MAX_ATTEMPTS),
            _ => {}
        }
    }
}
