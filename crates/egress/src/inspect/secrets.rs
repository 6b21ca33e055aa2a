//! Secrets that the guest does not have: injected into requests, and masked in responses in every usual encoding and
//! across buffer boundaries.
//!
//! Masking is for servers that echo what they received. It does not stop a server that deliberately encodes the secret
//! in another way.

use super::headers::{Headers, is_lookalike};
use crate::request_judge::Injection;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// Minimum length of a secret to be masked. Shorter ones would match everywhere.
const MIN_NEEDLE: usize = 4;
/// Minimum length of an encoded secret to be masked, since encodings consist of common characters.
const MIN_SPELLED: usize = 6;
const MAX_SPELLED: usize = 32;
const MASKED: u8 = b'*';
/// Limit on held bytes that are released when no more data follows: a response that only happens to end like the start
/// of a secret must not wait for ever. A secret sent with pauses reveals that many bytes and no more.
const MAX_RELEASED: usize = 3;
/// Divisor of the shortest secret's length, which bounds the released bytes further.
const RELEASED_DIVISOR: usize = 4;
/// Time that such bytes are held for more data.
pub(super) const RELEASE_DELAY: Duration = Duration::from_millis(100);

/// Selects the injections of a request, one for each header. `Err` names a header that holds another value than the
/// placeholder.
pub(super) fn chosen<'a>(injections: &'a [Injection], headers: &dyn Headers) -> Result<Vec<&'a Injection>, &'a str> {
    if let Some(injection) =
        injections.iter().find(|i| headers.names().iter().any(|name| is_lookalike(name, &i.header)))
    {
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

/// Returns true if a value contains the placeholder, as it is or in Basic credentials.
fn holds(value: &[u8], placeholder: &str) -> bool {
    if placeholder.is_empty() {
        return false;
    }
    let within = |value: &[u8]| value.windows(placeholder.len()).any(|part| part == placeholder.as_bytes());
    let is_basic = value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "));
    within(value) || is_basic && STANDARD.decode(value[6..].trim_ascii()).is_ok_and(|plain| within(&plain))
}

/// Requests a response that can be searched: complete and not compressed. Ranges could return parts too short to be
/// recognised.
pub(super) fn request_plain_response(headers: &mut dyn Headers) {
    headers.set("accept-encoding", b"identity");
    for name in ["grpc-accept-encoding", "sec-websocket-extensions", "range", "if-range"] {
        headers.remove(name);
    }
}

/// Returns the reason why a response cannot be searched, if there is one.
pub(super) fn unsearchable_reason(status: u16, headers: &dyn Headers) -> Option<&'static str> {
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

/// The encodings of the secrets of one request, as search automata.
pub(super) struct Needles {
    /// Finds the first match fast.
    first: AhoCorasick,
    /// Finds all matches, including overlapping ones.
    each: AhoCorasick,
    needles: Vec<Zeroizing<Vec<u8>>>,
    max_released: usize,
}

impl Needles {
    /// Returns `None` if no secret is long enough.
    pub fn of(injections: &[Injection]) -> Option<Needles> {
        let mut spelled = BTreeSet::new();
        injections.iter().for_each(|i| spellings(&i.secret, &mut spelled));
        let needles: Vec<_> = spelled.into_iter().map(Zeroizing::new).collect();
        let shortest = needles.iter().map(|n| n.len()).min()?;
        let finder = |kind| AhoCorasick::builder().match_kind(kind).build(needles.iter().map(|n| n.as_slice())).ok();
        let (first, each) = (finder(MatchKind::LeftmostLongest)?, finder(MatchKind::Standard)?);
        Some(Needles { first, each, needles, max_released: MAX_RELEASED.min(shortest / RELEASED_DIVISOR) })
    }

    /// Returns the ranges to mask.
    fn found(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let Some(first) = self.first.find(bytes) else {
            return Vec::new();
        };
        let rest = Input::new(bytes).range(first.start()..);
        self.each.find_overlapping_iter(rest).map(|found| found.range()).collect()
    }

    /// Masks in place, without changing the length. Returns true if there was a match.
    pub fn mask(&self, bytes: &mut [u8]) -> bool {
        let found = self.found(bytes);
        found.iter().for_each(|range| bytes[range.clone()].fill(MASKED));
        !found.is_empty()
    }

    /// Returns a masked copy if there was a match.
    pub fn masked(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut copy = value.to_vec();
        self.mask(&mut copy).then_some(copy)
    }

    /// Returns how many bytes at the end could be the start of a match.
    fn pending(&self, bytes: &[u8]) -> usize {
        let longest = self.needles.iter().map(|n| n.len()).max().unwrap_or(1) - 1;
        let from = bytes.len().saturating_sub(longest);
        let starts = |end: &[u8]| self.needles.iter().any(|n| n.len() > end.len() && n.starts_with(end));
        (from..bytes.len()).find(|at| starts(&bytes[*at..])).map_or(0, |at| bytes.len() - at)
    }
}

/// Cache of automata. A guest has few secrets, and all its requests to one host use the same ones.
#[derive(Default)]
pub(super) struct NeedleCache(Mutex<Vec<CachedNeedles>>);

type CachedNeedles = (Vec<Arc<[u8]>>, Option<Arc<Needles>>);

impl NeedleCache {
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

/// Adds the encodings in which servers return a secret: raw, JSON, percent-encoded, base64 at any offset, hexadecimal.
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
    let digits = terms::hex::encode(secret);
    add(digits.to_ascii_uppercase().into_bytes());
    add(digits.into_bytes());
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

/// Returns the base64 characters that depend on the secret alone, with `offset` other bytes before it.
fn inside_base64(engine: &impl Engine, secret: &[u8], offset: usize) -> Vec<u8> {
    let mut padded = Zeroizing::new(vec![0; offset]);
    padded.extend(secret);
    let mut text = engine.encode(&*padded).into_bytes();
    let whole = padded.len() * 8 / 6;
    text.truncate(whole);
    text.drain(..(offset * 8).div_ceil(6));
    text
}

/// Masks one body on its way to the guest. Bytes that could be the start of a secret are held until that is decided.
pub(super) struct Mask<'a> {
    needles: Option<&'a Needles>,
    /// Possible start of a secret, as received.
    held: Vec<u8>,
    /// Number of held bytes that were already released. They are kept so that the rest of the secret is still
    /// recognised.
    released: usize,
}

impl<'a> Mask<'a> {
    pub fn new(needles: Option<&'a Needles>) -> Mask<'a> {
        Mask { needles, held: Vec::new(), released: 0 }
    }

    /// Masks data and returns the bytes that may go on.
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
        // Bytes of a complete match are decided, even if another match may start within it.
        let until = found.iter().filter(|f| f.start < from).map(|f| f.end).fold(from, usize::max);
        self.held.extend_from_slice(&whole[from..]);
        found.into_iter().for_each(|range| whole[range].fill(MASKED));
        let begin = self.released.min(until);
        self.released = until.max(self.released) - from;
        Bytes::copy_from_slice(&whole[begin..until])
    }

    /// Returns true if few enough bytes are held to release them after a pause.
    pub fn may_release(&self) -> bool {
        let max_released = self.needles.map_or(0, |n| n.max_released);
        self.released < self.held.len() && self.held.len() <= max_released
    }

    /// Releases the held bytes after a pause.
    pub fn release(&mut self) -> Bytes {
        let begin = std::mem::replace(&mut self.released, self.held.len());
        Bytes::copy_from_slice(&self.held[begin..])
    }

    /// Returns the held bytes, masked, at the end of the body.
    pub fn rest(&mut self) -> Bytes {
        let mut held = Zeroizing::new(std::mem::take(&mut self.held));
        if let Some(needles) = self.needles {
            needles.mask(&mut held);
        }
        Bytes::copy_from_slice(&held[std::mem::take(&mut self.released)..])
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
