//! Reads a file, whole or a range, in pieces.

use super::Root;
use super::locate::settled;
use api::{FileEntry, Rel};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use terms::{ErrorKind, Fault, Phase, Retry};

/// Largest piece in bytes.
pub const PIECE: usize = 256 << 10;

/// Byte range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// From the first to the last byte, both included; without a last, to the end.
    From { first: u64, last: Option<u64> },
    /// Number of bytes at the end.
    Last(u64),
}

/// Open file that is being read.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    path: Rel,
    pub entry: FileEntry,
    at: u64,
    end: u64,
    /// Last field, so that the lease is dropped after the file.
    root: Root,
}

/// Opens a regular file. Other kinds are refused without being opened.
pub fn open(root: &Root, path: &Rel) -> Result<FileReader, Fault> {
    let _owner = root.act_as_guest()?;
    let (spot, (file, meta)) = settled(root, path, "read it", false, |spot| spot.open_file(OFlags::RDONLY))?;
    let entry = super::entry_of(spot.path, &meta, None);
    Ok(FileReader { file, path: path.clone(), at: 0, end: entry.size, entry, root: root.try_clone()? })
}

impl FileReader {
    /// Narrows to a range. A range without any byte of the file is an invalid request.
    pub fn narrow(&mut self, span: Span) -> Result<(), Fault> {
        let size = self.entry.size;
        let (first, end) = match span {
            Span::From { first, last } => (first, last.map_or(size, |last| last.saturating_add(1).min(size))),
            Span::Last(count) => (size.saturating_sub(count), size),
        };
        if first >= end {
            let message = format!("{}: the range is beyond its {size} bytes", self.path);
            return Err(Fault::invalid(message).hint("request a range within the file").phase(Phase::Execution));
        }
        (self.at, self.end) = (first, end);
        Ok(())
    }

    /// Offset of the next byte, and the end.
    pub fn span(&self) -> (u64, u64) {
        (self.at, self.end)
    }

    /// Reads the next piece; None at the end. A file that was truncated is an error, because its length was announced.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        if self.at >= self.end {
            return Ok(None);
        }
        self.root.check()?;
        let length = usize::try_from(self.end - self.at).unwrap_or(PIECE).min(PIECE);
        let mut piece = vec![0u8; length];
        let count = self.file.read_at(&mut piece, self.at);
        let count = count.map_err(|e| super::error::fault(&self.path, "read it", &e))?;
        if count == 0 {
            let message = format!("{}: it became shorter while it was read", self.path);
            let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Execution);
            return Err(fault.hint("read it again").retry(Retry::Now));
        }
        piece.truncate(count);
        self.at += count as u64;
        Ok(Some(piece))
    }
}
