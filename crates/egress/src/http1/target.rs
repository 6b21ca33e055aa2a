//! Request target: the second word of the request line.

use super::HeadError;
use crate::authority;
use policy::HostName;
use std::fmt;

/// Target in one of its four forms. Paths start with a slash and include the query; percent-encoding is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// `/path?query`, sent to an origin server.
    Origin(String),
    /// `http://host/path?query`, sent to a proxy.
    Absolute { secure: bool, host: HostName, port: u16, path: String },
    /// `host:port`, with CONNECT.
    Authority { host: HostName, port: u16 },
    /// `*`, with OPTIONS.
    Asterisk,
}

impl RequestTarget {
    pub(super) fn read(method: &str, word: &[u8]) -> Result<RequestTarget, HeadError> {
        if !word.iter().all(u8::is_ascii_graphic) {
            return Err((400, "the target holds a character that no URL has"));
        }
        let text = std::str::from_utf8(word).map_err(|_| (400, "the target is not ASCII"))?;
        if text.contains('#') {
            return Err((400, "the target holds a fragment"));
        }
        match text {
            _ if method == "CONNECT" => connect(text),
            "*" if method == "OPTIONS" => Ok(RequestTarget::Asterisk),
            "*" => Err((400, "the target * goes only with OPTIONS")),
            path if path.starts_with('/') => Ok(RequestTarget::Origin(path.to_owned())),
            _ => absolute(text),
        }
    }

    /// Returns the path with its query, if the target has one.
    pub fn path(&self) -> Option<&str> {
        match self {
            RequestTarget::Origin(path) | RequestTarget::Absolute { path, .. } => Some(path),
            RequestTarget::Authority { .. } | RequestTarget::Asterisk => None,
        }
    }
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestTarget::Origin(path) => f.write_str(path),
            RequestTarget::Absolute { secure, host, port, path } if *port == default_port(*secure) => {
                write!(f, "{}://{host}{path}", scheme(*secure))
            }
            RequestTarget::Absolute { secure, host, port, path } => {
                write!(f, "{}://{host}:{port}{path}", scheme(*secure))
            }
            RequestTarget::Authority { host, port } => write!(f, "{host}:{port}"),
            RequestTarget::Asterisk => f.write_str("*"),
        }
    }
}

fn connect(text: &str) -> Result<RequestTarget, HeadError> {
    match authority::parse(text) {
        Some((host, Some(port))) => Ok(RequestTarget::Authority { host, port }),
        _ => Err((400, "the target of CONNECT is not host:port")),
    }
}

fn absolute(text: &str) -> Result<RequestTarget, HeadError> {
    let Some((word, rest)) = text.split_once("://") else {
        return Err((400, "the target is neither a path nor a URL"));
    };
    let secure = match word.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err((400, "the scheme of the target is neither http nor https")),
    };
    let (place, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if place.contains('@') {
        return Err((400, "the target holds a user"));
    }
    let (host, port) = authority::parse(place).ok_or((400, "the host of the target is malformed"))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let port = port.unwrap_or(default_port(secure));
    Ok(RequestTarget::Absolute { secure, host, port, path: format!("{slash}{path}") })
}

fn scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}
