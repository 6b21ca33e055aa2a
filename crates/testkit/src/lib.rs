//! Support for all test suites: the binary as root and as an ordinary user, a project to run in, probes to run there.
//! All files are made under one directory per test and removed at its end.

pub mod certificate;
pub mod dice;
pub mod family;
pub mod harm;
pub mod http;
pub mod left;
pub mod patience;
pub mod replay;
pub mod sample;
pub mod served;
pub mod sse;
pub mod terminal;
pub mod tree;
pub mod words;
pub mod world;

pub use sample::{in_full, times};

use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// Uid of an ordinary user without an account.
pub const USER: u32 = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    Root,
    User,
}

/// Both users; every promise holds for both.
pub const BOTH: [As; 2] = [As::Root, As::User];

/// Selects root or the user, for a test of code that does not branch on the user: one of them, the other with the next
/// seed, and both in a full run. The first choice of a seed differs from test to test.
pub fn either() -> Vec<As> {
    if in_full() {
        return BOTH.to_vec();
    }
    let thread = std::thread::current();
    let name: u64 = thread.name().unwrap_or_default().bytes().map(u64::from).sum();
    vec![BOTH[(name.wrapping_add(sample::seed()) % 2) as usize]]
}

/// Copies a program in a separate process. A descriptor that this process has open for writing is inherited by every
/// child that another test starts meanwhile, and until each of those has executed, the copy cannot be executed
/// (`ETXTBSY`).
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg("--").arg(from.as_ref()).arg(to.as_ref()).status().unwrap();
    assert!(copied.success(), "{} is not copied to {}", from.as_ref().display(), to.as_ref().display());
}

/// Returns the binary that cargo built beside the running test: `target/…/debug/deps/e2e-…` is one directory below it.
fn built() -> PathBuf {
    if let Some(path) = std::env::var_os("CARGO_BIN_EXE_cofferdam") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).unwrap().join("cofferdam");
    assert!(
        binary.exists(),
        "{} is not there: run the tests of the package `cofferdam`, which builds it",
        binary.display()
    );
    binary
}

/// Returns a copy of the binary that every user can reach.
pub fn binary() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        sweep();
        let dir = PathBuf::from(format!("/srv/cofferdam-bin-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("tests run as root");
        let copy = dir.join("cofferdam");
        copy_program(built(), &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        copy
    })
}

/// Removes leftovers of earlier runs; Rust's test harness has no hook for the end.
fn sweep() {
    let Ok(entries) = fs::read_dir("/srv") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        for prefix in ["cofferdam-bin-", "cofferdam-test-"] {
            let owner = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A home directory with a project in it, owned by the test's user.
pub struct Place {
    pub who: As,
    pub root: PathBuf,
    pub home: PathBuf,
    pub project: PathBuf,
    /// The daemon that serves this place, if the tests run with one.
    pub served: Option<served::Served>,
    pub watch: patience::Watch,
}

impl Place {
    pub fn new(who: As) -> Place {
        Place::within(who, Path::new("/srv"))
    }

    /// Makes a place in another directory, which may be another file system.
    pub fn within(who: As, above: &Path) -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        binary();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = above.join(format!("cofferdam-test-{}-{n}", std::process::id()));
        let home = root.join("home");
        let project = home.join("project");
        fs::create_dir_all(&project).unwrap();
        let watch = patience::Watch::over(&root);
        let mut place = Place { who, root, home, project, served: None, watch };
        for dir in [&place.home, &place.project] {
            place.own(dir);
        }
        let state = place.state();
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        place.own(&state);
        place.served = served::is_enabled().then(|| served::Served::start(&place));
        place
    }

    /// Returns the state directory of this place.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Gives a path to the test's user.
    pub fn own(&self, path: &Path) {
        if self.who == As::User {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
    }

    /// Writes a file owned by the test's user, relative to the place's root or absolute.
    pub fn file(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root.join(path);
        self.dir(path.parent().unwrap());
        fs::write(&path, text).unwrap();
        self.own(&path);
        path
    }

    pub fn dir(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.root.join(path);
        let mut missing: Vec<_> = path.ancestors().take_while(|p| !p.exists()).map(Path::to_path_buf).collect();
        missing.reverse();
        for dir in missing {
            fs::create_dir(&dir).unwrap();
            self.own(&dir);
        }
        path
    }

    /// Writes a policy file; returns its path, for `-p`.
    pub fn policy(&self, document: Value) -> String {
        let path = self.file(format!("policies/{}.json", unique()), document.to_string());
        path.to_string_lossy().into_owned()
    }

    pub fn script(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let (source, path) = (self.file(format!("script-{}", unique()), text), self.root.join(path));
        self.dir(path.parent().unwrap());
        copy_program(&source, &path);
        fs::remove_file(source).unwrap();
        self.own(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Builds `cofferdam ARGS…` in the project, with a small environment.
    pub fn cofferdam(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.outside(binary());
        command.args(args);
        if let Some(served) = &self.served {
            command.env("COFFERDAM_SERVER", &served.socket);
        }
        command
    }

    /// Like `cofferdam`, with private mounts and a private `/tmp`, which only the command changes: other tests mount
    /// and make files meanwhile.
    pub fn cofferdam_apart(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let inner = self.cofferdam(args);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount -t tmpfs -o mode=1777 none /tmp && exec \"$@\"", "sh"]);
        command.arg(inner.get_program()).args(inner.get_args()).env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(&self.project).stdin(Stdio::null());
        command
    }

    /// Builds a command outside, as the same user in the same place.
    pub fn outside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.who {
            As::Root => Command::new(program),
            As::User => {
                let mut c = Command::new("setpriv");
                c.args(["--reuid", "1500", "--regid", "1500", "--clear-groups", "--"]).arg(program);
                c
            }
        };
        command.env_clear().env("HOME", &self.home).env("USER", "tester").env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.env("COFFERDAM_STATE", self.state());
        command.env("LANG", "C.UTF-8").current_dir(&self.project).stdin(Stdio::null());
        command
    }

    /// Runs `cofferdam run FLAGS… -- COMMAND…` to its end.
    pub fn run(&self, flags: &[&str], command: &[&str]) -> Run {
        let status = self.root.join(format!("status-{}.json", unique()));
        fs::write(&status, "").unwrap();
        self.own(&status);
        let mut c = self.cofferdam(["run", "--status-file"]);
        let output = to_the_end(c.arg(&status).args(flags).arg("--").args(command), b"");
        let text = fs::read_to_string(&status).unwrap();
        let outcome = serde_json::from_str(&text).unwrap_or(Value::Null);
        Run { output, outcome }
    }

    /// Runs a shell text.
    pub fn sh(&self, flags: &[&str], text: &str) -> Run {
        self.run(flags, &["/bin/sh", "-c", text])
    }

    /// Runs a Python text, by the system's Python.
    pub fn python(&self, flags: &[&str], text: &str) -> Run {
        self.run(flags, &["/usr/bin/python3", "-c", text])
    }

    /// Compiles a C probe into the project and returns its path.
    pub fn c_program(&self, name: &str, source: &str) -> PathBuf {
        let out = self.project.join(name);
        let mut cc = Command::new("cc")
            .args(["-O1", "-w", "-x", "c", "-o"])
            .arg(&out)
            .args(["-", "-lpthread"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success(), "the probe {name} must compile");
        self.own(&out);
        out
    }
}

/// Runs a command to its end with the given input. A command that hangs is killed, so that its test fails instead.
pub fn to_the_end(command: &mut Command, input: &[u8]) -> Output {
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, stdin) = (child.id(), child.stdin.take());
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(Duration::from_secs(times(300, 900))) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        });
        scope.spawn(move || {
            // A command that does not read all its input is no failure of the test.
            let _ = stdin.map(|mut pipe| pipe.write_all(input));
        });
        let output = child.wait_with_output().unwrap();
        drop(over);
        output
    })
}

impl Place {
    /// Ends the keepers of this place, and with them the processes inside. Keepers outlive the process that started
    /// them.
    fn end_keepers(&self) {
        let tenants = fs::read_dir(self.state().join("tenants")).into_iter().flatten().flatten().map(|e| e.path());
        for state in std::iter::once(self.state()).chain(tenants) {
            for keeper in fs::read_dir(state.join("keepers")).into_iter().flatten().flatten() {
                let card = fs::read_to_string(keeper.path().join("keeper.json")).unwrap_or_default();
                let card: Value = serde_json::from_str(&card).unwrap_or_default();
                let pid = card["pid"].to_string();
                let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                if line.split(|b| *b == 0).any(|word| word == keeper.file_name().as_encoded_bytes()) {
                    let _ = Command::new("kill").args(["-KILL", &pid]).status();
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.served = None;
        self.end_keepers();
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns a free port of the loopback address that no other test gets: the kernel's ephemeral ports are in a range
/// above these.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST + n % COUNT) as u16;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A finished run: its streams, its exit status, and the outcome (or fault) document.
pub struct Run {
    pub output: Output,
    pub outcome: Value,
}

impl Run {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    pub fn text(&self, field: &str) -> String {
        self.outcome.pointer(field).and_then(Value::as_str).unwrap_or_default().to_string()
    }

    /// Formats the whole run, for failed assertions.
    pub fn story(&self) -> String {
        format!(
            "exit {}\nstdout: {}\nstderr: {}\noutcome: {:#}",
            self.code(),
            self.stdout(),
            self.stderr(),
            self.outcome
        )
    }

    pub fn denials(&self) -> Vec<(String, String)> {
        let list = self.outcome["denials"].as_array().cloned().unwrap_or_default();
        let text = |d: &Value, f: &str| d[f].as_str().unwrap_or_default().to_string();
        list.iter().map(|d| (text(d, "op"), text(d, "target"))).collect()
    }

    pub fn was_denied(&self, op: &str, target: &str) -> bool {
        self.denials().iter().any(|(o, t)| o == op && t == target)
    }

    #[track_caller]
    pub fn assert_ok(&self) -> &Run {
        assert!(self.code() == 0, "must succeed: {}", self.story());
        self
    }

    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Run {
        assert!(self.code() == code, "must exit {code}: {}", self.story());
        self
    }

    #[track_caller]
    pub fn assert_denied(&self, op: &str, target: &str) -> &Run {
        assert!(self.was_denied(op, target), "must report {op} of {target}: {}", self.story());
        self
    }
}

/// Returns every file below a directory that contains some bytes.
pub fn holders(dir: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(holders(&entry.path(), bytes));
        } else if kind.is_file()
            && fs::read(entry.path()).is_ok_and(|text| text.windows(bytes.len()).any(|w| w == bytes))
        {
            found.push(entry.path());
        }
    }
    found
}

/// C program that makes one system call fail, as an old kernel or a strict container does, and executes the rest of its
/// arguments.
pub const HIDE: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(argv[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | atoi(argv[2])),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 99;
    execv(argv[3], argv + 3);
    return 98;
}
"#;
