//! Resource exhaustion by guests. Every probe runs in an outer control group with caps on memory and processes, and
//! under a deadline, so that a failed defence costs the probe and not the machine.

use crate::support::{As, BOTH, Place, Run, in_full, times, unique};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use terms::LimitKind;

/// Caps above what any probe needs and far below what the machine has.
const FENCE_BYTES: u64 = 2 << 30;
const FENCE_TASKS: u64 = 1500;
const FENCE_SECONDS: [&str; 2] = ["90", "700"];

/// Outer control groups, removed on drop.
struct Fence {
    groups: Vec<PathBuf>,
}

impl Fence {
    fn new() -> Fence {
        let name = format!("fence-{}-{}", std::process::id(), unique());
        let v1 = Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists();
        let parents: &[&str] = match v1 {
            true => &["/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"],
            false => &["/sys/fs/cgroup"],
        };
        let caps = [
            ("memory.limit_in_bytes", FENCE_BYTES),
            ("memory.kmem.tcp.limit_in_bytes", FENCE_BYTES),
            ("memory.max", FENCE_BYTES),
            ("pids.max", FENCE_TASKS),
        ];
        // On cgroup v2 the root may not delegate these controllers yet; on v1 the file does not exist.
        let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids");
        let groups: Vec<PathBuf> = parents.iter().map(|p| Path::new(p).join(&name)).collect();
        for group in &groups {
            fs::create_dir(group).expect("a fence needs a group");
            for (file, cap) in caps.iter().filter(|(file, _)| group.join(file).exists()) {
                fs::write(group.join(file), cap.to_string()).unwrap();
            }
        }
        let held = |file: &str| groups.iter().any(|g| g.join(file).exists());
        assert!(held("pids.max") && (held("memory.max") || held("memory.limit_in_bytes")), "no fence, no probe");
        Fence { groups }
    }

    /// The same command, started inside the groups.
    fn around(&self, inner: &Command) -> Command {
        let mut c = Command::new("/bin/sh");
        c.args(["-c", "while [ \"$1\" != -- ]; do echo $$ > \"$1\"; shift; done; shift; exec \"$@\"", "fence"]);
        c.args(self.groups.iter().map(|g| g.join("cgroup.procs"))).arg("--");
        c.args(["timeout", "--signal", "KILL", FENCE_SECONDS[usize::from(in_full())]])
            .arg(inner.get_program())
            .args(inner.get_args());
        c.env_clear();
        for (name, value) in inner.get_envs() {
            c.env(name, value.unwrap_or_default());
        }
        c.current_dir(inner.get_current_dir().unwrap()).stdin(Stdio::null());
        c
    }

    fn members(&self) -> usize {
        self.groups.iter().map(|g| count_members(g)).max().unwrap_or(0)
    }
}

fn count_members(group: &Path) -> usize {
    let own = fs::read_to_string(group.join("cgroup.procs")).map_or(0, |t| t.lines().count());
    let below = fs::read_dir(group).into_iter().flatten().flatten().filter(|e| e.path().is_dir());
    own + below.map(|e| count_members(&e.path())).sum::<usize>()
}

impl Drop for Fence {
    fn drop(&mut self) {
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}

fn fenced(place: &Place, flags: &[&str], command: &[&str]) -> Run {
    let fence = Fence::new();
    let status = place.file(format!("status-{}.json", unique()), "");
    let mut c = place.cofferdam(["run", "--status-file"]);
    c.arg(&status).args(flags).arg("--").args(command);
    let output = fence.around(&c).output().unwrap();
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    let run = Run { output, outcome };
    assert_ne!(run.output.status.code(), None, "the fence had to end it: {}", run.story());
    // The groups become empty, given time on a busy machine: no process outlives the run.
    let deadline = Instant::now() + Duration::from_secs(180);
    while fence.members() > 0 {
        assert!(Instant::now() < deadline, "{} processes outlive the run: {}", fence.members(), run.story());
        std::thread::sleep(Duration::from_millis(10));
    }
    run
}

/// Wall limit of a storm.
fn patience() -> &'static str {
    if in_full() { "600s" } else { "80s" }
}

fn fenced_python(place: &Place, flags: &[&str], text: &str) -> Run {
    fenced(place, flags, &["/usr/bin/python3", "-c", text])
}

#[track_caller]
fn assert_limit(run: &Run, kind: &str) {
    assert_eq!(run.text("/verdict"), "limit_exceeded", "{}", run.story());
    assert_eq!(run.text("/limit_kind"), kind, "{}", run.story());
    assert_eq!(run.code(), if kind == "wall_ms" { 124 } else { 137 }, "{}", run.story());
}

const FORK_BOMB: &str = "
import os
while True:
    try: os.fork()
    except OSError: pass
";
const THREAD_BOMB: &str = "
import threading, time
def more():
    while True:
        try: threading.Thread(target=more).start()
        except RuntimeError: time.sleep(0.01)
more()
";
const FEW: &str = "
import os, threading, time
for _ in range(3): threading.Thread(target=lambda: time.sleep(0.2)).start()
if os.fork() == 0: os._exit(0)
os.wait()
";

// promise 8
#[test]
fn fork_and_thread_bombs_are_capped_and_gone() {
    let place = Place::new(As::Root);
    for bomb in [FORK_BOMB, THREAD_BOMB] {
        assert_limit(&fenced_python(&place, &["--pids", "60", "-t", "280s"], bomb), "processes");
    }
    fenced_python(&place, &["--pids", "60", "-t", "280s"], FEW).assert_ok();
    // Without control groups a process limit is refused, and the wall limit still ends the whole tree.
    let place = Place::new(As::User);
    for bomb in [FORK_BOMB, THREAD_BOMB] {
        assert_limit(&fenced_python(&place, &["-t", "2s"], bomb), "wall_ms");
    }
    fenced_python(&place, &["-t", "280s"], FEW).assert_ok();
}

/// Every kind of memory counts against the limit, and only the guest is ended.
// promise 8
#[test]
fn memory_of_every_kind_counts() {
    let place = Place::new(As::Root);
    let limits = ["-m", "64m", "-t", "280s"];
    let connections = "
import socket
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(500)
kept, total = [], 0
for _ in range(COUNT):
    a = socket.socket(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    a.connect(listener.getsockname()); b, _ = listener.accept(); a.setblocking(False); kept += [a, b]
    try:
        while True: total += a.send(b'x' * 65536)
    except BlockingIOError: pass
    if total > (300 << 20): print('held', total); break
";
    for (what, text) in [
        ("heap", "x = []\nwhile True: x.append(bytearray(1 << 20))".to_string()),
        ("tmpfs", "f = open('/tmp/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))".into()),
        ("shm", "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))".into()),
        ("memfd", "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, b'x' * (1 << 20))".into()),
        ("mmap", "import mmap\nk = []\nwhile True:\n m = mmap.mmap(-1, 1 << 20); m.write(b'x' * (1 << 20)); k.append(m)".into()),
        (
            "sysv",
            "import ctypes\nc = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p\nwhile True:\n i = c.shmget(0, 1 << 22, 0o1600); a = c.shmat(i, None, 0); ctypes.memset(ctypes.c_void_p(a), 1, 1 << 22)".into(),
        ),
        (
            "page tables",
            "import mmap\nk = []\nfor _ in range(40000):\n m = mmap.mmap(-1, 2 << 20); m[0] = 1; k.append(m)".into(),
        ),
    ] {
        let run = fenced_python(&place, &limits, &text);
        assert_eq!((what, run.text("/limit_kind").as_str()), (what, "memory_mb"), "{}", run.story());
        assert_limit(&run, "memory_mb");
    }
    // Kernel memory: either the guest is ended, or its calls fail below a bound.
    for (what, text) in [
        (
            "pipes",
            "import os, fcntl\nk, total = [], 0\nwhile len(k) < 2000 and total < (300 << 20):\n r, w = os.pipe(); os.set_blocking(w, False); k.append((r, w))\n try:\n  fcntl.fcntl(w, 1031, 1 << 20)\n except OSError: pass\n try:\n  while True: total += os.write(w, b'x' * 65536)\n except BlockingIOError: pass\nif total > (128 << 20): print('held', total)".to_string(),
        ),
        (
            "unix queues",
            "import socket\nk, total = [], 0\nwhile len(k) < 3000 and total < (300 << 20):\n a, b = socket.socketpair(); a.setblocking(False); k.append((a, b))\n try:\n  while True: total += a.send(b'x' * 65536)\n except BlockingIOError: pass\nif total > (128 << 20): print('held', total)".into(),
        ),
        ("tcp", connections.replace("COUNT", "200") + "if total > (128 << 20): print('held', total)\n"),
    ] {
        let run = fenced_python(&place, &limits, &text);
        assert!(!run.stdout().contains("held"), "{what} escapes the limit: {}", run.story());
    }
    // Controls: a small amount of each kind fits.
    fenced_python(
        &place,
        &limits,
        "import os\nf = os.memfd_create('x'); os.write(f, b'x' * (8 << 20)); x = bytearray(8 << 20)",
    )
    .assert_ok();
    fenced_python(&place, &limits, &connections.replace("COUNT", "1")).assert_ok();
}

/// A guest beside one that runs out of memory is unaffected.
// promise 8
#[test]
fn only_the_guest_that_is_out_of_memory_dies() {
    let place = Place::new(As::Root);
    let mut neighbour = place.cofferdam(["run", "-m", "64m", "--", "sleep", "60"]).spawn().unwrap();
    assert_limit(&fenced_python(&place, &["-m", "32m"], "x = bytearray(256 << 20)"), "memory_mb");
    assert!(neighbour.try_wait().unwrap().is_none(), "it was killed too");
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
}

#[test]
fn space_and_entries_end_at_their_limit() {
    for who in BOTH {
        let place = Place::new(who);
        let free = || {
            let df = Command::new("df").args(["-B1", "--output=avail", "/srv"]).output().unwrap();
            String::from_utf8_lossy(&df.stdout).lines().last().unwrap().trim().parse::<i64>().unwrap()
        };
        let before = free();
        for script in [
            "dd if=/dev/zero of=/tmp/x bs=1M count=200 2>/dev/null; sleep 40",
            "for i in $(seq 500); do head -c 65536 /dev/zero > /dev/shm/$i; done; sleep 40",
            // The home counts as well.
            "dd if=/dev/zero of=$HOME/x bs=1M count=200 2>/dev/null; sleep 40",
        ] {
            let run = fenced(&place, &["--disk", "4m", "-t", "280s"], &["/bin/sh", "-c", script]);
            assert_limit(&run, "disk_mb");
        }
        for script in [
            "cd /tmp; i=0; while :; do : > f$i; i=$((i+1)); done",
            "cd /tmp; while mkdir d && cd d; do :; done; sleep 40",
            "cd /tmp; : > f; i=0; while ln f l$i; do i=$((i+1)); done; sleep 40",
        ] {
            assert_limit(&fenced(&place, &["--limit", "files=200", "-t", "280s"], &["/bin/sh", "-c", script]), "files");
        }
        // Controls: a sparse file takes no space, and removed files free theirs.
        let flags = ["--disk", "4m", "--limit", "files=200"];
        fenced(&place, &flags, &["/bin/sh", "-c", "truncate -s 1T /tmp/x; head -c 4000000 /dev/zero > /tmp/y"])
            .assert_ok();
        fenced(&place, &flags, &["/bin/sh", "-c", "for i in $(seq 400); do : > /tmp/f; rm /tmp/f; done"]).assert_ok();
        // A fallocate that is refused as a whole leaves no block, and is reported as an exceeded limit.
        for reserve in ["fallocate -l 100M /tmp/x; sleep 40", ": > /tmp/x; fallocate -n -l 100M /tmp/x; sleep 40"] {
            assert_limit(&fenced(&place, &["--disk", "4m"], &["/bin/sh", "-c", reserve]), "disk_mb");
        }
        // Workspace and private space count together.
        for script in [
            "dd if=/dev/zero of=x bs=1M count=2000 2>/dev/null; sleep 40",
            "head -c 3000000 /dev/zero > x; head -c 3000000 /dev/zero > /tmp/x; sleep 40",
            "mkdir a; cd a; while head -c 100000 /dev/zero > f; do mkdir d; cd d; done; sleep 40",
        ] {
            assert_limit(
                &fenced(&place, &["--rm", "--disk", "4m", "-t", "280s"], &["/bin/sh", "-c", script]),
                "disk_mb",
            );
        }
        for script in ["i=0; while :; do : > f$i; i=$((i+1)); done", "while mkdir d && cd d; do :; done; sleep 40"] {
            assert_limit(
                &fenced(&place, &["--rm", "--limit", "files=200", "-t", "280s"], &["/bin/sh", "-c", script]),
                "files",
            );
        }
        let full = "head -c 4194304 /dev/zero > y; rm y; head -c 4194304 /dev/zero > x; touch $(seq 199)";
        fenced(&place, &flags, &["/bin/sh", "-c", full]).assert_ok();
        assert_eq!(fs::read_dir(&place.project).unwrap().count(), 0, "nothing of it reached the host's directory");
        // No other directory can be filled.
        let run = fenced(
            &place,
            &["--read-only"],
            &[
                "/bin/sh",
                "-c",
                "for d in / /dev /run /var /etc /usr .; do (: > $d/x) 2>/dev/null && echo $d; done; true",
            ],
        );
        assert_eq!(run.assert_ok().stdout(), "");
        assert!((before - free()).abs() < 512 << 20, "the host's own disk was used");
    }
}

/// Descriptors, queues and timers are capped, and none outlives the run.
#[test]
fn kernel_objects_are_capped_and_freed() {
    let counts = || {
        let lines = |path: &str| fs::read_to_string(path).map_or(0, |t| t.lines().count());
        (lines("/proc/sysvipc/shm"), lines("/proc/sysvipc/sem"), lines("/proc/sysvipc/msg"))
    };
    for who in BOTH {
        let place = Place::new(who);
        let before = counts();
        let open = "import os\nk = []\ntry:\n while True: k.append(os.open('/dev/null', 0))\nexcept OSError: pass";
        assert_limit(&fenced_python(&place, &["--limit", "open_files=64"], open), "open_files");
        let objects = "
import ctypes, os, select, socket
c = ctypes.CDLL(None, use_errno=True)
def all_of(make, most):
    n = 0
    while n < most and make(n) >= 0: n += 1
    return n
ids = ctypes.c_int()
print('epoll', all_of(lambda n: c.epoll_create1(0), 3000))
print('eventfd', all_of(lambda n: c.eventfd(0, 0), 3000))
print('timerfd', all_of(lambda n: c.timerfd_create(1, 0), 3000))
print('timers', all_of(lambda n: c.timer_create(1, None, ctypes.byref(ids)), 300000))
print('shm', all_of(lambda n: c.shmget(0, 4096, 0o1600), 5000))
print('sem', all_of(lambda n: c.semget(0, 1, 0o1600), 40000))
print('msg', all_of(lambda n: c.msgget(0, 0o1600), 40000))
";
        let run = fenced_python(&place, &["-t", "280s"], objects);
        let made: Vec<(String, u64)> = run
            .assert_ok()
            .stdout()
            .lines()
            .map(|l| {
                let (name, n) = l.split_once(' ').unwrap();
                (name.to_string(), n.parse().unwrap())
            })
            .collect();
        assert_eq!(made.len(), 7, "{}", run.story());
        // Control: every kind can be created, except where descriptors are used up.
        for name in ["epoll", "timers", "shm", "sem", "msg"] {
            assert!(made.iter().any(|(n, count)| n == name && *count > 0), "{name}: {made:?}");
        }
        let capped = made.iter().find(|(n, _)| n == "timers").unwrap();
        assert!(capped.1 < 300_000, "timers have a cap: {made:?}");
        assert_eq!(counts(), before, "the host's own queues are not touched");
    }
}

/// Resources that the kernel counts per user across namespaces are not used up by one guest.
#[test]
fn what_a_user_shares_is_not_used_up() {
    let take = "
import ctypes, sys, time
c = ctypes.CDLL(None)
n = 0
while n < 5000 and c.inotify_init1(0) >= 0: n += 1
print(n, flush=True)
if len(sys.argv) > 1: time.sleep(60)
";
    for who in BOTH {
        let place = Place::new(who);
        let mut c = place.cofferdam(["run", "-t", "280s", "--", "/usr/bin/python3", "-c", take, "stay"]);
        let mut guest = c.stdout(Stdio::piped()).spawn().unwrap();
        let taken = first_line(&mut guest);
        let outside = place.outside("/usr/bin/python3").args(["-c", take]).output().unwrap();
        guest.kill().unwrap();
        guest.wait().unwrap();
        assert!(taken.parse::<u32>().unwrap() > 0, "the control: a guest may watch files");
        let left: u32 = String::from_utf8_lossy(&outside.stdout).trim().parse().unwrap();
        assert!(left > 0, "{who:?}: a guest took all {taken} inotify instances of its user");
    }
}

fn first_line(child: &mut Child) -> String {
    use std::io::BufRead;
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_string()
}

#[test]
fn a_flood_without_a_newline_is_cut_to_the_byte() {
    for who in BOTH {
        let place = Place::new(who);
        let run = fenced(&place, &["--output", "1000003"], &["/bin/sh", "-c", "tr '\\0' x < /dev/zero"]);
        assert_limit(&run, "output_bytes");
        assert!(run.output.stdout.len() == 1_000_003 && run.output.stdout.iter().all(|b| *b == b'x'));
        let both = fenced(&place, &["--quiet", "--output", "1000003"], &["/bin/sh", "-c", "yes & yes >&2"]);
        assert_limit(&both, "output_bytes");
        assert_eq!(both.output.stdout.len() + both.output.stderr.len(), 1_000_003);
    }
}

fn high_water(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Hundreds of thousands of denials are counted in bounded memory.
// promise 9
#[test]
fn a_flood_of_refusals_is_counted_in_bounded_memory() {
    for who in BOTH {
        let place = Place::new(who);
        let probe = place.c_program(
            "flood",
            r#"
            #include <fcntl.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <unistd.h>
            int main(int argc, char **argv) {
                long same = atol(argv[1]), other = atol(argv[2]), refused = 0;
                char name[64];
                for (long i = 0; i < same; i++) refused += open("/etc/hostname", O_WRONLY) < 0;
                for (long i = 0; i < other; i++) { sprintf(name, "/etc/no-%ld", i); refused += open(name, O_WRONLY | O_CREAT, 0600) < 0; }
                fprintf(stderr, "%ld\n", refused);
                printf("done\n"); fflush(stdout);
                getchar();
                return refused == same + other ? 1 : 0;
            }"#,
        );
        let flood = |same: u64, other: u64| {
            let status = place.file(format!("status-{}.json", unique()), "");
            let mut c = place.cofferdam(["run", "-t", if in_full() { "900s" } else { "240s" }, "--status-file"]);
            c.arg(&status).arg("--").arg(&probe).args([same.to_string(), other.to_string()]);
            let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            assert_eq!(first_line(&mut child), "done", "{who:?}");
            let high = high_water(child.id());
            drop(child.stdin.take());
            assert_eq!(child.wait().unwrap().code(), Some(1));
            let text = fs::read_to_string(&status).unwrap();
            assert!(text.len() < 4 << 20, "the document is bounded: {} bytes", text.len());
            (high, serde_json::from_str::<Value>(&text).unwrap())
        };
        let (quiet, one) = flood(10, 0);
        assert_eq!(one["denials"][0]["count"], 10);
        assert_eq!(one["verdict"], "denied");
        let often = times(20_000, 1_000_000);
        let (loud, many) = flood(often, 0);
        let list = many["denials"].as_array().unwrap();
        assert_eq!((list.len(), list[0]["count"].as_u64()), (1, Some(often)), "one line with a count");
        assert_eq!(list[0]["op"], "fs.write");
        assert_eq!(list[0]["target"], "/etc/hostname");
        let (varied, different) = flood(0, 20_000);
        let kept = different["denials"].as_array().unwrap();
        let counted: u64 = kept.iter().map(|d| d["count"].as_u64().unwrap()).sum();
        let dropped = different["denials_dropped"].as_u64().unwrap_or(0);
        assert_eq!(counted + dropped, 20_000, "{} kept, {dropped} dropped", kept.len());
        assert!(kept.len() < 20_000, "names are the guest's to choose; the list has an end");
        for (what, high) in [("the same", loud), ("different", varied)] {
            assert!(high < quiet + 16 * 1024, "{who:?}: {quiet} kB quiet, {high} kB after {what} refusals");
        }
    }
}

/// Busy loops and ignored signals do not delay a time limit.
// promise 8
#[test]
fn spins_and_stubborn_guests_end_on_time() {
    for who in BOTH {
        let place = Place::new(who);
        for text in [
            "while True: pass",
            "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
            "x = 3 ** (10 ** 9)",
            "import signal, time\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n except (OSError, ValueError): pass\nwhile True: time.sleep(1)",
            "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
            "import os, signal, time\nif os.fork() == 0:\n os.setsid(); os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)",
            "import os, time\nif os.fork() == 0:\n os.kill(-1, 19)\ntime.sleep(60)",
            "import os, signal\nos.kill(1, signal.SIGSTOP); os.kill(1, signal.SIGKILL)\nwhile True: pass",
            "import ctypes, time\nc = ctypes.CDLL(None); c.settimeofday(ctypes.byref(ctypes.c_long(0)), None)\ntime.sleep(60)",
        ] {
            let run = fenced_python(&place, &["-t", "700ms"], text);
            assert_limit(&run, "wall_ms");
            let used = run.outcome["used"].as_u64().unwrap();
            assert!((701..60_000).contains(&used), "{}", run.story());
        }
        fenced_python(&place, &["-t", "280s"], "import time; time.sleep(0.1)").assert_ok();
    }
}

/// Orphans and zombies are reaped during the run.
// promise 8
#[test]
fn orphan_storms_are_reaped() {
    for who in BOTH {
        let place = Place::new(who);
        let probe = place.c_program(
            "storm",
            r#"
            #include <dirent.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <sys/wait.h>
            #include <unistd.h>
            static int processes(void) {
                DIR *d = opendir("/proc"); struct dirent *e; int n = 0;
                while ((e = readdir(d))) n += e->d_name[0] >= '0' && e->d_name[0] <= '9';
                closedir(d);
                return n;
            }
            int main(int argc, char **argv) {
                int failed = 0;
                for (int i = 0; i < atoi(argv[1]); i++) {
                    pid_t p = fork();
                    if (p == 0) { if (fork() == 0) { setsid(); _exit(7); } _exit(0); }
                    if (p < 0) failed++; else waitpid(p, 0, 0);
                }
                int left = 0;
                for (int i = 0; i < 200; i++) { left = processes(); if (left == 2) break; usleep(50000); }
                printf("%d failed, %d left\n", failed, left);
                return 0;
            }"#,
        );
        let probe = probe.to_str().unwrap();
        // Many more processes in total than the limit allows at a time.
        let flags: &[&str] = if who == As::Root { &["-t", patience(), "--pids", "200"] } else { &["-t", patience()] };
        let run = fenced(&place, flags, &[probe, &times(10_000, 100_000).to_string()]);
        assert_eq!(run.assert_ok().stdout(), "0 failed, 2 left\n", "{}", run.story());
        // Zombies kept by their parent are gone with it.
        fenced_python(&place, &["-t", "280s"], "import os\nfor _ in range(200):\n if os.fork() == 0: os._exit(0)")
            .assert_ok();
    }
}

/// Every declared limit is enforced, or the run is refused with the limit's name.
// promise 8
#[test]
fn every_declared_limit_is_enforced_or_refused() {
    let over = |kind: LimitKind| match kind {
        LimitKind::WallMs => Some((700, "import time; time.sleep(60)")),
        LimitKind::CpuMs => Some((300, "while True: pass")),
        LimitKind::MemoryMb => Some((32, "x = bytearray(128 << 20)")),
        LimitKind::OutputBytes => Some((10, "print('x' * 100)")),
        LimitKind::Processes => {
            Some((2, "import os\nfor _ in range(4):\n if os.fork() == 0: import time; time.sleep(60)"))
        }
        LimitKind::OpenFiles => Some((20, "import os\nk = [os.open('/dev/null', 0) for _ in range(40)]")),
        LimitKind::DiskMb => Some((1, "open('/tmp/x', 'wb').write(b'x' * (4 << 20))")),
        LimitKind::Files => Some((3, "for i in range(9): open(f'/tmp/{i}', 'w').close()")),
        // Other limits are tested elsewhere, or do not apply to a run.
        _ => None,
    };
    for who in BOTH {
        let place = Place::new(who);
        for kind in LimitKind::ALL {
            let (amount, text) = over(kind).unwrap_or((1, "pass"));
            let name = kind.name();
            let policy = format!(r#"{{"version": 1, "extends": ["default"], "limits": {{"max_{name}": {amount}}}}}"#);
            let policy = place.file("limit.json", policy);
            let run =
                fenced_python(&place, &["-s", policy.to_str().unwrap()], &format!("print('ran', flush=True)\n{text}"));
            let refused = run.text("/error_kind") == "unsupported_limit" && run.text("/limit_kind") == name;
            if refused {
                run.assert_code(125);
                assert_eq!(run.stdout(), "", "{}", run.story());
            } else {
                assert_limit(&run, name);
            }
            let must_hold = who == As::Root && over(kind).is_some();
            assert!(!(must_hold && refused), "root has groups: {}", run.story());
        }
    }
}

/// A guest without a network floods its name server, with sound queries, broken ones and none that it waits for. The
/// list of refusals stays bounded, and limits still end the run.
// promise 5
#[test]
fn a_flood_of_look_ups_is_bounded() {
    const FLOOD: &str = r#"
import os, socket, struct
at = ("192.0.0.53", 53)
def query(n):
    name = b"".join(bytes([len(part)]) + part for part in (b"n%d" % n, b"example", b"org")) + b"\0"
    return struct.pack(">6H", n & 0xffff, 0x100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
one = socket.socket(type=socket.SOCK_DGRAM)
one.sendto(query(0), at)
reply = one.recv(512)
assert reply[3] & 0xf == 3, reply
s = socket.socket(type=socket.SOCK_DGRAM)
s.setblocking(False)
print("begun", flush=True)
n = 0
while True:
    n += 1
    for message in (query(n), os.urandom(40), b"", query(n)[:20], query(n) * 40):
        try: s.sendto(message, at)
        except OSError: pass
"#;
    for who in BOTH {
        let place = Place::new(who);
        let run = place.python(&["-t", "3s"], FLOOD);
        assert_eq!((run.code(), run.stdout()), (124, "begun\n".to_owned()), "{}", run.story());
        let told = run.denials();
        assert!(told.iter().any(|(op, target)| op == "net.resolve" && target == "n0.example.org"), "{}", run.story());
        assert!(told.len() <= 256 && told.iter().all(|(op, _)| op == "net.resolve"), "{} told", told.len());
        assert_eq!(run.outcome["usage"]["net_bytes"], 0);
    }
}
