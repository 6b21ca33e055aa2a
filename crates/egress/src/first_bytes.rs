//! Detects the protocol of a client's first bytes: TLS, plain HTTP/1, HTTP/2 without TLS, or another protocol.
//!
//! A rule with a host name holds only if every request for another host is recognised. Detection therefore asks whether
//! *some* server could take the bytes for a request, not whether they are valid HTTP. Servers are known to skip blanks, empty
//! lines, control characters and byte order marks before a request, to accept any word as a method and any white space as a
//! separator. All of them need a first line that contains `HTTP/`, or, for requests without a version, a word and a path.
//! Such lines are parsed strictly (`http1`) and refused if that fails; only a first line with neither is another protocol.

use crate::hello::{self, Hello};
use crate::http1::{self, Head, HeadScan};
use std::io;

/// Bytes of a first line that are kept. Detection goes on past them.
pub(crate) const MAX_KEPT: usize = 8 * 1024;
/// Limits up to which a first line is examined. No server reads longer lines, except those that bound only the whole
/// head and accept any token as a method: for these, token characters are examined further.
const MAX_LINE: usize = 64 * 1024;
const MAX_WORD: usize = 2 * 1024 * 1024;
/// Bytes of a line that are kept so that `HTTP/` is found across two reads: one less than its length.
const TAIL: usize = VERSION.len() - 1;
const VERSION: &[u8] = b"HTTP/";
/// Limit on blanks after a method, beyond which the line counts as a request.
const MAX_BLANKS: usize = 256;
/// Connection preface of HTTP/2 with prior knowledge (RFC 9113, 3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Signature of version 2 of the PROXY protocol, with which a proxy tells a server the address of its client.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const PROXY_V1: &[u8] = b"PROXY ";
const PROXY_REFUSED: &str = "the connection begins with a PROXY protocol preamble, which any request may follow";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// The beginning of a message that is judged as a whole; the server must not receive it before.
    NeedMore,
    /// No server can take the bytes for a request yet, but following bytes may complete one. `is_text`: the first byte
    /// is a letter, as in requests.
    Undecided {
        is_text: bool,
    },
    /// A ClientHello, with its SNI.
    Tls(Option<String>),
    /// An HTTP/1 request head, with its host.
    Http(String),
    /// The preface of HTTP/2 without TLS. Each request names a host.
    Http2,
    Other,
    Bad(String),
}

/// Detection state for a client's first bytes, kept between reads.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    seen: HeadScan,
    /// Number of dropped bytes of a first line that is longer than `MAX_KEPT`.
    dropped: usize,
    /// True if the dropped bytes contain more than characters that servers skip.
    begun: bool,
    /// True if the dropped bytes contain something other than white space, or other than token characters.
    not_blank: bool,
    not_word: bool,
}

impl Detector {
    /// Classifies the bytes so far.
    pub fn read(&mut self, bytes: &[u8]) -> FirstBytes {
        if self.dropped > 0 {
            return self.read_on(bytes);
        }
        match hello::read(bytes) {
            Hello::Client(client) => return FirstBytes::Tls(client.sni),
            Hello::NeedMore => return FirstBytes::NeedMore,
            Hello::Bad(reason) => return FirstBytes::Bad(format!("the TLS hello cannot be read: {reason}")),
            Hello::NotTls => {}
        }
        if bytes.starts_with(HTTP2_PREFACE) {
            return FirstBytes::Http2;
        }
        match line_of(bytes) {
            FirstLine::Request if HTTP2_PREFACE.starts_with(bytes) => FirstBytes::NeedMore,
            FirstLine::Request => self.request(bytes),
            FirstLine::Preamble => FirstBytes::Bad(PROXY_REFUSED.to_owned()),
            FirstLine::Open => FirstBytes::Undecided { is_text: bytes.first().is_some_and(u8::is_ascii_alphabetic) },
            FirstLine::Other => FirstBytes::Other,
        }
    }

    /// Drops the start of a line that went to the server already, and keeps the tail for detection.
    pub fn forget(&mut self, bytes: &mut Vec<u8>) {
        let gone = bytes.drain(..bytes.len().saturating_sub(TAIL));
        self.dropped += gone.len();
        for byte in gone {
            self.begun |= !is_skipped(byte);
            self.not_blank |= !byte.is_ascii_whitespace();
            self.not_word |= !http1::is_token_byte(byte);
        }
    }

    /// Classifies the rest of a line whose start was dropped. A request there can no longer be parsed, so it is
    /// refused.
    fn read_on(&self, bytes: &[u8]) -> FirstBytes {
        let line = match self.begun {
            true if holds(until_line_feed(bytes), VERSION) => FirstLine::Request,
            true if bytes.contains(&b'\n') => FirstLine::Other,
            true => FirstLine::Open,
            false => line_of(bytes),
        };
        match line {
            FirstLine::Request => {
                FirstBytes::Bad(format!("an HTTP request comes after more than {MAX_KEPT} other bytes"))
            }
            FirstLine::Preamble => FirstBytes::Bad(PROXY_REFUSED.to_owned()),
            // Some servers skip any number of empty lines, and no other protocol starts with that many.
            FirstLine::Open if self.dropped > MAX_LINE && !self.not_blank => {
                FirstBytes::Bad(format!("the connection begins with more than {MAX_LINE} blanks"))
            }
            FirstLine::Open if self.dropped > MAX_WORD || self.dropped > MAX_LINE && self.not_word => FirstBytes::Other,
            FirstLine::Open => FirstBytes::Undecided { is_text: false },
            FirstLine::Other => FirstBytes::Other,
        }
    }

    fn request(&mut self, bytes: &[u8]) -> FirstBytes {
        match http1::resume_request(bytes, &mut self.seen) {
            Head::Done(request) => FirstBytes::Http(request.host.to_string()),
            Head::NeedMore => FirstBytes::NeedMore,
            Head::Bad { reason, .. } => FirstBytes::Bad(format!("the HTTP request cannot be read: {reason}")),
        }
    }
}

/// Classifies bytes after which the client closed its side.
pub(crate) fn ended(bytes: &[u8], last: &FirstBytes) -> FirstBytes {
    match bytes.is_empty() || matches!(last, FirstBytes::Undecided { .. }) {
        true => FirstBytes::Other,
        false => FirstBytes::Bad("the client's first bytes break off".to_owned()),
    }
}

/// Classification of the first line that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstLine {
    /// Incomplete.
    Open,
    /// Some server may take it for a request line.
    Request,
    /// A PROXY protocol preamble: it names another client, whose bytes follow.
    Preamble,
    Other,
}

fn line_of(bytes: &[u8]) -> FirstLine {
    if bytes.starts_with(PROXY_V2) {
        return FirstLine::Preamble;
    }
    if PROXY_V2.starts_with(bytes) {
        return FirstLine::Open;
    }
    let start = bytes.iter().take_while(|byte| is_skipped(**byte)).count();
    let whole = &bytes[start..];
    let line = until_line_feed(whole);
    if line.starts_with(PROXY_V1) {
        return FirstLine::Preamble;
    }
    if holds(line, VERSION) || is_versionless(line) {
        return FirstLine::Request;
    }
    if line.len() < whole.len() { FirstLine::Other } else { FirstLine::Open }
}

/// Returns true for a request line without a version (HTTP/0.9): a method and a path, or a URL. Such lines name no
/// host. Only letters, hyphens and underscores count as a method, because other protocols contain paths as well.
fn is_versionless(line: &[u8]) -> bool {
    let word = line.iter().take_while(|b| b.is_ascii_alphabetic() || b"-_".contains(b)).count();
    let blanks = line[word..].iter().take_while(|b| is_skipped(**b)).count();
    let (method, rest) = (&line[..word], &line[word + blanks..]);
    if word == 0 || blanks == 0 {
        return false;
    }
    let begins_host = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'[';
    let is_tunnel = method.eq_ignore_ascii_case(b"CONNECT") && rest.first().is_some_and(begins_host);
    blanks > MAX_BLANKS || rest.first() == Some(&b'/') || is_tunnel || holds(rest, b"://")
}

/// Returns true for bytes that some server skips before a request or between its words: white space including that of
/// Latin-1, control characters, and the bytes of a byte order mark.
fn is_skipped(byte: u8) -> bool {
    matches!(byte, 0..=0x20 | 0x7f | 0x85 | 0xa0 | 0xef | 0xbb | 0xbf)
}

fn until_line_feed(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

fn holds(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word))
}

/// Protocol of a server's first bytes. Last line of defence: if detection takes bytes for another protocol and a server
/// takes them for a request, the response still starts like a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerProtocol {
    #[default]
    Unknown,
    Http,
    Other,
}

/// Detects the protocol of a server's first bytes.
#[derive(Debug, Default)]
pub(crate) struct ServerDetector {
    head: Vec<u8>,
    pub protocol: ServerProtocol,
}

impl ServerDetector {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.protocol == ServerProtocol::Unknown {
            self.head.extend(bytes.iter().take(SETTINGS_FRAME - self.head.len()));
            self.protocol = server_protocol(&self.head);
        }
    }
}

/// Length of an HTTP/2 frame header.
const SETTINGS_FRAME: usize = 9;

/// Matches a status line of HTTP/1, or the first frame of an HTTP/2 server (SETTINGS on stream 0).
fn server_protocol(head: &[u8]) -> ServerProtocol {
    let settings = [0..=0, 0..=0xff, 0..=0xff, 4..=4, 0..=1, 0..=0, 0..=0, 0..=0, 0..=0];
    let status = head.iter().zip(VERSION).all(|(byte, wanted)| byte.eq_ignore_ascii_case(wanted));
    let frame = head.iter().zip(&settings).all(|(byte, wanted)| wanted.contains(byte));
    match (status, frame) {
        (true, _) if head.len() >= VERSION.len() => ServerProtocol::Http,
        (_, true) if head.len() >= SETTINGS_FRAME => ServerProtocol::Http,
        (false, false) => ServerProtocol::Other,
        _ => ServerProtocol::Unknown,
    }
}

/// Error of a relay whose server answers in HTTP to bytes that passed as another protocol.
#[derive(Debug)]
pub(crate) struct UnexpectedHttp;

impl UnexpectedHttp {
    pub const REASON: &str = "the server answers in HTTP, but the first bytes of the client name no host";

    pub fn error() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, UnexpectedHttp)
    }

    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<UnexpectedHttp>())
    }
}

impl std::fmt::Display for UnexpectedHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(UnexpectedHttp::REASON)
    }
}

impl std::error::Error for UnexpectedHttp {}

#[cfg(test)]
#[path = "first_bytes_test.rs"]
mod test;
