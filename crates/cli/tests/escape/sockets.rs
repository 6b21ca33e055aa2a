//! Sockets and FIFOs of the host and of other guests: a guest neither sends to them nor receives from them. Counters on
//! the host's side decide, never the guest's own output.

use crate::CANARY;
use crate::neighbours::{end, line, spawn};
use crate::support::left::soon;
use crate::support::patience::Over;
use crate::support::{BOTH, Place, Run, unique};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Counts connections and datagrams for as long as the test runs.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU32>);

impl Counter {
    /// The count, after a pause in which the receiving thread can catch up.
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

/// An address of this machine other than loopback.
fn own_address() -> Option<std::net::IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect("192.0.2.1:9").ok()?;
    probe.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_unspecified())
}

/// No packet reaches listeners on the host or beyond it.
// promise 5
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
        // A proxy passed on purpose is unreachable as well.
        let env = format!("http_proxy={proxy}");
        place.python(&["-e", &env, "-e", "EXPECTED=1"], &probe).assert_ok();
        assert_eq!(seen.get(), before, "{who:?}: the host's listeners heard of the guest");
        // Controls: the guest's own loopback works on the same port, and from outside the listener answers.
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
        assert!(soon(|| seen.now() > before), "{who:?}: the listener is no control");
    }
}

/// Abstract sockets of the host and of another guest.
// promise 5
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
        // Control: the guest's own abstract socket is reachable.
        let both = place.python(&[], &format!("{serve}{}", reach(&own)));
        assert!(both.assert_ok().stdout().contains("reached"), "{who:?}: {}", both.story());
    }
    assert_eq!(seen.get(), 0);
}

/// A service on the host at a path, removed on drop.
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

/// Tries to reach a path in every way, and prints the ways that worked.
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

/// A hidden socket does not exist for the guest; a visible one can be seen, not connected to.
// promise 5
#[test]
fn path_sockets_of_the_host_cannot_be_reached() {
    let name = format!("cofferdam-canary-{}.sock", std::process::id());
    for who in BOTH {
        let place = Place::new(who);
        // Services of the caller's uid belong to the caller; those of the system are open to all.
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
        // A rule for another socket allows none of these.
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
        // Controls: outside each service answers, and inside the guest's own sockets do.
        let outside = place.outside("/usr/bin/python3").args(["-c", REACH]).args(&paths).output().unwrap();
        assert!(!outside.stdout.is_empty());
        for service in &services {
            let reached = soon(|| service.seen.now() > 0);
            assert!(reached, "{who:?}: {} is no service", service.path.display());
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

/// A guest that swaps the target of a path during the check gains nothing.
// promise 5
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
                    // The first round is the control, before any swap.
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
            let run = place.run(&["-t", "280s"], &command.each_ref().map(String::as_str));
            assert_eq!(run.assert_ok().stdout(), "own\n", "{who:?}, {how}: the control: its own was reached");
            assert_eq!(service.seen.get(), 0, "{who:?}, {how}: the host's service was reached");
        }
    }
}

/// The kernel refuses to resolve `..` while a rename happens anywhere; a process that renames files all the time must
/// neither keep a guest from its sockets nor hang it.
#[test]
fn paths_that_go_up_are_answered_while_things_move() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(place.root.join("s.sock"), false, Some(0));
        let rule = format!("unix:{}", service.path.display());
        let over = AtomicBool::new(false);
        let run = std::thread::scope(|scope| {
            scope.spawn(|| {
                let [one, other] = ["one", "other"].map(|name| place.root.join(name));
                fs::create_dir(&one).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let _ = fs::rename(&one, &other).and_then(|()| fs::rename(&other, &one));
                }
            });
            let _over = Over(&over);
            place.python(
                &["--net", &rule],
                "
import socket
def ends(path):
    try: socket.socket(socket.AF_UNIX).connect(path); return 'connected'
    except OSError as e: return e.strerror
l = socket.socket(socket.AF_UNIX); l.bind('/tmp/own'); l.listen(4000)
print({ends('/tmp/../tmp/own') for _ in range(2000)}, {ends('/tmp/../tmp/none') for _ in range(2000)})
",
            )
        });
        let expected = "{'connected'} {'No such file or directory'}\n";
        assert_eq!(run.assert_ok().stdout(), expected, "{who:?}");
    }
}

/// Mounts below the guest's own /tmp cannot be moved; once moved, a socket there would look like the guest's own.
// promise 5
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

/// A FIFO of the host would be a channel out as well.
#[test]
fn named_pipes_of_the_host_take_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let pipe = place.project.join("pipe");
        assert!(place.outside("mkfifo").arg(&pipe).status().unwrap().success());
        // Opened for reading and writing, so that opening does not block.
        let mut held = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let write = "import os\nfor flags in (os.O_WRONLY, os.O_RDWR):\n try:\n  os.write(os.open('pipe', flags | os.O_NONBLOCK), b'x'); print('wrote')\n except OSError: pass";
        // In a workspace a FIFO of that name is the guest's own.
        place.python(&[], write).assert_ok();
        let run = place.python(&["--read-only"], write);
        assert_eq!(run.assert_ok().stdout(), "", "{who:?}");
        run.assert_denied("fs.write", pipe.to_str().unwrap());
        // Control: the first byte read is the test's own.
        held.write_all(b"y").unwrap();
        let mut first = [0];
        held.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"y");
    }
}
