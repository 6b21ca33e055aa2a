//! Attacks by a command on the shepherd of another command, and on the first process: their memory, descriptors and
//! state stay out of reach, and the outcome of the other command stays true.

use crate::place::{LiveSandbox, mark, marked, soon};
use crate::support::{BOTH, Place, either};
use crate::words::{Verbs, text};
use serde_json::json;

/// Finds the shepherd of another command. `tried` prints the ways that worked.
const FIND: &str = r#"
import ctypes, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def parent(pid):
    try: return int(open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()[1])
    except OSError: return 0
def shepherds():
    return [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getppid() and parent(n) == 1]
def only():
    [found] = shepherds()
    return found
def call(number, *words):
    got = libc.syscall(number, *(ctypes.c_long(word) if isinstance(word, int) else word for word in words))
    if got < 0: raise OSError(ctypes.get_errno(), "")
    return got
def tried(ways):
    for name, way in ways.items():
        try: way(); print(name, flush=True)
        except OSError: pass
"#;

/// Reads a process's memory, descriptors and files; the control is the caller's own child.
const LOOK: &str = r#"
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
here = ctypes.create_string_buffer(16)
def memory(number, pid):
    ours, theirs = Vector(ctypes.addressof(here), 8), Vector(ctypes.addressof(here), 8)
    call(number, pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
def traced(pid, how):
    call(101, how, pid, 0, 0)
    call(101, 17, pid, 0, 0)
def handle(pid):
    call(438, call(434, pid, 0), 0, 0)
def ways(pid):
    return {f"{name}": way for name, way in {
        "seized": lambda: call(101, 0x4206, pid, 0, 0), "read": lambda: memory(310, pid), "written": lambda: memory(311, pid),
        "mem": lambda: open(f"/proc/{pid}/mem", "r+b"), "environ": lambda: open(f"/proc/{pid}/environ").read(),
        "maps": lambda: open(f"/proc/{pid}/maps").read(), "fd": lambda: os.listdir(f"/proc/{pid}/fd"),
        "root": lambda: os.readlink(f"/proc/{pid}/root"), "exe": lambda: os.readlink(f"/proc/{pid}/exe"),
        "cwd": lambda: os.readlink(f"/proc/{pid}/cwd"), "stack": lambda: open(f"/proc/{pid}/syscall").read(),
        "handle": lambda: handle(pid)}.items()}
for pid in (1, only(), os.getppid()):
    tried(ways(pid))
print("own:", flush=True)
child = os.fork()
if child == 0: signal.pause()
time.sleep(0.1)
tried(ways(child))
os.kill(child, 9)
"#;

const OWN: &str = "own:\nseized\nread\nwritten\nmem\nenviron\nmaps\nfd\nroot\nexe\ncwd\nstack\nhandle\n";

// promise 20
#[test]
fn the_shepherd_of_another_is_not_looked_into() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let run = live.detach(&[], "while ! test -e go; do sleep 0.05; done; echo whole; exit 7");
        let said = live.sh(&[], "exec python3 -", format!("{FIND}{LOOK}").as_bytes());
        assert_eq!(text(&said.stdout), OWN, "{who:?}: {}", text(&said.stderr));
        assert!(live.sh(&[], "touch go", b"").status.success());
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], &outcome["exit"]["code"]), (&json!("failed"), &json!(7)), "{who:?} {outcome}");
        assert_eq!(live.logs(&[&run]).stdout, b"whole\n");
    }
}

/// Lowers the shepherd's priority in every way.
const SLOW: &str = r#"
pid, one = only(), min(os.sched_getaffinity(0))
tried({"nice": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19), "affinity": lambda: os.sched_setaffinity(pid, {one}),
       "idle": lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))})
"#;
/// Leaves the shepherd no file descriptors.
const SHUT: &str = "resource.prlimit(only(), resource.RLIMIT_NOFILE, (0, 0))";

/// Outcomes are correct or lost, whatever is done to the shepherd; later commands are unaffected.
// promise 20
#[test]
fn a_shepherd_that_is_slowed_down_tells_the_truth() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let begin = |go: &str| {
            live.detach(
                &[],
                &format!("(setsid sleep 0.3 &); while ! test -e {go}; do sleep 0.05; done; echo whole; exit 7"),
            )
        };
        let run = begin("go");
        let said = live.sh(&[], "exec python3 -", format!("{FIND}{SLOW}").as_bytes());
        assert!(text(&said.stdout).contains("nice\n"), "{who:?}: the control: it is the guest's own user: {said:?}");
        assert!(live.sh(&[], "touch go", b"").status.success());
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], &outcome["exit"]["code"]), (&json!("failed"), &json!(7)), "{who:?} {outcome}");
        // A shepherd that cannot list its children any more leaves them to the first process and reports no status
        // that it does not know.
        let run = begin("later");
        let said = live.sh(&[], "exec python3 -", format!("{FIND}{SHUT}").as_bytes());
        assert!(said.status.success(), "{who:?}: {said:?}");
        assert!(live.sh(&[], "touch later", b"").status.success());
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], &outcome["exit"]), (&json!("lost"), &json!(null)), "{who:?} {outcome}");
        let said = live.sh(&[], "nice; ulimit -n", b"");
        let own = text(&std::process::Command::new("nice").output().unwrap().stdout);
        assert!(text(&said.stdout).starts_with(&own) && !text(&said.stdout).contains("\n0\n"), "{said:?}");
    }
}

/// Signals to another command's shepherd: forwarded, stopping or deadly; outcomes stay true.
// promise 20
#[test]
fn signals_to_the_shepherd_of_another_make_no_outcome_up() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let mark = mark(60 + n as u32);
        let send = |signal: &str| {
            let script = format!("{FIND}\npid = only()\nos.kill(pid, signal.{signal})\nprint(\"sent\")");
            let said = live.sh(&[], "exec python3 -", script.as_bytes());
            assert_eq!(text(&said.stdout), "sent\n", "{signal}: {}", text(&said.stderr));
        };
        // A stopped shepherd reports nothing until SIGCONT, and then the true outcome; other commands do not wait for
        // it.
        let run = live.detach(&[], "while ! test -e go; do sleep 0.05; done; exit 7");
        send("SIGSTOP");
        assert!(live.sh(&[], "touch go", b"").status.success());
        let early = place.verb(&["wait", "--timeout", "300ms", "--json", &run]);
        assert!(!text(&early.stdout).contains("\"verdict\""), "{who:?}: an end without a report: {early:?}");
        assert_eq!(live.sh(&[], "echo others", b"").stdout, b"others\n");
        send("SIGCONT");
        assert_eq!(live.outcome(&run)["exit"]["code"], 7, "{who:?}");
        // A stopped shepherd whose run is killed: its tree is gone, and the run is cancelled.
        let run = live.detach(&[], &format!("setsid sleep {mark} & sleep {mark}"));
        soon(|| marked(&mark) == 2);
        send("SIGSTOP");
        assert!(place.verb(&["kill", &run]).status.success());
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], marked(&mark)), (&json!("cancelled"), 0), "{who:?} {outcome}");
        // A killed shepherd: the run is lost, and no exit status is invented.
        let run = live.detach(&[], &format!("setsid sleep {mark} & sleep {mark}"));
        soon(|| marked(&mark) == 2);
        send("SIGKILL");
        let outcome = live.outcome(&run);
        assert_eq!((&outcome["verdict"], &outcome["exit"]), (&json!("lost"), &json!(null)), "{who:?} {outcome}");
        assert_eq!(marked(&mark), 0);
    }
}

/// Adopts the orphans of its own tree, and waits in vain for those of others.
const ADOPT: &str = r#"
PR_SET_CHILD_SUBREAPER = 36
call(157, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
own = os.fork()
if own == 0:
    if os.fork() == 0: time.sleep(0.2); os._exit(3)
    os._exit(0)
open("ready", "w")
def next_end():
    try: return os.WEXITSTATUS(os.waitpid(-1, 0)[1])
    except ChildProcessError: return None
print(sorted(code for code in (next_end(), next_end(), next_end()) if code is not None))
while not os.path.exists("orphaned"): time.sleep(0.02)
time.sleep(0.3)
print(next_end())
"#;

// promise 20
#[test]
fn orphans_of_another_are_not_taken_in() {
    for (n, who) in BOTH.into_iter().enumerate() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let mark = mark(70 + n as u32);
        place.file(place.project.join("adopt.py"), format!("{FIND}{ADOPT}"));
        let thief = live.detach(&[], "exec python3 adopt.py");
        soon(|| live.sh(&[], "test -e ready", b"").status.success());
        // Processes that it leaves are killed at its end, although another command waits for orphans.
        let left = live.sh(&[], &format!("(setsid sleep {mark} &); touch orphaned; exit 5"), b"");
        assert_eq!((left.status.code(), marked(&mark)), (Some(5), 0), "{who:?}");
        assert_eq!(live.outcome(&thief)["verdict"], "ok");
        let said = live.logs(&[&thief]).stdout;
        assert_eq!(text(&said), "[0, 3]\nNone\n", "{who:?}: its own orphan is the control, and no other comes");
    }
}

/// Hands its output descriptor to another command, which writes to it after the first has ended.
const GIVE: &str = r#"
line = socket.socket(socket.AF_UNIX)
line.bind("/tmp/line"); line.listen(1)
open("ready", "w")
other, _ = line.accept()
socket.send_fds(other, [b"x"], [1])
other.recv(1)
print("mine", flush=True)
"#;
const TAKE: &str = r#"
line = socket.socket(socket.AF_UNIX)
line.connect("/tmp/line")
_, [out], _, _ = socket.recv_fds(line, 1, 1)
os.write(out, b"lent\n")
line.send(b"x")
while not os.path.exists("ended"): time.sleep(0.02)
try: os.write(out, b"forged\n"); print("written")
except OSError: print("refused")
"#;

/// A command may hand its output to another; nothing is added to that output once the command has ended.
// promise 20
#[test]
fn output_that_was_handed_on_ends_with_its_command() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        for (name, script) in [("give.py", GIVE), ("take.py", TAKE)] {
            place.file(place.project.join(name), format!("{FIND}{script}"));
        }
        let gives = live.detach(&[], "exec python3 give.py");
        soon(|| live.sh(&[], "test -e ready", b"").status.success());
        let takes = live.detach(&[], "exec python3 take.py");
        assert_eq!(live.outcome(&gives)["verdict"], "ok");
        assert!(live.sh(&[], "touch ended", b"").status.success());
        assert_eq!(live.outcome(&takes)["verdict"], "ok", "{who:?}: {}", text(&live.logs(&[&takes]).stderr));
        let said = live.logs(&[&gives]).stdout;
        assert_eq!(text(&said), "lent\nmine\n", "{who:?}: what was lent is the control");
    }
}

/// Forks beyond the process limit, and stays.
const CROWD: &str = r#"
import os, time
for _ in range(60):
    try:
        if os.fork() == 0: break
    except OSError: pass
time.sleep(100)
"#;

/// With the process limit reached, a new command is refused with that reason; afterwards everything works again.
// promise 20
#[test]
fn full_of_processes_a_sandbox_says_so() {
    let place = Place::new(crate::support::As::Root);
    let live = LiveSandbox::new(&place, &["--limit", "processes=24"]);
    assert_eq!(live.sh(&[], "echo room", b"").stdout, b"room\n", "the control");
    place.file(place.project.join("crowd.py"), CROWD);
    let run = live.detach(&[], "exec python3 crowd.py");
    let outcome = live.outcome(&run);
    assert_eq!(
        (&outcome["verdict"], &outcome["limit_kind"]),
        (&json!("limit_exceeded"), &json!("processes")),
        "{outcome}"
    );
    assert_eq!(live.sh(&[], "echo room", b"").stdout, b"room\n");
}
