//! Drift detection: tells if a file of the base changed since the workspace saw it. Decided per file from `stat`; the
//! tree is never walked.

use crate::dir::Meta;
use api::Rel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Files of the base with a `stat` that is newer than the workspace: those that landed, and those it was rebased onto.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors(pub BTreeMap<String, BaseStat>);

/// The `stat` of a path in the base when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaseStat {
    Absent,
    Present { ino: u64, size: u64, mode: u32, ctime: (i64, u32) },
}

impl BaseStat {
    pub fn of(meta: Option<&Meta>) -> BaseStat {
        match meta {
            None => BaseStat::Absent,
            Some(m) => BaseStat::Present { ino: m.ino, size: m.size, mode: m.mode, ctime: m.ctime },
        }
    }
}

impl Anchors {
    pub fn set(&mut self, path: &Rel, seen: BaseStat) {
        self.0.insert(key(path), seen);
    }

    pub fn get(&self, path: &Rel) -> Option<&BaseStat> {
        // Formatting a path costs more than the lookup, and most workspaces have no anchors.
        if self.0.is_empty() { None } else { self.0.get(&key(path)) }
    }

    /// True if the file in the base at `path` differs from the one that the workspace knows. Without an anchor its
    /// ctime decides: the kernel stamps every change of a file, and only the owner of the clock can forge it. A
    /// missing file without an anchor is assumed to have been missing all along.
    pub fn has_drifted(&self, path: &Rel, now: Option<&Meta>, since: (i64, u32)) -> bool {
        match (self.get(path), now) {
            (Some(seen), now) => *seen != BaseStat::of(now),
            (None, Some(meta)) => meta.ctime > since,
            (None, None) => false,
        }
    }
}

/// A path as a JSON key: text, with bytes that are not UTF-8 escaped, so that two paths never share a key.
fn key(path: &Rel) -> String {
    path.to_string()
}
