//! A guest's own sockets, network namespace and secrets, and other hosts and guests that the broker could lead to.

use crate::kernel::truth::{census, soon};
use crate::network_world::{attack, internet, lines, seen};
use crate::support::world::World;
use crate::support::{As, BOTH, Place, binary, unique};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Socket types other than streams and datagrams, and options that could bypass the doors.
#[test]
fn no_socket_leads_around_the_doors() {
    const TRY: &str = r#"
assert b"hello" in direct("good.test")
made = []
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        for protocol in (0, 1, 6, 17, 41, 47, 58, 132, 255):
            try: s = socket.socket(family, kind, protocol)
            except OSError: continue
            usual = family == 1 or family in (2, 10) and kind in (1, 2) and protocol in (0, 6, 17)
            if not usual: made.append((family, kind, protocol))
            s.close()
print("made", made)
SOL_IPV6 = 41
tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
six = socket.socket(socket.AF_INET6)
for name, s, level, option in (("mark", tcp, 1, 36), ("mark", udp, 1, 36), ("transparent", tcp, 0, 19), ("transparent", six, SOL_IPV6, 75),
                               ("hop options", six, SOL_IPV6, 54), ("force", tcp, 1, 32), ("ipsec", tcp, 0, 16)):
    try:
        s.setsockopt(level, option, 0x00c0ffda)
        print("set", name)
    except OSError: pass
for at in (("192.0.0.8", 1), ("192.0.0.8", 53), ("0.0.0.0", 53), ("127.0.0.1", 1)):
    for kind in (1, 2):
        try: socket.socket(type=kind).bind(at); print("bound", at)
        except OSError: pass
# Foreign addresses: a process that binds one reaches only itself.
for at in ("5.5.5.5", "169.254.169.254", "127.0.0.1", "192.0.0.8", "192.0.0.53"):
    for to in ("169.254.169.254", "10.9.8.7", "8.8.8.8"):
        s = socket.socket()
        s.settimeout(1)
        s.setsockopt(0, 15, 1)
        try:
            s.bind((at, 0)); s.connect((to, 80)); print("got", to) if b"hello" in say(s, GET.format("/", "x")) else None
        except OSError: pass
# A server of the guest at a public address gets only the guest's own connections.
own = socket.socket(); own.setsockopt(1, 2, 1); own.bind(("5.5.5.5", 8000)); own.listen()
assert b"hello" in direct("good.test", 8000), "control"
own.settimeout(0.1)
try: own.accept(); print("taken")
except TimeoutError: pass
import ctypes
c = ctypes.CDLL(None, use_errno=True)
for flag in (0x40000000, 0x10000000, 0x50000000):
    if c.unshare(flag) == 0: print("unshared", hex(flag))
for path in ("net/ipv4/ip_unprivileged_port_start", "net/ipv4/ip_nonlocal_bind", "net/ipv4/tcp_fwmark_accept", "net/ipv4/ping_group_range"):
    try: open("/proc/sys/" + path, "w").write("1"); print("wrote", path)
    except OSError: pass
"#;
    for who in BOTH {
        let world = internet(who);
        let run = attack(&world, &["--net", "good.test"], TRY);
        assert_eq!(run.assert_ok().stdout(), "made []\n", "{who:?}: {}", run.story());
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80", "tcp 5.5.5.5 8000"], "{who:?}");
    }
}

/// The broker's own addresses offer DNS and proxies only; every port is tried.
#[test]
fn our_own_addresses_offer_nothing_else() {
    const SCAN: &str = r#"
import selectors, resource
def scan(host, family, ports):
    said, ports, open_ = {}, list(ports), selectors.DefaultSelector()
    while ports or open_.get_map():
        while ports and len(open_.get_map()) < 200:
            s, port = socket.socket(family), ports.pop()
            s.setblocking(False)
            if s.connect_ex((host, port)) not in (0, 115): s.close(); continue
            open_.register(s, selectors.EVENT_WRITE, port)
        ready = open_.select(1)
        # The remaining ports expect more data than was sent.
        if not ready and not ports: break
        for key, _ in ready:
            s, port = key.fileobj, key.data
            if key.events == selectors.EVENT_WRITE:
                try: s.send(b"GET / HTTP/1.1\r\nHost: 5.5.5.5\r\n\r\n"); open_.modify(s, selectors.EVENT_READ, port); continue
                except OSError: pass
            else:
                try: said[port] = s.recv(100)
                except OSError: pass
            open_.unregister(s); s.close()
    return {port: got for port, got in said.items() if got}
assert b"hello" in direct("good.test")
few = [*range(1, 1200), *range(3000, 3200), 8000, 8443, 9000]
print(sorted(scan("192.0.0.53", socket.AF_INET, range(1, 65536) if ALL else few)))
print(sorted(scan("192.0.0.8", socket.AF_INET, few)), sorted(scan("fd9c:f62:6b5e::8", socket.AF_INET6, few)))
"#;
    for who in BOTH {
        let world = internet(who);
        let begun = Instant::now();
        let all = if who == As::User { "True" } else { "False" };
        let run = attack(&world, &["-p", "default", "-p", "networked"], &format!("ALL = {all}\n{SCAN}"));
        // The proxy is the only service that answers.
        assert_eq!(run.assert_ok().stdout(), "[3128]\n[] []\n", "{who:?}: {}", run.story());
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80"], "{who:?}");
        assert!(begun.elapsed() < Duration::from_secs(180));
        assert!(run.denials().len() <= 256, "{}", run.denials().len());
    }
}

/// Sockets of the host, also by an address that changes while the supervisor checks it.
#[test]
fn sockets_of_the_host_stay_out_of_reach() {
    const RACE: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
static union { struct sockaddr any; struct sockaddr_in in; struct sockaddr_un un; } name, inet, host;
static volatile int go = 1;
static void *flip(void *x) {
    while (go) {
        memcpy(&name, &inet, sizeof inet);
        memcpy(&name, &host, sizeof host);
        name.any.sa_family = AF_INET;
        name.any.sa_family = AF_UNIX;
    }
    return 0;
}
static void tick(int x) {}
int main(int argc, char **argv) {
    inet.in.sin_family = AF_INET; inet.in.sin_port = htons(22); inet.in.sin_addr.s_addr = inet_addr("169.254.169.254");
    host.un.sun_family = AF_UNIX;
    if (argv[2][0] == '@') strcpy(host.un.sun_path + 1, argv[2] + 1); else strcpy(host.un.sun_path, argv[2]);
    pthread_t t;
    pthread_create(&t, 0, flip, 0);
    signal(SIGALRM, tick);
    struct itimerval often = {{0, 300}, {0, 300}};
    if (argc > 3) setitimer(ITIMER_REAL, &often, 0);
    for (long i = 0; i < atol(argv[1]); i++) {
        int s = socket(i & 1 ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(s, &name.any, i % 3 ? sizeof name.un : sizeof name.in);
        close(s);
    }
    go = 0;
    printf("done\n");
    return 0;
}"#;
    for who in BOTH {
        let world = internet(who);
        let race = world.place.c_program("race", RACE);
        let race = race.to_str().unwrap();
        let path = world.place.project.join("host.sock");
        let path = path.to_str().unwrap();
        let flags = ["--net", "good.test", "-t", "280s"];
        for command in [vec![race, "8000", path], vec![race, "8000", "@host-canary"], vec![race, "3000", path, "storm"]]
        {
            assert_eq!(world.run(&flags, &command).assert_ok().stdout(), "done\n", "{who:?} {command:?}");
        }
        let text = format!(
            "
for at in ('\\0host-canary', '{path}', 'host.sock', '/proc/self/cwd/host.sock'):
    try: s = socket.socket(socket.AF_UNIX); s.connect(at); print('connected', repr(at))
    except OSError: pass
for at in ('/run/docker.sock', '/run/dbus/system_bus_socket', '/tmp/.X11-unix/X0'):
    try: s = socket.socket(socket.AF_UNIX); s.connect(at); print('connected', at)
    except OSError: pass
one = socket.socket(socket.AF_UNIX); one.bind('\\0own'); one.listen()
two = socket.socket(socket.AF_UNIX); two.connect('\\0own'); print('own')
assert b'hello' in direct('good.test')
"
        );
        assert_eq!(attack(&world, &["--net", "good.test"], &text).assert_ok().stdout(), "own\n", "{who:?}");
        assert_eq!(lines(&world, "unix"), Vec::<String>::new(), "{who:?}");
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80"], "{who:?}");
        // Control: a host process reaches both.
        let reach = format!(
            "import socket\nfor at in ('\\0host-canary', '{path}'): socket.socket(socket.AF_UNIX).connect(at)\nimport time; time.sleep(.3)"
        );
        assert!(world.command("/usr/bin/python3", &["-c", &reach]).status().unwrap().success());
        assert_eq!(lines(&world, "unix").len(), 2, "{who:?}");
    }
}

/// Signals during calls, threads that exit within them, and seccomp filters of the guest.
#[test]
fn storms_and_filters_of_its_own_open_nothing() {
    const STORM: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static void tick(int x) {}
static int to(const char *host, int port) {
    struct sockaddr_in at = {AF_INET, htons(port), {inet_addr(host)}};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval soon = {60, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    char c = 0;
    if (connect(s, (void *)&at, sizeof at) == 0 && send(s, "GET / HTTP/1.0\r\nHost: x\r\n\r\n", 27, MSG_NOSIGNAL) > 0) recv(s, &c, 1, 0);
    close(s);
    return c;
}
static void *many(void *x) { for (int i = 0; i < 20; i++) to("169.254.169.254", 80); return 0; }
int main() {
    int listener = 0;
    struct sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}}, notify[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF}};
    struct sock_fprog all = {1, code}, ask = {1, notify};
    if (fork() == 0) {
        long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &all);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &all);
        _exit((fd >= 0 ? 1 : 0) | (to("169.254.169.254", 80) ? 2 : 0));
    }
    int status;
    wait(&status);
    printf("filters %d\n", WEXITSTATUS(status));
    pthread_t t[200];
    int n = 0;
    signal(SIGALRM, tick);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 200; i++) n += pthread_create(&t[n], 0, many, 0) == 0;
    for (int i = 0; i < n; i++) pthread_join(t[i], 0);
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 100; i++) {
        pid_t p = fork();
        if (p == 0) { for (;;) to("10.9.8.7", 80); }
        usleep(1000 + i * 50);
        kill(p, SIGKILL);
        waitpid(p, 0, 0);
    }
    printf("control %c\n", to("5.5.5.5", 80));
    return 0;
}"#;
    for who in BOTH {
        let world = internet(who);
        let storm = world.place.c_program("storm", STORM);
        let run = world.run(&["--net", "5.5.5.5/32", "-t", "280s"], &[storm.to_str().unwrap()]);
        assert_eq!(run.assert_ok().stdout(), "filters 0\ncontrol H\n", "{who:?}: {}", run.story());
        assert_eq!(lines(&world, "tcp"), ["tcp 5.5.5.5 80"], "{who:?}");
    }
}

const VALUE: &str = "hunter2-6f1c9a40d2-Zq";

fn with_secret(who: As) -> (World, String) {
    let world = internet(who).certificate(&["secret.test", "other.test"]);
    let policy = world.place.policy(json!({"version": 1, "extends": ["default"],
        "net": {"rules": [{"action": "allow", "host": "secret.test"}, {"action": "allow", "host": "other.test"}]},
        "secrets": [{"name": "TOKEN", "inject": {"host": "secret.test", "header": "authorization", "format": "Bearer {}"}}]}));
    (world, policy)
}

/// A guest that searches everywhere for a secret, and a server that echoes the requests it received.
#[test]
fn a_secret_is_nowhere_inside() {
    // The value is assembled at run time, or the search would find itself.
    const HUNT: &str = r#"
import os, re, subprocess, sys
def real(): return bytes([104, 117, 110]) + bytes([116, 101, 114, 50]) + b"-6f1c9a40" + b"d2-Zq"
for path in ("header", "body", "split", "gzip", "status"):
    got = subprocess.run(["curl", "-sS", "-i", "-m", "10", "https://secret.test/" + path], capture_output=True)
    if real() in got.stdout + got.stderr: print("told by", path, got.stdout)
got = subprocess.run(["curl", "-sS", "-m", "10", "https://secret.test/backwards"], capture_output=True).stdout
print("used" if real()[::-1] in got else got)
del got
looked = {"files": 0, "memory": 0}
for base, dirs, files in os.walk("/"):
    if base.startswith("/sys") or base.startswith("/usr"): dirs.clear(); continue
    for name in files:
        path = os.path.join(base, name)
        if re.match(r"/proc/\d+/(task/\d+/)?(mem|pagemap|clear_refs|kpage.*)$", path) or path.startswith("/proc/kcore"): continue
        if "attack.py" in path: continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            data = os.read(fd, 1 << 20); os.close(fd)
        except OSError: continue
        looked["files"] += 1
        if real() in data: print("in file", path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    try: maps, mem = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb", 0)
    except OSError: continue
    for line in maps.splitlines():
        a, b = (int(x, 16) for x in line.split()[0].split("-"))
        try: mem.seek(a); data = mem.read(min(b - a, 64 << 20))
        except (OSError, ValueError, OverflowError): continue
        looked["memory"] += 1
        if real() in data: print("in memory of", pid, line)
print(looked["files"] > 100)
"#;
    for who in BOTH {
        let (world, policy) = with_secret(who);
        let file = world.place.file("home/project/hunt.py", HUNT);
        let flags = ["-p", &policy, "-t", "280s"];
        let run = world.run_with(&flags, &["/usr/bin/python3", file.to_str().unwrap()], &[("TOKEN", VALUE)]);
        assert_eq!(run.assert_ok().stdout(), "used\nTrue\n", "{who:?}: {}", run.story());
        assert!(!run.stderr().contains(VALUE) && !run.outcome.to_string().contains(VALUE), "{}", run.story());
    }
}

/// The placeholder is worthless elsewhere, and a foreign credential of the guest is not sent.
#[test]
fn credentials_go_where_they_belong() {
    const SEND: &str = r#"
ask() { curl -sS -m 10 "$@"; echo; }
ask -H "Authorization: Bearer $TOKEN" https://other.test/
ask -H "Authorization: Bearer $TOKEN" http://secret.test/
ask -H "Authorization: Bearer foreign-key" https://secret.test/
ask -H "Authorization: Bearer $TOKEN" -H "Authorization: Bearer foreign-key" https://secret.test/
ask -u foreign-key:x https://secret.test/
ask -H "Host: secret.test" -H "Authorization: Bearer $TOKEN" https://other.test/
ask --connect-to secret.test:443:other.test:443 -H "Authorization: Bearer $TOKEN" https://secret.test/
ask -x http://192.0.0.53:3128 -H "Authorization: Bearer $TOKEN" https://other.test/
ask -x socks5h://192.0.0.53:1080 http://secret.test/
ask https://secret.test/backwards
"#;
    for who in BOTH {
        let (world, policy) = with_secret(who);
        let run = world.run_with(&["-p", &policy], &["/bin/sh", "-c", SEND], &[("TOKEN", VALUE)]);
        assert!(run.stdout().contains(&VALUE.chars().rev().collect::<String>()), "control: {}", run.story());
        // Encrypted requests cannot be seen in transit; the server logs what it decrypted.
        let log = seen(&world);
        assert!(!log.contains("foreign-key"), "{who:?}: {log}");
        for line in log.lines().filter(|l| l.contains(VALUE)) {
            assert!(line.starts_with("said 5.5.5.8 443") && line.contains("Host: secret.test"), "{who:?}: {line}");
        }
        assert!(log.lines().any(|l| l.contains(VALUE)), "{log}");
        assert!(log.lines().any(|l| l.contains("5.5.5.7 443") && l.contains("cofferdam-secret-TOKEN")), "{log}");
    }
}

/// Two guests of one host, each with rules and a server.
#[test]
fn guests_do_not_meet() {
    const SERVE: &str = "
import socket, time
servers = [socket.create_server((a, p)) for a, p in (('0.0.0.0', 9100), ('127.0.0.1', 9101), ('5.5.5.5', 9102))]
servers += [socket.create_server(('::', 9103), family=socket.AF_INET6)]
u = socket.socket(socket.AF_UNIX); u.bind('\\0peer'); u.listen()
print('ready', flush=True)
for s in servers + [u]: s.settimeout(0.01)
end = time.time() + 12
while time.time() < end:
    for s in servers + [u]:
        try: s.accept(); print('visited', s.getsockname(), flush=True)
        except TimeoutError: pass
";
    const VISIT: &str = "
for host in ('127.0.0.1', '192.0.0.8', '192.0.0.53', '5.5.5.5', 'localhost', '0.0.0.0', '::1', 'fd9c:f62:6b5e::8', 'good.test'):
    for port in (9100, 9101, 9102, 9103):
        for way in EVERY: way(host, port)
try: socket.socket(socket.AF_UNIX).connect('\\0peer')
except OSError: pass
assert b'hello' in direct('good.test')
own = socket.create_server(('0.0.0.0', 9100)); own.settimeout(3)
socket.create_connection(('127.0.0.1', 9100)); own.accept(); print('own')
";
    for who in BOTH {
        let world = internet(who);
        world.place.file("home/project/serve.py", SERVE);
        world.place.file("home/project/visit.py", format!("{}\nPATIENCE = 0.3\n{VISIT}", crate::network_world::WAYS));
        let bin = binary().display();
        let script = format!(
            "{bin} run --net good.test -- python3 serve.py > served & sleep 1.5; {bin} run --net good.test -p 127.0.0.1:9555:9555 -- python3 visit.py; status=$?; wait; cat served; exit $status"
        );
        let output = world.command("/bin/sh", &["-c", &script]).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(stdout, "own\nready\n", "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn call(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_secs(20))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Only the published port is open, and a guest that does not read costs no processor time.
#[test]
fn a_published_port_is_one_port() {
    const SERVE: &str = "
import socket, sys, time
other = socket.create_server(('0.0.0.0', int(sys.argv[1])))
s = socket.create_server(('127.0.0.1', 8000), backlog=100)
print('ready', flush=True)
first = s.accept()[0]; first.sendall(b'one')
kept = [s.accept()[0] for _ in range(30)]
for one in kept: one.sendall(b'x'); one.shutdown(socket.SHUT_WR)
other.settimeout(8)
try: other.accept(); print('visited')
except TimeoutError: print('alone')
";
    for who in BOTH {
        let place = Place::new(who);
        let (port, unnamed) = (crate::support::free_port(), crate::support::free_port());
        let publish = format!("{port}:8000");
        let args = ["run", "--publish", &publish, "--net", "good.test", "--", "/usr/bin/python3", "-c", SERVE];
        let mut command = place.cofferdam(args);
        let mut child = command.arg(unnamed.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(first_line(&mut child), "ready\n");
        let mut got = [0; 3];
        call(port).unwrap().read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one", "control");
        assert!(call(unnamed).is_err() && call(8000).is_err(), "only the named port");
        // Clients that send more than the guest reads, and close with bytes unread: a reset.
        let mut floods: Vec<TcpStream> = (0..30).map(|_| call(port).unwrap()).collect();
        floods.iter().for_each(|flood| flood.set_nonblocking(true).unwrap());
        let mut quiet = 0;
        while quiet < 10 {
            let taken = floods.iter_mut().filter_map(|flood| flood.write(&[b'x'; 65537]).ok()).count();
            quiet = if taken > 0 { 0 } else { quiet + 1 };
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(floods);
        std::thread::sleep(Duration::from_millis(300));
        let before = ticks(child.id());
        std::thread::sleep(Duration::from_secs(2));
        let used = ticks(child.id()) - before;
        assert!(used < 15, "{who:?}: {used} ticks in two seconds of nothing");
        let mut rest = String::new();
        child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "alone\n", "{who:?}");
        child.wait().unwrap();
    }
}

/// SIGKILL of a run with doors and published ports leaves no process and no open port.
#[test]
fn killed_it_leaves_no_door_open() {
    for who in BOTH {
        let place = Place::new(who);
        let binary = place.root.join("cofferdam");
        crate::support::copy_program(crate::support::binary(), &binary);
        let own = place.project.join("sleep");
        crate::support::copy_program("/bin/sleep", &own);
        for n in 0..5 {
            let port = crate::support::free_port();
            let mut command: Command = place.outside(&binary);
            command.args(["run", "--publish", &format!("{port}:8000"), "--net", "good.test", "--"]);
            let text = format!("echo ready; exec {} 60", own.display());
            let mut child = command.args(["/bin/sh", "-c", &text]).stdout(Stdio::piped()).spawn().unwrap();
            assert_eq!(first_line(&mut child), "ready\n");
            let held = call(port);
            assert!(!census(place.root.to_str().unwrap()).is_empty(), "control");
            std::thread::sleep(Duration::from_millis(unique() as u64 % 7 + n));
            child.kill().unwrap();
            child.wait().unwrap();
            let gone =
                || census(place.root.to_str().unwrap()).is_empty() && TcpListener::bind(("127.0.0.1", port)).is_ok();
            assert!(soon(gone), "{who:?}: {:?}", census(place.root.to_str().unwrap()));
            drop(held);
        }
    }
}
