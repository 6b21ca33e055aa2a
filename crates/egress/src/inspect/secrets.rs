//! Secrets that the guest does not have: put into requests on their way out, and masked in what comes back, whichever
//! way the server spells them and wherever the pieces of an answer are cut.
//!
//! Masking is for servers that tell back what they were told. It does not stop a server that wants to tell a guest
//! the secret in a spelling of its own.

use super::headers::{Headers, is_twin};
use crate::court::Injection;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// What is shorter is no secret, and would be found in everything.
const MIN_NEEDLE: usize = 4;
/// Other spellings are looked for from this length on: they are made of common characters.
const MIN_SPELLED: usize = 6;
const MAX_SPELLED: usize = 32;
const MASKED: u8 = b'*';
/// What may be let go when nothing follows: an answer that only happens to end like the start of a secret must not
/// wait for what never comes. Of a secret that comes with pauses, so much is seen and no more.
const LITTLE: usize = 3;
/// Of a short secret only this part may be seen so.
const LITTLE_OF: usize = 4;
/// How long it is kept for what may follow.
pub(super) const QUIET: Duration = Duration::from_millis(100);

/// Which of the injections a request gets: one for each header. `Err` names a header that holds something else.
pub(super) fn chosen<'a>(injections: &'a [Injection], headers: &dyn Headers) -> Result<Vec<&'a Injection>, &'a str> {
    if let Some(injection) = injections.iter().find(|i| headers.names().iter().any(|name| is_twin(name, &i.header))) {
        return Err(&injection.header);
    }
    let mut out: Vec<&Injection> = Vec::new();
    for injection in injections {
        let of_header = injections.iter().filter(|i| i.header.eq_ignore_ascii_case(&injection.header));
        let values = headers.values(&injection.header);
        let named = of_header.clone().find(|i| values.iter().any(|value| holds(value, &i.placeholder)));
        let all_ours = values.iter().all(|value| of_header.clone().any(|i| holds(value, &i.placeholder)));
        match named {
            _ if !all_ours => return Err(&injection.header),
            Some(named) if !std::ptr::eq(named, injection) => continue,
            None if out.iter().any(|i| i.header.eq_ignore_ascii_case(&injection.header)) => continue,
            _ => out.push(injection),
        }
    }
    Ok(out)
}

/// Whether a header holds the placeholder, as it is or as the password of Basic.
fn holds(value: &[u8], placeholder: &str) -> bool {
    if placeholder.is_empty() {
        return false;
    }
    let within = |value: &[u8]| value.windows(placeholder.len()).any(|part| part == placeholder.as_bytes());
    let is_basic = value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "));
    within(value) || is_basic && STANDARD.decode(value[6..].trim_ascii()).is_ok_and(|plain| within(&plain))
}

/// Asks the server for an answer that can be looked through: whole, and as it is. What is asked for in pieces could
/// come in pieces that are each too short to be found.
pub(super) fn ask_plainly(headers: &mut dyn Headers) {
    headers.set("accept-encoding", b"identity");
    for name in ["grpc-accept-encoding", "sec-websocket-extensions", "range", "if-range"] {
        headers.remove(name);
    }
}

/// Why an answer cannot be looked through, if it cannot.
pub(super) fn hidden(status: u16, headers: &dyn Headers) -> Option<&'static str> {
    let plain = |value: &&[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    let coded = |name: &str| headers.values(name).iter().any(|value| !plain(value));
    if coded("content-encoding") || coded("grpc-encoding") || !headers.values("sec-websocket-extensions").is_empty() {
        return Some(
            "the server compressed its answer although it was asked not to, so a secret in it could not be masked",
        );
    }
    (status == 206)
        .then_some("the server answered with a part of what was asked for as a whole, so a secret could be cut in two")
}

/// Everything to look for in the answers to one request.
pub(super) struct Needles {
    /// Says fast where the first one is.
    first: AhoCorasick,
    /// Finds each one, also those that lie in each other.
    each: AhoCorasick,
    needles: Vec<Zeroizing<Vec<u8>>>,
    little: usize,
}

impl Needles {
    /// `None` when there is nothing to look for.
    pub fn of(injections: &[Injection]) -> Option<Needles> {
        let mut spelled = BTreeSet::new();
        injections.iter().for_each(|i| spellings(&i.secret, &mut spelled));
        let needles: Vec<_> = spelled.into_iter().map(Zeroizing::new).collect();
        let shortest = needles.iter().map(|n| n.len()).min()?;
        let finder = |kind| AhoCorasick::builder().match_kind(kind).build(needles.iter().map(|n| n.as_slice())).ok();
        let (first, each) = (finder(MatchKind::LeftmostLongest)?, finder(MatchKind::Standard)?);
        Some(Needles { first, each, needles, little: LITTLE.min(shortest / LITTLE_OF) })
    }

    /// Where something to mask stands.
    fn found(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let Some(first) = self.first.find(bytes) else {
            return Vec::new();
        };
        let rest = Input::new(bytes).range(first.start()..);
        self.each.find_overlapping_iter(rest).map(|found| found.range()).collect()
    }

    /// Masks in place; whether anything was found. Lengths stay as they are.
    pub fn mask(&self, bytes: &mut [u8]) -> bool {
        let found = self.found(bytes);
        found.iter().for_each(|range| bytes[range.clone()].fill(MASKED));
        !found.is_empty()
    }

    /// The value masked, when there is something to mask.
    pub fn masked(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut copy = value.to_vec();
        self.mask(&mut copy).then_some(copy)
    }

    /// How many bytes at the end could be the start of something to mask.
    fn pending(&self, bytes: &[u8]) -> usize {
        let longest = self.needles.iter().map(|n| n.len()).max().unwrap_or(1) - 1;
        let from = bytes.len().saturating_sub(longest);
        let starts = |end: &[u8]| self.needles.iter().any(|n| n.len() > end.len() && n.starts_with(end));
        (from..bytes.len()).find(|at| starts(&bytes[*at..])).map_or(0, |at| bytes.len() - at)
    }
}

/// What was spelled out before: the secrets of a guest are few, and all its requests to one host have the same.
#[derive(Default)]
pub(super) struct Spelled(Mutex<Vec<Known>>);

type Known = (Vec<Arc<[u8]>>, Option<Arc<Needles>>);

impl Spelled {
    pub fn needles(&self, injections: &[Injection]) -> Option<Arc<Needles>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |secrets: &[Arc<[u8]>]| secrets.iter().eq(injections.iter().map(|i| &i.secret));
        if let Some((_, needles)) = known.iter().find(|(secrets, _)| is_same(secrets)) {
            return needles.clone();
        }
        let needles = Needles::of(injections).map(Arc::new);
        if known.len() == MAX_SPELLED {
            known.remove(0);
        }
        known.push((injections.iter().map(|i| i.secret.clone()).collect(), needles.clone()));
        needles
    }
}

/// The secret as servers write it: as it is, in JSON, in URLs, in base64 at any offset, in hexadecimal.
fn spellings(secret: &[u8], out: &mut BTreeSet<Vec<u8>>) {
    if secret.len() < MIN_NEEDLE {
        return;
    }
    out.insert(secret.to_vec());
    let mut add = |spelled: Vec<u8>| {
        if spelled.len() >= MIN_SPELLED {
            out.insert(spelled);
        }
    };
    for slash in ["/", "\\/"] {
        add(each(secret, |byte| match byte {
            b'"' => "\\\"".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b'/' => slash.to_owned(),
            other => char_or(other, format!("\\u{other:04x}")),
        }));
    }
    add(each(secret, |byte| match byte {
        b'"' => "\\\"".to_owned(),
        b'\\' => "\\\\".to_owned(),
        b'<' | b'>' | b'&' | b'\'' => format!("\\u{byte:04x}"),
        other => char_or(other, format!("\\u{other:04x}")),
    }));
    for kept in [&b"-_.~"[..], b"-_.!~*'()", b"-_.*", b"-_.~/", b""] {
        add(each(secret, |byte| plain_or(byte, kept, format!("%{byte:02X}"))));
        add(each(secret, |byte| plain_or(byte, kept, format!("%{byte:02x}"))));
    }
    add(each(
        secret,
        |byte| if byte == b' ' { "+".to_owned() } else { plain_or(byte, b"-_.~", format!("%{byte:02X}")) },
    ));
    add(each(secret, |byte| format!("{byte:02x}")));
    add(each(secret, |byte| format!("{byte:02X}")));
    for offset in 0..3 {
        add(inside_base64(&STANDARD_NO_PAD, secret, offset));
        add(inside_base64(&URL_SAFE_NO_PAD, secret, offset));
    }
}

fn each(secret: &[u8], spell: impl Fn(u8) -> String) -> Vec<u8> {
    secret.iter().flat_map(|byte| spell(*byte).into_bytes()).collect()
}

fn char_or(byte: u8, other: String) -> String {
    if byte.is_ascii_graphic() || byte == b' ' { char::from(byte).to_string() } else { other }
}

fn plain_or(byte: u8, kept: &[u8], other: String) -> String {
    if byte.is_ascii_alphanumeric() || kept.contains(&byte) { char::from(byte).to_string() } else { other }
}

/// The characters that stand for the secret alone, when so many bytes of something else stand before it.
fn inside_base64(engine: &impl Engine, secret: &[u8], offset: usize) -> Vec<u8> {
    let mut padded = Zeroizing::new(vec![0; offset]);
    padded.extend(secret);
    let mut text = engine.encode(&*padded).into_bytes();
    let whole = padded.len() * 8 / 6;
    text.truncate(whole);
    text.drain(..(offset * 8).div_ceil(6));
    text
}

/// One body on its way to the guest. A byte is masked when it belongs to a secret, and waits as long as it could.
pub(super) struct Mask<'a> {
    needles: Option<&'a Needles>,
    /// What could be the start of a secret, as the server sent it.
    held: Vec<u8>,
    /// How many of these bytes have gone on nevertheless. They are kept so that the rest is still known for what it is.
    gone: usize,
}

impl<'a> Mask<'a> {
    pub fn new(needles: Option<&'a Needles>) -> Mask<'a> {
        Mask { needles, held: Vec::new(), gone: 0 }
    }

    /// What of the body may go on.
    pub fn pass(&mut self, data: Bytes) -> Bytes {
        let Some(needles) = self.needles else {
            return data;
        };
        if self.held.is_empty() && !needles.first.is_match(&data[..]) {
            let from = data.len() - needles.pending(&data);
            self.held.extend_from_slice(&data[from..]);
            return data.slice(..from);
        }
        let mut whole = Zeroizing::new(std::mem::take(&mut self.held));
        whole.extend_from_slice(&data);
        let from = whole.len() - needles.pending(&whole);
        let found = needles.found(&whole);
        // What belongs to one secret is decided, even where another may begin within it.
        let until = found.iter().filter(|f| f.start < from).map(|f| f.end).fold(from, usize::max);
        self.held.extend_from_slice(&whole[from..]);
        found.into_iter().for_each(|range| whole[range].fill(MASKED));
        let begin = self.gone.min(until);
        self.gone = until.max(self.gone) - from;
        Bytes::copy_from_slice(&whole[begin..until])
    }

    /// Whether so little is held that it may go on when nothing follows for a moment.
    pub fn holds_little(&self) -> bool {
        let little = self.needles.map_or(0, |n| n.little);
        self.gone < self.held.len() && self.held.len() <= little
    }

    /// Lets go what is held, after a moment without more.
    pub fn let_go(&mut self) -> Bytes {
        let begin = std::mem::replace(&mut self.gone, self.held.len());
        Bytes::copy_from_slice(&self.held[begin..])
    }

    /// What is held, at the end of the body.
    pub fn rest(&mut self) -> Bytes {
        let mut held = Zeroizing::new(std::mem::take(&mut self.held));
        if let Some(needles) = self.needles {
            needles.mask(&mut held);
        }
        Bytes::copy_from_slice(&held[std::mem::take(&mut self.gone)..])
    }
}

impl Drop for Mask<'_> {
    fn drop(&mut self) {
        self.held.zeroize();
    }
}

#[cfg(test)]
#[path = "secrets_test.rs"]
mod test;
