//! Request bodies spooled to an unnamed file, which disappears however the daemon ends.

use crate::admission::Spooled;
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// Maximum size of a body.
pub const MAX_BODY_BYTES: u64 = 4 << 30;
/// Bytes buffered before a write: each write occupies a thread of the pool.
const WRITE_SIZE: usize = 1 << 20;

/// Receives the whole body. Returns the file at offset 0, and the counter of its bytes.
pub async fn receive(shared: &Shared, principal: &Principal, body: Body) -> Result<(File, Spooled), Refusal> {
    let mut spooled = shared.admission().spool(&principal.tenant);
    let mut file = shared.verb(principal, |_, caller| unnamed_file(&node::directory::prepare(caller)?.0)).await?;
    let mut pieces = body.into_data_stream();
    let (mut length, mut buffer) = (0u64, Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece: Bytes = piece.map_err(|e| crate::extract::broken_body(&e))?;
        length += piece.len() as u64;
        if length > MAX_BODY_BYTES {
            let message = format!("the body has more than {MAX_BODY_BYTES} bytes");
            let hint = "send a smaller file";
            return Err(Refusal::limit(StatusCode::PAYLOAD_TOO_LARGE, LimitKind::BodyBytes, message, hint));
        }
        spooled.grow(piece.len() as u64)?;
        buffer.extend_from_slice(&piece);
        if buffer.len() >= WRITE_SIZE {
            file = write(shared, principal, file, std::mem::take(&mut buffer)).await?;
        }
    }
    let mut file = write(shared, principal, file, buffer).await?;
    file.rewind().map_err(|e| cannot_store(&e))?;
    Ok((file, spooled))
}

async fn write(shared: &Shared, principal: &Principal, mut file: File, bytes: Vec<u8>) -> Result<File, Refusal> {
    let work = move || {
        if let Some((used, most)) = node::directory::overfull(&file) {
            let message = format!("the file system of the state directory is nearly full: {used} bytes of {most}");
            let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb);
            return Err(fault.retry(Retry::Later).phase(Phase::Admission));
        }
        file.write_all(&bytes).map_err(|e| cannot_store(&e))?;
        Ok(file)
    };
    shared.blocking_for(principal, work).await
}

pub fn unnamed_file(dir: &Path) -> Result<File, Fault> {
    let owner = Mode::RUSR | Mode::WUSR;
    let made = match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, owner) {
        // A file system without O_TMPFILE: create a named file and unlink it.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            let path = dir.join(terms::id("upload", node::random::id_bytes()));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, owner).and_then(|file| rustix::fs::unlink(&path).map(|()| file))
        }
        made => made,
    };
    made.map(File::from).map_err(|e| cannot_store(&e.into()))
}

pub fn cannot_store(error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("cannot store the body in the state directory: {error}"));
    fault.hint("free space in the state directory").phase(Phase::Preparation)
}
