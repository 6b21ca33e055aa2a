//! Response bodies that a verb writes: spooled to an unnamed file first, then streamed to the client. The verb is not slowed down by its
//! client, a failure is a refusal like any other, and a slow client holds only its own file. The file counts as one of the tenant's
//! archives, and with its bytes, until the body is sent or the client is gone.

use crate::admission::{Permit, Spooled};
use crate::refuse::Refusal;
use crate::upload::{MAX_BODY_BYTES, cannot_store, unnamed_file};
use crate::{Principal, Shared};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use node::{Caller, Node};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use terms::Fault;

/// Size of a chunk.
const CHUNK: usize = 64 << 10;

/// Builds a response whose body is written by the verb; returns it with the verb's result.
pub async fn respond<T, F>(
    shared: &Shared,
    principal: &Principal,
    content_type: &'static str,
    verb: F,
) -> Result<(Response, T), Refusal>
where
    T: Send + 'static,
    F: FnOnce(&Node, &Caller, &mut dyn Write) -> Result<T, Fault> + Send + 'static,
{
    let permit = shared.archive_permit(principal).await?;
    let spooled = shared.admission().spool(&principal.tenant);
    let work = move |node: &Node, caller: &Caller| {
        let file = unnamed_file(&node::directory::prepare(caller)?.0)?;
        let bounded = BoundedFile { file, written: 0, spooled, refused: None };
        let mut out = BufWriter::with_capacity(CHUNK, bounded);
        let done =
            verb(node, caller, &mut out).and_then(|result| out.flush().map(|()| result).map_err(|e| cannot_store(&e)));
        // The verb reports only a failed write; `refused` has the cause.
        let result = done.map_err(|fault| out.get_mut().refused.take().unwrap_or(fault))?;
        let (BoundedFile { mut file, written, spooled, .. }, _) = out.into_parts();
        file.rewind().map_err(|e| cannot_store(&e))?;
        Ok((SpooledBody { file, _counted: (permit, spooled) }, written, result))
    };
    let (body, length, result) = shared.verb(principal, work).await?;
    let mut response = Body::from_stream(stream::unfold(body, next)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok((response, result))
}

/// A spooled body that is being sent.
struct SpooledBody {
    file: File,
    _counted: (Permit, Spooled),
}

/// Reads the next chunk; none at the end.
async fn next(mut body: SpooledBody) -> Option<(io::Result<Bytes>, SpooledBody)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; CHUNK];
        let read = body.file.read(&mut chunk).map(|length| {
            chunk.truncate(length);
            Bytes::from(chunk)
        });
        (read, body)
    });
    match read.await {
        Ok((Ok(chunk), _)) if chunk.is_empty() => None,
        Ok((chunk, body)) => Some((chunk, body)),
        Err(_) => None,
    }
}

/// A writer that fails above the maximum body size, when the disk is nearly full, and above the tenant's share of spooled bytes.
struct BoundedFile {
    file: File,
    written: u64,
    spooled: Spooled,
    /// The fault behind the last failed write.
    refused: Option<Fault>,
}

impl Write for BoundedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > MAX_BODY_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.written % (1 << 20) < bytes.len() as u64 && node::directory::overfull(&self.file).is_some() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Err(fault) = self.spooled.grow(bytes.len() as u64) {
            self.refused = Some(fault);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
