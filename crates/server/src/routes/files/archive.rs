//! Directories as tar streams. Packing and unpacking block, so each has a thread for as long as it takes; few may at a time, and
//! tenants in turn.

use super::asked::{self, At};
use super::content::{Nothing, as_body};
use super::may_read;
use crate::answer::{Answer, Document};
use crate::ask::{Path, broken_body};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use node::files::tar::{self, LeftOut, Unpacked};
use node::files::{self, Purpose};
use serde_json::json;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use terms::{Fault, Phase};
use tokio::sync::mpsc;

/// What may follow the end of an archive.
const MOST_PADDING: u64 = 1 << 20;
/// Pieces that wait between the thread and the connection, and how large one is.
const WAITING: usize = 4;
const PIECE: usize = 128 << 10;
/// The longest header that names what was left out.
const LONGEST_HEADER: usize = 4096;

/// Download a directory, or a file, as a tar stream. The same tree gives the same bytes. FIFOs, sockets and devices are left out; the
/// header `cofferdam-left-out` then tells how many, and the paths of the first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/archive", tag = "files", operation_id = "pack",
    params(("id" = String, Path), asked::PathQuery),
    responses((status = 200, description = "Names are relative to the directory. A stream that breaks off is not whole.",
        body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn get(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, .. }: At<Nothing>,
) -> Result<Response, Refusal> {
    may_read(&who)?;
    let turn = Arc::new(shared.archive_turn(&who).await?);
    let mut held = super::rooted(&shared, &who, &id, Purpose::Reading).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("files that nobody has").into()) };
    let (sender, mut receiver) = mpsc::channel(WAITING);
    let packing = turn.clone();
    // Filled before the first byte is.
    let left_out = Arc::new(Mutex::new(LeftOut::default()));
    let found = left_out.clone();
    tokio::task::spawn_blocking(move || {
        let _turn = packing;
        let mut out = Outlet { sender, held: Vec::with_capacity(PIECE) };
        let mut told = |special| *found.lock().unwrap_or_else(PoisonError::into_inner) = special;
        let packed = root.path(&path).and_then(|path| tar::pack(&root, &path, &mut out, &mut told));
        if let Err(fault) = packed {
            // Who went away need not be told.
            let _ = out.sender.blocking_send(Err(fault));
        }
    });
    // As long as nothing was sent, it can be refused in words.
    let first = match receiver.recv().await {
        Some(Err(fault)) => return Err(fault.into()),
        first => first,
    };
    // What waits for the client is held as long as the client likes, and so is the turn.
    let rest = futures_util::stream::unfold((receiver, turn), |(mut receiver, turn)| async move {
        Some((receiver.recv().await?, (receiver, turn)))
    });
    let all = futures_util::stream::iter(first).chain(rest);
    let body = Body::from_stream(all.map(|piece: Result<Bytes, Fault>| piece.map_err(|f| io::Error::other(f.message))));
    let mut answer = body.into_response();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    answer.headers_mut().insert(CONTENT_DISPOSITION, super::SAVED);
    let left_out = std::mem::take(&mut *left_out.lock().unwrap_or_else(PoisonError::into_inner));
    if left_out.count > 0 {
        answer.headers_mut().insert(HeaderName::from_static("cofferdam-left-out"), in_header(left_out)?);
    }
    Ok(answer)
}

/// As JSON in plain ASCII, with as many paths as a header has room for.
fn in_header(mut left_out: LeftOut) -> Result<HeaderValue, Fault> {
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
        if plain.len() <= LONGEST_HEADER || left_out.paths.pop().is_none() {
            return HeaderValue::from_str(&plain).map_err(|e| Fault::internal(e.to_string()));
        }
    }
}

struct Outlet {
    sender: mpsc::Sender<Result<Bytes, Fault>>,
    held: Vec<u8>,
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.held, Vec::with_capacity(PIECE));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Upload a tar stream into a directory, which is made where it is missing. Files that are there are replaced. No entry leads out or
/// over a link; what came before one that is refused stays.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/archive", tag = "files", operation_id = "unpack",
    params(("id" = String, Path), asked::PathQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses((status = 200, body = Document<Unpacked>),
        (status = 413, description = "It holds more than what may still be written.", body = Fault)))]
pub async fn put(
    State(shared): State<Shared>,
    who: Who,
    Path(id): Path<String>,
    At { path, .. }: At<Nothing>,
    request: Request,
) -> Result<Answer<Unpacked>, Refusal> {
    who.needs(Scope::Agent)?;
    let turn = shared.archive_turn(&who).await?;
    let mut held = super::rooted(&shared, &who, &id, Purpose::Writing).await?;
    let Some(root) = held.0.take() else { return Err(Fault::internal("files that nobody has").into()) };
    let (node, caller) = (shared.node().clone(), shared.caller(&who));
    let (sender, receiver) = mpsc::channel(WAITING);
    let work = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let path = root.path(&path)?;
        let mut inlet = Inlet { receiver, piece: Bytes::new() };
        let made = tar::unpack(&root, &path, &mut inlet)?;
        // What follows the end of the archive is padding.
        let padding = io::copy(&mut inlet.by_ref().take(MOST_PADDING + 1), &mut io::sink());
        if padding.map_err(|e| Fault::invalid(format!("the body: {e}")))? > MOST_PADDING {
            let fault =
                Fault::invalid(format!("the body goes on for more than {MOST_PADDING} bytes behind the archive"));
            return Err(fault
                .hint("what is in the archive was unpacked; end the body with it")
                .phase(Phase::Execution));
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
        // Whoever takes no more has said why, or will.
        if sender.send(piece).await.is_err() || is_over {
            break;
        }
    }
    drop(sender);
    let done: Result<Unpacked, Fault> =
        work.await.unwrap_or_else(|e| Err(Fault::internal(format!("unpacking ended without an answer: {e}"))));
    match (broken, done) {
        (Some(refusal), _) => Err(refusal),
        (None, done) => done.map(Answer::ok).map_err(|fault| as_body(fault.into())),
    }
}

struct Inlet {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Inlet {
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
