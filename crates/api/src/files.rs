//! Files of a workspace: entries, listings, searches, watches, and requests that change them.

use crate::{PathText, Rel};
use serde::{Deserialize, Serialize};
use terms::octal::FileMode;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesMkdir {
    pub path: PathText,
    /// Creates missing parents; an existing directory is no error.
    #[serde(default)]
    pub parents: bool,
    /// Permission bits in octal, as text [default: "755"].
    pub mode: Option<FileMode>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesRename {
    pub from: PathText,
    pub to: PathText,
    /// Replaces a file at the new name.
    #[serde(default)]
    pub replace: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesRemove {
    pub path: PathText,
    /// Removes a directory with its contents.
    #[serde(default)]
    pub recursive: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesChmod {
    pub path: PathText,
    /// Permission bits in octal, as text, without set-user-id and set-group-id.
    pub mode: FileMode,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesCopy {
    pub from: PathText,
    pub to: PathText,
    /// Copies a directory with its contents.
    #[serde(default)]
    pub recursive: bool,
    /// Replaces an existing file; a directory is never replaced.
    #[serde(default)]
    pub replace: bool,
}

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileMoved {
    #[serde(flatten)]
    pub entry: FileEntry,
    /// Way in which it was moved.
    pub how: FileMovedHow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileMovedHow {
    /// In one step.
    Renamed,
    /// Copied, then the old one taken away: a directory that comes from the base cannot be renamed in a layer.
    Copied,
}

/// Counts of removed files and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesRemoved {
    pub files: u64,
    pub dirs: u64,
    /// Disk space that they used, in bytes.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchResult {
    pub matches: Vec<SearchMatch>,
    /// Number of files and directories visited.
    pub entries: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// True if every file was searched.
    pub complete: bool,
    /// Limit that ended the search.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stopped_by: Option<SearchBound>,
    /// Files with a zero byte near their beginning, which are not searched.
    pub binary: u64,
    /// Files that could not be searched.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub skipped: Vec<SearchSkipped>,
    /// Number of further files that are not listed.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub skipped_more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchMatch {
    /// Path relative to the workspace's top.
    pub path: Rel,
    pub kind: FileKind,
    /// Line number, counted from 1; absent if only names were searched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u64>,
    /// First byte of the match in its line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub column: Option<u64>,
    /// The line, or the part around the match if it is long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<PathText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchBound {
    /// As many as were asked for were found.
    Matches,
    Time,
    Entries,
    Bytes,
}

impl SearchBound {
    /// Name in JSON documents.
    pub fn name(self) -> &'static str {
        match self {
            SearchBound::Matches => "matches",
            SearchBound::Time => "time",
            SearchBound::Entries => "entries",
            SearchBound::Bytes => "bytes",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchSkipped {
    pub path: Rel,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    /// Path of the directory, with links resolved.
    pub path: Rel,
    /// Entries in byte order; the contents of a directory follow it.
    pub entries: Vec<FileEntry>,
    /// Cursor of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// Number of directories that the guest may not read.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub shut: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesUnpacked {
    pub entries: u64,
    /// Size of all files together, in bytes.
    pub bytes: u64,
    /// Entries that lost their set-user-id or set-group-id bit.
    pub stripped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEvent {
    pub what: FileEventKind,
    /// Path relative to the workspace's top.
    pub path: Rel,
    /// The new path of a renamed file.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<Rel>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_dir: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEventKind {
    Created,
    /// Its content.
    Written,
    /// Permission bits, owner, times or attributes.
    Attributes,
    Removed,
    /// Inside what is watched. What comes in or goes out is created or removed.
    Renamed,
    /// Events were lost; look again at everything below `path`.
    Overflow,
    /// The directory that is watched is gone, or has another name; nothing more will come.
    Gone,
}

impl FileEventKind {
    /// Name in JSON documents.
    pub fn name(self) -> &'static str {
        match self {
            FileEventKind::Created => "created",
            FileEventKind::Written => "written",
            FileEventKind::Attributes => "attributes",
            FileEventKind::Removed => "removed",
            FileEventKind::Renamed => "renamed",
            FileEventKind::Overflow => "overflow",
            FileEventKind::Gone => "gone",
        }
    }
}

/// Counts of copied files and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesCopied {
    pub files: u64,
    pub dirs: u64,
    pub links: u64,
    pub bytes: u64,
    /// Files that could not be copied: sockets, FIFOs, and files that the guest may not read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<FileLeftOut>,
    /// Number of further files that are not listed.
    #[serde(skip_serializing_if = "crate::is_zero", default)]
    pub left_out_more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileLeftOut {
    /// Path relative to the copied directory.
    pub path: Rel,
    pub why: String,
}

/// A file, directory or other node of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Path relative to the workspace's top.
    pub path: Rel,
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, in octal.
    #[serde(with = "terms::octal")]
    #[schema(value_type = terms::octal::FileMode)]
    pub mode: u32,
    pub size: u64,
    /// Time of the last write, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Number of hard links.
    pub links: u64,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<PathText>,
    /// Entity tag of a regular file; it changes with the content.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub etag: Option<String>,
}
