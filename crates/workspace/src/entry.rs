//! Entry on one side of a change, read from disk: kind, mode, digest, link target, extended attributes. Only regular files are
//! opened for reading, and the bytes read are bounded.

use crate::attributes::{self, Marks};
use crate::dir::{Dir, Meta, is_absent};
use api::{ChangeSide, FileKind, PathText, Rel};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use terms::hex;

/// Bytes that may still be read for one diff. Files beyond it are marked too large, never read in part.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Largest file whose digest is computed.
    pub largest_file: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Bytes of all extended attributes together.
    pub attributes: u64,
}

/// An entry, and the reason why it cannot land, if any.
pub struct ReviewedEntry {
    pub entry: ChangeSide,
    pub trouble: Option<&'static str>,
}

pub const UNREADABLE: &str = "cannot be read";
pub const TOO_LARGE: &str = "too large to be reviewed";
pub const SPECIAL: &str = "neither a file, a directory nor a link";

/// Reads the entry of a name. None if it vanished meanwhile.
pub fn take(
    dir: &Dir,
    name: &[u8],
    meta: &Meta,
    marks: Marks,
    budget: &mut Budget,
) -> io::Result<Option<ReviewedEntry>> {
    let plain =
        ChangeSide { kind: meta.kind, mode: meta.mode, size: 0, digest: None, target: None, xattrs: BTreeMap::new() };
    let taken = match meta.kind {
        FileKind::File => take_file(dir, name, plain, marks, budget),
        FileKind::Symlink => take_link(dir, name, plain),
        FileKind::Dir => take_dir(dir, name, plain, marks, budget),
        _ => return Ok(Some(ReviewedEntry { entry: plain, trouble: Some(SPECIAL) })),
    };
    match taken {
        Ok(taken) => Ok(Some(taken)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) if is_refused(&e) => {
            let size = if meta.kind == FileKind::File { meta.size } else { 0 };
            let entry = ChangeSide {
                kind: meta.kind,
                mode: meta.mode,
                size,
                digest: None,
                target: None,
                xattrs: BTreeMap::new(),
            };
            Ok(Some(ReviewedEntry { entry, trouble: Some(UNREADABLE) }))
        }
        Err(e) => Err(e),
    }
}

pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn take_file(
    dir: &Dir,
    name: &[u8],
    mut entry: ChangeSide,
    marks: Marks,
    budget: &mut Budget,
) -> io::Result<ReviewedEntry> {
    let mut file = dir.file(&Rel::top().join(name))?;
    entry.xattrs = attributes(&file, marks, budget)?;
    let size = file.metadata()?.len();
    entry.size = size;
    if size > budget.largest_file || size > budget.bytes {
        return Ok(ReviewedEntry { entry, trouble: Some(TOO_LARGE) });
    }
    budget.bytes -= size;
    let (digest, read) = digest_of(&mut file, budget.largest_file)?;
    entry.size = read;
    entry.digest = Some(digest);
    Ok(ReviewedEntry { entry, trouble: None })
}

fn take_link(dir: &Dir, name: &[u8], mut entry: ChangeSide) -> io::Result<ReviewedEntry> {
    let target = dir.link_target(name)?;
    entry.size = target.len() as u64;
    entry.digest = Some(digest(&target));
    entry.target = Some(PathText::of(&target));
    Ok(ReviewedEntry { entry, trouble: None })
}

fn take_dir(
    dir: &Dir,
    name: &[u8],
    mut entry: ChangeSide,
    marks: Marks,
    budget: &mut Budget,
) -> io::Result<ReviewedEntry> {
    entry.xattrs = attributes(&dir.dir(&Rel::top().join(name))?, marks, budget)?;
    Ok(ReviewedEntry { entry, trouble: None })
}

/// SHA-256 and length of a file; a file that grows meanwhile is read up to `most`.
fn digest_of(file: &mut File, most: u64) -> io::Result<(String, u64)> {
    let (mut hash, mut buffer, mut total) = (Sha256::new(), vec![0u8; 128 * 1024], 0u64);
    while total < most {
        let room = usize::try_from(most - total).unwrap_or(usize::MAX).min(buffer.len());
        match file.read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&buffer[..n]);
                total += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok((hex::encode(hash.finalize()), total))
}

pub fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// True if two files have the same bytes.
pub fn same_bytes(one: &File, other: &File) -> io::Result<bool> {
    let (mut a, mut b, mut at) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10], 0);
    loop {
        let count = one.read_at(&mut a, at)?;
        if count == 0 {
            return Ok(other.read_at(&mut b[..1], at)? == 0);
        }
        match other.read_exact_at(&mut b[..count], at) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if a[..count] != b[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
}

const CAPABILITY: &str = "security.capability";

/// Attributes that a reviewer sees, by name, with values in hex.
fn attributes(fd: impl AsFd, marks: Marks, budget: &mut Budget) -> io::Result<BTreeMap<String, String>> {
    let mut found = attributes::read(&fd, marks)?.own;
    let mut capability = [0u8; 64];
    match rustix::fs::fgetxattr(&fd, CAPABILITY, &mut capability[..]) {
        Ok(length) => found.push((CAPABILITY.into(), capability[..length].to_vec())),
        // The attribute exists, with an owner that our user namespace does not map.
        Err(Errno::OVERFLOW | Errno::RANGE) => found.push((CAPABILITY.into(), Vec::new())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(e) => return Err(e.into()),
    }
    let cost: usize = found.iter().map(|(name, value)| name.len() + 2 * value.len()).sum();
    let left = budget.attributes.checked_sub(cost as u64);
    budget.attributes = left.ok_or_else(|| io::Error::new(io::ErrorKind::QuotaExceeded, "too many attributes"))?;
    Ok(found
        .into_iter()
        .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), hex::encode(&value)))
        .collect())
}
