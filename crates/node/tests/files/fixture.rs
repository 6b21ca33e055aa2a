//! A workspace, and a directory beside it that must not be reached.

use api::{FileEntry, Rel};
use node::files::{Root, read, write};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use terms::{ErrorKind, Fault};

pub const CANARY: &str = "what is outside";
/// Uid of the guest, where the test runs as root.
pub const GUEST: u32 = 54_321;

pub struct WorkspaceFixture {
    pub top: PathBuf,
    /// The workspace.
    pub ws: PathBuf,
    /// A sibling directory whose name starts like the workspace's.
    pub outside: PathBuf,
    pub owner: (u32, u32),
}

impl WorkspaceFixture {
    pub fn new() -> WorkspaceFixture {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let top = std::env::temp_dir().join(format!("cofferdam-files-{}-{count}", std::process::id()));
        let (ws, outside) = (top.join("ws"), top.join("ws-evil"));
        fs::create_dir_all(&ws).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("canary"), CANARY).unwrap();
        let (uid, gid) = (fs::metadata(&ws).unwrap().uid(), fs::metadata(&ws).unwrap().gid());
        let owner = if uid == 0 { (GUEST, GUEST) } else { (uid, gid) };
        for dir in [&ws, &outside] {
            chown(dir, Some(owner.0), Some(owner.1)).unwrap();
        }
        WorkspaceFixture { top, ws, outside, owner }
    }

    pub fn is_root(&self) -> bool {
        self.owner.0 == GUEST
    }

    pub fn root(&self) -> Root {
        let dir: OwnedFd = fs::File::open(&self.ws).unwrap().into();
        Root::new(dir, self.owner, self.ws.clone())
    }

    /// Creates a file as the guest would.
    pub fn put(&self, path: &str, text: &str) {
        let at = self.ws.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, text).unwrap();
        self.own_below(&self.ws);
    }

    pub fn own_below(&self, dir: &Path) {
        chown(dir, Some(self.owner.0), Some(self.owner.1)).unwrap();
        for entry in fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => self.own_below(&entry.path()),
                false => std::os::unix::fs::lchown(entry.path(), Some(self.owner.0), Some(self.owner.1)).unwrap(),
            }
        }
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        all_of(read::open(&self.root(), &self.root().path(path.as_bytes())?)?)
    }

    pub fn write(&self, path: &str, text: &[u8], ask: write::WriteOptions) -> Result<FileEntry, Fault> {
        let path = self.root().path(path.as_bytes())?;
        write::write(self.root(), &path, ask, &mut &text[..])
    }

    /// Asserts that the directory outside is unchanged.
    pub fn outside_is_untouched(&self) {
        let names: Vec<_> = fs::read_dir(&self.outside).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["canary"]);
        assert_eq!(fs::read_to_string(self.outside.join("canary")).unwrap(), CANARY);
    }
}

impl Drop for WorkspaceFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

pub fn all_of(mut reading: read::FileReader) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::new();
    while let Some(piece) = reading.piece()? {
        all.extend(piece);
    }
    Ok(all)
}

pub fn rel(text: &str) -> Rel {
    Rel::parse(text.as_bytes()).unwrap()
}

pub fn kind<T: std::fmt::Debug>(done: Result<T, Fault>) -> ErrorKind {
    let fault = done.unwrap_err();
    assert!(fault.hint.is_some(), "{fault} says what helps");
    fault.error_kind
}

/// Sets the flag on drop, so that threads in a scope end however the test ends.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
