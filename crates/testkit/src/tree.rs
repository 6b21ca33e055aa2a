//! Snapshot of a directory for comparison: every name below it, with its mode and contents.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub type Tree = BTreeMap<PathBuf, String>;

pub fn tree(top: &Path) -> Tree {
    let mut all = Tree::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(here) = waiting.pop() {
        for entry in fs::read_dir(&here).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode();
            let what = if meta.is_symlink() {
                format!("{:?}", fs::read_link(&path).unwrap())
            } else if meta.is_dir() {
                waiting.push(path.clone());
                format!("{mode:o}")
            } else {
                format!("{mode:o} {}", fs::read(&path).unwrap().escape_ascii())
            };
            all.insert(path.strip_prefix(top).unwrap().to_path_buf(), what);
        }
    }
    all
}
