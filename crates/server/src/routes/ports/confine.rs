//! Redirects and cookies of a guest stay its own. A client follows a redirect with the credential that it asked with, and a browser sends
//! cookies to every port of a host: neither may lead from a guest to us, nor from elsewhere to a guest.

mod host;

use self::host::Host;
use http::HeaderMap;
use http::header::{self, HeaderValue};

/// What names of cookies have before them outside, so that a guest gets no cookie of another server on the same host.
const MARK: &str = "cofferdam-";

/// Where a guest's answer comes from, as its client sees it.
pub struct Place<'a> {
    /// Before the guest's own paths.
    pub prefix: &'a str,
    pub port: u16,
    /// The path that was asked for, as the guest knows it.
    pub path: &'a str,
    /// The `Host` that the client asked for.
    pub host: &'a str,
    /// Names and addresses that we answer to besides.
    pub names: &'a [String],
}

/// Where a redirect leads.
#[derive(Debug, PartialEq, Eq)]
pub enum Led {
    /// Below the guest's own path.
    Own(HeaderValue),
    /// To another host, as it is: no client takes its credential there.
    Elsewhere,
    /// To a host that is us, on whatever port, or nobody knows where.
    Ours,
}

impl Place<'_> {
    pub fn led(&self, to: &HeaderValue) -> Led {
        let Some(text) = to.to_str().ok().map(str::trim) else { return Led::Ours };
        // Clients do not agree on what these mean.
        if text.contains(|c: char| c == '\\' || c.is_ascii_whitespace()) {
            return Led::Ours;
        }
        let rest = match scheme(text) {
            Some(("http" | "https", rest)) => match rest.strip_prefix("//") {
                Some(rest) => Some(rest),
                None => return Led::Ours,
            },
            Some(_) => return Led::Elsewhere,
            None => text.strip_prefix("//"),
        };
        let Some(rest) = rest else { return self.own(text) };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = host_and_port(authority);
        let Some(host) = Host::parse(host).filter(|_| !authority.contains('@')) else { return Led::Ours };
        if host.is_self() && port == Some(self.port) && !text.starts_with("https:") {
            let slash = if path.starts_with('/') { "" } else { "/" };
            return self.own(&format!("{slash}{path}"));
        }
        match host.is_self() || self.is_ours(&host) {
            true => Led::Ours,
            false => Led::Elsewhere,
        }
    }

    fn is_ours(&self, host: &Host) -> bool {
        let names = self.names.iter().map(String::as_str).chain([self.host]);
        names.map(|name| host_and_port(name).0).any(|name| Host::parse(name).as_ref() == Some(host))
    }

    /// A path of the guest's own, with all its steps taken here: prefixed as it came, `/../..` would lead above the prefix.
    fn own(&self, text: &str) -> Led {
        let whole = match text.bytes().next() {
            Some(b'/') => text.to_owned(),
            None | Some(b'?' | b'#') => format!("{}{text}", self.path),
            Some(_) => format!("{}{text}", &self.path[..self.path.rfind('/').map_or(0, |at| at + 1)]),
        };
        let (path, rest) = whole.split_at(whole.find(['?', '#']).unwrap_or(whole.len()));
        let led = format!("{}/{}{rest}", self.prefix, stepped(path));
        HeaderValue::from_str(&led).map_or(Led::Ours, Led::Own)
    }

    /// A cookie that goes nowhere but below the guest's own path, under a name that tells it from others of this host.
    pub fn cookie(&self, cookie: &HeaderValue) -> Option<HeaderValue> {
        let mut parts = cookie.to_str().ok()?.split(';').map(str::trim);
        let pair = parts.next().filter(|pair| !pair.is_empty())?;
        // Such names promise what we take away.
        let promises = ["__host-", "__secure-"].iter().any(|name| pair.to_ascii_lowercase().starts_with(name));
        let named =
            |part: &str, name: &str| part.split('=').next().unwrap_or_default().trim().eq_ignore_ascii_case(name);
        let kept = parts.clone().filter(|p| !named(p, "domain") && !named(p, "path") && !p.is_empty());
        let kept = kept.map(|part| format!("; {part}")).collect::<String>();
        let path = parts.rfind(|part| named(part, "path")).and_then(|part| part.split_once('='));
        let path = path.map(|(_, path)| path.trim()).filter(|path| path.starts_with('/')).unwrap_or("/");
        let own = format!("{MARK}{pair}; Path={}{path}{kept}", self.prefix);
        (!promises).then(|| HeaderValue::from_str(&own).ok()).flatten()
    }
}

/// The guest gets its own cookies under its own names. Others come from whoever wrote the request; but a browser adds all that it has for
/// this host, whatever the port, and they are none of the guest's business.
pub fn cookies_to_guest(headers: &mut HeaderMap) {
    let by_browser = ["sec-fetch-site", "sec-fetch-mode", "origin"].iter().any(|name| headers.contains_key(*name));
    let all: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    headers.remove(header::COOKIE);
    let pairs = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';')).map(str::trim);
    let kept = pairs.filter_map(|pair| pair.strip_prefix(MARK).or((!by_browser).then_some(pair)));
    let kept: Vec<&str> = kept.filter(|pair| !pair.is_empty()).collect();
    if let Some(value) = HeaderValue::from_str(&kept.join("; ")).ok().filter(|value| !value.is_empty()) {
        headers.insert(header::COOKIE, value);
    }
}

/// The scheme in small letters, and what is behind its colon.
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

/// A path without its first slash and without steps to itself or up; none leads above the top.
fn stepped(path: &str) -> String {
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
    const PLACE: Place<'_> = Place { prefix: PREFIX, port: 3000, path: "/a/b", host: "box.example:7070", names: &[] };

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
            assert_eq!(PLACE.led(&value(to)), Led::Own(value(&format!("{PREFIX}{led}"))), "{to}");
        }
        for to in ["https://example.org/", "//evil.example/a", "http://box.example.org/", "mailto:a@b", "app://x"] {
            assert_eq!(PLACE.led(&value(to)), Led::Elsewhere, "{to}");
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
            assert_eq!(PLACE.led(&value(to)), Led::Ours, "{to}");
        }
    }

    #[test]
    fn every_spelling_of_our_host_is_ours() {
        let names = ["Other.example:7070".to_owned(), "192.0.2.7".to_owned(), "[2001:db8::7]".to_owned()];
        let place = Place { names: &names, ..PLACE };
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
                assert_eq!(place.led(&value(&to)), Led::Ours, "{to}");
            }
        }
        for host in ["192.0.2.8", "0xc0.0.2.8", "[2001:db8::8]", "localhost.example", "notlocalhost", "a.other.example"]
        {
            assert_eq!(place.led(&value(&format!("http://{host}:7070/v1/tokens"))), Led::Elsewhere, "{host}");
        }
        for host in ["127.1", "0.0.0.0", "[::]", "foo.localhost"] {
            let led = place.led(&value(&format!("http://{host}:3000/x")));
            assert_eq!(led, Led::Own(value(&format!("{PREFIX}/x"))), "{host}");
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
