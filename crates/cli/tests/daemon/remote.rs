//! The command line as a client: server authentication, credentials, and a daemon that goes away in the middle.

use crate::support::certificate::Certificate;
use crate::support::http::Daemon;
use crate::support::terminal::at_terminal;
use crate::support::{As, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn asked(place: &Place, server: &str, args: &[&str]) -> Command {
    let mut command = place.cofferdam(args);
    command.env("COFFERDAM_SERVER", server);
    command
}

fn told(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[track_caller]
fn fault(out: &Output, kind: &str, status: i32) -> Value {
    let fault: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(out)));
    assert_eq!((fault["error_kind"].as_str(), out.status.code()), (Some(kind), Some(status)), "{fault}");
    assert!(fault["hint"].is_string(), "{fault}");
    fault
}

fn secret(place: &Place, name: &str, text: &str) -> String {
    let file = place.file(name, text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file.to_string_lossy().into_owned()
}

// promise 27
#[test]
fn a_port_is_asked_with_a_token_from_a_file_of_ones_own() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start_tcp(&place);
    let server = format!("http://127.0.0.1:{}", daemon.port.unwrap());
    let good = secret(&place, "good", &daemon.operator_token());
    let wrong = secret(&place, "wrong", "cof_nobody");
    let ls = |file: Option<&str>| {
        let mut command = asked(&place, &server, &["ls", "--json"]);
        file.map(|file| command.env("COFFERDAM_TOKEN_FILE", file));
        command.output().unwrap()
    };
    assert!(ls(Some(&good)).status.success(), "the control: {}", told(&ls(Some(&good))));
    fault(&ls(Some(&wrong)), "unauthenticated", 125);
    fault(&ls(None), "unauthenticated", 125);
    fs::set_permissions(&good, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(
        fault(&ls(Some(&good)), "invalid_request", 2)["message"].as_str().unwrap().contains("other users can read")
    );
    let mut bare = asked(&place, &server, &["ls", "--json"]);
    fault(&bare.env("COFFERDAM_TOKEN", "cof_x").output().unwrap(), "invalid_request", 2);
    // An agent's token cannot approve, through this client, either.
    let agent = daemon.token(json!({"name": "a", "scopes": ["agent"], "dirs": [place.project]}));
    let agent = secret(&place, "agent", &agent);
    let by_agent = |args: &[&str]| asked(&place, &server, args).env("COFFERDAM_TOKEN_FILE", &agent).output().unwrap();
    assert!(by_agent(&["create", "--json", "--name", "box"]).status.success());
    assert!(by_agent(&["exec", "box", "-c", "echo x > x"]).status.success());
    fault(&by_agent(&["approve", "box", "--unseen", "--json"]), "policy_denied", 126);
    assert!(!place.project.join("x").exists());
}

// promise 27
#[test]
fn what_no_daemon_can_do_is_refused_and_not_done_here() {
    let place = Place::new(As::User);
    let gone = place.root.join("no.sock").to_string_lossy().into_owned();
    let out = asked(&place, &gone, &["ls", "--json"]).output().unwrap();
    fault(&out, "unavailable", 125);
    let fine = place.cofferdam(["--server", &gone, "policy", "show", "default"]).output().unwrap();
    assert!(fine.status.success(), "what is pure is done here: {}", told(&fine));
    for args in [&["doctor", "--json"][..], &["fsck", "--json"], &["config", "show", "--json"]] {
        fault(&asked(&place, &gone, args).output().unwrap(), "unsupported_host", 125);
    }
    let daemon = Daemon::start(&place);
    let socket = daemon.socket.to_string_lossy().into_owned();
    for flags in [&["--direct"][..], &["--direct", "--explain"], &["--direct", "-p", "workspace-write"]] {
        let mut command = asked(&place, &socket, &["run", "--json"]);
        fault(&command.args(flags).args(["--", "touch", "made"]).output().unwrap(), "unsupported_host", 125);
    }
    for odd in ["http://10.0.0.1:80", "ftp://x", "https://u:p@x"] {
        fault(&asked(&place, odd, &["ls", "--json"]).output().unwrap(), "invalid_request", 2);
    }
    assert!(!place.project.join("made").exists());
    let here = place.cofferdam(["ls", "--json"]).output().unwrap();
    let here: Value = serde_json::from_slice(&here.stdout).unwrap();
    assert_eq!(here["sandboxes"], json!([]), "nothing of it was left");
}

// promise 27
#[test]
fn a_certificate_is_believed_by_whom_it_was_signed() {
    let place = Place::new(As::Root);
    let signed = |name: &str| Certificate::new(&place, name, "DNS:localhost");
    let (Certificate { cert, key }, Certificate { cert: other, .. }) = (signed("own"), signed("other"));
    let flags = ["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key];
    let daemon = Daemon::start_with(&place, &flags);
    let server = format!("https://localhost:{}", daemon.port.unwrap());
    let token = secret(&place, "token", &daemon.operator_token());
    let ls = |ca: Option<&str>| {
        let mut command = asked(&place, &server, &["ls", "--json", "--token-file", &token]);
        ca.map(|ca| command.args(["--server-ca", ca]));
        command.output().unwrap()
    };
    assert!(ls(Some(&cert)).status.success(), "the control: {}", told(&ls(Some(&cert))));
    fault(&ls(Some(&other)), "unauthenticated", 125);
    let unknown = ls(None);
    assert_eq!(unknown.status.code(), Some(125), "the system does not know it either");
    fault(&ls(Some("/etc/hostname")), "invalid_request", 2);
}

// promise 24
#[test]
fn http2_is_spoken_to_clients_that_ask_for_it() {
    let place = Place::new(As::Root);
    let Certificate { cert, key } = Certificate::new(&place, "own", "DNS:localhost");
    let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key]);
    let port = daemon.port.unwrap();
    let token = daemon.operator_token();
    let curl = |flags: &[&str], paths: &[&str]| {
        let mut command = place.outside("curl");
        command.args(["-sS", "--cacert", &cert]).args(flags);
        if !flags.contains(&"--anyauth") {
            command.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        command.args(paths.iter().map(|path| format!("https://localhost:{port}{path}")));
        String::from_utf8(to_the_end(&mut command, b"").stdout).unwrap()
    };
    let version = ["-o", "/dev/null", "-w", "%{http_version} %{http_code}\n"];
    let with = |more: &[&'static str]| [&version, more].concat();
    assert_eq!(curl(&with(&["--http2"]), &["/v1/sandboxes"]), "2 200\n");
    assert_eq!(curl(&with(&["--http1.1"]), &["/v1/sandboxes"]), "1.1 200\n", "the control");
    // Many requests on one connection, side by side, more than it takes at a time.
    let many: Vec<&str> = std::iter::repeat_n("/v1/health", 100).collect();
    let each: Vec<&str> = std::iter::repeat_n(["-o", "/dev/null"], 100).flatten().collect();
    let answered = curl(
        &[
            &["--http2", "-Z", "--parallel-max", "100", "-w", "%{http_version} %{http_code} %{num_connects}\n"],
            &each[..],
        ]
        .concat(),
        &many,
    );
    let lines: Vec<&str> = answered.lines().collect();
    assert!(lines.len() == 100 && lines.iter().all(|line| line.starts_with("2 200 ")), "{answered}");
    // What is refused over HTTP/1.1 is refused here: a foreign name, no credential, a large head.
    assert_eq!(curl(&with(&["--http2", "-H", "Host: evil.example"]), &["/v1/sandboxes"]), "2 421\n");
    assert_eq!(curl(&with(&["--http2", "--anyauth"]), &["/v1/sandboxes"]), "2 401\n");
    // A body in both directions, and a stream of events.
    let made =
        curl(&["--http2", "-d", "{\"name\": \"s\"}", "-H", "Content-Type: application/json"], &["/v1/sandboxes"]);
    assert!(made.contains("sbx_"), "{made}");
    let file = place.file("big", vec![b'x'; 3 << 20]);
    let upload = ["--http2", "-T", file.to_str().unwrap()];
    curl(&upload, &["/v1/sandboxes/s/files/content?path=big"]);
    assert_eq!(curl(&["--http2"], &["/v1/sandboxes/s/files/content?path=big"]).len(), 3 << 20);
    let events = curl(
        &[
            "--http2",
            "-H",
            "Accept: text/event-stream",
            "-H",
            "Content-Type: application/json",
            "-d",
            "{\"code\": \"print(6 * 7)\"}",
        ],
        &["/v1/sandboxes/s/code"],
    );
    assert!(events.contains("event: stdout") && events.contains("event: end"), "{events}");
    // Bytes that are no HTTP/2, frames that break its rules, and requests that are withdrawn at once end their connection alone.
    let mut hostile = place.outside("/usr/bin/python3");
    let ended = to_the_end(hostile.args(["-c", GARBAGE, &port.to_string(), &cert]), b"");
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "7 connections ended\n");
    assert_eq!(curl(&with(&["--http2"]), &["/v1/sandboxes"]), "2 200\n", "others are answered");
}

/// Speaks badly on connections of its own, and waits for each to be closed.
const GARBAGE: &str = r#"
import os, socket, ssl, struct, sys
port, cert = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=cert)
context.set_alpn_protocols(['h2'])
preface = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
def frame(kind, flags, stream, payload=b''):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
settings = frame(4, 0, 0)
# GET / of localhost, from HPACK's static table.
head = b'\x82\x87\x84\x41\x09localhost'
withdrawn = b''.join(frame(1, 5, n, head) + frame(3, 0, n, b'\0\0\0\x08') for n in range(1, 4001, 2))
cases = [b'GET / HTTP/1.1\r\n\r\n', os.urandom(4096), preface + b'\xff' * 4096, preface + settings + b'\xff' * 64,
    preface + settings + frame(1, 4, 2, head), preface + settings + frame(1, 4, 1, b'\xff' * 100), preface + settings + withdrawn]
ended = 0
for case in cases:
    s = context.wrap_socket(socket.create_connection(('127.0.0.1', port)), server_hostname='localhost')
    assert s.selected_alpn_protocol() == 'h2'
    s.settimeout(120)
    try:
        s.sendall(case)
        while s.recv(65536): pass
        ended += 1
    except TimeoutError: print('not closed:', case[:60])
    except OSError: ended += 1
print(ended, 'connections ended')
"#;

/// Refusals are explained in terms of the command line, not of HTTP.
#[test]
fn refusals_are_told_in_words_of_this_program() {
    let place = Place::new(As::User);
    let Certificate { cert, key } = Certificate::authority(&place, "authority", "DNS:localhost");
    let config = place.file("c.toml", "[tenant.blue.quota]\nrequests_per_minute = 2\n");
    let flags = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let daemon = Daemon::start_with(&place, &flags);
    let blue = daemon.token(json!({ "name": "b", "tenant": "blue", "scopes": ["agent"] }));
    let server = format!("http://127.0.0.1:{}", daemon.port.unwrap());
    let hint = |server: &str, token: &str, more: &[&str]| {
        let file = secret(&place, "token", token);
        let out = asked(&place, server, &["ls", "--json", "--token-file", &file]).args(more).output().unwrap();
        let told: Value = serde_json::from_slice(&out.stdout).unwrap();
        told["hint"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(hint(&server, &blue, &[]), "", "the control");
    // A listing is one request, or two where the daemon is asked first what it can do.
    let later = (0..3).map(|_| hint(&server, &blue, &[])).find(|hint| !hint.is_empty()).unwrap_or_default();
    assert!(later.starts_with("retry in ") && later.ends_with(" seconds"), "{later}");
    let unknown = hint(&server, &format!("cof_{}_{}", "a".repeat(32), "b".repeat(64)), &[]);
    assert!(unknown.contains("--token-file") && !unknown.contains("Authorization"), "{unknown}");
    daemon.token(json!({ "name": "short", "scopes": ["agent"], "ttl_ms": 1 }));
    let listed = String::from_utf8(to_the_end(&mut place.cofferdam(["token", "ls"]), b"").stdout).unwrap();
    let ends =
        |name: &str| listed.lines().find(|line| line.contains(name)).unwrap().split("  ").last().unwrap().to_owned();
    assert_eq!((ends("short").trim(), ends("blue").trim()), ("expired", "never"), "{listed}");
    let operator = daemon.operator_token();
    drop(daemon);
    let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key]);
    let port = daemon.port.unwrap();
    let clear = hint(&format!("http://localhost:{port}"), &operator, &[]);
    assert!(clear.contains("https://"), "{clear}");
    let signs = hint(&format!("https://localhost:{port}"), &operator, &["--server-ca", &cert]);
    assert!(signs.contains("CA:FALSE"), "{signs}");
}

/// An agent without a directory of its own can have an empty base, with and without a daemon.
#[test]
fn an_empty_directory_can_be_covered() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let token =
        daemon.token(json!({ "name": "a", "tenant": "blue", "scopes": ["agent"], "policies": ["workspace-write"] }));
    let file = secret(&place, "token", &token);
    let server = format!("http://127.0.0.1:{}", daemon.port.unwrap());
    let create = |words: &[&str]| {
        let words = [&["create", "--json", "--policy", "workspace-write", "--token-file", &file], words].concat();
        asked(&place, &server, &words).output().unwrap()
    };
    let refused = fault(&create(&[]), "policy_denied", 126);
    assert!(refused["hint"].as_str().unwrap().contains("create --empty"), "{refused}");
    assert!(create(&["--empty"]).status.success(), "{}", told(&create(&["--empty"])));
    assert_eq!(create(&["--empty", "."]).status.code(), Some(2), "one or the other");
    place.file("home/project/file", "text");
    let here = to_the_end(&mut place.cofferdam(["create", "--empty", "--name", "bare"]), b"");
    assert!(here.status.success(), "{}", told(&here));
    let seen = to_the_end(&mut place.cofferdam(["exec", "bare", "ls"]), b"");
    assert_eq!((seen.stdout.as_slice(), seen.status.code()), (&b""[..], Some(0)), "{}", told(&seen));
}

/// Waits for a condition.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(180), "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// promise 27
#[test]
fn a_daemon_that_is_killed_and_comes_back_is_not_noticed() {
    let place = Place::new(As::User);
    let mut daemon = Daemon::start(&place);
    let socket = daemon.socket.to_string_lossy().into_owned();
    assert!(asked(&place, &socket, &["create", "--name", "box"]).output().unwrap().status.success());
    let text =
        "echo first; trap 'echo heard' USR1; until [ -e go ]; do sleep 0.05; done; echo last; echo err >&2; exit 9";
    let mut exec = asked(&place, &socket, &["exec", "box", "-c", text]);
    let mut exec = exec.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(exec.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    daemon.signal("KILL");
    daemon.ended();
    // Signals that arrive while no daemon is there are forwarded once one is there again.
    let pid = exec.id().to_string();
    assert!(Command::new("kill").args(["-USR1", &pid]).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(300));
    let daemon = Daemon::start(&place);
    line.clear();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "heard\n", "the signal arrived");
    let go = asked(&place, &socket, &["exec", "box", "touch", "go"]).output().unwrap();
    assert!(go.status.success(), "{}", told(&go));
    line.clear();
    std::io::Read::read_to_string(&mut out, &mut line).unwrap();
    let end = exec.wait_with_output().unwrap();
    // The shell reports its sleep, which the signal ended.
    assert!(told(&end).ends_with("err\n"), "{}", told(&end));
    assert_eq!((line.as_str(), end.status.code()), ("last\n", Some(9)));
    drop(daemon);
}

// promise 27
#[test]
fn bytes_go_both_ways_as_they_are() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let socket = daemon.socket.to_string_lossy().into_owned();
    assert!(asked(&place, &socket, &["create", "--name", "box"]).output().unwrap().status.success());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let back = to_the_end(&mut asked(&place, &socket, &["exec", "box", "cat"]), &bytes);
    assert!(back.status.success() && back.stdout == bytes, "{} of {}: {}", back.stdout.len(), bytes.len(), told(&back));
    // A closed reader ends the command, as in a pipe.
    let mut yes = asked(&place, &socket, &["exec", "box", "yes"]);
    let mut yes = yes.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(yes.stdout.take().unwrap()).read_line(&mut line).unwrap();
    soon("the end of yes", || yes.try_wait().unwrap().is_some());
    // Files are copied in both directions.
    let file = place.file("home/blob", &bytes);
    let cp = |from: &Path, to: &str| asked(&place, &socket, &["cp"]).arg(from).arg(to).output().unwrap();
    assert!(cp(&file, "box:blob").status.success());
    let out = place.home.join("back");
    let got = asked(&place, &socket, &["cp", "box:blob"]).arg(&out).output().unwrap();
    assert!(got.status.success() && fs::read(&out).unwrap() == bytes, "{}", told(&got));
    // Special files are skipped and named by a remote copy, too.
    let made = asked(&place, &socket, &["exec", "box", "-c", "mkfifo pipé 'two words'"]).output().unwrap();
    assert!(made.status.success(), "{}", told(&made));
    let tree = place.home.join("tree");
    let got = asked(&place, &socket, &["cp", "--json", "box:."]).arg(&tree).output().unwrap();
    let left_out = &serde_json::from_slice::<Value>(&got.stdout).unwrap()["left_out"];
    assert_eq!(*left_out, json!({"count": 2, "paths": ["pipé", "two words"]}), "{}", told(&got));
    assert!(tree.join("blob").is_file() && !tree.join("pipé").exists());
}

// promise 27
#[test]
fn a_terminal_is_a_terminal_and_can_be_left() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let socket = daemon.socket.to_string_lossy().into_owned();
    assert!(asked(&place, &socket, &["create", "--name", "box"]).output().unwrap().status.success());
    let at = |text: &str, steps: Value| at_terminal(&place, &["--server", &socket, "exec", "box", "-c", text], steps);
    let text = "stty size; trap 'stty size; echo again' WINCH; echo yes; read x; echo got $x; read x; exit 5";
    let steps = json!([
        ["expect", "31 97"],
        ["expect", "yes"],
        ["send", "word\r"],
        ["expect", "got word"],
        ["resize", 40, 100],
        ["expect", "40 100"],
        ["send", "\r"],
    ]);
    at(text, steps).assert_code(5);
    let steps = json!([["expect", "there"], ["send", "\u{10}\u{11}"], ["expect", "it keeps running"]]);
    at("echo there; read x; exit 6", steps).assert_code(0);
    let ps = asked(&place, &socket, &["ps", "--json"]).output().unwrap();
    let ps: Value = serde_json::from_slice(&ps.stdout).unwrap();
    let run = ps["runs"][0]["run"].as_str().unwrap().to_owned();
    let mut attached = asked(&place, &socket, &["attach", &run]);
    let mut attached = attached.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    attached.stdin.take().unwrap().write_all(b"x\n").unwrap();
    assert_eq!(attached.wait().unwrap().code(), Some(6));
}

/// Recorded output is stripped of terminal control sequences when it is shown on a terminal; elsewhere, and on
/// request, it is byte for byte.
#[test]
fn a_log_drives_no_terminal() {
    const SAID: &str = "\x1b]0;title\x07\x1b[6n\x1b[31mred\x1b[0m\ttab\n\x1b[2Jend\n";
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let socket = daemon.socket.to_string_lossy().into_owned();
    assert!(asked(&place, &socket, &["create", "--name", "box"]).output().unwrap().status.success());
    let printf =
        "printf '\\033]0;title\\007\\033[6n\\033[31mred\\033[0m\\ttab\\n\\033[2Jend\\n'; printf '\\033[5n' >&2";
    let run = asked(&place, &socket, &["exec", "-d", "box", "-c", printf]).output().unwrap();
    let run = String::from_utf8(run.stdout).unwrap().trim().to_owned();
    for server in [&["--server", &socket][..], &[]] {
        let words = |more: &[&'static str]| [server, &["logs"], more, &[&run]].concat();
        for follow in [&["-f"][..], &[]] {
            let screen = at_terminal(&place, &words(follow), json!([]));
            screen.assert_code(0);
            let shown = "\\u{1b}]0;title\\u{7}\\u{1b}[6n\x1b[31mred\x1b[0m\ttab\r\n\\u{1b}[2Jend";
            assert!(screen.text.contains(shown) && screen.text.contains("\\u{1b}[5n"), "{:?}", screen.text);
            assert_eq!(screen.text.replace("\x1b[31m", "").replace("\x1b[0m", "").matches('\x1b').count(), 0);
        }
        let raw = at_terminal(&place, &words(&["--raw"]), json!([]));
        assert!(raw.assert_code(0).text.contains(&SAID.replace('\n', "\r\n")), "{:?}", raw.text);
        let piped = to_the_end(&mut place.cofferdam(words(&[])), b"");
        assert_eq!((piped.stdout, piped.stderr), (SAID.as_bytes().to_vec(), b"\x1b[5n".to_vec()), "the control");
    }
}
