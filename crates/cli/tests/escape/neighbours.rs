//! What lies beside a guest: other guests, the host's sockets, files and mounts, the policy that names them, and the
//! kernel features that hold the walls. Host-side counters and canaries decide, never the guest's own word.

#[cfg(target_arch = "x86_64")]
use crate::support::HIDE;
use crate::support::{As, BOTH, Place, Run, binary, unique};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes that must never come out of a guest.
const CANARY: &str = "canary-b1f6c2d9e07a";

#[track_caller]
fn assert_no_canary(run: &Run) {
    assert!(!run.stdout().contains(CANARY) && !run.stderr().contains(CANARY), "leaked: {}", run.story());
}

/// Counts whoever connects or sends, for as long as the test runs.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    /// What was sent just now is counted by another thread, so that one is given time first.
    fn get(&self) -> u32 {
        std::thread::sleep(Duration::from_millis(200));
        self.now()
    }

    fn now(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn on_stream<L, S: Write>(&self, listener: L, accept: impl Fn(&L) -> std::io::Result<S> + Send + 'static)
    where
        L: Send + 'static,
    {
        let count = self.0.clone();
        std::thread::spawn(move || {
            while let Ok(mut peer) = accept(&listener) {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = peer.write_all(CANARY.as_bytes());
            }
        });
    }

    fn on_datagrams<L: Send + 'static>(
        &self,
        socket: L,
        receive: impl Fn(&L) -> std::io::Result<usize> + Send + 'static,
    ) {
        let count = self.0.clone();
        std::thread::spawn(move || {
            while receive(&socket).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

/// F20
#[test]
fn nothing_is_left_for_the_next_guest_or_the_host() {
    let mark = format!("residue{}x{}", std::process::id(), unique());
    let key = 0x0c0f_0000 | (std::process::id() & 0xffff);
    let leave = format!(
        "
import ctypes, os
c = ctypes.CDLL(None)
for d in ('/tmp', '/var/tmp', '/dev/shm'):
    open(d + '/{mark}', 'w').write('{CANARY}')
made = [c.shmget({key}, 4096, 0o1666), c.semget({key}, 1, 0o1666), c.msgget({key}, 0o1666)]
assert min(made) >= 0, made
c.mq_open(b'/{mark}', os.O_CREAT | os.O_RDWR, 0o666, None)
"
    );
    let look = format!(
        "
import ctypes, os
c = ctypes.CDLL(None)
for d in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/run/lock', '/dev/mqueue', '/tmp/.X11-unix'):
    if os.path.isdir(d) and '{mark}' in os.listdir(d): print('found in', d)
for name, got in (('shm', c.shmget({key}, 0, 0)), ('sem', c.semget({key}, 0, 0)), ('msg', c.msgget({key}, 0))):
    if got >= 0: print('found', name)
if c.mq_open(b'/{mark}', os.O_RDONLY) >= 0: print('found queue')
"
    );
    let on_host = || {
        let mut found: Vec<String> = Vec::new();
        for dir in ["/tmp", "/var/tmp", "/dev/shm", "/run", "/dev/mqueue"] {
            let names = fs::read_dir(dir).into_iter().flatten().flatten();
            found.extend(names.filter(|e| e.file_name() == *mark).map(|e| e.path().display().to_string()));
        }
        for kind in ["shm", "sem", "msg"] {
            let table = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
            let ours = table.lines().any(|l| l.split_whitespace().next() == Some(&key.to_string()));
            found.extend(ours.then(|| kind.to_string()));
        }
        found
    };
    for who in BOTH {
        let place = Place::new(who);
        place.python(&[], &leave).assert_ok();
        assert_eq!(place.python(&[], &look).assert_ok().stdout(), "", "{who:?}: the next one");
        // Side by side, too: the first is still there.
        let stay = format!("{leave}\nprint('ready', flush=True)\nimport time; time.sleep(60)");
        let mut first = spawn(&place, &[], &["/usr/bin/python3", "-c", &stay]);
        assert_eq!(line(&mut first), "ready");
        assert_eq!(place.python(&[], &look).assert_ok().stdout(), "", "{who:?}: the neighbour");
        assert_eq!(on_host(), Vec::<String>::new(), "{who:?}: the host, meanwhile");
        end(first);
        assert_eq!(on_host(), Vec::<String>::new(), "{who:?}: the host, afterwards");
        // The control: within one run all of it is there.
        let own = place.python(&[], &format!("{leave}\n{look}")).assert_ok().stdout();
        for what in ["/tmp", "/var/tmp", "/dev/shm", "shm", "sem", "msg"] {
            assert!(own.contains(what), "{who:?}: {what} is not there for the guest itself: {own}");
        }
    }
}

fn spawn(place: &Place, flags: &[&str], command: &[&str]) -> Child {
    let mut c = place.cofferdam(["run"]);
    c.args(flags).arg("--").args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn line(child: &mut Child) -> String {
    let mut text = String::new();
    BufReader::with_capacity(1, child.stdout.as_mut().unwrap()).read_line(&mut text).unwrap();
    text.trim_end().to_string()
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// F21: in a mount namespace whose mounts are shared, as on most hosts.
#[test]
fn mounts_reach_neither_in_nor_out() {
    for (who, mode) in BOTH.into_iter().flat_map(|who| [(who, "--rm"), (who, "--read-only")]) {
        let place = Place::new(who);
        let late = place.dir("home/project/late");
        place.file("home/project/canary", "");
        let inside = "
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
tags = [l for l in open('/proc/self/mountinfo') if ' shared:' in l or ' master:' in l]
print('tags', len(tags))
tried = [c.mount(b'x', b'/tmp', b'tmpfs', 0, None), c.mount(b'/etc', b'/tmp', None, 4096, None),
         c.mount(None, b'/', None, 1 << 20 | 16384, None), c.umount2(b'late', 2)]
print('mounted', tried.count(0), flush=True)
input()
print('late', os.listdir('late'))
";
        let script = "
mount --make-rshared / && cd \"$1\" && shift || exit 90
before=$(wc -l < /proc/self/mountinfo)
mkfifo ../in && chmod 666 ../in
\"$@\" < ../in > ../out &
exec 3> ../in
for i in $(seq 500); do grep -q mounted ../out 2>/dev/null && break; sleep 0.02; done
mount -t tmpfs tmpfs late && touch late/secret && echo go >&3
wait $!
umount late
cat ../out
echo host $(( $(wc -l < /proc/self/mountinfo) - before ))";
        let guest = place.cofferdam(["run", mode, "--", "/usr/bin/python3", "-c", inside]);
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", script, "sh"])
            .arg(&place.project)
            .arg(guest.get_program())
            .args(guest.get_args());
        c.env_clear().envs(guest.get_envs().filter_map(|(n, v)| Some((n, v?))));
        let output = c.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let want = "tags 0\nmounted 0\nlate []\nhost 0\n";
        assert_eq!(text, want, "{who:?} {mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(late.is_dir());
    }
}

/// An address of this machine that is not loopback.
fn own_address() -> Option<std::net::IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect("192.0.2.1:9").ok()?;
    probe.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
}

/// N01
#[test]
fn no_packet_reaches_the_host_or_beyond() {
    let seen = Counter::default();
    let mut ports = Vec::new();
    for at in ["0.0.0.0:0", "127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let (Ok(tcp), Ok(udp)) = (TcpListener::bind(at), UdpSocket::bind(at)) else { continue };
        ports.push(tcp.local_addr().unwrap().port());
        ports.push(udp.local_addr().unwrap().port());
        seen.on_stream(tcp, |l| l.accept().map(|(s, _)| s));
        seen.on_datagrams(udp, |s| s.recv(&mut [0; 64]));
    }
    let own = own_address().map_or("127.0.0.2".into(), |ip| ip.to_string());
    let probe = format!(
        "
import os, socket, urllib.request
reached = []
hosts = ['127.0.0.1', '127.1.2.3', '0.0.0.0', '{own}', '192.0.2.1', '::1', '::ffff:127.0.0.1', '::', '2001:db8::1']
for port in {ports:?}:
    for host in hosts:
        family = socket.AF_INET6 if ':' in host else socket.AF_INET
        try:
            s = socket.socket(family); s.settimeout(3); s.connect((host, port)); reached.append(('tcp', host))
        except OSError: pass
        for flags in (0, socket.MSG_FASTOPEN):
            try:
                s = socket.socket(family, socket.SOCK_DGRAM if not flags else socket.SOCK_STREAM); s.settimeout(3)
                s.sendto(b'x', flags, (host, port))
            except OSError: pass
        try:
            s = socket.socket(family, socket.SOCK_DGRAM); s.sendmsg([b'x'], [], 0, (host, port))
        except OSError: pass
for family, kind, proto in ((2, 3, 1), (2, 2, 1), (10, 3, 58), (10, 2, 58), (2, 3, 255), (17, 3, 768), (16, 3, 0)):
    try:
        s = socket.socket(family, kind, proto); s.settimeout(1)
        s.sendto(b'\\x08\\x00\\xf7\\xff\\x00\\x00\\x00\\x00', ('{own}' if family == 2 else '::1', 0))
        if kind == 3: reached.append(('raw', family))
    except (OSError, TypeError): pass
for name in ('http_proxy', 'https_proxy', 'all_proxy', 'HTTP_PROXY', 'NO_PROXY'):
    if name in os.environ and not os.environ.get('EXPECTED'): reached.append(name)
try:
    urllib.request.urlopen('http://example.org/', timeout=3); reached.append('url')
except OSError: pass
print(reached)
"
    );
    for who in BOTH {
        let place = Place::new(who);
        let before = seen.get();
        let proxy = format!("http://127.0.0.1:{}", ports[0]);
        let status = place.file("status.json", "");
        let mut c = place.cofferdam(["run", "--status-file"]);
        c.arg(&status).args(["--", "/usr/bin/python3", "-c", &probe]);
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "NO_PROXY"] {
            c.env(name, &proxy);
        }
        let output = c.output().unwrap();
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        let run = Run { output, outcome };
        assert_eq!(run.assert_ok().stdout(), "[]\n", "{who:?}: {}", run.story());
        run.assert_denied("net.connect", &format!("192.0.2.1:{}", ports[0]));
        // A proxy that is passed on purpose is out of reach as well.
        let env = format!("http_proxy={proxy}");
        place.python(&["-e", &env, "-e", "EXPECTED=1"], &probe).assert_ok();
        assert_eq!(seen.get(), before, "{who:?}: the host's listeners heard of the guest");
        // The controls: the guest's own loopback works on the very same port, and from outside the listener answers.
        let own = format!(
            "
import socket
l = socket.socket(); l.bind(('127.0.0.1', {0})); l.listen()
a = socket.create_connection(('127.0.0.1', {0})); b, _ = l.accept(); b.send(b'own'); print(a.recv(9))
u = socket.socket(2, 2); u.bind(('127.0.0.1', {0})); socket.socket(2, 2).sendto(b'dg', ('127.0.0.1', {0})); print(u.recv(9))
",
            ports[0]
        );
        assert_eq!(place.python(&[], &own).assert_ok().stdout(), "b'own'\nb'dg'\n");
        let outside = format!("import socket; print(socket.create_connection(('127.0.0.1', {})).recv(9))", ports[0]);
        assert!(place.outside("/usr/bin/python3").args(["-c", &outside]).output().unwrap().status.success());
        assert!(seen.get() > before);
    }
}

/// N02: names without a file, of the host and of a neighbour.
#[test]
fn abstract_sockets_of_others_do_not_exist() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;
    let name = format!("canary-{}-{}", std::process::id(), unique());
    let seen = Counter::default();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    seen.on_stream(UnixListener::bind_addr(&address).unwrap(), |l| l.accept().map(|(s, _)| s));
    let gram = SocketAddr::from_abstract_name(format!("{name}d")).unwrap();
    seen.on_datagrams(UnixDatagram::bind_addr(&gram).unwrap(), |s| s.recv(&mut [0; 64]));
    let reach = |name: &str| {
        format!(
            "
import socket
for kind, name in ((1, '{name}'), (5, '{name}'), (2, '{name}d')):
    try:
        s = socket.socket(socket.AF_UNIX, kind); s.connect('\\0' + name); s.send(b'x'); print('reached', name)
    except OSError: pass
    try:
        s = socket.socket(socket.AF_UNIX, kind); s.sendmsg([b'x'], [], 0, '\\0' + name); print('sent', name)
    except OSError: pass
"
        )
    };
    for who in BOTH {
        let place = Place::new(who);
        assert_eq!(place.python(&[], &reach(&name)).assert_ok().stdout(), "", "{who:?}");
        let own = format!("{name}-own");
        let serve = format!(
            "
import socket, time
l = socket.socket(socket.AF_UNIX); l.bind('\\0{own}'); l.listen()
print('ready', flush=True)
"
        );
        let mut neighbour = spawn(&place, &[], &["/usr/bin/python3", "-c", &format!("{serve}time.sleep(60)")]);
        assert_eq!(line(&mut neighbour), "ready");
        assert_eq!(place.python(&[], &reach(&own)).assert_ok().stdout(), "", "{who:?}: a neighbour's");
        end(neighbour);
        // The control: its own name is there.
        let both = place.python(&[], &format!("{serve}{}", reach(&own)));
        assert!(both.assert_ok().stdout().contains("reached"), "{who:?}: {}", both.story());
    }
    assert_eq!(seen.get(), 0);
}

/// A service on the host at a path; gone with the value.
struct Service {
    path: PathBuf,
    seen: Counter,
}

impl Service {
    fn new(path: PathBuf, datagram: bool, owner: Option<u32>) -> Service {
        let _ = fs::remove_file(&path);
        let seen = Counter::default();
        match datagram {
            true => seen.on_datagrams(UnixDatagram::bind(&path).unwrap(), |s| s.recv(&mut [0; 64])),
            false => seen.on_stream(UnixListener::bind(&path).unwrap(), |l| l.accept().map(|(s, _)| s)),
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(if owner.is_some() { 0o600 } else { 0o777 })).unwrap();
        chown(&path, owner, owner).unwrap();
        Service { path, seen }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Tries to reach a path in every way there is; says what worked.
const REACH: &str = "
import os, socket, sys
def tries(path):
    yield path
    yield os.path.dirname(path) + '/./../' + os.path.basename(os.path.dirname(path)) + '/' + os.path.basename(path)
    yield '/proc/self/root' + path
    yield '/proc/1/root' + path
    link = '/tmp/link%d' % abs(hash(path)); os.path.lexists(link) or os.symlink(path, link)
    yield link
    folder = '/tmp/dir%d' % abs(hash(path)); os.path.lexists(folder) or os.symlink(os.path.dirname(path), folder)
    yield folder + '/' + os.path.basename(path)
    try: yield '/proc/self/fd/%d' % os.open(path, os.O_PATH)
    except OSError: pass
    try: yield '/proc/self/fd/%d/%s' % (os.open(os.path.dirname(path), os.O_PATH), os.path.basename(path))
    except OSError: pass
    try:
        os.link(path, '/tmp/hard%d' % abs(hash(path))); yield '/tmp/hard%d' % abs(hash(path))
    except OSError: pass
    try:
        os.chdir(os.path.dirname(path)); yield os.path.basename(path)
    except OSError: pass
def attempt(what, act):
    try:
        act(); print('REACHED', what, flush=True)
    except (OSError, OverflowError): pass
for path in sys.argv[1:]:
    for way in tries(path):
        if len(way) > 107: continue
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW):
            attempt((way, kind, 'connect'), lambda: socket.socket(socket.AF_UNIX, kind).connect(way))
            attempt((way, kind, 'sendto'), lambda: socket.socket(socket.AF_UNIX, kind).sendto(b'x', way))
            attempt((way, kind, 'sendmsg'), lambda: socket.socket(socket.AF_UNIX, kind).sendmsg([b'x'], [], 0, way))
            attempt((way, kind, 'pair'), lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendmsg([b'x'], [], 0, way))
";

/// N03: where nothing is shown there is nothing to connect to; where something is shown, looking is all there is.
#[test]
fn path_sockets_of_the_host_cannot_be_reached() {
    let name = format!("cofferdam-canary-{}.sock", std::process::id());
    for who in BOTH {
        let place = Place::new(who);
        // A person's own services are theirs; a system's are open to all.
        let caller = fs::metadata(&place.project).unwrap().uid();
        let mut services = Vec::new();
        for dir in [Path::new("/run"), Path::new("/tmp"), Path::new("/var/tmp"), &place.root, &place.home] {
            services.push(Service::new(dir.join(&name), false, None));
        }
        let read = place.dir("read");
        for (dir, owner) in
            [(&place.project, None), (&place.project, Some(caller)), (&read, None), (&read, Some(caller))]
        {
            let tag = if owner.is_some() { "own" } else { "all" };
            services.push(Service::new(dir.join(format!("{tag}-s.sock")), false, owner));
            services.push(Service::new(dir.join(format!("{tag}-d.sock")), true, owner));
        }
        let paths: Vec<&str> = services.iter().map(|s| s.path.to_str().unwrap()).collect();
        let command = [&["/usr/bin/python3", "-c", REACH], &paths[..]].concat();
        let flags = ["--read", read.to_str().unwrap()];
        // A rule that opens another one opens none of these.
        let other = Service::new(place.root.join("other.sock"), false, None);
        let rule = format!("unix:{}", other.path.display());
        for flags in [&flags[..], &[&flags[..], &["--net", &rule]].concat()] {
            let run = place.run(flags, &command);
            std::thread::sleep(Duration::from_millis(300));
            let reached: Vec<_> =
                services.iter().filter(|s| s.seen.now() > 0).map(|s| s.path.display().to_string()).collect();
            assert_eq!(reached, Vec::<String>::new(), "{who:?}: host services reached: {}", run.story());
            assert_eq!(run.assert_ok().stdout(), "", "{who:?}");
            let stream = place.project.join("all-s.sock");
            run.assert_denied("net.connect", &format!("unix:{}", stream.display()));
        }
        // The controls: outside each of them answers, and inside the guest's own do.
        let outside = place.outside("/usr/bin/python3").args(["-c", REACH]).args(&paths).output().unwrap();
        assert!(!outside.stdout.is_empty());
        std::thread::sleep(Duration::from_millis(300));
        for service in &services {
            assert!(service.seen.now() > 0, "{who:?}: {} is no service", service.path.display());
        }
        let own = "
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    path = '/tmp/own%d' % kind
    l = socket.socket(socket.AF_UNIX, kind); l.bind(path); l.listen()
    a = socket.socket(socket.AF_UNIX, kind); a.connect(path); b, _ = l.accept(); b.send(b'own'); print(a.recv(9))
";
        assert_eq!(place.python(&[], own).assert_ok().stdout(), "b'own'\nb'own'\n", "{who:?}");
    }
}

/// N03: a guest that swaps what a path means while it is being judged gets nowhere either.
#[test]
fn path_sockets_cannot_be_reached_by_a_swap() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(place.project.join("x.sock"), false, None);
        let probe = place.c_program(
            "swap",
            r#"
            #define _GNU_SOURCE
            #include <errno.h>
            #include <fcntl.h>
            #include <pthread.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            #include <sys/socket.h>
            #include <sys/stat.h>
            #include <sys/un.h>
            #include <unistd.h>
            static struct sockaddr_un own = {AF_UNIX, "/tmp/a/x.sock"}, moving = {AF_UNIX, "/tmp/a/x.sock"}, other = {AF_UNIX};
            static void *exchange(void *x) { for (;;) renameat2(AT_FDCWD, "/tmp/a", AT_FDCWD, "/tmp/b", RENAME_EXCHANGE); }
            static void *rewrite(void *x) { for (;;) { memcpy(&moving, &other, sizeof own); memcpy(&moving, &own, sizeof own); } }
            static void *serve(void *l) { for (;;) { int c = accept(*(int *)l, 0, 0); if (c >= 0) { write(c, "own", 3); close(c); } } }
            int main(int argc, char **argv) {
                pthread_t t;
                int mine = 0, l = socket(AF_UNIX, SOCK_STREAM, 0);
                long rounds = atol(argv[2]);
                snprintf(other.sun_path, 108, "%s/x.sock", argv[1]);
                if (mkdir("/tmp/a", 0700) || symlink(argv[1], "/tmp/b")) return 30;
                if (bind(l, (void *)&own, sizeof own) || listen(l, 4000)) return 30;
                pthread_create(&t, 0, serve, &l);
                for (long i = 0; i < rounds; i++) {
                    // The first is the control: nothing moves yet.
                    if (i == 1) pthread_create(&t, 0, strcmp(argv[3], "path") ? rewrite : exchange, 0);
                    int s = socket(AF_UNIX, SOCK_STREAM, 0);
                    char b[32] = {0};
                    if (!connect(s, (void *)(strcmp(argv[3], "path") ? &moving : &own), sizeof own) && read(s, b, 31) > 0) mine += !strcmp(b, "own");
                    close(s);
                }
                printf("%s\n", mine > 0 ? "own" : "none");
                return 0;
            }"#,
        );
        let command =
            |how| [probe.to_str().unwrap().to_string(), place.project.display().to_string(), "8000".into(), how];
        for how in ["path", "pointer"] {
            let command = command(how.to_string());
            let run = place.run(&["-t", "80s"], &command.each_ref().map(String::as_str));
            assert_eq!(run.assert_ok().stdout(), "own\n", "{who:?}, {how}: the control: its own was reached");
            assert_eq!(service.seen.get(), 0, "{who:?}, {how}: the host's service was reached");
        }
    }
}

/// The kernel does not follow a path that goes up while anything is being moved anywhere; a neighbour who moves files
/// all the time must not keep a guest from its sockets, nor hang it.
#[test]
fn paths_that_go_up_are_answered_while_things_move() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(place.root.join("s.sock"), false, Some(0));
        let rule = format!("unix:{}", service.path.display());
        let busy = std::sync::atomic::AtomicBool::new(true);
        let run = std::thread::scope(|scope| {
            scope.spawn(|| {
                let [one, other] = ["one", "other"].map(|name| place.root.join(name));
                fs::create_dir(&one).unwrap();
                while busy.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::rename(&one, &other).and_then(|()| fs::rename(&other, &one));
                }
            });
            let run = place.python(
                &["--net", &rule],
                "
import socket
def ends(path):
    try: socket.socket(socket.AF_UNIX).connect(path); return 'connected'
    except OSError as e: return e.strerror
l = socket.socket(socket.AF_UNIX); l.bind('/tmp/own'); l.listen(4000)
print({ends('/tmp/../tmp/own') for _ in range(2000)}, {ends('/tmp/../tmp/none') for _ in range(2000)})
",
            );
            busy.store(false, std::sync::atomic::Ordering::Relaxed);
            run
        });
        let expected = "{'connected'} {'No such file or directory'}\n";
        assert_eq!(run.assert_ok().stdout(), expected, "{who:?}");
    }
}

/// What is mounted below the guest's own /tmp keeps its place: moved, it would look like the guest's own.
#[test]
fn path_sockets_cannot_be_reached_by_moving_what_leads_to_them() {
    for who in BOTH {
        let place = Place::new(who);
        let top = PathBuf::from(format!("/tmp/cofferdam-test-{}-{who:?}", std::process::id()));
        let project = place.dir(top.join("in/project"));
        let service = Service::new(project.join("x.sock"), false, None);
        let probe = "
import os, socket, sys
top = sys.argv[1]
def go(path):
    try: socket.socket(socket.AF_UNIX).connect(path); print('REACHED', path)
    except OSError: pass
go(top + '/in/project/x.sock')
for old, new in ((top, '/tmp/moved'), (top + '/in', '/tmp/in'), (top + '/in/project', '/tmp/project')):
    try: os.rename(old, new)
    except OSError: pass
for path in ('/tmp/moved/in/project', '/tmp/in/project', '/tmp/project'): go(path + '/x.sock')
";
        let workdir = ["--workdir", project.to_str().unwrap()];
        let run = place.run(&workdir, &["/usr/bin/python3", "-c", probe, top.to_str().unwrap()]);
        assert_eq!(run.assert_ok().stdout(), "", "{who:?}: {}", run.story());
        run.assert_denied("net.connect", &format!("unix:{}", service.path.display()));
        assert_eq!(service.seen.get(), 0, "{who:?}");
        drop(service);
        fs::remove_dir_all(top).unwrap();
    }
}

/// A pipe with a name is a way out as well.
#[test]
fn named_pipes_of_the_host_take_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let pipe = place.project.join("pipe");
        assert!(place.outside("mkfifo").arg(&pipe).status().unwrap().success());
        // Open both ways, so that nobody waits for the other side.
        let mut held = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let write = "import os\nfor flags in (os.O_WRONLY, os.O_RDWR):\n try:\n  os.write(os.open('pipe', flags | os.O_NONBLOCK), b'x'); print('wrote')\n except OSError: pass";
        // In a workspace a pipe of that name is the guest's own.
        place.python(&[], write).assert_ok();
        let run = place.python(&["--read-only"], write);
        assert_eq!(run.assert_ok().stdout(), "", "{who:?}");
        run.assert_denied("fs.write", pipe.to_str().unwrap());
        // The control: what comes out first is ours.
        held.write_all(b"y").unwrap();
        let mut first = [0];
        held.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"y");
    }
}

/// N06
#[test]
fn a_policy_that_is_not_understood_is_not_run() {
    let place = Place::new(As::User);
    let good = r#"{"version": 1, "extends": ["default"]"#;
    // Each part is put on line 2 of a document that is good without it.
    let wrong = [
        // unknown keys, at every level
        r#""colour": 1"#,
        r#""limit": {}"#,
        r#""defaults": {"file": "deny"}"#,
        r#""fs": {"rule": []}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": ["read_file"], "when": 1}]}"#,
        r#""net": {"rules": [{"action": "deny", "hosts": "a.b"}]}"#,
        r#""exec": {"rules": [{"action": "allow", "path": "/bin/true", "md5": "x"}]}"#,
        r#""syscalls": {"allow": []}"#,
        r#""env": {"passes": []}"#,
        r#""limits": {"max_wall": 1}"#,
        r#""audit": {"event": []}"#,
        // keys twice
        r#""version": 1"#,
        r#""fs": {"rules": [], "rules": []}"#,
        r#""limits": {"max_files": 9, "max_files": 99}"#,
        r#""env": {"set": {"A": "1", "A": "2"}}"#,
        // wrong types
        r#""defaults": "deny""#,
        r#""defaults": {"fs": true}"#,
        r#""defaults": {"fs": null}"#,
        r#""fs": []"#,
        r#""fs": {"rules": {}}"#,
        r#""fs": {"rules": ["/opt"]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": ["/opt"], "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": "read_file"}]}"#,
        r#""limits": {"max_files": "9"}"#,
        r#""limits": {"max_files": 1.5}"#,
        r#""limits": {"max_memory_mb": "64m"}"#,
        r#""env": {"pass": "LANG"}"#,
        r#""syscalls": {"deny": "ptrace"}"#,
        r#""degrade": "landlock""#,
        // wrong values
        r#""defaults": {"fs": "maybe"}"#,
        r#""fs": {"rules": [{"action": "permit", "path": "/opt", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "relative", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/a/../b", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/a\u0000b", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": ["fly"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt"}]}"#,
        r#""fs": {"rules": [{"path": "/opt", "perms": ["read_file"]}]}"#,
        r#""net": {"rules": [{"action": "deny"}]}"#,
        r#""net": {"rules": [{"action": "deny", "host": "a.b", "cidr": "10.0.0.0/8"}]}"#,
        r#""net": {"rules": [{"action": "deny", "cidr": "10.0.0.0/99"}]}"#,
        r#""net": {"rules": [{"action": "deny", "host": "a.b", "ports": "70000"}]}"#,
        r#""degrade": ["everything"]"#,
        r#""exec": {"rules": [{"action": "allow", "path": "/bin/true", "sha256": "12"}]}"#,
    ];
    for part in wrong {
        let file = place.file("p.json", format!("{good},\n{part}}}\n"));
        let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
        assert_eq!((run.code(), run.stdout().as_str()), (2, ""), "{part}: {}", run.story());
        assert_eq!(run.text("/error_kind"), "invalid_request", "{part}");
        let place_of_it = format!("{}:2:", file.display());
        assert!(run.stderr().contains(&place_of_it), "{part} must name {place_of_it}: {}", run.story());
    }
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{} {}",
        r#"{"version": 2}"#,
        r#"{"extends": ["default"]}"#,
        "{\"version\": 1,}",
        "\u{feff}x",
    ] {
        let file = place.file("p.json", text);
        let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
        assert_eq!((run.code(), run.stdout().as_str()), (2, ""), "{text:?}: {}", run.story());
        assert!(run.stderr().contains(file.to_str().unwrap()), "{text:?}: {}", run.story());
    }
    for (text, code) in [(r#"{"version": 1, "extends": ["no-such"]}"#, 2), (&format!("{good}}}"), 0)] {
        let file = place.file("p.json", text);
        place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]).assert_code(code);
    }
    // A call that this machine does not have cannot be held: refused, but as a rule and not as a mistake.
    let file = place.file("p.json", format!(r#"{good}, "syscalls": {{"deny": ["no_such_call"]}}}}"#));
    let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
    run.assert_code(125);
    assert_eq!(run.text("/error_kind"), "unsupported_policy", "{}", run.story());
    for missing in [vec!["-s", "/nowhere/p.json"], vec!["-p", "no-such-preset"], vec!["-s", "/"]] {
        place.run(&missing, &["/bin/echo", "ran"]).assert_code(2);
    }
}

/// N06: an empty list is not a wildcard.
#[test]
fn an_empty_list_means_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let secret = place.file("home/project/secret", CANARY);
        let run_with = |text: &str, command: &[&str]| {
            let file = place.file("p.json", text);
            place.run(&["-s", file.to_str().unwrap()], command)
        };
        // No rule, no file: not even the program.
        for text in [r#"{"version": 1}"#, r#"{"version": 1, "fs": {"rules": []}}"#, r#"{"version": 1, "extends": []}"#]
        {
            let run = run_with(text, &["/bin/cat", secret.to_str().unwrap()]);
            run.assert_code(126);
            assert_no_canary(&run);
        }
        let none = run_with(r#"{"version": 1, "extends": ["default"], "env": {"pass": []}}"#, &["/usr/bin/env"]);
        let names: Vec<String> =
            none.assert_ok().stdout().lines().map(|l| l.split('=').next().unwrap().to_string()).collect();
        assert_eq!(names, ["COFFERDAM", "COFFERDAM_RUN_ID"], "{}", none.story());
        let programs = r#"{"version": 1, "extends": ["default"], "defaults": {"exec": "deny"}, "exec": {"rules": []}}"#;
        run_with(programs, &["/bin/true"]).assert_code(126);
        // No permission, no access.
        let perms = r#"{"version": 1, "extends": ["default"], "fs": {"rules": [{"action": "allow", "path": "/root", "perms": []}]}}"#;
        let run = run_with(perms, &["/bin/ls", "/root"]);
        assert_ne!(run.code(), 0, "{}", run.story());
        // The control.
        let all = run_with(r#"{"version": 1, "extends": ["default"]}"#, &["/bin/cat", secret.to_str().unwrap()]);
        assert_eq!(all.assert_ok().stdout(), CANARY);
    }
}

/// I01: every road to a file ends at the same wall.
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
        // The control: the same roads to the file next door.
        let open: Vec<String> =
            by(&deny, &allowed).stdout().lines().filter(|l| l.ends_with("in policy")).map(String::from).collect();
        assert!(open.len() >= 14, "{who:?}: {open:#?}");
    }
}

/// I02: while names and pointers change under the kernel's hands, no denied byte is ever delivered.
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
                    // The first is the control: nothing moves yet.
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
            let flags = [&["--deny-read", denied, "-t", "80s"], more].concat();
            let run = place.run(&flags, &[probe, allowed, denied, rounds]);
            assert_no_canary(&run);
            assert_eq!(run.assert_ok().stdout(), "fine 0\n", "{who:?} {more:?}: {}", run.story());
        }
    }
}

/// A10
#[test]
fn a_working_directory_widens_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let vault = place.dir("home/project/vault");
        place.file("home/project/vault/secret", CANARY);
        place.file("home/private/secret", CANARY);
        place.file("home/project/open", "in policy");
        let link = place.project.join("way");
        symlink(&vault, &link).unwrap();
        let deny = ["--deny-read", vault.to_str().unwrap()];
        let look = "cat secret vault/secret way/secret ./secret ../private/secret private/secret project/vault/secret 2>/dev/null; ls vault way 2>/dev/null; true";
        let project = place.project.to_str().unwrap();
        let up = format!("{project}/..");
        for dir in [
            project,
            vault.to_str().unwrap(),
            link.to_str().unwrap(),
            "vault",
            "way",
            "vault/../vault",
            &up,
            "..",
            "/",
            "/proc/self/cwd",
        ] {
            for flags in [
                vec!["-w", dir],
                vec!["-w", dir, "--read", vault.to_str().unwrap()],
                vec!["-w", dir, "--write", vault.to_str().unwrap()],
                vec!["-w", dir, "--read", link.to_str().unwrap(), "--read", project],
            ] {
                let run = place.sh(&[&flags[..], &deny[..]].concat(), look);
                assert_no_canary(&run);
                let run = place.sh(&[&deny[..], &flags[..]].concat(), look);
                assert_no_canary(&run);
            }
        }
        // Places that are the kernel's, or nowhere.
        for dir in ["/proc", "/proc/self", "/proc/1/root", "/dev", "/sys", "/nowhere", "open", ""] {
            let run = place.sh(&["-w", dir], "echo ran");
            assert!(run.code() == 2 && run.stdout().is_empty(), "{who:?} {dir:?}: {}", run.story());
        }
        // The caller's own place, without any flag.
        for dir in ["/proc/self", "/dev", "/sys"] {
            let output = place.cofferdam(["run", "--", "/bin/echo", "ran"]).current_dir(dir).output().unwrap();
            assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{who:?} {dir}: {output:?}");
        }
        let through = place
            .cofferdam(["run", "--deny-read"])
            .arg(&vault)
            .args(["-c", "cat secret; true"])
            .current_dir(&link)
            .output();
        assert!(!String::from_utf8_lossy(&through.unwrap().stdout).contains(CANARY));
        // A deny in any source holds against an allow in any other.
        let file = place.file(
            "deny.json",
            format!(
                r#"{{"version": 1, "extends": ["default"], "fs": {{"rules": [{{"action": "deny", "path": "{}"}}]}}}}"#,
                vault.display()
            ),
        );
        for flags in [
            ["-s", file.to_str().unwrap(), "--read", vault.to_str().unwrap()],
            ["--write", vault.to_str().unwrap(), "-s", file.to_str().unwrap()],
        ] {
            assert_no_canary(&place.sh(&flags, look));
        }
        let kept = place.file("home/project/kept", "as it was");
        let both = ["--direct", "--write", project, "--deny-write", kept.to_str().unwrap()];
        place.sh(&both, "echo changed > kept; rm -f kept; mv kept other; echo new > made").assert_ok();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was");
        // The controls.
        assert!(place.project.join("made").exists());
        assert_eq!(place.sh(&["-w", vault.to_str().unwrap()], "cat secret").assert_ok().stdout(), CANARY);
        assert_eq!(
            place.sh(&["-w", "way"], "cat secret; pwd").assert_ok().stdout(),
            format!("{CANARY}{}\n", vault.display())
        );
        assert_eq!(place.sh(&deny, "cat open").assert_ok().stdout(), "in policy");
    }
}

#[cfg(target_arch = "x86_64")]
const ENOMEM: &str = "12";
const ENOSYS: &str = "38";
#[cfg(target_arch = "x86_64")]
const EPERM: &str = "1";

/// Runs `cofferdam run FLAGS -- COMMAND` where one call is missing.
#[cfg(target_arch = "x86_64")]
fn without(place: &Place, hide: &Path, call: u32, errno: &str, flags: &[&str], command: &[&str]) -> Run {
    let status = place.file(format!("status-{}.json", unique()), "");
    let mut c = place.outside("timeout");
    c.args(["--signal", "KILL", "30"]).arg(hide).args([&call.to_string(), errno]).arg(binary());
    let output = c.args(["run", "--status-file"]).arg(&status).args(flags).arg("--").args(command).output().unwrap();
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    Run { output, outcome }
}

/// A16: a wall that cannot be put up is a reason not to start.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_missing_kernel_feature_is_a_refusal() {
    let calls = [
        ("landlock_create_ruleset", 444),
        ("landlock_add_rule", 445),
        ("landlock_restrict_self", 446),
        ("seccomp", 317),
        ("clone3", 435),
        ("clone", 56),
        ("unshare", 272),
        ("mount", 165),
        ("umount2", 166),
        ("pivot_root", 155),
        ("open_tree", 428),
        ("move_mount", 429),
        ("mount_setattr", 442),
        ("prctl", 157),
        ("capset", 126),
        ("setresuid", 117),
        ("setresgid", 119),
        ("openat2", 437),
        ("close_range", 436),
        ("setsid", 112),
        ("prlimit64", 302),
    ];
    for who in BOTH {
        let place = Place::new(who);
        let hide = place.c_program("hide", HIDE);
        for (name, call) in calls {
            for errno in [ENOSYS, EPERM] {
                let run = without(&place, &hide, call, errno, &[], &["/bin/sh", "-c", "echo ran"]);
                let story = format!("{who:?}, {name} fails with {errno}: {}", run.story());
                assert_eq!(run.stdout(), "", "ran all the same: {story}");
                assert_eq!(run.code(), 125, "{story}");
                assert_eq!(run.text("/error_kind"), "unsupported_host", "{story}");
                assert!(!run.text("/hint").is_empty(), "the fix is named: {story}");
            }
        }
        // A machine without memory blocks nothing; it is asked again later.
        for (name, call) in [("mount", 165), ("open_tree", 428), ("clone3", 435)] {
            let run = without(&place, &hide, call, ENOMEM, &[], &["/bin/echo", "ran"]);
            let story = format!("{who:?}, {name}: {}", run.story());
            assert_eq!((run.code(), run.text("/error_kind")), (125, "unavailable".into()), "{story}");
            assert!(run.text("/message").contains("no memory") && !run.text("/message").contains("blocked"), "{story}");
        }
        // The control: a call that no wall needs.
        assert_eq!(without(&place, &hide, 332, ENOSYS, &[], &["/bin/echo", "ran"]).assert_ok().stdout(), "ran\n");
    }
}

/// A16: what only serves limits and reports must not vanish without a word either.
#[test]
#[cfg(target_arch = "x86_64")]
fn limits_and_reports_do_not_fade_silently() {
    for who in BOTH {
        let place = Place::new(who);
        let hide = place.c_program("hide", HIDE);
        let held_or_refused = |run: &Run, held: bool| {
            let refused = run.code() == 125 && run.text("/error_kind").starts_with("unsupported");
            assert!(refused || held, "{who:?}: {}", run.story());
        };
        // pidfd_send_signal: the wall limit ends the run, or the run is refused.
        let begun = std::time::Instant::now();
        let run = without(&place, &hide, 424, ENOSYS, &["-t", "1s"], &["/bin/sleep", "20"]);
        held_or_refused(&run, run.code() == 124 && begun.elapsed() < Duration::from_secs(15));
        // process_vm_readv: a refused write is reported, or the run is refused.
        let run = without(&place, &hide, 310, ENOSYS, &[], &["/bin/sh", "-c", "echo x > /etc/hostname"]);
        held_or_refused(&run, run.was_denied("fs.write", "/etc/hostname"));
        // sched_setaffinity, where processors are limited.
        if who == As::Root {
            let run = without(&place, &hide, 203, ENOSYS, &["--cpus", "1"], &["/usr/bin/nproc"]);
            held_or_refused(&run, run.stdout() == "1\n");
        }
        // The control.
        place.sh(&[], "echo x > /etc/hostname").assert_denied("fs.write", "/etc/hostname");
    }
}

/// A16: namespaces that an administrator has switched off, one kind at a time.
#[test]
fn a_namespace_that_is_switched_off_is_a_refusal() {
    for who in BOTH {
        let place = Place::new(who);
        let nested = |sysctl: &str| -> Output {
            let script = "[ -z \"$1\" ] || echo 0 > /proc/sys/user/$1 || exit 90; shift; exec \"$@\"";
            let mut c = place.outside("unshare");
            c.args(["--user", "--map-root-user", "sh", "-c", script, "sh", sysctl]).arg(binary());
            c.args(["run", "--json", "--", "/bin/echo", "ran"]).output().unwrap()
        };
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "time", "cgroup"] {
            let output = nested(&format!("max_{kind}_namespaces"));
            let story = format!("{who:?}, no {kind} namespaces: {output:?}");
            assert_eq!(output.status.code(), Some(125), "{story}");
            let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(fault["error_kind"], "unsupported_host", "{story}");
            assert!(fault["hint"].as_str().is_some_and(|h| !h.is_empty()), "{story}");
        }
        // The control: within a namespace as such it runs.
        let output = nested("");
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(outcome["stdout"], "ran\n", "{who:?}: {output:?}");
        assert_eq!(outcome["enforcement"]["level"], "full", "{who:?}: {output:?}");
    }
}
