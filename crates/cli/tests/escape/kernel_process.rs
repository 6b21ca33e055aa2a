//! Processes outside the command: the launcher, pid 1, processes of the host, and survivors of a run.

use super::truth::{Bystander, Canary, census, finish, finish_child, marker, mounts, orphaned_groups, probe, soon};
use crate::support::{As, BOTH, Place, binary};
use std::fs;
use std::process::{Command, Stdio};

/// Overwriting the launcher through /proc/PID/exe.
#[test]
fn the_launcher_cannot_be_overwritten() {
    for who in BOTH {
        let place = Place::new(who);
        let before = (fs::read(binary()).unwrap(), fs::read("/bin/sh").unwrap());
        for _ in 0..3 {
            let run = place.sh(
                &[],
                "for p in /proc/[0-9]*/exe /proc/self/exe /proc/[0-9]*/task/*/exe; do \
                   (: >>$p) 2>/dev/null && echo WROTE $p; \
                   case $p in /proc/1/*) head -c 4 $p 2>/dev/null && echo READ $p;; esac; \
                 done; cp /bin/true /tmp/own && : >>/tmp/own && echo control",
            );
            run.assert_ok();
            assert_eq!(run.stdout(), "control\n", "{}", run.story());
        }
        assert!(before == (fs::read(binary()).unwrap(), fs::read("/bin/sh").unwrap()), "a program of the host changed");
    }
}

const LEAKED: &str = r#"
import os, ctypes, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
own = []
for fd in range(0, 1024):
    try: os.fstat(fd)
    except OSError: continue
    own.append(fd)
print("open", own)
print("stdin is a pipe", stat.S_ISFIFO(os.fstat(0).st_mode))
def show(what, path):
    try:
        fd = os.open(path, os.O_RDONLY)
        print("OPENED", what, os.read(fd, 200) if not stat.S_ISDIR(os.fstat(fd).st_mode) else os.listdir(fd))
    except OSError as e: pass
for n in range(0, 40):
    show("own", "/proc/self/fd/%d" % n) if n > 2 else None
    show("init", "/proc/1/fd/%d" % n)
    show("init", "/proc/1/task/1/fd/%d" % n)
    fd = libc.syscall(438, libc.syscall(434, 1, 0), n, 0)
    if fd >= 0: print("STOLE", n, os.read(fd, 200))
for n in (7, 8):
    try: os.fchdir(n); print("MOVED", os.getcwd(), os.listdir("."))
    except OSError: pass
print("control", open("plain.txt").read())
"#;

/// Descriptors that the caller left open reach neither the guest nor /proc/1/fd.
// promise 2
#[test]
fn descriptors_of_the_caller_do_not_leak() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        place.file("home/project/plain.txt", "in policy");
        place.file("home/project/leaked.py", LEAKED);
        let (file, dir) = (canary.text(), canary.dir().to_str().unwrap());
        let cofferdam = binary().to_str().unwrap();
        for input in ["/dev/null", dir] {
            let text = format!("exec 7<{file} 8<{dir} <{input}; exec {cofferdam} run -- /usr/bin/python3 leaked.py");
            let out = finish(place.outside("/bin/sh").args(["-c", &text]));
            let shown = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{shown}{}", String::from_utf8_lossy(&out.stderr));
            assert!(shown.contains("open [0, 1, 2]\n"), "only the three streams are open: {shown}");
            assert!(shown.contains("stdin is a pipe True") && shown.contains("control in policy"), "{shown}");
            for bad in ["OPENED", "STOLE", "MOVED"] {
                assert!(!shown.contains(bad), "{shown}");
            }
            canary.assert_safe(&out);
        }
    }
}

/// A working directory given through a descriptor is a path in the new root, and its parents are not visible.
#[test]
fn the_working_directory_lies_in_the_new_root() {
    for who in BOTH {
        let place = Place::new(who);
        let inner = place.dir("outside/inner");
        fs::write(inner.join("seen.txt"), "control").unwrap();
        let canary = Canary::new(&place);
        let text = format!(
            "exec 8<{}; exec {} run -w /proc/self/fd/8 -- /bin/sh -c 'cat seen.txt; pwd; cat ../canary-* ../../outside/canary-*; ls ..'",
            inner.display(),
            binary().display()
        );
        let out = finish(place.outside("/bin/sh").args(["-c", &text]));
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(shown.starts_with("control"), "{shown}{}", String::from_utf8_lossy(&out.stderr));
        assert!(!shown.contains("canary"), "{shown}");
        canary.assert_safe(&out);
        for own in ["/proc/self/fd", "/proc/self", "/dev", "/sys"] {
            place.run(&["-w", own], &["/bin/true"]).assert_code(2);
        }
    }
}

const INTRUDE: &str = r#"
import os, ctypes, sys
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
def peek(pid, address, call=nr(310, 270)):
    buf = ctypes.create_string_buffer(b"x" * 16, 16)
    a, b = iovec(ctypes.addressof(buf), 16), iovec(address, 16)
    return libc.syscall(call, pid, ctypes.byref(a), 1, ctypes.byref(b), 1, 0) > 0
def intrude(pid, address):
    got = []
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, None, None) == 0:
            got.append("ptrace")
            try: os.waitpid(pid, 0x40000000) if request == 16 else None
            except OSError: pass
            libc.ptrace(17, pid, None, None)
            if request == 0x4206: break
    if peek(pid, address): got.append("read")
    if peek(pid, address, nr(311, 271)): got.append("write")
    for name in ("mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "io", "personality", "numa_maps"):
        try: open("/proc/%d/%s" % (pid, name), "rb").read(1); got.append(name)
        except OSError: pass
    for name in ("mem", "oom_score_adj", "oom_adj", "comm", "coredump_filter", "clear_refs", "autogroup", "uid_map"):
        try: os.close(os.open("/proc/%d/%s" % (pid, name), os.O_WRONLY)); got.append("w:" + name)
        except OSError: pass
    for name in ("root", "cwd", "exe", "ns/user", "ns/mnt", "ns/pid", "ns/net"):
        try: os.readlink("/proc/%d/%s" % (pid, name)); got.append(name)
        except OSError: pass
    for name in ("fd", "map_files", "fdinfo", "task/%d/fd" % pid):
        try: os.listdir("/proc/%d/%s" % (pid, name)); got.append(name)
        except OSError: pass
    if libc.syscall(438, libc.syscall(434, pid, 0), 0, 0) >= 0: got.append("getfd")
    return got
here = ctypes.create_string_buffer(b"control memory!!")
child = os.fork()
if child == 0:
    import time; time.sleep(60)
print("child", intrude(child, ctypes.addressof(here)))
os.kill(child, 9)
for pid in [1] + [int(a) for a in sys.argv[1:]]:
    for address in (ctypes.addressof(here), 0x400000, 0x7ffff7ff0000): print("other", intrude(pid, address))
"#;

/// Pid 1, the supervisor and other processes can be neither traced, read nor written. Pid 1 carries a copy of the
/// supervisor's memory, which holds the caller's environment.
// promise 2
#[test]
fn no_process_outside_the_command_can_be_entered() {
    for who in BOTH {
        let place = Place::new(who);
        let secret = format!("TOKEN-{}", marker());
        let mut neighbour = Bystander::start(place.outside("/bin/sleep").arg("100"));
        place.file("home/project/intrude.py", INTRUDE);
        let mut command =
            place.cofferdam(["run", "--", "/usr/bin/python3", "intrude.py", &neighbour.0.id().to_string()]);
        let out = finish(command.env("API_TOKEN", &secret));
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        let child = shown.lines().find(|l| l.starts_with("child")).unwrap_or_default();
        for control in ["ptrace", "read", "write", "mem", "environ", "maps", "root", "cwd", "exe", "'fd'", "getfd"] {
            assert!(child.contains(control), "control {control}: {shown}{}", String::from_utf8_lossy(&out.stderr));
        }
        let others: Vec<_> = shown.lines().filter(|l| l.starts_with("other")).collect();
        assert!(others.len() == 6 && others.iter().all(|l| *l == "other []"), "{shown}");
        assert!(!shown.contains(&secret), "{shown}");
        assert!(neighbour.is_alive());
        let status = fs::read_to_string(format!("/proc/{}/status", neighbour.0.id())).unwrap();
        assert!(status.contains("TracerPid:\t0"), "{status}");
    }
}

const SIGNALS: &str = r#"
import os, ctypes, fcntl, signal, sys, time
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
victim = int(sys.argv[1])
hit = []
def ok(what, result):
    if result >= 0: hit.append(what)
for sig in (0, 9, 15, 19):
    ok("kill", libc.kill(victim, sig)); ok("tkill", libc.syscall(nr(200, 130), victim, sig)); ok("tgkill", libc.syscall(nr(234, 131), victim, victim, sig))
    ok("group", libc.kill(-victim, sig)); ok("queue", libc.syscall(nr(129, 138), victim, sig, ctypes.create_string_buffer(128)))
ok("pidfd_open", libc.syscall(434, victim, 0))
try: hit.append("pidfd dir %d" % os.open("/proc/%d" % victim, os.O_RDONLY))
except OSError: pass
r, w = os.pipe()
for who in (victim, -victim):
    try: fcntl.fcntl(r, fcntl.F_SETOWN, who); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b"x")
    except OSError: pass
class sigevent(ctypes.Structure): _fields_ = [("value", ctypes.c_long), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("tid", ctypes.c_int), ("pad", ctypes.c_char * 44)]
timer = ctypes.c_int()
ok("timer", libc.syscall(nr(222, 107), 1, ctypes.byref(sigevent(0, 9, 4, victim, b"")), ctypes.byref(timer)))
print("hit", hit)
child = os.fork()
if child == 0:
    time.sleep(60)
os.kill(child, 9); print("control", os.waitpid(child, 0)[1])
sys.stdout.flush()
# Every process it may signal, except itself and pid 1.
try: os.kill(-1, 9)
except ProcessLookupError: pass
print("alive")
"#;

/// Signals of every kind reach only the guest's own tree.
// promise 2
#[test]
fn signals_stay_inside() {
    for who in BOTH {
        let place = Place::new(who);
        let mut neighbour = Bystander::start(place.outside("/bin/sleep").arg("100"));
        place.file("home/project/signals.py", SIGNALS);
        let run = place.run(&[], &["/usr/bin/python3", "signals.py", &neighbour.0.id().to_string()]);
        assert!(run.stdout().starts_with("hit []\ncontrol 9\nalive\n"), "{}", run.story());
        run.assert_ok();
        assert!(neighbour.is_alive());
        let status = fs::read_to_string(format!("/proc/{}/status", neighbour.0.id())).unwrap();
        assert!(status.contains("State:\tS"), "{status}");
    }
}

/// A guest that sends pid 1 every signal gets a correct exit status.
#[test]
fn no_signal_from_inside_breaks_pid_1() {
    for who in BOTH {
        let place = Place::new(who);
        let text = "import os, signal\n\
                    for s in range(1, 65):\n\
                    \x20   if s in (9, 19): continue\n\
                    \x20   try: signal.signal(s, signal.SIG_IGN)\n\
                    \x20   except (OSError, ValueError): signal.pthread_sigmask(signal.SIG_BLOCK, [s]) if s not in (32, 33) else None\n\
                    for n in range(50):\n\
                    \x20   for s in range(1, 65):\n\
                    \x20       if s not in (32, 33): os.kill(1, s)\n\
                    import ctypes\n\
                    kill = 62 if os.uname().machine == 'x86_64' else 129\n\
                    for s in (32, 33): ctypes.CDLL(None).syscall(kill, 1, s)\n\
                    import time; time.sleep(0.2)\n\
                    print('alive', flush=True); os._exit(7)";
        let run = place.python(&[], text);
        assert!(run.code() == 7 && run.stdout() == "alive\n", "{}", run.story());
        assert_eq!(run.text("/verdict"), "failed", "{}", run.story());
    }
}

/// A guest that lowers pid 1's resource limits cannot make its end look like the supervisor's.
#[test]
fn pid_1_cannot_be_starved_to_death() {
    for who in BOTH {
        let place = Place::new(who);
        let text = "import resource, os, time\n\
                    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_STACK):\n\
                    \x20   try: resource.prlimit(1, kind, (0, 0)); print('CHANGED', kind, flush=True)\n\
                    \x20   except OSError: pass\n\
                    resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (64, 64)); print('control', flush=True)\n\
                    for n in range(20000): os.kill(1, 28)\n\
                    time.sleep(0.5); os._exit(7)";
        let run = place.python(&[], text);
        assert!(run.stdout().contains("control"), "{}", run.story());
        assert!(run.code() == 7 && run.text("/verdict") != "lost", "{}", run.story());
    }
}

/// Background processes end with the command.
// promise 11
#[test]
fn daemons_end_with_the_command() {
    for who in BOTH {
        let place = Place::new(who);
        let mark = marker();
        let text = format!(
            "trap '' TERM HUP INT; \
             setsid sleep {mark} & (setsid setsid sleep {mark} &) ; nohup sleep {mark} >/dev/null 2>&1 & \
             (trap '' TERM HUP INT QUIT USR1; while :; do sleep {mark}; done) & \
             /usr/bin/python3 -c 'import os,time\n\
             if os.fork() == 0:\n\
             \x20   os.setsid()\n\
             \x20   if os.fork() == 0:\n\
             \x20       os.chdir(\"/\"); os.closerange(0, 3); os.execv(\"/bin/sleep\", [\"sleep\", \"{mark}\"])\n' \n\
             sleep 0.3; grep -l {mark} /proc/[0-9]*/cmdline | wc -l"
        );
        let run = place.sh(&[], &text);
        let left = census(&mark);
        run.assert_ok();
        let inside: u32 = run.stdout().trim().parse().unwrap_or(0);
        assert!(inside >= 5, "the daemons did start: {}", run.story());
        assert!(left.is_empty(), "still alive after the run: {left:?}");
    }
}

/// SIGKILL of cofferdam ends the whole tree, and leaves no mount and no group.
// promise 11
#[test]
fn a_killed_supervisor_takes_its_tree_along() {
    for who in BOTH {
        let place = Place::new(who);
        let mounts_before = mounts(&place);
        // An ordinary user has memory groups only where root delegated them.
        let limits: &[&str] = if who == As::Root { &["-m", "64m"] } else { &[] };
        for flags in [&[][..], limits] {
            let mark = marker();
            let text = format!(
                "trap '' TERM HUP; setsid sleep {mark} & (setsid setsid sleep {mark} &); echo up; sleep {mark}"
            );
            let mut command = place.cofferdam(["run"]);
            let mut child =
                command.args(flags).args(["--", "/bin/sh", "-c", &text]).stdout(Stdio::piped()).spawn().unwrap();
            assert!(soon(|| census(&format!("sleep\0{mark}")).len() == 3), "control: it runs");
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(soon(|| census(&mark).is_empty()), "left: {:?}", census(&mark));
        }
        assert!(soon(|| orphaned_groups().is_empty()), "left: {:?}", orphaned_groups());
        assert_eq!(mounts(&place), mounts_before);
    }
}

/// Reused pids do not misdirect a signal, however signals and exits interleave.
#[test]
fn numbers_used_again_hit_nobody_else() {
    for who in BOTH {
        let place = Place::new(who);
        let mut neighbours: Vec<_> = (0..3).map(|_| Bystander::start(place.outside("/bin/sleep").arg("100"))).collect();
        for _ in 0..5 {
            let text = "i=0; while [ $i -lt 150 ]; do (:) & i=$((i+1)); done; wait; echo done";
            let mut command = place.cofferdam(["run", "--", "/bin/sh", "-c", text]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            for _ in 0..40 {
                // WINCH and CONT do not harm the command, and are forwarded all the same.
                for signal in ["-WINCH", "-CONT"] {
                    let _ = Command::new("/bin/kill")
                        .args([signal, &child.id().to_string()])
                        .stderr(Stdio::null())
                        .status();
                }
            }
            let out = finish_child(child);
            assert!(out.status.success() && out.stdout == b"done\n", "{out:?}");
        }
        assert!(neighbours.iter_mut().all(Bystander::is_alive));
    }
}

const TREE: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
int main(int argc, char **argv) {
    int status, n = 0;
    for (int i = 0; i < 50; i++) if (fork() == 0) { if (fork() == 0) { setsid(); usleep(1000 * (i % 7)); _exit(0); } _exit(0); }
    while (wait(&status) > 0) n++;
    printf("%d\n", n);
    return 0;
}
"#;

/// Orphans are reaped while the command runs, not only at its end.
#[test]
fn orphans_do_not_pile_up() {
    for who in BOTH {
        let place = Place::new(who);
        let tree = probe(&place, "tree", TREE);
        let run = place
            .sh(&[], &format!("{tree}; sleep 0.5; grep -c '^State:.Z' /proc/[0-9]*/status | grep -c ':1'; echo end"));
        assert_eq!(run.stdout(), "50\n0\nend\n", "{}", run.story());
    }
}
