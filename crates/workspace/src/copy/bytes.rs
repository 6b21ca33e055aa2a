//! Copies the bytes of one file into another: by reflink (FICLONE), else copy_file_range, else read and write. Holes
//! stay holes.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes per copy_file_range call, so that progress shows.
const CHUNK: usize = 8 << 20;
const BUFFER: usize = 128 << 10;

/// Copies `size` bytes; bytes appended since the `stat` stay out. Clears `share` if these file systems cannot share
/// extents.
pub fn move_all(from: &File, to: &File, size: u64, share: &AtomicBool, moved: &AtomicU64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    if share.load(Ordering::Relaxed) {
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => {
                moved.fetch_add(size, Ordering::Relaxed);
                return Ok(());
            }
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => share.store(false, Ordering::Relaxed),
            // EINVAL concerns this file only: its storage cannot be shared.
            Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    to.set_len(size)?;
    let mut at = 0;
    while at < size {
        let Some((start, end)) = next_data(from, at, size)? else { break };
        segment(from, to, start, end, moved)?;
        at = end;
    }
    Ok(())
}

/// Finds the next data segment, by SEEK_DATA and SEEK_HOLE.
fn next_data(from: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // File system without support for holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(e) => return Err(e.into()),
    };
    let end = match rustix::fs::seek(from, SeekFrom::Hole(start)) {
        Ok(end) => end.min(size),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => size,
        Err(e) => return Err(e.into()),
    };
    Ok(Some((start, end)))
}

fn segment(from: &File, to: &File, start: u64, end: u64, moved: &AtomicU64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let length = usize::try_from(end - read_at).unwrap_or(CHUNK).min(CHUNK);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            // The file was truncated meanwhile.
            Ok(0) => return Ok(()),
            Ok(count) => moved.fetch_add(count as u64, Ordering::Relaxed),
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return by_hand(from, to, read_at, end, moved);
            }
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        };
    }
    Ok(())
}

fn by_hand(from: &File, to: &File, mut at: u64, end: u64, moved: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER];
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
        let count = from.read_at(&mut buffer[..length], at)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..count], at)?;
        at += count as u64;
        moved.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}
