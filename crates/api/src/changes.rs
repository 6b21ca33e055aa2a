//! Changes of a workspace as a review shows them: files, sides, hunks, classes, flags.

use crate::{FileKind, PathText, Rel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The file on one side of a change: before it, or after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeSide {
    pub kind: FileKind,
    /// Permission bits as they are on disk, set-id and sticky included, in octal.
    #[serde(with = "terms::octal")]
    #[schema(value_type = terms::octal::FileMode)]
    pub mode: u32,
    pub size: u64,
    /// SHA-256 of the bytes of a regular file, or of the target of a symbolic link; hex.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// Target of a symbolic link, spelled as a `Rel` is; it may hold any bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<PathText>,
    /// User extended attributes, `security.capability` and `system.posix_acl_*`, with hex values; attributes of
    /// overlayfs are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub xattrs: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
    /// Moved here from another path with equal or similar content; `before` is the file at that path.
    Renamed {
        from: Rel,
    },
    /// Only permission bits differ.
    Mode,
    /// Only extended attributes differ.
    Xattr,
    /// The type changed, for example from a file to a link.
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

    /// Returns the former path of a renamed file.
    pub fn from(&self) -> Option<&Rel> {
        match self {
            ChangeKind::Renamed { from } => Some(from),
            _ => None,
        }
    }
}

/// Treatment of a change in review.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "class")]
pub enum ChangeClass {
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

/// A property of a change that a reviewer should see beside the change itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeFlag {
    /// Set-user-id, set-group-id: shown, and taken off when it lands.
    SetId,
    /// File capabilities: shown, and removed when it lands.
    Capabilities,
    /// Has other names in the workspace; lands as a file of its own.
    HardLink,
    /// Another name in the same directory differs only in case or in how its characters are composed.
    Twin,
    /// The name contains invisible characters.
    HiddenName,
    /// Added text contains invisible characters, or characters that reorder it.
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
    pub class: ChangeClass,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub before: Option<ChangeSide>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub after: Option<ChangeSide>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<ChangeFlag>,
    /// The file changed in the base since the workspace last read it; such a change cannot land before a rebase.
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

/// A line of a hunk, with its end of line if it has one. A file that is not UTF-8 is binary and has no hunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffLine {
    pub kind: LineKind,
    pub text: String,
}

/// A place where two texts differ, with three lines around it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hunk {
    /// Stable as long as the changed lines are the same, wherever they are in the file: eight hex digits or
    /// more, unique in the diff.
    pub id: String,
    /// First line, counted from 1; 0 for an empty side, as in `diff -u`.
    pub old_start: u64,
    pub old_lines: u64,
    pub new_start: u64,
    pub new_lines: u64,
    pub lines: Vec<DiffLine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeBody {
    /// No content to compare: a directory, a link, a mode, an empty file.
    None,
    Text(Vec<Hunk>),
    /// Not text, or too large to be compared by lines; lands whole.
    Whole,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDiff {
    #[serde(flatten)]
    pub change: Change,
    pub body: ChangeBody,
}

/// A path that is withheld from review: a build artefact or cache, or a directory of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Withheld {
    pub path: Rel,
    pub why: String,
    pub files: u64,
    pub bytes: u64,
}

/// The changes of a workspace, sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diff {
    /// Digest over everything in `files`; an approval names it to confirm what was reviewed.
    pub digest: String,
    pub files: Vec<FileDiff>,
    pub withheld: Vec<Withheld>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}
