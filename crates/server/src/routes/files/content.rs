//! Content of a file: downloads and uploads in chunks.

use super::may_read;
use super::query::{self, WithPath};
use crate::answer::Answer;
use crate::extract::{Path, broken_body};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Document, FileEntry, Scope};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use node::files::read::{self, FileReader};
use node::files::write::{Draft, WriteOptions};
use node::files::{self, FileAccess, Interest};
use node::{Caller, Node};
use serde::Deserialize;
use serde_json::json;
use terms::octal::FileMode;
use terms::{ErrorKind, Fault};
use tokio::task::JoinHandle;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NoQuery {}

/// Downloads a file, or a range of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path), query::PathQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes, e.g. `bytes=0-99`."),
        ("If-Range" = Option<String>, Header, description = "The ETag that the range applies to; the whole file is sent if it has another one."),
        ("If-None-Match" = Option<String>, Header, description = "ETags of versions that the client has.")),
    responses((status = 200, description = "The whole file.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The requested range.", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 304, description = "The client has this version."),
        (status = 409, description = "Not a regular file, or it changed while it was read.", body = Fault),
        (status = 416, description = "The range is outside of the file.", body = Fault)))]
pub async fn get(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
    WithPath { path, .. }: WithPath<NoQuery>,
) -> Result<Response, Refusal> {
    may_read(&principal)?;
    // A range applies to GET only (RFC 9110, 14.2).
    let span = query::range(&headers)?.filter(|_| method == Method::GET);
    let mut reading = super::read_files(&shared, &principal, id, path, |root, path| read::open(&root, &path)).await?;
    let entry = reading.entry.clone();
    let tag = entry.etag.as_deref().unwrap_or_default();
    if query::none_match(&headers, tag)? {
        drop_in_background(reading);
        return Ok((StatusCode::NOT_MODIFIED, entry_headers(&entry)).into_response());
    }
    let mut status = StatusCode::OK;
    let of_this_version = query::range_applies(&headers, tag)?;
    if let Some(span) = span.filter(|_| of_this_version) {
        if let Err(fault) = reading.narrow(span) {
            drop_in_background(reading);
            return Ok(unsatisfied(fault, entry.size));
        }
        status = StatusCode::PARTIAL_CONTENT;
    }
    let (first, end) = reading.span();
    let mut response =
        (status, entry_headers(&entry), Body::from_stream(pieces(shared, principal, reading))).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, super::ATTACHMENT);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - first));
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, CONTENT_RANGE, format!("bytes {first}-{}/{}", end - 1, entry.size));
    }
    Ok(response)
}

fn unsatisfied(fault: Fault, size: u64) -> Response {
    let refusal = Refusal { status: Some(StatusCode::RANGE_NOT_SATISFIABLE), ..Refusal::from(fault) };
    let mut response = refusal.into_response();
    insert(response.headers_mut(), CONTENT_RANGE, format!("bytes */{size}"));
    response
}

fn insert(headers: &mut HeaderMap, name: http::HeaderName, text: String) {
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(name, value);
    }
}

fn entry_headers(entry: &FileEntry) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    insert(&mut headers, ETAG, format!("\"{}\"", entry.etag.as_deref().unwrap_or_default()));
    headers
}

/// Streams a file: each chunk is read when the previous one has been sent, so that a slow client costs a descriptor and no thread.
fn pieces(
    shared: Shared,
    principal: Principal,
    reading: FileReader,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> {
    futures_util::stream::unfold(DropInBackground(Some(reading)), move |mut held| {
        let (shared, principal) = (shared.clone(), principal.clone());
        async move {
            let mut reading = held.0.take()?;
            let work = move || reading.piece().map(|piece| (piece, reading));
            match shared.blocking_for(&principal, work).await {
                Ok((Some(piece), reading)) => Some((Ok(piece.into()), DropInBackground(Some(reading)))),
                Ok((None, reading)) => {
                    drop_in_background(reading);
                    None
                }
                // The body ends short of its Content-Length, so the client sees that it is incomplete.
                Err(refusal) => Some((Err(std::io::Error::other(refusal.fault.message)), DropInBackground(None))),
            }
        }
    })
}

/// Cancels an operation when its client stops waiting and drops this.
#[derive(Default)]
pub struct CancelOnDrop(Interest);

impl CancelOnDrop {
    pub fn interest(&self) -> Interest {
        self.0.clone()
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A value whose destructor blocks, and which is therefore dropped on a thread of the pool.
pub struct DropInBackground<T: Send + 'static>(pub Option<T>);

impl<T: Send + 'static> Drop for DropInBackground<T> {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            drop_in_background(held);
        }
    }
}

/// Drops a value on a thread of the pool. At shutdown, without a runtime, the value leaks into the end of the process.
pub fn drop_in_background<T: Send + 'static>(held: T) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn_blocking(move || drop(held));
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PutQuery {
    /// Permission bits in octal, e.g. `755` [default: those of the existing file, or 644].
    mode: Option<FileMode>,
    /// Create missing parent directories.
    #[serde(default)]
    parents: bool,
    /// Append to the file instead of replacing it.
    #[serde(default)]
    append: bool,
}

/// Uploads a file. The file is replaced atomically once all bytes have arrived.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/content", tag = "files",
    params(("id" = String, Path), query::PathQuery, PutQuery,
        ("If-Match" = Option<String>, Header, description = "Only if the file has one of these ETags; `*`: only if it exists."),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if the file does not exist.")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Document<FileEntry>),
        (status = 413, description = "The file is larger than the space that is left.", body = Fault)))]
pub async fn put(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, rest }: WithPath<PutQuery>,
    request: Request,
) -> Result<Response, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let options = WriteOptions {
        mode: rest.mode.map(|mode| mode.0),
        parents: rest.parents,
        when: query::write_condition(request.headers())?,
        append: rest.append,
    };
    let mut held = super::open_root(&shared, &principal, &id, FileAccess::Writing, &path).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("the files of the sandbox are not open").into()) };
    let begin = move |_: &Node, _: &Caller| {
        let (path, sandbox) = (root.path(&path)?, root.sandbox().unwrap_or(&id).to_owned());
        Draft::begin(root, &path, options).map(|draft| (draft, sandbox))
    };
    let (draft, sandbox) = shared.verb(&principal, begin).await?;
    let draft = write_body(&shared, &principal, draft, request.into_body()).await?;
    let finish = move |node: &Node, caller: &Caller| {
        let entry = draft.finish()?;
        let body = json!({ "path": &entry.path, "bytes": entry.size, "etag": &entry.etag });
        files::note(node, caller, &sandbox, "files.write", body)?;
        Ok(entry)
    };
    let entry = shared.verb(&principal, finish).await?;
    let headers = entry_headers(&entry);
    let tag = headers.get(ETAG).cloned();
    let mut response = Answer::ok(entry).into_response();
    if let Some(tag) = tag {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Writes a body to the draft in large chunks, because each write changes threads; the next chunk is received while one is written.
async fn write_body(shared: &Shared, principal: &Principal, draft: Draft, body: Body) -> Result<Draft, Refusal> {
    let (mut stream, mut waiting, mut size) = (body.into_data_stream(), Vec::new(), 0);
    let mut writing = start_write(shared, principal, DropInBackground(Some(draft)), Vec::new());
    while let Some(chunk) = stream.next().await.transpose().map_err(|e| broken_body(&e))? {
        size += chunk.len();
        waiting.push(chunk);
        if size >= WRITE_SIZE {
            let held = written(writing).await?;
            writing = start_write(shared, principal, held, std::mem::take(&mut waiting));
            size = 0;
        }
    }
    let held = written(writing).await?;
    let mut held = written(start_write(shared, principal, held, waiting)).await?;
    held.0.take().ok_or_else(|| Fault::internal("the draft of the file is not open").into())
}

type Writing = JoinHandle<Result<DropInBackground<Draft>, Refusal>>;

async fn written(writing: Writing) -> Result<DropInBackground<Draft>, Refusal> {
    writing.await.map_err(|e| Fault::internal(format!("the body was not written: {e}")))?
}

/// Bytes received before they are written.
const WRITE_SIZE: usize = 1 << 20;

/// Starts to write chunks to a draft.
fn start_write(
    shared: &Shared,
    principal: &Principal,
    mut held: DropInBackground<Draft>,
    chunks: Vec<Bytes>,
) -> Writing {
    let (shared, principal) = (shared.clone(), principal.clone());
    tokio::spawn(async move {
        if let Some(mut draft) = held.0.take_if(|_| !chunks.is_empty()) {
            let push = move || chunks.iter().try_for_each(|chunk| draft.push(chunk)).map(|()| draft);
            held.0 = Some(shared.blocking_for(&principal, push).await.map_err(as_too_large)?);
        }
        Ok(held)
    })
}

/// Gives a fault of an exceeded limit the status 413.
pub fn as_too_large(refusal: Refusal) -> Refusal {
    match refusal.fault.error_kind {
        ErrorKind::LimitExceeded => Refusal { status: Some(StatusCode::PAYLOAD_TOO_LARGE), ..refusal },
        _ => refusal,
    }
}
