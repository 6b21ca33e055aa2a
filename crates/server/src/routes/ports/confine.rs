//! Confines redirects and cookies of a guest. A client follows a redirect with its credential, and a browser sends cookies to every port of
//! a host: neither may lead from a guest to the daemon, nor from elsewhere to a guest.

mod host;

use self::host::UrlHost;
use http::HeaderMap;
use http::header::{self, HeaderValue};

/// Prefix of a guest's cookie names at the client, so that the guest gets no cookie of another server on the same host.
const COOKIE_PREFIX: &str = "cofferdam-";

/// The origin of a guest's response, as its client sees it.
pub struct GuestOrigin<'a> {
    /// Prefix of the guest's paths.
    pub prefix: &'a str,
    pub port: u16,
    /// The requested path, as the guest sees it.
    pub path: &'a str,
    /// The client's `Host` header.
    pub host: &'a str,
    /// Further names and addresses of the daemon.
    pub names: &'a [String],
}

/// Target of a redirect.
#[derive(Debug, PartialEq, Eq)]
pub enum Redirect {
    /// A rewritten target below the guest's path.
    Own(HeaderValue),
    /// Another host, unchanged: clients do not send the credential there.
    Elsewhere,
    /// The daemon's host, on any port, or a target that clients may read as such.
    Ours,
}

impl GuestOrigin<'_> {
    pub fn redirect(&self, to: &HeaderValue) -> Redirect {
        let Some(text) = to.to_str().ok().map(str::trim) else { return Redirect::Ours };
        // Clients differ in how they read these characters.
        if text.contains(|c: char| c == '\\' || c.is_ascii_whitespace()) {
            return Redirect::Ours;
        }
        let rest = match scheme(text) {
            Some(("http" | "https", rest)) => match rest.strip_prefix("//") {
                Some(rest) => Some(rest),
                None => return Redirect::Ours,
            },
            Some(_) => return Redirect::Elsewhere,
            None => text.strip_prefix("//"),
        };
        let Some(rest) = rest else { return self.own(text) };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = host_and_port(authority);
        let Some(host) = UrlHost::parse(host).filter(|_| !authority.contains('@')) else { return Redirect::Ours };
        if host.is_self() && port == Some(self.port) && !text.starts_with("https:") {
            let slash = if path.starts_with('/') { "" } else { "/" };
            return self.own(&format!("{slash}{path}"));
        }
        match host.is_self() || self.is_ours(&host) {
            true => Redirect::Ours,
            false => Redirect::Elsewhere,
        }
    }

    fn is_ours(&self, host: &UrlHost) -> bool {
        let names = self.names.iter().map(String::as_str).chain([self.host]);
        names.map(|name| host_and_port(name).0).any(|name| UrlHost::parse(name).as_ref() == Some(host))
    }

    /// Resolves a guest's path and adds the prefix. Dot segments are removed first: after the prefix, `/../..` would lead above it.
    fn own(&self, text: &str) -> Redirect {
        let whole = match text.bytes().next() {
            Some(b'/') => text.to_owned(),
            None | Some(b'?' | b'#') => format!("{}{text}", self.path),
            Some(_) => format!("{}{text}", &self.path[..self.path.rfind('/').map_or(0, |at| at + 1)]),
        };
        let (path, rest) = whole.split_at(whole.find(['?', '#']).unwrap_or(whole.len()));
        let led = format!("{}/{}{rest}", self.prefix, without_dot_segments(path));
        HeaderValue::from_str(&led).map_or(Redirect::Ours, Redirect::Own)
    }

    /// Rewrites a cookie: its path is below the guest's, and its name has the prefix.
    pub fn cookie(&self, cookie: &HeaderValue) -> Option<HeaderValue> {
        let mut parts = cookie.to_str().ok()?.split(';').map(str::trim);
        let pair = parts.next().filter(|pair| !pair.is_empty())?;
        // These prefixes require attributes that are removed here.
        let promises = ["__host-", "__secure-"].iter().any(|name| pair.to_ascii_lowercase().starts_with(name));
        let named =
            |part: &str, name: &str| part.split('=').next().unwrap_or_default().trim().eq_ignore_ascii_case(name);
        let kept = parts.clone().filter(|p| !named(p, "domain") && !named(p, "path") && !p.is_empty());
        let kept = kept.map(|part| format!("; {part}")).collect::<String>();
        let path = parts.rfind(|part| named(part, "path")).and_then(|part| part.split_once('='));
        let path = path.map(|(_, path)| path.trim()).filter(|path| path.starts_with('/')).unwrap_or("/");
        let own = format!("{COOKIE_PREFIX}{pair}; Path={}{path}{kept}", self.prefix);
        (!promises).then(|| HeaderValue::from_str(&own).ok()).flatten()
    }
}

/// Gives the guest its own cookies under their own names. Other cookies are passed on only if the client set them itself: a browser adds
/// all cookies of the host, whatever the port.
pub fn cookies_to_guest(headers: &mut HeaderMap) {
    let by_browser = ["sec-fetch-site", "sec-fetch-mode", "origin"].iter().any(|name| headers.contains_key(*name));
    let all: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    headers.remove(header::COOKIE);
    let pairs = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';')).map(str::trim);
    let kept = pairs.filter_map(|pair| pair.strip_prefix(COOKIE_PREFIX).or((!by_browser).then_some(pair)));
    let kept: Vec<&str> = kept.filter(|pair| !pair.is_empty()).collect();
    if let Some(value) = HeaderValue::from_str(&kept.join("; ")).ok().filter(|value| !value.is_empty()) {
        headers.insert(header::COOKIE, value);
    }
}

/// Splits off the scheme, in lower case.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once(':')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    let is_scheme = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && name.bytes().all(plain);
    let known = ["http", "https"].into_iter().find(|known| known.eq_ignore_ascii_case(name));
    is_scheme.then_some((known.unwrap_or("other"), rest))
}

fn host_and_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (authority, Some(80)),
    }
}

/// Removes the first slash and all dot segments of a path; none leads above the top.
fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let plain = part.to_ascii_lowercase().replace("%2e", ".");
        let is_last = parts.peek().is_none();
        match plain.as_str() {
            "." | ".." => {
                if plain == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(part),
        }
    }
    kept.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/v1/sandboxes/sbx_1/ports/3000";
    const PLACE: GuestOrigin<'_> =
        GuestOrigin { prefix: PREFIX, port: 3000, path: "/a/b", host: "box.example:7070", names: &[] };

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap()
    }

    #[test]
    fn redirects_stay_below_the_guests_path() {
        for (to, led) in [
            ("/a?b=c", "/a?b=c"),
            ("http://localhost:3000/a", "/a"),
            ("HTTP://127.0.0.1:3000", "/"),
            ("//[::1]:3000?x", "/?x"),
            ("c", "/a/c"),
            ("", "/a/b"),
            ("?c", "/a/b?c"),
            ("../c/./d/", "/c/d/"),
            ("../../../../../../tokens", "/tokens"),
            ("/../../../../tokens", "/tokens"),
            ("/%2e%2E/.%2e/x/..", "/"),
            ("http://localhost:3000/../../../../tokens?a=/../b", "/tokens?a=/../b"),
            ("/x//../../..//y", "//y"),
        ] {
            assert_eq!(PLACE.redirect(&value(to)), Redirect::Own(value(&format!("{PREFIX}{led}"))), "{to}");
        }
        for to in ["https://example.org/", "//evil.example/a", "http://box.example.org/", "mailto:a@b", "app://x"] {
            assert_eq!(PLACE.redirect(&value(to)), Redirect::Elsewhere, "{to}");
        }
        for to in [
            "http://localhost:7070/v1/tokens",
            "http://LOCALHOST./v1/tokens",
            "//127.0.0.1:7070/v1/tokens",
            "https://localhost:3000/",
            "http://box.example/v1/tokens",
            "https://BOX.example:7070/v1/tokens",
            "http://evil.example@localhost:7070/",
            "http:/localhost:7070/v1/tokens",
            "http:tokens",
            "http:///localhost/",
            "/\\localhost:7070/v1/tokens",
            "\\..\\tokens",
            "/a\tb",
        ] {
            assert_eq!(PLACE.redirect(&value(to)), Redirect::Ours, "{to}");
        }
    }

    #[test]
    fn every_spelling_of_our_host_is_ours() {
        let names = ["Other.example:7070".to_owned(), "192.0.2.7".to_owned(), "[2001:db8::7]".to_owned()];
        let place = GuestOrigin { names: &names, ..PLACE };
        for host in [
            "127.1",
            "2130706433",
            "127%2e0.0.1",
            "0x7f.1",
            "017700000001",
            "localhost%2e",
            "localhost.",
            "0.0.0.0",
            "0",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::]",
            "127.0.0.2",
            "foo.localhost",
            "ip6-localhost",
            "BOX.example.",
            "other.example",
            "192.0.519",
            "[2001:db8:0::7]",
            "1.2.3.4.5",
            "a.08",
        ] {
            for to in [format!("http://{host}:7070/v1/tokens"), format!("//{host}/v1/tokens")] {
                assert_eq!(place.redirect(&value(&to)), Redirect::Ours, "{to}");
            }
        }
        for host in ["192.0.2.8", "0xc0.0.2.8", "[2001:db8::8]", "localhost.example", "notlocalhost", "a.other.example"]
        {
            assert_eq!(place.redirect(&value(&format!("http://{host}:7070/v1/tokens"))), Redirect::Elsewhere, "{host}");
        }
        for host in ["127.1", "0.0.0.0", "[::]", "foo.localhost"] {
            let led = place.redirect(&value(&format!("http://{host}:3000/x")));
            assert_eq!(led, Redirect::Own(value(&format!("{PREFIX}/x"))), "{host}");
        }
    }

    #[test]
    fn cookies_stay_below_the_guests_path() {
        for (cookie, kept) in [
            ("a=b", Some("cofferdam-a=b; Path=/v1/sandboxes/sbx_1/ports/3000/")),
            (
                "a=b; Path=/x; Domain=localhost; HttpOnly",
                Some("cofferdam-a=b; Path=/v1/sandboxes/sbx_1/ports/3000/x; HttpOnly"),
            ),
            ("a=b; path=", Some("cofferdam-a=b; Path=/v1/sandboxes/sbx_1/ports/3000/")),
            ("__Host-a=b; Path=/; Secure", None),
            ("", None),
        ] {
            assert_eq!(PLACE.cookie(&value(cookie)), kept.map(value), "{cookie}");
        }
    }

    #[test]
    fn a_browser_brings_a_guest_no_cookie_of_others() {
        let told = |browser: bool| {
            let mut headers = HeaderMap::new();
            headers.append(header::COOKIE, value("session=secret; cofferdam-a=b"));
            headers.append(header::COOKIE, value("c=d"));
            browser.then(|| headers.insert("sec-fetch-site", value("none")));
            cookies_to_guest(&mut headers);
            headers.get(header::COOKIE).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(told(true).as_deref(), Some("a=b"));
        assert_eq!(told(false).as_deref(), Some("session=secret; a=b; c=d"), "the control");
    }
}
