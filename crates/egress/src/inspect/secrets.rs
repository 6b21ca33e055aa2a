//! Secrets that the guest does not have: put into requests on their way out, and masked in what comes back, whichever
//! way the server spells them and wherever the pieces of an answer are cut.
//!
//! Masking is for servers that tell back what they were told. It does not stop a server that wants to tell a guest
//! the secret in a spelling of its own.

use super::headers::Headers;
use crate::court::Injection;
use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zeroize::{Zeroize, Zeroizing};

/// What is shorter is no secret, and would be found in everything.
const MIN_NEEDLE: usize = 4;
/// Other spellings are looked for from this length on: they are made of common characters.
const MIN_SPELLED: usize = 6;
const MAX_SPELLED: usize = 32;
/// What may be let go when nothing follows: an answer that only happens to end like the start of a secret must not
/// wait for what never comes.
const LITTLE: usize = 8;
/// How long it is kept for what may follow.
pub(super) const QUIET: Duration = Duration::from_millis(100);

/// Which of the injections a request gets: one for each header. `Err` names a header that holds something else.
pub(super) fn chosen<'a>(injections: &'a [Injection], headers: &dyn Headers) -> Result<Vec<&'a Injection>, &'a str> {
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

/// Asks the server for an answer that can be looked through.
pub(super) fn ask_uncompressed(headers: &mut dyn Headers) {
    headers.set("accept-encoding", b"identity");
    for name in ["grpc-accept-encoding", "sec-websocket-extensions"] {
        headers.remove(name);
    }
}

/// The coding that hides what an answer says, if there is one.
pub(super) fn is_compressed(headers: &dyn Headers) -> bool {
    let plain = |value: &&[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    let hidden = |name: &str| headers.values(name).iter().any(|value| !plain(value));
    hidden("content-encoding") || hidden("grpc-encoding") || !headers.values("sec-websocket-extensions").is_empty()
}

/// Everything to look for in the answers to one request.
pub(super) struct Needles {
    finder: AhoCorasick,
    needles: Vec<Zeroizing<Vec<u8>>>,
}

impl Needles {
    /// `None` when there is nothing to look for.
    pub fn of(injections: &[Injection]) -> Option<Needles> {
        let mut spelled = BTreeSet::new();
        injections.iter().for_each(|i| spellings(&i.secret, &mut spelled));
        let needles: Vec<_> = spelled.into_iter().map(Zeroizing::new).collect();
        if needles.is_empty() {
            return None;
        }
        let patterns = needles.iter().map(|n| n.as_slice());
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok()?;
        Some(Needles { finder, needles })
    }

    /// Masks in place; whether anything was found. Lengths stay as they are.
    pub fn mask(&self, bytes: &mut [u8]) -> bool {
        let found: Vec<_> = self.finder.find_iter(&*bytes).map(|m| m.range()).collect();
        found.iter().for_each(|range| bytes[range.clone()].fill(b'*'));
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
        let starts = |at: &usize| self.needles.iter().any(|n| n.starts_with(&bytes[*at..]));
        (from..bytes.len()).find(starts).map_or(0, |at| bytes.len() - at)
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

/// One body on its way to the guest.
pub(super) struct Mask<'a> {
    needles: Option<&'a Needles>,
    held: Vec<u8>,
}

impl<'a> Mask<'a> {
    pub fn new(needles: Option<&'a Needles>) -> Mask<'a> {
        Mask { needles, held: Vec::new() }
    }

    /// What of the body may go on. What could be the start of a secret stays until more is known.
    pub fn pass(&mut self, data: Bytes) -> Bytes {
        let Some(needles) = self.needles else {
            return data;
        };
        let mut whole = std::mem::take(&mut self.held);
        whole.extend_from_slice(&data);
        needles.mask(&mut whole);
        let keep = needles.pending(&whole);
        self.held = whole.split_off(whole.len() - keep);
        whole.into()
    }

    /// Whether bytes are held that may be let go when nothing follows for a moment.
    pub fn holds_little(&self) -> bool {
        (1..=LITTLE).contains(&self.held.len())
    }

    /// What is held, at the end of the body or after a moment without more.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
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
