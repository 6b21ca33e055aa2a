//! A WebSocket both ways, after a request has turned its connection into one.

use super::case::Case;
use super::http1::{Left, Reader, Writer};
use super::secrets::QUIET;
use super::websocket::Frames;
use bytes::Bytes;
use std::io;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// One side of the connection.
pub(super) struct Side<'a> {
    pub reader: &'a mut Reader,
    pub writer: &'a mut Writer,
}

/// Passes everything on until both sides have ended, or either is gone. Secrets are masked on their way in; where there
/// is one, a server that does not speak in frames is invalid data.
pub(super) async fn run(guest: Side<'_>, server: Side<'_>, case: &Case) -> io::Result<()> {
    let out = one_way(guest.reader, server.writer, None, |len| case.passes(0, len));
    let frames = case.needles.as_deref().map(Frames::new);
    let back = one_way(server.reader, guest.writer, frames, |len| case.passes(len, 0));
    tokio::try_join!(out, back).map(|_| ())
}

async fn one_way(
    from: &mut Reader,
    to: &mut Writer,
    mut frames: Option<Frames<'_>>,
    count: impl Fn(usize) -> Result<(), &'static str>,
) -> io::Result<()> {
    while let Some(data) = next(from, frames.as_mut()).await? {
        count(data.len()).map_err(io::Error::other)?;
        to.write_all(&data).await?;
        to.flush().await?;
    }
    to.shutdown().await
}

/// The next bytes that may go on; `None` at the end, however it came.
async fn next(from: &mut Reader, frames: Option<&mut Frames<'_>>) -> io::Result<Option<Bytes>> {
    let mut left = Left::UntilClose;
    let Some(frames) = frames else {
        return Ok(from.piece(&mut left).await.unwrap_or_default());
    };
    let data = match frames.holds_little() {
        false => from.piece(&mut left).await,
        true => match timeout(QUIET, from.piece(&mut left)).await {
            Ok(read) => read,
            Err(_) => return Ok(Some(frames.let_go())),
        },
    };
    let through = data.unwrap_or_default().map(|data| frames.pass(data)).transpose();
    through.map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))
}
