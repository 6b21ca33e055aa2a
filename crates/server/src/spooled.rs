//! Bodies that a verb writes: into a file without a name first, then from there to the client. So the verb is done as fast as it can
//! be, whoever reads; what fails is a refusal like any other, and a client that reads slowly holds nothing but its own file. That is
//! counted: as one of the tenant's archives, and with its bytes, until the last of it is taken or the client is gone.

use crate::admission::{Spooled, Turn};
use crate::refuse::Refusal;
use crate::upload::{LARGEST, nameless, unkept};
use crate::{Shared, Who};
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

/// How large pieces are.
const PIECE: usize = 64 << 10;

/// The answer whose body the verb writes, and what the verb itself answers.
pub async fn answer<T, F>(shared: &Shared, who: &Who, sort: &'static str, verb: F) -> Result<(Response, T), Refusal>
where
    T: Send + 'static,
    F: FnOnce(&Node, &Caller, &mut dyn Write) -> Result<T, Fault> + Send + 'static,
{
    let turn = shared.archive_turn(who).await?;
    let spooled = shared.admission().spool(&who.tenant);
    let work = move |node: &Node, caller: &Caller| {
        let file = nameless(&node::directory::prepare(caller)?.0)?;
        let bounded = Bounded { file, written: 0, spooled, refused: None };
        let mut out = BufWriter::with_capacity(PIECE, bounded);
        let done = verb(node, caller, &mut out).and_then(|told| out.flush().map(|()| told).map_err(|e| unkept(&e)));
        // What a verb says of a write that was refused is not why it was.
        let told = done.map_err(|fault| out.get_mut().refused.take().unwrap_or(fault))?;
        let (Bounded { mut file, written, spooled, .. }, _) = out.into_parts();
        file.rewind().map_err(|e| unkept(&e))?;
        Ok((Lying { file, _counted: (turn, spooled) }, written, told))
    };
    let (lying, length, told) = shared.verb(who, work).await?;
    let mut answer = Body::from_stream(stream::unfold(lying, next)).into_response();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(sort));
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok((answer, told))
}

/// A body that waits to be taken.
struct Lying {
    file: File,
    _counted: (Turn, Spooled),
}

/// A piece, and the rest; nothing at the end.
async fn next(mut lying: Lying) -> Option<(io::Result<Bytes>, Lying)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        let read = lying.file.read(&mut piece).map(|length| {
            piece.truncate(length);
            Bytes::from(piece)
        });
        (read, lying)
    });
    match read.await {
        Ok((Ok(piece), _)) if piece.is_empty() => None,
        Ok((piece, lying)) => Some((piece, lying)),
        Err(_) => None,
    }
}

/// Takes no more than what a body may have, and nothing where the disk is nearly full or the tenant's share of it is.
struct Bounded {
    file: File,
    written: u64,
    spooled: Spooled,
    /// Why it took nothing.
    refused: Option<Fault>,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > LARGEST {
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
