//! Manifest of a frozen layer: every file in it, and one digest over all. Written when the layer is frozen, compared
//! when a sandbox is built upon it. The manifest itself is not trusted: the digest that counts is in the records.

use crate::attributes::Marks;
use crate::dir::Dir;
use crate::item::{Item, ItemKind};
use crate::layer::{HomePart, Layer};
use crate::walk::{self, At, Visitor};
use api::Rel;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use terms::hex;
use terms::{ErrorKind, Fault};

/// Digest and totals of a frozen layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub digest: String,
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// Bytes of regular files.
    pub bytes: u64,
}

const NAME: &[u8] = b"manifest";
const DRAFT: &[u8] = b"manifest.new";
/// Longest line that is read back: one file with all its attributes.
const LONGEST_LINE: u64 = 64 << 20;

/// Reads the whole layer and writes its manifest beside it.
pub fn seal(layer: &Layer, marks: Marks) -> Result<Sealed, Fault> {
    let fail = |e: io::Error| walk::fault(&Rel::top().join(layer.id.as_bytes()), &e);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let draft = layer.dir.open_at(&Rel::top().join(DRAFT), flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
    let writer = ManifestWriter::new(BufWriter::new(File::from(draft)), &layer.up).map_err(fail)?;
    let (mut out, sealed) = write_layer(layer, marks, writer)?;
    out.flush().map_err(fail)?;
    rustix::fs::renameat(&layer.dir, DRAFT, &layer.dir, NAME).map_err(|e| fail(e.into()))?;
    Ok(sealed)
}

/// Reads the whole layer again. If it differs from the sealed state, the fault names the first such path.
pub fn verify(layer: &Layer, digest: &str, marks: Marks) -> Result<Sealed, Fault> {
    let fail = |e: io::Error| walk::fault(&Rel::top().join(layer.id.as_bytes()), &e);
    let writer = ManifestWriter::new(io::sink(), &layer.up).map_err(fail)?;
    let (_, sealed) = write_layer(layer, marks, writer)?;
    if sealed.digest == digest {
        return Ok(sealed);
    }
    let what = first_difference(layer, marks).unwrap_or_else(|| "its manifest was changed, too".to_owned());
    let message = format!("layer {} changed after it was frozen: {what}", layer.id);
    let hint =
        "nothing was created from it; use another snapshot, and check the disk and the access to the state directory";
    Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(&layer.id))
}

/// Writes all entries of a layer: those of the workspace and, each behind a line of its own, those of the home's parts.
fn write_layer<W: Write>(layer: &Layer, marks: Marks, writer: ManifestWriter<W>) -> Result<(W, Sealed), Fault> {
    let fail = |e: io::Error| walk::fault(&Rel::top().join(layer.id.as_bytes()), &e);
    let mut writer = walk::walk(&[&layer.up], marks, writer)?;
    for part in HomePart::ALL {
        if let Some(home) = layer.filled(part).map_err(fail)? {
            writer.line(home_line(&home, part).map_err(fail)?).map_err(fail)?;
            writer = walk::walk(&[&home], marks, writer)?;
        }
    }
    Ok(writer.end())
}

/// Returns the line before the entries of a part of the home.
fn home_line(home: &Dir, part: HomePart) -> io::Result<Vec<u8>> {
    let top = home.meta(&Rel::top())?.ok_or(io::ErrorKind::NotFound)?;
    Ok(format!("{{\"{}\":1,\"mode\":{}}}", part.name(), top.mode).into_bytes())
}

/// Digest over the digests of a stack's layers, from the bottom up.
pub fn whole<'a>(layers: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"cofferdam layers 1");
    for digest in layers {
        hasher.update((digest.len() as u64).to_le_bytes());
        hasher.update(digest.as_bytes());
    }
    hex::encode(hasher.finalize())
}

struct ManifestWriter<W> {
    out: W,
    hasher: Sha256,
    sealed: Sealed,
}

impl<W: Write> ManifestWriter<W> {
    fn new(out: W, up: &Dir) -> io::Result<ManifestWriter<W>> {
        let top = up.meta(&Rel::top())?.ok_or(io::ErrorKind::NotFound)?;
        let sealed = Sealed { digest: String::new(), entries: 0, bytes: 0 };
        let mut writer = ManifestWriter { out, hasher: Sha256::new(), sealed };
        writer.line(format!("{{\"manifest\":1,\"mode\":{}}}", top.mode).into_bytes())?;
        Ok(writer)
    }

    fn line(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        self.hasher.update(&line);
        self.out.write_all(&line)
    }

    fn write_item(&mut self, at: &At<'_>) -> io::Result<()> {
        let item = Item::of(at)?;
        self.sealed.entries += 1;
        self.sealed.bytes += item.size;
        self.line(serde_json::to_vec(&item)?)
    }

    fn end(mut self) -> (W, Sealed) {
        self.sealed.digest = hex::encode(self.hasher.finalize());
        (self.out, self.sealed)
    }
}

impl<W: Write> Visitor for ManifestWriter<W> {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        self.write_item(at)
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.write_item(at)
    }

    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// First path at which the layer differs from the manifest beside it, with a description.
fn first_difference(layer: &Layer, marks: Marks) -> Option<String> {
    let file = layer.dir.file(&Rel::top().join(NAME)).ok()?;
    let mut finder = Finder { lines: BufReader::new(file), parts: Vec::new(), found: None };
    let top = finder.next_line()?;
    let now = layer.up.meta(&Rel::top()).ok()??.mode;
    if top != format!("{{\"manifest\":1,\"mode\":{now}}}\n").as_bytes() {
        return Some("its top directory has other permission bits".to_owned());
    }
    if walk::walk(&[&layer.up], marks, &mut finder).is_err() {
        return finder.found;
    }
    let mut place = "";
    for part in HomePart::ALL {
        let Some(home) = layer.filled(part).ok()? else { continue };
        let rest = finder.next_line();
        if let Some(missing) = rest.as_deref().and_then(|line| serde_json::from_slice(line).ok()) {
            return Some(format!("{place}{} is missing", finder.path(&missing)));
        }
        if Some(home_line(&home, part).ok()?.as_slice()) != rest.as_deref().map(|line| line.trim_ascii_end()) {
            return Some("the home in it was changed".to_owned());
        }
        place = "home: ";
        finder.parts.clear();
        if walk::walk(&[&home], marks, &mut finder).is_err() {
            return finder.found.map(|found| format!("{place}{found}"));
        }
    }
    let rest = finder.next_line()?;
    match serde_json::from_slice(&rest) {
        Ok(missing) => Some(format!("{place}{} is missing", finder.path(&missing))),
        Err(_) => Some("the home in it was changed".to_owned()),
    }
}

struct Finder {
    lines: BufReader<File>,
    parts: Vec<Vec<u8>>,
    found: Option<String>,
}

impl Finder {
    fn next_line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).ok()?;
        (!line.is_empty()).then_some(line)
    }

    fn next_item(&mut self) -> Option<Item> {
        serde_json::from_slice(&self.next_line()?).ok()
    }

    fn path(&mut self, item: &Item) -> Rel {
        self.parts.truncate(item.depth as usize);
        self.parts.push(item.name.bytes().unwrap_or_default());
        let path = walk::path_of(self.parts.iter().map(|p| &p[..]));
        if item.kind != ItemKind::Dir {
            self.parts.pop();
        }
        path
    }

    fn compare(&mut self, at: &At<'_>) -> io::Result<()> {
        let now = Item::of(at)?;
        let then = self.next_item();
        if then.as_ref() == Some(&now) {
            self.path(&now);
            return Ok(());
        }
        let found = match then {
            Some(then) if then.depth == now.depth && then.name == now.name => {
                format!("{} {}", self.path(&now), now.differs(&then))
            }
            // Names are sorted, so the one that sorts first is missing on the other side.
            Some(then)
                if then.depth > now.depth || (then.depth == now.depth && then.name_bytes() < now.name_bytes()) =>
            {
                format!("{} is missing", self.path(&then))
            }
            _ => format!("{} was not in it", self.path(&now)),
        };
        self.found = Some(found);
        Err(io::ErrorKind::Interrupted.into())
    }
}

impl Visitor for &mut Finder {
    fn enter(&mut self, at: &At<'_>) -> io::Result<()> {
        self.compare(at)
    }

    fn leaf(&mut self, at: &At<'_>) -> io::Result<()> {
        self.compare(at)
    }

    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "manifest_test.rs"]
mod tests;
