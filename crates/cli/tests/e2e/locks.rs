//! File locks behave as outside: between processes of a guest, and between guest and host on a writable path, with
//! waiting, timeouts and signals.

use crate::support::{BOTH, Place};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Two processes and one file for each kind of lock: one holds it, the other is refused, waits, and gets it.
const EXCLUDE: &str = r#"
import errno, fcntl, os, signal, struct, sys
def ofd(wait):
    return lambda fd: fcntl.fcntl(fd, 38 if wait else 37, struct.pack("hhqqixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))
kinds = {"flock": (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda fd: fcntl.flock(fd, fcntl.LOCK_EX)),
         "posix": (lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)),
         "ofd": (ofd(False), ofd(True))}
for name, (attempt, wait) in kinds.items():
    held, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        wait(fd); os.write(held[1], b"x"); os.read(go[0], 1); os.close(fd); os._exit(0)
    os.read(held[0], 1)
    fd = os.open(sys.argv[1], os.O_RDWR)
    try: attempt(fd); print(name, "TOOK")
    except OSError as e: print(name, errno.errorcode[e.errno])
    class Alarm(Exception): pass
    def ring(*_): raise Alarm
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try: wait(fd); print(name, "TOOK")
    except Alarm: print(name, "interrupted")
    os.write(go[1], b"x"); wait(fd); print(name, "waited")
    os.close(fd); os.waitpid(pid, 0)
"#;

#[test]
fn processes_of_a_guest_exclude_each_other() {
    let expected: String =
        ["flock", "posix", "ofd"].map(|kind| format!("{kind} EAGAIN\n{kind} interrupted\n{kind} waited\n")).concat();
    for who in BOTH {
        let place = Place::new(who);
        for file in ["lock", "/tmp/lock"] {
            let run = place.run(&[], &["/usr/bin/python3", "-c", EXCLUDE, file]);
            assert_eq!(run.stdout(), expected, "{who:?}: {}", run.story());
        }
    }
}

/// An flock call restarts after signals as outside, and `flock -w` times out.
#[test]
fn waiting_for_a_lock_ends_by_its_timeout() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.sh(
            &[],
            "flock lock sh -c 'flock -w 0.1 lock echo TOOK || echo timed out'; flock -w 5 lock echo free; flock lock flock -n lock echo TOOK || echo busy",
        );
        assert_eq!(run.stdout(), "timed out\nfree\nbusy\n", "{who:?}: {}", run.story());
    }
}

#[test]
fn a_guest_waits_for_the_host_where_it_may_write() {
    for who in BOTH {
        let place = Place::new(who);
        let file = place.file("home/open/file", "");
        let mut holder = Command::new("flock")
            .arg(&file)
            .args(["sh", "-c", "echo held; read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let open = file.parent().unwrap().to_str().unwrap();
        let busy = place.sh(&["--write", open], &format!("flock -n {open}/file echo TOOK || echo busy"));
        assert_eq!(busy.stdout(), "busy\n", "{who:?}: {}", busy.story());
        let script = format!("echo waiting; flock {open}/file echo took");
        let mut command = place.cofferdam(["run", "--write", open, "--", "sh", "-c", &script]);
        let mut guest = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(guest.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "waiting");
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().code().is_some());
        assert_eq!(lines.next().unwrap().unwrap(), "took", "{who:?}");
        assert!(guest.wait().unwrap().success());
    }
}
