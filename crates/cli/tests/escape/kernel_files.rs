//! Files: trees that change during setup, /proc and /sys, read-only pages, devices, core dumps.

use super::truth::{
    Bystander, Canary, census, finish, finish_child, marker, mounts, orphaned_groups, probe, soon, state,
};
use crate::support::{BOTH, Place};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const SWAP: &str = r#"
import ctypes, os, sys
nr = lambda x86, arm: x86 if os.uname().machine == "x86_64" else arm
libc = ctypes.CDLL(None)
a, b = (p.encode() for p in sys.argv[1:3])
while True: libc.syscall(nr(316, 276), -100, a, -100, b, 2)
"#;

/// A directory is swapped with a link to another tree during the setup of runs that grant, deny and cover it. Each run
/// shows what its policy allows or does not start; no file outside is shown or changed.
// promise 1
#[test]
fn trees_that_change_during_setup_lead_nowhere() {
    for who in BOTH {
        let place = Place::new(who);
        let project = place.project.to_str().unwrap().to_string();
        place.file("home/project/swap/inner.txt", "INNER");
        place.file("home/project/swap/sub/deep.txt", "DEEP");
        place.file("outside/sub/deep.txt", "SECRET-DEEP");
        place.file("outside/inner.txt", "SECRET-INNER");
        let canary = Canary::new(&place);
        let link = place.project.join("link");
        std::os::unix::fs::symlink(canary.dir(), &link).unwrap();
        let swap = format!("{project}/swap");
        let sub = format!("{swap}/sub");
        let kinds: [&[&str]; 7] = [
            &["--direct", "--write", &project, "--read", &swap],
            &["--direct", "--write", &project, "--write", &sub],
            &["--direct", "--write", &project, "--deny-read", &swap],
            &["--direct", "--write", &project, "--deny-write", &swap],
            &["--direct", "--write", &project, "--deny-exec", &sub],
            &["--deny-read", &swap],
            &["--read-only", "--deny-read", &swap],
        ];
        let attack = "cat swap/inner.txt swap/sub/deep.txt swap/canary-* link/inner.txt link/sub/deep.txt link/canary-* 2>/dev/null; \
                      (echo x >swap/planted; echo x >swap/sub/planted; echo x >link/planted; rm -f swap/canary-* link/canary-*) 2>/dev/null; echo end";
        let still = place.sh(kinds[0], attack);
        assert!(still.stdout().contains("INNER") && still.stdout().ends_with("end\n"), "control: {}", still.story());
        assert!(Path::new(&swap).join("planted").exists(), "control");
        canary.assert_safe(&still.output);
        let still = place.sh(kinds[2], attack);
        assert!(!still.stdout().contains("INNER") && still.stdout().ends_with("end\n"), "control: {}", still.story());
        let before = mounts(&place);
        let script = place.file("home/swap.py", SWAP);
        let mut swapper =
            Bystander::start(place.outside("/usr/bin/python3").arg(script).args([&swap, link.to_str().unwrap()]));
        let (mut started, mut refused) = (0, 0);
        for round in 0..25 {
            for (at, flags) in kinds.iter().enumerate() {
                let run = place.sh(flags, attack);
                let shown = run.stdout();
                assert!(!shown.contains("SECRET"), "round {round} {flags:?}: {}", run.story());
                let hides = at == 2;
                assert!(
                    !(hides && (shown.contains("INNER") || shown.contains("DEEP"))),
                    "round {round} {flags:?}: {}",
                    run.story()
                );
                canary.assert_safe(&run.output);
                match run.code() {
                    0 => started += 1,
                    125 => refused += 1,
                    _ => panic!("round {round} {flags:?}: {}", run.story()),
                }
            }
        }
        assert!(swapper.is_alive() && started > 0, "{started} started, {refused} refused");
        assert_eq!(mounts(&place), before);
    }
}

/// A path denied before it exists stays denied when a host process creates it, or the run is refused.
// promise 1
#[test]
fn a_denial_holds_when_the_path_appears() {
    for who in BOTH {
        let place = Place::new(who);
        let plain = place.file("home/project/plain.txt", "control");
        let late = place.project.join("late.txt");
        let text = "cat plain.txt; n=0; while [ ! -e go.txt ] && [ $n -lt 200 ]; do sleep 0.05; n=$((n+1)); done; cat late.txt";
        let mut command =
            place.cofferdam(["run", "-q", "--deny-read", late.to_str().unwrap(), "--", "/bin/sh", "-c", text]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        place.file(&late, "SECRET-LATE");
        place.file(plain.with_file_name("go.txt"), "");
        let out = finish_child(child);
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(shown.contains("control") || out.status.code() == Some(125), "control: {out:?}");
        assert!(!shown.contains("SECRET"), "{shown}");
    }
}

/// A project with links named like the directories that every guest has.
// promise 1
#[test]
fn links_in_place_of_directories_lead_nowhere() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        for name in ["dev", "tmp", "proc", ".old", ".made", ".scratch", "a"] {
            std::os::unix::fs::symlink(canary.dir(), place.project.join(name)).unwrap();
        }
        let project = place.project.to_str().unwrap();
        let attack = "cat dev/canary-* tmp/canary-* a/canary-* .old/* 2>/dev/null; echo x >a/planted; echo x >dev/planted; mkdir a/b; echo x >own && echo control";
        for extra in [
            &[][..],
            &["--write", &format!("{project}/a/b")],
            &["--read", &format!("{project}/a")],
            &["--deny-read", &format!("{project}/a/canary*")],
        ] {
            let flags = [&["--direct", "--write", project][..], extra].concat();
            let run = place.sh(&flags, attack);
            assert!(run.stdout() == "control\n" || run.code() == 125, "{flags:?} {}", run.story());
            canary.assert_safe(&run.output);
        }
        assert!(place.project.join("own").exists(), "control");
    }
}

/// Kernel settings cannot be written, and no core dump of a guest lands on the host.
#[test]
fn kernel_settings_stay_and_no_core_lands() {
    let names = [
        "sys/kernel/core_pattern",
        "sys/kernel/modprobe",
        "sys/kernel/hotplug",
        "sys/kernel/sysrq",
        "sys/vm/overcommit_memory",
        "sys/kernel/hostname",
        "sys/net/ipv4/ip_forward",
        "sys/fs/suid_dumpable",
        "sys/kernel/random/boot_id",
        "sys/user/max_user_namespaces",
    ];
    let settings = || names.map(|n| fs::read_to_string(Path::new("/proc").join(n)).unwrap_or_default());
    // Tests of core dump handlers change one of these settings for a moment.
    let pattern = fs::File::open("/proc/sys/kernel/core_pattern").unwrap();
    pattern.lock_shared().unwrap();
    let before = settings();
    for who in BOTH {
        let place = Place::new(who);
        let project = place.project.to_str().unwrap();
        let text = format!(
            "for f in {} sysrq-trigger sys/fs/binfmt_misc/register sys/fs/binfmt_misc/status kcore kmsg irq/default_smp_affinity mtrr acpi/wakeup; do \
               v=$(cat /proc/$f 2>/dev/null | head -c 100); (printf %s \"$v\" >/proc/$f) 2>/dev/null && echo WROTE $f; done; \
             (echo x >/sys/kernel/uevent_helper) 2>/dev/null && echo WROTE; \
             ulimit -c unlimited 2>/dev/null; ulimit -c; echo x >control; kill -SEGV $$",
            names.join(" ")
        );
        let run = place.sh(&["--direct", "--write", project], &text);
        assert_eq!(run.stdout(), "0\n", "{}", run.story());
        run.assert_code(128 + 11);
        let left: Vec<_> = fs::read_dir(project).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["control"], "only the control is there");
    }
    assert_eq!(settings(), before);
}

/// Files about the machine or other users' processes are empty or absent.
#[test]
fn the_machine_and_its_people_do_not_show() {
    for who in BOTH {
        let place = Place::new(who);
        let mark = marker();
        let _neighbour = Bystander::start(place.outside("/bin/sleep").arg(&mark));
        assert!(soon(|| !census(&format!("sleep\0{mark}")).is_empty()), "control: the neighbour runs");
        let named = place.file(format!("home/project/named-{mark}"), "");
        let text = format!(
            "for f in kallsyms kcore kmsg keys key-users sched_debug timer_list timer_stats interrupts latency_stats slabinfo vmallocinfo iomem ioports \
               modules kpageflags kpagecount kpagecgroup pagetypeinfo sysrq-trigger; do \
               [ -n \"$(head -c 16 /proc/$f 2>/dev/null | tr -d '\\0')\" ] && echo SHOWS $f; done; \
             for f in /dev/mem /dev/kmem /dev/kmsg /dev/port /dev/sda /dev/vda /dev/loop0 /dev/fuse /dev/kvm /dev/net/tun /dev/mapper/control /dev/console /dev/tty0; do [ -e $f ] && echo EXISTS $f; done; \
             dmesg 2>/dev/null | head -1; ls /sys /boot /root /var/log 2>/dev/null | head -3; \
             tr '\\0' ' ' </proc/1/cmdline; echo; cat /proc/1/environ 2>/dev/null; \
             grep -l {}[x] /proc/[0-9]*/cmdline; ls -d /proc/[0-9]* | wc -l; head -1 /proc/self/status; head -c 9 /proc/cpuinfo",
            mark
        );
        let run = place.sh(&["--read", named.to_str().unwrap()], &text);
        let lines: Vec<String> = run.stdout().lines().map(str::to_string).collect();
        assert_eq!(lines.len(), 4, "{}", run.story());
        assert!(lines[0].starts_with("cofferdam-init") && !lines[0].contains(&mark), "{}", run.story());
        assert!(lines[1].trim().parse::<u32>().is_ok_and(|n| (3..=8).contains(&n)), "{}", run.story());
        assert!(lines[2].starts_with("Name:") && lines[3] == "processor", "control: {}", run.story());
        run.assert_denied("syscall", "syslog");
    }
}

/// Links in /proc to a root, working directory or open file resolve within the guest's root.
// promise 1
#[test]
fn magic_links_lead_to_the_guests_own_root() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let plain = place.file("home/project/plain.txt", "in policy");
        let text = format!(
            "import os\n\
             for p in ['1', 'self', 'thread-self'] + [d for d in os.listdir('/proc') if d.isdigit()]:\n\
             \x20   for way in ('root', 'cwd', 'fd/0', 'fd/3', 'task/1/root', 'task/' + p + '/root', 'root/proc/1/root', 'cwd/../../../../../../..'):\n\
             \x20       for flags in (os.O_RDONLY, os.O_PATH):\n\
             \x20           for more in ('', '/..', '/../../..'):\n\
             \x20               try: fd = os.open('/proc/%s/%s%s' % (p, way, more), flags)\n\
             \x20               except OSError: continue\n\
             \x20               for target in ('{0}', '.{0}', '/proc/self/fd/%d{0}' % fd):\n\
             \x20                   try: print(open(os.open(target, os.O_RDONLY, dir_fd=fd)).read())\n\
             \x20                   except OSError: pass\n\
             \x20               os.close(fd)\n\
             print(open('/proc/self/root{1}').read())",
            canary.text(),
            plain.display()
        );
        let run = place.python(&[], &text);
        assert_eq!(run.stdout(), "in policy\n", "{}", run.story());
        canary.assert_safe(&run.output);
    }
}

const DIRTY: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
static void *map; static volatile int stop;
static void *drop(void *x) { while (!stop) madvise(map, 4096, MADV_DONTNEED); return 0; }
static int wins;
static void judge(const char *what, long got) { if (got >= 0) { wins++; printf("did %s\n", what); } }
int main(int argc, char **argv) {
    const char *file = argv[1], *dir = argv[2];
    char name[512], other[512], byte = 'X'; struct stat st;
    int fd = open(file, O_RDONLY), pipes[2];
    fstat(fd, &st);
    /* Splice a page of the file into a pipe whose buffers once could be merged, then write to the pipe. */
    pipe(pipes);
    static char fill[65536]; fcntl(pipes[1], F_SETPIPE_SZ, 65536);
    write(pipes[1], fill, sizeof fill); read(pipes[0], fill, sizeof fill);
    loff_t at = 0; splice(fd, &at, pipes[1], 0, 1, 0); write(pipes[1], "XXXX", 4);
    struct iovec part = {0, 4096};
    part.iov_base = map = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    vmsplice(pipes[1], &part, 1, 1);
    /* Write behind a private mapping while its page is dropped. */
    pthread_t thread; pthread_create(&thread, 0, drop, 0);
    int mem = open("/proc/self/mem", O_RDWR);
    for (int i = 0; i < 20000; i++) { pwrite(mem, "XXXX", 4, (off_t)map); }
    stop = 1; pthread_join(thread, 0);
    void *shared = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    pwrite(mem, "XXXX", 4, (off_t)shared);
    int pid = fork();
    if (pid == 0) { ptrace(PTRACE_TRACEME, 0, 0, 0); raise(19); _exit(0); }
    waitpid(pid, 0, 0);
    ptrace(PTRACE_POKEDATA, pid, shared, 0x58585858); ptrace(PTRACE_POKEDATA, pid, map, 0x58585858);
    kill(pid, 9); waitpid(pid, 0, 0);
    judge("mprotect", mprotect(shared, 4096, PROT_READ | PROT_WRITE));
    /* Plain ways. */
    judge("open write", open(file, O_WRONLY));
    judge("open trunc", open(file, O_RDONLY | O_TRUNC));
    sprintf(name, "/proc/self/fd/%d", fd); judge("reopen", open(name, O_RDWR));
    int handle = open(file, O_PATH); sprintf(name, "/proc/self/fd/%d", handle); judge("reopen path", open(name, O_RDWR));
    judge("write", write(fd, "X", 1)); judge("ftruncate", ftruncate(fd, 0)); judge("truncate", truncate(file, 0));
    judge("fallocate", fallocate(fd, 0, 0, 4096)); judge("sendfile", copy_file_range(fd, 0, fd, 0, 1, 0));
    judge("fchmod", fchmod(fd, 0777)); judge("chmod", chmod(file, 0777)); judge("fchmodat2", syscall(452, handle, "", 0777, AT_EMPTY_PATH));
    judge("fchown", fchown(fd, st.st_uid, st.st_gid)); judge("chown", chown(file, getuid(), getgid()));
    judge("utimes", utimes(file, 0)); judge("futimens", futimens(fd, 0)); judge("utimensat path", utimensat(handle, "", 0, AT_EMPTY_PATH));
    judge("setxattr", setxattr(file, "user.x", "x", 1, 0)); judge("fsetxattr", fsetxattr(fd, "user.x", "x", 1, 0));
    judge("flags", ioctl(fd, 0x40086602, &(long){0x10}));
    judge("seal", fcntl(fd, 1033, 1)); judge("punch", fallocate(fd, 3, 0, 1));
    sprintf(name, "%s/linked", dir); judge("link here", link(file, name)); judge("link tmp", link(file, "/tmp/linked"));
    sprintf(other, "/proc/self/fd/%d", fd); judge("linkat", linkat(AT_FDCWD, other, AT_FDCWD, "/tmp/linked2", AT_SYMLINK_FOLLOW));
    judge("rename", rename(file, name)); judge("rename out", rename(file, "/tmp/moved")); judge("unlink", unlink(file));
    sprintf(name, "%s/new", dir); judge("create", open(name, O_CREAT | O_WRONLY, 0644)); judge("mkdir", mkdir(name, 0755));
    judge("symlink", symlink("x", name)); judge("fifo", mknod(name, S_IFIFO | 0644, 0)); judge("tmpfile", open(dir, O_TMPFILE | O_RDWR, 0600));
    judge("device", mknod("/tmp/device", S_IFCHR | 0666, 0x101));
    judge("block", mknod("/tmp/block", S_IFBLK | 0666, 0x700));
    printf("wins %d\n", wins);
    return 0;
}
"#;

/// Content, metadata and names of read-only files stay unchanged under every known route into the page cache; the same
/// program succeeds on the guest's own file.
// promise 1
#[test]
fn read_only_files_cannot_be_changed() {
    for who in BOTH {
        let place = Place::new(who);
        let file = place.file("home/project/base/file.txt", "0123456789".repeat(1000));
        let program = probe(&place, "dirty", DIRTY);
        let dir = file.parent().unwrap();
        let (before, system) = (state(dir), fs::read("/etc/hostname").unwrap_or_default());
        let run = place.run(&["--read-only"], &[&program, file.to_str().unwrap(), dir.to_str().unwrap()]);
        assert_eq!(run.stdout(), "wins 0\n", "{}", run.story());
        assert_eq!(state(dir), before, "{}", run.story());
        // In a workspace all of these writes work, and none reaches the base.
        let inside = place.run(&[], &[&program, file.to_str().unwrap(), dir.to_str().unwrap()]);
        assert_ne!(inside.stdout(), "wins 0\n", "{}", inside.story());
        assert_eq!(state(dir), before, "{}", inside.story());
        place.run(&[], &[&program, "/etc/hostname", "/etc"]);
        assert_eq!(fs::read("/etc/hostname").unwrap_or_default(), system);
        let text = format!("mkdir /tmp/own && cp {} /tmp/own/file && {program} /tmp/own/file /tmp/own", file.display());
        let control = place.sh(&[], &text);
        let wins: u32 = control.stdout().lines().find_map(|l| l.strip_prefix("wins ")?.parse().ok()).unwrap_or(0);
        assert!(wins >= 15, "control: {}", control.story());
        assert!(
            !control.stdout().contains("did device") && !control.stdout().contains("did block"),
            "{}",
            control.story()
        );
    }
}

/// A lease makes every writer on the host wait for its holder, so a reader must not be able to take one.
#[test]
fn a_reader_cannot_block_the_hosts_writers() {
    for who in BOTH {
        let place = Place::new(who);
        let file = place.file("home/project/shared.txt", "x");
        let mark = marker();
        // The child keeps the descriptor; F_SETLEASE, then F_SETDELEG of later kernels.
        let text = format!(
            "import fcntl, os, signal, time\n\
             signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
             fd = os.open('shared.txt', os.O_RDONLY)\n\
             for command in (1024, 1039):\n\
             \x20   try: fcntl.fcntl(fd, command, 0)\n\
             \x20   except OSError: pass\n\
             if os.fork() == 0: time.sleep(100)\n\
             os.execv('/bin/sleep', ['sleep', '{mark}'])"
        );
        let _guest = Bystander::start(&mut place.cofferdam(["run", "-q", "--", "/usr/bin/python3", "-c", &text]));
        assert!(soon(|| !census(&format!("sleep\0{mark}")).is_empty()), "control: the guest runs");
        let append = format!("echo y >>{}", file.display());
        let out = finish(place.outside("/usr/bin/timeout").args(["10", "/bin/sh", "-c", &append]));
        assert!(out.status.success(), "the host's writer waits for the guest: {out:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "xy\n");
    }
}

/// The guest's devices are the harmless ones, and a run leaves no mount or file on the host.
#[test]
fn devices_are_few_and_nothing_is_left() {
    for who in BOTH {
        let place = Place::new(who);
        let before = mounts(&place);
        let listing = fs::read_dir(&place.root).unwrap().count();
        let out = finish(&mut place.cofferdam(["run", "--", "/bin/sh", "-c", "cd /dev; echo *; echo x >/dev/null && head -c 3 /dev/urandom | wc -c; (echo x >/dev/new) 2>/dev/null || echo sealed"]));
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(shown, "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero\n3\nsealed\n");
        assert_eq!(mounts(&place), before);
        assert_eq!(fs::read_dir(&place.root).unwrap().count(), listing);
        assert!(soon(|| orphaned_groups().is_empty()), "{:?}", orphaned_groups());
        assert!(census(place.root.to_str().unwrap()).is_empty());
    }
}
