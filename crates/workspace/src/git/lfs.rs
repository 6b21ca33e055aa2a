//! Git LFS files: the commit holds a pointer, and the bytes lie in the git directory under their digest. The usual
//! program is a filter that a repository's config names, and no such program is run; the pointer format is five words,
//! so it is written here.

use super::locate::Repository;
use super::refs::give;
use crate::dir::Dir;
use api::Rel;
use rustix::fs::{AtFlags, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};

/// Name of the filter in attributes.
pub(super) const FILTER: &[u8] = b"lfs";
const VERSION: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";
/// Upper bound on the length of a pointer; git LFS uses the same.
const LONGEST: u64 = 1024;

/// Pointer in place of a file with this digest.
pub(super) fn pointer(digest: &str, size: u64) -> Vec<u8> {
    [VERSION, format!("oid sha256:{digest}\nsize {size}\n").as_bytes()].concat()
}

/// True for a file that is committed as it is: empty, or a pointer already, as in a clone without LFS.
pub(super) fn is_plain(top: &Dir, path: &Rel, size: u64) -> io::Result<bool> {
    if size == 0 || size >= LONGEST {
        return Ok(size == 0);
    }
    let mut text = Vec::new();
    top.file(path)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(text.starts_with(VERSION))
}

impl Repository {
    /// Stores the bytes of a file where git LFS looks for them, after checking their digest.
    pub(super) fn keep_bytes(&self, top: &Dir, path: &Rel, digest: &str) -> io::Result<()> {
        let (one, rest) = digest.split_at_checked(2).ok_or(io::ErrorKind::InvalidInput)?;
        let (two, _) = rest.split_at_checked(2).ok_or(io::ErrorKind::InvalidInput)?;
        let at = [b"lfs", &b"objects"[..], one.as_bytes(), two.as_bytes()];
        let place = self.make_dirs(&self.common, &at.iter().fold(Rel::top(), |at, part| at.join(part)))?;
        if place.meta_of(digest.as_bytes())?.is_some() {
            return Ok(());
        }
        let draft = format!("{digest}.cofferdam");
        match rustix::fs::unlinkat(&place, &*draft, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let made = place.open_at(&Rel::top().join(draft.as_bytes()), flags, Mode::from_raw_mode(0o644))?;
        let copied = copy(&mut top.file(path)?, File::from(made)).and_then(|found| match found == digest {
            true => give(&place, draft.as_bytes(), self.owner),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "is not what landed")),
        });
        match copied {
            Ok(()) => Ok(rustix::fs::renameat(&place, &*draft, &place, digest)?),
            Err(e) => {
                let _ = rustix::fs::unlinkat(&place, &*draft, AtFlags::empty());
                Err(e)
            }
        }
    }
}

/// Copies the bytes and returns their digest.
fn copy(from: &mut File, mut to: File) -> io::Result<String> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0u8; 128 << 10]);
    loop {
        match from.read(&mut piece)? {
            0 => break,
            count => {
                hasher.update(&piece[..count]);
                to.write_all(&piece[..count])?;
            }
        }
    }
    to.sync_all()?;
    Ok(terms::hex::encode(hasher.finalize()))
}
