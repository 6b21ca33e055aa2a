//! Published ports: parses `[ADDRESS:]HOST:GUEST` and opens the listener that waits for the run.

use enclosure::Published;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use terms::{ErrorKind, Fault, Phase};

/// Bound on published ports; each takes a descriptor.
const MOST: usize = 64;

/// A port to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    pub at: SocketAddr,
    pub inside: u16,
}

impl std::fmt::Display for PortForward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.at, self.inside)
    }
}

/// Parses all ports; a fault where one is given twice.
pub fn read_all(words: &[String]) -> Result<Vec<PortForward>, Fault> {
    if words.len() > MOST {
        let message = format!("{} ports are published; {MOST} is the maximum", words.len());
        return Err(Fault::invalid(message).phase(Phase::Admission));
    }
    let all: Vec<PortForward> = words.iter().map(|word| read(word)).collect::<Result<_, _>>()?;
    match all.iter().enumerate().find(|(at, port)| all[..*at].iter().any(|other| other.at == port.at)) {
        Some((_, twice)) => {
            let fault = Fault::invalid(format!("--publish {twice}: {} is published already", twice.at));
            Err(fault.hint("remove that one, or choose another port").phase(Phase::Admission))
        }
        None => Ok(all),
    }
}

/// Checks that all ports parse, without opening any.
pub fn check(words: &[String]) -> Result<(), Fault> {
    read_all(words).map(drop)
}

/// Parses the host side of a port to remove: the whole word, or the word without the port inside.
pub fn read_place(word: &str) -> Result<SocketAddr, Fault> {
    match read(word) {
        Ok(asked) => Ok(asked.at),
        Err(fault) => read(&format!("{word}:1")).map(|asked| asked.at).map_err(|_| fault),
    }
}

/// Opens the listener of a port.
pub fn open(asked: PortForward) -> Result<Published, Fault> {
    bind(&asked.to_string(), asked)
}

/// Returns whether a word is meant as a port rather than a policy: it ends in two numbers, joined by a colon.
pub fn is_port(word: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mut parts = word.rsplitn(3, ':');
    let ends = parts.next().is_some_and(number) && parts.next().is_some_and(number);
    ends && parts.next().is_none_or(|address| read_address(address).is_some())
}

/// Opens every listener before anything is started.
pub fn listen(words: &[String]) -> Result<Vec<Published>, Fault> {
    if words.len() > MOST {
        let message = format!("--publish is given {} times; {MOST} is the maximum", words.len());
        return Err(Fault::invalid(message).phase(Phase::Admission));
    }
    words.iter().map(|word| bind(word, read(word)?)).collect()
}

fn bind(word: &str, asked: PortForward) -> Result<Published, Fault> {
    let listener = TcpListener::bind(asked.at).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Conflict,
            _ => ErrorKind::Unavailable,
        };
        let fault = Fault::new(kind, format!("--publish {word}: {}: {e}", asked.at)).phase(Phase::Preparation);
        match e.kind() {
            std::io::ErrorKind::AddrInUse => fault.hint("another program listens there; choose another port"),
            std::io::ErrorKind::PermissionDenied => fault.hint("choose a port from 1024 on"),
            std::io::ErrorKind::AddrNotAvailable => fault.hint("name an address of this host"),
            _ => fault,
        }
    })?;
    Ok(Published { listener, port: asked.inside })
}

fn read(word: &str) -> Result<PortForward, Fault> {
    let refuse = |why: &str| {
        Fault::invalid(format!("--publish {word:?}: {why}"))
            .hint("write [ADDRESS:]HOST:GUEST, such as 8080:80 or 0.0.0.0:8080:80")
            .phase(Phase::Admission)
    };
    let mut parts = word.rsplitn(3, ':');
    let (Some(inside), Some(outside)) = (parts.next(), parts.next()) else {
        return Err(refuse("the port of the guest is missing"));
    };
    let address = match parts.next() {
        None => Ipv4Addr::LOCALHOST.into(),
        Some(text) => read_address(text).ok_or_else(|| refuse("not an address of this host"))?,
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let (Some(inside), Some(outside)) = (port(inside), port(outside)) else {
        return Err(refuse("ports go from 1 to 65535"));
    };
    Ok(PortForward { at: SocketAddr::new(address, outside), inside })
}

fn read_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    match bare {
        Some(v6) => v6.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_typed() {
        for (word, at, inside) in [
            ("8080:80", "127.0.0.1:8080", 80),
            ("0.0.0.0:8080:80", "0.0.0.0:8080", 80),
            ("127.0.0.2:1:65535", "127.0.0.2:1", 65535),
            ("[::1]:8080:80", "[::1]:8080", 80),
        ] {
            assert!(is_port(word));
            assert_eq!(read(word).unwrap(), PortForward { at: at.parse().unwrap(), inside });
        }
        for word in
            ["", ":", "80", "80:", ":80", "0:80", "80:0", "65536:1", "a:80", "::1:80:80", "1.2.3:80:80", "80:80:"]
        {
            assert!(read(word).is_err(), "{word:?} was taken");
        }
    }

    #[test]
    fn names_of_policies_are_no_ports() {
        for word in ["default", "a/b:80", "policy.json", "1:b", "b:1", "dir:80:80", ""] {
            assert!(!is_port(word), "{word:?}");
        }
        // Taken for a port, so that the fault names the mistake.
        assert!(is_port("80:99999"));
    }

    #[test]
    fn a_taken_port_is_told_before_the_start() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let word = format!("{}:80", other.local_addr().unwrap().port());
        let fault = listen(&[word]).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::Conflict);
        assert!(fault.hint.is_some());
    }
}
