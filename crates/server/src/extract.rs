//! Extractors: body, query, path parameters, `If-Match`, `Idempotency-Key`. Each refuses invalid input with a fault that names the field.
//! They have the names of axum's extractors, which routes must not use.

mod by_name;

pub use self::by_name::ByName;
use crate::Shared;
use crate::refuse::Refusal;
use axum::extract::{FromRequest, FromRequestParts, Request};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use http_body_util::BodyExt;
use http_body_util::Limited;
use serde::de::DeserializeOwned;
use terms::{Fault, LimitKind, Phase};

fn invalid(message: String, hint: &str) -> Refusal {
    Fault::invalid(message).hint(hint).phase(Phase::Admission).into()
}

/// Deserializes the body as JSON. An empty body stands for `{}`.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, shared: &Shared) -> Result<Json<T>, Refusal> {
        document(request, shared.max_body()).await.map(Json)
    }
}

/// Deserializes a body that holds the source text of a program, which may be larger than other documents.
pub struct SourceJson<T>(pub T);

/// Bound on a document with source text: twice the bound on the text, because JSON escapes each line's end.
const MAX_SOURCE_BODY: usize = 17 << 20;

impl<T: DeserializeOwned> FromRequest<Shared> for SourceJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, shared: &Shared) -> Result<SourceJson<T>, Refusal> {
        document(request, shared.max_body().max(MAX_SOURCE_BODY)).await.map(SourceJson)
    }
}

async fn document<T: DeserializeOwned>(request: Request, most: usize) -> Result<T, Refusal> {
    let (parts, body) = request.into_parts();
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large(most));
    }
    let bytes = match Limited::new(body, most).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => return Err(too_large(most)),
        Err(error) => return Err(broken_body(error.as_ref())),
    };
    if bytes.is_empty() {
        return read(b"{}");
    }
    check_type(&parts.headers, &["application/json"])?;
    read(&bytes)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(ByName(&mut text)).map_err(|e| {
        let (at, inner) = (e.path().to_string(), e.into_inner());
        let field = if at == "." { String::new() } else { format!("{at}: ") };
        invalid(
            format!("the body: {field}{inner}"),
            "the body must be the JSON document that /v1/openapi.json describes",
        )
    })?;
    text.end().map_err(|e| invalid(format!("the body: {e}"), "send one JSON document and nothing after it"))?;
    Ok(value)
}

/// The refusal for a body that could not be read: too slow, or broken off by the client.
pub fn broken_body(error: &(dyn std::error::Error + 'static)) -> Refusal {
    let mut at = Some(error);
    while let Some(error) = at {
        if error.is::<crate::slow_body::TooSlow>() {
            let hint = "send it at once, or in parts that keep coming";
            return Refusal::limit(StatusCode::REQUEST_TIMEOUT, LimitKind::BodyMs, error.to_string(), hint);
        }
        at = error.source();
    }
    invalid(format!("the body: {error}"), "send as many bytes as Content-Length says")
}

pub fn too_large(most: usize) -> Refusal {
    let message = format!("the body has more than {most} bytes");
    Refusal::limit(StatusCode::PAYLOAD_TOO_LARGE, LimitKind::BodyBytes, message, "send less at a time")
}

/// Refuses a body whose Content-Type is not among `content_types`.
pub fn check_type(headers: &HeaderMap, content_types: &[&str]) -> Result<(), Refusal> {
    check_coding(headers)?;
    let given = headers.get(CONTENT_TYPE).and_then(|t| t.to_str().ok()).unwrap_or_default();
    let content_type = given.split(';').next().unwrap_or_default().trim();
    match content_types.iter().any(|known| known.eq_ignore_ascii_case(content_type)) {
        true => Ok(()),
        false => {
            let what = format!("the body: Content-Type {given:?} is not accepted by this route");
            let hint = format!("send it as {}", content_types.join(" or "));
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, hint))
        }
    }
}

/// Refuses a body with a Content-Encoding.
pub fn check_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(CONTENT_ENCODING).filter(|coding| coding.as_bytes() != b"identity") {
        Some(coding) => {
            let what = format!("the body: Content-Encoding {coding:?} is not supported");
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, "send the body without a content coding"))
        }
        None => Ok(()),
    }
}

/// Deserializes the query into a type that denies unknown fields.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Shared> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Query<T>, Refusal> {
        let read = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let refuse = |e: axum::extract::rejection::QueryRejection| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            let why = with_value(&parts.uri, why);
            invalid(format!("the query: {why}"), "/v1/openapi.json lists the parameters of each route")
        };
        read.map(|query| Query(query.0)).map_err(refuse)
    }
}

/// Adds the parameter's value to an error "NAME: why", unless the error already contains it.
fn with_value(uri: &Uri, error: String) -> String {
    let Some((name, why)) = error.split_once(": ") else { return error };
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|pairs| pairs.0);
    let given = pairs.unwrap_or_default().into_iter().find(|(own, _)| own == name);
    match given.map(|(_, value)| format!("{value:?}")) {
        Some(value) if !why.contains(&value) => format!("{name}: {value}: {why}"),
        _ => error,
    }
}

/// Deserializes the parameters of the path.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Shared> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Path<T>, Refusal> {
        match axum::extract::Path::<T>::from_request_parts(parts, shared).await {
            Ok(path) => Ok(Path(path.0)),
            Err(e) => Err(invalid(format!("the path: {}", e.body_text()), "/v1/openapi.json lists the routes")),
        }
    }
}

/// `If-Match: "VERSION"`: the version that a change applies to; none for any version.
pub struct IfMatch(pub Option<u64>);

impl FromRequestParts<Shared> for IfMatch {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<IfMatch, Refusal> {
        let Some(text) = single(&parts.headers, &IF_MATCH)? else { return Ok(IfMatch(None)) };
        if text == "*" {
            return Ok(IfMatch(None));
        }
        let number = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).and_then(|t| t.parse().ok());
        let refuse =
            || invalid(format!("If-Match {text:?}: not a version"), "give the ETag of an earlier response, e.g. \"3\"");
        number.map(|version| IfMatch(Some(version))).ok_or_else(refuse)
    }
}

/// `Idempotency-Key`: requests with the same key are carried out once.
#[derive(Clone, Debug, Default)]
pub struct IdempotencyKey(pub Option<String>);

impl FromRequestParts<Shared> for IdempotencyKey {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<IdempotencyKey, Refusal> {
        const LONGEST: usize = 255;
        let Some(text) = single(&parts.headers, &HeaderName::from_static("idempotency-key"))? else {
            return Ok(IdempotencyKey(None));
        };
        let plain = !text.is_empty() && text.len() <= LONGEST && text.bytes().all(|b| (0x21..0x7f).contains(&b));
        match plain {
            true => Ok(IdempotencyKey(Some(text.to_owned()))),
            false => Err(invalid(
                format!("Idempotency-Key {text:?}: must be 1 to {LONGEST} visible ASCII characters"),
                "a UUID is a good key",
            )),
        }
    }
}

/// Returns the value of a header that may be sent once.
pub fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(invalid(format!("the header {name} is given twice"), "send it once"));
    }
    let text = first
        .to_str()
        .map_err(|_| invalid(format!("the header {name} is not text"), "send visible ASCII characters"))?;
    Ok(Some(text.trim()))
}

/// A page of a list: at most `limit` items after the cursor `after`.
pub struct Paging {
    pub limit: Option<u32>,
    pub after: Option<String>,
}

impl Paging {
    const DEFAULT: usize = 100;
    const MAX: usize = 1000;

    /// Cuts one page out of a list that is sorted by `key`; returns it with the cursor of the next page. Keys have the form of the cursor.
    pub fn cut<T>(
        &self,
        mut all: Vec<T>,
        cursor: Cursor,
        key: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), Refusal> {
        let limit = match self.limit {
            Some(0) => return Err(invalid("the query: limit: 0".into(), "ask for 1 to 1000")),
            Some(n) if n as usize > Self::MAX => {
                return Err(invalid(format!("the query: limit: {n}"), "ask for 1 to 1000"));
            }
            Some(n) => n as usize,
            None => Self::DEFAULT,
        };
        if let Some(after) = &self.after {
            if !cursor.is(after) {
                let hint = "give `next` of the previous page, or leave `after` out for the first page";
                return Err(invalid(format!("the query: after: {after:?} is not a cursor of this list"), hint));
            }
            all.retain(|item| key(item).as_str() > after.as_str());
        }
        let more = all.len() > limit;
        all.truncate(limit);
        let next = if more { all.last().map(key) } else { None };
        Ok((all, next))
    }
}

/// The form of a list's cursors. Any other text is refused: it would be answered as the end of the list. A cursor stays valid when its item
/// is removed.
#[derive(Clone, Copy, Debug)]
pub enum Cursor {
    Name,
    /// An id with this prefix.
    Id(&'static str),
    /// An inverted timestamp and an id with this prefix, so that the newest come first.
    Timed(&'static str),
}

impl Cursor {
    pub fn timed(ms: u64, id: &str) -> String {
        format!("{:016x}.{id}", u64::MAX - ms)
    }

    fn is(self, text: &str) -> bool {
        let hex =
            |text: &str, length| text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match self {
            Cursor::Name => node::create::may_be_name(text),
            Cursor::Id(prefix) => text.strip_prefix(prefix).is_some_and(|rest| hex(rest, 32)),
            Cursor::Timed(prefix) => {
                text.split_once('.').is_some_and(|(time, id)| hex(time, 16) && Cursor::Id(prefix).is(id))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_told_from_other_words() {
        let id = terms::id("sbx", [0xa5; 16]);
        let timed = Cursor::timed(1_700_000_000_000, &id);
        assert!(Cursor::Id("sbx_").is(&id) && Cursor::Timed("sbx_").is(&timed) && Cursor::Name.is("v1.2"));
        for (cursor, bad) in [
            (Cursor::Id("sbx_"), "sbx_zzz"),
            (Cursor::Id("sbx_"), &timed),
            (Cursor::Id("run_"), &id),
            (Cursor::Timed("sbx_"), &id),
            (Cursor::Timed("run_"), &timed),
            (Cursor::Timed("sbx_"), &timed.to_uppercase()),
            (Cursor::Timed("sbx_"), &timed[1..]),
            (Cursor::Name, "a b"),
            (Cursor::Name, ""),
        ] {
            assert!(!cursor.is(bad), "{cursor:?} {bad:?}");
        }
    }

    #[test]
    fn parts_of_a_list_make_up_the_whole() {
        let all: Vec<u32> = (0..25).collect();
        let (key, cursor) = (|n: &u32| format!("{n:04}"), Cursor::Name);
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let (part, next) = Paging { limit: Some(10), after }.cut(all.clone(), cursor, key).unwrap();
            seen.extend(part);
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all);
        assert!(Paging { limit: Some(0), after: None }.cut(all.clone(), cursor, key).is_err());
        assert!(Paging { limit: Some(1001), after: None }.cut(all.clone(), cursor, key).is_err());
        assert!(Paging { limit: None, after: Some("0/24".into()) }.cut(all, cursor, key).is_err());
    }
}
