//! A command that tampers with cofferdam's processes inside does not affect later commands.

use crate::place::LiveSandbox;
use crate::support::{Place, either};
use crate::words::text;

/// Lowers the first process's priority and limits in every way; prints the ways that worked.
const TAKE: &str = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
IOPRIO_SET, IDLE = 251, 3 << 13
def ioprio(which, who):
    if libc.syscall(IOPRIO_SET, which, who, IDLE): raise OSError(ctypes.get_errno(), "")
def scheduler(pid, high=0):
    param = ctypes.c_int(0)
    if libc.syscall(144, ctypes.c_long(high << 32 | pid), 5, ctypes.byref(param)): raise OSError(ctypes.get_errno(), "")
def attr(pid):
    raw = (ctypes.c_uint32 * 12)(48, 5)
    if libc.syscall(314, pid, raw, 0): raise OSError(ctypes.get_errno(), "")
def limit(pid):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (16, 16))
def put(name, value):
    with open(f"/proc/1/{name}", "w") as f: f.write(value)
one = min(os.sched_getaffinity(0))
ways = {
    "nice": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), "nice group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "nice group of 1": lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(1) or 1, 19),
    "nice user": lambda: os.setpriority(os.PRIO_USER, 0, 19), "nice uid": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    "affinity": lambda: os.sched_setaffinity(1, {one}), "scheduler": lambda: scheduler(1), "wide": lambda: scheduler(1, 1),
    "attr": lambda: attr(1), "io": lambda: ioprio(1, 1), "io group": lambda: ioprio(2, 1), "io user": lambda: ioprio(3, 0),
    "io uid": lambda: ioprio(3, os.getuid()), "limit": lambda: limit(1), "oom": lambda: put("oom_score_adj", "1000"),
    "autogroup": lambda: put("autogroup", "19"), "slack": lambda: put("timerslack_ns", "1000000000"),
    "stop": lambda: os.kill(1, 19), "kill": lambda: os.kill(1, 9),
}
for name, way in ways.items():
    try: way(); print(name)
    except OSError: pass
print("own:")
own = {"nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, 19), "affinity": lambda: os.sched_setaffinity(0, {one}),
       "io": lambda: ioprio(1, 0), "limit": lambda: limit(os.getpid()), "attr": lambda: attr(0)}
for name, way in own.items():
    try: way(); print(name)
    except OSError as e: print(name, e)
"#;

/// Priority, affinity, scheduler and limits of a command.
const HAVE: &str = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None)
print(os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), libc.syscall(252, 1, 0),
      resource.getrlimit(resource.RLIMIT_NOFILE), open("/proc/self/oom_score_adj").read().strip(), open("/proc/1/stat").read().split()[18])
"#;

// promise 20
#[test]
fn a_command_takes_nothing_from_those_that_come_after_it() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let python = |script: &str| {
            let output = live.sh(&[], "exec python3 -", script.as_bytes());
            assert!(output.status.success(), "{who:?}: {}", text(&output.stderr));
            text(&output.stdout).to_owned()
        };
        let before = python(HAVE);
        let said = python(TAKE);
        let (worked, own) = said.split_once("own:\n").unwrap();
        // A signal can be sent; the kernel does not deliver it to a namespace's first process.
        let worked: Vec<&str> = worked.lines().filter(|way| !["stop", "kill"].contains(way)).collect();
        assert!(worked.is_empty(), "{who:?}: {worked:?}");
        assert_eq!(own, "nice\naffinity\nio\nlimit\nattr\n", "{who:?}: the control");
        assert_eq!(python(HAVE), before, "{who:?}");
    }
}
