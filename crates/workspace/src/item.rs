//! Description of one file of a layer in which every change shows. Layer manifests and archives consist of these.

use crate::attributes;
use crate::walk::{At, open_sized};
use api::{FileKind, PathText};
use base64::Engine;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use terms::hex;

/// Entry of a layer, in walk order: the contents of a directory follow it, one level deeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    pub depth: u32,
    pub name: PathText,
    pub kind: ItemKind,
    pub mode: u32,
    #[serde(skip_serializing_if = "is_zero", default)]
    pub size: u64,
    /// SHA-256 of a regular file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<PathText>,
    /// Extended attributes; values in base64.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
    /// Opaque directory: hides its counterpart in the base.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub opaque: bool,
    /// Only set in archives.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtime: Option<(i64, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    /// Whiteout: a deleted name of the base.
    Gone,
}

fn is_zero(size: &u64) -> bool {
    *size == 0
}

/// Size above which a file is hashed by its non-zero blocks, so that holes cost no time.
const PLAIN: u64 = 1 << 30;
const BLOCK: usize = 64 << 10;

impl Item {
    /// Describes an entry; reads the whole of a regular file.
    pub fn of(at: &At<'_>) -> io::Result<Item> {
        let kind = match at.meta.kind {
            FileKind::File => ItemKind::File,
            FileKind::Dir => ItemKind::Dir,
            FileKind::Symlink => ItemKind::Symlink,
            FileKind::Fifo => ItemKind::Fifo,
            FileKind::Socket => ItemKind::Socket,
            FileKind::Char if at.meta.is_struck_out() => ItemKind::Gone,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "a device, which a guest cannot create")),
        };
        let mode = if matches!(kind, ItemKind::Gone | ItemKind::Symlink) { 0 } else { at.meta.mode };
        let name = PathText::of(at.name);
        let mut item = Item {
            depth: at.depth as u32,
            name,
            kind,
            mode,
            size: 0,
            digest: None,
            target: None,
            xattrs: BTreeMap::new(),
            opaque: at.opaque,
            mtime: None,
        };
        match kind {
            ItemKind::File => {
                let (file, size) = open_sized(at)?;
                item.xattrs = encode_xattrs(&attributes::read(&file, at.marks)?.own);
                (item.size, item.digest) = digest_sized(&file, size).map(|(size, digest)| (size, Some(digest)))?;
            }
            ItemKind::Dir => {
                if let Some(dir) = at.opened {
                    item.xattrs = encode_xattrs(&attributes::read(dir, at.marks)?.own);
                }
            }
            ItemKind::Symlink => item.target = Some(PathText::of(&at.parent.link_target(at.name)?)),
            _ => {}
        }
        Ok(item)
    }

    pub fn name_bytes(&self) -> Vec<u8> {
        self.name.bytes().unwrap_or_default()
    }

    /// Description of the difference from `other`.
    pub fn differs(&self, other: &Item) -> &'static str {
        match () {
            () if self.kind != other.kind => "is of another kind",
            () if self.digest != other.digest || self.size != other.size => "has other bytes",
            () if self.target != other.target => "leads elsewhere",
            () if self.mode != other.mode => "has other permission bits",
            () if self.xattrs != other.xattrs => "has other attributes",
            () if self.opaque != other.opaque => "hides other files of the base",
            () => "is another",
        }
    }
}

/// Encodes attributes: names as text with other bytes escaped, values in base64.
pub(crate) fn encode_xattrs(own: &attributes::Attributes) -> BTreeMap<String, String> {
    own.iter().map(|(name, value)| (name.escape_ascii().to_string(), BASE64.encode(value))).collect()
}

/// Decodes attributes for `attributes::write`; None if a name is not a plain `user.` one.
pub fn decode_xattrs(xattrs: &BTreeMap<String, String>) -> Option<attributes::Attributes> {
    let one = |(name, value): (&String, &String)| {
        let plain = name.starts_with("user.") && !name.contains(['\\', '\0']) && name.len() <= 255;
        plain.then_some(())?;
        Some((name.as_bytes().to_vec(), BASE64.decode(value).ok()?))
    };
    xattrs.iter().map(one).collect()
}

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

/// Size and digest of a file.
pub fn digest(file: &File) -> io::Result<(u64, String)> {
    digest_sized(file, rustix::fs::fstat(file)?.st_size as u64)
}

/// Size and digest of a file whose length is known.
fn digest_sized(file: &File, size: u64) -> io::Result<(u64, String)> {
    if size > PLAIN {
        return Ok((size, by_blocks(file, size)?));
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; BLOCK.min(size as usize + 1)];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok((at, hex::encode(hasher.finalize()))),
            count => {
                hasher.update(&buffer[..count]);
                at += count as u64;
                // A short read at the known size is the end: small files take one call.
                if at == size && count < buffer.len() {
                    return Ok((at, hex::encode(hasher.finalize())));
                }
            }
        }
    }
}

/// Digest over every non-zero block and its offset, independent of how the file system stores holes.
fn by_blocks(file: &File, size: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(size.to_le_bytes());
    let mut buffer = vec![0u8; BLOCK];
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data - data % BLOCK as u64,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e.into()),
        };
        let mut filled = 0;
        while filled < BLOCK {
            match file.read_at(&mut buffer[filled..], at + filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            break;
        }
        if buffer[..filled].iter().any(|b| *b != 0) {
            hasher.update(at.to_le_bytes());
            hasher.update(&buffer[..filled]);
        }
        at += BLOCK as u64;
    }
    Ok(format!("blocks-{}", hex::encode(hasher.finalize())))
}
