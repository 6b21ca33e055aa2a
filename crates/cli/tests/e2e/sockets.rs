//! Unix sockets of the host: rules name those that a guest may connect to.

use crate::support::left::soon;
use crate::support::world::{PUBLIC, World};
use crate::support::{As, BOTH, Place, USER, unique};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// A server that sends each client the uid it sees, and logs a line per connection.
const SERVE: &str = "
import os, socket, struct, sys
path, kind, log = sys.argv[1], getattr(socket, sys.argv[2]), open(sys.argv[3], 'a', 1)
server = socket.socket(socket.AF_UNIX, kind)
server.bind(path); os.chmod(path, 0o777); server.listen(64)
log.write('ready\\n')
while True:
    peer, _ = server.accept()
    uid = struct.unpack('iii', peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    log.write('peer\\n')
    try: peer.sendall(b'%s %d' % (os.path.basename(path).encode(), uid)); peer.recv(9)
    except OSError: pass
    peer.close()
";

/// Connects to each path and prints the result.
pub const TRY: &str = "
import errno, socket, sys
for path in sys.argv[2:]:
    s = socket.socket(socket.AF_UNIX, getattr(socket, sys.argv[1]))
    try: s.settimeout(20); s.connect(path); print(s.recv(99).decode())
    except OSError as e: print(errno.errorcode.get(e.errno, e))
";

/// A unix socket server on the host.
pub struct Service {
    process: Child,
    path: PathBuf,
    log: PathBuf,
}

impl Service {
    pub fn new(place: &Place, path: impl AsRef<Path>) -> Service {
        Service::of_kind(place, path, "SOCK_STREAM")
    }

    pub fn of_kind(place: &Place, path: impl AsRef<Path>, kind: &str) -> Service {
        let path = place.root.join(path);
        place.dir(path.parent().unwrap());
        let log = place.file(format!("logs/{}", unique()), "");
        let mut python = place.outside("/usr/bin/python3");
        let process = python.args(["-c", SERVE]).arg(&path).arg(kind).arg(&log).spawn().unwrap();
        let service = Service { process, path, log };
        let patience = Instant::now() + Duration::from_secs(180);
        while service.lines() == 0 {
            assert!(Instant::now() < patience, "{} does not start", service.path.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        service
    }

    pub fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn target(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    fn lines(&self) -> usize {
        fs::read_to_string(&self.log).unwrap().lines().count()
    }

    /// Number of connections so far.
    pub fn seen(&self) -> usize {
        self.lines() - 1
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.path);
    }
}

fn allow(path: &str) -> Value {
    json!({"action": "allow", "proto": "unix", "path": path})
}

fn policy(place: &Place, rules: Value) -> String {
    place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": rules}}))
}

fn connect(place: &Place, policy: &str, paths: &[&str]) -> crate::support::Run {
    place.run(&["-p", policy], &[&["/usr/bin/python3", "-c", TRY, "SOCK_STREAM"], paths].concat())
}

/// The uid that a service sees when a rule lets the guest through.
fn caller(who: As) -> u32 {
    if who == As::Root { 0 } else { USER }
}

// promise 5
#[test]
fn a_named_socket_is_reached_and_its_neighbour_is_not() {
    for who in BOTH {
        let place = Place::new(who);
        for kind in ["SOCK_STREAM", "SOCK_SEQPACKET"] {
            let open = Service::of_kind(&place, "run/open.sock", kind);
            let shut = Service::of_kind(&place, "run/shut.sock", kind);
            let rules = policy(&place, json!([allow(open.text())]));
            let command = ["/usr/bin/python3", "-c", TRY, kind, open.text(), shut.text()];
            let run = place.run(&["-p", &rules], &command);
            assert_eq!(run.stdout(), format!("open.sock {}\nENOENT\n", caller(who)), "{who:?}: {}", run.story());
            assert_eq!((open.seen(), shut.seen()), (1, 0), "{who:?}");
            run.assert_denied("net.connect", &shut.target());
            let dir = open.path.parent().unwrap().to_str().unwrap();
            let listed = place.run(&["-p", &rules], &["ls", dir]);
            assert_eq!(listed.assert_ok().stdout(), "open.sock\n", "{who:?}");
            // The rule permits connecting and no change of the file.
            let changes = format!("rm -f {0}; mv {0} {1}; chmod 700 {0}; touch {1}", open.text(), shut.text());
            place.sh(&["-p", &rules], &changes);
            assert!(open.path.exists() && fs::metadata(&open.path).unwrap().permissions().mode() & 0o777 == 0o777);
        }
    }
}

#[test]
fn a_refusal_says_who_and_its_hint_helps() {
    for who in BOTH {
        let place = Place::new(who);
        // A socket in a readable directory, one that is hidden, and one whose name looks like a pattern.
        for path in ["home/project/x.sock", "run/x.sock", "run/[x]*.sock"] {
            let service = Service::new(&place, path);
            let run = place.run(&[], &["/usr/bin/python3", "-c", TRY, "SOCK_STREAM", service.text()]);
            let denial = &run.outcome["denials"][0];
            assert_eq!(denial["op"], "net.connect", "{who:?}: {}", run.story());
            assert_eq!(denial["target"], service.target());
            assert_eq!(denial["rule"], "defaults.net");
            assert!(denial["pid"].as_u64().unwrap() > 0);
            assert!(denial["exe"].as_str().unwrap().contains("python"), "{denial}");
            assert_eq!(service.seen(), 0);
            let hint = denial["hint"].as_str().unwrap();
            let (rule, flag) = hint.strip_prefix("add ").unwrap().split_once(" to net.rules, or run with ").unwrap();
            let rules = policy(&place, json!([serde_json::from_str::<Value>(rule).unwrap()]));
            for flags in [["-p", &rules], <[&str; 2]>::try_from(flag.split(' ').collect::<Vec<_>>()).unwrap()] {
                let before = service.seen();
                let run = place.run(&flags, &["/usr/bin/python3", "-c", TRY, "SOCK_STREAM", service.text()]);
                assert_eq!(service.seen(), before + 1, "{who:?} {flags:?}: {}", run.story());
                assert_eq!(run.outcome["denials"], json!([]));
            }
        }
    }
}

// promise 5
#[test]
fn denials_win_and_warnings_are_told() {
    for who in BOTH {
        let place = Place::new(who);
        let [a, b, c] = ["a.sock", "b.sock", "c.sock"].map(|name| Service::new(&place, Path::new("run").join(name)));
        let [all, deny_b] = ["*.sock", "b.sock"].map(|name| place.root.join("run").join(name).display().to_string());
        let rules = policy(
            &place,
            json!([
                allow(&all),
                {"action": "deny", "proto": "unix", "path": deny_b},
                {"action": "warn", "proto": "unix", "path": c.text()},
            ]),
        );
        let run = connect(&place, &rules, &[a.text(), b.text(), c.text()]);
        let seen = caller(who);
        assert_eq!(run.stdout(), format!("a.sock {seen}\nENOENT\nc.sock {seen}\n"), "{who:?}: {}", run.story());
        assert_eq!((a.seen(), b.seen(), c.seen()), (1, 0, 1));
        let denials: Vec<_> = run.outcome["denials"].as_array().unwrap().iter().collect();
        assert_eq!(denials.len(), 2, "{}", run.story());
        assert_eq!(
            (denials[0]["target"].as_str().unwrap(), &denials[0]["action"]),
            (b.target().as_str(), &json!("deny"))
        );
        assert_eq!(
            (denials[1]["target"].as_str().unwrap(), &denials[1]["action"]),
            (c.target().as_str(), &json!("warn"))
        );
    }
}

#[test]
fn a_whole_directory_of_sockets_can_be_named() {
    for who in BOTH {
        let place = Place::new(who);
        let (near, deep) = (Service::new(&place, "run/near.sock"), Service::new(&place, "run/more/deep.sock"));
        place.file("run/secret", "hidden");
        for pattern in ["run", "run/**"] {
            let rules = policy(&place, json!([allow(place.root.join(pattern).to_str().unwrap())]));
            let run = connect(&place, &rules, &[near.text(), deep.text()]);
            let seen = caller(who);
            assert_eq!(run.stdout(), format!("near.sock {seen}\ndeep.sock {seen}\n"), "{who:?}: {}", run.story());
            let secret = place.root.join("run/secret");
            assert_ne!(place.run(&["-p", &rules], &["cat", secret.to_str().unwrap()]).code(), 0, "{who:?}");
        }
    }
}

#[test]
fn a_socket_that_is_not_there_makes_its_rule_idle() {
    for who in BOTH {
        let place = Place::new(who);
        let missing = place.root.join("run/late.sock").display().to_string();
        let plain = place.file("run/plain", "x").display().to_string();
        let rules = policy(&place, json!([allow(&missing), allow(&plain)]));
        let explained = place.cofferdam(["run", "--explain", "-p", &rules, "--", "true"]).output().unwrap();
        let text = String::from_utf8_lossy(&[explained.stdout, explained.stderr].concat()).into_owned();
        assert!(text.contains(&format!("{missing} does not exist, so the rule has no effect")), "{text}");
        assert!(text.contains(&format!("{plain} names no socket, so the rule has no effect")), "{text}");
        // A socket that appears during the run is reachable from the next run on. Guest and test signal each other by
        // files.
        let signals = place.dir("signals");
        let wait = format!(
            "import os, sys, time\nprint('up', flush=True)\nopen('{0}/up', 'w')\n\
             while not os.path.exists('{0}/go'): time.sleep(0.02)\nsys.argv = ['x', 'SOCK_STREAM', *sys.argv[1:]]\n",
            signals.display()
        );
        let text = format!("{wait}{TRY}");
        let flags = ["-p", &rules, "-t", "120s", "--write", signals.to_str().unwrap()];
        let (run, service) = std::thread::scope(|scope| {
            let run = scope.spawn(|| place.run(&flags, &["/usr/bin/python3", "-c", &text, &missing]));
            assert!(soon(|| signals.join("up").exists()), "{who:?}: the guest did not start");
            let service = Service::new(&place, "run/late.sock");
            place.file("signals/go", "");
            (run.join().unwrap(), service)
        });
        assert_eq!(run.stdout(), "up\nENOENT\n", "{who:?}: {}", run.story());
        assert_eq!(service.seen(), 0);
        assert!(run.text("/denials/0/hint").contains("had no effect"), "{}", run.story());
        assert_eq!(connect(&place, &rules, &[&missing]).stdout(), format!("late.sock {}\n", caller(who)));
    }
}

// promise 5
#[test]
fn links_lead_to_the_socket_unless_a_run_could_have_planted_them() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(&place, "run/x.sock");
        symlink(place.root.join("run"), place.root.join("var-run")).unwrap();
        symlink("x.sock", place.root.join("run/link.sock")).unwrap();
        for name in ["var-run/x.sock", "run/link.sock", "var-run/link.sock"] {
            let path = place.root.join(name).display().to_string();
            let rules = policy(&place, json!([allow(&path)]));
            let before = service.seen();
            let run = connect(&place, &rules, &[&path, service.text()]);
            let line = format!("x.sock {}\n", caller(who));
            assert_eq!(run.stdout(), line.repeat(2), "{who:?} {name}: {}", run.story());
            assert_eq!(service.seen(), before + 2);
            // A denial by one name holds for the other.
            let deny = json!({"action": "deny", "proto": "unix", "path": path});
            let run = connect(&place, &policy(&place, json!([allow(service.text()), deny])), &[service.text()]);
            assert_eq!(run.stdout(), "ENOENT\n", "{who:?} {name}: {}", run.story());
            assert_eq!(service.seen(), before + 2);
        }
        let before = service.seen();
        symlink(&service.path, place.project.join("planted.sock")).unwrap();
        let rules = policy(&place, json!([allow("$WORKSPACE/*.sock")]));
        let run = connect(&place, &rules, &["planted.sock", service.text()]);
        assert_eq!(run.stdout(), "ENOENT\nENOENT\n", "{who:?}: {}", run.story());
        assert_eq!(service.seen(), before, "{who:?}");
    }
}

/// Sockets that the host replaces or renames during a run: the guest reaches the one at the path, or none.
#[test]
fn a_socket_that_is_replaced_or_renamed_during_the_run() {
    let steps = "
import os, socket, sys
def go():
    s = socket.socket(socket.AF_UNIX)
    try: s.settimeout(20); s.connect(sys.argv[1]); print(s.recv(99).decode(), flush=True)
    except OSError as e: print(e.strerror, flush=True)
def wait(step):
    open('step%d' % step, 'w').close()
    import time
    while not os.path.exists('go%d' % step): time.sleep(0.02)
go(); wait(1); go(); wait(2); go()
";
    for who in BOTH {
        let place = Place::new(who);
        // A socket granted by itself, and one in a directory that is shown.
        for dir in ["run", "home/project/run"] {
            let mut first = Service::new(&place, Path::new(dir).join("x.sock"));
            let (path, moved) = (first.path.clone(), first.path.with_file_name("moved.sock"));
            let rules = place.policy(json!({"version": 1, "extends": ["workspace-write"],
                "fs": {"rules": [{"action": "deny", "path": place.project.join("run"), "perms": ["write_file",
                    "truncate", "make_*", "remove_*", "refer"]}]},
                "net": {"rules": [allow(first.text())]}}));
            if dir == "run" {
                place.dir(place.project.join("run"));
            }
            let command = ["/usr/bin/python3", "-c", steps, first.text()];
            let reached = |step: usize| {
                let (there, go) = (place.project.join(format!("step{step}")), place.project.join(format!("go{step}")));
                let patience = Instant::now() + Duration::from_secs(180);
                while !there.exists() && Instant::now() < patience {
                    std::thread::sleep(Duration::from_millis(20));
                }
                go
            };
            let (run, second) = std::thread::scope(|scope| {
                let run = scope.spawn(|| place.run(&["--direct", "-p", &rules], &command));
                let go = reached(1);
                fs::rename(&path, &moved).unwrap();
                fs::write(go, "").unwrap();
                let go = reached(2);
                let second = Service::new(&place, &path);
                fs::write(go, "").unwrap();
                (run.join().unwrap(), second)
            });
            let line = format!("x.sock {}\n", caller(who));
            assert_eq!(run.stdout(), format!("{line}No such file or directory\n{line}"), "{who:?}: {}", run.story());
            assert_eq!((first.seen(), second.seen()), (1, 1), "{who:?} {dir}");
            first.path = moved;
            for name in ["step1", "go1", "step2", "go2"] {
                fs::remove_file(place.project.join(name)).unwrap();
            }
        }
    }
}

/// In a writable directory, sockets belong to the guest; a denied service of the host stays denied there under any
/// name.
// promise 5
#[test]
fn denied_services_in_writable_places_cannot_be_renamed_into_reach() {
    for who in BOTH {
        let place = Place::new(who);
        // A fresh service for each run, because a run may rename it where that gains nothing.
        let service = || {
            let _ = fs::remove_dir_all(place.project.join("d"));
            Service::new(&place, "home/project/d/e/x.sock")
        };
        let mine = "
import os, socket, subprocess, sys
l = socket.socket(socket.AF_UNIX); l.bind('own.sock'); l.listen()
a = socket.socket(socket.AF_UNIX); a.connect('own.sock'); print('own', os.getuid() == __import__('struct').unpack('iii', l.accept()[0].getsockopt(1, 17, 12))[1])
def go(path):
    try: socket.socket(socket.AF_UNIX).connect(path); print('REACHED', path)
    except OSError: pass
go('d/e/x.sock')
for old, new in (('d', 'q'), ('d/e', 'd/q'), ('d/e', 'q'), ('d/e/x.sock', 'd/e/y.sock'), ('d/e/x.sock', 'y.sock')):
    for act in (os.rename, os.link):
        try: act(old, new)
        except OSError: pass
for path in ('q/e/x.sock', 'd/q/x.sock', 'q/x.sock', 'd/e/y.sock', 'y.sock', 'd/e/x.sock'): go(path)
";
        for denied in ["d/e/x.sock", "d/e", "d", "d/**", "*/*/*.sock"] {
            let service = service();
            let deny = json!({"action": "deny", "proto": "unix", "path": format!("$WORKSPACE/{denied}")});
            let rules = place.policy(json!({"version": 1, "extends": ["workspace-write"], "net": {"rules": [deny]}}));
            let run = place.python(&["--direct", "-p", &rules], mine);
            assert_eq!(run.assert_ok().stdout(), "own True\n", "{who:?} {denied}: {}", run.story());
            assert_eq!(service.seen(), 0, "{who:?} {denied}");
            assert!(run.was_denied("net.connect", &service.target()), "{who:?} {denied}: {}", run.story());
            fs::remove_file(place.project.join("own.sock")).unwrap();
        }
        // Control: without the denial the service is reached. Denying all networks leaves the guest its own sockets.
        let service = service();
        let preset = ["--direct", "-p", "workspace-write", "-p", "no-network"];
        let run = place.python(&preset, mine);
        assert!(run.stdout().starts_with("own True\n"), "{who:?}: {}", run.story());
        assert!(service.seen() > 0, "{who:?}");
    }
}

// promise 5
#[test]
fn only_files_are_opened_up_and_nothing_else() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(&place, "run/x.sock");
        let rules = policy(&place, json!([allow(service.text())]));
        let abstract_name = format!("cofferdam-test-{}-{}", std::process::id(), unique());
        let mut python = place.outside("/usr/bin/python3");
        let listen = "import socket, sys, time\ns = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen(); time.sleep(60)";
        let mut other = python.args(["-c", listen, &abstract_name]).spawn().unwrap();
        let listens = || fs::read_to_string("/proc/net/unix").unwrap().contains(&abstract_name);
        assert!(soon(listens), "control: the service outside listens");
        let probe = format!(
            "
import socket
def go(what, act):
    try: act(); print('REACHED', what)
    except OSError as e: print(what, e.errno)
go('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\\0{abstract_name}'))
go('datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect({path:?}))
go('inet', lambda: socket.create_connection(('203.0.113.7', 80), 5))
print([line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]])
l = socket.create_server(('127.0.0.1', 0)); socket.create_connection(l.getsockname(), 5); l.accept(); print('loopback')
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    l = socket.socket(socket.AF_UNIX, kind); l.bind('\\0own%d' % kind); l.listen()
    socket.socket(socket.AF_UNIX, kind).connect('\\0own%d' % kind); l.accept()
print('own')
",
            path = service.text()
        );
        let run = place.python(&["-p", &rules], &probe);
        other.kill().unwrap();
        other.wait().unwrap();
        let expected = "abstract 111\ndatagram 1\ninet 101\n['lo']\nloopback\nown\n";
        assert_eq!(run.assert_ok().stdout(), expected, "{who:?}: {}", run.story());
        assert_eq!(service.seen(), 0);
        let steps = place.cofferdam(["run", "--explain", "-p", &rules, "--", "true"]).output().unwrap();
        assert!(!String::from_utf8_lossy(&steps.stdout).contains("doors"), "{who:?}");
    }
}

#[test]
fn files_that_are_hidden_have_no_sockets() {
    for who in BOTH {
        let place = Place::new(who);
        let service = Service::new(&place, "home/project/private/x.sock");
        let rules = place.policy(json!({"version": 1, "extends": ["default"],
            "fs": {"rules": [{"action": "deny", "path": "$WORKSPACE/private"}]},
            "net": {"rules": [allow(service.text())]}}));
        let run = connect(&place, &rules, &[service.text()]);
        assert_ne!(run.stdout(), format!("x.sock {}\n", caller(who)), "{who:?}: {}", run.story());
        assert_eq!(service.seen(), 0, "{who:?}");
        run.assert_denied("net.connect", &service.target());
    }
}

#[test]
fn explain_says_what_a_run_does() {
    let place = Place::new(As::User);
    let (open, shut) = (Service::new(&place, "run/open.sock"), Service::new(&place, "run/shut.sock"));
    let rules = policy(&place, json!([allow(open.text())]));
    for (subject, says) in [
        (open.text().to_owned(), "allow connect"),
        (open.target(), "allow connect"),
        (shut.text().to_owned(), "deny  connect"),
        (shut.target(), "deny  connect"),
    ] {
        let output = place.cofferdam(["policy", "explain", &subject, "-p", &rules]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(says), "{subject}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn sockets_below_tmp_can_be_named_and_stay_where_they_are() {
    for who in BOTH {
        let place = Place::new(who);
        let dir = PathBuf::from(format!("/tmp/cofferdam-test-{}-tmp-{}", std::process::id(), unique()));
        let service = Service::new(&place, dir.join("in/x.sock"));
        let rules = policy(&place, json!([{"action": "warn", "proto": "unix", "path": service.text()}]));
        let probe = "
import os, socket, sys
path = sys.argv[1]; top = os.path.dirname(os.path.dirname(path))
def go(path):
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(path); print(s.recv(99).decode())
    except OSError as e: print(e.strerror)
go(path)
for old, new in ((top, '/tmp/moved'), (os.path.dirname(path), '/tmp/in'), (path, '/tmp/x')):
    try: os.rename(old, new); print('MOVED', old)
    except OSError: pass
l = socket.socket(socket.AF_UNIX); l.bind('/tmp/mine.sock'); l.listen(); socket.socket(socket.AF_UNIX).connect('/tmp/mine.sock')
print('mine')
";
        let run = place.run(&["-p", &rules], &["/usr/bin/python3", "-c", probe, service.text()]);
        assert_eq!(run.stdout(), format!("x.sock {}\nmine\n", caller(who)), "{who:?}: {}", run.story());
        run.assert_denied("net.connect", &service.target());
        drop(service);
        fs::remove_dir_all(dir).unwrap();
    }
}

/// A guest that swaps an allowed address for another during the check, in memory or by links, gains nothing.
// promise 5
#[test]
fn an_allowed_address_cannot_be_swapped_for_another() {
    for who in BOTH {
        let place = Place::new(who);
        let (open, shut) =
            (Service::new(&place, "home/project/a/x.sock"), Service::new(&place, "home/project/b/x.sock"));
        let rules = policy(&place, json!([allow(open.text())]));
        let probe = place.c_program(
            "swap",
            r#"
            #define _GNU_SOURCE
            #include <fcntl.h>
            #include <libgen.h>
            #include <pthread.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            #include <sys/socket.h>
            #include <sys/un.h>
            #include <unistd.h>
            static struct sockaddr_un good = {AF_UNIX}, bad = {AF_UNIX}, moving = {AF_UNIX};
            static void *exchange(void *x) { for (;;) renameat2(AT_FDCWD, "/tmp/a", AT_FDCWD, "/tmp/b", RENAME_EXCHANGE); }
            static void *rewrite(void *x) { for (;;) { memcpy(&moving, &bad, sizeof bad); memcpy(&moving, &good, sizeof good); } }
            int main(int argc, char **argv) {
                pthread_t t;
                int links = !strcmp(argv[3], "links"), reached = 0;
                char dir[200];
                strcpy(good.sun_path, argv[1]);
                strcpy(bad.sun_path, argv[2]);
                if (symlink(dirname(strcpy(dir, argv[1])), "/tmp/a") || symlink(dirname(strcpy(dir, argv[2])), "/tmp/b")) return 30;
                strcpy(moving.sun_path, links ? "/tmp/a/x.sock" : argv[1]);
                for (int i = 0; i < 3000; i++) {
                    if (i == 1) pthread_create(&t, 0, links ? exchange : rewrite, 0);
                    int s = socket(AF_UNIX, SOCK_STREAM, 0);
                    char b[32] = {0};
                    reached += !connect(s, (void *)&moving, sizeof moving) && read(s, b, 31) > 0;
                    close(s);
                }
                printf("%s\n", reached > 0 ? "reached" : "none");
                return 0;
            }"#,
        );
        for how in ["links", "memory"] {
            let command = [probe.to_str().unwrap(), open.text(), shut.text(), how];
            let run = place.run(&["-t", "280s", "-p", &rules], &command);
            assert_eq!(run.assert_ok().stdout(), "reached\n", "{who:?}, {how}: the control: {}", run.story());
            assert!(open.seen() > 0 && shut.seen() == 0, "{who:?}, {how}");
        }
    }
}

#[test]
fn sockets_and_names_can_be_allowed_together() {
    for who in BOTH {
        let world = World::new(who).host(PUBLIC, "good.test").server("http", PUBLIC, 80);
        let service = Service::new(&world.place, "run/x.sock");
        let rules = policy(&world.place, json!([allow(service.text()), {"action": "allow", "host": "good.test"}]));
        let probe = "
import socket, sys, urllib.request
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(99).decode())
print(urllib.request.urlopen('http://good.test/page', timeout=10).status)
try: socket.create_connection(('good.test', 9), 5).recv(1)
except OSError: print('closed')
";
        let run = world.run(&["-p", &rules], &["/usr/bin/python3", "-c", probe, service.text()]);
        let expected = format!("x.sock {}\n200\nclosed\n", caller(who));
        assert_eq!(run.assert_ok().stdout(), expected, "{who:?}: {}", run.story());
        assert_eq!(service.seen(), 1);
    }
}

// promise 9
#[test]
fn each_connection_is_in_the_journal() {
    for who in BOTH {
        let place = Place::new(who);
        let (open, shut) = (Service::new(&place, "run/open.sock"), Service::new(&place, "run/shut.sock"));
        let rules = policy(&place, json!([allow(open.text())]));
        let file = place.file(format!("events-{}", unique()), "");
        let own = "
import os, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind('/tmp/own'); server.listen()
socket.socket(socket.AF_UNIX).connect('/tmp/own')
";
        let flags = ["-p", &rules, "--events", file.to_str().unwrap()];
        let text = format!("{own}{TRY}");
        let run = place.run(&flags, &["/usr/bin/python3", "-c", &text, "SOCK_STREAM", open.text(), shut.text()]);
        run.assert_ok();
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2, "the guest's own sockets are its own: {text}");
        for (line, service, stage, action) in
            [(&lines[0], &open, "opened", "allow"), (&lines[1], &shut, "refused", "deny")]
        {
            assert_eq!((&line["op"], &line["proto"]), (&json!("net.connect"), &json!("unix")), "{who:?}: {line}");
            assert_eq!((&line["stage"], &line["action"]), (&json!(stage), &json!(action)), "{who:?}: {line}");
            assert_eq!(line["path"], service.text(), "{who:?}: {line}");
            assert!(line["exe"].as_str().unwrap().starts_with("/usr/bin/python3"), "{who:?}: {line}");
        }
        assert!(lines[0]["rule"].as_str().unwrap().contains("net.rules[0]"), "{}", lines[0]);
        assert_eq!(lines[1]["rule"], "defaults.net");
    }
}
