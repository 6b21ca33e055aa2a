//! Export: one walk lists the changes, a second one writes them. A file that changes in between is an error, never a
//! wrong archive.

use super::{ExportSource, FILES, FORMAT, LONGEST_PATH, MANIFEST, MOST_ENTRIES, Manifest, too_many};
use crate::item::{self, Item, ItemKind};
use crate::walk::{self, At, Visitor, open_file};
use api::{PathText, Rel};
use serde::Serialize;
use std::io::{self, Read, Write};
use std::iter::Peekable;
use tar::{EntryType, Header};
use terms::{ErrorKind, Fault};

/// Compression level; fixed, so that the same workspace makes the same bytes.
const LEVEL: i32 = 3;
/// Name of the GNU entry that precedes a header and holds a name too long for it.
const LONG: &[u8] = b"././@LongLink";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

/// Writes the changes of a workspace as an archive.
pub fn export(
    source: &ExportSource<'_>,
    about: serde_json::Value,
    may: &dyn Fn(&Rel) -> Result<(), Fault>,
    out: impl Write,
) -> Result<Exported, Fault> {
    let items = source.items()?;
    check_paths(&items, may)?;
    if items.len() > MOST_ENTRIES {
        return Err(too_many());
    }
    let digest = Manifest::digest(&about, &items)?;
    let manifest = Manifest { format: FORMAT, about, digest: digest.clone(), entries: items };
    let told = serde_json::to_vec(&manifest).map_err(|e| Fault::internal(e.to_string()))?;
    let Manifest { entries: items, .. } = manifest;
    let (entries, bytes) = (items.len() as u64, items.iter().map(|i| i.size).sum());
    let mut packed = zstd::stream::write::Encoder::new(out, LEVEL).map_err(|e| unwritten(&e))?;
    packed.include_checksum(true).map_err(|e| unwritten(&e))?;
    let mut tar = tar::Builder::new(packed);
    put(
        &mut tar,
        MANIFEST,
        EntryType::Regular,
        &EntryFacts { mode: 0o644, size: told.len() as u64, mtime: 0 },
        &told[..],
    )
    .map_err(|e| unwritten(&e))?;
    if !source.layers.is_empty() {
        let items = items.iter().filter(|item| item.kind != ItemKind::Gone).peekable();
        let writer = ArchiveWriter { tar, items, path: FILES.to_vec(), cuts: Vec::new() };
        let mut writer = walk::walk(&source.layers, source.marks, writer)?;
        if writer.items.peek().is_some() {
            return Err(walk::fault(&Rel::top(), &changed()));
        }
        tar = writer.tar;
    }
    let finished = tar.into_inner().and_then(zstd::stream::write::Encoder::finish).and_then(|mut out| out.flush());
    finished.map_err(|e| unwritten(&e))?;
    Ok(Exported { digest, entries, bytes })
}

/// Asks `may` about the path of each file.
fn check_paths(items: &[Item], may: &dyn Fn(&Rel) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut above: Vec<Rel> = Vec::new();
    for item in items {
        above.truncate(item.depth as usize);
        let path = above.last().cloned().unwrap_or_else(Rel::top).join(&item.name_bytes());
        if item.kind == ItemKind::File {
            may(&path)?;
        }
        above.push(path);
    }
    Ok(())
}

fn unwritten(error: &io::Error) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("the file could not be written: {error}"))
}

struct ArchiveWriter<I: Iterator, W: Write> {
    tar: tar::Builder<W>,
    /// Items still to write, without deletions, which have no entry.
    items: Peekable<I>,
    path: Vec<u8>,
    /// Path length before each directory that the walk is in; None for one that is not listed, so that its contents
    /// are not either.
    cuts: Vec<Option<usize>>,
}

impl<'a, I: Iterator<Item = &'a Item>, W: Write> ArchiveWriter<I, W> {
    /// Returns the item of the visited entry if it is listed; unchanged entries are not.
    fn next(&mut self, at: &At<'_>) -> Option<&'a Item> {
        if self.cuts.last().is_some_and(Option::is_none) {
            return None;
        }
        self.items.next_if(|item| item.depth as usize == at.depth && item.name_bytes() == at.name)
    }

    fn full(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let path = [&self.path[..], name].concat();
        match path.len() - FILES.len() > LONGEST_PATH {
            true => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a path beyond {LONGEST_PATH} bytes"))),
            false => Ok(path),
        }
    }
}

pub(super) const CHANGED: &str = "changed while it was exported";

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, CHANGED)
}

impl<'a, I: Iterator<Item = &'a Item>, W: Write> Visitor for ArchiveWriter<I, W> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        let Some(item) = self.next(at) else {
            self.cuts.push(None);
            return Ok(());
        };
        let path = [&self.full(at.name)?[..], b"/"].concat();
        put(
            &mut self.tar,
            &path,
            EntryType::Directory,
            &EntryFacts { mode: item.mode, size: 0, mtime: 0 },
            io::empty(),
        )?;
        self.cuts.push(Some(self.path.len()));
        self.path = path;
        Ok(())
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        let Some(item) = self.next(at) else { return Ok(()) };
        let path = self.full(at.name)?;
        let mtime = item.mtime.map_or(0, |(seconds, _)| u64::try_from(seconds).unwrap_or(0));
        let facts = EntryFacts { mode: item.mode, size: item.size, mtime };
        match item.kind {
            ItemKind::File => {
                let file = open_file(at)?;
                put(&mut self.tar, &path, EntryType::Regular, &facts, (&file).take(item.size))?;
                match item::digest(&file)? == (item.size, item.digest.clone().unwrap_or_default()) {
                    true => Ok(()),
                    false => Err(changed()),
                }
            }
            ItemKind::Symlink => {
                let target = item.target.as_ref().and_then(PathText::bytes).unwrap_or_default();
                put_link(&mut self.tar, &path, &target, &facts)
            }
            _ => Ok(()),
        }
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some(Some(cut)) = self.cuts.pop() else { return Ok(()) };
        self.path.truncate(cut);
        // Items of a directory precede the end of the walk through it; one that remains has disappeared.
        match self.items.peek().is_some_and(|item| item.depth as usize > self.cuts.len()) {
            true => Err(changed()),
            false => Ok(()),
        }
    }
}

pub(super) struct EntryFacts {
    pub mode: u32,
    pub size: u64,
    pub mtime: u64,
}

fn header(name: &[u8], kind: EntryType, facts: &EntryFacts) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(facts.mode);
    header.set_size(facts.size);
    header.set_mtime(facts.mtime);
    header.set_uid(0);
    header.set_gid(0);
    let field = &mut header.as_old_mut().name;
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name[..length]);
    header
}

/// Writes an entry. `data` must yield exactly `facts.size` bytes.
pub(super) fn put<W: Write>(
    tar: &mut tar::Builder<W>,
    name: &[u8],
    kind: EntryType,
    facts: &EntryFacts,
    data: impl Read,
) -> io::Result<()> {
    long(tar, name, EntryType::GNULongName)?;
    let mut header = header(name, kind, facts);
    header.set_cksum();
    let mut counted = CountedReader { inner: data, left: facts.size };
    tar.append(&header, &mut counted)?;
    match counted.left {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, CHANGED)),
    }
}

pub(super) fn put_link<W: Write>(
    tar: &mut tar::Builder<W>,
    name: &[u8],
    target: &[u8],
    facts: &EntryFacts,
) -> io::Result<()> {
    long(tar, target, EntryType::GNULongLink)?;
    long(tar, name, EntryType::GNULongName)?;
    let mut header = header(name, EntryType::Symlink, facts);
    let field = &mut header.as_old_mut().linkname;
    let length = target.len().min(field.len());
    field[..length].copy_from_slice(&target[..length]);
    header.set_cksum();
    tar.append(&header, io::empty())
}

fn long<W: Write>(tar: &mut tar::Builder<W>, text: &[u8], kind: EntryType) -> io::Result<()> {
    if text.len() < 100 {
        return Ok(());
    }
    let text = [text, b"\0"].concat();
    let mut header = header(LONG, kind, &EntryFacts { mode: 0o644, size: text.len() as u64, mtime: 0 });
    header.set_cksum();
    tar.append(&header, &text[..])
}

struct CountedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}
