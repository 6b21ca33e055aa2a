//! Files that must survive a power failure.

use std::fs::File;
use std::path::Path;

/// Syncs the directory of a file, so that its name is on the disk.
pub fn sync_parent(file: &Path) {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(parent).and_then(|dir| dir.sync_all()); // without it the name may be lost with the power, no more
}
