//! TCP listeners of a network namespace, from `/proc/PID/net`: whether a port that the guest finds closed on its own
//! loopback is a service of the host. Read-only and bounded.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes read at most of a list of sockets.
const LONGEST_LIST: u64 = 1 << 20;
const LISTEN: &str = "0A";

/// Returns true if a socket in the namespace of `process` (a pid, or `self`) listens for connections to this address.
pub fn listens(process: &str, at: IpAddr, port: u16) -> bool {
    let in_table = |table: &str| {
        let mut text = String::new();
        let file = File::open(format!("/proc/{process}/net/{table}"));
        // A list that was cut short may still have the line.
        let read = file.and_then(|file| file.take(LONGEST_LIST).read_to_string(&mut text));
        read.is_ok() && text.lines().skip(1).any(|line| is_listener(line, at, port))
    };
    in_table("tcp") || in_table("tcp6")
}

/// Returns true for the line of a listener that a connection to this address reaches.
fn is_listener(line: &str, at: IpAddr, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let (Some(own), Some(state)) = (words.next(), words.nth(1)) else { return false };
    let Some((address, own_port)) = own.split_once(':') else { return false };
    if state != LISTEN || u16::from_str_radix(own_port, 16) != Ok(port) {
        return false;
    }
    // An unspecified IPv6 address takes IPv4 connections, too, as far as can be told here.
    let takes = |own: IpAddr| {
        own.to_canonical() == at
            || own == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            || own.is_unspecified() && own.is_ipv4() == at.is_ipv4()
    };
    address_of(address).is_some_and(takes)
}

/// Parses an address as the kernel prints it: 32-bit words in the byte order of the host.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => word(0).map(|bytes| Ipv4Addr::from(bytes).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn listeners_are_found_by_address_and_port() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        assert!(listens("self", Ipv4Addr::LOCALHOST.into(), port));
        assert!(!listens("self", "127.0.0.2".parse().unwrap(), port));
        assert!(!listens("self", Ipv6Addr::LOCALHOST.into(), port));
        drop(server);
        assert!(!listens("self", Ipv4Addr::LOCALHOST.into(), port), "closed again");
    }

    #[test]
    fn lines_of_the_table() {
        let line =
            |own: &str, state: &str| format!("  0: {own} 00000000:0000 {state} 00000000:00000000 00:00000000 0 0 0 1");
        let at: IpAddr = Ipv4Addr::LOCALHOST.into();
        for (own, state, want) in [
            ("0100007F:1538", "0A", true),
            ("00000000:1538", "0A", true),
            ("00000000000000000000000000000000:1538", "0A", true),
            ("0000000000000000FFFF00000100007F:1538", "0A", true),
            ("0100007F:1538", "01", false),
            ("0100007F:1539", "0A", false),
            ("0200007F:1538", "0A", false),
            ("00000000000000000000000001000000:1538", "0A", false),
        ] {
            assert_eq!(is_listener(&line(own, state), at, 5432), want, "{own} {state}");
        }
        assert!(!is_listener("", at, 5432) && !is_listener("a b c d", at, 5432));
    }
}
