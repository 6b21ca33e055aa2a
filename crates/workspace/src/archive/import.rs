//! Import of an untrusted archive. The manifest lists what must follow, and each entry has to match the next item, so
//! no entry can leave the tree, come twice or hide behind a link; bounds are checked before memory or disk is used. On
//! an error the partly filled layer is worthless, and the caller that made it removes it.

use super::entries::{AcceptedKinds, EntryReader, TarEntry, refused, shown, unreadable};
use super::{FILES, FORMAT, LARGEST_MANIFEST, MANIFEST, Manifest, RawManifest};
use crate::attributes::{self, LayerAttributes, Marks};
use crate::descent::{Descent, set_mode};
use crate::dir::Dir;
use crate::item::{self, Item, ItemKind, decode_xattrs};
use crate::{remove, walk};
use api::{FileKind, PathText, Rel};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use tar::EntryType;
use terms::{ErrorKind, Fault, LimitKind};

/// Bounds on unpacking an untrusted archive.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of all files together, and so of the unpacked layer.
    pub bytes: u64,
    /// Largest compression ratio beyond `harmless` bytes; none if the caller agreed to the size.
    pub ratio: Option<u64>,
    /// Unpacked bytes below which no ratio counts as a decompression bomb.
    pub harmless: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { bytes: 16 << 30, ratio: Some(1000), harmless: 256 << 20 }
    }
}

/// Largest compression ratio of a manifest: it is held in memory before any other bound is known. Half a million files
/// that differ only in their number reach half of it.
const MANIFEST_RATIO: u64 = 256;
const HARMLESS_MANIFEST: u64 = 16 << 20;

/// Largest zstd window, as a power of two: the memory that decompression may take.
const WINDOW: u32 = 27;
const BLOCK: usize = 64 << 10;

#[derive(Debug)]
pub struct Imported {
    pub about: serde_json::Value,
    pub digest: String,
    pub entries: u64,
    pub bytes: u64,
}

/// Unpacks into a fresh layer: an empty one, or a copy of the base to which the changes are applied.
pub fn import(input: impl Read, up: &Dir, marks: Marks, bounds: &Bounds) -> Result<Imported, Fault> {
    let bytes_in = Rc::new(Cell::new(0));
    let counted = BufReader::new(CountedInput { inner: input, bytes_in: bytes_in.clone() });
    let mut unpacker = zstd::stream::read::Decoder::with_buffer(counted).map_err(|e| unreadable(&e))?.single_frame();
    unpacker.window_log_max(WINDOW).map_err(|e| unreadable(&e))?;
    let most = bounds.bytes.saturating_add(LARGEST_MANIFEST).saturating_add(bounds.bytes / 4);
    let bound = ExpansionBound {
        bytes_out: 0,
        most,
        ratio: bounds.ratio,
        harmless: bounds.harmless,
        bytes_in: bytes_in.clone(),
    };
    let mut tar = tar::Archive::new(BoundedReader { inner: unpacker, bound });
    let mut source = EntryReader::of(&mut tar, AcceptedKinds::OwnOnly)?;
    let manifest = manifest_of(&mut source, bytes_in)?;
    check(&manifest, bounds)?;
    let way = Descent::at(up).map_err(|e| walk::fault(&Rel::top(), &e))?;
    let mut writer = LayerWriter { way, marks, names: Vec::new(), dirs: Vec::new() };
    for item in &manifest.entries {
        writer.take(item, &mut source)?;
    }
    writer.climb(0)?;
    if let Some(more) = source.next()? {
        return Err(refused(&format!("{} is not in the manifest", shown(&more.name))));
    }
    end(tar.into_inner())?;
    let (entries, bytes) = (manifest.entries.len() as u64, manifest.entries.iter().map(|i| i.size).sum());
    Ok(Imported { about: manifest.about, digest: manifest.digest, entries, bytes })
}

fn check(manifest: &Manifest, bounds: &Bounds) -> Result<(), Fault> {
    if manifest.format != FORMAT {
        let message = format!("the file has format {}, and this version reads {FORMAT}", manifest.format);
        return Err(Fault::new(ErrorKind::UnsupportedHost, message).hint("use the version that wrote it"));
    }
    if Manifest::digest(&manifest.about, &manifest.entries)? != manifest.digest {
        return Err(refused("its manifest does not match its own digest"));
    }
    let bytes = manifest.entries.iter().try_fold(0u64, |sum, item| sum.checked_add(item.size));
    match bytes {
        Some(bytes) if bytes <= bounds.bytes => Ok(()),
        _ => Err(too_large(bounds.bytes)),
    }
}

/// Checks that only the padding of tar follows the last entry, and that no bytes follow the zstd frame.
fn end<R: BufRead>(mut reader: BoundedReader<zstd::stream::read::Decoder<'_, R>>) -> Result<(), Fault> {
    let mut rest = Vec::new();
    reader.by_ref().take(1 << 20).read_to_end(&mut rest).map_err(|e| unreadable(&e))?;
    if rest.len() == 1 << 20 || rest.iter().any(|b| *b != 0) {
        return Err(refused("there is data after its last entry"));
    }
    let mut packed = reader.inner.finish();
    match packed.fill_buf().map_err(|e| unreadable(&e))?.is_empty() {
        true => Ok(()),
        false => Err(refused("there is data after its end")),
    }
}

fn manifest_of<R: Read>(source: &mut EntryReader<'_, R>, bytes_in: Rc<Cell<u64>>) -> Result<Manifest, Fault> {
    let first = source.next()?.filter(|n| n.name == MANIFEST && n.kind == EntryType::Regular);
    let first = first.ok_or_else(|| refused("it does not begin with manifest.json"))?;
    if first.size > LARGEST_MANIFEST {
        return Err(refused("its manifest is too large"));
    }
    let broken = |e: serde_json::Error| match e.io_error_kind() {
        Some(kind) if kind != io::ErrorKind::FileTooLarge => unreadable(&e.into()),
        _ => refused(&format!("its manifest cannot be read: {e}")),
    };
    let (ratio, harmless) = (Some(MANIFEST_RATIO), HARMLESS_MANIFEST);
    let bound = ExpansionBound { bytes_out: 0, most: LARGEST_MANIFEST, ratio, harmless, bytes_in };
    let text = BufReader::new(BoundedReader { inner: first.entry, bound });
    serde_json::from_reader::<_, RawManifest>(text).and_then(RawManifest::read).map_err(broken)
}

struct LayerWriter {
    way: Descent,
    /// Determines if a deletion becomes a whiteout or removes the file.
    marks: Marks,
    /// Last name added to each directory of the current path: names must ascend, so none comes twice.
    names: Vec<Vec<u8>>,
    /// Directories of the current path, with the mode that each gets once it is full.
    dirs: Vec<(Vec<u8>, u32)>,
}

impl LayerWriter {
    fn take<R: Read>(&mut self, item: &Item, source: &mut EntryReader<'_, R>) -> Result<(), Fault> {
        let depth = item.depth as usize;
        if depth > self.dirs.len() {
            return Err(refused("a change lies below a path that is not a directory"));
        }
        self.climb(depth)?;
        let name = item.name.bytes().filter(|n| is_plain(n));
        let name = name.ok_or_else(|| refused("the manifest has an invalid name"))?;
        let path = walk::path_of(self.dirs.iter().map(|(n, _)| &n[..]).chain([&name[..]]));
        self.names.truncate(depth + 1);
        match self.names.get_mut(depth) {
            Some(last) if *last >= name => return Err(refused(&format!("{path} appears twice or out of order"))),
            Some(last) => last.clone_from(&name),
            None => self.names.push(name.clone()),
        }
        let next = match item.kind {
            ItemKind::File | ItemKind::Dir | ItemKind::Symlink => Some(self.expect(item, &name, &path, source)?),
            _ => None,
        };
        self.make(item, &name, &path, next)
    }

    /// Reads the next entry, which must match the item.
    fn expect<'a, R: Read>(
        &self,
        item: &Item,
        name: &[u8],
        path: &Rel,
        source: &mut EntryReader<'a, R>,
    ) -> Result<TarEntry<'a, R>, Fault> {
        let next = source.next()?.ok_or_else(|| refused(&format!("it ends before the entry {path}")))?;
        let mut full = FILES.to_vec();
        for (part, _) in &self.dirs {
            full.extend_from_slice(part);
            full.push(b'/');
        }
        full.extend_from_slice(name);
        let kind = match item.kind {
            ItemKind::Dir => {
                full.push(b'/');
                EntryType::Directory
            }
            ItemKind::Symlink => EntryType::Symlink,
            _ => EntryType::Regular,
        };
        if next.name != full {
            return Err(refused(&format!("entry {} appears where the manifest has {path}", shown(&next.name))));
        }
        let target = item.target.as_ref().and_then(PathText::bytes).unwrap_or_default();
        if next.kind != kind || next.size != item.size || next.link != target {
            return Err(refused(&format!("{path} does not match the manifest")));
        }
        Ok(next)
    }

    fn make<R: Read>(
        &mut self,
        item: &Item,
        name: &[u8],
        path: &Rel,
        next: Option<TarEntry<'_, R>>,
    ) -> Result<(), Fault> {
        let attributes = decode_xattrs(&item.xattrs)
            .ok_or_else(|| refused(&format!("{path}: attributes that are not user attributes")))?;
        let carried = LayerAttributes { opaque: item.opaque && item.kind == ItemKind::Dir, own: attributes };
        let here = self.way.here();
        let fail = |e: io::Error| walk::fault(path, &e);
        let raw = |e: rustix::io::Errno| walk::fault(path, &e.into());
        let is_copy = self.marks == Marks::Plain;
        let stays = is_copy && item.kind == ItemKind::Dir && !item.opaque && is_dir(here, name).map_err(fail)?;
        if is_copy && !stays {
            remove::tree(here, name).map_err(fail)?;
        }
        match (item.kind, next) {
            (ItemKind::Gone, _) if is_copy => Ok(()),
            (ItemKind::Dir, _) => {
                match stays {
                    true => set_mode(here, name, 0o700).map_err(fail)?,
                    false => rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o700)).map_err(raw)?,
                }
                self.way.enter(name).map_err(fail)?;
                if stays {
                    attributes::clear(self.way.here()).map_err(fail)?;
                }
                attributes::write(self.way.here(), &carried, self.marks).map_err(fail)?;
                self.dirs.push((name.to_vec(), item.mode));
                Ok(())
            }
            (ItemKind::File, Some(next)) => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                let made = here.open_at(&Rel::top().join(name), flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
                fill(&File::from(made), item, (&carried, self.marks), next.entry, path)
            }
            (ItemKind::Symlink, Some(next)) => {
                if next.link.is_empty() {
                    return Err(refused(&format!("{path} has no valid target")));
                }
                rustix::fs::symlinkat(&next.link[..], here, name).map_err(raw)?;
                rustix::fs::utimensat(here, name, &times(item), AtFlags::SYMLINK_NOFOLLOW).map_err(raw)
            }
            (kind, _) => {
                let node = match kind {
                    ItemKind::Fifo => FileType::Fifo,
                    ItemKind::Socket => FileType::Socket,
                    _ => FileType::CharacterDevice,
                };
                rustix::fs::mknodat(here, name, node, Mode::from_raw_mode(item.mode & 0o777), 0).map_err(raw)
            }
        }
    }

    /// Returns to `depth` and sets the mode of the directories that are full.
    fn climb(&mut self, depth: usize) -> Result<(), Fault> {
        while self.dirs.len() > depth {
            let path = walk::path_of(self.dirs.iter().map(|(n, _)| &n[..]));
            let Some((_, mode)) = self.dirs.pop() else { break };
            let full = self.way.here().try_clone().map_err(|e| walk::fault(&path, &e))?;
            self.way.leave().map_err(|e| walk::fault(&path, &e))?;
            rustix::fs::fchmod(&full, Mode::from_raw_mode(mode & 0o7777)).map_err(|e| walk::fault(&path, &e.into()))?;
        }
        Ok(())
    }
}

fn is_dir(dir: &Dir, name: &[u8]) -> io::Result<bool> {
    Ok(dir.meta_of(name)?.is_some_and(|meta| meta.kind == FileKind::Dir))
}

fn is_plain(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

/// Writes the bytes of one file; blocks of zeros become holes. Then verifies size and digest.
fn fill(
    file: &File,
    item: &Item,
    (carried, marks): (&LayerAttributes, Marks),
    mut data: impl Read,
    path: &Rel,
) -> Result<(), Fault> {
    let fail = |e: io::Error| walk::fault(path, &e);
    let mut buffer = vec![0u8; BLOCK];
    let mut at = 0u64;
    loop {
        let count = match data.read(&mut buffer) {
            Ok(count) => count,
            Err(e) => return Err(unreadable(&e)),
        };
        if count == 0 {
            break;
        }
        if buffer[..count].iter().any(|b| *b != 0) {
            file.write_all_at(&buffer[..count], at).map_err(fail)?;
        }
        at += count as u64;
    }
    file.set_len(at).map_err(fail)?;
    let (size, digest) = item::digest(file).map_err(fail)?;
    if size != item.size || Some(digest) != item.digest {
        return Err(refused(&format!("{path} does not have the digest in the manifest")));
    }
    attributes::write(file, carried, marks).map_err(fail)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(item.mode & 0o7777)).map_err(|e| fail(e.into()))?;
    rustix::fs::futimens(file, &times(item)).map_err(|e| fail(e.into()))
}

fn times(item: &Item) -> Timestamps {
    let (seconds, nanoseconds) = item.mtime.unwrap_or((0, 0));
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds % 1_000_000_000) },
    }
}

/// Counts the compressed bytes that were read.
struct CountedInput<R> {
    inner: R,
    bytes_in: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountedInput<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes_in.set(self.bytes_in.get() + count as u64);
        Ok(count)
    }
}

/// Reader that fails before more than the bound is unpacked.
struct BoundedReader<R> {
    inner: R,
    bound: ExpansionBound,
}

/// Bytes unpacked so far, and the bounds on them.
struct ExpansionBound {
    bytes_out: u64,
    most: u64,
    ratio: Option<u64>,
    harmless: u64,
    bytes_in: Rc<Cell<u64>>,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let ExpansionBound { bytes_out, most, ratio, harmless, bytes_in } = &mut self.bound;
        *bytes_out += count as u64;
        let exceeds_ratio = ratio.is_some_and(|r| *bytes_out / r > bytes_in.get());
        if *bytes_out > *most || (*bytes_out > *harmless && exceeds_ratio) {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "its compression ratio is too high"));
        }
        Ok(count)
    }
}

fn too_large(most: u64) -> Fault {
    let message = format!("the file was refused: it unpacks to more than {most} bytes");
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(LimitKind::DiskMb);
    fault.hint("nothing of it was kept; raise the limit with --max-size")
}
