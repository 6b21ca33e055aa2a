//! Exhaustion of the broker: connections, DNS queries, datagrams, events, descriptors. A guest may harm itself; the
//! supervisor stays small and responsive, and its reports stay correct.

use crate::network_world::{WAYS, internet, lines};
use crate::support::world::World;
use crate::support::{BOTH, Run, binary, to_the_end};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound of the supervisor's peak memory in these tests, in kilobytes; idle it has some twenty thousand.
pub const MOST_KILOBYTES: u64 = 192 * 1024;

/// Runs an attack; returns the finished run and the supervisor's peak memory in kilobytes.
pub fn watched(world: &World, wrap: &[&str], flags: &[&str], text: &str) -> (Run, u64) {
    let file = world.place.file("home/project/attack.py", format!("{WAYS}\n{text}"));
    let status = world.file();
    let bin = binary().to_str().unwrap();
    let mut args: Vec<&str> = wrap.to_vec();
    args.extend([bin, "run", "-t", "280s", "--status-file", status.to_str().unwrap()]);
    args.extend(flags);
    args.extend(["--", "/usr/bin/python3", file.to_str().unwrap()]);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let mut peak = 0;
        while stopped.recv_timeout(Duration::from_millis(50)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            peak = peak.max(supervisors().into_iter().map(peak_of).max().unwrap_or(0));
        }
        peak
    });
    let mut command = world.command(args[0], &args[1..]);
    let output = to_the_end(&mut command, b"");
    drop(stop);
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    (Run { output, outcome }, watcher.join().unwrap())
}

/// Pids of all processes of this test's binary, concurrent tests' included, which are as small.
fn supervisors() -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary())).collect()
}

fn peak_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Helper `crowd`: starts `n` processes, each with its part of the work, and waits for all.
pub const CROWD: &str = "
import resource, select
# Abandoned connections are detected after a while; only then is there capacity for new ones.
def patiently(name):
    until = time.time() + 30
    while time.time() < until:
        if b'hello' in direct(name): return True
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
def crowd(n, work):
    ready, done = os.pipe(), os.pipe()
    pids = []
    for i in range(n):
        pid = os.fork()
        if pid == 0:
            os.close(done[1])
            kept = work(i)
            os.write(ready[1], b'x')
            os.read(done[0], 1)
            os._exit(0)
        pids.append(pid)
    for _ in pids: os.read(ready[0], 1)
    def end():
        os.close(done[1])
        for pid in pids: os.waitpid(pid, 0)
    return end
";

/// Thousands of connections that stay idle, send slowly or never read, beside one that must work.
#[test]
fn a_crowd_at_the_doors_leaves_room() {
    const CROWDS: &str = r#"
def silent(i, n=500, port=80, text=None):
    kept = []
    for _ in range(n):
        s = socket.socket()
        s.settimeout(20)
        try:
            s.connect((ADDRESS, port))
            if text: s.send(text)
        except OSError: pass
        kept.append(s)
    return kept
ADDRESS = socket.gethostbyname("good.test")
PATIENCE = 20
for name, work in (("silent", silent), ("slow", lambda i: silent(i, text=b"GET / HT")), ("tls", lambda i: silent(i, 300, 443, b"\x16\x03\x01\x02\x00\x01")),
                   ("proxy", lambda i: [socket.create_connection(("192.0.0.53", 3128)) for _ in range(300)]),
                   ("names", lambda i: [socket.create_connection(("8.8.8.8", 53)) for _ in range(300)])):
    end = crowd(7, work)
    begun = time.time()
    assert b"hello" in direct("good.test"), name
    assert time.time() - begun < 15, name
    end()
def come_and_go(i):
    for _ in range(1500):
        s = socket.socket(); s.setblocking(False)
        s.connect_ex((ADDRESS if i % 2 else "169.254.169.254", 80)); s.close()
crowd(7, come_and_go)()
assert b"hello" in direct("good.test"), "afterwards"
print("works")
"#;
    for who in BOTH {
        let world = internet(who);
        let (run, peak) = watched(&world, &[], &["--net", "good.test"], &format!("{CROWD}{CROWDS}"));
        assert_eq!(run.assert_ok().stdout(), "works\n", "{who:?}: {}", run.story());
        assert!(lines(&world, "tcp").iter().all(|l| l.contains(" 5.5.5.5 ")), "{who:?}");
        assert!(peak < MOST_KILOBYTES, "{who:?}: {peak} kB");
    }
}

/// Connections beyond the broker's capacity wait, and are accepted when others end.
// promise 5
#[test]
fn more_connections_than_there_is_room_for_wait() {
    const FULL: &str = r#"
ADDRESS = socket.gethostbyname("good.test")
def hold(i):
    kept = []
    poll, made = select.poll(), 0
    for _ in range(900):
        s = socket.socket(); s.setblocking(False)
        s.connect_ex((ADDRESS, 7000))
        poll.register(s, select.POLLOUT)
        kept.append(s)
    # The broker is full: each of these processes has some connections, and some have to wait.
    until = time.time() + 15
    while made < 600 and time.time() < until:
        for fd, _ in poll.poll(1000):
            poll.unregister(fd)
            made += 1
    return kept
end = crowd(6, hold)
print("full", flush=True)
end()
PATIENCE = 20
assert patiently("good.test")
print("works")
"#;
    for who in BOTH {
        let (run, peak) = watched(&internet(who), &[], &["--net", "good.test"], &format!("{CROWD}{FULL}"));
        assert_eq!(run.assert_ok().stdout(), "full\nworks\n", "{who:?}: {}", run.story());
        assert!(peak < MOST_KILOBYTES, "{who:?}: {peak} kB");
    }
}

/// Connects abandoned at once, from ever-changing ports: to a silent host, to one that answers, and to one without a
/// rule.
// promise 5
#[test]
fn a_storm_of_requests_passes() {
    const STORM: &str = r#"
ADDRESS = socket.gethostbyname("good.test")
def storm(i):
    places = [("5.5.6.6", 81), (ADDRESS, 80), ("10.9.8.7", 80), ("2a0b:6::6", 80)]
    for n in range(4000):
        host, port = places[n % 4]
        s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        s.setblocking(False)
        s.connect_ex((host, port))
        s.close()
for _ in range(2): crowd(4, storm)()
PATIENCE = 20
assert patiently("good.test")
print("works")
"#;
    for who in BOTH {
        let world = internet(who).server("mute", "5.5.6.6", 81);
        let flags = ["--net", "good.test", "--net", "5.5.6.6:81", "--net", "2a0b:6::/32"];
        let (run, peak) = watched(&world, &[], &flags, &format!("{CROWD}{STORM}"));
        assert_eq!(run.assert_ok().stdout(), "works\n", "{who:?}: {}", run.story());
        assert!(peak < MOST_KILOBYTES, "{who:?}: {peak} kB");
    }
}

/// Back-pressure: bytes that the server does not read stay in the guest's socket.
#[test]
fn bytes_that_nobody_reads_do_not_gather() {
    const PUSH: &str = r#"
ADDRESS = socket.gethostbyname("good.test")
def push(i):
    kept = []
    for _ in range(150):
        s = socket.socket(); s.settimeout(5)
        try:
            s.connect((ADDRESS, 7001))
            s.setblocking(False)
            for _ in range(30): s.send(b"\x01" * 65536)
        except OSError: pass
        kept.append(s)
    for _ in range(20):
        for s in kept:
            try: s.send(b"\x01" * 65536)
            except OSError: pass
        time.sleep(0.05)
    return kept
end = crowd(6, push)
PATIENCE = 20
assert b"hello" in direct("good.test")
end()
print("works")
"#;
    for who in BOTH {
        let (run, peak) = watched(&internet(who), &[], &["--net", "good.test"], &format!("{CROWD}{PUSH}"));
        assert_eq!(run.assert_ok().stdout(), "works\n", "{who:?}: {}", run.story());
        assert!(peak < MOST_KILOBYTES, "{who:?}: {peak} kB");
    }
}

/// Floods of DNS queries and datagrams do not delay other connections.
#[test]
fn floods_of_datagrams_leave_room() {
    const FLOOD: &str = r#"
def pour(i):
    def go():
        s = socket.socket(type=socket.SOCK_DGRAM)
        message = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\x04" + os.urandom(2).hex().encode() + b"\x04wild\x04test\0\0\1\0\1"
        for n in range(1 << 30):
            try: s.sendto(message, ("8.8.8.8", 53) if i % 2 else ("5.5.5.5", n % 60000 + 1))
            except OSError: pass
    threading.Thread(target=go, daemon=True).start()
PATIENCE = 20
assert b"hello" in direct("good.test")
slowest = 0
end = crowd(4, pour)
for _ in range(5):
    begun = time.time()
    assert b"hello" in direct("5.5.5.5", 80, GET.format("/", "good.test"))
    slowest = max(slowest, time.time() - begun)
end()
print("works" if slowest < 8 else slowest)
"#;
    for who in BOTH {
        let world = internet(who);
        let flags = ["--net", "good.test", "--net", "*.wild.test"];
        let (run, peak) = watched(&world, &[], &flags, &format!("{CROWD}{FLOOD}"));
        assert_eq!(run.assert_ok().stdout(), "works\n", "{who:?}: {}", run.story());
        assert!(peak < MOST_KILOBYTES, "{who:?}: {peak} kB");
        assert_eq!(lines(&world, "udp"), Vec::<String>::new());
        assert!(run.denials().len() <= 256, "{}", run.denials().len());
    }
}

/// An event reader that does not read delays no connection; dropped events are counted.
#[test]
fn events_that_nobody_reads_are_counted() {
    const MANY: &str = "
for i in range(30000):
    s = socket.socket(); s.setblocking(False); s.connect_ex(('169.254.169.254', i % 60000 + 1)); s.close()
assert b'hello' in direct('good.test')
print('works')
";
    for who in BOTH {
        let world = internet(who);
        let file = world.place.file("home/project/attack.py", format!("{WAYS}\n{MANY}"));
        let fifo = world.place.root.join("events");
        assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&fifo).status().unwrap().success());
        // Opened for reading and writing, so that opening the FIFO does not block.
        let script = format!("exec 3<>{}; exec \"$@\"", fifo.display());
        let bin = binary().to_str().unwrap();
        let mut command = world.command(
            "/bin/sh",
            &[
                "-c",
                &script,
                "sh",
                bin,
                "run",
                "--net",
                "good.test",
                "--events",
                "3",
                "--",
                "/usr/bin/python3",
                file.to_str().unwrap(),
            ],
        );
        let begun = Instant::now();
        let output = to_the_end(&mut command, b"");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "works\n", "{who:?}: {output:?}");
        // A broker that waited for the reader would never finish.
        assert!(begun.elapsed() < Duration::from_secs(300), "{who:?}");
    }
}

/// A host with a low descriptor limit: the guest runs out of connections, and the supervisor keeps working.
#[test]
fn few_descriptors_are_enough_to_go_on() {
    const DRAIN: &str = r#"
ADDRESS = socket.gethostbyname("good.test")
def hold(i):
    kept = []
    for _ in range(40):
        s = socket.socket(); s.setblocking(False)
        s.connect_ex((ADDRESS, 7000))
        kept.append(s)
    time.sleep(2)
    return kept
end = crowd(10, hold)
try: open("/etc/hostname", "w")
except OSError: print("refused")
end()
PATIENCE = 20
print("works" if patiently("good.test") else "lost")
"#;
    for who in BOTH {
        let world = internet(who);
        for most in ["96", "128", "256"] {
            let limit = format!("--nofile={most}:{most}");
            let (run, _) =
                watched(&world, &["/usr/bin/prlimit", &limit], &["--net", "good.test"], &format!("{CROWD}{DRAIN}"));
            assert_eq!(run.assert_ok().stdout(), "refused\nworks\n", "{who:?} {most}: {}", run.story());
            run.assert_denied("fs.write", "/etc/hostname");
        }
    }
}

/// Descriptors that a guest sends over the supervisor's sockets are not kept.
#[test]
fn descriptors_thrown_at_us_are_not_kept() {
    const THROW: &str = "
import array, stat
assert b'hello' in direct('good.test')
fds = array.array('i', [os.open('/dev/null', os.O_RDONLY) for _ in range(100)])
tried = 0
for fd in range(0, 200):
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue
        s = socket.socket(fileno=os.dup(fd))
        for _ in range(1000): s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)], socket.MSG_DONTWAIT)
        tried += 1
    except OSError: pass
s = socket.create_connection(('192.0.0.53', 3128))
try: s.sendmsg([b'GET'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
except OSError: pass
print('ready', flush=True)
time.sleep(2)
";
    for who in BOTH {
        let world = internet(who);
        let file = world.place.file("home/project/attack.py", format!("{WAYS}\n{THROW}"));
        let bin = binary().to_str().unwrap();
        let args = ["run", "--net", "good.test", "--", "/usr/bin/python3", file.to_str().unwrap()];
        let mut child = world.command(bin, &args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        let open = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |d| d.count());
        // Concurrent tests hold thousands of descriptors on purpose, so only this run's supervisor counts.
        let says = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let ours = |pid: &u32| says(pid).contains(file.to_str().unwrap());
        let held = supervisors().iter().filter(|pid| ours(pid)).map(open).max().unwrap_or(0);
        assert!((5..64).contains(&held), "{who:?}: {held} descriptors");
        child.wait().unwrap();
    }
}
