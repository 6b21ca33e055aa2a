//! What changed in a workspace, as data: the words that scanning, review and approval share.

use crate::name::Rel;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

impl FileKind {
    pub fn of_mode(mode: u32) -> FileKind {
        match mode & 0o170_000 {
            0o040_000 => FileKind::Dir,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::Char,
            0o060_000 => FileKind::Block,
            _ => FileKind::File,
        }
    }

    /// The word that documents use.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Dir => "dir",
            FileKind::Symlink => "symlink",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
            FileKind::Char => "char",
            FileKind::Block => "block",
        }
    }
}

/// One side of a change: what stood there, or stands there now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ChangeSide)]
pub struct Entry {
    pub kind: FileKind,
    /// Permission bits as they are on disk, set-id and sticky included, in octal.
    #[serde(with = "terms::octal")]
    #[schema(value_type = terms::octal::Mode)]
    pub mode: u32,
    pub size: u64,
    /// SHA-256 of the bytes of a regular file, or of where a symbolic link leads; hex.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Where a symbolic link leads; as a `Rel` spells names, but any bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Target>,
    /// Extended attributes of the user's and `security.capability`, `system.posix_acl_*`; never overlayfs's own. Values hex.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
}

/// A name, or where a symbolic link leads, byte for byte: text, or base64 where it is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Name)]
pub enum Target {
    Text(String),
    Bytes { base64: String },
}

/// Read by hand: what is derived would also take a list for the object, and could not say what it wants.
impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Target, D::Error> {
        from.deserialize_any(OfTarget)
    }
}

struct OfTarget;

impl<'de> Visitor<'de> for OfTarget {
    type Value = Target;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or {\"base64\": \"…\"}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Target, E> {
        Ok(Target::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Target, A::Error> {
        #[derive(Deserialize)]
        struct Bytes {
            base64: String,
        }
        let Bytes { base64 } = Bytes::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Target::Bytes { base64 })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    /// Moved here from another path, whose bytes are the same or nearly so; `before` is what stood there.
    Renamed {
        from: Rel,
    },
    /// Only permission bits differ.
    Mode,
    /// Only extended attributes differ.
    Xattr,
    /// A file became a link, a directory a file, and the like.
    Type,
}

impl ChangeKind {
    /// The word that documents use.
    pub fn name(&self) -> &'static str {
        match self {
            ChangeKind::Added => "added",
            ChangeKind::Modified => "modified",
            ChangeKind::Deleted => "deleted",
            ChangeKind::Renamed { .. } => "renamed",
            ChangeKind::Mode => "mode",
            ChangeKind::Xattr => "xattr",
            ChangeKind::Type => "type",
        }
    }

    /// Where a renamed file was.
    pub fn from(&self) -> Option<&Rel> {
        match self {
            ChangeKind::Renamed { from } => Some(from),
            _ => None,
        }
    }
}

/// How a change is treated in review.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "class")]
#[schema(as = ChangeClass)]
pub enum Class {
    Ordinary,
    /// A tool on the reviewer's machine would run or obey it, or may do so: an executable that is not text, a new hidden
    /// directory, a new hidden file at the top. Lands only when it is named. `why` is a short phrase ("git hook",
    /// "CI workflow", "new hidden directory, which tools may obey").
    RunsOnHost {
        why: String,
    },
    /// Never lands: a device, socket, FIFO, or a part of a git directory. `why` says which.
    Never {
        why: String,
    },
}

/// What a reviewer should see beside the change itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChangeFlag)]
pub enum Flag {
    /// Set-user-id, set-group-id: shown, and taken off when it lands.
    SetId,
    /// File capabilities: shown, and taken off when it lands.
    Capabilities,
    /// Has other names in the workspace; lands as a file of its own.
    HardLink,
    /// Another name in the same directory differs only in case or in how its characters are composed.
    Twin,
    /// The name holds characters that cannot be seen.
    HiddenName,
    /// Text that was added holds characters that cannot be seen or that reorder it.
    HiddenText,
    /// The name, or text that was added, has words in which letters of another script pass for Latin ones.
    LookAlike,
    /// A link that leads out of the workspace.
    LinkOutside,
    Binary,
    /// Larger than what is compared line by line.
    Large,
    /// A file that can be executed, and could not before or was not there.
    Executable,
    /// A script that is new, or that another interpreter runs than before: it begins with `#!`, or has an ending that Windows
    /// runs.
    Script,
    /// Ordinary as far as is known, but a part of its path begins with a dot: tools may look there for settings.
    HiddenPath,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    pub path: Rel,
    pub kind: ChangeKind,
    #[serde(flatten)]
    pub class: Class,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<Entry>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<Entry>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<Flag>,
    /// The base's file was changed since the workspace last saw it; such a change cannot land before a rebase.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub drifted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineKind {
    Context,
    Removed,
    Added,
}

/// One line of a hunk, with its end of line if it has one. Bytes that are no UTF-8 make a file binary, so a line is text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Line {
    pub kind: LineKind,
    pub text: String,
}

/// A place where two texts differ, with three lines around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hunk {
    /// The same as long as the lines that differ are the same, wherever they stand and whatever else lands: eight hex digits
    /// or more, unique in the diff.
    pub id: String,
    /// Lines are counted from 1; as `diff -u` counts, 0 where there are none.
    pub old_start: u64,
    pub old_lines: u64,
    pub new_start: u64,
    pub new_lines: u64,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChangeBody)]
pub enum Body {
    /// Nothing to compare: a directory, a link, a mode, a file that is empty.
    None,
    Text(Vec<Hunk>),
    /// Not text, or too large to be compared by lines; lands whole.
    Whole,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDiff {
    #[serde(flatten)]
    pub change: Change,
    pub body: Body,
}

/// Something that is kept out of review: build artefacts and caches, whole directories where they are such.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Withheld {
    pub path: Rel,
    pub why: String,
    pub files: u64,
    pub bytes: u64,
}

/// All that changed, sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diff {
    /// Over everything in `files`: who approves it says what was seen.
    pub digest: String,
    pub files: Vec<FileDiff>,
    pub withheld: Vec<Withheld>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}
