//! Every limit: usage below it, exactly at it and above it, and the outcome in each case. Time limits leave seconds of
//! slack, so that a busy machine does not matter.

use crate::support::{As, BOTH, Place, Run, binary, unique};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bound on the wall time of a row; scripts that exceed a limit would sleep longer.
pub const LINGER: Duration = Duration::from_secs(200);

/// Expected end of a row.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Fits,
    Over,
}
use Ends::{Fits, Over};

/// A limit as a flag and as a policy's `limits`, with a script and its expected end.
struct Row {
    flags: &'static [&'static str],
    limits: &'static str,
    script: String,
    ends: Ends,
}

fn row(flags: &'static [&'static str], limits: &'static str, ends: Ends, script: impl Into<String>) -> Row {
    Row { flags, limits, script: script.into(), ends }
}

fn python(text: &str) -> String {
    format!("exec /usr/bin/python3 -c '{text}'")
}

/// Runs a script for one kind of caller: root, an ordinary user, or a user with delegated control groups.
type Runner<'a> = &'a dyn Fn(&[&str], &str) -> Run;

#[track_caller]
fn check(who: &str, run_script: Runner<'_>, policy: &Path, kind: &str, rows: &[Row]) {
    for row in rows {
        let text = format!(r#"{{"version": 1, "extends": ["default"], "limits": {}}}"#, row.limits);
        fs::write(policy, text).unwrap();
        let file = ["-s", policy.to_str().unwrap()];
        for flags in [row.flags, &file] {
            let begun = Instant::now();
            let run = run_script(flags, &row.script);
            let took = begun.elapsed();
            let story = format!("{who}, {flags:?} {}, {}\n{}", row.limits, row.script, run.story());
            match row.ends {
                Fits => assert_eq!((run.code(), run.text("/verdict").as_str()), (0, "ok"), "{story}"),
                Over => {
                    assert_met(&run, kind, row.limits, &story);
                    // The run is killed rather than waited for: scripts that exceed a limit sleep longer than this.
                    assert!(took < LINGER, "took {took:?}: {story}");
                }
            }
        }
    }
}

/// Checks the complete typed outcome of an exceeded limit.
#[track_caller]
fn assert_met(run: &Run, kind: &str, limits: &str, story: &str) {
    let o = &run.outcome;
    assert_eq!(run.code(), if kind == "wall_ms" { 124 } else { 137 }, "{story}");
    assert_eq!(o["verdict"], "limit_exceeded", "{story}");
    assert_eq!(o["error_kind"], "limit_exceeded", "{story}");
    assert_eq!(o["success"], false, "{story}");
    assert_eq!(o["limit_kind"], kind, "{story}");
    assert_eq!(o["phase"], "execution", "{story}");
    let limits: Value = serde_json::from_str(limits).unwrap();
    let limit = limits[format!("max_{kind}")].as_f64().unwrap();
    assert_eq!(o["limit"].as_f64(), Some(limit), "{story}");
    let used = o["used"].as_f64().unwrap_or_else(|| panic!("used is a number: {story}"));
    // Memory is held at the limit; every other usage is measured above it.
    assert!(if kind == "memory_mb" { used >= limit } else { used > limit }, "{story}");
    let message = o["message"].as_str().unwrap_or_default();
    assert!(message.contains(&format!("max_{kind}")), "{story}");
}

fn wall() -> Vec<Row> {
    const LONG: (&[&str], &str) = (&["-t", "60s"], r#"{"max_wall_ms": 60000}"#);
    const SHORT: (&[&str], &str) = (&["--timeout", "500ms"], r#"{"max_wall_ms": 500}"#);
    vec![
        row(LONG.0, LONG.1, Fits, "sleep 0.1"),
        row(SHORT.0, SHORT.1, Over, "sleep 400"),
        row(SHORT.0, SHORT.1, Over, "trap '' TERM INT HUP QUIT; while :; do sleep 1; done"),
        row(SHORT.0, SHORT.1, Over, "kill -STOP $$; sleep 400"),
        row(SHORT.0, SHORT.1, Over, "setsid sh -c 'sleep 400 & sleep 400' & wait"),
    ]
}

fn cpu() -> Vec<Row> {
    const WIDE: (&[&str], &str) = (&["--limit", "cpu=30s"], r#"{"max_cpu_ms": 30000}"#);
    const TIGHT: (&[&str], &str) = (&["--limit", "max_cpu_ms=300"], r#"{"max_cpu_ms": 300}"#);
    let spin = "(while :; do :; done)";
    vec![
        row(WIDE.0, WIDE.1, Fits, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"),
        // Sleeping takes no processor time.
        row(TIGHT.0, TIGHT.1, Fits, "sleep 1"),
        row(TIGHT.0, TIGHT.1, Over, spin),
        row(TIGHT.0, TIGHT.1, Over, format!("{spin} & {spin} & wait")),
        row(TIGHT.0, TIGHT.1, Over, format!("(setsid sh -c '{spin}' &) & sleep 400")),
        row(
            TIGHT.0,
            TIGHT.1,
            Over,
            python(
                "import threading,time\ndef spin():\n while 1: pass\nthreading.Thread(target=spin).start()\ntime.sleep(400)",
            ),
        ),
    ]
}

fn memory() -> Vec<Row> {
    const L: (&[&str], &str) = (&["-m", "64m"], r#"{"max_memory_mb": 64}"#);
    const K: (&[&str], &str) = (&["--limit", "memory=65536k"], r#"{"max_memory_mb": 64.0}"#);
    vec![
        row(L.0, L.1, Fits, python("x = bytearray(40 << 20)")),
        row(K.0, K.1, Fits, python("x = bytearray(48 << 20)")),
        row(L.0, L.1, Over, python("x = bytearray(96 << 20)")),
        row(K.0, K.1, Over, "head -c 100663296 /dev/zero > /tmp/full"),
        // Each process stays below the limit, their sum does not.
        row(
            L.0,
            L.1,
            Over,
            "for i in 1 2 3; do /usr/bin/python3 -c 'import time; x = bytearray(30 << 20); time.sleep(400)' & done; wait",
        ),
        // The kernel kills one process; the others must not continue.
        row(L.0, L.1, Over, "setsid sleep 400 & /usr/bin/python3 -c 'x = bytearray(96 << 20)'; sleep 400"),
        row(
            L.0,
            L.1,
            Over,
            python(
                "import threading,time\nk=[]\nfor _ in range(8): threading.Thread(target=lambda: k.append(bytearray(12 << 20))).start()\ntime.sleep(400)",
            ),
        ),
    ]
}

fn output() -> Vec<Row> {
    const L: (&[&str], &str) = (&["--output", "6"], r#"{"max_output_bytes": 6}"#);
    const N: (&[&str], &str) = (&["--limit", "output=6"], r#"{"max_output_bytes": 6}"#);
    vec![
        row(L.0, L.1, Fits, "printf 12345"),
        row(L.0, L.1, Fits, "printf 123456"),
        row(N.0, N.1, Fits, "printf 123; printf 456 >&2"),
        row(L.0, L.1, Over, "printf 1234567"),
        row(N.0, N.1, Over, "printf 123; printf 4567 >&2; sleep 400"),
        row(L.0, L.1, Over, "(setsid sh -c 'sleep 0.2; printf 1234567; sleep 400' &); sleep 400"),
        row(L.0, L.1, Over, "yes"),
    ]
}

fn processes() -> Vec<Row> {
    const L: (&[&str], &str) = (&["--pids", "3"], r#"{"max_processes": 3}"#);
    const N: (&[&str], &str) = (&["--limit", "processes=3"], r#"{"max_processes": 3}"#);
    let threads = |n: u32, seconds: f32, rest: &str| {
        python(&format!(
            "import threading,time\nfor _ in range({n}): threading.Thread(target=lambda: time.sleep({seconds})).start()\n{rest}"
        ))
    };
    vec![
        row(L.0, L.1, Fits, "sleep 0.3 & wait"),
        row(L.0, L.1, Fits, "sleep 0.3 & sleep 0.3 & wait"),
        // The limit counts concurrent processes, not the total.
        row(N.0, N.1, Fits, "for i in 1 2 3 4 5 6; do /bin/true; done; sleep 0.1 & sleep 0.1 & wait"),
        row(L.0, L.1, Fits, threads(2, 0.3, "")),
        row(L.0, L.1, Over, "sleep 400 & sleep 400 & sleep 400 & wait"),
        row(N.0, N.1, Over, threads(3, 400.0, "")),
        // A process that ignores the error is ended all the same.
        row(L.0, L.1, Over, "(for i in 1 2 3; do sleep 400 & done); sleep 400; sleep 400"),
        row(
            L.0,
            L.1,
            Over,
            python(
                "import os,time\nfor _ in range(5):\n try:\n  if os.fork() == 0: os.setsid(); time.sleep(400)\n except OSError: pass\ntime.sleep(400)",
            ),
        ),
    ]
}

fn open_files() -> Vec<Row> {
    const L: (&[&str], &str) = (&["--limit", "open_files=40"], r#"{"max_open_files": 40}"#);
    const N: (&[&str], &str) = (&["--limit", "max_open_files=10"], r#"{"max_open_files": 10}"#);
    // Three descriptors are open from the start.
    let open = |n: u32| format!("import os,socket\nk=[os.open(\"/dev/null\", 0) for _ in range({n})]\n");
    // The error is swallowed, so that the limit ends the run and not the command's own failure.
    let more = |call: &str| {
        python(&format!(
            "import os,socket,time\nk=[]\ntry:\n while 1: k.append({call})\nexcept OSError: pass\ntime.sleep(400)"
        ))
    };
    let mut rows = vec![
        row(L.0, L.1, Fits, python(&open(36))),
        row(L.0, L.1, Fits, python(&open(37))),
        row(N.0, N.1, Fits, python(&open(7))),
        row(N.0, N.1, Fits, "/bin/true"),
        // System calls without a new descriptor do not count.
        row(
            L.0,
            L.1,
            Fits,
            python(
                &(open(37)
                    + "os.mkdir(\"/tmp/d\"); os.rmdir(\"/tmp/d\"); os.symlink(\"a\", \"/tmp/l\"); os.rename(\"/tmp/l\", \"/tmp/m\"); os.unlink(\"/tmp/m\")"),
            ),
        ),
        row(L.0, L.1, Over, python(&open(38))),
        row(N.0, N.1, Over, python(&open(8))),
        row(L.0, L.1, Over, format!("/usr/bin/python3 -c '{}' & wait; sleep 400", open(38))),
        row(
            L.0,
            L.1,
            Over,
            python(
                "import os,threading,time\ndef go():\n k=[os.open(\"/dev/null\", 0) for _ in range(38)]\nthreading.Thread(target=go).start()\ntime.sleep(400)",
            ),
        ),
    ];
    for call in [
        "os.dup(0)",
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "os.pipe()",
        "os.memfd_create(\"m\")",
        "os.eventfd(0)",
        "os.pidfd_open(os.getpid())",
        "os.open(\"/tmp\", os.O_PATH)",
    ] {
        rows.push(row(L.0, L.1, Over, more(call)));
    }
    rows
}

fn disk() -> Vec<Row> {
    const L: (&[&str], &str) = (&["--disk", "1m"], r#"{"max_disk_mb": 1}"#);
    const K: (&[&str], &str) = (&["--limit", "disk=1536k"], r#"{"max_disk_mb": 1.5}"#);
    let fill = |bytes: u32, at: &str| format!("head -c {bytes} /dev/zero > {at}; ");
    vec![
        row(L.0, L.1, Fits, fill(1_048_575, "/tmp/x")),
        row(L.0, L.1, Fits, fill(1_048_576, "/tmp/x")),
        row(K.0, K.1, Fits, fill(1_572_864, "/dev/shm/x")),
        // Removed files free their space.
        row(L.0, L.1, Fits, (fill(1_000_000, "/tmp/x") + "rm /tmp/x; ").repeat(3)),
        // A hole takes no space.
        row(L.0, L.1, Fits, "truncate -s 1G /tmp/x"),
        row(L.0, L.1, Over, fill(1_048_577, "/tmp/x") + "sleep 400"),
        row(L.0, L.1, Over, fill(1_048_577, "/tmp/x")),
        row(K.0, K.1, Over, fill(1_572_865, "/var/tmp/x")),
        row(L.0, L.1, Over, fill(600_000, "/tmp/x") + &fill(600_000, "/dev/shm/x") + "sleep 400"),
        row(L.0, L.1, Over, format!("(setsid sh -c '{}' &); sleep 400", fill(9_000_000, "/tmp/x"))),
        // Preallocated space counts like written space, and only once per range.
        row(L.0, L.1, Fits, "fallocate -l 1M /tmp/x; fallocate -l 1M /tmp/x; fallocate -n -l 1M /tmp/x"),
        row(L.0, L.1, Fits, ": > /tmp/x; fallocate -n -l 1M /tmp/x; fallocate -l 1M /tmp/x; fallocate -p -l 1M /tmp/x"),
        row(L.0, L.1, Fits, "fallocate -l 600K /tmp/x; rm /tmp/x; fallocate -l 600K /tmp/y"),
        // A call that fails for another reason does not count as an exceeded limit.
        row(
            L.0,
            L.1,
            Fits,
            python(
                "import os\nfor fd, n in ((os.open(\"/tmp\", 0), 9 << 20), (os.pipe()[1], 9 << 20), (99, 1), (os.memfd_create(\"m\"), 9 << 20)):\n try: os.posix_fallocate(fd, 0, n)\n except OSError: pass",
            ),
        ),
        // A fallocate that is refused as a whole leaves no block; the limit is exceeded all the same.
        row(L.0, L.1, Over, "fallocate -l 2M /tmp/x; sleep 400"),
        row(L.0, L.1, Over, ": > /tmp/x; fallocate -n -l 2M /tmp/x"),
        row(K.0, K.1, Over, fill(1_200_000, "/tmp/y") + "fallocate -l 600K /dev/shm/x; sleep 400"),
        row(
            L.0,
            L.1,
            Over,
            python(
                "import os,time\nf=os.open(\"/tmp/x\",66)\ntry: os.posix_fallocate(f, 4096, 1 << 21)\nexcept OSError: pass\ntime.sleep(400)",
            ),
        ),
    ]
}

fn files() -> Vec<Row> {
    const L: (&[&str], &str) = (&["--limit", "files=5"], r#"{"max_files": 5}"#);
    vec![
        row(L.0, L.1, Fits, "cd /tmp; touch 1 2 3 4"),
        row(L.0, L.1, Fits, "cd /tmp; touch 1 2 3 4 5"),
        row(L.0, L.1, Fits, "cd /tmp; mkdir 1; ln -s 1 2; mkfifo 3; touch 1/4; touch /dev/shm/5"),
        row(L.0, L.1, Fits, "cd /tmp; touch 1 2 3 4 5; rm 1 2 3; touch 6 7 8"),
        row(L.0, L.1, Over, "cd /tmp; touch 1 2 3 4 5 6; sleep 400"),
        row(L.0, L.1, Over, "cd /tmp; touch 1 2 3 4 5 6"),
        row(L.0, L.1, Over, "cd /tmp; mkdir 1; ln -s 1 2; mkfifo 3; touch 1/4; touch /dev/shm/5; mkdir 6"),
        row(L.0, L.1, Over, "(setsid sh -c 'cd /tmp; touch 1 2 3 4 5 6' &); sleep 400"),
    ]
}

/// Checks the rows of one limit for each caller. Every limit has a test of its own, so that a failure names it.
fn check_for(callers: &[As], kind: &str, rows: &[Row]) {
    for who in callers {
        let place = Place::new(*who);
        let policy = place.file("limits.json", "");
        check(&format!("{who:?}"), &|flags, script| place.sh(flags, script), &policy, kind, rows);
    }
}

// promise 8
#[test]
fn wall_time() {
    check_for(&BOTH, "wall_ms", &wall());
}

// promise 8
#[test]
fn processor_time() {
    check_for(&[As::Root], "cpu_ms", &cpu());
}

// promise 8
#[test]
fn memory_of_the_whole_tree() {
    check_for(&[As::Root], "memory_mb", &memory());
}

// promise 8
#[test]
fn output_of_both_streams() {
    check_for(&BOTH, "output_bytes", &output());
}

// promise 8
#[test]
fn processes_and_threads() {
    check_for(&[As::Root], "processes", &processes());
}

// promise 8
#[test]
fn descriptors_of_each_process() {
    check_for(&BOTH, "open_files", &open_files());
}

// promise 8
#[test]
fn private_space() {
    check_for(&BOTH, "disk_mb", &disk());
}

/// The private tmpfs is memory: without a limit it holds at most a quarter of the machine's memory, and at most 4 GiB.
// promise 8
#[test]
fn the_private_space_has_an_end_of_its_own() {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let memory: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    for who in BOTH {
        let place = Place::new(who);
        for dir in ["/tmp", "/dev/shm"] {
            let run = place.run(&[], &["stat", "-f", "-c", "%b %S %c", dir]);
            let fields: Vec<u64> = run.assert_ok().stdout().split_whitespace().map(|n| n.parse().unwrap()).collect();
            let [blocks, size, entries] = fields[..] else { panic!("{fields:?}") };
            let most = (memory * 1024 / 4 + size).min(4 << 30);
            assert!(blocks * size <= most && blocks * size > 16 << 20, "{dir}: {fields:?} of {memory} kB");
            assert!(entries <= 1 << 20, "{dir}: {fields:?}");
        }
        let more = place.run(&["--disk", "6g"], &["stat", "-f", "-c", "%b", "/tmp"]);
        assert!(more.assert_ok().stdout().trim().parse::<u64>().unwrap() * 4096 > 5 << 30, "a limit says otherwise");
    }
}

// promise 8
#[test]
fn entries_of_the_private_space() {
    check_for(&BOTH, "files", &files());
}

/// A command fits into a limit equal to its measured peak.
// promise 8
#[test]
fn memory_exactly_at_the_limit() {
    let place = Place::new(As::Root);
    let text = "x = bytearray(48 << 20)";
    let first = place.python(&["-m", "512m"], text);
    let peak = first.assert_ok().outcome["usage"]["memory_peak_bytes"].as_u64().unwrap();
    // Peaks of two Python runs differ by a few pages.
    let limit = (peak + (256 << 10)).to_string();
    place.python(&["-m", &limit], text).assert_ok();
    let under = (peak - (8 << 20)).to_string();
    assert_eq!(place.python(&["-m", &under], text).text("/limit_kind"), "memory_mb");
}

/// A user with control groups delegated by `cofferdam setup`, which `Drop` takes back.
struct Delegate {
    name: String,
    uid: u32,
    place: Place,
}

impl Delegate {
    fn new() -> Delegate {
        let name = format!("cofferdam-t{}", std::process::id());
        let made = Command::new("useradd").args(["--no-create-home", "--shell", "/bin/sh", &name]).output().unwrap();
        assert!(made.status.success(), "useradd: {}", String::from_utf8_lossy(&made.stderr));
        let id = Command::new("id").args(["-u", &name]).output().unwrap();
        let uid = String::from_utf8_lossy(&id.stdout).trim().parse().unwrap();
        let place = Place::new(As::Root);
        for path in [&place.home, &place.project, &place.state()] {
            chown(path, Some(uid), Some(uid)).unwrap();
        }
        Delegate { name, uid, place }
    }

    fn setup(&self, more: &[&str]) -> std::process::Output {
        Command::new(binary()).args(["setup", "--user", &self.name]).args(more).output().unwrap()
    }

    fn run(&self, flags: &[&str], script: &str) -> Run {
        let status = self.place.root.join(format!("status-{}.json", unique()));
        fs::write(&status, "").unwrap();
        chown(&status, Some(self.uid), Some(self.uid)).unwrap();
        let id = self.uid.to_string();
        let mut c = self.place.outside("setpriv");
        c.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(binary());
        c.args(["run", "--status-file"]).arg(&status).args(flags).args(["--", "/bin/sh", "-c", script]);
        let output = c.output().unwrap();
        let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
        Run { output, outcome }
    }
}

impl Drop for Delegate {
    fn drop(&mut self) {
        let _ = self.setup(&["--undo"]);
        let _ = Command::new("userdel").arg(&self.name).output();
    }
}

// promise 8
#[test]
fn after_setup_all_limits_hold_for_a_user() {
    let user = Delegate::new();
    let policy = user.place.file("limits.json", "");
    // Control: before `setup` the same run is refused.
    user.run(&["-m", "64m"], "true").assert_code(125);
    let done = user.setup(&[]);
    assert!(done.status.success(), "{done:?}");
    let runner: Runner<'_> = &|flags, script| user.run(flags, script);
    for (kind, rows) in [
        ("memory_mb", memory()),
        ("processes", processes()),
        ("cpu_ms", cpu()),
        ("disk_mb", disk()),
        ("output_bytes", output()),
    ] {
        check("delegated user", runner, &policy, kind, &rows);
    }
    assert_eq!(user.run(&["--cpus", "1"], "nproc").stdout(), "1\n");
    let again = user.setup(&[]);
    assert!(again.status.success(), "a second time changes nothing: {again:?}");
    let undone = user.setup(&["--undo"]);
    assert!(undone.status.success(), "{undone:?}");
    user.run(&["-m", "64m"], "true").assert_code(125);
}

/// The smaller of flag and policy holds, in either order.
#[test]
fn the_tightest_limit_holds() {
    let place = Place::new(As::User);
    let policy = place.file("p.json", r#"{"version": 1, "extends": ["default"], "limits": {"max_output_bytes": 4}}"#);
    let policy = policy.to_str().unwrap();
    for flags in [["-s", policy, "--output", "100"], ["--output", "4", "-s", policy]] {
        assert_eq!(place.sh(&flags, "printf 12345").stdout(), "1234");
    }
    assert_eq!(place.sh(&["-s", policy, "--output", "2"], "printf 12345").stdout(), "12");
}

/// An out-of-memory kill by the kernel is an exceeded limit; SIGKILL from the guest itself is not.
#[test]
fn a_guest_that_kills_itself_met_no_limit() {
    for who in BOTH {
        let place = Place::new(who);
        let limits: &[&str] = if who == As::Root { &["-m", "64m", "--pids", "9", "-t", "60s"] } else { &["-t", "60s"] };
        for script in ["kill -9 $$", "exec sh -c 'kill -KILL $$'"] {
            let run = place.sh(limits, script);
            run.assert_code(137);
            assert_eq!(run.text("/verdict"), "failed", "{}", run.story());
            assert_eq!(run.outcome["exit"]["signal"], 9, "{}", run.story());
            assert_eq!(run.text("/exit/name"), "SIGKILL");
            assert!(run.outcome.get("limit_kind").is_none(), "{}", run.story());
        }
    }
}

#[test]
fn the_guest_sees_its_limits() {
    let place = Place::new(As::Root);
    assert_eq!(place.sh(&["--cpus", "1"], "nproc").assert_ok().stdout(), "1\n");
    assert_eq!(place.sh(&["--cpus", "0.5"], "nproc").assert_ok().stdout(), "1\n");
    let all = std::thread::available_parallelism().unwrap().to_string();
    assert_eq!(place.sh(&[], "nproc").stdout().trim(), all);
    let meminfo = place.sh(&["-m", "64m"], "cat /proc/meminfo").assert_ok().stdout();
    assert!(meminfo.lines().any(|l| l.split_whitespace().eq(["MemTotal:", "65536", "kB"])), "{meminfo}");
    let free = place.sh(&["-m", "64m"], "free -k").assert_ok().stdout();
    let total = free.lines().find_map(|l| l.strip_prefix("Mem:")?.split_whitespace().next());
    assert_eq!(total, Some("65536"), "{free}");
    let host: String = fs::read_to_string("/proc/meminfo").unwrap().lines().take(1).collect();
    assert!(place.sh(&[], "cat /proc/meminfo").stdout().starts_with(&host));
    for who in BOTH {
        let place = Place::new(who);
        assert_eq!(place.sh(&["--limit", "open_files=99"], "ulimit -n; ulimit -Hn").stdout(), "99\n99\n");
        // A guest cannot raise a lowered limit again.
        let again = place.sh(&["--limit", "open_files=99"], "ulimit -n 200 2>/dev/null; ulimit -n");
        assert!(again.stdout().trim() == "99", "{}", again.story());
        let space = place.sh(&["--disk", "8m"], "df -B1 --output=size /tmp | tail -1").stdout();
        let space: u64 = space.trim().parse().unwrap();
        assert!((8 << 20..=(8 << 20) + 65_536).contains(&space), "{space}");
    }
}

#[test]
fn the_figures_are_plausible() {
    for who in BOTH {
        let place = Place::new(who);
        let figure = |run: &Run, name: &str| run.outcome["usage"][name].as_u64().unwrap();
        let busy = place.python(&[], "import time\nwhile time.process_time() < 0.6: pass");
        let (cpu, wall) = (figure(busy.assert_ok(), "cpu_ms"), figure(&busy, "wall_ms"));
        assert!((550..5_000).contains(&cpu) && wall >= 550, "{}", busy.story());
        let idle = place.sh(&[], "sleep 1");
        assert!(figure(idle.assert_ok(), "cpu_ms") < 500 && figure(&idle, "wall_ms") >= 1_000, "{}", idle.story());
        // Processor time of children is included.
        let child = place.sh(&[], "/usr/bin/python3 -c 'import time\nwhile time.process_time() < 0.6: pass' & wait");
        assert!(figure(child.assert_ok(), "cpu_ms") >= 550, "{}", child.story());
        let large = place.python(&[], "x = bytearray(64 << 20)");
        let peak = figure(large.assert_ok(), "memory_peak_bytes");
        assert!((64 << 20..120 << 20).contains(&peak), "{}", large.story());
        let disk = place.sh(&[], "head -c 3000000 /dev/zero > /tmp/x; printf 12345; printf 67 >&2");
        let bytes = figure(disk.assert_ok(), "disk_bytes");
        assert!((3_000_000..3_100_000).contains(&bytes), "{}", disk.story());
        assert_eq!(figure(&disk, "output_bytes"), 7);
        assert_eq!(figure(&disk, "net_bytes"), 0);
        // An unmeasured figure is absent rather than zero.
        assert!(disk.outcome["usage"].get("processes_peak").is_none_or(|n| n.as_u64() > Some(0)), "{}", disk.story());
        if who == As::Root {
            let many = place.sh(&["--pids", "50"], "for i in 1 2 3 4; do sleep 3 & done; wait");
            assert_eq!(figure(many.assert_ok(), "processes_peak"), 5, "{}", many.story());
        }
    }
}
