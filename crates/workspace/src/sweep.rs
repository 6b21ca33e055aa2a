//! Removes redundant entries from the writable layer: copies equal to the base, and whiteouts of names that the base
//! does not have. They would hide later changes of the base.

use crate::attributes::{self, Marks};
use crate::dir::{Dir, Meta};
use crate::layer::Stack;
use crate::rebase::meta_at;
use crate::top::TopLayer;
use crate::walk::{self, At, Visitor};
use crate::{place, trouble};
use api::{Driver, FileKind, Rel};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use terms::Fault;

/// Removes redundant entries, except for paths in `mentioned` and everything in `.git`.
pub(crate) fn drop_redundant(stack: &Stack, top: &TopLayer<'_>, mentioned: &BTreeSet<Rel>) -> Result<(), Fault> {
    let Some(layer) = stack.layers.last().filter(|_| stack.driver == Driver::Overlay) else { return Ok(()) };
    let finder = RedundantEntries { base: &stack.base, up: &layer.up, mentioned, at: Vec::new(), found: Vec::new() };
    let found = walk::walk(&[&layer.up], Marks::Mean, finder)?.found;
    for path in found {
        let fail = |e: io::Error| trouble::with(&path, "take it out of the workspace", &e);
        if top.shows_base(&path).map_err(fail)? {
            top.remove_entry(&path).and_then(|()| top.prune(&path)).map_err(fail)?;
        }
    }
    Ok(())
}

struct RedundantEntries<'a> {
    base: &'a Dir,
    up: &'a Dir,
    mentioned: &'a BTreeSet<Rel>,
    at: Vec<Rel>,
    found: Vec<Rel>,
}

impl RedundantEntries<'_> {
    fn path(&self, name: &[u8]) -> Rel {
        self.at.last().cloned().unwrap_or_default().join(name)
    }

    fn equals_base(&self, path: &Rel, own: &Meta) -> io::Result<bool> {
        let base = meta_at(self.base, path)?;
        match (own.is_struck_out(), base) {
            (true, base) => Ok(base.is_none()),
            (false, Some(base)) if own.kind == FileKind::File && base.kind == FileKind::File => {
                if (own.size, own.mode) != (base.size, base.mode) {
                    return Ok(false);
                }
                let (own, base) = (open(self.up, path)?, open(self.base, path)?);
                let carried = (attributes::read(&own, Marks::Mean)?.own, attributes::read(&base, Marks::Foreign)?.own);
                Ok(carried.0 == carried.1 && same(own, base)?)
            }
            _ => Ok(false),
        }
    }
}

impl Visitor for RedundantEntries<'_> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = self.path(at.name);
        self.at.push(path);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = self.path(at.name);
        let of_git = path.parts().any(|part| part.eq_ignore_ascii_case(b".git"));
        // Unreadable entries are left as they are.
        if !of_git && !self.mentioned.contains(&path) && self.equals_base(&path, &at.meta).unwrap_or(false) {
            self.found.push(path);
        }
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        self.at.pop();
        Ok(())
    }
}

fn open(top: &Dir, at: &Rel) -> io::Result<File> {
    let (dir, name) = place::parent_of(top, at)?;
    dir.file(&Rel::top().join(name))
}

/// True if two files have the same bytes.
fn same(mut a: File, mut b: File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10]);
    loop {
        let count = a.read(&mut left)?;
        if count == 0 {
            return Ok(b.read(&mut right)? == 0);
        }
        match b.read_exact(&mut right[..count]) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}
