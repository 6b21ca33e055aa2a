//! Contents of files in a commit, as a checkout would write them. Unknown for large files and for those with filters.

use super::child::{Call, ScratchRepository};
use super::locate::Repository;
use super::refs::is_id;
use super::settings::{GitEnvironment, GitSettings};
use api::Rel;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use terms::Fault;

/// Contents of some files in one commit.
pub struct CommitFiles {
    scratch: ScratchRepository,
    prefix: Rel,
    blobs: BTreeMap<Rel, Blob>,
}

enum Blob {
    Known {
        id: String,
        size: u64,
    },
    /// Missing in the commit.
    Absent,
    /// Filtered, or not a file.
    Opaque,
}

/// State of a file in the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedFile {
    File(Vec<u8>),
    Absent,
    Unknown,
}

impl CommitFiles {
    /// Looks up all paths at once; None if `base` is not in a repository or the commit is missing.
    pub fn look_up(
        base: &Path,
        surroundings: &GitEnvironment<'_>,
        commit: &str,
        paths: &[Rel],
    ) -> Result<Option<CommitFiles>, Fault> {
        let Some(repository) = Repository::find(base)?.filter(|_| is_id(commit)) else { return Ok(None) };
        let settings = GitSettings::read(&repository, surroundings)?;
        let scratch = ScratchRepository::make(settings.program, &repository, settings.sha256, settings.carried)?;
        let mut old = CommitFiles { scratch, prefix: repository.prefix, blobs: BTreeMap::new() };
        Ok(old.find(commit, paths)?.then_some(old))
    }

    fn find(&mut self, commit: &str, paths: &[Rel]) -> Result<bool, Fault> {
        let full: Vec<Vec<u8>> = paths.iter().map(|path| full(&self.prefix, path)).collect();
        let mut input = format!("{commit}^{{tree}}\0").into_bytes();
        for path in &full {
            input.extend_from_slice(format!("{commit}:").as_bytes());
            input.extend_from_slice(path);
            input.push(0);
        }
        // Replies are lines; a name with a newline must not pass for two, so only id, type and size are printed.
        let args = ["cat-file", "-z", "--batch-check=%(objectname) %(objecttype) %(objectsize)"].map(OsStr::new);
        let said = self.scratch.git(&args, Call { input, ..Call::default() })?;
        let attributes = ["check-attr", "-z", "--stdin", "filter"].map(OsStr::new);
        let input = full.iter().flat_map(|path| path.iter().copied().chain([0])).collect();
        let filters = self.scratch.git(&attributes, Call { input, ..Call::default() })?;
        let filters: Vec<&[u8]> = filters.split(|b| *b == 0).collect();
        let mut filtered = filters.chunks_exact(3).map(|triple| !matches!(triple[2], b"unspecified" | b"unset"));
        let mut rest = &said[..];
        if !matches!(next(&mut rest, format!("{commit}^{{tree}}").as_bytes()), Some(BatchReply::Other)) {
            return Ok(false);
        }
        for (path, full) in paths.iter().zip(&full) {
            let asked = [format!("{commit}:").as_bytes(), full].concat();
            let blob = match next(&mut rest, &asked) {
                Some(BatchReply::Blob { id, size }) => Blob::Known { id, size },
                Some(BatchReply::Missing) => Blob::Absent,
                Some(BatchReply::Other) => Blob::Opaque,
                None => return Err(Fault::internal("git cat-file gave unexpected output")),
            };
            let blob = if filtered.next() == Some(true) { Blob::Opaque } else { blob };
            self.blobs.insert(path.clone(), blob);
        }
        Ok(true)
    }

    /// Content of a path; unknown above `most` bytes.
    pub fn contents(&self, path: &Rel, most: u64) -> Result<CommittedFile, Fault> {
        let id = match self.blobs.get(path) {
            Some(Blob::Known { id, size }) if *size <= most => id,
            Some(Blob::Absent) => return Ok(CommittedFile::Absent),
            _ => return Ok(CommittedFile::Unknown),
        };
        let full = OsString::from_vec([b"--path=".to_vec(), full(&self.prefix, path)].concat());
        let args = [OsStr::new("cat-file"), OsStr::new("--filters"), &full, OsStr::new(id)];
        // Conversion of line endings at most doubles the size.
        self.scratch.git(&args, Call { most: 2 * most + 1, ..Call::default() }).map(CommittedFile::File)
    }
}

enum BatchReply {
    Blob { id: String, size: u64 },
    Missing,
    Other,
}

/// Parses the next reply of `cat-file --batch-check`: `ID TYPE SIZE`, or the request followed by ` missing`.
fn next(rest: &mut &[u8], asked: &[u8]) -> Option<BatchReply> {
    if let Some(after) = rest.strip_prefix(asked).and_then(|after| after.strip_prefix(b" missing\n")) {
        *rest = after;
        return Some(BatchReply::Missing);
    }
    let end = rest.iter().position(|b| *b == b'\n')?;
    let line = std::str::from_utf8(&rest[..end]).ok()?;
    *rest = &rest[end + 1..];
    let fields: Vec<&str> = line.split(' ').collect();
    match fields[..] {
        [id, "blob", size] if is_id(id) => Some(BatchReply::Blob { id: id.to_owned(), size: size.parse().ok()? }),
        [id, "submodule"] | [id, _, _] if is_id(id) => Some(BatchReply::Other),
        _ => None,
    }
}

fn full(prefix: &Rel, path: &Rel) -> Vec<u8> {
    path.parts().fold(prefix.clone(), |at, part| at.join(part)).as_bytes().to_vec()
}
