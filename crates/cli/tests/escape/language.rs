//! Every way to open a denied file, in several languages and during renames: no byte of it is read.

use crate::support::{BOTH, Place};
use crate::{CANARY, assert_no_canary};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Every way to a file ends at the same boundary.
// promise 1
#[test]
fn no_road_leads_around_the_language() {
    let roads = r#"
import ctypes, io, mmap, os, subprocess, sys
path, library = sys.argv[1], sys.argv[2]
c = ctypes.CDLL(None, use_errno=True)
own = ctypes.CDLL(library, use_errno=True)
def take(fd):
    if fd < 0: raise OSError('no descriptor')
    return os.read(fd, 64)
def how(*args): return take(c.syscall(*args))
raw = path.encode()
here = -100
class How(ctypes.Structure): _fields_ = [('flags', ctypes.c_uint64), ('mode', ctypes.c_uint64), ('resolve', ctypes.c_uint64)]
def spawned(*argv):
    r, w = os.pipe()
    pid = os.posix_spawn(argv[0], argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, w, 1)])
    os.close(w); os.waitpid(pid, 0)
    return os.read(r, 64)
def sent():
    r, w = os.pipe(); os.sendfile(w, os.open(path, 0), 0, 64); return os.read(r, 64)
def linked():
    os.path.lexists('/tmp/l') and os.unlink('/tmp/l'); os.symlink(path, '/tmp/l'); return open('/tmp/l', 'rb').read()
def hard():
    os.path.lexists('/tmp/h') and os.unlink('/tmp/h'); os.link(path, '/tmp/h'); return open('/tmp/h', 'rb').read()
def reopened():
    return open('/proc/self/fd/%d' % os.open(path, os.O_PATH), 'rb').read()
def upward():
    os.chdir('/proc/self/root'); return open('.' + path, 'rb').read()
def mapped():
    with open(path, 'rb') as f: return mmap.mmap(f.fileno(), 0, prot=1)[:]
def handle():
    buffer = ctypes.create_string_buffer(b'\x80\0\0\0', 136); mount = ctypes.c_int()
    if c.name_to_handle_at(here, raw, buffer, ctypes.byref(mount), 0): raise OSError('no handle')
    return take(c.open_by_handle_at(os.open('/', 0), buffer, 0))
roads = {
    'open': lambda: open(path, 'rb').read(),
    'os.open': lambda: take(os.open(path, os.O_RDONLY)),
    'FileIO': lambda: io.FileIO(path).read(),
    'open_code': lambda: io.open_code(path).read(),
    'dir_fd': lambda: take(os.open(os.path.basename(path), 0, dir_fd=os.open(os.path.dirname(path), os.O_PATH))),
    'libc open': lambda: take(c.open(raw, 0)),
    'libc fopen': lambda: take(c.fileno(ctypes.c_void_p(ctypes.cast(c.fopen(raw, b'r'), ctypes.c_void_p).value))) if c.fopen(raw, b'r') else None,
    'SYS_open': lambda: how(2, raw, 0),
    'SYS_openat': lambda: how(257, here, raw, 0),
    'SYS_openat2': lambda: how(437, here, raw, ctypes.byref(How(0, 0, 0)), 24),
    'own library': lambda: take(own.road(raw)),
    'posix_spawn': lambda: spawned('/bin/cat', path),
    'shell': lambda: subprocess.run(['/bin/sh', '-c', 'cat <"$0"', path], capture_output=True).stdout,
    'sendfile': sent, 'symlink': linked, 'hard link': hard, 'reopen': reopened, 'through /proc': upward,
    'mmap': mapped, 'handle': handle,
}
for name, road in roads.items():
    try: got = road()
    except (OSError, ValueError): got = None
    print(name, '->', (got or b'-').decode())
"#;
    let own = "#include <sys/syscall.h>\n#include <unistd.h>\nint road(const char *path) { long r;\n__asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(SYS_open), \"D\"(path), \"S\"(0L), \"d\"(0L) : \"rcx\", \"r11\", \"memory\");\nreturn (int)r; }";
    for who in BOTH {
        let place = Place::new(who);
        let library = place.project.join("road.so");
        let mut cc = Command::new("cc");
        let mut cc = cc
            .args(["-shared", "-fPIC", "-w", "-x", "c", "-o"])
            .arg(&library)
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cc.stdin.take().unwrap().write_all(own.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success());
        let outside = place.file("home/private/secret", CANARY);
        let denied = place.file("home/project/denied", CANARY);
        let allowed = place.file("home/project/allowed", "in policy");
        let deny = ["--deny-read", denied.to_str().unwrap()];
        let by = |flags: &[&str], path: &Path| {
            let run =
                place.run(flags, &["/usr/bin/python3", "-c", roads, path.to_str().unwrap(), library.to_str().unwrap()]);
            assert!(run.code() == 0, "{who:?} {}", run.story());
            run
        };
        for path in [&outside, &denied] {
            for watched in [&deny[..], &[&deny[..], &["--report-reads"]].concat()] {
                let run = by(watched, path);
                assert_no_canary(&run);
                let through: Vec<String> =
                    run.stdout().lines().filter(|l| !l.ends_with("-> -")).map(String::from).collect();
                assert_eq!(through, Vec::<String>::new(), "{who:?} {}", path.display());
                if watched.contains(&"--report-reads") {
                    run.assert_denied("fs.read", path.to_str().unwrap());
                }
            }
        }
        // Control: the same ways read the file beside it.
        let open: Vec<String> =
            by(&deny, &allowed).stdout().lines().filter(|l| l.ends_with("in policy")).map(String::from).collect();
        assert!(open.len() >= 14, "{who:?}: {open:#?}");
    }
}

/// Under concurrent renames and pointer changes, no byte of a denied file is ever delivered.
// promise 1
#[test]
fn denied_bytes_are_never_delivered() {
    for who in BOTH {
        let place = Place::new(who);
        let denied = place.file("home/project/denied", CANARY);
        let allowed = place.file("home/project/allowed", "in policy");
        let probe = place.c_program(
            "race",
            r#"
            #define _GNU_SOURCE
            #include <fcntl.h>
            #include <pthread.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            #include <unistd.h>
            static char good[256], bad[256], moving[256];
            static void *exchange(void *x) { for (;;) renameat2(AT_FDCWD, "/tmp/a", AT_FDCWD, "/tmp/b", RENAME_EXCHANGE); }
            static void *rewrite(void *x) { for (;;) { memcpy(moving, bad, 256); memcpy(moving, good, 256); } }
            int main(int argc, char **argv) {
                pthread_t t;
                long fine = 0, leaked = 0, rounds = atol(argv[3]);
                strcpy(good, argv[1]); strcpy(bad, argv[2]); strcpy(moving, good);
                if (symlink(good, "/tmp/a") || symlink(bad, "/tmp/b")) return 30;
                for (long i = 0; i < rounds; i++) {
                    // The first round is the control, before any swap.
                    if (i == 1) { pthread_create(&t, 0, exchange, 0); pthread_create(&t, 0, rewrite, 0); }
                    char b[64] = {0};
                    int fd = open(i & 1 ? "/tmp/a" : moving, O_RDONLY);
                    if (fd < 0) continue;
                    if (read(fd, b, 63) > 0) { if (!strcmp(b, "in policy")) fine++; else leaked++; }
                    close(fd);
                }
                printf("%s %ld\n", fine ? "fine" : "none", leaked);
                return 0;
            }"#,
        );
        let (denied, allowed, probe) = (denied.to_str().unwrap(), allowed.to_str().unwrap(), probe.to_str().unwrap());
        for (more, rounds) in [(&[][..], "100000"), (&["--report-reads"][..], "10000")] {
            let flags = [&["--deny-read", denied, "-t", "280s"], more].concat();
            let run = place.run(&flags, &[probe, allowed, denied, rounds]);
            assert_no_canary(&run);
            assert_eq!(run.assert_ok().stdout(), "fine 0\n", "{who:?} {more:?}: {}", run.story());
        }
    }
}
