//! Input and output of a run at a daemon: input across a daemon's death, arguments byte for byte, a read-only
//! directory, ports, network events, secrets.

use crate::support::http::{Daemon, with_daemon};
use crate::support::left::soon;
use crate::support::world::{PUBLIC, World};
use crate::support::{As, Place, either, holders, to_the_end};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn asked(place: &Place, daemon: &Daemon, args: &[&str]) -> Command {
    let mut command = place.cofferdam(args);
    command.env("COFFERDAM_SERVER", &daemon.socket);
    command
}

fn told(out: &Output) -> String {
    format!("{:?}\n{}\n{}", out.status, String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The daemon is killed repeatedly during ten megabytes of input, which a guest reads slowly.
// promise 25
#[test]
fn input_that_was_not_acknowledged_is_sent_again_and_arrives_once() {
    for who in either() {
        let place = Place::new(who);
        let mut daemon = Daemon::start(&place);
        assert!(asked(&place, &daemon, &["create", "--name", "box"]).output().unwrap().status.success());
        let bytes: Vec<u8> = (0..10_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let guest = "import hashlib, sys, time\n\
                     h, n = hashlib.sha256(), 0\n\
                     while True:\n\
                     \x20   piece = sys.stdin.buffer.read1(50_000)\n\
                     \x20   if not piece: break\n\
                     \x20   h.update(piece); n += len(piece); time.sleep(0.005)\n\
                     print(n, h.hexdigest())";
        let mut exec = asked(&place, &daemon, &["exec", "box", "--", "python3", "-c", guest]);
        let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pipe = exec.stdin.take().unwrap();
        let gives = bytes.clone();
        let giver = std::thread::spawn(move || pipe.write_all(&gives));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            daemon.signal("KILL");
            daemon.ended();
            daemon = Daemon::start(&place);
        }
        let out = exec.wait_with_output().unwrap();
        giver.join().unwrap().unwrap();
        let mut sum = Command::new("sha256sum");
        let sum = to_the_end(&mut sum, &bytes);
        let sum = String::from_utf8_lossy(&sum.stdout).split(' ').next().unwrap().to_owned();
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("10000000 {sum}\n"), "{who:?}: {}", told(&out));
    }
}

/// Requests in flight, including this one.
fn requests_in_flight(daemon: &Daemon) -> u32 {
    let metrics = daemon.get("/v1/metrics").text();
    let line = metrics.lines().find_map(|line| line.strip_prefix("cofferdam_http_requests_in_flight "));
    line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

#[test]
fn whoever_waits_waits_on_when_the_daemon_is_replaced() {
    let place = Place::new(As::User);
    let mut daemon = Daemon::start(&place);
    assert!(asked(&place, &daemon, &["create", "--name", "box"]).output().unwrap().status.success());
    let begun = asked(&place, &daemon, &["exec", "-d", "box", "-c", "until [ -e go ]; do sleep 0.1; done; exit 7"]);
    let begun = { begun }.output().unwrap();
    let run = String::from_utf8(begun.stdout.clone()).unwrap();
    assert!(run.starts_with("run_"), "{}", told(&begun));
    let mut wait = asked(&place, &daemon, &["wait", run.trim()]);
    let wait = wait.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Killed, and terminated with SIGTERM, which answers waiting clients.
    for signal in ["KILL", "TERM"] {
        assert!(soon(|| requests_in_flight(&daemon) > 1), "the client does not wait");
        daemon.signal(signal);
        daemon.ended();
        daemon = Daemon::start(&place);
    }
    assert!(asked(&place, &daemon, &["exec", "box", "touch", "go"]).output().unwrap().status.success());
    let out = wait.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(7), "{}", told(&out));
    // A client does not wait for a daemon that is not there: with a wait, this would take half a minute.
    daemon.signal("TERM");
    daemon.ended();
    let out = asked(&place, &daemon, &["wait", run.trim()]).output().unwrap();
    assert_eq!(out.status.code(), Some(125), "{}", told(&out));
}

// promise 27
#[test]
fn arguments_and_variables_arrive_byte_for_byte() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    assert!(asked(&place, &daemon, &["create", "--name", "box"]).output().unwrap().status.success());
    let odd = OsStr::from_bytes(b"a\xff\xfe b");
    let print = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]) + b'|' + os.environb[b'V'] + b'|' + os.environb[b'N\\xff'] + b'|' + os.environb[b'P'])";
    let mut exec = asked(&place, &daemon, &["exec", "box", "-e"]);
    exec.arg(OsStr::from_bytes(b"V=\xc3\x28")).arg("-e").arg(OsStr::from_bytes(b"N\xff=name"));
    let out = exec.args(["-e", "P"]).env("P", odd).args(["--", "python3", "-c", print]).arg(odd).output().unwrap();
    assert_eq!(out.stdout, b"a\xff\xfe b|\xc3\x28|name|a\xff\xfe b", "{}", told(&out));
}

// promise 27
#[test]
fn a_run_that_only_reads_changes_nothing_and_leaves_nothing() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        place.file("home/project/kept", "as it was");
        let run = |flags: &[&str], text: &str| {
            let mut command = asked(&place, &daemon, &["run", "--json"]);
            let out = to_the_end(command.args(flags).args(["-c", text]), b"");
            let outcome: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&out)));
            (outcome, out.status.code())
        };
        let (outcome, code) = run(&[], "rm kept && echo gone");
        assert_eq!((code, &outcome["changes"]["deleted"]), (Some(0), &1.into()), "the control: {outcome}");
        let (outcome, code) = run(&["--read-only"], "cat kept; rm kept; echo x > new; test -e new || exit 9");
        assert_eq!(code, Some(9), "{outcome}");
        assert!(outcome["stdout"].as_str().unwrap().starts_with("as it was"), "{outcome}");
        let denied = outcome["denials"].as_array().unwrap().iter().any(|denial| denial["op"] == "fs.remove");
        assert!(denied && outcome.get("sandbox").is_none_or(Value::is_null), "{outcome}");
        assert_eq!(std::fs::read_to_string(place.project.join("kept")).unwrap(), "as it was");
        // A policy that makes the directory writable is a contradiction, as without a daemon.
        let (fault, code) = run(&["--read-only", "-p", "workspace-write"], "true");
        assert_eq!((fault["error_kind"].as_str(), code), (Some("invalid_request"), Some(2)), "{fault}");
        let (fault, code) = run(&["--direct"], "true");
        assert_eq!((fault["error_kind"].as_str(), code), (Some("unsupported_host"), Some(125)), "{fault}");
        assert!(fault["message"].as_str().unwrap().contains("approval") && fault["hint"].is_string(), "{fault}");
    }
}

// promise 27
#[test]
fn a_port_of_a_run_leads_inside_for_who_has_the_host() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start_tcp(&place);
    let port = crate::support::free_port();
    let publish = format!("{port}:8000");
    let serve = "import socket\n\
                 s = socket.create_server(('127.0.0.1', 8000))\n\
                 print('ready', flush=True)\n\
                 c, _ = s.accept(); c.sendall(b'from inside'); c.close()";
    let mut run = asked(&place, &daemon, &["run", "--publish", &publish, "--", "python3", "-c", serve]);
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(run.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let mut said = String::new();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Read::read_to_string(&mut stream, &mut said).unwrap();
    assert_eq!((said.as_str(), run.wait().unwrap().code()), ("from inside", Some(0)));
    // A caller without the host's rights publishes no port, and nothing of the run is left.
    let token = daemon.token(serde_json::json!({"name": "a", "scopes": ["agent"], "dirs": [place.project]}));
    let file = place.file("token", token);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut agent = place.cofferdam(["run", "--json", "--publish", &publish, "--", "true"]);
    agent.env("COFFERDAM_SERVER", format!("http://127.0.0.1:{}", daemon.port.unwrap()));
    let out = agent.env("COFFERDAM_TOKEN_FILE", &file).output().unwrap();
    let fault: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((fault["error_kind"].as_str(), out.status.code()), (Some("policy_denied"), Some(126)), "{fault}");
    let left = asked(&place, &daemon, &["ls", "--json"]).output().unwrap();
    let left: Value = serde_json::from_slice(&left.stdout).unwrap();
    assert_eq!(left["sandboxes"], serde_json::json!([]));
}

/// Script in the test network, whose server returns the header reversed, so that masking does not hide it.
const WORLD: &str = r#"
value = "only-for-this-run-7"
policy = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "api.test"}]},
    "secrets": [{"name": "TOKEN", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}
open("policy.json", "w").write(json.dumps(policy))
def run(*flags, text="true", env={}):
    words = [cofferdam, "--server", path, "run", "--json", "-p", "policy.json", *flags, "-c", text]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **env})
    return done, json.loads(done.stdout)
get = 'echo $TOKEN; curl -sS -m 10 -H "Authorization: Bearer $TOKEN" https://api.test/; curl -sS -m 5 https://other.test/ || true'
done, out = run("--secret", "TOKEN=env:MINE", "--events", "events.jsonl", text=get, env={"MINE": value})
assert done.returncode == 0, (done.stderr, out)
assert out["stdout"].startswith("cofferdam-secret-TOKEN-") and value[::-1] in out["stdout"], out
assert value not in done.stdout + done.stderr, done
events = [json.loads(line) for line in open("events.jsonl")]
assert any(e["op"] == "net.request" and e["name"] == "api.test" and e["action"] == "allow" for e in events), events
assert any(e["name"] == "other.test" and e["action"] == "deny" for e in events), events
assert out.get("events_dropped", 0) == 0, out
# The event file is bounded, as without a daemon.
many = 'for i in $(seq 60); do curl -sS -m 5 https://other.test/ 2> /dev/null; done; true'
done, out = run("--secret", "TOKEN=env:MINE", "--events", "few.jsonl", "--events-max", "4k", text=many, env={"MINE": value})
assert out["events_dropped"] > 0 and os.path.getsize("few.jsonl") <= 4096, (done.stderr, out)
# A secret stored by the daemon under another name, and a missing one.
assert ask("PUT", "/v1/secrets/OTHER", {"value": "what-is-kept"})[0] in (200, 201)
done, out = run("--secret", "TOKEN=store:OTHER", text=get)
assert "what-is-kept"[::-1] in out["stdout"], (done.stderr, out)
done, out = run(text=get)
assert done.returncode != 0 and "TOKEN" in out["message"], out
done, out = run("--secret", "NOBODY=env:MINE", env={"MINE": value})
assert out["error_kind"] == "invalid_request" and value not in done.stdout, out
done, out = run("--secret", "TOKEN=env:MISSING")
assert out["error_kind"] == "invalid_request", out
print("all")
"#;

// promise 27
#[test]
fn events_and_secrets_of_a_run_go_with_it_and_are_kept_nowhere() {
    for who in either() {
        let world = World::new(who).host(PUBLIC, "api.test other.test").certificate(&["api.test", "other.test"]);
        let world = world.server("https", PUBLIC, 443);
        assert_eq!(with_daemon(&world, WORLD), "all\n", "{who:?}");
        let kept = holders(&world.place.state(), b"only-for-this-run-7");
        assert!(kept.is_empty(), "{kept:?}");
    }
}
