//! The caller's terminal accepts no injected input from inside.

use super::truth::{finish, probe};
use crate::support::{BOTH, Place, binary};

const INJECT: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    const char *text = "INJECTED\n";
    int tty = open("/dev/tty", O_RDWR), fds[] = {0, 1, 2, tty, -1};
    unsigned long commands[] = {TIOCSTI, 0x541c, TIOCCONS, TIOCSETD}, highs[] = {0, 1ul << 32, 0xffffffff00000000ul, 0xdeadul << 32};
    struct winsize size;
    int bad = 0;
    for (int f = 0; f < 5; f++) for (int c = 0; c < 4; c++) for (int h = 0; h < 4; h++) {
        if (c) { if (syscall(SYS_ioctl, fds[f], commands[c] | highs[h], text) != -1 || errno != EPERM) bad++; }
        else for (const char *p = text; *p; p++) if (syscall(SYS_ioctl, fds[f], TIOCSTI | highs[h], p) != -1 || errno != EPERM) bad++;
    }
    dprintf(1, "bad %d terminal %d size %d\n", bad, isatty(0), ioctl(0, TIOCGWINSZ, &size));
    return 0;
}
"#;

/// Opens a pty, leads a session on it, runs a command there and reads what was typed into it.
const HARNESS: &str = r#"
import fcntl, os, select, subprocess, sys, termios, time
master, slave = os.openpty()
os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
settings = termios.tcgetattr(slave); settings[3] &= ~(termios.ICANON | termios.ECHO); termios.tcsetattr(slave, termios.TCSANOW, settings)
child = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=slave, stderr=slave)
seen, end = b"", time.time() + 50
while child.poll() is None and time.time() < end:
    if select.select([master], [], [], 0.05)[0]: seen += os.read(master, 65536)
if child.poll() is None: child.kill(); print("HANGS")
while select.select([master], [], [], 0.1)[0]: seen += os.read(master, 65536)
termios.tcsetattr(slave, termios.TCSANOW, settings)
def typed():
    return os.read(slave, 4096) if select.select([slave], [], [], 0.1)[0] else b""
print("seen", seen.decode(errors="replace").replace("\r", ""))
print("typed", typed())
for byte in b"own": fcntl.ioctl(slave, termios.TIOCSTI, bytes([byte]))
print("control", typed())
"#;

/// TIOCSTI and similar ioctls are refused for any high bits, on the guest's own terminal and on pipes. The host's
/// terminal receives no input, although this kernel would let the caller inject it.
// promise 2
#[test]
fn nothing_is_typed_into_the_callers_terminal() {
    for who in BOTH {
        let place = Place::new(who);
        let inject = probe(&place, "inject", INJECT);
        let harness = place.file("home/project/harness.py", HARNESS);
        for (flag, terminal) in [("--tty", 1), ("--no-tty", 0)] {
            let mut command = place.outside("/usr/bin/python3");
            command.arg(&harness).arg(binary()).args(["run", "-q", flag, "--", &inject]);
            let out = finish(&mut command);
            let shown = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(shown.contains(&format!("bad 0 terminal {terminal} size {}", terminal - 1)), "{shown}{out:?}");
            assert!(shown.contains("typed b''\n"), "{shown}");
            if std::fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti").is_ok_and(|t| t.trim() == "1") {
                assert!(shown.contains("control b'own'\n"), "{shown}{out:?}");
            }
            let open = ["run", "-q", flag, "--", "/bin/sh", "-c", "sleep 0.2; echo typed >/dev/tty; ls /dev/pts"];
            let out = finish(place.outside("/usr/bin/python3").arg(&harness).arg(binary()).args(open));
            let shown = String::from_utf8_lossy(&out.stdout).into_owned();
            // The guest's /dev/pts lists its own terminal alone; without one there is none to open.
            let own = if terminal == 1 { "typed\n0" } else { "No such device" };
            assert!(shown.contains(own) && shown.contains("ptmx") && !shown.contains("HANGS"), "{shown}");
        }
    }
}
