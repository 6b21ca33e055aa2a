//! Start and end of the daemon: one at a time, with checked settings, and in order.

use crate::support::certificate::Certificate;
use crate::support::http::{Daemon, exchange, receive};
use crate::support::left::soon;
use crate::support::{As, Place, either, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_dead_daemons_socket_is_replaced_and_a_live_ones_never() {
    for who in either() {
        let place = Place::new(who);
        let mut first = Daemon::start(&place);
        let second = to_the_end(&mut place.cofferdam(["serve", "--json"]), b"");
        let fault: Value = serde_json::from_slice(&second.stdout).unwrap();
        assert_eq!((second.status.code(), &fault["error_kind"]), (Some(125), &json!("conflict")), "{fault}");
        // Another state directory with the same socket.
        let elsewhere = place.dir("elsewhere");
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
        let mut third = place.cofferdam(["serve", "--json", "--socket"]);
        let third = to_the_end(third.arg(&first.socket).env("COFFERDAM_STATE", &elsewhere), b"");
        assert_eq!(third.status.code(), Some(125), "{third:?}");
        first.get("/v1/health/ready").assert_ok();
        first.signal("KILL");
        first.ended();
        assert!(first.socket.exists(), "it was left");
        let again = Daemon::start(&place);
        again.get("/v1/health/ready").assert_ok();
    }
}

#[test]
fn settings_are_checked_before_anything_is_done() {
    let place = Place::new(As::User);
    let check = |flags: &[&str]| {
        let output = to_the_end(place.cofferdam(["serve", "--check", "--json"]).args(flags), b"");
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default())
    };
    let (code, told) = check(&["--listen", "127.0.0.1:7070", "--allow-host", "box.example"]);
    assert_eq!((code, &told["listen"]), (Some(0), &json!("http://127.0.0.1:7070")), "{told}");
    assert!(told["hosts"].as_array().unwrap().contains(&json!("localhost:7070")));
    assert!(!place.state().join("cofferdam.sock").exists() && !place.state().join("operator.token").exists());
    place.file("plain", "no socket");
    let plain = place.root.join("plain").to_str().unwrap().to_owned();
    let open = place.dir("open").join("s").to_str().unwrap().to_owned();
    for bad in [
        &["--listen", "0.0.0.0:7070"][..],
        &["--listen", "0.0.0.0:7070", "--listen-anywhere"],
        &["--listen", "127.0.0.1"],
        &["--listen", "127.0.0.1:7070", "--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"],
        &["--allow-host", "a b"],
        &["--socket", &plain],
        &["--socket", &open],
        &["--grace", "soon"],
    ] {
        let (code, fault) = check(bad);
        assert_eq!((code, &fault["error_kind"]), (Some(2), &json!("invalid_request")), "{bad:?} {fault}");
    }
}

/// `serve --check` refuses what `serve` would refuse, without disturbing a daemon that runs.
#[test]
fn a_check_says_no_where_the_start_would() {
    let place = Place::new(As::User);
    let check = |state: &Path, flags: &[&str]| {
        let mut command = place.cofferdam(["serve", "--check", "--json"]);
        let output = to_the_end(command.args(flags).env("COFFERDAM_STATE", state), b"");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), told["message"].as_str().unwrap_or_default().to_owned())
    };
    let other = place.dir("other");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    let no = |state: &Path, flags: &[&str], why: &str| {
        let (code, message) = check(state, flags);
        assert!(code == Some(125) && message.contains(why), "{flags:?}: {code:?} {message}");
    };
    assert_eq!(check(&place.state(), &[]).0, Some(0), "the control");
    let daemon = Daemon::start_tcp(&place);
    let taken = format!("127.0.0.1:{}", daemon.port.unwrap());
    no(&place.state(), &[], "another daemon is running");
    no(&other, &["--listen", &taken], "in use");
    no(&other, &["--socket", daemon.socket.to_str().unwrap()], "another daemon is running");
    assert_eq!(check(&other, &["--listen", "127.0.0.1:0"]).0, Some(0), "the control");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "nothing is made by a look");
    daemon.get("/v1/health/ready").assert_ok();
    drop(daemon);
    let store = place.state().join("store.db");
    assert_eq!(check(&place.state(), &[]).0, Some(0), "the control");
    let sound = fs::read(&store).unwrap();
    fs::write(&store, vec![7; 8192]).unwrap();
    no(&place.state(), &[], "not a database");
    // SQLite's user_version in the header of the file.
    let mut newer = sound.clone();
    newer[60..64].copy_from_slice(&99u32.to_be_bytes());
    fs::write(&store, newer).unwrap();
    fs::remove_file(place.state().join("store.db-wal")).unwrap();
    no(&place.state(), &[], "written by a newer version");
    fs::remove_file(&store).unwrap();
    no(&place.state(), &[], "is gone");
}

/// Defects of a certificate or its key are reported at start, before a client hits them.
#[test]
fn a_certificate_is_looked_at_before_it_is_used() {
    let place = Place::new(As::User);
    let own = Certificate::new(&place, "own", "DNS:localhost");
    let authority = Certificate::authority(&place, "authority", "DNS:localhost");
    let sealed = place.root.join("sealed.key");
    let mut openssl = Command::new("openssl");
    openssl.args(["pkey", "-aes256", "-passout", "pass:word", "-in", &own.key, "-out"]).arg(&sealed);
    assert!(openssl.status().unwrap().success());
    fs::set_permissions(&sealed, fs::Permissions::from_mode(0o600)).unwrap();
    place.own(&sealed);
    let check = |cert: &str, key: &str| {
        let mut command = place.cofferdam(["serve", "--check", "--listen", "127.0.0.1:0"]);
        let output = to_the_end(command.args(["--tls-cert", cert, "--tls-key", key]), b"");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check(&own.cert, &own.key), (Some(0), String::new()), "the control");
    for (cert, key, code, why) in [
        (&own.cert, authority.key.as_str(), 2, "not the key of the certificate"),
        (&own.cert, sealed.to_str().unwrap(), 2, "the key is encrypted"),
        (&authority.cert, authority.key.as_str(), 0, "CA:FALSE"),
    ] {
        let (status, said) = check(cert, key);
        assert!(status == Some(code) && said.contains(why), "{status:?} {said}");
    }
}

/// Socket paths longer than sockaddr_un allows work, too.
#[test]
fn a_socket_may_have_a_long_path() {
    let place = Place::new(As::User);
    let dir = place.dir("d".repeat(120));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let socket = dir.join("s");
    let mut command = place.cofferdam(["serve", "--json", "--socket"]);
    command.arg(&socket);
    let daemon = Daemon::spawn(&place, command);
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    let short = place.root.join("s");
    std::os::unix::fs::symlink(&dir, &short).unwrap();
    let stream = std::os::unix::net::UnixStream::connect(short.join("s")).unwrap();
    let _ = daemon.told;
    // The test is root and the daemon an ordinary user's: its refusal proves that it was reached.
    exchange(stream, b"GET /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n").assert_fault(401, "unauthenticated");
}

/// Waits until the daemon has a second request in flight, beside the one for its metrics.
fn until_taken(daemon: &Daemon) {
    let in_flight = || {
        let figures = daemon.get("/metrics").text();
        let known = figures.lines().find_map(|line| line.strip_prefix("cofferdam_http_requests_in_flight "));
        known.and_then(|count| count.parse::<f64>().ok()).unwrap_or_default()
    };
    assert!(soon(|| in_flight() >= 2.0), "the request is not taken");
}

/// On SIGTERM the daemon accepts nothing new, finishes requests in flight and removes its socket.
// promise 26
#[test]
fn it_ends_in_order() {
    let place = Place::new(As::Root);
    let mut daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "w"})).assert_ok();
    let mut idle = daemon.unix();
    idle.write_all(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    receive(&mut idle).unwrap().assert_ok();
    // Half a request, whose rest follows after the signal.
    let mut half = daemon.unix();
    half.write_all(b"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"name\"")
        .unwrap();
    until_taken(&daemon);
    daemon.signal("TERM");
    while daemon.socket.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(receive(&mut idle).is_none(), "one that waits for nothing is closed");
    half.write_all(b":\"h\"}").unwrap();
    assert_eq!(receive(&mut half).unwrap().status, 201, "what was begun is finished");
    assert_eq!(daemon.ended(), Some(0));
    let list = to_the_end(&mut place.cofferdam(["ls"]), b"");
    assert!(String::from_utf8_lossy(&list.stdout).contains('h'));
}

/// Requests that do not finish are dropped after the grace period or on a second signal.
// promise 26
#[test]
fn it_ends_although_somebody_will_not() {
    let place = Place::new(As::Root);
    for (flags, second) in [(&["--grace", "300ms"][..], false), (&["--grace", "1h"], true)] {
        let mut daemon = Daemon::start_with(&place, flags);
        let mut half = daemon.unix();
        half.write_all(b"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{")
            .unwrap();
        until_taken(&daemon);
        daemon.signal("INT");
        if second {
            while daemon.socket.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            daemon.signal("TERM");
        }
        assert_eq!(daemon.ended(), Some(0));
    }
}

#[test]
fn systemd_is_told_when_it_answers() {
    let place = Place::new(As::Root);
    let path = place.root.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = place.cofferdam(["serve", "--json"]);
    command.env("NOTIFY_SOCKET", &path);
    let _daemon = Daemon::spawn(&place, command);
    let mut told = [0; 64];
    let n = socket.recv(&mut told).unwrap();
    assert_eq!(&told[..n], b"READY=1\n");
}

/// With a certificate the TCP port speaks TLS only.
#[test]
fn tls_when_there_is_a_certificate() {
    let place = Place::new(As::User);
    let Certificate { cert, key } = Certificate::new(&place, "own", "DNS:localhost");
    let (cert, key) = (cert.as_str(), key.as_str());
    let flags = ["--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key];
    let daemon = Daemon::start_with(&place, &flags);
    let (token, port) = (daemon.operator_token(), daemon.port.unwrap());
    let curl = |url: String, more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-m", "20", "-H", &format!("authorization: Bearer {token}")]).args(more).arg(url);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let answer = curl(format!("https://localhost:{port}/v1/sandboxes"), &["--cacert", cert]);
    assert!(answer.contains("\"sandboxes\":[]"), "{answer}");
    assert_eq!(
        curl(format!("https://localhost:{port}/v1/sandboxes"), &[]),
        "",
        "who does not know the certificate says so"
    );
    assert_eq!(curl(format!("http://localhost:{port}/v1/sandboxes"), &[]), "", "nothing is said in clear");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = to_the_end(place.cofferdam(["serve", "--check", "--json"]).args(flags), b"");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("chmod 600"), "{refused:?}");
}

/// A foreign socket at the daemon's path is not removed at the end.
#[test]
fn what_took_its_place_is_left() {
    let place = Place::new(As::Root);
    let mut daemon = Daemon::start(&place);
    fs::remove_file(&daemon.socket).unwrap();
    let other = UnixListener::bind(&daemon.socket).unwrap();
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    assert!(daemon.socket.exists());
    drop(other);
}

/// Event streams get a closing event at shutdown and do not delay it.
// promise 26
#[test]
fn streams_are_told_of_the_end() {
    let place = Place::new(As::Root);
    let mut daemon = Daemon::start_with(&place, &["--grace", "1h"]);
    let mut stream = daemon.ask("GET", "/v1/events").open();
    assert!(stream.until("text/event-stream"));
    daemon.signal("TERM");
    let told = stream.rest();
    assert!(told.contains("event: closing") && told.contains("\"shutdown\""), "{told}");
    assert_eq!(daemon.ended(), Some(0));
}

/// A second signal ends the daemon without waiting for a slow verb.
// promise 26
#[test]
fn a_second_signal_waits_for_no_verb() {
    let place = Place::new(As::Root);
    let mut daemon = Daemon::start_with(&place, &["--grace", "1h"]);
    daemon.post("/v1/sandboxes", json!({"name": "deaf"})).assert_ok();
    let deaf = json!({"shell": "trap '' TERM; touch ready; while :; do sleep 0.1; done"});
    daemon.post("/v1/sandboxes/deaf/runs", deaf).assert_ok();
    let begun = std::time::Instant::now();
    while daemon.get("/v1/sandboxes/deaf/files/stat?path=ready").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(180));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut stop = daemon.unix();
    stop.write_all(b"POST /v1/sandboxes/deaf/stop?timeout=300s HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    while daemon.get("/v1/sandboxes/deaf").assert_ok()["standing"] != "stopping" {
        assert!(begun.elapsed() < Duration::from_secs(180));
    }
    daemon.signal("TERM");
    while daemon.socket.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(daemon.child.try_wait().unwrap().is_none(), "the control: it waits for the verb");
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    assert!(to_the_end(&mut place.cofferdam(["rm", "--force", "-t", "0", "deaf"]), b"").status.success());
}

/// The daemon's raised limit on open files is not passed on to guests.
#[test]
fn guests_have_no_more_open_files_than_whoever_started_the_daemon() {
    let place = Place::new(As::Root);
    let mut command = place.outside("prlimit");
    command.args(["--nofile=512:20000", env!("CARGO_BIN_EXE_cofferdam"), "serve", "--json"]);
    let daemon = Daemon::spawn(&place, command);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.child.id())).unwrap();
    let own = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(!own.contains(" 512 "), "the control: the daemon has raised its own: {own}");
    daemon.post("/v1/sandboxes", json!({"name": "s"})).assert_ok();
    let done = daemon.post("/v1/sandboxes/s/runs?wait=120s", json!({"shell": "ulimit -Sn"})).assert_ok();
    assert_eq!(done["outcome"]["stdout"], "512\n", "{done}");
    daemon.ask("POST", "/v1/sandboxes/s/stop").send().assert_ok();
}
