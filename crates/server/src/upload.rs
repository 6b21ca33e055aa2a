//! A body that comes into a file without a name: whatever happens to us, nothing of it stays.

use crate::admission::Spooled;
use crate::refuse::Refusal;
use crate::{Shared, Who};
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// The largest body.
pub const LARGEST: u64 = 4 << 30;
/// So much is gathered before it is written: each write is a turn of a thread.
const GATHERED: usize = 1 << 20;

/// The whole body, to be read from its beginning, and what counts it meanwhile.
pub async fn receive(shared: &Shared, who: &Who, body: Body) -> Result<(File, Spooled), Refusal> {
    let mut spooled = shared.admission().spool(&who.tenant);
    let mut file = shared.verb(who, |_, caller| nameless(&node::directory::prepare(caller)?.0)).await?;
    let mut pieces = body.into_data_stream();
    let (mut length, mut gathered) = (0u64, Vec::new());
    while let Some(piece) = pieces.next().await {
        let piece: Bytes = piece.map_err(|e| crate::ask::broken_body(&e))?;
        length += piece.len() as u64;
        if length > LARGEST {
            let message = format!("the body has more than {LARGEST} bytes");
            let hint = "bring it to the host and use `cofferdam import`";
            return Err(Refusal::limit(StatusCode::PAYLOAD_TOO_LARGE, LimitKind::BodyBytes, message, hint));
        }
        spooled.grow(piece.len() as u64)?;
        gathered.extend_from_slice(&piece);
        if gathered.len() >= GATHERED {
            file = write(shared, who, file, std::mem::take(&mut gathered)).await?;
        }
    }
    let mut file = write(shared, who, file, gathered).await?;
    file.rewind().map_err(|e| unkept(&e))?;
    Ok((file, spooled))
}

async fn write(shared: &Shared, who: &Who, mut file: File, bytes: Vec<u8>) -> Result<File, Refusal> {
    let work = move || {
        if let Some((used, most)) = node::directory::overfull(&file) {
            let message = format!("the file system of the state directory is nearly full: {used} bytes of {most}");
            let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb);
            return Err(fault.retry(Retry::Later).phase(Phase::Admission));
        }
        file.write_all(&bytes).map_err(|e| unkept(&e))?;
        Ok(file)
    };
    shared.blocking_for(who, work).await
}

pub fn nameless(dir: &Path) -> Result<File, Fault> {
    let owner = Mode::RUSR | Mode::WUSR;
    let made = match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, owner) {
        // A file system that makes no nameless files: one with a name, for a moment.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            let path = dir.join(terms::id("upload", node::random::id_bytes()));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, owner).and_then(|file| rustix::fs::unlink(&path).map(|()| file))
        }
        made => made,
    };
    made.map(File::from).map_err(|e| unkept(&e.into()))
}

pub fn unkept(error: &std::io::Error) -> Fault {
    let fault = Fault::new(ErrorKind::Unavailable, format!("the body cannot be kept: {error}"));
    fault.hint("see to the space of the state directory").phase(Phase::Preparation)
}
