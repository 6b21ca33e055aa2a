//! Classifies a client's first bytes: TLS, plain HTTP/1, HTTP/2 without TLS, or another protocol.
//!
//! A rule with a host name holds only if every request for another host is recognised, so the question here is not whether
//! the bytes are valid HTTP but whether *some* server could take them for a request. Servers are known to skip blanks, empty
//! lines, control characters and byte order marks before a request, to take any word for a method and any white space for a
//! separator. What all of them need is a first line that holds `HTTP/`, or, for requests without a version, a word and a path.
//! Everything of that kind is read strictly (`http1`) and refused if it cannot be; only a first line without either is another protocol.

use crate::hello::{self, Hello};
use crate::http1::{self, Head, Seen};
use std::io;

/// How much of a first line is kept. The search goes on past it.
pub(crate) const MAX_KEPT: usize = 8 * 1024;
/// How far a first line is watched. No server reads longer ones, but for those that bound the head as a whole and take any token
/// for a method: for these, words are watched further.
const MAX_LINE: usize = 64 * 1024;
const MAX_WORD: usize = 2 * 1024 * 1024;
/// What must stay of a line so that a word that is cut in two is found: one byte less than the longest.
const TAIL: usize = VERSION.len() - 1;
const VERSION: &[u8] = b"HTTP/";
/// Blanks that may follow a method while it still may be one.
const MAX_BLANKS: usize = 256;
/// How an HTTP/2 client begins when it knows beforehand that the server speaks it (RFC 9113, 3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The binary form of the preamble by which a proxy tells a server whom it speaks for.
const PROXY_V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const PROXY_V1: &[u8] = b"PROXY ";
const PROXY_REFUSED: &str = "it begins with a preamble of the PROXY protocol, behind which any request may follow";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The beginning of something that is judged as a whole; the server must not see it before.
    NeedMore,
    /// No server can take the bytes for a request as they are, but what follows may make one of them.
    /// `is_text`: they begin with a letter, as requests do.
    Undecided {
        is_text: bool,
    },
    /// A ClientHello, with the name it asks for.
    Tls(Option<String>),
    /// A head of HTTP/1, with the host it is for.
    Http(String),
    /// The preface of HTTP/2 without TLS. Each of its requests names a host.
    Http2,
    Other,
    Bad(String),
}

/// State of the search through a client's first bytes, from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Seen,
    /// How many bytes of the first line were dropped, since it is longer than is kept.
    dropped: usize,
    /// What was dropped held more than what servers skip.
    begun: bool,
    /// What was dropped held something else than white space, and than the characters of a method.
    not_blank: bool,
    not_word: bool,
}

impl Watch {
    /// Judges the bytes so far.
    pub fn read(&mut self, bytes: &[u8]) -> First {
        if self.dropped > 0 {
            return self.read_on(bytes);
        }
        match hello::read(bytes) {
            Hello::Client(client) => return First::Tls(client.sni),
            Hello::NeedMore => return First::NeedMore,
            Hello::Bad(reason) => return First::Bad(format!("the TLS hello cannot be read: {reason}")),
            Hello::NotTls => {}
        }
        if bytes.starts_with(HTTP2_PREFACE) {
            return First::Http2;
        }
        match line_of(bytes) {
            Line::Request if HTTP2_PREFACE.starts_with(bytes) => First::NeedMore,
            Line::Request => self.request(bytes),
            Line::Preamble => First::Bad(PROXY_REFUSED.to_owned()),
            Line::Open => First::Undecided { is_text: bytes.first().is_some_and(u8::is_ascii_alphabetic) },
            Line::Other => First::Other,
        }
    }

    /// Drops the beginning of a line that has been passed on, and goes on with the rest.
    pub fn forget(&mut self, bytes: &mut Vec<u8>) {
        let gone = bytes.drain(..bytes.len().saturating_sub(TAIL));
        self.dropped += gone.len();
        for byte in gone {
            self.begun |= !is_skipped(byte);
            self.not_blank |= !byte.is_ascii_whitespace();
            self.not_word |= !http1::is_token_byte(byte);
        }
    }

    /// Judges the rest of a line whose beginning has passed: a request that ends there is not read any more.
    fn read_on(&self, bytes: &[u8]) -> First {
        let line = match self.begun {
            true if holds(until_line_feed(bytes), VERSION) => Line::Request,
            true if bytes.contains(&b'\n') => Line::Other,
            true => Line::Open,
            false => line_of(bytes),
        };
        match line {
            Line::Request => First::Bad(format!("an HTTP request comes after more than {MAX_KEPT} other bytes")),
            Line::Preamble => First::Bad(PROXY_REFUSED.to_owned()),
            // Some servers skip empty lines without end, and no other protocol has so many.
            Line::Open if self.dropped > MAX_LINE && !self.not_blank => {
                First::Bad(format!("it begins with more than {MAX_LINE} blanks"))
            }
            Line::Open if self.dropped > MAX_WORD || self.dropped > MAX_LINE && self.not_word => First::Other,
            Line::Open => First::Undecided { is_text: false },
            Line::Other => First::Other,
        }
    }

    fn request(&mut self, bytes: &[u8]) -> First {
        match http1::resume_request(bytes, &mut self.seen) {
            Head::Done(request) => First::Http(request.host.to_string()),
            Head::NeedMore => First::NeedMore,
            Head::Bad { reason, .. } => First::Bad(format!("the HTTP request cannot be read: {reason}")),
        }
    }
}

/// Classifies bytes after which the client closed its side.
pub(crate) fn ended(bytes: &[u8], last: &First) -> First {
    match bytes.is_empty() || matches!(last, First::Undecided { .. }) {
        true => First::Other,
        false => First::Bad("its first bytes break off".to_owned()),
    }
}

/// Classification of the first line that holds more than blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Its end is not there yet.
    Open,
    /// Some server may take it for the first line of a request.
    Request,
    /// It tells a server of another client, whose bytes follow.
    Preamble,
    Other,
}

fn line_of(bytes: &[u8]) -> Line {
    if bytes.starts_with(PROXY_V2) {
        return Line::Preamble;
    }
    if PROXY_V2.starts_with(bytes) {
        return Line::Open;
    }
    let start = bytes.iter().take_while(|byte| is_skipped(**byte)).count();
    let whole = &bytes[start..];
    let line = until_line_feed(whole);
    if line.starts_with(PROXY_V1) {
        return Line::Preamble;
    }
    if holds(line, VERSION) || is_versionless(line) {
        return Line::Request;
    }
    if line.len() < whole.len() { Line::Other } else { Line::Open }
}

/// Whether the line is a request as it was before there were versions: a method and a path, or a URL. These name no host, so
/// only the words that methods are made of count: other protocols have paths as well.
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

/// Bytes that one server or another skips before a request or between its words: white space of any kind, also that of
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

/// What the first bytes of a server say about it. It is the last line of defence: whatever a guest has found that we take for
/// another protocol and a server takes for a request, the answer to it begins as answers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Speaks {
    #[default]
    Unknown,
    Http,
    Other,
}

/// Looks at a server's first bytes until they tell what it speaks.
#[derive(Debug, Default)]
pub(crate) struct ServerWatch {
    head: Vec<u8>,
    pub speaks: Speaks,
}

impl ServerWatch {
    pub fn hear(&mut self, bytes: &[u8]) {
        if self.speaks == Speaks::Unknown {
            self.head.extend(bytes.iter().take(SETTINGS_FRAME - self.head.len()));
            self.speaks = server_speaks(&self.head);
        }
    }
}

/// The length of a frame's header in HTTP/2.
const SETTINGS_FRAME: usize = 9;

/// A status line of HTTP/1, or the frame with which a server of HTTP/2 begins (SETTINGS of stream 0).
fn server_speaks(head: &[u8]) -> Speaks {
    let settings = [0..=0, 0..=0xff, 0..=0xff, 4..=4, 0..=1, 0..=0, 0..=0, 0..=0, 0..=0];
    let status = head.iter().zip(VERSION).all(|(byte, wanted)| byte.eq_ignore_ascii_case(wanted));
    let frame = head.iter().zip(&settings).all(|(byte, wanted)| wanted.contains(byte));
    match (status, frame) {
        (true, _) if head.len() >= VERSION.len() => Speaks::Http,
        (_, true) if head.len() >= SETTINGS_FRAME => Speaks::Http,
        (false, false) => Speaks::Other,
        _ => Speaks::Unknown,
    }
}

/// The error of a relay whose server answers in HTTP to what was passed as another protocol.
#[derive(Debug)]
pub(crate) struct AnswersHttp;

impl AnswersHttp {
    pub const REASON: &str = "the server answers in HTTP, and what was sent to it names no host";

    pub fn error() -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, AnswersHttp)
    }

    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<AnswersHttp>())
    }
}

impl std::fmt::Display for AnswersHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(AnswersHttp::REASON)
    }
}

impl std::error::Error for AnswersHttp {}

#[cfg(test)]
#[path = "first_test.rs"]
mod test;
