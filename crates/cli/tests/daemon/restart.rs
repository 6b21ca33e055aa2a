//! The daemon is killed under load, and another one, or another file of the same version, takes over. No run loses a
//! byte of output, its exit status, a limit or a connection.

use crate::support::http::{Daemon, with_daemon};
use crate::support::left::soon;
use crate::support::sse::{Event, read_along, said};
use crate::support::world::{PUBLIC, World};
use crate::support::{As, Place, binary, either, to_the_end};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MANY: usize = 50;
/// Upper bound for any step that is not stuck, for all runs on a busy host.
const PATIENCE: Duration = Duration::from_secs(180);

/// Command that prints numbers until the file `enough` exists, then exits with `status`.
fn count(status: usize) -> Value {
    json!({ "shell": format!("i=1; while [ ! -e enough ]; do echo $i; i=$((i+1)); sleep 0.3; done; exit {status}") })
}

/// Starts a daemon that takes over and knows all runs at once; returns it and the time that took.
fn take_over(place: &Place, program: &Path, runs: &[String]) -> (Daemon, Duration) {
    let begun = Instant::now();
    let mut command = place.outside(program);
    command.args(["serve", "--json"]).env("COFFERDAM_LOG_LEVEL", "error");
    let daemon = Daemon::spawn(place, command);
    daemon.get("/v1/health/ready").assert_ok();
    let list = daemon.get("/v1/runs?running=true&limit=1000").assert_ok();
    let known: Vec<&str> = list["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap()).collect();
    assert!(runs.iter().all(|run| known.contains(&run.as_str())), "{known:?}");
    (daemon, begun.elapsed())
}

fn kill(mut daemon: Daemon) {
    daemon.signal("KILL");
    daemon.ended();
}

/// Number of times that a reader connected.
static CONNECTS: AtomicUsize = AtomicUsize::new(0);

fn follow_output(socket: &Path, run: &str) -> Option<Vec<Event>> {
    let ask = |more: &str| {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("GET /v1/runs/{run}/output HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        CONNECTS.fetch_add(1, Ordering::Relaxed);
        Some(stream)
    };
    read_along(&ask, PATIENCE)
}

// promise 25
#[test]
fn fifty_live_sandboxes_outlive_two_daemons() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start(&place);
    let socket = daemon.socket.clone();
    let runs: Vec<String> = (0..MANY)
        .map(|n| {
            let ask = json!({ "name": format!("s{n}"), "policies": ["workspace-write"] });
            daemon.post("/v1/sandboxes", ask).assert_ok();
            let begun = daemon.post(&format!("/v1/sandboxes/s{n}/runs"), count(n)).assert_ok();
            begun["run"].as_str().unwrap().to_owned()
        })
        .collect();
    let keepers = || {
        let cards = std::fs::read_dir(place.state().join("keepers")).unwrap().flatten();
        let mut all: Vec<String> =
            cards.filter_map(|entry| std::fs::read_to_string(entry.path().join("keeper.json")).ok()).collect();
        all.sort();
        all
    };
    let before = keepers();
    assert_eq!(before.len(), MANY);
    std::thread::scope(|scope| {
        let listeners: Vec<_> = runs.iter().map(|run| scope.spawn(|| follow_output(&socket, run))).collect();
        assert!(soon(|| CONNECTS.load(Ordering::Relaxed) >= MANY), "all are listened to");
        // A run whose wall limit passes while no daemon is there.
        let limited = json!({ "shell": "echo begun; sleep 1000", "limits": { "max_wall_ms": 8000 } });
        let limited = daemon.post("/v1/sandboxes/s0/runs", limited).assert_ok()["run"].as_str().unwrap().to_owned();
        kill(daemon);
        let over = to_the_end(&mut place.cofferdam(["wait", &limited, "--json"]), b"");
        assert!(!over.status.success(), "{over:?}");

        let other = place.root.join("another-cofferdam");
        crate::support::copy_program(binary(), &other);
        let (daemon, took) = take_over(&place, &other, &runs);
        println!("{MANY} live sandboxes: taken up by another binary after {took:?}");
        let told = daemon.get(&format!("/v1/runs/{limited}?wait=1s")).assert_ok();
        let outcome = &told["outcome"];
        assert_eq!((&outcome["limit_kind"], &outcome["stdout"]), (&json!("wall_ms"), &json!("begun\n")), "{told}");
        kill(daemon);
        let (daemon, _) = take_over(&place, binary(), &runs);
        assert_eq!(keepers(), before, "no keeper was replaced");
        for n in 0..MANY {
            let path = format!("/v1/sandboxes/s{n}/files/content?path=enough");
            daemon.ask("PUT", &path).body("application/octet-stream", b"x").send().assert_ok();
        }
        for (n, listener) in listeners.into_iter().enumerate() {
            let all = listener.join().unwrap().unwrap_or_else(|| panic!("s{n} is told to its end"));
            let lines = said(&all, "stdout");
            let whole: String = (1..=lines.lines().count()).map(|n| format!("{n}\n")).collect();
            assert_eq!(lines, whole, "s{n}: each line once");
            let end = all.last().unwrap();
            assert_eq!(end.data["exit"], json!({ "code": n }), "{end:?}");
        }
        for n in 0..MANY {
            let ask = daemon.ask("DELETE", &format!("/v1/sandboxes/s{n}?force=true&timeout=0s"));
            ask.send().assert_ok();
        }
    });
}

/// Guest that uses one connection all the time and opens another when asked to.
const GUEST: &str = r#"
import os, socket, time
kept = socket.create_connection(("good.test", 7000))
said = kept.makefile("rw")
print(said.readline().strip(), flush=True)
n = 0
while not os.path.exists("enough"):
    n += 1
    said.write(f"{n}\n"); said.flush()
    assert said.readline() == f"{n}\n"
    if os.path.exists("another") and not os.path.exists("made"):
        fresh = socket.create_connection(("good.test", 7000)).makefile("r")
        open("made", "w").write(fresh.readline())
    try:
        socket.create_connection(("bad.test", 7000), timeout=5)
        print("reached what it may not", flush=True)
    except OSError:
        pass
    time.sleep(0.05)
print("spoke", n > 0, flush=True)
"#;

const SCRIPT: &str = r#"
def line(*words):
    return subprocess.run([cofferdam, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
rules = {"version": 1, "extends": ["workspace-write"], "net": {"rules": [{"action": "allow", "host": "good.test", "ports": "7000"}]}}
status, made = ask("POST", "/v1/sandboxes", {"name": "live", "policies": [rules]})
assert status == 201, made
status, run = ask("POST", "/v1/sandboxes/live/runs", {"command": ["python3", "-c", GUEST]})
assert status == 201, run
until("it speaks", lambda: "220 hello" in line("logs", run["run"]).stdout)
daemon.kill(); daemon.wait()
# Without a daemon the keeper goes on to decide.
assert line("exec", "live", "touch", "another").returncode == 0
until("another", lambda: line("exec", "live", "cat", "made").stdout == "220 hello\n")
daemon = subprocess.Popen([cofferdam, "serve", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
daemon.stdout.readline()
until("it is back", is_up)
status, again = ask("GET", f"/v1/runs/{run['run']}")
assert (status, again["running"]) == (200, True), again
assert ask("POST", "/v1/sandboxes/live/runs?wait=120s", {"command": ["touch", "enough"]})[1]["verdict"] == "ok"
status, done = ask("GET", f"/v1/runs/{run['run']}?wait=120s")
print(done["outcome"]["stdout"], end="")
"#;

// promise 25
#[test]
fn a_guests_connections_go_on_without_a_daemon() {
    for who in either() {
        let world = World::new(who).host(PUBLIC, "good.test bad.test").server("greet", PUBLIC, 7000);
        let told = with_daemon(&world, &format!("GUEST = r'''{GUEST}'''\n{SCRIPT}"));
        assert_eq!(told, "220 hello\nspoke True\n", "{who:?}");
    }
}

/// A daemon that is killed in the middle of an upload leaves nothing of it in the workspace.
// promise 25
#[test]
fn half_an_upload_leaves_nothing() {
    for who in either() {
        let place = Place::new(who);
        let mut daemon = Daemon::start(&place);
        let ask = json!({ "name": "s", "dir": place.project, "policies": ["workspace-write"] });
        daemon.post("/v1/sandboxes", ask).assert_ok();
        let put = |daemon: &Daemon, path: &str, bytes: &[u8]| {
            let path = format!("/v1/sandboxes/s/files/content?path={path}");
            daemon.ask("PUT", &path).body("application/octet-stream", bytes).send()
        };
        put(&daemon, "whole", b"whole").assert_ok();
        let token = place.cofferdam(["token", "create", "t", "--scope", "operator"]).output().unwrap();
        let token = String::from_utf8(token.stdout).unwrap();
        let mut half = daemon.unix();
        let head = format!(
            "PUT /v1/sandboxes/s/files/content?path=half HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/octet-stream\r\ncontent-length: 5000000\r\n\r\n",
            token.trim()
        );
        half.write_all(head.as_bytes()).unwrap();
        half.write_all(&vec![b'x'; 2_000_000]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        daemon.signal("KILL");
        daemon.ended();
        daemon = Daemon::start(&place);
        let left = daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "command": ["ls", "-A"] })).assert_ok();
        assert_eq!(left["outcome"]["stdout"], "whole\n", "{who:?}");
        // An existing file is replaced as before, with its mode.
        put(&daemon, "whole&mode=755", b"new").assert_ok();
        put(&daemon, "whole", b"newer").assert_ok();
        let text = "stat -c '%a %h' whole; cat whole";
        let seen = daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({ "shell": text })).assert_ok();
        assert_eq!(seen["outcome"]["stdout"], "755 1\nnewer", "{who:?}");
        daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
    }
}
