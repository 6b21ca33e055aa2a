//! Copies of base files as they were when a workspace was last rebased: the past that the next rebase merges upon. Kept beside
//! the layer, bounded, and never missed where they are gone.

use crate::anchor::{Anchors, Seen};
use crate::change::{Diff, FileKind};
use crate::entry::digest;
use crate::layer::{Layer, Stack};
use crate::name::Rel;
use crate::rebase::{Fate, Rebase};
use crate::{merge, place, stage};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};

/// The directory of copies, each named by its digest, and the list of whose they are.
const COPIES: &str = "known";
const LIST: &str = "known.json";

/// All copies of one workspace together; files beyond are not known the next time.
const MOST_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    path: Rel,
    /// How the base's file was when it was copied.
    seen: Seen,
    digest: String,
}

/// What the base had at a path when the workspace last saw it, if a rebase kept it.
pub fn copy(stack: &Stack, anchors: &Anchors, path: &Rel) -> Option<Vec<u8>> {
    let seen = anchors.get(path)?;
    stack.layers.iter().rev().find_map(|layer| {
        let known = list(layer).into_iter().find(|known| known.path == *path && known.seen == *seen)?;
        let dir = layer.dir.dir(&Rel::top().join(COPIES.as_bytes())).ok()?;
        let mut bytes = Vec::new();
        let file = dir.file(&Rel::parse(known.digest.as_bytes())?).ok()?;
        file.take(merge::LARGEST as u64 + 1).read_to_end(&mut bytes).ok()?;
        (digest(&bytes) == known.digest).then_some(bytes)
    })
}

fn list(layer: &Layer) -> Vec<Known> {
    stage::read_back(&layer.dir, LIST).ok().flatten().unwrap_or_default()
}

/// Copies what the base has of the files that a rebase dealt with. A file that changed meanwhile is drift again, and not copied.
pub(crate) fn keep(stack: &Stack, rebase: &Rebase, diff: &Diff) -> io::Result<()> {
    let Some(layer) = stack.layers.last() else { return Ok(()) };
    let mut kept: BTreeMap<Rel, Known> = BTreeMap::new();
    for known in list(layer) {
        if rebase.anchors.get(&known.path) == Some(&known.seen) {
            kept.insert(known.path.clone(), known);
        }
    }
    match rustix::fs::mkdirat(&layer.dir, COPIES, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let copies = layer.dir.dir(&Rel::top().join(COPIES.as_bytes()))?;
    let files: BTreeMap<&Rel, _> = diff.files.iter().map(|file| (&file.change.path, &file.change)).collect();
    let mut total = 0;
    for moved in rebase.moved.iter().filter(|moved| moved.fate != Fate::Dropped) {
        let Some(change) = files.get(&moved.path) else { continue };
        let source = change.kind.from().unwrap_or(&change.path);
        let before = change.before.as_ref().filter(|b| b.kind == FileKind::File && b.size <= merge::LARGEST as u64);
        let (Some(before), Some(seen)) = (before, rebase.anchors.get(source)) else { continue };
        total += before.size;
        if total > MOST_BYTES {
            break;
        }
        let (dir, name) = place::parent_of(&stack.base, source)?;
        let mut bytes = Vec::new();
        dir.file(&Rel::top().join(name))?.take(merge::LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        let found = digest(&bytes);
        if before.digest.as_ref() != Some(&found) {
            continue;
        }
        if copies.meta_of(found.as_bytes())?.is_none() {
            let mut file: File = stage::create(&copies, found.as_bytes())?;
            file.write_all(&bytes)?;
        }
        kept.insert(source.clone(), Known { path: source.clone(), seen: *seen, digest: found });
    }
    let all: Vec<&Known> = kept.values().collect();
    stage::write_down(&layer.dir, LIST, &all)?;
    let named: BTreeSet<&[u8]> = all.iter().map(|known| known.digest.as_bytes()).collect();
    for name in copies.names()?.iter().filter(|name| !named.contains(name.as_slice())) {
        rustix::fs::unlinkat(&copies, name.as_slice(), AtFlags::empty())?;
    }
    Ok(())
}
