//! The address of a daemon as users write it: a socket's path, `unix:PATH`, `http://HOST:PORT` or `https://HOST:PORT`.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use terms::{Fault, Phase};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    /// Loopback addresses only: tokens and secrets are never sent over a network without TLS.
    Http {
        host: String,
        port: u16,
    },
    Https {
        host: String,
        port: u16,
    },
}

impl Address {
    pub fn parse(text: &str) -> Result<Address, Fault> {
        if let Some(path) = text.strip_prefix("unix:") {
            // As URLs have it, too.
            let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
            return socket(path, text);
        }
        if let Some(rest) = text.strip_prefix("http://") {
            let (host, port) = host_and_port(rest, 80, text)?;
            if !is_loopback(&host) {
                let why = "without TLS, tokens and secrets can be read on the way";
                return Err(bad(
                    text,
                    why,
                    "use https://, or reach the daemon's socket or a loopback port, e.g. by ssh -L",
                ));
            }
            return Ok(Address::Http { host, port });
        }
        if let Some(rest) = text.strip_prefix("https://") {
            let (host, port) = host_and_port(rest, 443, text)?;
            return Ok(Address::Https { host, port });
        }
        match text.contains("://") {
            true => Err(bad(text, "no daemon supports this scheme", FORMS)),
            false => socket(text, text),
        }
    }

    /// True when a credential is needed: over its Unix socket a daemon knows the user from the peer credentials.
    pub fn needs_token(&self) -> bool {
        !matches!(self, Address::Unix(_))
    }

    /// Returns the value of the header `Host`.
    pub fn host(&self) -> String {
        match self {
            Address::Unix(_) => "localhost".to_owned(),
            Address::Http { host, port } | Address::Https { host, port } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(out, "{}", path.display()),
            Address::Http { host, port } => write!(out, "http://{host}:{port}"),
            Address::Https { host, port } => write!(out, "https://{host}:{port}"),
        }
    }
}

const FORMS: &str = "give a socket's path, unix:PATH, http://HOST:PORT or https://HOST:PORT";

fn bad(text: &str, why: &str, hint: &str) -> Fault {
    Fault::invalid(format!("the server {text:?}: {why}")).hint(hint).phase(Phase::Admission)
}

fn socket(path: &str, text: &str) -> Result<Address, Fault> {
    match path.is_empty() {
        true => Err(bad(text, "the socket's path is missing", FORMS)),
        false => Ok(Address::Unix(Path::new(path).to_path_buf())),
    }
}

fn host_and_port(rest: &str, usual: u16, text: &str) -> Result<(String, u16), Fault> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Err(bad(text, "it has more than a host and a port", FORMS));
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (rest, None),
    };
    let plain = |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match inside {
        Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && plain(host),
    };
    if !is_host {
        return Err(bad(text, "the host is missing", FORMS));
    }
    let port = port.map(|port| port.parse().ok().filter(|port| *port > 0)).unwrap_or(Some(usual));
    let port = port.ok_or_else(|| bad(text, "the port must be from 1 to 65535", FORMS))?;
    Ok((host.to_ascii_lowercase(), port))
}

/// True for `localhost` and loopback addresses.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_people_write_them() {
        let unix = |path: &str| Address::Unix(path.into());
        for (text, address) in [
            ("/run/x.sock", unix("/run/x.sock")),
            ("x.sock", unix("x.sock")),
            ("unix:/run/x", unix("/run/x")),
            ("unix:///run/x", unix("/run/x")),
            ("http://127.0.0.1:8080", Address::Http { host: "127.0.0.1".into(), port: 8080 }),
            ("http://[::1]:8080/", Address::Http { host: "[::1]".into(), port: 8080 }),
            ("http://LOCALHOST", Address::Http { host: "localhost".into(), port: 80 }),
            ("https://box.example", Address::Https { host: "box.example".into(), port: 443 }),
            ("https://[2001:db8::1]:7", Address::Https { host: "[2001:db8::1]".into(), port: 7 }),
        ] {
            assert_eq!(Address::parse(text).unwrap(), address, "{text}");
        }
    }

    // promise 27
    #[test]
    fn what_is_no_server_is_refused_and_nothing_is_sent_in_the_clear() {
        for text in [
            "",
            "unix:",
            "ftp://x",
            "http://",
            "https://a/b",
            "https://user:pw@host",
            "https://host:0",
            "https://host:70000",
            "https://ho st",
            "https://[::1",
            "http://box.example:80",
            "http://10.0.0.1:80",
            "http://127.0.0.1.example:80",
        ] {
            let fault = Address::parse(text).unwrap_err();
            assert_eq!(fault.error_kind, terms::ErrorKind::InvalidRequest, "{text}: {fault:?}");
            assert!(fault.hint.is_some(), "{text}");
        }
    }
}
