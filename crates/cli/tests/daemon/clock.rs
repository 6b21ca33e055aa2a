//! Clock jumps of a day, forwards and back, under a daemon and its keepers. Deadlines are unaffected, times to live
//! follow the clock, and the journal keeps its order. The static binary reads the clock through the vDSO, so a tracer
//! intervenes: it removes the vDSO at exec and answers the system call with a shifted time. The host's own clock is
//! untouched.

use crate::support::http::Daemon;
use crate::support::{As, Place, binary};
use crate::words::Verbs;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *file;

static long offset(void) {
    char text[32] = {0};
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) { if (read(fd, text, sizeof text - 1) < 0) {} close(fd); }
    return atol(text);
}

/* Without the vDSO every read of the clock is a system call. */
static void take_page_away(pid_t pid) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, pid, 0, &regs)) return;
    unsigned long at = regs.rsp + 8 * (ptrace(PTRACE_PEEKDATA, pid, regs.rsp, 0) + 2);
    while (ptrace(PTRACE_PEEKDATA, pid, at, 0)) at += 8;
    for (at += 8;; at += 16) {
        long key = ptrace(PTRACE_PEEKDATA, pid, at, 0);
        if (key == AT_NULL) break;
        if (key == AT_SYSINFO_EHDR) ptrace(PTRACE_POKEDATA, pid, at, AT_IGNORE);
    }
}

static void answer(pid_t pid) {
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, pid, 0, &regs)) return;
    if (regs.rdi != CLOCK_REALTIME && regs.rdi != CLOCK_REALTIME_COARSE) return;
    struct timespec now;
    clock_gettime(regs.rdi, &now);
    now.tv_sec += offset();
    struct iovec from = {&now, sizeof now}, to = {(void *)regs.rsi, sizeof now};
    regs.rax = process_vm_writev(pid, &from, 1, &to, 1, 0) == sizeof now ? 0 : -EFAULT;
    regs.orig_rax = -1;
    ptrace(PTRACE_SETREGS, pid, 0, &regs);
}

int main(int argc, char **argv) {
    file = argv[1];
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {4, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        raise(SIGSTOP);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(99);
        execv(argv[2], argv + 2);
        _exit(98);
    }
    int status;
    waitpid(child, &status, WUNTRACED);
    long options = PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE
        | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, child, 0, options)) { perror("seize"); return 97; }
    kill(child, SIGCONT);
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0) { if (errno == EINTR) continue; return 0; }
        if (!WIFSTOPPED(status)) {
            if (pid == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int event = status >> 16, signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP) answer(pid);
        if (event == PTRACE_EVENT_EXEC) take_page_away(pid);
        if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) { ptrace(PTRACE_LISTEN, pid, 0, 0); continue; }
        ptrace(PTRACE_CONT, pid, 0, event ? 0 : signal);
    }
}
"#;

const DAY: i64 = 24 * 3600;

struct ClockFixture {
    place: Place,
    offset: PathBuf,
    daemon: Daemon,
}

impl ClockFixture {
    fn new() -> ClockFixture {
        let place = Place::new(As::Root);
        let (shift, offset) = (place.c_program("shift", SHIFT), place.file("offset", "0"));
        let mut command = place.outside(shift);
        command.arg(&offset).arg(binary()).args(["serve", "--json"]).env("COFFERDAM_LOG_LEVEL", "error");
        let daemon = Daemon::spawn(&place, command);
        ClockFixture { place, offset, daemon }
    }

    fn jump(&self, seconds: i64) {
        // Rename is atomic: no process reads half a number.
        let new = self.place.file("offset.new", seconds.to_string());
        fs::rename(new, &self.offset).unwrap();
    }

    fn begin(&self, sandbox: &str, ask: Value) -> String {
        let begun = self.daemon.post(&format!("/v1/sandboxes/{sandbox}/runs"), ask).assert_ok();
        begun["run"].as_str().unwrap().to_owned()
    }

    fn end(&self, run: &str) -> Value {
        self.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok()["outcome"].clone()
    }

    fn collected(&self) -> Vec<String> {
        let items = self.daemon.ask("POST", "/v1/gc").send().assert_ok()["items"].clone();
        items.as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    }

    fn make(&self, ask: Value) -> Value {
        self.daemon.post("/v1/sandboxes", ask).assert_ok()
    }
}

// promise 25
#[test]
fn a_clock_that_jumps_moves_no_deadline_and_no_order() {
    let w = ClockFixture::new();
    let real = || i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let short = w.make(json!({ "name": "short", "ttl_ms": 3_600_000 }));
    w.make(json!({ "name": "s", "policies": ["workspace-write"] }));
    let token = w.daemon.token(json!({ "name": "t", "scopes": ["agent"], "ttl_ms": 3_600_000 }));
    let known = || w.daemon.ask("GET", "/v1/sandboxes").bearer(&token).send().status;
    assert_eq!((known(), w.collected()), (200, vec![]), "the control");

    // A day ahead: wall limits have their time left, times to live are over.
    let patient = w.begin("s", json!({ "shell": "sleep 2; date +%s", "limits": { "max_wall_ms": 40_000 } }));
    w.jump(DAY);
    let outcome = w.end(&patient);
    assert_eq!(outcome["verdict"], "ok", "{outcome}");
    let inside: i64 = outcome["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!((inside - real() - DAY).abs() < 600, "the control: the clock did jump for all");
    assert!(outcome["usage"]["wall_ms"].as_u64().unwrap() < 40_000, "{outcome}");
    assert_eq!(known(), 401, "a token's time is over");
    assert_eq!(w.collected(), [short["id"].as_str().unwrap()]);

    // Two days back: a wall limit fires all the same, waits end, and nothing new counts as expired.
    let late = w.make(json!({ "name": "late", "ttl_ms": 3_600_000 }));
    let stuck = w.begin("s", json!({ "shell": "sleep 1000", "limits": { "max_wall_ms": 1500 } }));
    w.jump(-DAY);
    let outcome = w.end(&stuck);
    assert_eq!(outcome["limit_kind"], "wall_ms", "{outcome}");
    assert!(outcome["usage"]["wall_ms"].as_u64().unwrap() < 60_000, "{outcome}");
    let begun = Instant::now();
    let waiting = w.begin("s", json!({ "shell": "sleep 30" }));
    let shown = w.daemon.get(&format!("/v1/runs/{waiting}?wait=300ms")).assert_ok();
    assert!(shown["running"] == true && begun.elapsed() < Duration::from_secs(25), "{shown}");
    let early = w.make(json!({ "name": "early", "ttl_ms": 3_600_000 }));
    assert_eq!(w.collected(), Vec::<String>::new(), "neither is over");
    w.daemon.ask("POST", "/v1/sandboxes/s/stop?timeout=0s").send().assert_ok();

    // Back at the real time: the sandbox of yesterday has expired, the one of tomorrow has not.
    w.jump(0);
    assert_eq!(w.collected(), [early["id"].as_str().unwrap()]);
    w.daemon.get(&format!("/v1/sandboxes/{}", late["id"].as_str().unwrap())).assert_ok();
    let entries = w.daemon.get("/v1/audit?limit=1000").assert_ok()["entries"].clone();
    let entries = entries.as_array().unwrap();
    assert!(entries.windows(2).all(|two| two[0]["seq"].as_u64() < two[1]["seq"].as_u64()), "in their order");
    let times: Vec<u64> = entries.iter().map(|entry| entry["at_ms"].as_u64().unwrap()).collect();
    assert!(times.windows(2).any(|two| two[1] < two[0]), "the control: their times are what the clock said");
    w.daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
    assert_eq!(w.daemon.get("/v1/audit/verify").assert_ok()["sound"], true);
    w.place.audit();
}
