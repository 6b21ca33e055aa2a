//! Who is who: names in hellos, certificates on both sides, protocols.

use super::servers;
use super::world::*;
use egress::event::{Op, Stage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::ProtocolVersion;

#[tokio::test]
async fn another_name_is_refused_by_an_alert() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let error = world.guest_tls(world.connect(addr, &[HOST]), OTHER, &[]).await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    let told = world.court.wait(|e| e.stage == Stage::Refused).await;
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
    // An address in the place of a name is not sent in the hello.
    let mut guest = world.guest_tls(world.connect(addr, &[HOST]), "127.0.0.1", &[]).await.unwrap();
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
    assert!(world.guest_tls(world.connect(addr, &[HOST, OTHER]), "127.0.0.1", &[]).await.is_err());
    // Allowed by its address alone, the server must prove the address.
    let (addr, _) = servers::http1(Some(world.servers.acceptor(&["127.0.0.1"], &[]))).await;
    let mut guest = world.guest_tls(world.connect(addr, &[]), "127.0.0.1", &[]).await.unwrap();
    let request = format!("GET /address HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", addr.port());
    assert_eq!(ask(&mut guest, &request).await.status, 200);
}

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
        // What is refused is refused all the same, and says nothing of the server.
        assert_eq!(get(&mut guest, "/no").await.status, 403);
        assert!(seen.heads().is_empty());
        let told = world.court.wait(|e| e.stage == Stage::Failed && e.address == Some(addr)).await;
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
    world.court.wait(|e| e.reason.as_ref().is_some_and(|r| r.contains("no protocol"))).await;
}

#[tokio::test]
async fn a_client_that_does_not_trust_us_is_told_of() {
    let world = World::new();
    let (addr, seen) = servers::https(&world.servers).await;
    let connector = client(world.servers.root(), &[]);
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(HOST).unwrap();
    assert!(connector.connect(name, world.connect(addr, &[HOST])).await.is_err());
    let told = world.court.wait(|e| e.stage == Stage::Failed).await;
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
    // Plain bytes after a hello that was taken.
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
