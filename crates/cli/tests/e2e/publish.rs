//! Published ports: host to guest forwarding.

use crate::support::patience::PATIENCE;
use crate::support::{As, Place, binary, either, unique};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An echo server that closes each connection with "bye" and exits after `n` connections.
const REPEAT: &str = "
import socket, sys, threading
address, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
server = socket.create_server((address, port), family=socket.AF_INET6 if ':' in address else socket.AF_INET, backlog=512)
print('ready', flush=True)
def one(stream):
    while got := stream.recv(65536): stream.sendall(got)
    stream.sendall(b'bye')
    stream.close()
threads = []
for _ in range(n):
    threads.append(threading.Thread(target=one, args=(server.accept()[0],)))
    threads[-1].start()
for t in threads: t.join()
";

struct Served {
    child: Child,
    status: std::path::PathBuf,
}

/// Starts the server in a run and waits until it listens.
fn serve(place: &Place, flags: &[&str], args: &[&str]) -> Served {
    serve_by(place, place.cofferdam(["run"]), flags, args)
}

/// Like `serve`, with a given start of the command line.
fn serve_by(place: &Place, mut command: Command, flags: &[&str], args: &[&str]) -> Served {
    let status = place.file(format!("status-{}", unique()), "");
    command.arg("--status-file").arg(&status);
    command.args(flags).args(["--", "/usr/bin/python3", "-c", REPEAT]).args(args).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).expect("the guest's server stands");
    Served { child, status }
}

impl Served {
    /// Waits for the run's end and returns the outcome.
    fn end(mut self) -> Value {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                self.child.kill().unwrap();
                panic!("the run hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        serde_json::from_str(&std::fs::read_to_string(&self.status).unwrap()).unwrap()
    }
}

fn call(port: u16) -> TcpStream {
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn talk(port: u16, len: usize) {
    let mut stream = call(port);
    let sent = vec![b'x'; len];
    let mut reader = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        reader.read_to_end(&mut got).map(|_| got)
    });
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let got = reading.join().unwrap().unwrap();
    assert!(got.len() == len + 3 && got.ends_with(b"bye"), "{} of {}", got.len(), len + 3);
}

// promise 5
#[test]
fn a_port_inside_answers_on_the_host() {
    for who in either() {
        let place = Place::new(who);
        for (flag, address) in [("-p", "127.0.0.1"), ("--publish", "0.0.0.0"), ("-p", "::1"), ("-p", "::")] {
            let port = crate::support::free_port();
            let served = serve(&place, &[flag, &format!("{port}:8000")], &[address, "8000", "2"]);
            talk(port, 5);
            talk(port, 1_000_000);
            let outcome = served.end();
            assert_eq!(outcome["verdict"], "ok", "{address}: {outcome:#}");
            assert_eq!(outcome["usage"]["net_bytes"], 2 * 1_000_005 + 2 * 3, "{outcome:#}");
        }
    }
}

/// Ports are published although the early setup helper failed, here at its second call; runs in control groups can do
/// without the helper, too.
// promise 5
#[test]
fn a_port_is_published_though_nothing_was_made_ahead() {
    for who in either() {
        let place = Place::new(who);
        let port = crate::support::free_port();
        let mut command = place.outside("/usr/bin/strace");
        let failing = ["-e", "trace=unshare", "-e", "inject=unshare:error=ENOSPC:when=2"];
        command.args(["-f", "-o", "/dev/null"]).args(failing).arg(binary()).arg("run");
        let served = serve_by(&place, command, &["-p", &format!("{port}:8000")], &["127.0.0.1", "8000", "2"]);
        talk(port, 5);
        talk(port, 100_000);
        let outcome = served.end();
        assert_eq!(outcome["verdict"], "ok", "{who:?}: {outcome:#}");
    }
}

#[test]
fn many_connections_are_served_and_more_wait() {
    let place = Place::new(As::User);
    let port = crate::support::free_port();
    let served = serve(&place, &["-p", &format!("{port}:8000")], &["127.0.0.1", "8000", "200"]);
    // All connections are opened before any is used: more than are forwarded at a time.
    let calls: Vec<TcpStream> = (0..200).map(|_| call(port)).collect();
    for mut stream in calls {
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).unwrap();
        assert_eq!(got, "hellobye");
    }
    assert_eq!(served.end()["verdict"], "ok");
}

// promise 5
#[test]
fn a_port_where_nobody_listens_inside_is_refused() {
    for who in either() {
        let place = Place::new(who);
        let (port, other) = (crate::support::free_port(), crate::support::free_port());
        let flags = ["-p", &format!("{port}:8000"), "-p", &format!("127.0.0.1:{other}:8001")];
        let served = serve(&place, &flags, &["127.0.0.1", "8000", "1"]);
        let mut unserved = call(other);
        let ended = unserved.read(&mut [0; 1]);
        assert!(ended.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
        talk(port, 10);
        assert_eq!(served.end()["verdict"], "ok");
        assert!(TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err(), "closed with the run");
    }
}

#[test]
fn a_caller_that_leaves_does_not_disturb() {
    let place = Place::new(As::User);
    let port = crate::support::free_port();
    let served = serve(&place, &["-p", &format!("{port}:8000")], &["127.0.0.1", "8000", "3"]);
    drop(call(port));
    let mut rude = call(port);
    rude.write_all(&[b'x'; 100_000]).unwrap();
    drop(rude);
    talk(port, 100);
    // The guest's threads saw their clients leave, one of them by a reset.
    served.end();
}

#[test]
fn a_taken_port_is_told_before_anything_starts() {
    for who in either() {
        let place = Place::new(who);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let run = place.run(&["-p", &format!("{port}:80")], &["echo", "started"]);
        run.assert_code(125);
        assert_eq!(run.text("/error_kind"), "conflict", "{}", run.story());
        assert_eq!(run.stdout(), "");
        for bad in ["80", "0:80", "1.2.3:80:80", "70000:1"] {
            let run = place.run(&["--publish", bad], &["true"]);
            run.assert_code(2);
            assert!(run.text("/hint").contains("HOST:GUEST"), "{bad}: {}", run.story());
        }
    }
}

// promise 8
#[test]
fn published_bytes_count_against_the_limit() {
    for who in either() {
        let place = Place::new(who);
        let port = crate::support::free_port();
        let flags = ["-p", &format!("{port}:8000"), "--limit", "net=100k"];
        let served = serve(&place, &flags, &["127.0.0.1", "8000", "1"]);
        let mut stream = call(port);
        let _ = stream.write_all(&vec![b'x'; 300_000]);
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.len() <= 102_400);
        let outcome = served.end();
        assert_eq!((&outcome["verdict"], &outcome["limit_kind"]), (&"limit_exceeded".into(), &"net_bytes".into()));
    }
}

// promise 5
#[test]
fn nothing_of_the_helper_outlives_the_run() {
    let place = Place::new(As::User);
    let port = crate::support::free_port();
    let served = serve(&place, &["-p", &format!("{port}:8000")], &["127.0.0.1", "8000", "1"]);
    talk(port, 10);
    served.end();
    let name = binary().to_str().unwrap();
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|e| {
        let line = std::fs::read(e.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(name) && line.contains(&format!("{port}:8000"))
    });
    assert_eq!(left.count(), 0);
}

/// A guest that accepts no connection and, once told, keeps the supervisor busy: each of its unix connects is carried
/// out by the supervisor for an ordinary caller, with a copy of the guest's descriptor.
const BUSY: &str = "
import os, socket, time
server = socket.create_server(('127.0.0.1', 8000), backlog=4096)
own = socket.socket(socket.AF_UNIX); own.bind('/tmp/own'); own.listen(128)
print('ready', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
made = [socket.socket(socket.AF_UNIX) for _ in range(32)]
for one in made: one.connect('/tmp/own')
try: open('/etc/hostname', 'w')
except OSError: pass
";

// promise 5
#[test]
fn callers_do_not_use_up_the_supervisors_descriptors() {
    for who in either() {
        for flags in [&[][..], &["--net", "198.51.100.7:1"]] {
            let place = Place::new(who);
            let port = crate::support::free_port();
            let status = place.file(format!("status-{}", unique()), "");
            // Hard and soft limit, so that no process can raise it.
            let mut command = place.outside("/bin/sh");
            command.args(["-c", "ulimit -n 160; exec \"$@\"", "sh"]).arg(binary());
            // Without a workspace, a file made on the host shows inside at once.
            command.args([
                "run",
                "--read-only",
                "--status-file",
                status.to_str().unwrap(),
                "-p",
                &format!("{port}:8000"),
            ]);
            command.args(flags).args(["--", "/usr/bin/python3", "-c", BUSY]).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).expect("the guest's server stands");
            let served = Served { child, status };
            let at = SocketAddr::from(([127, 0, 0, 1], port));
            // As many clients as get in; the others wait in the forwarder or in the kernel's backlog.
            let calls: Vec<TcpStream> = (0..200)
                .map_while(|_| TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok())
                .filter(|stream| stream.set_nonblocking(true).is_ok())
                .collect();
            assert!(calls.len() > 100, "{}", calls.len());
            place.file(place.project.join("go"), "");
            let outcome = served.end();
            assert_eq!(outcome["verdict"], "ok", "{who:?} {flags:?}: {outcome:#}");
            let denials = outcome["denials"].as_array().unwrap();
            assert!(denials.iter().any(|d| d["target"] == "/etc/hostname"), "{who:?}: {outcome:#}");
        }
    }
}
