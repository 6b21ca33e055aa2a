//! Bodies that a verb writes piece by piece, on a thread of its own: never more than a few pieces are held, and a client that
//! reads slowly slows only its own verb. One that fails before it wrote anything is a refusal like any other; one that fails
//! later breaks the body off, so that nobody takes a part for the whole.

use crate::refuse::Refusal;
use crate::{Shared, Who};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use node::Caller;
use std::io::{self, BufWriter, Write};
use terms::Fault;
use tokio::sync::mpsc;

/// How large pieces are, and how many wait to be sent.
const PIECE: usize = 64 << 10;
const WAITING: usize = 4;

type Piece = Result<Bytes, Box<Fault>>;

/// The body, once its first piece is there.
pub async fn body<F>(shared: &Shared, who: &Who, verb: F) -> Result<Body, Refusal>
where
    F: FnOnce(&Caller, &mut dyn Write) -> Result<(), Fault> + Send + 'static,
{
    let (send, mut pieces) = mpsc::channel::<Piece>(WAITING);
    let (shared, who) = (shared.clone(), who.clone());
    tokio::spawn(async move {
        let refusals = send.clone();
        let work = move |caller: &Caller| {
            let mut out = BufWriter::with_capacity(PIECE, Sender(send));
            verb(caller, &mut out)?;
            // A client that left is no error of ours, and nobody is there to be told.
            let _ = out.flush();
            Ok(())
        };
        if let Err(refusal) = shared.verb(&who, work).await {
            let _ = refusals.send(Err(refusal.fault)).await;
        }
    });
    match pieces.recv().await {
        None => Ok(Body::empty()),
        Some(Err(fault)) => Err(Refusal::from(*fault)),
        Some(Ok(first)) => {
            let rest = stream::unfold(pieces, |mut pieces| async {
                let piece = pieces.recv().await?;
                Some((piece.map_err(|fault| io::Error::other(fault.message)), pieces))
            });
            let first = stream::once(async { Ok::<_, io::Error>(first) });
            Ok(Body::from_stream(futures_util::StreamExt::chain(first, rest)))
        }
    }
}

struct Sender(mpsc::Sender<Piece>);

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(&bytes[..bytes.len().min(PIECE)]);
        let length = piece.len();
        // Waits while the client does not read; fails when it has left.
        self.0.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
