//! Clients that are slow, many, or large (R10, R11): bounded before anybody is asked who they are, and a good client is served.

use crate::support::http::{Daemon, receive};
use crate::support::{As, Place};
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon that is impatient, so that the test need not wait.
fn impatient(place: &Place) -> Daemon {
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.env("COFFERDAM_SERVE_PATIENCE", "1s");
    Daemon::spawn(place, command)
}

/// R10: a head, a body, an answer that is taken too slowly; and nothing at all.
#[test]
fn r10_slow_clients_are_not_waited_for() {
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
    // One that sends a byte now and then is no better.
    let dripping = std::thread::spawn(move || {
        for _ in 0..200 {
            if drip.write_all(b" ").is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        receive(&mut drip)
    });
    // The control: meanwhile a good client is served.
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
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(daemon.get("/v1/sandboxes").json()["sandboxes"], json!([]));
}

/// R10: ten thousand idle connections, and one more client.
#[test]
fn r10_ten_thousand_idle_connections_hurt_nobody() {
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
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident: u64 =
        status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse().ok()).unwrap();
    assert!(resident < 100 << 10, "{resident} KiB");
    drop(crowd.stdin.take());
    crowd.wait().unwrap();
}

/// More connections than there may be are told so; when some leave there is room again.
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
    // One peer's crowd takes nothing from another's.
    daemon.get("/v1/sandboxes").assert_ok();
    drop(crowd);
    let token = daemon.operator_token();
    let begun = Instant::now();
    loop {
        let ask = daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(&token).send();
        if ask.status == 200 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// R11: of a body nothing is read before it is known who sends it, and never more than may be.
#[test]
fn r11_bodies_are_bounded_before_they_are_read() {
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
    // Nothing of the body is sent, and the answer is there.
    let mut stream = daemon.tcp();
    stream.write_all(start("", "content-length: 1000000").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(401, "unauthenticated");
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "content-length: 99999999999").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(413, "limit_exceeded");
    let mut stream = daemon.tcp();
    stream.write_all(start(&auth, "expect: 100-continue\r\ncontent-length: 99999999").as_bytes()).unwrap();
    receive(&mut stream).unwrap().assert_fault(413, "limit_exceeded");
    // Without a length it is counted.
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
