//! What is in a file, out and in, piece by piece.

use super::asked::{self, At};
use super::may_read;
use crate::answer::{Answer, Document};
use crate::ask::{Path, broken_body};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use node::files::read::{self, PIECE, Reading};
use node::files::write::{Ask, Draft};
use node::files::{self, Entry, Interest, Purpose};
use node::{Caller, Node};
use serde::Deserialize;
use serde_json::json;
use terms::octal::Mode;
use terms::{ErrorKind, Fault};
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Nothing {}

/// Read a file, or a range of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path), asked::PathQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes, e.g. `bytes=0-99`."),
        ("If-Range" = Option<String>, Header, description = "The tag that the range is meant for; all is answered where the file has another by now."),
        ("If-None-Match" = Option<String>, Header, description = "Tags that the caller has already.")),
    responses((status = 200, description = "All of it.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The range that was asked for.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "The caller has it already."),
        (status = 409, description = "It is no regular file, or it changed while it was read.", body = Fault),
        (status = 416, description = "It has none of these bytes.", body = Fault)))]
pub async fn get(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
    At { path, .. }: At<Nothing>,
) -> Result<Response, Refusal> {
    may_read(&who)?;
    // There is a range of what is sent, and of nothing else (RFC 9110, 14.2).
    let span = asked::span(&headers)?.filter(|_| method == Method::GET);
    let mut reading = super::reading(&shared, &who, id, path, |root, path| read::open(&root, &path)).await?;
    let entry = reading.entry.clone();
    let tag = entry.etag.as_deref().unwrap_or_default();
    if asked::is_known(&headers, tag)? {
        aside(reading);
        return Ok((StatusCode::NOT_MODIFIED, described(&entry)).into_response());
    }
    let mut status = StatusCode::OK;
    let of_this_version = asked::is_of_this_version(&headers, tag)?;
    if let Some(span) = span.filter(|_| of_this_version) {
        if let Err(fault) = reading.narrow(span) {
            aside(reading);
            return Ok(unsatisfied(fault, entry.size));
        }
        status = StatusCode::PARTIAL_CONTENT;
    }
    let (first, end) = reading.span();
    let mut answer = (status, described(&entry), Body::from_stream(pieces(shared, who, reading))).into_response();
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, super::SAVED);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - first));
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, CONTENT_RANGE, format!("bytes {first}-{}/{}", end - 1, entry.size));
    }
    Ok(answer)
}

fn unsatisfied(fault: Fault, size: u64) -> Response {
    let refusal = Refusal { status: Some(StatusCode::RANGE_NOT_SATISFIABLE), ..Refusal::from(fault) };
    let mut answer = refusal.into_response();
    insert(answer.headers_mut(), CONTENT_RANGE, format!("bytes */{size}"));
    answer
}

fn insert(headers: &mut HeaderMap, name: http::HeaderName, text: String) {
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(name, value);
    }
}

fn described(entry: &Entry) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    insert(&mut headers, ETAG, format!("\"{}\"", entry.etag.as_deref().unwrap_or_default()));
    headers
}

/// Each piece is read when the one before is on its way: a slow client costs a descriptor and no thread.
fn pieces(
    shared: Shared,
    who: Who,
    reading: Reading,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> {
    futures_util::stream::unfold(Aside(Some(reading)), move |mut held| {
        let (shared, who) = (shared.clone(), who.clone());
        async move {
            let mut reading = held.0.take()?;
            let work = move || reading.piece().map(|piece| (piece, reading));
            match shared.blocking_for(&who, work).await {
                Ok((Some(piece), reading)) => Some((Ok(piece.into()), Aside(Some(reading)))),
                Ok((None, reading)) => {
                    aside(reading);
                    None
                }
                // The length was told: that it is not reached tells that this is not all.
                Err(refusal) => Some((Err(std::io::Error::other(refusal.fault.message)), Aside(None))),
            }
        }
    })
}

/// Kept by who waits for something; that it is dropped ends the work for it.
#[derive(Default)]
pub struct Waits(Interest);

impl Waits {
    pub fn interest(&self) -> Interest {
        self.0.clone()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What takes time to let go of, and must not do so where others wait.
pub struct Aside<T: Send + 'static>(pub Option<T>);

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            aside(held);
        }
    }
}

/// Lets go of it on a thread of its own. When the daemon ends there may be none; then it goes with the process.
pub fn aside<T: Send + 'static>(held: T) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn_blocking(move || drop(held));
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PutQuery {
    /// Permission bits in octal, e.g. `755` [default: those of the file that was there, or 644].
    mode: Option<Mode>,
    /// Make directories above that are missing.
    #[serde(default)]
    parents: bool,
    /// Behind what is there instead of in its place.
    #[serde(default)]
    append: bool,
}

/// Write a file. Nobody sees half of it: it takes its place when all bytes have come.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path), asked::PathQuery, PutQuery,
        ("If-Match" = Option<String>, Header, description = "Only if the file has one of these tags; `*`: only if it is there."),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if nothing is there.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Document<Entry>),
        (status = 413, description = "It is larger than what may still be written.", body = Fault)))]
pub async fn put(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, rest }: At<PutQuery>,
    request: Request,
) -> Result<Response, Refusal> {
    who.needs(Scope::Agent)?;
    let ask = Ask {
        mode: rest.mode.map(|mode| mode.0),
        parents: rest.parents,
        when: asked::when(request.headers())?,
        append: rest.append,
    };
    let mut held = super::rooted(&shared, &who, &id, Purpose::Writing).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("files that nobody has").into()) };
    let begin = move |_: &Node, _: &Caller| {
        let (path, sandbox) = (root.path(&path)?, root.sandbox().unwrap_or(&id).to_owned());
        Draft::begin(root, &path, ask).map(|draft| (draft, sandbox))
    };
    let (draft, sandbox) = shared.verb(&who, begin).await?;
    let draft = filled(&shared, &who, draft, request.into_body()).await?;
    let finish = move |node: &Node, caller: &Caller| {
        let entry = draft.finish()?;
        let body = json!({ "path": &entry.path, "bytes": entry.size, "etag": &entry.etag });
        files::note(node, caller, &sandbox, "files.write", body)?;
        Ok(entry)
    };
    let entry = shared.verb(&who, finish).await?;
    let headers = described(&entry);
    let tag = headers.get(ETAG).cloned();
    let mut answer = Answer::ok(entry).into_response();
    if let Some(tag) = tag {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}

/// Writes a body as it comes, in pieces of some size: each costs a change of threads.
async fn filled(shared: &Shared, who: &Who, draft: Draft, body: Body) -> Result<Draft, Refusal> {
    let mut held = Aside(Some(draft));
    let (mut stream, mut waiting) = (body.into_data_stream(), Vec::new());
    loop {
        let next = stream.next().await.transpose().map_err(|e| broken_body(&e))?;
        let is_last = next.is_none();
        waiting.extend(next.unwrap_or_default());
        if !waiting.is_empty() && (is_last || waiting.len() >= PIECE) {
            let (bytes, Some(mut draft)) = (std::mem::take(&mut waiting), held.0.take()) else { break };
            let push = move || draft.push(&bytes).map(|()| draft);
            held.0 = Some(shared.blocking_for(who, push).await.map_err(as_body)?);
        }
        if is_last {
            break;
        }
    }
    held.0.take().ok_or_else(|| Fault::internal("a file that is written by nobody").into())
}

/// More than may be written is a body that is too large.
pub fn as_body(refusal: Refusal) -> Refusal {
    match refusal.fault.error_kind {
        ErrorKind::LimitExceeded => Refusal { status: Some(StatusCode::PAYLOAD_TOO_LARGE), ..refusal },
        _ => refusal,
    }
}
