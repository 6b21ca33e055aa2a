//! What the first bytes of a client are: TLS, plain HTTP/1, or neither. Whoever may be taken for HTTP by some server is
//! taken for HTTP here, and read strictly from then on.

use crate::hello::{self, Hello};
use crate::http1::{self, Head, Seen};

/// The longest first line that is waited for. Servers give up sooner.
const MAX_LINE: usize = 8 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum First {
    NeedMore,
    /// A ClientHello, with the name it asks for.
    Tls(Option<String>),
    /// A head of HTTP/1, with the host it is for.
    Http(String),
    Other,
    Bad(String),
}

/// Judges the bytes so far; `seen` stays with them from one call to the next.
pub(crate) fn read(bytes: &[u8], seen: &mut Seen) -> First {
    match hello::read(bytes) {
        Hello::Client(client) => return First::Tls(client.sni),
        Hello::NeedMore => return First::NeedMore,
        Hello::Bad(reason) => return First::Bad(format!("the TLS hello cannot be read: {reason}")),
        Hello::NotTls => {}
    }
    match looks_like_http(bytes) {
        Some(true) => http(bytes, seen),
        Some(false) => First::Other,
        None => First::NeedMore,
    }
}

/// What the bytes are when no more follow.
pub(crate) fn ended(bytes: &[u8]) -> First {
    match bytes.is_empty() || is_undecided(bytes) {
        true => First::Other,
        false => First::Bad("its first bytes break off".to_owned()),
    }
}

/// Whether the bytes are some word that any protocol may begin with. What follows may still make a request of them, but no
/// server can take them for one as they are, not even one of before there were heads.
pub(crate) fn is_undecided(bytes: &[u8]) -> bool {
    hello::read(bytes) == Hello::NotTls && looks_like_http(bytes).is_none() && !holds(bytes, b"://")
}

fn http(bytes: &[u8], seen: &mut Seen) -> First {
    match http1::resume_request(bytes, seen) {
        Head::Done(request) => First::Http(request.host.to_string()),
        Head::NeedMore => First::NeedMore,
        Head::Bad { reason, .. } => First::Bad(format!("the HTTP request cannot be read: {reason}")),
    }
}

/// Whether some server may take the bytes for a request of HTTP/1; `None` while that is open. Servers skip empty lines
/// before a request and take any blanks after the method, so both are skipped here too.
fn looks_like_http(bytes: &[u8]) -> Option<bool> {
    // The start of HTTP/2 without TLS: no head of HTTP/1 follows it, and what does cannot be read.
    const HTTP2: &[u8] = b"PRI * HTTP/2";
    let start = bytes.iter().take_while(|b| b"\r\n".contains(b)).count();
    let line = &bytes[start..];
    let method = line.iter().take_while(|b| b.is_ascii_alphabetic() || b"-_".contains(b)).count();
    let blanks = line[method..].iter().take_while(|b| b" \t".contains(b)).count();
    let rest = &line[method + blanks..];
    if bytes.starts_with(HTTP2) {
        return Some(false);
    }
    if HTTP2.starts_with(bytes) {
        return None;
    }
    if rest.is_empty() {
        return (bytes.len() > MAX_LINE).then_some(method == 0);
    }
    if method == 0 || blanks == 0 {
        return Some(false);
    }
    if rest[0] == b'/' || rest[0] == b'*' || line[..method].eq_ignore_ascii_case(b"CONNECT") {
        return Some(true);
    }
    // A URL, or the words of another protocol: the rest of the line tells.
    match rest.iter().position(|b| *b == b'\n' || *b == 0) {
        Some(end) => Some(holds(&rest[..end], b"://") || holds(&rest[..end], b" HTTP/")),
        None if rest.iter().any(|b| !b.is_ascii()) => Some(false),
        None => (line.len() > MAX_LINE).then_some(true),
    }
}

fn holds(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod test {
    use super::*;

    fn of(bytes: &[u8]) -> First {
        let whole = read(bytes, &mut Seen::default());
        // One byte at a time says the same, or says it sooner.
        let mut seen = Seen::default();
        let grown = (0..=bytes.len()).map(|len| read(&bytes[..len], &mut seen));
        let grown = grown.into_iter().find(|first| *first != First::NeedMore).unwrap_or(First::NeedMore);
        assert_eq!(std::mem::discriminant(&whole), std::mem::discriminant(&grown), "{}", bytes.escape_ascii());
        whole
    }

    #[test]
    fn http() {
        assert_eq!(of(b"GET / HTTP/1.1\r\nHost: Example.org:80\r\n\r\n"), First::Http("example.org".into()));
        assert_eq!(of(b"GET http://a.b/ HTTP/1.1\r\nHost: a.b\r\n\r\n"), First::Http("a.b".into()));
        for open in ["", "G", "GET", "GET ", "GET /", "GET / HTTP/1.1\r\n", "\r\n", "PRI * H", "EHLO me"] {
            assert_eq!(of(open.as_bytes()), First::NeedMore, "{open:?}");
        }
        for bad in [
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "get / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET x HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /\r\n",
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        ] {
            let first = of(bad.as_bytes());
            let waits = bad == "GET /\r\n";
            assert!(matches!(first, First::Bad(_)) || waits && first == First::NeedMore, "{bad:?}: {first:?}");
        }
    }

    #[test]
    fn a_word_is_no_request_yet() {
        for word in ["G", "GET", "GET ", "\r\n", "PRI * H", "EHLO me", "P", "get http"] {
            assert!(is_undecided(word.as_bytes()), "{word:?}");
            assert_eq!(ended(word.as_bytes()), First::Other, "{word:?}");
        }
        for begun in ["GET /", "GET *", "GET /\r\n", "GET http://a.b/", "CONNECT a", "\x16", "\x16\x03\x01"] {
            assert!(!is_undecided(begun.as_bytes()), "{begun:?}");
            assert!(matches!(ended(begun.as_bytes()), First::Bad(_)), "{begun:?}");
        }
        assert_eq!(ended(b""), First::Other);
    }

    #[test]
    fn neither() {
        for other in [
            &b"SSH-2.0-OpenSSH_9.6p1 Debian-1\r\n"[..],
            b"EHLO example.org\r\n",
            b"USER bob\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"0033git-upload-pack /project.git\0host=example.org\0",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x10\x0f\0\x04MQTT",
            b"NICK x\r\n",
            &[1; 3 * MAX_LINE],
            &[b'x'; 3 * MAX_LINE],
        ] {
            assert_eq!(of(other), First::Other, "{}", other.escape_ascii());
        }
    }
}
