//! HTTP/1.x through the inspector.

use super::servers;
use super::world::*;
use egress::event::EventStage;
use policy::Action;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn requests_are_judged_one_by_one_and_the_connection_stays() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    assert_eq!(get(&mut guest, "/ok/a?b=c").await.status, 200);
    let refused = get(&mut guest, "/secret").await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("cofferdam-rule"), Some("defaults.net"));
    assert_eq!(refused.header("content-type"), Some("application/json"));
    let told = refused.json();
    assert_eq!(told["error_kind"], "policy_denied");
    assert_eq!(told["rule"], "defaults.net");
    assert!(told["message"].as_str().unwrap().contains("GET api.example.org/secret"));
    assert!(told["hint"].as_str().unwrap().contains("net.rules"));
    let denied = get(&mut guest, "/ok/not/this").await;
    assert_eq!((denied.status, denied.header("cofferdam-rule")), (403, Some("test:net.rules[3]")));
    assert_eq!(get(&mut guest, "/ask").await.status, 403);
    let put = format!("DELETE /ok HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(ask(&mut guest, &put).await.status, 403);
    assert_eq!(get(&mut guest, "/warn").await.status, 200);
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    assert_eq!((seen.heads().len(), seen.connections()), (3, 1));
    let stages = world.judge.stages();
    let of = |path: &str| stages.iter().filter(|(_, p)| p == path).map(|(s, _)| *s).collect::<Vec<_>>();
    assert_eq!(of("/ok/a?b=c"), [EventStage::Opened, EventStage::Closed]);
    assert_eq!(of("/secret"), [EventStage::Refused]);
    assert_eq!(of("/ask"), [EventStage::Refused]);
    let warned = world.judge.wait(|e| e.path.as_deref() == Some("/warn") && e.stage == EventStage::Opened).await;
    assert_eq!((warned.action, warned.method.as_deref()), (Action::Warn, Some("GET")));
    let closed = world.judge.wait(|e| e.path.as_deref() == Some("/ok/a?b=c") && e.stage == EventStage::Closed).await;
    assert!(closed.bytes_in > 50 && closed.bytes_out > 30, "{closed:?}");
    assert_eq!((closed.revision, closed.name.as_deref(), closed.address), (1, Some(HOST), Some(addr)));
}

#[tokio::test]
async fn plain_connections_are_inspected_too() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    let mut guest = world.connect(addr, &[HOST, OTHER]);
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    assert_eq!(get(&mut guest, "/no").await.status, 403);
    let absolute = format!("GET http://{HOST}:{}/ok/x HTTP/1.1\r\nHost: {HOST}:{}\r\n\r\n", addr.port(), addr.port());
    assert_eq!(ask(&mut guest, &absolute).await.status, 200);
    let second = format!("GET /anything HTTP/1.1\r\nHost: {OTHER}\r\n\r\n");
    assert_eq!(ask(&mut guest, &second).await.status, 200);
    let by_address = format!("GET /address HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", addr.port());
    assert_eq!(ask(&mut guest, &by_address).await.status, 200);
    let elsewhere = "GET /ok HTTP/1.1\r\nHost: evil.example.org\r\n\r\n";
    assert_eq!(ask(&mut guest, elsewhere).await.status, 421);
    let port = format!("GET /ok HTTP/1.1\r\nHost: {HOST}:1\r\n\r\n");
    assert_eq!(ask(&mut guest, &port).await.status, 421);
    let heads = seen.heads();
    assert_eq!(heads.len(), 4);
    assert!(heads[1].starts_with("GET /ok/x HTTP/1.1\r\n"), "{}", heads[1]);
    assert!(heads[0].contains(&format!("Host: {HOST}:{}\r\n", addr.port())), "{}", heads[0]);
}

#[tokio::test]
async fn bodies_of_all_kinds() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let chunked = get(&mut guest, "/ok/chunked").await;
    assert_eq!(chunked.text(), "one two threeX-Sum: 6\r\n");
    assert_eq!(get(&mut guest, "/ok/204").await.status, 204);
    assert_eq!(get(&mut guest, "/ok/304").await.header("content-length"), Some("99"));
    let head = ask(&mut guest, &format!("HEAD /ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).await;
    assert!(head.header("content-length").is_some());
    let put = format!("PUT /ok/p HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nhello");
    assert!(ask(&mut guest, &put).await.text().ends_with("\r\n\r\nhello"));
    let sent = format!("POST /ok/p HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let sent = sent + "3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-T: u\r\n\r\n";
    let answered = ask(&mut guest, &sent).await;
    assert!(answered.text().ends_with("3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: u\r\n\r\n"), "{}", answered.text());
    let until = get(&mut guest, "/ok/close").await;
    assert_eq!((until.text().as_str(), until.header("connection")), ("until the end", Some("close")));
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let post = format!("POST /no HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 3\r\n\r\nabc");
    send(&mut guest, [one("/ok/1"), one("/no"), post, one("/ok/chunked"), one("/ok/2")].concat().as_bytes()).await;
    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(answer(&mut guest, false).await);
    }
    assert_eq!(got.iter().map(|a| a.status).collect::<Vec<_>>(), [200, 403, 403, 200, 200]);
    assert!(got[0].text().contains("/ok/1") && got[4].text().contains("/ok/2"));
}

#[tokio::test]
async fn a_server_that_closes_between_requests_is_opened_again() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    for path in ["/ok/once", "/ok/idle", "/ok/idle", "/ok"] {
        assert_eq!(get(&mut guest, path).await.status, 200, "{path}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(seen.connections(), 4);
}

#[tokio::test]
async fn what_a_server_says_unasked_answers_nothing() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    assert_eq!(get(&mut guest, "/ok/unasked").await.text(), "a");
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(get(&mut guest, "/ok/next").await.text().contains("/ok/next"));
}

#[tokio::test]
async fn a_client_may_wait_for_a_word() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let expect = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    };
    assert_eq!(ask(&mut guest, &expect("/ok/continue")).await.status, 100);
    assert!(ask(&mut guest, "body").await.text().ends_with("body"));
    assert_eq!(get(&mut guest, "/ok/hints").await.status, 103);
    assert_eq!(answer(&mut guest, false).await.text(), "hi");
    let refused = ask(&mut guest, &expect("/no")).await;
    assert_eq!((refused.status, refused.header("connection")), (403, Some("close")));
    assert!(is_closed(&mut guest).await);
}

#[tokio::test]
async fn an_early_answer_ends_the_connection() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let head = format!("POST /ok/early HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000000\r\n\r\nfirst");
    let answered = ask(&mut guest, &head).await;
    assert_eq!((answered.status, answered.text().as_str()), (413, "large"));
    assert_eq!(answered.header("connection"), Some("close"));
    assert!(is_closed(&mut guest).await);
}

#[tokio::test]
async fn answers_flow_as_they_come() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    send(&mut guest, format!("GET /ok/slowly HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
    head(&mut guest).await;
    let mut first = [0; 14];
    let read = tokio::time::timeout(Duration::from_secs(20), guest.read_exact(&mut first)).await;
    assert!(read.is_ok(), "the first event waits for the second");
    assert_eq!(&first, b"9\r\ndata: 1\n\n\r\n");
}

#[tokio::test]
async fn websockets_are_relayed_after_an_allowed_request() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let upgrade = |path: &str, to: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: {to}\r\nSec-WebSocket-Key: eA==\r\n\r\n"
        )
    };
    assert_eq!(ask(&mut guest, &upgrade("/no", "websocket")).await.status, 403);
    assert_eq!(ask(&mut guest, &upgrade("/ok/ws", "websocket")).await.status, 101);
    for text in ["hello", "\x00\x01frames", "GET /no HTTP/1.1\r\n\r\n"] {
        send(&mut guest, text.as_bytes()).await;
        let mut back = vec![0; text.len()];
        within(guest.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, text.as_bytes());
    }
    guest.shutdown().await.unwrap();
    assert!(is_closed(&mut guest).await);
    let closed = world.judge.wait(|e| e.path.as_deref() == Some("/ok/ws") && e.stage == EventStage::Closed).await;
    assert!(closed.bytes_in > 30);
    // Protocols that carry requests of their own are not offered to the server.
    let mut guest = world.https(addr).await;
    let h2c = upgrade("/ok/x", "h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__");
    let told = ask(&mut guest, &h2c).await.text().to_ascii_lowercase();
    assert!(!told.contains("upgrade"), "{told}");
    let wrong = ask(&mut guest, &upgrade("/ok/other-protocol", "websocket")).await;
    assert_eq!(wrong.status, 502);
}

#[tokio::test]
async fn old_clients_get_what_they_can_read() {
    let world = World::new();
    let (addr, _) = servers::http1(None).await;
    let mut guest = world.connect(addr, &[HOST]);
    let answered = ask(&mut guest, &format!("GET /ok/chunked HTTP/1.0\r\nHost: {HOST}\r\n\r\n")).await;
    assert_eq!(answered.header("transfer-encoding"), None);
    assert_eq!(answered.text(), "one two three");
}

#[tokio::test]
async fn answers_that_can_be_read_in_two_ways_are_refused() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    let refused = get(&mut guest, "/ok/two-lengths").await;
    assert_eq!((refused.status, refused.json()["error_kind"].as_str()), (502, Some("unavailable")));
    let failed = world.judge.wait(|e| e.stage == EventStage::Failed).await;
    assert!(failed.reason.unwrap().contains("Content-Length comes twice"));
    // A truncated response is truncated for the guest as well.
    let mut guest = world.https(addr).await;
    send(&mut guest, format!("GET /ok/cut HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
    assert!(head(&mut guest).await.contains("100"));
    let mut rest = Vec::new();
    let read = within(guest.read_to_end(&mut rest)).await;
    assert!(rest == b"short" && read.is_err(), "{rest:?} {read:?}");
}

#[tokio::test]
async fn other_rules_hold_at_once() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    let upgrade = format!("GET /ok/ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let mut socket = world.https(addr).await;
    assert_eq!(ask(&mut socket, &upgrade).await.status, 101);
    world.judge.replace(r#"{"action":"allow","host":"api.example.org","paths":["/other"]}"#);
    assert_eq!(get(&mut guest, "/ok").await.status, 403);
    assert_eq!(get(&mut guest, "/other").await.status, 200);
    // Closed although idle.
    assert!(is_closed(&mut socket).await);
    let told = world.judge.wait(|e| e.path.as_deref() == Some("/ok/ws") && e.stage == EventStage::Failed).await;
    assert_eq!(told.revision, 2);
}

#[tokio::test]
async fn bytes_are_counted_and_limited() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    let mut guest = world.https(addr).await;
    assert_eq!(get(&mut guest, "/ok/bulk?n=100000").await.body.len(), 100_000);
    let spent = &world.judge.spent.0;
    let so_far = spent.load(std::sync::atomic::Ordering::SeqCst);
    assert!((100_000..110_000).contains(&so_far), "{so_far}");
    world.judge.limit.store(150_000, std::sync::atomic::Ordering::SeqCst);
    send(&mut guest, format!("GET /ok/bulk?n=1000000 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
    let mut rest = Vec::new();
    assert!(within(guest.read_to_end(&mut rest)).await.is_err());
    assert!(rest.len() < 100_000, "{}", rest.len());
}

#[tokio::test]
async fn who_says_nothing_is_left() {
    let settings = egress::inspect::InspectorSettings {
        head: Duration::from_millis(1000),
        idle: Duration::from_millis(1500),
        ..Default::default()
    };
    let world = World::with(RULES, false, settings);
    let (addr, _) = servers::https(&world.servers).await;
    // Timeouts before the ClientHello, within a head, between requests, and while a server is silent.
    assert!(is_closed(&mut world.connect(addr, &[HOST])).await);
    let mut guest = world.https(addr).await;
    assert_eq!(ask(&mut guest, "GET /ok HT").await.status, 408);
    let mut guest = world.https(addr).await;
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    assert!(is_closed(&mut guest).await);
    let mut guest = world.https(addr).await;
    let stuck = format!("POST /ok HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nabc");
    assert_eq!(ask(&mut guest, &stuck).await.status, 502);
}

#[tokio::test]
async fn what_was_read_before_comes_first() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    let request = format!("GET /ok/a HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    for cut in [1, 3, 20, request.len()] {
        let (mut guest, _kept) = world.connect_with(addr, &request.as_bytes()[..cut]);
        assert_eq!(ask(&mut guest, &request[cut..]).await.status, 200, "cut at {cut}");
    }
    assert_eq!(seen.heads().len(), 4);
}

#[tokio::test]
async fn dropped_it_ends_at_once_and_tells() {
    let world = World::new();
    let (addr, _) = servers::http1(None).await;
    let upgrade = format!("GET /ok/ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let (mut guest, kept) = world.connect_with(addr, b"");
    assert_eq!(ask(&mut guest, &upgrade).await.status, 101);
    drop(kept);
    assert!(is_closed(&mut guest).await);
    world.judge.wait(|e| e.stage == EventStage::Closed).await;
}
