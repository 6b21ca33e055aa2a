//! What a workspace knows of its base: has a file there changed since the workspace saw it? Answered for single files, from
//! what `stat` says; the tree is never walked for it.

use crate::dir::Meta;
use crate::name::Rel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Files of the base that were looked at after the workspace was made: those that landed, and those it was rebased onto.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchors(pub BTreeMap<String, Seen>);

/// How a path of the base was when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    Absent,
    Present { ino: u64, size: u64, mode: u32, ctime: (i64, u32) },
}

impl Seen {
    pub fn of(meta: Option<&Meta>) -> Seen {
        match meta {
            None => Seen::Absent,
            Some(m) => Seen::Present { ino: m.ino, size: m.size, mode: m.mode, ctime: m.ctime },
        }
    }
}

impl Anchors {
    pub fn set(&mut self, path: &Rel, seen: Seen) {
        self.0.insert(key(path), seen);
    }

    pub fn get(&self, path: &Rel) -> Option<&Seen> {
        // Spelling a path out costs more than looking it up, and most workspaces have none.
        if self.0.is_empty() { None } else { self.0.get(&key(path)) }
    }

    /// Whether what stands in the base at `path` now is something else than what the workspace knows. Without an anchor the
    /// clock decides: the kernel stamps every change of a file, and nobody but the owner of the clock can forge that. A file that is
    /// missing was then missing all along, as far as can be told.
    pub fn has_drifted(&self, path: &Rel, now: Option<&Meta>, since: (i64, u32)) -> bool {
        match (self.get(path), now) {
            (Some(seen), now) => *seen != Seen::of(now),
            (None, Some(meta)) => meta.ctime > since,
            (None, None) => false,
        }
    }
}

/// Names as JSON's keys must be: text, with bytes that are none spelled out, and never two names spelled alike.
fn key(path: &Rel) -> String {
    path.to_string()
}
