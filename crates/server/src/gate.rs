//! Checks of every request before authentication: the size of its head, the Host and Origin headers, and no secret in the request target.

use crate::credentials::Peer;
use crate::refuse::Refusal;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use terms::LimitKind;

/// Limits of a request's head; hyper's own limits are somewhat higher.
const MAX_HEADERS: usize = 100;
const MAX_HEADER_BYTES: usize = 32 << 10;
const MAX_TARGET_BYTES: usize = 8 << 10;

/// Host names that the daemon accepts.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The port of the TCP listener, if any.
    pub port: Option<u16>,
    pub tls: bool,
    /// Additional names, each with or without a port.
    pub more: Vec<String>,
    /// Origins of other sites whose pages may send requests.
    pub origins: Vec<String>,
}

const OURS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

impl Names {
    /// Returns true for a `Host` of this daemon. On the Unix socket there is no port to compare.
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

    /// Returns true for the scheme's default port, which clients omit.
    fn is_usual(&self, port: u16) -> bool {
        port == if self.tls { 443 } else { 80 }
    }

    /// Returns the `Origin` of a request if it is one of another site that the operator named.
    pub fn named_origin<'a>(&self, headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
        let mut all = headers.get_all(ORIGIN).iter();
        let origin = all.next().filter(|_| all.next().is_none())?;
        self.origins.iter().any(|named| origin.as_bytes() == named.as_bytes()).then_some(origin)
    }

    /// Returns true for an `Origin` of this daemon.
    fn is_origin(&self, origin: &str) -> bool {
        let scheme = if self.tls { "https://" } else { "http://" };
        let Some((host, port)) = origin.strip_prefix(scheme).zip(self.port) else { return false };
        let peer = Peer::Tcp { address: ([127, 0, 0, 1], port).into() };
        self.is_host(host, &peer)
    }
}

/// Returns true if `name` includes a port and equals `host`.
fn has_port(name: &str, host: &str) -> bool {
    name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) && name.eq_ignore_ascii_case(host)
}

/// Checks a request before its client is authenticated and before any of its body is read. `is_granted` for one whose URL has a ticket or
/// a signature, which no other site can know.
pub fn check(parts: &Parts, peer: &Peer, names: &Names, is_granted: bool) -> Result<(), Refusal> {
    check_size(parts)?;
    check_host(parts, peer, names)?;
    check_origin(parts, names, is_granted)?;
    check_target(parts)
}

fn check_size(parts: &Parts) -> Result<(), Refusal> {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let hint = "send fewer and shorter headers";
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if parts.headers.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        let message = format!(
            "the request has {} headers with {bytes} bytes; at most {MAX_HEADERS} with {MAX_HEADER_BYTES} are allowed",
            parts.headers.len()
        );
        return Err(Refusal::limit(status, LimitKind::HeaderBytes, message, hint));
    }
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET_BYTES {
        let message = format!("the request target has {target} bytes; at most {MAX_TARGET_BYTES} are allowed");
        return Err(Refusal::limit(
            StatusCode::URI_TOO_LONG,
            LimitKind::HeaderBytes,
            message,
            "send the data in a body",
        ));
    }
    Ok(())
}

fn bad(message: impl Into<String>, hint: &str) -> Refusal {
    Refusal::http(StatusCode::BAD_REQUEST, message, hint)
}

fn check_host(parts: &Parts, peer: &Peer, names: &Names) -> Result<(), Refusal> {
    let hint = "send one header with the daemon's name, e.g. Host: localhost";
    // A request target with an authority is for proxies, and the daemon is none.
    if parts.uri.authority().is_some() || parts.method == Method::CONNECT {
        return Err(bad("the request target contains a host", "send the path alone"));
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map_err(|_| bad("the Host header is not text", hint))?,
        (None, _) if parts.version == Version::HTTP_10 => return Err(bad("HTTP/1.0 without a Host header", hint)),
        (None, _) => return Err(bad("no Host header", hint)),
        (Some(_), Some(_)) => return Err(bad("two Host headers", hint)),
    };
    match names.is_host(host, peer) {
        true => Ok(()),
        false => {
            let hint = "use localhost, or a name that the operator has added to serve.allow_hosts";
            Err(Refusal::http(
                StatusCode::MISDIRECTED_REQUEST,
                format!("the Host header {host:?} is not this daemon"),
                hint,
            ))
        }
    }
}

/// Refuses requests from pages of other sites, reads included: a page can make the browser of a local user send them.
fn check_origin(parts: &Parts, names: &Names, is_granted: bool) -> Result<(), Refusal> {
    let foreign = |what: String| {
        Err(Refusal::http(
            StatusCode::FORBIDDEN,
            what,
            "send the request from a page of the daemon itself, or not from a browser",
        ))
    };
    let mut origins = parts.headers.get_all(ORIGIN).iter();
    let origin = origins.next().map(|origin| origin.to_str().unwrap_or_default());
    let is_named = names.named_origin(&parts.headers).is_some();
    let is_foreign = |origin: &&str| !is_named && (origins.next().is_some() || !names.is_origin(origin));
    if let Some(origin) = origin.filter(is_foreign) {
        return foreign(format!("the Origin header {origin:?} is not this daemon"));
    }
    let site = text(&parts.headers, "sec-fetch-site");
    // A page leads to a download without saying where it is from.
    let is_download = is_granted && origin.is_none() && parts.method == Method::GET;
    if !matches!(site, "" | "same-origin" | "none") && !is_named && !is_download {
        return foreign(format!("a page of another site sent the request (Sec-Fetch-Site: {site})"));
    }
    let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    if origin.is_some() && changes && !is_granted && text(&parts.headers, "x-cofferdam") != "1" {
        return foreign("a page's request lacks the header x-cofferdam: 1".into());
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> &'a str {
    headers.get(HeaderName::from_static(name)).map_or("", |value| value.to_str().unwrap_or("?"))
}

/// Refuses dot segments and encoded separators in the path, which routers and proxies read differently, and tokens, which logs would keep.
fn check_target(parts: &Parts) -> Result<(), Refusal> {
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let decoded = decode(target.as_bytes());
    if holds_token(&decoded) {
        let hint =
            "send a token as `Authorization: Bearer …`, and revoke this one: request targets are written to logs";
        return Err(bad("the request target contains a token", hint));
    }
    let path = parts.uri.path();
    let whole = decode(path.as_bytes());
    // The part below a guest's port is not checked: it belongs to the guest.
    let ours = path.find("/ports/").map_or(path, |at| &path[..at]);
    let lower = ours.to_ascii_lowercase();
    let dots = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    let odd = whole.iter().any(|b| b.is_ascii_control()) || lower.split('/').any(dots);
    if odd || ["%2f", "%25", "%5c", "\\"].iter().any(|odd| lower.contains(odd)) {
        return Err(bad(
            format!("the path {path:?} contains dot segments, encoded separators or control characters"),
            "send each name as one path segment, without ., .., %2F, %25 and %5C",
        ));
    }
    Ok(())
}

/// Returns the decoded segments of a path.
pub fn parts_of(path: &str) -> Vec<String> {
    path.split('/').map(|part| String::from_utf8_lossy(&decode(part.as_bytes())).into_owned()).collect()
}

/// Returns true if the text contains a token: `cof_` and 32 hexadecimal digits.
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
        let names = Names {
            port: Some(7070),
            tls: false,
            more: vec!["box.example".into(), "proxy:8443".into()],
            origins: vec!["https://app.example".into()],
        };
        let tcp = Peer::Tcp { address: ([127, 0, 0, 1], 5).into() };
        let peer = if unix { Peer::Unix { uid: Some(0) } } else { tcp };
        check(&parts, &peer, &names, false).err().map(|refusal| refusal.status().as_u16())
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
        let named = ("origin", "https://app.example");
        assert_eq!(
            status("/v1/x", &[host, named, ("x-cofferdam", "1"), ("sec-fetch-site", "cross-site")], false),
            None
        );
        assert_eq!(status("/v1/x", &[host, named], false), Some(403));
        assert_eq!(status("/v1/x", &[host, named, named, ("x-cofferdam", "1")], false), Some(403));
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
