//! Privilege: set-user-ID programs, capabilities, the caller's remaining powers, injection through the caller's
//! environment, and executable programs.

use super::truth::{Bystander, census, finish, library, marker, probe, soon};
use crate::support::family::{children, is_first};
use crate::support::patience::Watch;
use crate::support::{As, BOTH, Place, USER};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

const WHO: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    char line[256]; FILE *f = fopen("/proc/self/status", "r");
    printf("uid %d euid %d gid %d egid %d\n", getuid(), geteuid(), getgid(), getegid());
    while (fgets(line, sizeof line, f)) if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Seccomp:", 8)) fputs(line, stdout);
    return 0;
}
"#;

/// Set-user-ID, set-group-ID and capability files of the host give no privilege inside.
// promise 2
#[test]
fn privileged_files_give_no_privilege() {
    // cap_net_raw,cap_sys_admin=ep in revision 2 of the attribute.
    const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for who in BOTH {
        let place = Place::new(who);
        let setuid = probe(&place, "setuid", WHO);
        let capable = probe(&place, "capable", WHO);
        chown(&setuid, Some(0), Some(0)).unwrap();
        fs::set_permissions(&setuid, fs::Permissions::from_mode(0o6755)).unwrap();
        let hex: String = CAPABILITIES.iter().map(|b| format!("{b:02x}")).collect();
        let text = format!("import os; os.setxattr({capable:?}, 'security.capability', bytes.fromhex('{hex}'))");
        assert!(Command::new("/usr/bin/python3").args(["-c", &text]).status().unwrap().success());
        let ordinary = Place {
            who: As::User,
            root: "/nonexistent".into(),
            home: place.home.clone(),
            project: place.project.clone(),
            served: None,
            watch: Watch::over(&place.root),
        };
        let outside = |program: &str| String::from_utf8(finish(&mut ordinary.outside(program)).stdout).unwrap();
        assert!(outside(&setuid).contains("uid 1500 euid 0 gid 1500 egid 0"), "control: {}", outside(&setuid));
        assert!(outside(&capable).contains("CapEff:\t0000000000202000"), "control: {}", outside(&capable));
        for program in [&setuid, &capable] {
            let run = place.run(&[], &[program]);
            let inside = if who == As::Root { 1000 } else { USER };
            let want = format!("uid {inside} euid {inside} gid {inside} egid {inside}\n");
            assert!(run.stdout().starts_with(&want), "{}", run.story());
            for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert!(run.stdout().contains(&format!("{line}:\t0000000000000000\n")), "{}", run.story());
            }
            assert!(run.stdout().contains("NoNewPrivs:\t1\nSeccomp:\t2\n"), "{}", run.story());
        }
        let run = place.sh(&[], "while read -r a b c d e options rest; do case ,$options, in *,nosuid,*) ;; *) echo SUID $e;; esac; done </proc/self/mountinfo; su -c id </dev/null 2>&1 | grep uid=0; echo control");
        assert_eq!(run.stdout(), "control\n", "{}", run.story());
    }
}

const LEAVE: &str = r##"
import os, ctypes, stat
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
def attempt(act):
    try: act()
    except OSError: pass
def fresh(name):
    open(name, "w").write("#!/bin/sh\n"); return name
for mode in (0o4755, 0o2755, 0o6777):
    n = "%o" % mode
    attempt(lambda: os.chmod(fresh("a" + n), mode))
    attempt(lambda: libc.syscall(nr(90, -1), fresh("b" + n).encode(), mode))
    f = open(fresh("c" + n)); attempt(lambda: os.fchmod(f.fileno(), mode))
    attempt(lambda: libc.syscall(nr(268, 53), -100, fresh("d" + n).encode(), mode))
    attempt(lambda: libc.syscall(452, -100, fresh("e" + n).encode(), mode, 0))
    attempt(lambda: libc.syscall(452, os.open(fresh("f" + n), os.O_RDONLY), b"", mode, 0x1000))
    attempt(lambda: libc.syscall(nr(2, -1), ("g" + n).encode(), 0o101, mode))
    attempt(lambda: libc.syscall(nr(257, 56), -100, ("h" + n).encode(), 0o101, mode))
    attempt(lambda: libc.syscall(nr(85, -1), ("i" + n).encode(), mode))
    attempt(lambda: libc.syscall(nr(133, -1), ("j" + n).encode(), 0o100000 | mode, 0))
    attempt(lambda: libc.syscall(nr(259, 33), -100, ("k" + n).encode(), 0o100000 | mode, 0))
    how = (ctypes.c_ulonglong * 3)(0o101, mode, 0)
    attempt(lambda: libc.syscall(437, -100, ("l" + n).encode(), how, 24))
    t = libc.syscall(nr(257, 56), -100, b".", 0o20200000 | 2, mode)
    if t >= 0: libc.syscall(nr(265, 37), -100, b"/proc/self/fd/%d" % t, -100, ("m" + n).encode(), 0x400)
    attempt(lambda: os.chmod("/proc/self/fd/%d" % os.open(fresh("n" + n), os.O_RDONLY), mode))
os.chmod(fresh("control"), 0o755)
try: os.setxattr(fresh("x"), "security.capability", bytes.fromhex("0100000200202000" + "00" * 12)); print("CAPABLE")
except OSError: pass
"##;

/// A write grant must not become a way to leave a set-user-ID program for other users of the host.
// promise 2
#[test]
fn no_privileged_file_is_left_on_the_host() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.python(&["--direct", "--write", place.project.to_str().unwrap()], LEAVE);
        let mode = |path: &Path| fs::metadata(path).map(|m| m.mode() & 0o7777).unwrap_or(0);
        assert_eq!(mode(&place.project.join("control")), 0o755, "control: {}", run.story());
        let entries = fs::read_dir(&place.project).unwrap().flatten().map(|e| e.path());
        let bad: Vec<_> =
            entries.filter(|p| mode(p) & 0o6000 != 0).map(|p| format!("{} {:o}", p.display(), mode(&p))).collect();
        assert!(bad.is_empty(), "left on the host: {bad:?}");
        assert!(!run.stdout().contains("CAPABLE"), "{}", run.story());
    }
}

/// As seen from the host, every task of a guest has no capability, a seccomp filter and no_new_privs, and pid 1 is not
/// dumpable.
// promise 2
#[test]
fn no_task_of_a_guest_keeps_privilege() {
    for who in BOTH {
        let place = Place::new(who);
        let mark = marker();
        let text = format!(
            "sleep {mark} & /usr/bin/python3 -c 'import threading,time\nfor n in range(3): threading.Thread(target=time.sleep, args=(60,)).start()\n#{mark}' & sleep {mark}"
        );
        let mut command = place.cofferdam(["run", "--", "/bin/sh", "-c", &text]);
        let guest = Bystander::start(&mut command);
        assert!(soon(|| census(&mark).len() >= 5), "control: it runs: {:?}", census(&mark));
        let first: Vec<u32> = children(guest.0.id()).into_iter().filter(|pid| is_first(*pid)).collect();
        assert_eq!(first.len(), 1, "one pid 1 below the supervisor");
        assert_eq!(fs::metadata(format!("/proc/{}/environ", first[0])).unwrap().uid(), 0, "pid 1 cannot be dumped");
        let all = || {
            let mut tree = first.clone();
            let mut at = 0;
            while at < tree.len() {
                tree.extend(children(tree[at]));
                at += 1;
            }
            let tasks =
                tree.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten());
            tasks.map(|task| task.path()).collect::<Vec<_>>()
        };
        assert!(soon(|| all().len() >= 8), "control: processes and threads: {:?}", all());
        for task in all() {
            let status = fs::read_to_string(task.join("status")).unwrap();
            for line in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert!(status.contains(&format!("{line}:\t0000000000000000\n")), "{status}");
            }
            assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
            let ids: Vec<u32> = line(&status, "Uid:").chain(line(&status, "Gid:")).collect();
            match who {
                As::Root => {
                    assert!(ids.iter().all(|id| *id >= 0x7000_0000), "{status}");
                    assert_eq!(line(&status, "Groups:").count(), 0, "{status}");
                }
                As::User => assert!(ids.iter().all(|id| *id == USER), "{status}"),
            }
        }
    }
}

fn line<'a>(status: &'a str, name: &str) -> impl Iterator<Item = u32> + 'a {
    let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().filter_map(|n| n.parse().ok())
}

const OWN: &str = r#"
import resource, ctypes, os
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
raised = []
for kind in range(16):
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY: continue
    try: resource.setrlimit(kind, (hard + 1, hard + 1))
    except (OSError, ValueError): pass
    if resource.getrlimit(kind)[1] != hard: raised.append(kind)
if libc.prctl(35, 1, 0x10000, 0, 0) == 0: raised.append("mm")
if libc.prctl(39, 0) == 0: raised.append("nnp")
if libc.prctl(47, 2, 21, 0, 0) == 0: raised.append("ambient")
for call, args in ((nr(105, 146), (0,)), (nr(106, 144), (0,)), (nr(117, 147), (0, 0, 0)), (nr(119, 149), (0, 0, 0)),
                   (nr(116, 159), (0, None)), (nr(122, 151), (0,))):
    libc.syscall(call, *args)
try: open("/proc/self/oom_score_adj", "w").write("-1000"); raised.append("oom")
except OSError: pass
try: os.nice(-5); raised.append("nice")
except OSError: pass
try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)); raised.append("realtime")
except OSError: pass
print(raised, os.getuid() == os.geteuid() != 0, libc.prctl(1, 9, 0, 0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)); print("control", resource.getrlimit(resource.RLIMIT_NOFILE))
"#;

/// A guest may lower its own resource limits and never raise them.
#[test]
fn limits_can_only_be_tightened() {
    for who in BOTH {
        let run = Place::new(who).python(&[], OWN);
        assert_eq!(run.stdout(), "[] True 0\ncontrol (32, 32)\n", "{}", run.story());
    }
}

const SPEAK: &str = r#"
#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void speak(void) {
    char line[64] = "LOADED-IN ", name[32]; int fd = open("/proc/self/comm", O_RDONLY), n = read(fd, name, 31);
    close(fd); if (n > 0) { name[n] = 0; strcat(line, name); write(2, line, strlen(line)); }
}
"#;

/// Variables in the caller's environment that make programs load code do not reach the guest.
#[test]
fn the_callers_environment_injects_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let evil = library(&place, "evil.so", SPEAK);
        let startup = place.file("home/project/startup.py", "import sys; print('STARTUP', file=sys.stderr)");
        place.file("home/project/sitecustomize.py", "import sys; print('SITE', file=sys.stderr)");
        let project = place.project.to_str().unwrap();
        let injections = [
            ("LD_PRELOAD", evil.as_str()),
            ("LD_AUDIT", &evil),
            ("LD_LIBRARY_PATH", project),
            ("GCONV_PATH", project),
            ("PYTHONPATH", project),
            ("PYTHONSTARTUP", startup.to_str().unwrap()),
            ("PYTHONHOME", "/nonexistent"),
            ("NODE_OPTIONS", "--require=/nonexistent"),
            ("BASH_ENV", &evil),
            ("ENV", &evil),
            ("PERL5OPT", "-Mx"),
            ("GIT_SSH_COMMAND", "touch /tmp/x"),
            ("GIT_CONFIG_GLOBAL", &evil),
            ("RUBYOPT", "-rx"),
            ("IFS", "x"),
            ("SSH_AUTH_SOCK", project),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x"),
            ("JAVA_TOOL_OPTIONS", "-x"),
            ("TMPDIR", project),
            ("EDITOR", &evil),
        ];
        let script = "env; /usr/bin/python3 -c 'print(1)'";
        let mut command = place.cofferdam(["run", "--", "/bin/sh", "-c", script]);
        // The caller's own tools obey the variables; only processes inside are checked.
        let out = finish(command.envs(injections));
        let (shown, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && shown.ends_with("1\n") && shown.contains("PATH="), "{shown}{stderr}");
        for (name, _) in injections {
            assert!(!shown.lines().any(|l| l.starts_with(&format!("{name}="))), "{name}: {shown}");
        }
        for bad in ["LOADED-IN sh", "LOADED-IN env", "LOADED-IN python", "STARTUP", "SITE"] {
            assert!(!stderr.contains(bad), "{bad}: {stderr}");
        }
        let control = place.run(&["-e", &format!("LD_PRELOAD={evil}")], &["/usr/bin/env"]);
        assert!(control.stderr().contains("LOADED-IN env"), "control: {}", control.story());
    }
}

const UNLISTED: &str = r#"
#include <fcntl.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) { close(open(argv[1], O_CREAT | O_WRONLY, 0644)); return 0; }
"#;

const BYPASS: &str = r##"
import ctypes, mmap, os, subprocess, shutil, sys
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
unlisted, out = sys.argv[1:3]
code = open(unlisted, "rb").read()
def attempt(name, act):
    pid = os.fork()
    if pid == 0:
        try: act(os.path.join(out, "ran-" + name))
        except BaseException: pass
        os._exit(1)
    os.waitpid(pid, 0)
def put(path):
    open(path, "wb").write(code); os.chmod(path, 0o755); return path
attempt("direct", lambda t: os.execv(unlisted, [unlisted, t]))
attempt("tmp", lambda t: os.execv(put("/tmp/x"), ["x", t]))
attempt("shm", lambda t: os.execv(put("/dev/shm/x"), ["x", t]))
attempt("grant", lambda t: os.execv(put(out + "/x"), ["x", t]))
def memory(t, flags=0):
    fd = libc.syscall(nr(319, 279), b"x", flags); os.write(fd, code)
    os.execv("/proc/self/fd/%d" % fd, ["x", t])
attempt("memfd", memory)
attempt("memfd-exec", lambda t: memory(t, 0x10))
def at(t, flags):
    fd = os.open(unlisted, os.O_RDONLY)
    argv = (ctypes.c_char_p * 3)(b"x", t.encode(), None)
    libc.syscall(nr(322, 281), fd, b"", argv, (ctypes.c_char_p * 1)(None), flags)
attempt("execveat", lambda t: at(t, 0x1000))
loader = "/lib64/ld-linux-x86-64.so.2"
attempt("loader-tmp", lambda t: os.execv(loader, [loader, put("/tmp/y"), t]))
attempt("loader-grant", lambda t: os.execv(loader, [loader, put(out + "/y"), t]))
attempt("loader-usr", lambda t: os.execv(loader, [loader, "/usr/bin/touch", t]))
attempt("usr", lambda t: os.execv("/usr/bin/touch", ["touch", t]))
def script(t):
    open("/tmp/s", "w").write("#!%s %s\n" % (unlisted, t)); os.chmod("/tmp/s", 0o755); os.execv("/tmp/s", ["s"])
attempt("script", script)
def mapped(path):
    def act(t):
        fd = os.open(put(path), os.O_RDONLY)
        mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        os.close(os.open(t, os.O_CREAT | os.O_WRONLY))
    return act
attempt("mapped-tmp", mapped("/tmp/z"))
attempt("mapped-grant", mapped(out + "/z"))
open(os.path.join(out, "control"), "w").write("listed programs run")
"##;

/// Under listed programs no other program starts: no copy, memory file, loader or script line.
// promise 4
#[test]
fn only_listed_programs_start() {
    for who in BOTH {
        let place = Place::new(who);
        let unlisted = probe(&place, "unlisted", UNLISTED);
        let out = place.dir("home/project/out");
        place.file("home/project/bypass.py", BYPASS);
        let python = fs::canonicalize("/usr/bin/python3").unwrap();
        let policy = serde_json::json!({
            "version": 1,
            "extends": ["default"],
            "defaults": {"fs": "deny", "net": "deny", "exec": "deny"},
            "exec": {"rules": [{"action": "allow", "path": python}]},
        });
        let policy = place.file("policy.json", policy.to_string());
        let flags = ["--direct", "-p", policy.to_str().unwrap(), "--write", out.to_str().unwrap()];
        let run = place.run(&flags, &[python.to_str().unwrap(), "bypass.py", &unlisted, out.to_str().unwrap()]);
        assert!(out.join("control").exists(), "control: {}", run.story());
        let names = fs::read_dir(&out).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
        let ran: Vec<_> = names.filter(|n| n.starts_with("ran-")).collect();
        assert!(ran.is_empty(), "started: {ran:?} {}", run.story());
    }
}
