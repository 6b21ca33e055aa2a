//! Directories as tar streams. Packing and unpacking block a thread for as long as they take, so their number is limited, with fair shares
//! for tenants.

use super::content::{NoQuery, as_too_large};
use super::may_read;
use super::query::{self, WithPath};
use crate::answer::Answer;
use crate::extract::{Path, broken_body};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Document, FilesUnpacked, Scope};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use node::files::tar::{self, LeftOut};
use node::files::{self, FileAccess};
use serde_json::json;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use terms::{Fault, Phase};
use tokio::sync::mpsc;

/// Maximum number of bytes after the end of an archive.
const MAX_PADDING: u64 = 1 << 20;
/// Chunks queued between the thread and the connection, and the size of a chunk.
const QUEUED_CHUNKS: usize = 4;
const CHUNK: usize = 128 << 10;
/// Maximum length of the header `cofferdam-left-out`.
const MAX_HEADER_LENGTH: usize = 4096;

/// Downloads a directory, or a file, as a tar stream. Equal trees give equal bytes. FIFOs, sockets and devices are left out; the header
/// `cofferdam-left-out` then has their number and the first paths.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/archive", tag = "files", operation_id = "pack",
    params(("id" = String, Path), query::PathQuery),
    responses((status = 200, description = "Names are relative to the directory. A stream that breaks off is incomplete.",
        body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn get(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, .. }: WithPath<NoQuery>,
) -> Result<Response, Refusal> {
    may_read(&principal)?;
    let permit = Arc::new(shared.archive_permit(&principal).await?);
    let mut held = super::open_root(&shared, &principal, &id, FileAccess::Reading, &path).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("the files of the sandbox are not open").into()) };
    let (sender, mut receiver) = mpsc::channel(QUEUED_CHUNKS);
    let packing = permit.clone();
    // Set before the first byte is sent.
    let left_out = Arc::new(Mutex::new(LeftOut::default()));
    let found = left_out.clone();
    tokio::task::spawn_blocking(move || {
        let _permit = packing;
        let mut out = ChunkWriter { sender, held: Vec::with_capacity(CHUNK) };
        let mut report = |special| *found.lock().unwrap_or_else(PoisonError::into_inner) = special;
        let packed = root.path(&path).and_then(|path| tar::pack(&root, &path, &mut out, &mut report));
        if let Err(fault) = packed {
            // A client that left needs no fault.
            let _ = out.sender.blocking_send(Err(fault));
        }
    });
    // A failure before the first chunk is a refusal with a fault.
    let first = match receiver.recv().await {
        Some(Err(fault)) => return Err(fault.into()),
        first => first,
    };
    // The client decides how long chunks stay queued, and the permit is held for as long.
    let rest = futures_util::stream::unfold((receiver, permit), |(mut receiver, permit)| async move {
        Some((receiver.recv().await?, (receiver, permit)))
    });
    let all = futures_util::stream::iter(first).chain(rest);
    let body = Body::from_stream(all.map(|piece: Result<Bytes, Fault>| piece.map_err(|f| io::Error::other(f.message))));
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    response.headers_mut().insert(CONTENT_DISPOSITION, super::ATTACHMENT);
    let left_out = std::mem::take(&mut *left_out.lock().unwrap_or_else(PoisonError::into_inner));
    if left_out.count > 0 {
        response.headers_mut().insert(HeaderName::from_static("cofferdam-left-out"), left_out_header(left_out)?);
    }
    Ok(response)
}

/// Encodes the header value as ASCII JSON, with as many paths as fit.
fn left_out_header(mut left_out: LeftOut) -> Result<HeaderValue, Fault> {
    loop {
        let text = serde_json::to_string(&left_out).map_err(|e| Fault::internal(e.to_string()))?;
        let mut units = [0; 2];
        let plain: String = text
            .chars()
            .map(|c| match c {
                ' '..='~' => c.to_string(),
                _ => c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
            })
            .collect();
        if plain.len() <= MAX_HEADER_LENGTH || left_out.paths.pop().is_none() {
            return HeaderValue::from_str(&plain).map_err(|e| Fault::internal(e.to_string()));
        }
    }
}

struct ChunkWriter {
    sender: mpsc::Sender<Result<Bytes, Fault>>,
    held: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.held, Vec::with_capacity(CHUNK));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Uploads a tar stream into a directory, which is created where it is missing. Existing files are replaced. No entry may lead out of the
/// directory or through a symbolic link; entries before a refused one stay.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/archive", tag = "files", operation_id = "unpack",
    params(("id" = String, Path), query::PathQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Document<FilesUnpacked>),
        (status = 413, description = "The archive is larger than the space that is left.", body = Fault)))]
pub async fn put(
    State(shared): State<Shared>,
    principal: Principal,
    Path(id): Path<String>,
    WithPath { path, .. }: WithPath<NoQuery>,
    request: Request,
) -> Result<Answer<FilesUnpacked>, Refusal> {
    principal.require_scope(Scope::Agent)?;
    let permit = shared.archive_permit(&principal).await?;
    let mut held = super::open_root(&shared, &principal, &id, FileAccess::Writing, &path).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("the files of the sandbox are not open").into()) };
    let (node, caller) = (shared.node().clone(), shared.caller(&principal));
    let (sender, receiver) = mpsc::channel(QUEUED_CHUNKS);
    let work = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let path = root.path(&path)?;
        let mut reader = ChunkReader { receiver, piece: Bytes::new() };
        let made = tar::unpack(&root, &path, &mut reader)?;
        // Bytes after the end of the archive are padding.
        let padding = io::copy(&mut reader.by_ref().take(MAX_PADDING + 1), &mut io::sink());
        if padding.map_err(|e| Fault::invalid(format!("the body: {e}")))? > MAX_PADDING {
            let fault =
                Fault::invalid(format!("the body goes on for more than {MAX_PADDING} bytes behind the archive"));
            return Err(fault.hint("the archive was unpacked; end the body right after it").phase(Phase::Execution));
        }
        let body = json!({ "path": path, "entries": made.entries, "bytes": made.bytes });
        files::note(&node, &caller, root.sandbox().unwrap_or(&id), "files.unpack", body)?;
        Ok(made)
    });
    let mut stream = request.into_body().into_data_stream();
    let mut broken = None;
    while let Some(next) = stream.next().await {
        let piece = next.map_err(|e| broken = Some(broken_body(&e)));
        let is_over = piece.is_err();
        let piece = piece.map_err(|()| io::Error::from(io::ErrorKind::UnexpectedEof));
        // A closed channel means that unpacking has failed; its fault follows.
        if sender.send(piece).await.is_err() || is_over {
            break;
        }
    }
    drop(sender);
    let done: Result<FilesUnpacked, Fault> =
        work.await.unwrap_or_else(|e| Err(Fault::internal(format!("unpacking ended without a result: {e}"))));
    match (broken, done) {
        (Some(refusal), _) => Err(refusal),
        (None, done) => done.map(Answer::ok).map_err(|fault| as_too_large(fault.into())),
    }
}

struct ChunkReader {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.piece.has_remaining() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.remaining());
        self.piece.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
