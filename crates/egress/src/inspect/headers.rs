//! Common interface to the header fields of HTTP/1.x and HTTP/2, with the rules for both: hop-by-hop fields, ambiguous
//! names, injected secrets.

use crate::http1::{Field, HeaderFields};
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroize;

pub(super) const MAX_FIELDS: usize = crate::http1::MAX_FIELDS;

pub(super) trait Headers {
    fn values(&self, name: &str) -> Vec<&[u8]>;
    fn remove(&mut self, name: &str);
    /// Replaces all values of the field by one. Returns false if the value is invalid.
    fn set(&mut self, name: &str, value: &[u8]) -> bool;
    /// Replaces each value for which `rewrite` returns one. A field whose name would be rewritten is removed.
    fn rewrite(&mut self, rewrite: &dyn Fn(&[u8]) -> Option<Vec<u8>>);
    fn names(&self) -> Vec<&str>;
}

impl Headers for HeaderFields {
    fn values(&self, name: &str) -> Vec<&[u8]> {
        let of_name = self.0.iter().filter(|f| f.name.eq_ignore_ascii_case(name));
        of_name.map(|f| f.value.as_slice()).collect()
    }

    fn remove(&mut self, name: &str) {
        HeaderFields::remove(self, name);
    }

    fn set(&mut self, name: &str, value: &[u8]) -> bool {
        HeaderFields::remove(self, name);
        self.add(name, value);
        is_value(value)
    }

    fn rewrite(&mut self, rewrite: &dyn Fn(&[u8]) -> Option<Vec<u8>>) {
        self.0.retain(|f| rewrite(f.name.as_bytes()).is_none());
        for Field { value, .. } in &mut self.0 {
            if let Some(other) = rewrite(value) {
                value.zeroize();
                *value = other;
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|f| f.name.as_str()).collect()
    }
}

impl Headers for HeaderMap {
    fn values(&self, name: &str) -> Vec<&[u8]> {
        self.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    fn remove(&mut self, name: &str) {
        HeaderMap::remove(self, name);
    }

    fn set(&mut self, name: &str, value: &[u8]) -> bool {
        let read = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value));
        let (Ok(name), Ok(mut value)) = read else {
            return false;
        };
        // Keeps the value out of the HPACK table, which later requests share.
        value.set_sensitive(true);
        self.insert(name, value);
        true
    }

    fn rewrite(&mut self, rewrite: &dyn Fn(&[u8]) -> Option<Vec<u8>>) {
        let leaking: Vec<HeaderName> =
            self.keys().filter(|n| rewrite(n.as_str().as_bytes()).is_some()).cloned().collect();
        leaking.iter().for_each(|name| drop(HeaderMap::remove(self, name)));
        for value in self.values_mut() {
            if let Some(other) = rewrite(value.as_bytes()).and_then(|v| HeaderValue::from_bytes(&v).ok()) {
                *value = other;
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.keys().map(HeaderName::as_str).collect()
    }
}

/// Returns true if the bytes are valid as a field value.
pub(super) fn is_value(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f)
}

/// Removes hop-by-hop fields, including those that Connection names.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderFields) {
    const OF_ONE_HOP: [&str; 6] =
        ["connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade"];
    let named: Vec<String> =
        headers.words("connection").map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    named.iter().map(String::as_str).chain(OF_ONE_HOP).for_each(|name| headers.remove(name));
}

/// Returns true if some servers would take one name for the other, because they read an underscore as a hyphen.
pub(super) fn is_lookalike(name: &str, other: &str) -> bool {
    let spelled = |name: &str| name.replace('_', "-").to_ascii_lowercase();
    !name.eq_ignore_ascii_case(other) && spelled(name) == spelled(other)
}

const FRAMING: [&str; 3] = ["content-length", "transfer-encoding", "host"];

/// Returns the reason for refusing the fields of an HTTP/2 request, if there is one. A backend behind the server may
/// speak HTTP/1.x and must not see another message.
pub(super) fn ambiguity(headers: &HeaderMap) -> Option<&'static str> {
    if headers.len() > MAX_FIELDS {
        return Some("there are more than 128 fields");
    }
    if FRAMING.iter().any(|name| headers.get_all(*name).iter().count() > 1) {
        return Some("a field that frames the message comes twice");
    }
    if headers.contains_key("transfer-encoding") {
        return Some("Transfer-Encoding does not exist in HTTP/2");
    }
    let is_ambiguous = |name: &&str| FRAMING.iter().any(|framing| is_lookalike(name, framing));
    headers.names().iter().any(is_ambiguous).then_some("a field looks like one that frames the message")
}

/// Returns true if trailers contain fields that only a head may carry; a backend behind the server may merge them into
/// the head.
pub(super) fn has_head_fields(trailers: &HeaderMap) -> bool {
    let of_head = |name: &&str| FRAMING.iter().chain(&["trailer"]).any(|f| name == f || is_lookalike(name, f));
    trailers.len() > MAX_FIELDS || trailers.names().iter().any(of_head)
}
