//! Paths of a commit: in the work tree, in other repositories, and their digests.

use super::locate::{Repository, refused, unreadable};
use crate::dir::{Dir, Meta};
use api::{FileKind, Rel};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};
use terms::{ErrorKind, Fault, Phase};

/// Converts a path of the base to one of the work tree.
pub(super) fn below(prefix: &Rel, path: &Rel) -> Rel {
    path.parts().fold(prefix.clone(), |at, part| at.join(part))
}

/// A path and its parents.
pub(super) fn at_and_above(path: &Rel) -> Vec<Rel> {
    let mut all = Vec::new();
    let mut at = Rel::top();
    for part in path.parts() {
        at = at.join(part);
        all.push(at.clone());
    }
    all
}

/// NUL-terminated list for the standard input of plumbing commands.
pub(super) fn listed(paths: &[Rel]) -> Vec<u8> {
    paths.iter().flat_map(|path| path.as_bytes().iter().copied().chain([0])).collect()
}

/// True for a file or a link, which git tracks.
pub(super) fn is_kept(top: &Dir, path: &Rel) -> bool {
    let found = top.meta(path).ok().flatten();
    found.is_some_and(|meta| matches!(meta.kind, FileKind::File | FileKind::Symlink))
}

/// Converts paths to those of the work tree and refuses any in `.git`; also returns the tops of other repositories
/// that contain some.
pub(super) fn in_work_tree(repository: &Repository, paths: &[Rel]) -> Result<(Vec<Rel>, BTreeSet<Rel>), Fault> {
    let mut all = Vec::with_capacity(paths.len());
    let (mut clean, mut others): (BTreeSet<Rel>, BTreeSet<Rel>) = Default::default();
    for path in paths.iter().map(|path| below(&repository.prefix, path)) {
        let parent = path.split().map(|(parent, _)| parent).unwrap_or_default();
        if clean.insert(parent) {
            let inner = repository.inner(&path).map_err(|e| unreadable(&repository.top, &e))?;
            others.extend(inner);
        }
        if path.parts().any(|part| part.eq_ignore_ascii_case(b".git")) {
            return Err(refused(&repository.top, &format!("{path} is a part of git's own directory")));
        }
        all.push(path);
    }
    Ok((all, others))
}

/// True for a path at or below another repository.
pub(super) fn is_of(others: &BTreeSet<Rel>, path: &Rel) -> bool {
    others.iter().any(|other| path.is_at_or_below(other))
}

/// Metadata, and SHA-256 of a file's bytes or of a link target.
pub(super) fn digest(top: &Dir, path: &Rel) -> io::Result<(Meta, String)> {
    let meta = top.meta(path)?.ok_or(io::ErrorKind::NotFound)?;
    let mut hasher = Sha256::new();
    match (meta.kind, path.split()) {
        (FileKind::Symlink, Some((parent, name))) => hasher.update(top.dir(&parent)?.link_target(name)?),
        _ => {
            let mut file = top.file(path)?;
            let mut piece = vec![0u8; 128 << 10];
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    count => hasher.update(&piece[..count]),
                }
            }
        }
    }
    Ok((meta, terms::hex::encode(hasher.finalize())))
}

pub(super) fn of_another(at: &str) -> Fault {
    let message = format!("{at} is a repository of its own (a submodule)");
    let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
    fault.hint("approve what is in it without --commit, and commit there with git")
}
