//! What a route takes of a request: its body, its query, the names in its path, `If-Match`, `Idempotency-Key`. Each refuses
//! what it cannot read by the name of the field. They bear the names of axum's own, which no route may use.

mod by_name;

pub use self::by_name::ByName;
use crate::Shared;
use crate::refuse::Refusal;
use axum::extract::{FromRequest, FromRequestParts, Request};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use std::time::Duration;
use terms::{Fault, LimitKind, Phase};
use utoipa::ToSchema;

fn invalid(message: String, hint: &str) -> Refusal {
    Fault::invalid(message).hint(hint).phase(Phase::Admission).into()
}

/// The body as a document. None at all stands for `{}`.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Shared> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, shared: &Shared) -> Result<Json<T>, Refusal> {
        let most = shared.max_body();
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
            return read(b"{}").map(Json);
        }
        check_type(&parts.headers, &["application/json"])?;
        read(&bytes).map(Json)
    }
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
    text.end().map_err(|e| invalid(format!("the body: {e}"), "send one JSON document and nothing behind it"))?;
    Ok(value)
}

/// What went wrong on the way: `front` says when it was too slow, else the client broke off.
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

/// Refuses a body of another sort than those that a route takes.
pub fn check_type(headers: &HeaderMap, sorts: &[&str]) -> Result<(), Refusal> {
    check_coding(headers)?;
    let given = headers.get(CONTENT_TYPE).and_then(|t| t.to_str().ok()).unwrap_or_default();
    let sort = given.split(';').next().unwrap_or_default().trim();
    match sorts.iter().any(|known| known.eq_ignore_ascii_case(sort)) {
        true => Ok(()),
        false => {
            let what = format!("a body with Content-Type {given:?} is not taken here");
            let hint = format!("send it as {}", sorts.join(" or "));
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, hint))
        }
    }
}

/// Refuses a body that is compressed or otherwise coded.
pub fn check_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(CONTENT_ENCODING).filter(|coding| coding.as_bytes() != b"identity") {
        Some(coding) => {
            let what = format!("a body with Content-Encoding {coding:?} is not taken here");
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, "send the body as it is"))
        }
        None => Ok(()),
    }
}

/// The query as a type that denies unknown fields.
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

/// What is wrong with a parameter, "NAME: why", beside what it was given. Types that tell the value themselves need no help.
fn with_value(uri: &Uri, told: String) -> String {
    let Some((name, why)) = told.split_once(": ") else { return told };
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|pairs| pairs.0);
    let given = pairs.unwrap_or_default().into_iter().find(|(own, _)| own == name);
    match given.map(|(_, value)| format!("{value:?}")) {
        Some(value) if !why.contains(&value) => format!("{name}: {value}: {why}"),
        _ => told,
    }
}

/// Names in the path.
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

/// `If-Match: "VERSION"`: the version that a change is meant for; none where any will do.
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
            || invalid(format!("If-Match {text:?}: no version"), "give the ETag of an earlier answer, e.g. \"3\"");
        number.map(|version| IfMatch(Some(version))).ok_or_else(refuse)
    }
}

/// `Idempotency-Key`: the same request under the same key is carried out once.
#[derive(Clone, Debug, Default)]
pub struct Key(pub Option<String>);

impl FromRequestParts<Shared> for Key {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Key, Refusal> {
        const LONGEST: usize = 255;
        let Some(text) = single(&parts.headers, &HeaderName::from_static("idempotency-key"))? else {
            return Ok(Key(None));
        };
        let plain = !text.is_empty() && text.len() <= LONGEST && text.bytes().all(|b| (0x21..0x7f).contains(&b));
        match plain {
            true => Ok(Key(Some(text.to_owned()))),
            false => Err(invalid(
                format!("Idempotency-Key {text:?}: must be 1 to {LONGEST} visible ASCII characters"),
                "a UUID is a good key",
            )),
        }
    }
}

/// A header that may be there once.
pub fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut all = headers.get_all(name).iter();
    let Some(first) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(invalid(format!("the header {name} is there twice"), "send it once"));
    }
    let text = first
        .to_str()
        .map_err(|_| invalid(format!("the header {name} is no text"), "send visible ASCII characters"))?;
    Ok(Some(text.trim()))
}

/// A time as people write it: `30s`, `500ms`, `2m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("30s"), pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
pub struct Time(pub Duration);

impl Time {
    fn parse(text: &str) -> Option<Time> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if !(1..=9).contains(&digits) {
            return None;
        }
        let amount: u64 = text[..digits].parse().ok()?;
        let unit = match &text[digits..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        Some(Time(Duration::from_millis(amount * unit)))
    }

    pub fn ms(self) -> u64 {
        self.0.as_millis() as u64
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        let text = String::deserialize(from)?;
        Time::parse(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no time; write e.g. 30s, 500ms or 2m")))
    }
}

/// How long an answer may be held back: `?wait=30s`. More than `Wait::LONGEST` is refused, and never cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("5m"), pattern = "^[0-9]{1,9}(ms|s|m|h|d)$")]
pub struct Wait(pub Duration);

impl Wait {
    /// Longer than most builds and tests take. Who waits holds a connection and no thread.
    pub const LONGEST: Duration = Duration::from_secs(600);
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Wait, D::Error> {
        let text = String::deserialize(from)?;
        match Time::parse(&text) {
            Some(Time(time)) if time <= Wait::LONGEST => Ok(Wait(time)),
            Some(_) => {
                Err(D::Error::custom(format!("{text:?} is longer than 10m; wait for at most 10m, and ask again")))
            }
            None => Err(D::Error::custom(format!("{text:?} is no time; write e.g. 30s, 500ms or 2m"))),
        }
    }
}

/// A part of a list: at most so many, behind the one that the last part ended with.
pub struct Paging {
    pub limit: Option<u32>,
    pub after: Option<String>,
}

impl Paging {
    const USUAL: usize = 100;
    const MOST: usize = 1000;

    /// Cuts the part out of the whole list, which is in the order of `key`; and what `after` must be for the next one. Keys have
    /// the form of the cursor.
    pub fn cut<T>(
        &self,
        mut all: Vec<T>,
        cursor: Cursor,
        key: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), Refusal> {
        let limit = match self.limit {
            Some(0) => return Err(invalid("the query: limit: 0".into(), "ask for 1 to 1000")),
            Some(n) if n as usize > Self::MOST => {
                return Err(invalid(format!("the query: limit: {n}"), "ask for 1 to 1000"));
            }
            Some(n) => n as usize,
            None => Self::USUAL,
        };
        if let Some(after) = &self.after {
            if !cursor.is(after) {
                let hint = "give `next` of the part before; leave it out for the first";
                return Err(invalid(format!("the query: after: {after:?} is none of this list"), hint));
            }
            all.retain(|item| key(item).as_str() > after.as_str());
        }
        let more = all.len() > limit;
        all.truncate(limit);
        let next = if more { all.last().map(key) } else { None };
        Ok((all, next))
    }
}

/// What keys of a list look like. Nothing else can be gone on from: it would be answered as the end of the list. One whose thing is
/// gone meanwhile is as good as any.
#[derive(Clone, Copy, Debug)]
pub enum Cursor {
    Name,
    /// An id that begins like this.
    Id(&'static str),
    /// A time before such an id, so that the newest come first.
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
    fn times_are_read_as_people_write_them() {
        for (text, ms) in [("30s", 30_000), ("500ms", 500), ("2m", 120_000), ("1d", 86_400_000), ("0s", 0)] {
            assert_eq!(Time::parse(text).map(Time::ms), Some(ms), "{text}");
        }
        for bad in ["", "s", "30", "-1s", "1.5s", "9999999999s", "30 s", "1y"] {
            assert_eq!(Time::parse(bad), None, "{bad}");
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
