//! A base and a stack over it, built by hand in the format of layers, so that no guest and no mount is needed.

use api::{ChangeBody, ChangeClass, Diff, Driver, FileDiff, Rel};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use workspace::diff::{Options, diff};
use workspace::{Anchors, Dir, Layer, Layers, Stack};

pub struct StackFixture {
    pub top: PathBuf,
    layers: Layers,
    ids: Vec<String>,
    pub driver: Driver,
    pub anchors: Anchors,
}

/// Processor time of this thread, unaffected by other load on the machine.
pub fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl StackFixture {
    /// An empty base under one empty layer.
    pub fn new() -> StackFixture {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let top = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("review-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("base")).unwrap();
        fs::create_dir_all(top.join("state")).unwrap();
        let layers = Layers::open(&Dir::open(&top.join("state")).unwrap()).unwrap();
        let mut fixture =
            StackFixture { top, layers, ids: Vec::new(), driver: Driver::Overlay, anchors: Anchors::default() };
        fixture.push_layer();
        fixture
    }

    /// Adds a layer on top; the lower ones are frozen.
    pub fn push_layer(&mut self) {
        let mut random = [0u8; 16];
        random[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        random[4..8].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
        let base = Dir::open(&self.base()).unwrap();
        let (layer, _lock) = self.layers.make(&base, random).unwrap();
        self.ids.push(layer.id);
    }

    pub fn base(&self) -> PathBuf {
        self.top.join("base")
    }

    /// The topmost layer's `up`.
    pub fn up(&self) -> PathBuf {
        self.top.join("state/layers").join(self.ids.last().unwrap()).join("up")
    }

    pub fn stack(&self) -> Stack {
        let layers: Vec<Layer> = self.ids.iter().map(|id| self.layers.get(id).unwrap()).collect();
        // Every file of the base counts as known to the workspace, unless a test says otherwise.
        Stack { base: Dir::open(&self.base()).unwrap(), driver: self.driver, layers, since: (i64::MAX, 0) }
    }

    pub fn diff(&self) -> Diff {
        self.diff_with(&Options::default())
    }

    /// A diff with nothing withheld.
    pub fn diff_all(&self) -> Diff {
        self.diff_with(&Options { exclude: workspace::exclude::Exclude::Nothing, ..Options::default() })
    }

    pub fn diff_with(&self, options: &Options) -> Diff {
        diff(&self.stack(), &self.anchors, options).unwrap()
    }
}

impl Drop for StackFixture {
    fn drop(&mut self) {
        let _ = std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.top).status();
        let _ = fs::remove_dir_all(&self.top);
    }
}

/// Writes a file and creates its parent directories.
pub fn write(dir: &Path, path: &str, content: impl AsRef<[u8]>) {
    let whole = dir.join(path);
    fs::create_dir_all(whole.parent().unwrap()).unwrap();
    fs::write(whole, content).unwrap();
}

pub fn link(dir: &Path, path: &str, target: &str) {
    let whole = dir.join(path);
    fs::create_dir_all(whole.parent().unwrap()).unwrap();
    symlink(target, whole).unwrap();
}

/// Creates a whiteout, as the kernel does.
pub fn strike(dir: &Path, path: &str) {
    let whole = dir.join(path);
    fs::create_dir_all(whole.parent().unwrap()).unwrap();
    rustix::fs::mknodat(CWD, &whole, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

pub fn opaque(dir: &Path, path: &str) {
    fs::create_dir_all(dir.join(path)).unwrap();
    set_xattr(dir, path, "user.overlay.opaque", b"y");
}

pub fn set_xattr(dir: &Path, path: &str, name: &str, value: &[u8]) {
    rustix::fs::setxattr(dir.join(path), name, value, XattrFlags::empty()).unwrap();
}

pub fn chmod(dir: &Path, path: &str, mode: u32) {
    fs::set_permissions(dir.join(path), fs::Permissions::from_mode(mode)).unwrap();
}

/// Changes as short lines: `added a/b`.
pub fn summary(diff: &Diff) -> Vec<String> {
    let line = |file: &FileDiff| match file.change.kind.from() {
        Some(from) => format!("renamed {from} -> {}", file.change.path),
        None => format!("{} {}", file.change.kind.name(), file.change.path),
    };
    diff.files.iter().map(line).collect()
}

pub fn file<'a>(diff: &'a Diff, path: &str) -> &'a FileDiff {
    let path = rel(path);
    diff.files.iter().find(|f| f.change.path == path).unwrap_or_else(|| panic!("{path} in {:?}", summary(diff)))
}

pub fn rel(path: &str) -> Rel {
    Rel::parse(path.as_bytes()).unwrap()
}

pub fn hunk_ids(file: &FileDiff) -> Vec<String> {
    match &file.body {
        ChangeBody::Text(hunks) => hunks.iter().map(|h| h.id.clone()).collect(),
        other => panic!("no text: {other:?}"),
    }
}

pub fn why_never(file: &FileDiff) -> Option<&str> {
    match &file.change.class {
        ChangeClass::Never { why } => Some(why),
        _ => None,
    }
}

/// Runs `work` as an unprivileged owner of the directory, in a thread of its own, because credentials are per thread.
pub fn as_user<T: Send>(fixture: &StackFixture, work: impl FnOnce() -> T + Send) -> T {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    let owned = std::process::Command::new("chown").args(["-R", "1500:1500"]).arg(&fixture.top).status().unwrap();
    assert!(owned.success());
    std::thread::scope(|scope| {
        let as_them = scope.spawn(|| {
            let gid = rustix::process::Gid::from_raw(1500);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            let uid = rustix::process::Uid::from_raw(1500);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        as_them.join().unwrap()
    })
}

/// Sets the flag on drop, so that threads in a scope end however the test ends.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
