//! Trees for the tests of this crate: created below the temporary directory, removed when dropped.

use crate::dir::Dir;
use api::Rel;
use rustix::fs::{FileType, Mode};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Scratch {
    pub path: PathBuf,
    pub dir: Dir,
}

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("workspace-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch { dir: Dir::open(&path).unwrap(), path }
    }

    pub fn mkdir(&self, at: &str) -> Dir {
        std::fs::create_dir_all(self.path.join(at)).unwrap();
        Dir::open(&self.path.join(at)).unwrap()
    }

    pub fn file(&self, at: &str, bytes: &[u8]) {
        let path = self.path.join(at);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub fn link(&self, at: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.path.join(at)).unwrap();
    }

    pub fn chmod(&self, at: &str, mode: u32) {
        std::fs::set_permissions(self.path.join(at), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a whiteout, as overlayfs does.
    pub fn strike(&self, at: &str) {
        let path = self.path.join(at);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    pub fn attribute(&self, at: &str, name: &str, value: &[u8]) {
        rustix::fs::setxattr(self.path.join(at), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    }

    pub fn opaque(&self, at: &str) {
        self.mkdir(at);
        self.attribute(at, "user.overlay.opaque", b"y");
    }

    pub fn read(&self, at: &str) -> Vec<u8> {
        std::fs::read(self.path.join(at)).unwrap()
    }

    pub fn rel(at: &str) -> Rel {
        Rel::parse(at.as_bytes()).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let above = Dir::open(self.path.parent().unwrap()).unwrap();
        let _ = crate::remove::tree(&above, self.path.file_name().unwrap().as_bytes());
    }
}

/// A tree as text: kind, mode, bytes or target.
pub fn picture(top: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![top.to_path_buf()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            let meta = path.symlink_metadata().unwrap();
            let what = if meta.is_dir() {
                waiting.push(path.clone());
                "dir".to_owned()
            } else if meta.is_symlink() {
                format!("-> {}", std::fs::read_link(&path).unwrap().display())
            } else if meta.is_file() {
                format!("{:?}", String::from_utf8_lossy(&std::fs::read(&path).unwrap()))
            } else {
                format!("node {:o}", meta.mode() & 0o170_000)
            };
            let name = path.strip_prefix(top).unwrap().to_string_lossy().into_owned();
            found.insert(name, format!("{:o} {what}", meta.mode() & 0o7777));
        }
    }
    found
}
