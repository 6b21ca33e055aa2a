//! System calls: namespaces, 32-bit entry, keyrings, file handles, unusual sockets, and every call that is refused.

use super::truth::{Bystander, Canary, census, finish, marker, probe, soon, state};
use crate::support::{As, BOTH, Place, unique};
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Stdio;

const NAMESPACES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char stack[65536];
static int child(void *arg) { return 0; }
static int bad;
static void judge(const char *what, long flag, long got) {
    if (got >= 0) { bad++; printf("ENTERED %s %lx\n", what, flag); }
    else if (errno != EPERM && errno != ENOSYS) { bad++; printf("REACHED %s %lx: %s\n", what, flag, strerror(errno)); }
}
int main(int argc, char **argv) {
    long flags[] = {0x10000000, 0x00020000, 0x20000000, 0x08000000, 0x04000000, 0x40000000, 0x02000000, 0x10020000, 0x80};
    for (int i = 0; i < 9; i++) {
        long f = flags[i];
        judge("unshare", f, syscall(SYS_unshare, f));
        judge("unshare-high", f, syscall(SYS_unshare, f | 0xdead00000000));
        if (f != 0x80) {
            judge("clone", f, clone(child, stack + sizeof stack, f | SIGCHLD, 0));
            judge("clone-raw", f, syscall(SYS_clone, f | 0x100000000 | SIGCHLD, 0, 0, 0, 0));
        }
        unsigned long long args[11] = {f, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0};
        judge("clone3", f, syscall(SYS_clone3, args, sizeof args));
    }
    const char *names[] = {"user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time"};
    for (int i = 0; i < 8; i++) {
        char path[64];
        for (int own = 0; own < 2; own++) {
            sprintf(path, own ? "/proc/self/ns/%s" : "/proc/1/ns/%s", names[i]);
            int fd = open(path, O_RDONLY);
            if (fd >= 0 && !own) { bad++; printf("OPENED %s\n", path); }
            judge("setns", i, syscall(SYS_setns, fd, 0));
            close(fd);
        }
    }
    int pidfd = syscall(SYS_pidfd_open, 1, 0);
    judge("setns-pidfd", pidfd, syscall(SYS_setns, pidfd, 0x7e020000));
    /* Controls: processes, threads' sharing and forks are ordinary. */
    int status = -1, pid = clone(child, stack + sizeof stack, SIGCHLD, 0);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) { bad++; printf("BROKEN clone\n"); }
    if (unshare(CLONE_FILES | CLONE_FS)) { bad++; printf("BROKEN unshare\n"); }
    printf("bad %d\n", bad);
    fflush(stdout);
    if (argc > 1) execl("/bin/sleep", "sleep", argv[1], NULL);
    return 0;
}
"#;

/// No new namespace by any call; the host sees every process of the guest in its initial namespaces.
// promise 2
#[test]
fn no_namespace_can_be_made_or_entered() {
    for who in BOTH {
        let place = Place::new(who);
        let program = probe(&place, "namespaces", NAMESPACES);
        let run = place.run(&[], &[&program]);
        assert_eq!(run.stdout(), "bad 0\n", "{}", run.story());
        run.assert_denied("syscall", "unshare").assert_denied("syscall", "clone").assert_denied("syscall", "setns");
        let mark = marker();
        let mut command = place.cofferdam(["run", "--", &program, &mark]);
        let _guest = Bystander::start(&mut command);
        assert!(soon(|| census(&format!("sleep\0{mark}")).len() == 1), "control: it runs");
        let pid = census(&format!("sleep\0{mark}"))[0];
        let parent = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let parent = parent.lines().find_map(|l| l.strip_prefix("PPid:\t")).unwrap().to_string();
        for kind in ["user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time"] {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
            assert_eq!(of(&pid.to_string()), of(&parent), "{kind}");
            assert_ne!(of(&pid.to_string()), of("self"), "{kind} is the host's");
        }
    }
}

const SWEEP: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static struct { const char *name; long nr; } calls[] = {
#define C(n) {#n, SYS_##n},
C(bpf) C(perf_event_open) C(userfaultfd) C(kexec_load) C(kexec_file_load) C(init_module) C(finit_module) C(delete_module)
C(fanotify_init) C(fanotify_mark) C(open_by_handle_at) C(name_to_handle_at) C(mount) C(umount2) C(open_tree) C(move_mount) C(fsopen)
C(fsconfig) C(fsmount) C(fspick) C(mount_setattr) C(pivot_root) C(chroot) C(swapon) C(swapoff) C(acct) C(quotactl) C(quotactl_fd)
C(syslog) C(move_pages) C(migrate_pages) C(setns) C(io_uring_setup) C(io_uring_enter)
C(io_uring_register) C(add_key) C(request_key) C(keyctl) C(settimeofday) C(clock_settime) C(clock_adjtime) C(adjtimex)
C(sethostname) C(setdomainname) C(reboot) C(vhangup) C(lookup_dcookie) C(nfsservctl) C(memfd_secret)
#ifdef __x86_64__
C(iopl) C(ioperm) C(modify_ldt) C(uselib) C(ustat) C(sysfs) C(_sysctl)
#endif
{"statmount", 457}, {"listmount", 458}, {"lsm_set_self_attr", 460}, {"open_tree_attr", 467}, {"file_setattr", 469}, {"later", 480}, {"none", 999},
};
int main(void) {
    int bad = 0, refused = 0;
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        errno = 0;
        long got = syscall(calls[i].nr, -1, -1, -1, -1, -1, -1);
        if (got == -1 && (errno == EPERM || errno == ENOSYS)) { refused++; continue; }
        bad++;
        printf("REACHED %s: %ld %s\n", calls[i].name, got, strerror(errno));
    }
    if (syscall(SYS_personality, 0x0400000) != -1 || errno != EPERM) { bad++; printf("REACHED personality\n"); }
    /* Numbers of the x32 table, which shares the entry door. */
    for (long nr = 0; nr < 600; nr++) {
        errno = 0;
        if (syscall(nr | 0x40000000, -1, -1, -1, -1, -1, -1) != -1 || errno != ENOSYS) { bad++; printf("REACHED x32 %ld\n", nr); }
    }
    /* Controls: what is allowed does reach the kernel. */
    if (syscall(SYS_read, -1, 0, 0) != -1 || errno != EBADF) { bad++; printf("BROKEN read\n"); }
    if (syscall(SYS_personality, 0xffffffff) != 0) { bad++; printf("BROKEN personality\n"); }
    if (syscall(SYS_getpid) != getpid()) { bad++; printf("BROKEN getpid\n"); }
    printf("bad %d refused %d\n", bad, refused);
    return 0;
}
"#;

/// Forbidden calls fail before the kernel reads their arguments, and are reported.
// promise 2
#[test]
fn forbidden_calls_do_not_reach_the_kernel() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.run(&[], &[&probe(&place, "sweep", SWEEP)]);
        assert!(run.stdout().starts_with("bad 0 refused "), "{}", run.story());
        for call in [
            "io_uring_setup",
            "bpf",
            "mount",
            "open_by_handle_at",
            "keyctl",
            "userfaultfd",
            "personality",
            "modify_ldt",
        ] {
            run.assert_denied("syscall", call);
        }
    }
}

const OTHER_DOOR: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0), buf[256];
    strcpy(low, argv[2]);
    long fd = -1, n;
    if (argv[1][0] == '6') fd = syscall(SYS_open, low, O_RDONLY);
#ifdef __x86_64__
    else __asm__ volatile("int $0x80" : "=a"(fd) : "a"(5), "b"(low), "c"(0), "d"(0) : "r8", "r9", "r10", "r11", "memory");
#endif
    n = fd >= 0 ? read(fd, buf, sizeof buf) : -1;
    if (n > 0) write(1, buf, n);
    return 0;
}
"#;

/// A call through the 32-bit entry kills the process; the same open through the 64-bit entry works.
// promise 2
#[test]
fn the_32_bit_entry_is_closed() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let plain = place.file("home/project/plain.txt", "in policy");
        let door = probe(&place, "door", OTHER_DOOR);
        let control = place.run(&[], &[&door, "64", plain.to_str().unwrap()]);
        assert_eq!(control.stdout(), "in policy", "{}", control.story());
        for path in [plain.to_str().unwrap(), canary.text()] {
            let run = place.run(&[], &[&door, "32", path]);
            assert!(run.code() == 128 + 31 && run.stdout().is_empty(), "ends by SIGSYS: {}", run.story());
            canary.assert_safe(&run.output);
        }
    }
}

const KEYS: &str = r#"
import ctypes, sys, os
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
name = sys.argv[2].encode()
buf = ctypes.create_string_buffer(64)
def read():
    for ring in (-3, -4, -5, -1, -2):
        key = libc.syscall(nr(250, 219), 10, ring, b"user", name, 0)
        if key > 0 and libc.syscall(nr(250, 219), 11, key, buf, 64) > 0: print("READ", buf.value.decode()); return
    key = libc.syscall(nr(249, 218), b"user", name, None, 0)
    print("none" if key <= 0 else "REQUESTED")
if sys.argv[1] == "hold":
    libc.syscall(nr(248, 217), b"user", name, b"KEYTEXT", 7, -3)
    read(); sys.stdout.flush()
    os.execv(sys.argv[3], sys.argv[3:])
if sys.argv[1] == "add":
    for ring in (-1, -2, -3, -4, -5): print("ADDED" if libc.syscall(nr(248, 217), b"user", name, b"KEYTEXT", 7, ring) > 0 else "refused")
    libc.syscall(nr(250, 219), 1, None)
read()
try: print("LISTED" if name.decode() in open("/proc/keys").read() else "")
except OSError: pass
"#;

/// The caller's keys cannot be read, no key can be added, and two sandboxes share none.
// promise 2
#[test]
fn keys_are_out_of_reach() {
    for who in BOTH {
        let place = Place::new(who);
        let script = place.file("home/project/keys.py", KEYS);
        let (script, name) = (script.to_str().unwrap(), format!("cofferdam-{}", marker()));
        let cofferdam = crate::support::binary().to_str().unwrap();
        let mut host = place.outside("/usr/bin/python3");
        host.args([script, "hold", &name, cofferdam, "run", "--", "/usr/bin/python3", script, "read", &name]);
        let out = finish(&mut host);
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(shown.starts_with("READ KEYTEXT\n"), "control: the caller has the key: {shown}");
        assert!(
            shown.matches("KEYTEXT").count() == 1 && shown.contains("none") && !shown.contains("LISTED"),
            "{shown}"
        );
        let other = format!("cofferdam-{}", marker());
        let first = place.run(&[], &["/usr/bin/python3", script, "add", &other]);
        assert!(!first.stdout().contains("ADDED"), "{}", first.story());
        first.assert_denied("syscall", "add_key");
        let second = place.run(&[], &["/usr/bin/python3", script, "read", &other]);
        assert!(second.stdout().starts_with("none"), "{}", second.story());
        assert!(
            !fs::read_to_string("/proc/keys").unwrap_or_default().contains(&other),
            "a key of a guest is on the host"
        );
    }
}

const HANDLES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct { struct file_handle head; unsigned char bytes[128]; } h;
    int mount, fd, dir = open(argv[1], O_RDONLY | O_DIRECTORY);
    h.head.handle_bytes = 128;
    if (name_to_handle_at(AT_FDCWD, argv[2], &h.head, &mount, 0) == 0) printf("NAMED\n");
    /* Inode 2 is the root of most file systems; the caller's canary is given by number as well. */
    unsigned inodes[2] = {2, (unsigned)atol(argv[3])};
    for (int i = 0; i < 2; i++) {
        h.head.handle_bytes = 8; h.head.handle_type = 1;
        memcpy(h.head.f_handle, &inodes[i], 4); memset(h.head.f_handle + 4, 0, 4);
        fd = open_by_handle_at(dir, &h.head, O_RDONLY);
        if (fd >= 0) printf("OPENED\n");
        else if (errno != EPERM) printf("REACHED %s\n", strerror(errno));
    }
    if (dir >= 0 && open(argv[2], O_RDONLY) >= 0) printf("control\n");
    return 0;
}
"#;

/// `open_by_handle_at` would bypass the mounts.
// promise 2
#[test]
fn files_cannot_be_opened_by_handle() {
    use std::os::unix::fs::MetadataExt;
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let plain = place.file("home/project/plain.txt", "in policy");
        let inode = fs::metadata(&canary.path).unwrap().ino().to_string();
        let program = probe(&place, "handles", HANDLES);
        let run = place.run(&[], &[&program, place.project.to_str().unwrap(), plain.to_str().unwrap(), &inode]);
        assert_eq!(run.stdout(), "control\n", "{}", run.story());
        canary.assert_safe(&run.output);
    }
}

const MOUNTS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>
static void judge(const char *what, long got) {
    if (got >= 0) printf("DID %s\n", what);
    else if (errno != EPERM && errno != ENOSYS) printf("REACHED %s: %s\n", what, strerror(errno));
}
int main(int argc, char **argv) {
    const char *project = argv[1];
    char covered[512]; sprintf(covered, "%s/hidden", project);
    judge("cgroup", mount("c", "/tmp", "cgroup", 0, "memory"));
    judge("cgroup2", mount("c", "/tmp", "cgroup2", 0, 0));
    judge("proc", mount("p", "/tmp", "proc", 0, 0));
    judge("sysfs", mount("s", "/tmp", "sysfs", 0, 0));
    judge("tmpfs", mount("t", "/tmp", "tmpfs", 0, 0));
    judge("overlay", mount("o", "/tmp", "overlay", 0, "lowerdir=/etc,upperdir=/tmp,workdir=/tmp"));
    judge("fuse", mount("f", "/tmp", "fuse", 0, "fd=0,rootmode=40000,user_id=0,group_id=0"));
    judge("bind", mount("/tmp", project, 0, MS_BIND, 0));
    judge("remount", mount(0, project, 0, MS_REMOUNT | MS_BIND, 0));
    judge("remount root", mount(0, "/", 0, MS_REMOUNT, 0));
    judge("remount sys", mount(0, "/proc/sys", 0, MS_REMOUNT | MS_BIND, 0));
    judge("shared", mount(0, "/", 0, MS_SHARED | MS_REC, 0));
    judge("umount hidden", umount2(covered, MNT_DETACH));
    judge("umount kcore", umount2("/proc/kcore", MNT_DETACH));
    judge("umount sys", umount2("/proc/sys", MNT_DETACH));
    judge("umount root", umount2("/", MNT_DETACH));
    judge("pivot", syscall(SYS_pivot_root, ".", "."));
    judge("chroot", chroot("."));
    judge("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    judge("open_tree", syscall(SYS_open_tree, AT_FDCWD, project, 1));
    judge("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
    unsigned long long attr[4] = {0, 1, 0, 0};
    judge("setattr", syscall(SYS_mount_setattr, AT_FDCWD, project, 0, attr, sizeof attr));
    printf("tried\n");
    return 0;
}
"#;

/// Mounts cannot be created or changed, no cgroup file can be written, and the host finds the guest in the groups that
/// it was put into.
// promise 2
#[test]
fn mounts_and_groups_stay_as_they_are() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        place.file("home/project/hidden/secret.txt", "HIDDENTEXT");
        let project = place.project.to_str().unwrap();
        let program = probe(&place, "mounts", MOUNTS);
        let hidden = format!("{project}/hidden");
        let before = state(&place.project);
        let text = format!(
            "{program} {project}; cat {hidden}/secret.txt 2>/dev/null; \
             for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/*/tasks /sys/fs/cgroup/*/release_agent; do \
               (echo $$ >$f) 2>/dev/null && echo WROTE $f; done; \
             unshare -UrmC sh -c 'echo ENTERED' 2>/dev/null; ls /sys 2>/dev/null; \
             (echo x >{project}/new) 2>/dev/null && echo WROTE; echo x >/tmp/new && echo control; cut -d: -f3 /proc/self/cgroup | sort -u"
        );
        let run = place.sh(&["--read-only", "--deny-read", &hidden], &text);
        assert_eq!(run.stdout(), "tried\ncontrol\n/\n", "{}", run.story());
        assert_eq!(state(&place.project), before);
        canary.assert_safe(&run.output);
    }
}

const SOCKETS: &str = r#"
import ctypes, errno, socket, os
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None, use_errno=True)
got = set()
for family in range(0, 48):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for high in (0, 1 << 32):
            for proto in (0, 1, 6, 17, 58, 132, 255):
                fd = libc.syscall(ctypes.c_long(nr(41, 198)), ctypes.c_long(family | high), ctypes.c_long(kind), ctypes.c_long(proto))
                if fd >= 0: got.add((family, kind)); os.close(fd)
                elif family not in (1, 2, 10) and ctypes.get_errno() not in (errno.EAFNOSUPPORT, errno.EPERM): print("REACHED", family, kind, ctypes.get_errno())
    pair = (ctypes.c_int * 2)()
    if libc.socketpair(family, 1, 0, pair) == 0: got.add(("pair", family))
print(sorted(got, key=str))
"#;

/// Only unix and internet sockets exist, and none of them raw.
// promise 5
#[test]
fn exotic_sockets_do_not_exist() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.python(&[], SOCKETS);
        // AF_UNIX treats SOCK_RAW as datagrams. Datagrams need no connect that could be checked, so an ordinary
        // caller's guest, whose mounts do not keep it from the host's sockets, has none.
        let datagrams = if who == As::Root { "(1, 2), (1, 3), " } else { "" };
        let want = format!("[('pair', 1), (1, 1), {datagrams}(1, 5), (10, 1), (10, 2), (2, 1), (2, 2)]\n");
        assert_eq!(run.stdout(), want, "{}", run.story());
    }
}

const CONNECT: &str = r#"
import socket, sys, array
name, port, stream, datagram = sys.argv[1:5]
def attempt(what, act):
    try: act(); print(what)
    except OSError: pass
def unix(kind=socket.SOCK_STREAM): return socket.socket(socket.AF_UNIX, kind)
DG = socket.SOCK_DGRAM
attempt("ABSTRACT", lambda: unix().connect("\0" + name))
attempt("LOOPBACK", lambda: socket.create_connection(("127.0.0.1", int(port)), 2))
attempt("STREAM", lambda: unix().connect(stream))
attempt("CONNECT", lambda: unix(DG).connect(datagram))
attempt("SENDTO", lambda: unix(DG).sendto(b"x", datagram))
def pair(kind): return socket.socketpair(socket.AF_UNIX, kind)[0]
attempt("RAW", lambda: unix(socket.SOCK_RAW).sendmsg([b"x"], [], 0, datagram))
attempt("PAIR", lambda: pair(DG).sendmsg([b"x"], [], 0, datagram))
attempt("RAW PAIR", lambda: pair(socket.SOCK_RAW).sendto(b"x", datagram))
attempt("SEQUENCE", lambda: unix(socket.SOCK_SEQPACKET).sendmsg([b"x"], [], 0, datagram))
attempt("SENDMSG", lambda: unix(DG).sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))], 0, datagram))
own = unix(); own.bind("\0own-" + name); own.listen()
attempt("own abstract", lambda: unix().connect("\0own-" + name))
file = unix(); file.bind("/tmp/s-" + name); file.listen()
attempt("own file", lambda: unix().connect("/tmp/s-" + name))
inet = socket.socket(); inet.bind(("127.0.0.1", 0)); inet.listen()
attempt("own loopback", lambda: socket.create_connection(inet.getsockname(), 2))
"#;

/// Sockets of the host: abstract ones, loopback, and files in a readable directory. Only sockets that the guest opened
/// itself answer.
// promise 5
#[test]
fn sockets_of_the_host_are_out_of_reach() {
    for who in BOTH {
        let place = Place::new(who);
        let name = format!("cofferdam-{}", marker());
        let abstract_one = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
        let short = |what: &str| place.project.join(format!("{what}{}", unique()));
        let (stream_at, datagram_at) = (short("s"), short("d"));
        let (stream, datagram) = (UnixListener::bind(&stream_at).unwrap(), UnixDatagram::bind(&datagram_at).unwrap());
        for at in [&stream_at, &datagram_at] {
            open_to_all(at);
            place.own(at);
        }
        abstract_one.set_nonblocking(true).unwrap();
        loopback.set_nonblocking(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        datagram.set_nonblocking(true).unwrap();
        let port = loopback.local_addr().unwrap().port().to_string();
        let words = [&name, &port, stream_at.to_str().unwrap(), datagram_at.to_str().unwrap()];
        let run = place.run(&[], &[&["/usr/bin/python3", "-c", CONNECT][..], &words].concat());
        let received = || {
            let mut received = Vec::new();
            received.extend(abstract_one.accept().is_ok().then_some("abstract"));
            received.extend(loopback.accept().is_ok().then_some("loopback"));
            received.extend(stream.accept().is_ok().then_some("stream"));
            let got = datagram.recv(&mut [0; 16]);
            received.extend((!got.is_err_and(|e| e.kind() == ErrorKind::WouldBlock)).then_some("datagram"));
            received
        };
        assert!(received().is_empty(), "the host heard from the guest: {}", run.story());
        assert_eq!(run.stdout(), "own abstract\nown file\nown loopback\n", "{}", run.story());
        let control = finish(place.outside("/usr/bin/python3").args(["-c", CONNECT]).args(words).stdin(Stdio::null()));
        assert_eq!(received(), ["abstract", "loopback", "stream", "datagram"], "control: {control:?}");
        let _ = fs::remove_file(format!("/tmp/s-{name}"));
    }
}

fn open_to_all(at: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(at, fs::Permissions::from_mode(0o777)).unwrap();
}

/// A policy may deny calls that setup uses itself; the listener could then no longer report anything.
// promise 11
#[test]
fn calls_that_a_start_needs_can_be_denied() {
    for who in BOTH {
        let place = Place::new(who);
        let denying = |call: &str| {
            let rules = serde_json::json!({ "version": 1, "extends": ["default"], "syscalls": { "deny": [call] } });
            place.policy(rules)
        };
        for call in ["chdir", "clock_gettime", "landlock_restrict_self", "ppoll", "getppid"] {
            let run = place.run(&["-p", &denying(call)], &["/bin/echo", "ran"]);
            assert_eq!((run.code(), run.stdout().as_str()), (0, "ran\n"), "{who:?}, {call}: {}", run.story());
        }
        let text = "import os\ntry:\n os.chdir('/usr')\n print('went')\nexcept PermissionError: print('refused')";
        for (call, printed) in [("chdir", "refused\n"), ("getppid", "went\n")] {
            let run = place.python(&["-p", &denying(call)], text);
            assert_eq!((run.code(), run.stdout().as_str()), (0, printed), "{who:?}, {call}: {}", run.story());
        }
        // Without umask the command would create files that are writable for all.
        let run = place.run(&["-p", &denying("umask")], &["/bin/echo", "ran"]);
        assert_eq!((run.code(), run.text("/error_kind").as_str()), (125, "unsupported_policy"), "{}", run.story());
    }
}

const SUBVOLUME: &str = r#"
import errno, fcntl, os
fd = os.open(".", os.O_RDONLY)
def told(request):
    asked = bytearray(4096)
    asked[8:12] = b"made"
    try: fcntl.ioctl(fd, request, asked)
    except OSError as e: return errno.errorcode[e.errno]
    return "done"
print(*(told(request) for request in (0x5000940e, 0x50009401, 0x50009418, 0x5000940f, 0x4020bc10)))
# Control: a request unknown to every file system here reaches the kernel.
print(told(0x5000947f))
"#;

/// File system ioctls that create and remove directories bypass landlock, and are refused on every file system.
// promise 3
#[test]
fn directories_are_made_by_no_request_of_a_file_system() {
    for who in BOTH {
        let place = Place::new(who);
        let run = place.python(&[], SUBVOLUME);
        assert_eq!(run.assert_ok().stdout(), "EPERM EPERM EPERM EPERM EPERM\nENOTTY\n", "{}", run.story());
        assert!(run.was_denied("syscall", "ioctl"), "{}", run.story());
    }
}
