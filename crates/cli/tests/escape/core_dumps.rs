//! A crash inside starts no handler outside: with a pipe in `core_pattern` the kernel runs a host program as root on
//! data of the crashed process. The pattern is global to the machine, so it is changed once, for seconds, and restored
//! by a process that outlives a killed test.

use crate::support::{As, BOTH, Place, binary, to_the_end};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// A replaced `core_pattern`, restored on drop.
struct Pattern {
    keeper: Child,
    hold: Option<ChildStdin>,
    before: String,
}

impl Pattern {
    /// Sets the pattern under a file lock, on which concurrent tests of this machine wait.
    fn set(pattern: &str) -> Pattern {
        let script = r#"exec 9<"$0" && flock 9 && old=$(cat "$0") && printf %s "$1" > "$0" && echo "$old" && { read -r _; printf '%s\n' "$old" > "$0"; }"#;
        let mut keeper = Command::new("sh")
            .args(["-c", script, PATTERN, pattern])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut before = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut before).unwrap();
        let hold = keeper.stdin.take();
        let set = Pattern { keeper, hold, before };
        assert_eq!(fs::read_to_string(PATTERN).unwrap().trim_end(), pattern, "root must be able to set {PATTERN}");
        set
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        if let Some(mut hold) = self.hold.take() {
            let _ = hold.write_all(b"\n");
        }
        let _ = self.keeper.wait();
        let now = fs::read_to_string(PATTERN).unwrap_or_default();
        assert!(std::thread::panicking() || self.before.is_empty() || now == self.before, "{now:?}");
    }
}

/// A handler that records crashes of this test by name and ignores others.
struct Handler {
    marks: PathBuf,
    pattern: String,
}

impl Handler {
    fn new(place: &Place) -> Handler {
        let marks = place.root.join("dumped");
        fs::create_dir(&marks).unwrap();
        let text = format!("#!/bin/sh\ncase $1 in cd-*) : > {}/$1;; esac\n", marks.display());
        let handler = place.script("handler", &text);
        Handler { marks, pattern: format!("|{} %e", handler.display()) }
    }

    fn has(&self, name: &str) -> bool {
        self.marks.join(format!("cd-{name}")).exists()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.marks).unwrap().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Control: the same crash outside, under an ordinary limit, runs the handler. Earlier crashes have been handled by
    /// then.
    fn crash_outside(&self, place: &Place, name: &str) {
        let script = format!("{CRASH}\nprint(crash({name:?}))");
        let output = to_the_end(place.outside("python3").args(["-c", &script]), b"");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "True\n", "control: {output:?}");
        let until = Instant::now() + Duration::from_secs(180);
        while !self.has(name) {
            assert!(Instant::now() < until, "control: the handler runs for {name}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// `crash(name)` ends a child by a signal that dumps core, and returns whether the kernel dumped it.
const CRASH: &str = r#"
import ctypes, os, resource, signal, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
CORE = resource.RLIMIT_CORE
def crash(name, before=lambda: None, how=lambda: os.kill(os.getpid(), signal.SIGSEGV)):
    pid = os.fork()
    if pid == 0:
        try:
            before()
            libc.prctl(15, b"cd-" + name.encode(), 0, 0, 0)
            how()
        finally: os._exit(99)
    status = os.waitpid(pid, 0)[1]
    return os.WCOREDUMP(status) if os.WIFSIGNALED(status) else status
"#;

/// Crashes in every way, after every attempt to enable dumps to a pipe again.
const WAYS: &str = r#"
zero = (ctypes.c_uint64 * 2)(0, 0)
soft = (ctypes.c_uint64 * 2)(0, 1)
old = (ctypes.c_uint64 * 2)()
def lower(pid=0):
    for limits in (zero, soft):
        libc.syscall(160, CORE, limits)
        libc.syscall(160, ctypes.c_long(CORE | 1 << 32), limits)
        libc.syscall(302, pid, CORE, limits, None)
        libc.syscall(302, pid, CORE, limits, old)
        libc.syscall(302, pid, ctypes.c_long(CORE | 1 << 32), limits, None)
def python():
    resource.setrlimit(CORE, (0, 0))
def by_parent():
    parent = os.getppid()
    pid = os.fork()
    if pid == 0:
        lower(parent); os._exit(0)
    os.waitpid(pid, 0)
def in_thread():
    threading.Thread(target=lambda: (lower(), libc.abort())).start(); signal.pause()
def ids():
    os.setresuid(os.getuid(), os.getuid(), os.getuid()); os.setresgid(os.getgid(), os.getgid(), os.getgid()); libc.prctl(4, 1, 0, 0, 0)
def executed():
    again = f"import ctypes, os; ctypes.CDLL(None).prctl(15, b'cd-{tag}exec', 0, 0, 0); os.kill(os.getpid(), 11)"
    lower(); os.execv("/bin/sh", ["sh", "-c", 'ulimit -c 0; ulimit -S -c 0; exec python3 -c "$0"', again])
ways = {"plain": {}, "abort": {"how": libc.abort}, "set": {"before": python}, "raw": {"before": lower}, "parent": {"before": by_parent},
        "child": {"before": lambda: (lower(), by_parent())}, "thread": {"how": in_thread}, "ids": {"before": lambda: (ids(), lower())},
        "exec": {"how": executed}}
print([name for name, how in ways.items() if crash(tag + name, **how) is not False], resource.getrlimit(CORE))
"#;

fn ways(tag: &str) -> String {
    format!("{CRASH}\ntag = {tag:?}\n{WAYS}")
}

/// A run where no user namespace can be created, so that the driver without namespaces is used.
fn without_namespaces(place: &Place, script: &str) -> Command {
    let policy = place.policy(serde_json::json!({"version": 1, "extends": ["default"], "degrade": ["namespaces"]}));
    let blocked = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = place.outside("unshare");
    command.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", blocked, "sh"]).arg(binary());
    command.args(["run", "--read-only", "-s", &policy, "--", "python3", "-c", script]);
    command
}

#[test]
fn a_crash_inside_runs_no_handler_of_the_host() {
    let handling = Place::new(As::Root);
    let handler = Handler::new(&handling);
    for who in BOTH {
        let place = Place::new(who);
        for words in [["create", "--name", "live"], ["start", "--live", "live"]] {
            let output = to_the_end(&mut place.cofferdam(words), b"");
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
        let tag = if who == As::Root { "r" } else { "u" };
        let (run, live, alone) = (format!("{tag}1"), format!("{tag}2"), format!("{tag}3"));
        let mut commands = vec![
            ("run", place.cofferdam(["run", "--", "python3", "-c", &ways(&run)])),
            ("exec", place.cofferdam(["exec", "live", "--", "python3", "-c", &ways(&live)])),
        ];
        if who == As::User {
            commands.push(("second driver", without_namespaces(&place, &ways(&alone))));
        }
        let _pattern = Pattern::set(&handler.pattern);
        handler.crash_outside(&place, &format!("{tag}before"));
        for (how, command) in &mut commands {
            let output = to_the_end(command, b"");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "[] (1, 1)\n", "{who:?} {how}: {output:?}");
        }
        handler.crash_outside(&place, &format!("{tag}after"));
    }
    let mut ran = handler.names();
    ran.sort();
    assert_eq!(ran, ["cd-rafter", "cd-rbefore", "cd-uafter", "cd-ubefore"]);
}

/// A handler that no limit stops is refused without consent: a socket, and a pipe when the caller's hard limit is 0.
/// The pattern is mounted over the file in the test's own mount namespace; such a mount over /proc leaves only the
/// driver without namespaces.
#[test]
fn a_handler_that_no_limit_stops_is_refused_without_consent() {
    let place = Place::new(As::User);
    let policy =
        |degrade: &[&str]| place.policy(serde_json::json!({"version": 1, "extends": ["default"], "degrade": degrade}));
    let (plain, consent) = (policy(&["namespaces"]), policy(&["namespaces", "core_dumps"]));
    let run = |pattern: &str, limit: &str, policy: &str| {
        let seen = place.file("core_pattern", format!("{pattern}\n"));
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /proc/sys/kernel/core_pattern && exec \"$@\""]).arg(seen);
        command.args(["setpriv", "--reuid", "1500", "--regid", "1500", "--clear-groups", "prlimit"]);
        command.arg(format!("--core={limit}")).arg(binary()).args(["run", "--read-only", "--json", "-s", policy]);
        command.env("HOME", &place.home).env("COFFERDAM_STATE", place.state()).current_dir(&place.project);
        let output = to_the_end(command.args(["--", "true"]), b"");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let is_missing = |outcome: &serde_json::Value| {
        let missing = outcome["enforcement"]["missing"].as_array().unwrap_or_else(|| panic!("it runs: {outcome}"));
        missing.iter().any(|wall| wall.as_str().unwrap().starts_with("core_dumps: "))
    };
    for (pattern, limit) in [("|/bin/true %p", "0:0"), ("@/run/handler", "unlimited"), ("@@/run/handler", "0:0")] {
        let refused = run(pattern, limit, &plain);
        assert_eq!(refused["error_kind"], "unsupported_host", "{pattern}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains("core_pattern"), "{refused}");
        assert!(refused["hint"].as_str().unwrap().contains("\"core_dumps\" under \"degrade\""), "{refused}");
        assert!(is_missing(&run(pattern, limit, &consent)), "{pattern}");
    }
    // Controls: a pipe is accepted where the limit can be set, and so is a hard limit of 0 where cores are files.
    for (pattern, limit) in [("|/bin/true %p", "0:1"), ("|/bin/true %p", "unlimited"), ("core", "0:0")] {
        assert!(!is_missing(&run(pattern, limit, &plain)), "{pattern}");
    }
}
