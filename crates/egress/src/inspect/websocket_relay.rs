//! Relays a WebSocket in both directions, after an HTTP/1.1 upgrade.

use super::http1::{BodyLeft, HttpReader, HttpWriter};
use super::judged_request::JudgedRequest;
use super::secrets::RELEASE_DELAY;
use super::websocket::Frames;
use bytes::Bytes;
use std::io;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

/// A peer of the WebSocket.
pub(super) struct WebSocketPeer<'a> {
    pub reader: &'a mut HttpReader,
    pub writer: &'a mut HttpWriter,
}

/// Relays until both sides have ended, or either is gone. Secrets are masked on their way to the guest; with secrets,
/// bytes of the server that are no WebSocket frames fail as invalid data.
pub(super) async fn run(guest: WebSocketPeer<'_>, server: WebSocketPeer<'_>, judged: &JudgedRequest) -> io::Result<()> {
    let out = one_way(guest.reader, server.writer, None, |len| judged.passes(0, len));
    let frames = judged.needles.as_deref().map(Frames::new);
    let back = one_way(server.reader, guest.writer, frames, |len| judged.passes(len, 0));
    tokio::try_join!(out, back).map(|_| ())
}

async fn one_way(
    from: &mut HttpReader,
    to: &mut HttpWriter,
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

/// Returns the next bytes to relay, or `None` at end of stream or after a read error.
async fn next(from: &mut HttpReader, frames: Option<&mut Frames<'_>>) -> io::Result<Option<Bytes>> {
    let mut left = BodyLeft::UntilClose;
    let Some(frames) = frames else {
        return Ok(from.piece(&mut left).await.unwrap_or_default());
    };
    let data = match frames.may_release() {
        false => from.piece(&mut left).await,
        true => match timeout(RELEASE_DELAY, from.piece(&mut left)).await {
            Ok(read) => read,
            Err(_) => return Ok(Some(frames.release())),
        },
    };
    let through = data.unwrap_or_default().map(|data| frames.pass(data)).transpose();
    through.map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))
}
