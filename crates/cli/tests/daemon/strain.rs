//! Slow, numerous and large clients: bounded before authentication, while a good client is served.

use crate::support::http::{Daemon, receive};
use crate::support::{As, Place};
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Daemon with a client timeout of one second, to keep the test short.
fn impatient(place: &Place) -> Daemon {
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("COFFERDAM_SERVE_PATIENCE", "1s");
    Daemon::spawn(place, command)
}

/// Slow request head, slow body, slow reader, and a connection that sends nothing.
// promise 24
#[test]
fn slow_clients_are_not_waited_for() {
    let place = Place::new(As::User);
    let daemon = impatient(&place);
    let begun = Instant::now();
    let (mut silent, mut head, mut drip) = (daemon.tcp(), daemon.tcp(), daemon.tcp());
    head.write_all(b"GET /v1/sandboxes HTTP/1.1\r\nhost: loc").unwrap();
    let token = daemon.operator_token();
    let port = daemon.port.unwrap();
    let start = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    );
    let mut body = daemon.tcp();
    body.write_all(start.as_bytes()).unwrap();
    drip.write_all(start.as_bytes()).unwrap();
    // A byte now and then does not extend the timeout.
    let dripping = std::thread::spawn(move || {
        for _ in 0..200 {
            if drip.write_all(b" ").is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        receive(&mut drip)
    });
    // The control: a good client is served meanwhile.
    for _ in 0..20 {
        daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(&token).send().assert_ok();
    }
    let fault = receive(&mut body).unwrap().assert_fault(408, "limit_exceeded");
    assert_eq!(fault["limit_kind"], "body_ms");
    assert!(receive(&mut silent).is_none());
    let mut rest = Vec::new();
    let _ = head.read_to_end(&mut rest);
    let dripped = dripping.join().unwrap();
    assert!(dripped.is_none_or(|answer| answer.status == 408));
    assert!(begun.elapsed() < Duration::from_secs(180));
    assert_eq!(daemon.get("/v1/sandboxes").json()["sandboxes"], json!([]));
}

// promise 24
#[test]
fn ten_thousand_idle_connections_hurt_nobody() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start_tcp(&place);
    let script = "
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (11000, max(11000, hard)))
kept = []
for _ in range(10000):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    kept.append(s)
print('open', flush=True)
sys.stdin.read()
";
    let mut crowd = Command::new("python3")
        .args(["-c", script, &daemon.port.unwrap().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = [0; 4];
    crowd.stdout.as_mut().unwrap().read_exact(&mut told).unwrap();
    assert_eq!(&told, b"open");
    let token = daemon.operator_token();
    let begun = Instant::now();
    for _ in 0..50 {
        daemon.get("/v1/sandboxes").assert_ok();
        daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(&token).send().assert_ok();
    }
    assert!(begun.elapsed() < Duration::from_secs(180), "{:?}", begun.elapsed());
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident: u64 =
        status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok()).unwrap();
    assert!(resident < 100 << 10, "{resident} KiB");
    drop(crowd.stdin.take());
    crowd.wait().unwrap();
}

/// Connections over the limit are refused with the reason; there is room again when some close.
#[test]
fn connections_are_counted() {
    let place = Place::new(As::User);
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("COFFERDAM_SERVE_MAX_CONNECTIONS", "8").env("COFFERDAM_SERVE_MAX_CONNECTIONS_PER_PEER", "4");
    let daemon = Daemon::spawn(&place, command);
    let crowd: Vec<_> = (0..4).map(|_| daemon.tcp()).collect();
    let mut one_more = daemon.tcp();
    let answer = receive(&mut one_more).unwrap();
    let fault = answer.assert_fault(503, "limit_exceeded");
    assert_eq!((&fault["limit_kind"], answer.header("retry-after")), (&json!("connections"), Some("1")));
    // Connections of one peer do not count against another's.
    daemon.get("/v1/sandboxes").assert_ok();
    drop(crowd);
    let token = daemon.operator_token();
    let begun = Instant::now();
    loop {
        let ask = daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(&token).send();
        if ask.status == 200 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(180));
    }
}

/// Bodies are not read before authentication, and never beyond their bound.
// promise 24
#[test]
fn bodies_are_bounded_before_they_are_read() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let port = daemon.port.unwrap();
    let token = daemon.operator_token();
    let start = |auth: &str, length: &str| {
        format!(
            "POST /v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\n{auth}content-type: application/json\r\n{length}\r\n\r\n"
        )
    };
    let auth = format!("authorization: Bearer {token}\r\n");
    // The response arrives without any byte of the body.
    let mut stream = daemon.tcp();
    stream.write_all(start("", "content-length: 1000000").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(401, "unauthenticated");
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "content-length: 99999999999").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(413, "limit_exceeded");
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "expect: 100-continue\r\ncontent-length: 99999999").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(413, "limit_exceeded");
    // A chunked body is counted as it arrives.
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "transfer-encoding: chunked").as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..32 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    receive(&mut stream).unwrap().assert_fault(413, "limit_exceeded");
    // The control.
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "transfer-encoding: chunked").as_bytes()).unwrap();
    stream.write_all(b"2\r\n{}\r\n0\r\n\r\n").unwrap();
    assert_eq!(receive(&mut stream).unwrap().status, 201);
}

/// Most clients send everything before they read. A client that is refused early still gets the reason, up to a bound
/// on what the daemon reads and discards.
#[test]
fn a_refusal_reaches_who_sends_all_before_it_reads() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    daemon.post("/v1/sandboxes", json!({ "name": "box" })).assert_ok();
    let (port, token) = (daemon.port.unwrap(), daemon.operator_token());
    let auth = format!("authorization: Bearer {token}\r\n");
    let content = "/v1/sandboxes/box/files/content?path=new";
    let head = |method: &str, path: &str, more: &str, length: u64| {
        format!("{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\n{more}content-length: {length}\r\n\r\n")
    };
    let bytes = "content-type: application/octet-stream\r\n";
    for (method, path, more, size, status, kind) in [
        ("PUT", content, format!("{auth}{bytes}if-match: \"zzz\"\r\n"), 5_000_000, 409, "conflict"),
        ("PUT", content, format!("{auth}content-type: text/plain\r\n"), 5_000_000, 415, "invalid_request"),
        ("PUT", "/v1/nothing", format!("{auth}{bytes}"), 5_000_000, 404, "not_found"),
        ("PATCH", content, format!("{auth}{bytes}"), 5_000_000, 405, "invalid_request"),
        (
            "POST",
            "/v1/sandboxes",
            format!("{auth}content-type: application/json\r\n"),
            20_000_000,
            413,
            "limit_exceeded",
        ),
        ("PUT", content, bytes.into(), 800_000, 401, "unauthenticated"),
    ] {
        for _ in 0..3 {
            let mut stream = daemon.tcp();
            stream.write_all(head(method, path, &more, size).as_bytes()).unwrap();
            stream.write_all(&vec![b' '; size as usize]).unwrap_or_else(|e| panic!("{status}: {e}"));
            let answer = receive(&mut stream).unwrap();
            answer.assert_fault(status, kind);
            assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "and that was all");
        }
    }
    // The control: the same body on a route that takes it.
    let mut stream = daemon.tcp();
    stream.write_all(head("PUT", content, &format!("{auth}{bytes}"), 5_000_000).as_bytes()).unwrap();
    stream.write_all(&vec![b' '; 5_000_000]).unwrap();
    assert_eq!(receive(&mut stream).unwrap().assert_ok()["size"], 5_000_000);
    // A small refused body keeps the connection usable.
    for _ in 0..2 {
        let more = format!("{auth}content-type: application/json\r\n");
        stream.write_all((head("POST", "/v1/nothing", &more, 2) + "{}").as_bytes()).unwrap();
        receive(&mut stream).unwrap().assert_fault(404, "not_found");
    }
    // Without a credential little of the body is discarded, and a client that sends nothing is not waited for.
    let (mut endless, mut silent) = (daemon.tcp(), daemon.tcp());
    for stream in [&mut endless, &mut silent] {
        stream.write_all(head("PUT", content, bytes, 1 << 40).as_bytes()).unwrap();
    }
    let taken = (0..1 << 10).take_while(|_| endless.write_all(&[b' '; 64 << 10]).is_ok()).count();
    assert!(taken < 512, "{taken} pieces of 64 KiB");
    receive(&mut silent).unwrap().assert_fault(401, "unauthenticated");
    let begun = Instant::now();
    while silent.write_all(b" ").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(180), "its connection is kept");
        std::thread::sleep(Duration::from_millis(200));
    }
}
