//! The seccomp listener reports and refuses; no boundary may depend on it alone.

use super::truth::{Canary, finish, probe, state};
use crate::support::{BOTH, Place, times};
use std::fs;
use std::path::Path;

const RACE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* race KIND GOOD BAD SECONDS TRIES: calls on a path that another thread keeps changing between the two, so long and so often. */
static char path[512], good[512], bad[512];
static volatile int stop;
static void *flip(void *x) {
    while (!stop) { memcpy(path, bad, sizeof path); memcpy(path, good, sizeof path); }
    return 0;
}
static void *relink(void *x) {
    while (!stop) {
        unlink("/tmp/l.new"); symlink(bad, "/tmp/l.new"); rename("/tmp/l.new", "/tmp/link");
        unlink("/tmp/l.new"); symlink(good, "/tmp/l.new"); rename("/tmp/l.new", "/tmp/link");
    }
    return 0;
}
int main(int argc, char **argv) {
    const char *kind = argv[1];
    char buf[256];
    unsigned long tries = 0, opened = 0;
    pthread_t thread;
    strcpy(good, argv[2]); strcpy(bad, argv[3]); strcpy(path, good);
    symlink(good, "/tmp/link");
    int by_link = strchr(kind, 'l') != 0;
    pthread_create(&thread, 0, by_link ? relink : flip, 0);
    const char *at = by_link ? "/tmp/link" : path;
    double seconds = atof(argv[4]);
    unsigned long least = strtoul(argv[5], 0, 10);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        tries++;
        if (kind[0] == 'r') {
            int fd = open(at, O_RDONLY), n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
            if (n > 0) { opened++; if (memmem(buf, n, "SECRET", 6)) write(1, buf, n); }
            close(fd);
        } else if (kind[0] == 'w') {
            int fd = open(at, O_RDWR | O_APPEND);
            if (fd >= 0) { opened++; if (tries % 50 == 0) write(fd, "w", 1); close(fd); }
            struct { unsigned long long flags, mode, resolve; } how = {O_WRONLY | O_TRUNC, 0, 0};
            fd = syscall(SYS_openat2, AT_FDCWD, at, &how, sizeof how);
            close(fd);
            truncate(at, 3);
            chmod(at, 0600);
        } else if (kind[0] == 'u') {
            if (unlink(at) == 0) { opened++; close(open(good, O_CREAT | O_WRONLY, 0644)); }
        } else {
            int pid = vfork();
            if (pid == 0) { execl(at, "x", argv[6], NULL); _exit(1); }
            int status; waitpid(pid, &status, 0);
            if (status == 0) opened++;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (tries < least || now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
    stop = 1; pthread_join(thread, 0);
    printf("tries %lu opened %lu\n", tries, opened);
    return 0;
}
"#;

/// Least number of races: as many as fit the time, and a hundred thousand in a full run.
fn least_tries() -> String {
    times(1, 100_000).to_string()
}

fn opened(shown: &str) -> u64 {
    shown.lines().find_map(|l| l.split("opened ").nth(1)?.trim().parse().ok()).unwrap_or(0)
}

/// Pointers and links that change between the listener's check and the kernel's: a denied file is never read, written
/// or removed, be it outside, hidden or covered, with or without reported reads.
// promise 3
#[test]
fn races_on_paths_never_reach_what_is_denied() {
    let least = least_tries();
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let race = probe(&place, "race", RACE);
        let project = place.project.to_str().unwrap().to_string();
        place.file("home/project/hidden/file.txt", format!("{} hidden", canary.secret));
        let kept = place.file("home/project/kept/file.txt", "kept");
        let open = place.file("home/project/plain/file.txt", "plain");
        let (hidden, kept_dir) = (format!("{project}/hidden"), format!("{project}/kept"));
        let hidden_file = format!("{hidden}/file.txt");
        let (before_hidden, before_kept) = (state(Path::new(&hidden)), state(Path::new(&kept_dir)));
        let flags = ["--write", &project, "--deny-read", &hidden, "--deny-write", &kept_dir];
        let good = open.to_str().unwrap();
        for (kind, bad) in [
            ("r", canary.text()),
            ("r", hidden_file.as_str()),
            ("rl", hidden_file.as_str()),
            ("w", canary.text()),
            ("w", kept.to_str().unwrap()),
            ("wl", kept.to_str().unwrap()),
            ("u", kept.to_str().unwrap()),
        ] {
            for reads in [&[][..], &["--report-reads"]] {
                fs::write(&open, "plain").unwrap();
                place.own(&open);
                let run = place.run(&[&flags[..], reads].concat(), &[&race, kind, good, bad, "0.3", &least]);
                run.assert_ok();
                assert!(opened(&run.stdout()) > 0, "control: {kind} {}", run.story());
                canary.assert_safe(&run.output);
                assert_eq!(state(Path::new(&hidden)), before_hidden, "{kind}");
                assert_eq!(state(Path::new(&kept_dir)), before_kept, "{kind}");
            }
        }
    }
}

const PROGRAM: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **argv) { return chdir(argv[1]) || open("NAME", O_CREAT | O_WRONLY, 0644) < 0; }
"#;

/// Races on executables: a denied program never starts.
// promise 3
#[test]
fn races_on_programs_never_start_what_is_denied() {
    let least = least_tries();
    for who in BOTH {
        let place = Place::new(who);
        let race = probe(&place, "race", RACE);
        let out = place.dir("home/project/out");
        // Compiled programs, because an interpreter reads a script by a name that may point elsewhere by then.
        let leave = |name: &str| PROGRAM.replace("NAME", name);
        let (good, bad) = (probe(&place, "prog-a", &leave("ran-good")), probe(&place, "prog-b", &leave("ran-bad")));
        let (good, bad, out_text) = (good.as_str(), bad.as_str(), out.to_str().unwrap());
        for kind in ["x", "xl"] {
            let run = place.run(
                &["--direct", "--write", out_text, "--deny-exec", bad],
                &[&race, kind, good, bad, "0.8", &least, out_text],
            );
            assert!(out.join("ran-good").exists(), "control: {}", run.story());
            assert!(!out.join("ran-bad").exists(), "{}", run.story());
        }
    }
}

const SOCKET_RACE: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
/* KIND HOST-DIRECTORY NAME SECONDS TRIES: connects to a socket of its own whose path keeps turning into the host's. */
static struct sockaddr_un address, own, host;
static volatile int stop; static int listener; static const char *dir; static char kind;
static void *serve(void *x) { for (;;) close(accept(listener, 0, 0)); }
static void *change(void *x) {
    while (!stop) {
        if (kind == 'p') { memcpy(&address, &host, sizeof host); memcpy(&address, &own, sizeof own); }
        else syscall(SYS_renameat2, -100, "/tmp/d", -100, "/tmp/e", 2);
    }
    return 0;
}
int main(int argc, char **argv) {
    pthread_t thread, server;
    unsigned long tries = 0, opened = 0;
    kind = argv[1][0]; dir = argv[2];
    mkdir("/tmp/d", 0755); symlink(dir, "/tmp/e");
    own.sun_family = host.sun_family = AF_UNIX;
    sprintf(own.sun_path, "/tmp/d/%s", argv[3]); sprintf(host.sun_path, "%s/%s", dir, argv[3]);
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (void *)&own, sizeof own) || listen(listener, 100)) return 1;
    address = own;
    pthread_create(&server, 0, serve, 0);
    pthread_create(&thread, 0, change, 0);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address) == 0) opened++;
        tries++; close(fd);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (tries < strtoul(argv[5], 0, 10)
        || now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < atof(argv[4]));
    printf("tries %lu opened %lu\n", tries, opened);
    fflush(stdout);
    _exit(0);
}
"#;

/// Races on socket addresses: a service of the host in a readable directory gets no connection.
// promise 3
#[test]
fn races_on_addresses_never_reach_the_host() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    for who in BOTH {
        let place = Place::new(who);
        let race = probe(&place, "sockets", SOCKET_RACE);
        let at = place.project.join("s");
        let service = UnixListener::bind(&at).unwrap();
        service.set_nonblocking(true).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        place.own(&at);
        for kind in ["p", "d"] {
            let run = place.run(&[], &[&race, kind, place.project.to_str().unwrap(), "s", "1.5", &least_tries()]);
            assert!(opened(&run.stdout()) > 0, "control: {}", run.story());
            assert!(service.accept().is_err(), "{kind}: the host heard from the guest: {}", run.story());
        }
    }
}

const FULL_QUEUE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
static int fd;
static void *undo(void *x) { struct timeval none = {0, 0}; for (;;) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none); }
int main(void) {
    struct sockaddr_un address = {AF_UNIX, "/tmp/full"};
    pthread_t thread;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    bind(listener, (void *)&address, sizeof address); listen(listener, 0);
    for (int i = 0; i < 3; i++) connect(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), (void *)&address, sizeof address);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    pthread_create(&thread, 0, undo, 0);
    write(1, "trying\n", 7);
    for (;;) connect(fd, (void *)&address, sizeof address);
}
"#;

/// A connect that blocks delays neither limits nor signals.
#[test]
fn a_full_queue_does_not_hold_the_supervisor() {
    for who in BOTH {
        let place = Place::new(who);
        let program = probe(&place, "full", FULL_QUEUE);
        let out = finish(&mut place.cofferdam(["run", "-q", "-t", "4s", "--", &program]));
        assert_eq!(String::from_utf8_lossy(&out.stdout), "trying\n", "control: {out:?}");
        assert_eq!(out.status.code(), Some(124), "{out:?}");
    }
}

const STORM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int ticks;
static void tick(int s) { ticks++; }
static void *many(void *denied) { for (int i = 0; i < 8; i++) mkdir(denied, 0755); return 0; }
int main(int argc, char **argv) {
    const char *denied = argv[1];
    int made = 0, refused = 0, interrupted = 0, status;
    struct sigaction action = {.sa_handler = tick};
    struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 1500; i++) {
        int fd = open("/tmp/own", O_CREAT | O_RDWR, 0600);
        if (fd >= 0) made++; else if (errno == EINTR) interrupted++;
        close(fd);
        if (mkdir(denied, 0755) < 0 && errno != EINTR) refused++;
    }
    setitimer(ITIMER_REAL, &never, 0);
    printf("storm: ticks %d made %d refused %d interrupted %d\n", ticks > 50, made + interrupted, refused > 0, interrupted < 1500);
    fflush(stdout);
    /* Callers that die while the listener has their call. */
    for (int i = 0; i < 150; i++) {
        int pid = fork();
        if (pid == 0) for (;;) mkdir(denied, 0755);
        usleep(i % 20 * 50);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    /* Many callers at once; the process ends while some still wait. */
    pthread_attr_t small; pthread_attr_init(&small); pthread_attr_setstacksize(&small, 65536);
    pthread_t threads[1000]; int n = 0;
    while (n < 1000 && pthread_create(&threads[n], &small, many, (void *)denied) == 0) n++;
    for (int i = 0; i < n; i++) pthread_join(threads[i], 0);
    int pid = fork();
    if (pid == 0) { for (int i = 0; i < 200; i++) pthread_create(&threads[i], &small, many, (void *)denied); _exit(0); }
    waitpid(pid, &status, 0);
    int fd = open("/tmp/after", O_CREAT | O_RDWR, 0600);
    printf("threads %d after %d\n", n, fd >= 0);
    return 0;
}
"#;

/// Signal storms, processes that die within a call, and a thousand concurrent callers neither hang nor confuse the
/// listener; a concurrent run is unaffected.
#[test]
fn the_listener_cannot_be_starved() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let storm = probe(&place, "storm", STORM);
        let denied = format!("{}/made", canary.dir().display());
        let out = finish(place.cofferdam(["run", "-q", "--", &storm, &denied]).stdin(std::process::Stdio::null()));
        let shown = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(shown.contains("storm: ticks 1 made 1500 refused 1 interrupted 1\nthreads 1000 after 1\n"), "{out:?}");
        assert!(out.status.success(), "{out:?}");
        canary.assert_safe(&out);
    }
}

const FILTERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
static long install(unsigned answer, unsigned flags) {
    struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, answer}};
    struct sock_fprog program = {1, code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
static long install_for(int nr, unsigned answer) {
    struct sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}, {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, nr},
        {BPF_RET | BPF_K, 0, 0, answer}, {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog program = {4, code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
static int attack(const char *canary) {
    /* A trapped call gives its own number back: only what can be used counts. */
    int got = 0; char byte;
    if (read(open(canary, O_RDONLY), &byte, 1) == 1) got |= 1;
    if (write(open(canary, O_RDWR | O_CREAT, 0600), "x", 1) == 1) got |= 2;
    if (mount("t", "/tmp", "tmpfs", 0, 0) == 0) got |= 4;
    if (unshare(0x10000000) == 0) got |= 8;
    return got;
}
static void trap(int s, siginfo_t *i, void *c) {}
int main(int argc, char **argv) {
    const char *canary = argv[1];
    errno = 0;
    long listener = install(SECCOMP_RET_ALLOW, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    printf("listener %d %d\n", listener < 0, errno == EBUSY);
    printf("listener tsync %d\n", install(SECCOMP_RET_ALLOW, SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH) < 0);
    printf("allow %ld attack %d\n", install(SECCOMP_RET_ALLOW, 0), attack(canary));
    if (fork() == 0) {
        struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO};
        sigaction(SIGSYS, &action, 0);
        install_for(SYS_openat, SECCOMP_RET_TRAP); install_for(SYS_mount, SECCOMP_RET_TRAP);
        _exit(attack(canary));
    }
    int status; wait(&status);
    printf("trap %d\n", status);
    /* A tracer that turns a harmless call into a refused one, before and after the filters ran. */
    for (int by_seccomp = 0; by_seccomp < 2; by_seccomp++) {
        int pid = fork();
        if (pid == 0) {
            ptrace(PTRACE_TRACEME, 0, 0, 0);
            if (by_seccomp) install_for(SYS_getppid, SECCOMP_RET_TRACE);
            raise(SIGSTOP);
            long got = syscall(SYS_getppid, "t", "/tmp", "tmpfs", 0, 0);
            _exit(got == 0 ? 77 : errno == EPERM ? 5 : 6);
        }
        int changed = 0;
        waitpid(pid, &status, 0);
        ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD);
        for (;;) {
            if (ptrace(by_seccomp ? PTRACE_CONT : PTRACE_SYSCALL, pid, 0, 0) < 0) break;
            if (waitpid(pid, &status, 0) < 0 || WIFEXITED(status) || WIFSIGNALED(status)) break;
            struct user_regs_struct regs;
            ptrace(PTRACE_GETREGS, pid, 0, &regs);
            if (!changed && regs.orig_rax == SYS_getppid) { regs.orig_rax = SYS_mount; changed = 1; ptrace(PTRACE_SETREGS, pid, 0, &regs); }
        }
        printf("tracer changed %d exit %d\n", changed, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    install_for(SYS_getppid, SECCOMP_RET_ERRNO | 99);
    printf("control %d\n", syscall(SYS_getppid) == -1 && errno == 99);
    return 0;
}
"#;

/// A guest cannot install a listener before ours, and its own filters, traps and tracers loosen no rule.
#[test]
fn filters_of_a_guest_loosen_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let canary = Canary::new(&place);
        let run = place.run(&[], &[&probe(&place, "filters", FILTERS), canary.text()]);
        let want = "listener 1 1\nlistener tsync 1\nallow 0 attack 0\ntrap 0\n\
                    tracer changed 1 exit 5\ntracer changed 1 exit 5\ncontrol 1\n";
        assert_eq!(run.stdout(), want, "{}", run.story());
        canary.assert_safe(&run.output);
    }
}

/// A policy may deny any call; a run under it ends, by itself or by being refused.
#[test]
fn no_denied_call_hangs_a_run() {
    let needed = [
        "sendmsg",
        "rt_sigtimedwait",
        "wait4",
        "kill",
        "close",
        "clone",
        "vfork",
        "dup2",
        "close_range",
        "setsid",
        "getrusage",
    ];
    let needed = needed.iter().chain(&[
        "execve",
        "exit_group",
        "rt_sigaction",
        "rt_sigprocmask",
        "ioctl",
        "prctl",
        "seccomp",
        "read",
        "write",
    ]);
    for who in BOTH {
        let place = Place::new(who);
        let run = |call: &str| {
            let policy = serde_json::json!({"version": 1, "extends": ["default"], "syscalls": {"deny": [call]}});
            let policy = place.file("policy.json", policy.to_string());
            let command = ["/bin/sh", "-c", "echo x; kill -0 $$; (exit 3); echo control"];
            finish(place.cofferdam(["run", "-q", "-t", "10s", "-p"]).arg(&policy).arg("--").args(command))
        };
        let control = run("ptrace");
        assert!(control.status.success() && control.stdout == b"x\ncontrol\n", "{control:?}");
        for call in needed.clone() {
            // The wall limit may end a command that cannot work without the call; the deadline in `finish` must not be
            // needed.
            let out = run(call);
            assert!(out.status.code().is_some(), "{call}: {out:?}");
        }
    }
}

/// Invalid arguments to the calls that the listener inspects do not disturb the supervisor, and the run ends as the
/// command does.
// promise 3
#[test]
fn garbage_in_heard_calls_is_no_matter() {
    const PROBE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
static unsigned long state = 88172645463325252UL;
static unsigned long next(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
static long calls[] = { SYS_openat, SYS_mkdirat, SYS_unlinkat, SYS_renameat, SYS_renameat2, SYS_linkat, SYS_symlinkat,
    SYS_mknodat, SYS_truncate, SYS_fchmodat, SYS_fchownat, SYS_execve, SYS_execveat, SYS_connect, SYS_sendto, SYS_bind,
    SYS_utimensat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_fchown, SYS_fchmod, SYS_unshare };
static char page[8192];
static unsigned long argument(void) {
    switch (next() % 7) {
    case 0: return 0;
    case 1: return next();
    case 2: return next() % 300;
    case 3: return -100;
    case 4: return (unsigned long)page + next() % sizeof page;
    case 5: return (unsigned long)page + sizeof page - 1;
    default: return 1UL << (next() % 64);
    }
}
int main(void) {
    signal(SIGPIPE, SIG_IGN);
    for (int i = 5; i < 12; i++)
        dup2(socket(i % 2 ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), i);
    for (int i = 0; i < 20000; i++) {
        for (int k = 0; k < 64; k++)
            page[next() % sizeof page] = next() % 3 ? next() : "/.\0\1"[next() % 4];
        syscall(calls[next() % (sizeof calls / sizeof *calls)], argument() % 2 ? 5 + next() % 8 : argument(), argument(),
            argument(), argument(), argument(), argument());
    }
    return 42;
}
"#;
    for who in BOTH {
        let place = Place::new(who);
        let probe = place.c_program("garbage", PROBE);
        let run = place.run(&["-t", "280s"], &[probe.to_str().unwrap()]);
        run.assert_code(42);
        assert!(matches!(run.text("/verdict").as_str(), "denied" | "failed"), "{}", run.story());
        place.run(&[], &["true"]).assert_ok();
    }
}
