//! Query parameters and headers of file requests: paths of any bytes, globs, entity tags, ranges.

use crate::Shared;
use crate::extract::single;
use crate::refuse::Refusal;
use axum::extract::FromRequestParts;
use http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Uri};
use node::files::read::Span;
use node::files::write::WriteCondition;
use serde::de::DeserializeOwned;
use terms::{Fault, Phase};
use utoipa::IntoParams;

/// Describes the parameter `path` for the OpenAPI document; it is read as raw bytes, which a query of text cannot hold.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
pub struct PathQuery {
    /// Path relative to the workspace's top, which is `.`; or absolute, as seen inside the sandbox: in its workspace, its own home or its
    /// `/tmp`, which lasts as long as it is live. Directories of the host that a rule shows inside cannot be reached. Bytes that are not UTF-8 are
    /// percent-encoded.
    path: String,
}

/// Extracts the path and the rest of the query.
pub struct WithPath<T> {
    pub path: Vec<u8>,
    pub rest: T,
}

/// Extracts the path, globs, and the rest of the query.
pub struct WithGlobs<T> {
    pub path: Vec<u8>,
    pub globs: Vec<String>,
    pub rest: T,
}

fn invalid(message: String, hint: &str) -> Refusal {
    Fault::invalid(message).hint(hint).phase(Phase::Admission).into()
}

impl<T: DeserializeOwned> FromRequestParts<Shared> for WithPath<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<WithPath<T>, Refusal> {
        let path = exactly_one(values_of(parts, "path"))?;
        let rest = remaining_query(parts, shared, &["path"]).await?;
        Ok(WithPath { path, rest })
    }
}

impl<T: DeserializeOwned> FromRequestParts<Shared> for WithGlobs<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<WithGlobs<T>, Refusal> {
        let path = exactly_one(values_of(parts, "path"))?;
        let text =
            |bytes| String::from_utf8(bytes).map_err(|_| invalid("the query: glob: not UTF-8".into(), "e.g. *.rs"));
        let globs = values_of(parts, "glob").into_iter().map(text).collect::<Result<_, _>>()?;
        let rest = remaining_query(parts, shared, &["path", "glob"]).await?;
        Ok(WithGlobs { path, globs, rest })
    }
}

fn is_of(pair: &str, names: &[&str]) -> bool {
    pair.split('=').next().is_some_and(|name| names.contains(&name))
}

/// Returns all values of a parameter, as bytes.
fn values_of(parts: &Parts, name: &str) -> Vec<Vec<u8>> {
    let pairs = parts.uri.query().unwrap_or_default().split('&').filter(|pair| is_of(pair, &[name]));
    pairs.map(|pair| decode(pair.split_once('=').map_or("", |(_, value)| value))).collect()
}

fn exactly_one(mut paths: Vec<Vec<u8>>) -> Result<Vec<u8>, Refusal> {
    match (paths.len(), paths.pop()) {
        (1, Some(path)) => Ok(path),
        (0, _) => Err(invalid("the query: path is missing".into(), "`.` is the workspace's top")),
        _ => Err(invalid("the query: path is given twice".into(), "give one path")),
    }
}

/// Deserializes the query without these parameters.
async fn remaining_query<T: DeserializeOwned>(
    parts: &mut Parts,
    shared: &Shared,
    without: &[&str],
) -> Result<T, Refusal> {
    let query = parts.uri.query().unwrap_or_default();
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_of(pair, without)).collect();
    let uri: Uri = format!("/?{}", rest.join("&")).parse().unwrap_or_default();
    let whole = std::mem::replace(&mut parts.uri, uri);
    let rest = crate::extract::Query::from_request_parts(parts, shared).await;
    parts.uri = whole;
    Ok(rest?.0)
}

/// Decodes a form-encoded value: `+` is a space, `%XX` a byte.
fn decode(text: &str) -> Vec<u8> {
    let (text, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        let digits = text.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.filter(|two| !two.starts_with('+')).and_then(|two| u8::from_str_radix(two, 16).ok());
        let (byte, length) = match (text[at], byte) {
            (b'%', Some(byte)) => (byte, 3),
            (b'+', _) => (b' ', 1),
            (byte, _) => (byte, 1),
        };
        out.push(byte);
        at += length;
    }
    out
}

/// Parses `If-Match` and `If-None-Match` as the condition of a write.
pub fn write_condition(headers: &HeaderMap) -> Result<WriteCondition, Refusal> {
    match (single(headers, &IF_MATCH)?, single(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(WriteCondition::Always),
        (Some("*"), None) => Ok(WriteCondition::Present),
        (Some(tags), None) => Ok(WriteCondition::Matches(tags_of(tags, &IF_MATCH)?)),
        (None, Some("*")) => Ok(WriteCondition::Absent),
        (None, Some(_)) => Err(invalid(
            "If-None-Match: only * is supported here".into(),
            "use If-Match with the ETag of an earlier response",
        )),
        (Some(_), Some(_)) => Err(invalid("If-Match and If-None-Match are both given".into(), "send one of them")),
    }
}

/// Returns true if `If-None-Match` names this version, so that the client has it already.
pub fn none_match(headers: &HeaderMap, tag: &str) -> Result<bool, Refusal> {
    match single(headers, &IF_NONE_MATCH)? {
        None => Ok(false),
        Some("*") => Ok(true),
        Some(tags) => Ok(tags_of(tags, &IF_NONE_MATCH)?.iter().any(|known| known == tag)),
    }
}

fn tags_of(text: &str, header: &HeaderName) -> Result<Vec<String>, Refusal> {
    let tag = |part: &str| {
        let part = part.trim();
        let bare = part.strip_prefix("W/").unwrap_or(part);
        bare.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    let refuse = || {
        invalid(
            format!("{header} {text:?}: not a list of entity tags"),
            "give the ETag of an earlier response, with its quotes",
        )
    };
    text.split(',').map(tag).collect::<Option<Vec<_>>>().ok_or_else(refuse)
}

/// Evaluates `If-Range`: returns true if a range may be sent. Only an equal strong tag matches: a weak tag does not promise equal bytes,
/// and this server sends no dates that could come back.
pub fn range_applies(headers: &HeaderMap, tag: &str) -> Result<bool, Refusal> {
    Ok(single(headers, &IF_RANGE)?.is_none_or(|had| had == format!("\"{tag}\"")))
}

/// Parses the Range header; none without one, and for several ranges, which may be answered with the whole file.
pub fn range(headers: &HeaderMap) -> Result<Option<Span>, Refusal> {
    let Some(text) = single(headers, &RANGE)? else { return Ok(None) };
    let Some(range) = text.strip_prefix("bytes=").filter(|range| !range.contains(',')) else { return Ok(None) };
    let refuse =
        || invalid(format!("Range {text:?}: not a range of bytes"), "e.g. bytes=0-99, bytes=100- or bytes=-50");
    let (first, last) = range.trim().split_once('-').ok_or_else(refuse)?;
    let number = |text: &str| match text.is_empty() {
        true => Ok(None),
        false if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().map(Some).map_err(|_| refuse()),
        false => Err(refuse()),
    };
    match (number(first)?, number(last)?) {
        (Some(first), Some(last)) if last < first => Err(refuse()),
        (Some(first), last) => Ok(Some(Span::From { first, last })),
        (None, Some(count)) => Ok(Some(Span::Last(count))),
        (None, None) => Err(refuse()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_come_through_a_query() {
        assert_eq!(decode("a%2Fb+c%ff%00%zz%+1%4"), b"a/b c\xff\x00%zz% 1%4");
    }

    #[test]
    fn ranges_and_tags_are_read_as_they_are_written() {
        let of = |name: HeaderName, value: &str| HeaderMap::from_iter([(name, value.parse().unwrap())]);
        let range = |text: &str| range(&of(RANGE, text)).ok();
        assert_eq!(range("bytes=0-9"), Some(Some(Span::From { first: 0, last: Some(9) })));
        assert_eq!(range("bytes=5-"), Some(Some(Span::From { first: 5, last: None })));
        assert_eq!(range("bytes=-5"), Some(Some(Span::Last(5))));
        assert_eq!(range("bytes=0-1,3-4"), Some(None), "several are answered with all");
        assert_eq!(range("lines=1-2"), Some(None));
        for bad in ["bytes=", "bytes=-", "bytes=9-1", "bytes=a-b", "bytes=+1-2", "bytes=99999999999999999999-"] {
            assert_eq!(range(bad), None, "{bad}");
        }
        assert_eq!(
            write_condition(&of(IF_MATCH, "\"a\", W/\"b\"")).unwrap(),
            WriteCondition::Matches(vec!["a".into(), "b".into()])
        );
        assert_eq!(write_condition(&of(IF_NONE_MATCH, "*")).unwrap(), WriteCondition::Absent);
        assert_eq!(write_condition(&of(IF_MATCH, "*")).unwrap(), WriteCondition::Present);
        assert!(write_condition(&of(IF_MATCH, "a")).is_err());
        assert!(none_match(&of(IF_NONE_MATCH, "\"x\",\"y\""), "y").unwrap());
        let current = |text: &str| range_applies(&of(IF_RANGE, text), "y").unwrap();
        assert!(current("\"y\"") && range_applies(&HeaderMap::new(), "y").unwrap());
        for other in ["\"x\"", "W/\"y\"", "y", "\"x\", \"y\"", "*", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert!(!current(other), "{other}");
        }
    }
}
