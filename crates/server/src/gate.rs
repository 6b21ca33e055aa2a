//! Rules for every request, whatever it asks for and whoever asks: its head is small, it names this daemon and nobody else, no
//! page of another site sent it, and no secret stands in its address.

use crate::credentials::Peer;
use crate::refuse::Refusal;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, StatusCode, Version};
use terms::LimitKind;

/// The head of a request; hyper gives up somewhat later by itself.
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 32 << 10;
const LONGEST_TARGET: usize = 8 << 10;

/// The names that the daemon answers to.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The port of the TCP listener, where there is one.
    pub port: Option<u16>,
    pub tls: bool,
    /// Further names, each with or without a port.
    pub more: Vec<String>,
}

const OURS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Names {
    /// Whether a `Host` is one of ours. On the socket there is no port to go by.
    fn is_host(&self, host: &str, peer: &Peer) -> bool {
        let named = |name: &str, port: Option<u16>| match (host.to_ascii_lowercase().strip_prefix(name), port) {
            (Some(""), None) => true,
            (Some(rest), Some(port)) => rest == format!(":{port}") || rest.is_empty() && self.is_usual(port),
            _ => false,
        };
        let port = match peer {
            Peer::Unix { .. } => None,
            Peer::Tcp { .. } => self.port,
        };
        OURS.iter().any(|name| named(name, port))
            || self.more.iter().any(|name| has_port(name, host) || named(name, port))
    }

    /// A port that clients leave out.
    fn is_usual(&self, port: u16) -> bool {
        port == if self.tls { 443 } else { 80 }
    }

    /// Whether an `Origin` is a page of ours.
    fn is_origin(&self, origin: &str) -> bool {
        let scheme = if self.tls { "https://" } else { "http://" };
        let Some((host, port)) = origin.strip_prefix(scheme).zip(self.port) else { return false };
        let peer = Peer::Tcp { address: ([127, 0, 0, 1], port).into() };
        self.is_host(host, &peer)
    }
}

/// A further name that was given with its port.
fn has_port(name: &str, host: &str) -> bool {
    name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) && name.eq_ignore_ascii_case(host)
}

/// Refuses what must not get further, before anything is known of who sent it and before anything of its body is read.
pub fn check(parts: &Parts, peer: &Peer, names: &Names) -> Result<(), Refusal> {
    check_size(parts)?;
    check_host(parts, peer, names)?;
    check_origin(parts, names)?;
    check_target(parts)
}

fn check_size(parts: &Parts) -> Result<(), Refusal> {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let hint = "send fewer and shorter headers";
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if parts.headers.len() > MOST_HEADERS || bytes > MOST_HEADER_BYTES {
        let message = format!(
            "{} headers with {bytes} bytes; {MOST_HEADERS} with {MOST_HEADER_BYTES} may be",
            parts.headers.len()
        );
        return Err(Refusal::limit(status, LimitKind::HeaderBytes, message, hint));
    }
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > LONGEST_TARGET {
        let message = format!("the address has {target} bytes; {LONGEST_TARGET} may be");
        return Err(Refusal::limit(StatusCode::URI_TOO_LONG, LimitKind::HeaderBytes, message, "send a body instead"));
    }
    Ok(())
}

fn bad(message: impl Into<String>, hint: &str) -> Refusal {
    Refusal::http(StatusCode::BAD_REQUEST, message, hint)
}

fn check_host(parts: &Parts, peer: &Peer, names: &Names) -> Result<(), Refusal> {
    let hint = "name the daemon as it listens, e.g. Host: localhost";
    // An address with a host in it is for proxies, which we are not.
    if parts.uri.authority().is_some() || parts.method == Method::CONNECT {
        return Err(bad("the address names a host", "send the path alone"));
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map_err(|_| bad("the Host header is no text", hint))?,
        (None, _) if parts.version == Version::HTTP_10 => return Err(bad("HTTP/1.0 without a Host header", hint)),
        (None, _) => return Err(bad("no Host header", hint)),
        (Some(_), Some(_)) => return Err(bad("two Host headers", hint)),
    };
    match names.is_host(host, peer) {
        true => Ok(()),
        false => {
            let hint = "ask for localhost, or start the daemon with --allow-host and this name";
            Err(Refusal::http(StatusCode::MISDIRECTED_REQUEST, format!("the host {host:?} is not this daemon"), hint))
        }
    }
}

/// Pages of other sites can make a browser send requests; none of them gets anything here, not even by reading.
fn check_origin(parts: &Parts, names: &Names) -> Result<(), Refusal> {
    let foreign = |what: String| {
        Err(Refusal::http(StatusCode::FORBIDDEN, what, "only pages of the daemon itself may speak to it"))
    };
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    let origin = origins.next().map(|origin| origin.to_str().unwrap_or_default());
    if let Some(origin) = origin.filter(|origin| origins.next().is_some() || !names.is_origin(origin)) {
        return foreign(format!("the origin {origin:?} is foreign"));
    }
    let site = text(&parts.headers, "sec-fetch-site");
    if !matches!(site, "" | "same-origin" | "none") {
        return foreign(format!("a page of another site sent it ({site})"));
    }
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if origin.is_some() && changes && text(&parts.headers, "x-cofferdam") != "1" {
        return foreign("a page's request without the header x-cofferdam: 1".into());
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> &'a str {
    headers.get(HeaderName::from_static(name)).map_or("", |value| value.to_str().unwrap_or("?"))
}

/// What nobody writes who means well: ways up and around in the path, and secrets in an address, which logs would keep.
fn check_target(parts: &Parts) -> Result<(), Refusal> {
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let decoded = decode(target.as_bytes());
    if holds_token(&decoded) {
        let hint = "send it as `Authorization: Bearer …`; and revoke this one, for addresses are written to logs";
        return Err(bad("a token in the address", hint));
    }
    let path = parts.uri.path();
    let whole = decode(path.as_bytes());
    // A guest's own paths are the guest's business.
    let ours = path.find("/ports/").map_or(path, |at| &path[..at]);
    let lower = ours.to_ascii_lowercase();
    let dots = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    let odd = whole.iter().any(|b| b.is_ascii_control()) || lower.split('/').any(dots);
    if odd || ["%2f", "%25", "%5c", "\\"].iter().any(|odd| lower.contains(odd)) {
        return Err(bad(
            format!("the path {path:?} holds what no path of ours does"),
            "write names plainly, one between two slashes",
        ));
    }
    Ok(())
}

/// The parts of a path between slashes, as routes read them.
pub fn parts_of(path: &str) -> Vec<String> {
    path.split('/').map(|part| String::from_utf8_lossy(&decode(part.as_bytes())).into_owned()).collect()
}

/// `cof_` and the 32 digits that follow in every token.
fn holds_token(text: &[u8]) -> bool {
    text.windows(36).any(|part| part.starts_with(b"cof_") && part[4..].iter().all(u8::is_ascii_hexdigit))
}

fn decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let digits = text.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        match (text[at], digits.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(target: &str, headers: &[(&'static str, &str)], unix: bool) -> Option<u16> {
        let mut request = http::Request::builder().method("POST").uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let names = Names { port: Some(7070), tls: false, more: vec!["box.example".into(), "proxy:8443".into()] };
        let tcp = Peer::Tcp { address: ([127, 0, 0, 1], 5).into() };
        let peer = if unix { Peer::Unix { uid: Some(0) } } else { tcp };
        check(&parts, &peer, &names).err().map(|refusal| refusal.status().as_u16())
    }

    #[test]
    fn only_our_names_are_answered_to() {
        for good in
            ["localhost:7070", "127.0.0.1:7070", "[::1]:7070", "LocalHost:7070", "box.example:7070", "proxy:8443"]
        {
            assert_eq!(status("/v1/x", &[("host", good)], false), None, "{good}");
        }
        for bad in [
            "evil",
            "localhost",
            "localhost:7071",
            "localhost.evil:7070",
            "localhost:7070.evil",
            "",
            "proxy",
            "proxy:7071",
        ] {
            assert_eq!(status("/v1/x", &[("host", bad)], false), Some(421), "{bad}");
        }
        assert_eq!(status("/v1/x", &[], false), Some(400));
        assert_eq!(status("/v1/x", &[("host", "localhost:7070"), ("host", "localhost:7070")], false), Some(400));
        assert_eq!(status("http://localhost:7070/v1/x", &[("host", "localhost:7070")], false), Some(400));
        assert_eq!(status("/v1/x", &[("host", "localhost")], true), None);
        assert_eq!(status("/v1/x", &[("host", "evil")], true), Some(421));
    }

    #[test]
    fn pages_of_others_get_nothing() {
        let host = ("host", "localhost:7070");
        for bad in
            ["null", "http://evil", "http://localhost:7071", "https://localhost:7070", "http://localhost:7070.evil", ""]
        {
            assert_eq!(status("/v1/x", &[host, ("origin", bad)], false), Some(403), "{bad}");
        }
        let own = ("origin", "http://localhost:7070");
        assert_eq!(status("/v1/x", &[host, own], false), Some(403));
        assert_eq!(status("/v1/x", &[host, own, ("x-cofferdam", "1")], false), None);
        assert_eq!(status("/v1/x", &[host, own, own, ("x-cofferdam", "1")], false), Some(403));
        for site in ["cross-site", "same-site", "x"] {
            assert_eq!(status("/v1/x", &[host, ("sec-fetch-site", site)], false), Some(403), "{site}");
        }
    }

    #[test]
    fn odd_paths_and_secrets_in_addresses_are_refused() {
        let host = [("host", "localhost:7070")];
        for bad in ["/v1/%2e%2e/x", "/v1/../x", "/v1/a%00", "/v1/a%2fb", "/v1/a%252fb", "/v1/%0a", "/v1/.%2E/x"] {
            assert_eq!(status(bad, &host, false), Some(400), "{bad}");
        }
        let token = format!("cof_{}_{}", "a".repeat(32), "b".repeat(64));
        assert_eq!(status(&format!("/v1/x?token={token}"), &host, false), Some(400));
        assert_eq!(status(&format!("/v1/{token}"), &host, false), Some(400));
        for good in ["/v1/x?path=a%2fb", "/v1/a%20b", "/v1/sandboxes/s/ports/80/a%2fb%25"] {
            assert_eq!(status(good, &host, false), None, "{good}");
        }
    }
}
