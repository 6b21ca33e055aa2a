//! TLS identities: SNI, certificates on both sides, and ALPN.

use super::http2::fetch;
use super::servers;
use super::world::*;
use egress::event::{EventStage, Op};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ProtocolVersion, SupportedProtocolVersion};

static OLD: &[&SupportedProtocolVersion] = &[&TLS12];
static NEW: &[&SupportedProtocolVersion] = &[&TLS13];

#[tokio::test]
async fn another_name_is_refused_by_an_alert() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let error = world.guest_tls(world.connect(addr, &[HOST]), OTHER, &[]).await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    let told = world.judge.wait(|e| e.stage == EventStage::Refused).await;
    assert_eq!((told.op, told.name.as_deref()), (Op::Connect, Some(OTHER)));
    assert!(told.reason.unwrap().contains("not allowed"));
    assert_eq!(seen.connections(), 0);
    // The control: the same client with the other name allowed.
    let mut guest = world.guest_tls(world.connect(addr, &[HOST, OTHER]), OTHER, &[]).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n");
    assert_eq!(ask(&mut guest, &request).await.status, 200);
}

#[tokio::test]
async fn the_request_must_be_for_the_name_in_the_hello() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let mut guest = world.guest_tls(world.connect(addr, &[HOST, OTHER]), HOST, &[]).await.unwrap();
    for host in [OTHER, "evil.example.org", "127.0.0.1", "api.example.org:444"] {
        let refused = ask(&mut guest, &format!("GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!(refused.status, 421, "{host}");
        assert_eq!(refused.json()["error_kind"], "policy_denied");
    }
    for host in [HOST, "API.example.ORG.", &format!("{HOST}:{}", addr.port())] {
        let request = format!("GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(ask(&mut guest, &request).await.status, 200, "{host}");
    }
    assert!(seen.heads().iter().all(|h| h.contains(&format!("Host: {HOST}:{}\r\n", addr.port()))));
}

#[tokio::test]
async fn without_a_name_only_one_may_be_meant() {
    let world = World::new();
    let (addr, _) = servers::https(&world.servers).await;
    // An address in place of a name is not sent as SNI.
    let mut guest = world.guest_tls(world.connect(addr, &[HOST]), "127.0.0.1", &[]).await.unwrap();
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    assert!(world.guest_tls(world.connect(addr, &[HOST, OTHER]), "127.0.0.1", &[]).await.is_err());
    // Allowed by its address alone, the server's certificate must prove the address.
    let (addr, _) = servers::http1(Some(world.servers.acceptor(&["127.0.0.1"], &[]))).await;
    let mut guest = world.guest_tls(world.connect(addr, &[]), "127.0.0.1", &[]).await.unwrap();
    let request = format!("GET /address HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", addr.port());
    assert_eq!(ask(&mut guest, &request).await.status, 200);
}

// promise 6
#[tokio::test]
async fn a_server_that_proves_nothing_gets_nothing() {
    let world = World::new();
    let stranger = ServerAuthority::new();
    let wrong = [stranger.acceptor(&[HOST], &[]), world.servers.acceptor(&["evil.example.org"], &[])];
    for acceptor in wrong {
        let (addr, seen) = servers::http1(Some(acceptor)).await;
        let mut guest = world.https(addr).await;
        let failed = get(&mut guest, "/ok").await;
        assert_eq!((failed.status, failed.json()["error_kind"].as_str()), (502, Some("unavailable")));
        assert!(failed.text().contains("certificate of api.example.org is not valid"), "{}", failed.text());
        // Refusals are the same, and reveal nothing about the server.
        assert_eq!(get(&mut guest, "/no").await.status, 403);
        assert!(seen.heads().is_empty());
        let told = world.judge.wait(|e| e.stage == EventStage::Failed && e.address == Some(addr)).await;
        assert!(told.reason.unwrap().contains("not valid"));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let world = World::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let mut guest = world.https(addr).await;
    let failed = get(&mut guest, "/ok").await;
    assert_eq!(failed.status, 502);
    assert!(failed.text().contains("cannot be reached"), "{}", failed.text());
    let mut plain = world.connect(addr, &[HOST]);
    assert_eq!(get(&mut plain, "/ok").await.status, 502);
    let requests = world.guest_tls(world.connect(addr, &[HOST]), HOST, &["h2"]).await.unwrap();
    let (requests, connection) = h2::client::handshake(requests).await.unwrap();
    tokio::spawn(connection);
    let uri = format!("https://{HOST}:{}/ok", addr.port());
    let request = http::Request::get(uri).body(()).unwrap();
    let mut requests = requests.ready().await.unwrap();
    let answered = requests.send_request(request, true).unwrap().0.await.unwrap();
    assert_eq!(answered.status(), 502);
}

#[tokio::test]
async fn the_guest_gets_the_protocol_that_the_server_chose() {
    let world = World::new();
    let (old, _) = servers::https(&world.servers).await;
    let (new, _) = servers::https2(&world.servers).await;
    for (addr, offered, chosen) in [
        (old, &["h2", "http/1.1"][..], Some(&b"http/1.1"[..])),
        (new, &["h2", "http/1.1"], Some(b"h2")),
        (new, &["http/1.1"], Some(b"http/1.1")),
        (old, &[], None),
    ] {
        let guest = world.guest_tls(world.connect(addr, &[HOST]), HOST, offered).await.unwrap();
        assert_eq!(guest.get_ref().1.alpn_protocol(), chosen, "{addr} {offered:?}");
        assert_eq!(guest.get_ref().1.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    }
    assert!(world.guest_tls(world.connect(old, &[HOST]), HOST, &["imap"]).await.is_err());
    world.judge.wait(|e| e.reason.as_ref().is_some_and(|r| r.contains("no protocol"))).await;
}

#[tokio::test]
async fn a_client_that_does_not_trust_us_is_told_of() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let connector = client(world.servers.root(), &[]);
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(HOST).unwrap();
    assert!(connector.connect(name, world.connect(addr, &[HOST])).await.is_err());
    let told = world.judge.wait(|e| e.stage == EventStage::Failed).await;
    assert!(told.hint.unwrap().contains("trust"), "{:?}", told.reason);
    assert!(seen.heads().is_empty());
}

#[tokio::test]
async fn what_is_no_hello_is_no_way_around() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let mut broken = hello_of("curl");
    let at = broken.len() / 2;
    broken[at..].fill(0xff);
    for bytes in [broken, b"\x16\x03\x01\x00\x00".to_vec(), b"\x16\x03\x01\x00\x04\x02\x00\x00\x00".to_vec()] {
        let mut guest = world.connect(addr, &[HOST]);
        send(&mut guest, &bytes).await;
        let mut back = Vec::new();
        within(guest.read_to_end(&mut back)).await.unwrap();
        assert_eq!(back.first(), Some(&21), "{back:?}");
    }
    // Plaintext after a valid ClientHello.
    let mut guest = world.connect(addr, &[HOST]);
    let hello = hello_of("curl");
    send(&mut guest, &hello).await;
    send(&mut guest, b"GET /ok HTTP/1.1\r\nHost: api.example.org\r\n\r\n").await;
    guest.shutdown().await.unwrap();
    let mut back = Vec::new();
    let _ = within(guest.read_to_end(&mut back)).await;
    assert!(!back.windows(4).any(|w| w == b"HTTP"));
    assert!(seen.heads().is_empty());
}

#[tokio::test]
async fn old_and_new_versions_on_either_side() {
    let world = World::new();
    for server in [OLD, NEW] {
        let acceptor = world.servers.odd_acceptor(&[HOST], &["http/1.1"], Odd { versions: server, ..Odd::default() });
        let (addr, _) = servers::http1(Some(acceptor)).await;
        for guest in [OLD, NEW] {
            let connector = client_of(guest, world.guest_root(), &["http/1.1"]);
            let stream = world.connect(addr, &[HOST]);
            let mut stream = connector.connect(ServerName::try_from(HOST).unwrap(), stream).await.unwrap();
            assert_eq!(stream.get_ref().1.protocol_version(), Some(guest[0].version));
            assert_eq!(get(&mut stream, "/ok").await.status, 200);
            assert_eq!(get(&mut stream, "/no").await.status, 403);
        }
    }
}

// promise 6
#[tokio::test]
async fn a_bad_certificate_is_told_by_what_is_bad_about_it() {
    let world = World::new();
    let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
    let past = Odd { life: Some((now - 9 * day, now - day)), ..Odd::default() };
    let future = Odd { life: Some((now + day, now + 9 * day)), ..Odd::default() };
    let itself = Odd { signs_itself: true, ..Odd::default() };
    for (name, odd, wanted) in [
        (HOST, past, "it has expired"),
        (HOST, future, "it is not valid yet"),
        (HOST, itself, "signed by no certificate authority that this host trusts"),
        (OTHER, Odd::default(), "it is for another name"),
    ] {
        let (addr, seen) = servers::http1(Some(world.servers.odd_acceptor(&[name], &["http/1.1"], odd))).await;
        let mut guest = world.https(addr).await;
        let failed = get(&mut guest, "/ok").await;
        assert_eq!(failed.status, 502);
        let message = failed.json()["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("certificate of api.example.org is not valid") && message.contains(wanted),
            "{message}"
        );
        assert!(seen.heads().is_empty());
    }
}

#[tokio::test]
async fn a_server_that_wants_to_know_its_client() {
    let world = World::new();
    for versions in [OLD, NEW] {
        let strict = Odd { versions, asks: Asks::Strictly, ..Odd::default() };
        let (addr, seen) = servers::http1(Some(world.servers.odd_acceptor(&[HOST], &["http/1.1"], strict))).await;
        let mut guest = world.https(addr).await;
        let failed = get(&mut guest, "/ok").await;
        assert_eq!((failed.status, failed.json()["error_kind"].as_str()), (502, Some("unavailable")));
        // If the server's alert is lost, only the disconnect is reported.
        let told = ["a certificate of its client", "connection to the server broke"];
        assert!(told.iter().any(|told| failed.text().contains(told)), "{}", failed.text());
        assert!(seen.heads().is_empty());
        // The control: a server that accepts clients without a certificate is used.
        let polite = Odd { versions, asks: Asks::Politely, ..Odd::default() };
        let (addr, _) = servers::http1(Some(world.servers.odd_acceptor(&[HOST], &["http/1.1"], polite))).await;
        assert_eq!(get(&mut world.https(addr).await, "/ok").await.status, 200);
    }
    let strict = Odd { asks: Asks::Strictly, ..Odd::default() };
    let (addr, _) = servers::http2(Some(world.servers.odd_acceptor(&[HOST], &["h2"], strict))).await;
    let requests = world.http2(addr).await;
    let request = http::Request::get(format!("https://{HOST}:{}/ok", addr.port())).body(()).unwrap();
    let (status, _, text, _) = fetch(&requests, request).await;
    assert!(status == 502 && text.contains("connection to the server broke"), "{text}");
}

/// Early data can be replayed by anyone on the path, so none is sent.
#[tokio::test]
async fn nothing_is_sent_early() {
    let world = World::new();
    let odd = Odd { early: u32::MAX, versions: NEW, ..Odd::default() };
    let (addr, seen) = servers::http1(Some(world.servers.odd_acceptor(&[HOST], &["http/1.1"], odd))).await;
    for _ in 0..5 {
        assert_eq!(get(&mut world.https(addr).await, "/ok").await.status, 200);
    }
    assert!(seen.connections() == 5 && !seen.early());
    // A guest gets no session ticket: each of its connections is judged by itself.
    let connector = client(world.guest_root(), &[]);
    for _ in 0..3 {
        let stream = world.connect(addr, &[HOST]);
        let mut stream = connector.connect(ServerName::try_from(HOST).unwrap(), stream).await.unwrap();
        assert_eq!(get(&mut stream, "/ok").await.status, 200);
        let kind = stream.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(tokio_rustls::rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn sides_that_have_no_protocol_in_common() {
    let world = World::new();
    // Without ALPN a server speaks HTTP/1.1.
    let wordless = servers::http1(Some(world.servers.acceptor(&[HOST], &[]))).await.0;
    let old = servers::https(&world.servers).await.0;
    for addr in [wordless, old] {
        let stream = world.guest_tls(world.connect(addr, &[HOST]), HOST, &["h2"]).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::get(format!("https://{HOST}:{}/ok", addr.port())).body(()).unwrap();
        let (status, _, text, _) = fetch(&requests, request).await;
        assert!(status == 502 && text.contains("protocol that the client speaks"), "{text}");
        // Refusals are the same.
        let request = http::Request::get(format!("https://{HOST}:{}/no", addr.port())).body(()).unwrap();
        assert_eq!(fetch(&requests, request).await.0, 403);
    }
    let new = servers::http2(Some(world.servers.acceptor(&[HOST], &["h2"]))).await.0;
    let failed = get(&mut world.https(new).await, "/ok").await;
    assert!(failed.status == 502 && failed.text().contains("protocol that the client speaks"), "{}", failed.text());
    // The control: the same guest with a server that shares a protocol.
    assert_eq!(get(&mut world.https(old).await, "/ok").await.status, 200);
}
