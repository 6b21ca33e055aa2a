//! Clears out of the writable layer what says nothing: copies that are as the base has them, and names struck out that the base
//! does not have. Left there, they would hide what the base becomes.

use crate::attributes::{self, Marks};
use crate::change::FileKind;
use crate::dir::{Dir, Meta};
use crate::layer::{Driver, Stack};
use crate::name::Rel;
use crate::rebase::meta_at;
use crate::top::Top;
use crate::walk::{self, At, Visitor};
use crate::{place, trouble};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use terms::Fault;

/// What `spoken_of` names is left alone, and so is all that belongs to git.
pub(crate) fn drop_what_is_as_in_the_base(
    stack: &Stack,
    top: &Top<'_>,
    spoken_of: &BTreeSet<Rel>,
) -> Result<(), Fault> {
    let Some(layer) = stack.layers.last().filter(|_| stack.driver == Driver::Overlay) else { return Ok(()) };
    let looker = Looker { base: &stack.base, up: &layer.up, spoken_of, at: Vec::new(), found: Vec::new() };
    let found = walk::walk(&[&layer.up], Marks::Mean, looker)?.found;
    for path in found {
        let fail = |e: io::Error| trouble::with(&path, "take it out of the workspace", &e);
        if top.shows_base(&path).map_err(fail)? {
            top.take_away(&path).and_then(|()| top.prune(&path)).map_err(fail)?;
        }
    }
    Ok(())
}

struct Looker<'a> {
    base: &'a Dir,
    up: &'a Dir,
    spoken_of: &'a BTreeSet<Rel>,
    at: Vec<Rel>,
    found: Vec<Rel>,
}

impl Looker<'_> {
    fn path(&self, name: &[u8]) -> Rel {
        self.at.last().cloned().unwrap_or_default().join(name)
    }

    fn is_as_in_the_base(&self, path: &Rel, own: &Meta) -> io::Result<bool> {
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

impl Visitor for Looker<'_> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = self.path(at.name);
        self.at.push(path);
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        let path = self.path(at.name);
        let of_git = path.parts().any(|part| part.eq_ignore_ascii_case(b".git"));
        // What cannot be read is left as it is.
        if !of_git && !self.spoken_of.contains(&path) && self.is_as_in_the_base(&path, &at.meta).unwrap_or(false) {
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

/// Whether two files have the same bytes.
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
