//! The sandbox's own home in its layers: what was copied into it, and the changes above that. Each layer has a part of
//! both; a home that was emptied begins anew at a layer.

use crate::attributes::Marks;
use crate::copy;
use crate::dir::Dir;
use crate::layer::{HomePart, Layer, Stack};
use crate::remove;
use api::{Driver, Rel};
use rustix::fs::{Mode, OFlags};
use std::io;
use terms::Fault;

/// Mark of a layer at which the home begins anew: changes in the layers below do not count.
const ANEW: &[u8] = b"home-anew";

/// Part of a layer that makes up the home.
#[derive(Debug)]
pub struct PartOfHome {
    /// Index of the layer, from the bottom up.
    pub layer: usize,
    pub part: HomePart,
    pub dir: Dir,
}

/// Returns the parts that have content and count, from the bottom up.
pub fn parts(layers: &[Layer]) -> io::Result<Vec<PartOfHome>> {
    let mut first = 0;
    for (number, layer) in layers.iter().enumerate() {
        if layer.dir.meta_of(ANEW)?.is_some() {
            first = number;
        }
    }
    let mut parts = Vec::new();
    for (layer, at) in layers.iter().enumerate() {
        for part in HomePart::HOME.into_iter().filter(|part| *part == HomePart::Brought || layer >= first) {
            parts.extend(at.filled(part)?.map(|dir| PartOfHome { layer, part, dir }));
        }
    }
    Ok(parts)
}

/// Returns the home as a stack for reading; `None` where it is empty. Its lowest part is the base.
pub fn merged(of: &Stack) -> io::Result<Option<Stack>> {
    let mut parts = parts(&of.layers)?.into_iter();
    let Some(base) = parts.next() else { return Ok(None) };
    let layers = parts.map(|part| layer_of(of, part)).collect::<io::Result<_>>()?;
    Ok(Some(Stack { base: base.dir, driver: of.driver, layers, since: of.since }))
}

/// Returns the home as a stack whose base is what was copied into it.
pub fn against_brought(of: &Stack) -> io::Result<Stack> {
    let mut parts = parts(&of.layers)?;
    let base = match parts.first() {
        Some(first) if first.part == HomePart::Brought => parts.remove(0).dir,
        // A layer's own is empty where nothing was copied.
        _ => of.layers.first().ok_or(io::ErrorKind::NotFound)?.make_home(HomePart::Brought)?,
    };
    let layers = parts.into_iter().map(|part| layer_of(of, part)).collect::<io::Result<_>>()?;
    Ok(Stack { base, driver: of.driver, layers, since: of.since })
}

fn layer_of(of: &Stack, part: PartOfHome) -> io::Result<Layer> {
    let layer = of.layers.get(part.layer).ok_or(io::ErrorKind::NotFound)?;
    // Nothing that is kept beside a workspace's changes is about the home.
    let dir = layer.dir.dir(&Rel::top().join(b"homework")).or_else(|_| part.dir.try_clone())?;
    Ok(Layer { id: layer.id.clone(), dir, up: part.dir })
}

/// Merges the homes of layers, from the bottom up, into that of a fresh layer.
pub fn merge(from: &[Layer], to: &Layer, marks: Marks) -> Result<(), Fault> {
    let fail = |e: io::Error| crate::walk::fault(&Rel::top().join(to.id.as_bytes()), &e);
    let all = parts(from).map_err(fail)?;
    let caches = from.iter().filter_map(|layer| layer.filled(HomePart::Caches).transpose());
    let caches = caches.collect::<io::Result<Vec<Dir>>>().map_err(fail)?;
    if !caches.is_empty() {
        let to = to.make_home(HomePart::Caches).map_err(fail)?;
        copy::parts(&caches.iter().collect::<Vec<&Dir>>(), &to, marks)?;
    }
    for part in HomePart::HOME {
        let filled: Vec<&Dir> = all.iter().filter(|one| one.part == part).map(|one| &one.dir).collect();
        if !filled.is_empty() {
            copy::parts(&filled, &to.make_home(part).map_err(fail)?, marks)?;
        }
    }
    for layer in from {
        if layer.dir.meta_of(ANEW).map_err(fail)?.is_some() {
            mark(to).map_err(fail)?;
        }
    }
    Ok(())
}

/// Takes all changes of the home back: it has what was copied into it. The caller holds the lock of the top layer.
pub fn reset(stack: &Stack) -> Result<(), Fault> {
    let fail = |e: io::Error| crate::walk::fault(&Rel::top(), &e);
    let top = stack.layers.last().ok_or_else(|| Fault::internal("a workspace without layers"))?;
    mark(top).map_err(fail)?;
    remove::tree(&top.dir, HomePart::Changes.name().as_bytes()).map_err(fail)?;
    let home = top.make_home(HomePart::Changes).map_err(fail)?;
    if stack.driver != Driver::Overlay
        && let Some(brought) = top.filled(HomePart::Brought).map_err(fail)?
    {
        copy::parts(&[&brought], &home, Marks::Plain)?;
    }
    Ok(())
}

fn mark(layer: &Layer) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    layer.dir.open_at(&Rel::top().join(ANEW), flags, Mode::from_raw_mode(0o600)).map(drop)
}
