//! Adds files to an index: as they are or as git LFS pointers; a file with any other filter is refused.

use super::commit::{Prepared, id_in};
use super::lfs;
use super::locate::{refused, unreadable};
use super::paths::{digest, listed};
use crate::dir::{Dir, Meta};
use api::{FileKind, Rel};
use std::collections::BTreeSet;
use std::io;
use terms::{ErrorKind, Fault, Phase};

impl Prepared {
    /// Paths that git LFS handles. The output of any other configured filter is known only to that program, which is
    /// not run: an error.
    pub(super) fn filtered(&self, paths: &[Rel]) -> Result<BTreeSet<Rel>, Fault> {
        let listed = self.run(&["check-attr", "-z", "--stdin", "filter"], listed(paths))?;
        let fields: Vec<&[u8]> = listed.split(|b| *b == 0).collect();
        let (of_lfs, others): (Vec<_>, Vec<_>) = fields.chunks_exact(3).partition(|triple| triple[2] == lfs::FILTER);
        let odd = self.settings.odd_lfs.as_ref().filter(|_| !of_lfs.is_empty());
        let filtered = others.into_iter().find(|triple| {
            let driver = String::from_utf8_lossy(triple[2]);
            self.settings.filters.contains(driver.as_ref())
        });
        if let Some(setting) = odd {
            return Err(refused(&self.repository.top, &format!("its files of git LFS are kept as {setting} says")));
        }
        let Some(triple) = filtered else {
            return Ok(of_lfs.into_iter().filter_map(|triple| Rel::parse(triple[0])).collect());
        };
        let (path, driver) = (Rel::parse(triple[0]).unwrap_or_default(), String::from_utf8_lossy(triple[2]));
        let message = format!("{path} uses the filter {driver:?}, and cofferdam runs no program of a repository");
        let fault = Fault::new(ErrorKind::Conflict, message).phase(Phase::Review);
        Err(fault.hint("approve it without --commit, then commit it with git"))
    }

    /// Adds files to the scratch index, those of git LFS as pointers; returns the latter with their digests.
    pub(super) fn add(&self, top: &Dir, paths: &[Rel]) -> Result<Vec<(Rel, String)>, Fault> {
        let of_lfs = self.filtered(paths)?;
        let (mut plain, mut pointed, mut input) = (Vec::new(), Vec::new(), Vec::new());
        for path in paths {
            let fail = |e: io::Error| unreadable(&self.repository.top.join(path.as_path()), &e);
            let is_file = |meta: &Meta| meta.kind == FileKind::File;
            let meta = top.meta(path).map_err(fail)?.filter(|meta| is_file(meta) && of_lfs.contains(path));
            let Some(meta) = meta else {
                plain.push(path.clone());
                continue;
            };
            if lfs::is_plain(top, path, meta.size).map_err(fail)? {
                plain.push(path.clone());
                continue;
            }
            let (meta, digest) = digest(top, path).map_err(fail)?;
            let blob = self.run(&["hash-object", "-w", "--stdin"], lfs::pointer(&digest, meta.size))?;
            let bits_mean_nothing = self.settings.carried.iter().any(|setting| setting == "core.filemode=false");
            let mode = if meta.mode & 0o100 != 0 && !bits_mean_nothing { "100755" } else { "100644" };
            input.extend_from_slice(format!("{mode} {}\t", id_in(&blob)?).as_bytes());
            input.extend_from_slice(path.as_bytes());
            input.push(0);
            pointed.push((path.clone(), digest));
        }
        self.run(&["update-index", "-z", "--add", "--replace", "--stdin"], listed(&plain))?;
        self.run(&["update-index", "--add", "--replace", "-z", "--index-info"], input)?;
        Ok(pointed)
    }
}
