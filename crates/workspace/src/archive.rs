//! A workspace as one file: tar, compressed with zstd. The first entry is `manifest.json`, which lists every change
//! with its digest, including deletions, which have no file (whiteouts); the files follow in the same order. The same
//! workspace makes the same bytes.

use crate::item::Item;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt;
use terms::{ErrorKind, Fault, LimitKind};

mod changes;
mod entries;
mod import;
mod plain;
mod write;

pub use changes::ExportSource;
pub use import::{Bounds, Imported, import};
pub use plain::{LeftOut, Packed, UnpackBounds, UnpackTarget, Unpacked, pack, unpack};
pub use write::{Exported, export};

/// Format version; grows when older versions can no longer read what we write.
pub const FORMAT: u32 = 1;
/// Largest number of changes in one archive.
pub const MOST_ENTRIES: usize = 500_000;
/// The longest path of a change, in bytes.
pub const LONGEST_PATH: usize = 64 << 10;
/// The largest `manifest.json`.
const LARGEST_MANIFEST: u64 = 256 << 20;
/// Longest JSON text of `about`, the description of the exported sandbox; a policy is most of it.
const LONGEST_ABOUT: usize = 1 << 20;

const MANIFEST: &[u8] = b"manifest.json";
const FILES: &[u8] = b"files/";

#[derive(Debug, Serialize)]
struct Manifest {
    format: u32,
    /// Base, policy and limits of the exported sandbox. Reported, never applied unless the caller asks for it.
    about: serde_json::Value,
    /// SHA-256 over `about` and `entries` as they stand here.
    digest: String,
    entries: Vec<Item>,
}

/// A manifest before `about` is parsed: parsed JSON takes many times the memory of its text, so the length is checked
/// first.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    format: u32,
    about: Box<RawValue>,
    digest: String,
    #[serde(deserialize_with = "bounded")]
    entries: Vec<Item>,
}

impl RawManifest {
    fn read(self) -> serde_json::Result<Manifest> {
        let RawManifest { format, about, digest, entries } = self;
        if about.get().len() > LONGEST_ABOUT {
            return Err(serde_json::Error::custom(format!("its field `about` is longer than {LONGEST_ABOUT} bytes")));
        }
        Ok(Manifest { format, about: serde_json::from_str(about.get())?, digest, entries })
    }
}

impl Manifest {
    fn digest(about: &serde_json::Value, entries: &[Item]) -> Result<String, Fault> {
        let mut hasher = Sha256::new();
        let mut add = |text: serde_json::Result<Vec<u8>>| {
            let text = text.map_err(|e| Fault::internal(e.to_string()))?;
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(&text);
            Ok::<(), Fault>(())
        };
        add(serde_json::to_vec(about))?;
        entries.iter().try_for_each(|item| add(serde_json::to_vec(item)))?;
        Ok(terms::hex::encode(hasher.finalize()))
    }
}

/// Deserializes the list of changes and fails at the bound, before it fills the memory.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Item>, D::Error> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<Item>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of changes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Item>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MOST_ENTRIES {
                    return Err(A::Error::custom(format!("more than {MOST_ENTRIES} changes")));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_seq(Items)
}

fn too_many() -> Fault {
    Fault::new(ErrorKind::LimitExceeded, format!("more than {MOST_ENTRIES} changes")).limit(LimitKind::Files)
}

#[cfg(test)]
#[path = "archive_test.rs"]
mod tests;
