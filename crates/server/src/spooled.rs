//! Bodies that a verb writes: into a file without a name first, then from there to the client. So the verb is done as fast as it can
//! be, whoever reads; what fails is a refusal like any other, and a client that reads slowly holds nothing but its own file.

use crate::refuse::Refusal;
use crate::upload::{LARGEST, nameless, unkept};
use crate::{Shared, Who};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use node::Caller;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use terms::Fault;

/// How large pieces are.
const PIECE: usize = 64 << 10;

/// The answer whose body the verb writes, and what the verb itself answers.
pub async fn answer<T, F>(shared: &Shared, who: &Who, sort: &'static str, verb: F) -> Result<(Response, T), Refusal>
where
    T: Send + 'static,
    F: FnOnce(&Caller, &mut dyn Write) -> Result<T, Fault> + Send + 'static,
{
    let work = move |caller: &Caller| {
        let file = nameless(&node::state::prepare(caller)?.0)?;
        let mut out = BufWriter::with_capacity(PIECE, Bounded { file, written: 0 });
        let told = verb(caller, &mut out)?;
        let Bounded { mut file, written } = out.into_inner().map_err(|e| unkept(e.error()))?;
        file.rewind().map_err(|e| unkept(&e))?;
        Ok((file, written, told))
    };
    let (file, length, told) = shared.verb(who, work).await?;
    let mut answer = Body::from_stream(stream::unfold(file, next)).into_response();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(sort));
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok((answer, told))
}

/// A piece, and the rest; nothing at the end.
async fn next(mut file: File) -> Option<(io::Result<Bytes>, File)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).map(|length| {
            piece.truncate(length);
            Bytes::from(piece)
        });
        (read, file)
    });
    match read.await {
        Ok((Ok(piece), _)) if piece.is_empty() => None,
        Ok((piece, file)) => Some((piece, file)),
        Err(_) => None,
    }
}

/// Takes no more than what a body may have, and nothing where the disk is nearly full.
struct Bounded {
    file: File,
    written: u64,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written + bytes.len() as u64 > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.written % (1 << 20) < bytes.len() as u64 && node::state::overfull(&self.file).is_some() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let length = self.file.write(bytes)?;
        self.written += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
