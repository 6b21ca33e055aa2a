//! Bytes both ways after a request has turned its connection into something else.

use super::case::Case;
use super::http1::{Left, Reader, Writer};
use super::secrets::Mask;
use std::io;
use tokio::io::AsyncWriteExt;

/// One side of the connection.
pub(super) struct Side<'a> {
    pub reader: &'a mut Reader,
    pub writer: &'a mut Writer,
}

/// Passes everything on until both sides have ended, or either is gone. Secrets are masked on their way in.
pub(super) async fn run(guest: Side<'_>, server: Side<'_>, case: &Case) -> io::Result<()> {
    let out = one_way(guest.reader, server.writer, Mask::new(None), |len| case.passes(0, len));
    let back = one_way(server.reader, guest.writer, Mask::new(case.needles.as_deref()), |len| case.passes(len, 0));
    tokio::try_join!(out, back).map(|_| ())
}

async fn one_way(
    from: &mut Reader,
    to: &mut Writer,
    mut mask: Mask<'_>,
    count: impl Fn(usize) -> Result<(), &'static str>,
) -> io::Result<()> {
    let mut left = Left::UntilClose;
    while let Ok(Some(data)) = from.masked(&mut left, &mut mask).await {
        count(data.len()).map_err(io::Error::other)?;
        to.write_all(&data).await?;
        to.flush().await?;
    }
    to.shutdown().await
}
