//! Copies of base files as of the last rebase: the merge base of the next one. Stored beside the layer, bounded, and
//! optional: a rebase works without them.

use crate::anchor::{Anchors, BaseStat};
use crate::entry::digest;
use crate::layer::{Layer, Stack};
use crate::rebase::Rebase;
use crate::{merge, place, stage};
use api::{Diff, FileKind, RebaseFate, Rel};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};

/// Directory of copies, each named by its digest, and the list of their paths.
const COPIES: &str = "known";
const LIST: &str = "known.json";

/// Bound on all copies of one workspace; files beyond it have no copy for the next rebase.
const MOST_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    path: Rel,
    /// Metadata of the base's file when it was copied.
    seen: BaseStat,
    digest: String,
}

/// Content of a base file when the workspace last saw it, if a rebase kept a copy.
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

/// Copies the base files that a rebase handled. A file that changed meanwhile has drifted again and is not copied.
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
    for moved in rebase.moved.iter().filter(|moved| moved.fate != RebaseFate::Dropped) {
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
    stage::write_durably(&layer.dir, LIST, &all)?;
    let named: BTreeSet<&[u8]> = all.iter().map(|known| known.digest.as_bytes()).collect();
    for name in copies.names()?.iter().filter(|name| !named.contains(name.as_slice())) {
        rustix::fs::unlinkat(&copies, name.as_slice(), AtFlags::empty())?;
    }
    Ok(())
}
