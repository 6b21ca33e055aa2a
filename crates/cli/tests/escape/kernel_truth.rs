//! Evidence on the host: canaries, running processes, mounts, control groups. And probes, compiled once.

pub use crate::support::left::{census, mounts, orphaned_groups, soon};
use crate::support::{Place, binary, unique};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

/// A file of the caller's outside the project, whose text must never show inside and whose state must never change.
pub struct Canary {
    pub path: PathBuf,
    pub secret: String,
    before: String,
}

impl Canary {
    pub fn new(place: &Place) -> Canary {
        let secret = format!("SECRET-{}-{}", std::process::id(), unique());
        let path = place.file(format!("outside/canary-{}", unique()), &secret);
        let before = state(path.parent().unwrap());
        Canary { path, secret, before }
    }

    pub fn dir(&self) -> &Path {
        self.path.parent().unwrap()
    }

    pub fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Asserts that the canary is absent from `output` and unchanged on disk, and that its directory has no new entry.
    #[track_caller]
    pub fn assert_safe(&self, output: &Output) {
        for stream in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(stream);
            assert!(!text.contains(&self.secret), "the canary was read: {text}");
        }
        self.assert_untouched();
    }

    #[track_caller]
    pub fn assert_untouched(&self) {
        assert_eq!(state(self.dir()), self.before, "the canary's directory was changed");
    }
}

/// Names, kinds, modes, owners, times and content of everything below a directory, without following links.
pub fn state(dir: &Path) -> String {
    let mut lines = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(path) = open.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let bytes = if meta.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        lines.push(format!(
            "{} {:o} {}:{} {}.{} {} {}",
            path.display(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.nlink(),
            String::from_utf8_lossy(&bytes)
        ));
        if meta.is_dir() {
            open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
    }
    lines.sort();
    lines.join("\n")
}

/// Runs a command to its end, with a deadline that a busy machine never reaches.
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish_child(child)
}

#[track_caller]
pub fn finish_child(mut child: Child) -> Output {
    let mut streams = [child.stdout.take().map(read_all), child.stderr.take().map(read_all)];
    if !soon(|| child.try_wait().unwrap().is_some()) {
        let _ = child.kill();
        let _ = child.wait();
        panic!("hangs");
    }
    let mut text = |i: usize| streams[i].take().map(|t| t.join().unwrap()).unwrap_or_default();
    let (stdout, stderr) = (text(0), text(1));
    Output { status: child.wait().unwrap(), stdout, stderr }
}

fn read_all(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

/// A process of the host, killed on drop.
pub struct Bystander(pub Child);

impl Bystander {
    pub fn start(command: &mut Command) -> Bystander {
        Bystander(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles a C probe once per source and copies it into the project.
pub fn probe(place: &Place, name: &str, source: &str) -> String {
    compiled(place, name, source, &[])
}

pub fn library(place: &Place, name: &str, source: &str) -> String {
    compiled(place, name, source, &["-shared", "-fPIC"])
}

fn compiled(place: &Place, name: &str, source: &str, flags: &[&str]) -> String {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap();
    let made = done.get_or_insert_default().entry(source.to_string()).or_insert_with(|| {
        let out = binary().with_file_name(format!("probe-{}", unique()));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w"]).args(flags).args(["-x", "c", "-o"]).arg(&out).args(["-", "-lpthread"]);
        let mut cc = cc.stdin(Stdio::piped()).spawn().expect("a C compiler");
        cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success(), "the probe {name} must compile");
        out
    });
    let at = place.project.join(name);
    crate::support::copy_program(&*made, &at);
    fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).unwrap();
    place.own(&at);
    at.to_str().unwrap().to_string()
}

/// A marker that appears in no other command line.
pub fn marker() -> String {
    format!("7{:07}.{:04}", std::process::id(), unique())
}
