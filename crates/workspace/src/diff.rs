//! Changes of a workspace, ready for review: with classes, flags and hunks, the withheld paths, and a digest over the
//! contents. Made from the layers and the base alone; writes no file and runs no program.

use crate::alias::Aliases;
use crate::anchor::Anchors;
use crate::class::{self, Bytes};
use crate::dir::is_absent;
use crate::entry::{self, Budget};
use crate::exclude::{self, Exclude};
use crate::flags;
use crate::layer::Stack;
use crate::remove::{self, Removed};
use crate::rename;
use crate::scan::{self, Pair, broken};
use crate::text::{self, as_text};
use crate::unknown::BaseDirs;
use crate::view::{dir_below, file_below};
use api::{Change, ChangeBody, ChangeKind, ChangeSide, Diff, FileDiff, FileKind, Rel, Withheld};
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use terms::Fault;

pub use crate::scan::Bounds;
pub use crate::text::with_hunks;

#[derive(Clone, Debug)]
pub struct Options {
    pub exclude: Exclude,
    /// Largest file that is compared line by line.
    pub largest_text: u64,
    /// Largest number of hunks in one file; one with more is shown whole.
    pub most_hunks: usize,
    /// Largest number of lines in all hunks together; files beyond are shown whole.
    pub most_lines: usize,
    pub bounds: Bounds,
    pub budget: Budget,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            exclude: Exclude::Artefacts,
            largest_text: 1 << 20,
            most_hunks: 10_000,
            most_lines: 2_000_000,
            bounds: Bounds { entries: 1_000_000, path_bytes: 256 << 20 },
            budget: Budget { largest_file: 4 << 30, bytes: 16 << 30, attributes: 64 << 20 },
        }
    }
}

/// Number of changes that wait for review, from metadata alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    /// Changes among these whose file was modified or touched in the base since, judged by ctime.
    pub drifted: u64,
    /// Paths that are kept out of review.
    pub withheld: u64,
    /// Files at and below these paths.
    pub withheld_files: u64,
}

/// Bytes that a count may read from files that look unchanged; files beyond it count as changed.
const MOST_COMPARED: u64 = 64 << 20;

/// Counts by name, mode and size: a rename is two changes, and a file rewritten with the same bytes is one, unless its
/// mtime equals that of the base. Then its bytes are compared, because any process can set an mtime.
pub fn count(stack: &Stack, anchors: &Anchors, bounds: Bounds) -> Result<ChangeCounts, Fault> {
    let usual = Options::default();
    let mut nothing = Budget { largest_file: 0, bytes: 0, ..usual.budget };
    let scanned = scan::scan(stack, anchors, usual.exclude, bounds, &mut nothing)?;
    let withheld_files = scanned.withheld.iter().map(|withheld| withheld.files).sum();
    let mut counted =
        ChangeCounts { withheld: scanned.withheld.len() as u64, withheld_files, ..ChangeCounts::default() };
    let mut left = MOST_COMPARED;
    for pair in &scanned.pairs {
        if is_untouched(stack, pair, &mut left).unwrap_or(false) {
            continue;
        }
        match (&pair.before, &pair.after) {
            (None, _) => counted.added += 1,
            (_, None) => counted.deleted += 1,
            _ => counted.modified += 1,
        }
        counted.drifted += u64::from(pair.drifted);
    }
    Ok(counted)
}

/// True if a file in a layer equals that of the base.
fn is_untouched(stack: &Stack, pair: &Pair, left: &mut u64) -> io::Result<bool> {
    let is_file = |entry: &ChangeSide| entry.kind == FileKind::File && entry.digest.is_none();
    let (Some(before), Some(after)) = (&pair.before, &pair.after) else { return Ok(false) };
    if !is_file(before) || before != after || pair.trouble != Some(entry::TOO_LARGE) {
        return Ok(false);
    }
    let now = stack.meta(&pair.path)?.map(|found| found.meta.mtime);
    if now != stack.base.meta(&pair.path)?.map(|meta| meta.mtime) {
        return Ok(false);
    }
    let Some(rest) = left.checked_sub(after.size) else { return Ok(false) };
    *left = rest;
    entry::same_bytes(&stack.file(&pair.path)?, &file_below(&stack.base, &pair.path)?)
}

/// Compares a stack with its base. A guest may be writing meanwhile: each file is shown as it was when it was read.
pub fn diff(stack: &Stack, anchors: &Anchors, options: &Options) -> Result<Diff, Fault> {
    let mut budget = options.budget;
    let scanned = scan::scan(stack, anchors, options.exclude, options.bounds, &mut budget)?;
    let reader = ContentReader { stack, largest: options.largest_text };
    let pairs = rename::detect(scanned.pairs, |pair| reader.one_text(pair));
    let aliases = if pairs.is_empty() { Aliases::default() } else { Aliases::of(stack) };
    let (base, files) = (BaseDirs::of(&stack.base), Vec::with_capacity(pairs.len()));
    let mut builder = DiffBuilder { options, reader, aliases, base, lines: 0, whole: 0, files };
    for pair in pairs {
        let path = pair.path.clone();
        builder.add(pair).map_err(|e| broken(&path, &e))?;
    }
    Ok(builder.finish(exclude::gather(scanned.withheld)))
}

/// Removes from the topmost layer the paths that a diff withholds. Lower layers and git directories stay. The caller
/// holds the lock of the layer, so no guest writes meanwhile.
pub fn prune(stack: &Stack, options: &Options) -> Result<Removed, Fault> {
    let mut budget = options.budget;
    let scanned = scan::scan(stack, &Anchors::default(), Exclude::Artefacts, options.bounds, &mut budget)?;
    let mut removed = Removed::default();
    let Some(top) = stack.layers.last() else { return Ok(removed) };
    for path in &scanned.prunable {
        let Some((parent, name)) = path.split() else { continue };
        let taken = match dir_below(&top.up, &parent) {
            Ok(dir) => remove::tree(&dir, name).map_err(|e| broken(path, &e))?,
            Err(e) if is_absent(&e) => continue,
            Err(e) => return Err(broken(path, &e)),
        };
        removed.files += taken.files;
        removed.dirs += taken.dirs;
        removed.bytes += taken.bytes;
    }
    Ok(removed)
}

struct ContentReader<'a> {
    stack: &'a Stack,
    largest: u64,
}

/// Content of one side.
enum Content {
    /// No regular file.
    Absent,
    Known(Vec<u8>),
    /// Too large, or unreadable.
    Unknown,
}

impl Content {
    fn known(&self) -> Option<&[u8]> {
        match self {
            Content::Known(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn is_unknown(&self) -> bool {
        matches!(self, Content::Unknown)
    }
}

impl ContentReader<'_> {
    fn before(&self, pair: &mut Pair) -> io::Result<Content> {
        let at = pair.from.as_ref().unwrap_or(&pair.path);
        self.content(pair.before.as_mut(), || file_below(&self.stack.base, at))
    }

    fn after(&self, pair: &mut Pair) -> io::Result<Content> {
        let layer = pair.layer.and_then(|number| self.stack.layers.get(number));
        let open = || file_below(&layer.ok_or(io::ErrorKind::NotFound)?.up, &pair.path);
        self.content(pair.after.as_mut(), open)
    }

    /// Reads a side that is small enough and updates its entry from the bytes that were read: the digest covers
    /// exactly what is shown.
    fn content(
        &self,
        entry: Option<&mut ChangeSide>,
        open: impl FnOnce() -> io::Result<std::fs::File>,
    ) -> io::Result<Content> {
        let Some(entry) = entry.filter(|entry| entry.kind == FileKind::File) else { return Ok(Content::Absent) };
        if entry.digest.is_none() || entry.size > self.largest {
            return Ok(Content::Unknown);
        }
        let mut bytes = Vec::with_capacity(entry.size as usize);
        match open().and_then(|file| file.take(self.largest + 1).read_to_end(&mut bytes)) {
            // The file was removed or grew meanwhile: it is shown as the scan found it.
            Err(_) => return Ok(Content::Unknown),
            Ok(_) if bytes.len() as u64 > self.largest => return Ok(Content::Unknown),
            Ok(_) => {}
        }
        (entry.size, entry.digest) = (bytes.len() as u64, Some(entry::digest(&bytes)));
        Ok(Content::Known(bytes))
    }

    /// Reads the text of an added or deleted file, for rename detection.
    fn one_text(&self, pair: &Pair) -> Option<Vec<u8>> {
        let (entry, file) = match (&pair.before, &pair.after) {
            (Some(entry), None) => (entry, file_below(&self.stack.base, &pair.path)),
            (None, Some(entry)) => (entry, file_below(&self.stack.layers.get(pair.layer?)?.up, &pair.path)),
            _ => return None,
        };
        if entry.size > self.largest {
            return None;
        }
        let mut bytes = Vec::new();
        file.ok()?.take(self.largest).read_to_end(&mut bytes).ok()?;
        as_text(&bytes).is_some().then_some(bytes)
    }
}

struct DiffBuilder<'a> {
    options: &'a Options,
    reader: ContentReader<'a>,
    aliases: Aliases,
    base: BaseDirs<'a>,
    /// Lines in hunks so far.
    lines: usize,
    /// Texts that were not compared because the total of lines was reached.
    whole: usize,
    files: Vec<FileDiff>,
}

impl DiffBuilder<'_> {
    fn add(&mut self, mut pair: Pair) -> io::Result<()> {
        let (before, after) = (self.reader.before(&mut pair)?, self.reader.after(&mut pair)?);
        if pair.before == pair.after && pair.from.is_none() && pair.trouble.is_none() {
            return Ok(());
        }
        let bytes = match before.is_unknown() || after.is_unknown() {
            true => Bytes::Unknown,
            false => Bytes::Known { before: before.known(), after: after.known() },
        };
        let class = class::of(&pair, bytes, &self.aliases, &self.base);
        let body = self.body(&pair, &before, &after);
        let flags = flags::of(&pair, &body, bytes, &class);
        let change = Change {
            kind: kind_of(&pair),
            class,
            before: pair.before,
            after: pair.after,
            flags,
            drifted: pair.drifted,
            path: pair.path,
        };
        self.files.push(FileDiff { change, body });
        Ok(())
    }

    fn body(&mut self, pair: &Pair, before: &Content, after: &Content) -> ChangeBody {
        let texts = match (before, after) {
            (Content::Unknown, _) | (_, Content::Unknown) => return ChangeBody::Whole,
            (before, after) if before.known().unwrap_or_default() == after.known().unwrap_or_default() => {
                return ChangeBody::None;
            }
            (before, after) => {
                (as_text(before.known().unwrap_or_default()), as_text(after.known().unwrap_or_default()))
            }
        };
        let (Some(before), Some(after)) = texts else { return ChangeBody::Whole };
        if text::is_unwieldy(before) || text::is_unwieldy(after) {
            return ChangeBody::Whole;
        }
        if self.lines > self.options.most_lines {
            self.whole += 1;
            return ChangeBody::Whole;
        }
        let hunks = text::hunks(&pair.path, before, after);
        let lines = text::lines_in(&hunks);
        if hunks.len() > self.options.most_hunks || self.lines + lines > self.options.most_lines {
            self.whole += usize::from(self.lines + lines > self.options.most_lines);
            return ChangeBody::Whole;
        }
        self.lines += lines;
        ChangeBody::Text(hunks)
    }

    fn finish(mut self, withheld: Vec<Withheld>) -> Diff {
        let hunks = self.files.iter_mut().filter_map(|file| match &mut file.body {
            ChangeBody::Text(hunks) => Some(hunks),
            ChangeBody::None | ChangeBody::Whole => None,
        });
        text::shorten(hunks.flatten());
        let mut notes = Vec::new();
        if self.whole > 0 {
            notes.push(format!("{} files are not compared line by line: there is too much text in all", self.whole));
        }
        Diff { digest: digest_of(&self.files), files: self.files, withheld, notes }
    }
}

fn kind_of(pair: &Pair) -> ChangeKind {
    if let Some(from) = &pair.from {
        return ChangeKind::Renamed { from: from.clone() };
    }
    let (Some(before), Some(after)) = (&pair.before, &pair.after) else {
        return if pair.before.is_none() { ChangeKind::Added } else { ChangeKind::Deleted };
    };
    let same_bytes = (&before.digest, &before.target, before.size) == (&after.digest, &after.target, after.size);
    match (same_bytes, before.mode == after.mode, before.xattrs == after.xattrs) {
        _ if before.kind != after.kind => ChangeKind::Type,
        (true, false, true) => ChangeKind::Mode,
        (true, true, false) => ChangeKind::Xattr,
        _ => ChangeKind::Modified,
    }
}

/// Digest over all changes: paths, kinds and both sides of each, in path order. Presentation (hunks, flags) is not
/// included.
fn digest_of(files: &[FileDiff]) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    add(b"cofferdam diff 1");
    for FileDiff { change, .. } in files {
        add(change.path.as_bytes());
        add(change.kind.name().as_bytes());
        add(change.kind.from().map_or(&b""[..], Rel::as_bytes));
        for side in [&change.before, &change.after] {
            let Some(entry) = side else {
                add(b"absent");
                continue;
            };
            add(entry.kind.name().as_bytes());
            add(&entry.mode.to_be_bytes());
            add(&entry.size.to_be_bytes());
            add(entry.digest.as_deref().unwrap_or("unread").as_bytes());
            add(&entry.target.as_ref().and_then(|target| target.bytes()).unwrap_or_default());
            add(&(entry.xattrs.len() as u64).to_be_bytes());
            entry.xattrs.iter().flat_map(|(name, value)| [name, value]).for_each(|part| add(part.as_bytes()));
        }
    }
    terms::hex::encode(hash.finalize())
}
