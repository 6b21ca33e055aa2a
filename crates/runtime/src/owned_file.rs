//! Files of the state directory that are opened only where they are regular files, never through a link.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a keeper's file. A link, a pipe or a device in its place is an error: nothing is read elsewhere, and the open does not block.
pub fn open_own(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.mode(0o600).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// Reads a whole file of at most `most` bytes.
pub fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open_own(path, std::fs::OpenOptions::new().read(true))?.take(most + 1).read_to_end(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(text),
    }
}
