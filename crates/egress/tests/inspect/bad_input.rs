//! Requests of a hostile guest. Each test has a control beside it: the plain form passes.

use super::servers;
use super::world::*;
use egress::event::EventStage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends bytes on a new connection, and returns everything that comes back.
async fn say(world: &World, addr: std::net::SocketAddr, bytes: &[u8]) -> String {
    let mut guest = world.connect(addr, &[HOST]);
    send(&mut guest, bytes).await;
    guest.shutdown().await.unwrap();
    let mut back = Vec::new();
    within(guest.read_to_end(&mut back)).await.unwrap();
    String::from_utf8_lossy(&back).into_owned()
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn hosts_in_odd_spellings() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    for host in [
        "",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.1.",
        "127.0.0.01",
        "[::1",
        "[::ffff:127.0.0.1%25eth0]",
        "user@api.example.org",
        "user:pass@api.example.org",
        "api.example.org@evil.example.org",
        "api.example.org:80@evil.example.org",
        "api.example.org..",
        "api.example.org:",
        "api.example.org:0",
        "api.example.org:080",
        "api.example.org:99999",
        "api.example.org, evil.example.org",
        "api.example.org/ok",
        "api.example.org#",
        "api.example.org\tevil",
        "аpi.example.org",
        "ａpi.example.org",
        "api。example。org",
        "api%2eexample.org",
        "evil.example.org",
        "xn--pi-7kc.example.org",
        "[::ffff:7f00:1]",
    ] {
        let answered = say(&world, addr, format!("GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
        let allowed_here = host == "127.0.0.1." || host == "[::ffff:7f00:1]";
        // The last two name the address itself, under which this path is not allowed.
        let wanted: &[u16] = if allowed_here { &[403] } else { &[400, 421] };
        assert!(wanted.contains(&status(&answered)), "{host:?}: {answered}");
    }
    assert!(seen.heads().is_empty());
    for host in [HOST, "API.EXAMPLE.ORG", "api.example.org."] {
        let answered = say(&world, addr, format!("GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answered), 200, "{host:?}");
    }
}

// promise 6
#[tokio::test]
async fn smuggled_requests() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    let host = format!("Host: {HOST}\r\n");
    let inner = format!("GET /no HTTP/1.1\r\n{host}\r\n");
    for head in [
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 0\r\nContent-Length: 50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 0, 50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: +50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length : 50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content_Length: 50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Transfer-Encoding:\x0bchunked\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}X: y\r\n Transfer-Encoding: chunked\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}X: y\nTransfer-Encoding: chunked\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}X: y\rTransfer-Encoding: chunked\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}X: y\0\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.1\r\n{host}Connection: content-length\r\nContent-Length: 50\r\n\r\n{inner}"),
        format!("POST /ok HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("GET /ok HTTP/1.1\r\n{host}{host}\r\n"),
        format!("GET /ok HTTP/1.1\r\n{host}Host: evil.example.org\r\n\r\n"),
        format!("GET /ok\tHTTP/1.1\r\n{host}\r\n"),
        format!("GET /ok  HTTP/1.1\r\n{host}\r\n"),
        format!("GET /ok HTTP/1.1 \r\n{host}\r\n"),
        format!("GET /ok\r\n{host}\r\n"),
        format!("GET /ok HTTP/2.0\r\n{host}\r\n"),
        format!("GET\x00 /ok HTTP/1.1\r\n{host}\r\n"),
        format!("get /ok HTTP/1.1\r\n{host}\r\n"),
        format!("GET http://evil.example.org/ok HTTP/1.1\r\n{host}\r\n"),
        format!("GET https://{HOST}/ok HTTP/1.1\r\n{host}\r\n"),
        format!("GET http://user@{HOST}/ok HTTP/1.1\r\n{host}\r\n"),
        format!("GET ftp://{HOST}/ok HTTP/1.1\r\n{host}\r\n"),
        format!("CONNECT {HOST}:443 HTTP/1.1\r\n{host}\r\n{inner}"),
        format!("GET * HTTP/1.1\r\n{host}\r\n"),
        format!("\r\nGET /ok HTTP/1.1\r\n{host}\r\n"),
        "GET /ok HTTP/1.1\r\n\r\n".to_owned(),
        "\u{16}\u{3}".to_owned(),
        "SSH-2.0-OpenSSH_9.2\r\n".to_owned(),
    ] {
        let answered = say(&world, addr, head.as_bytes()).await;
        let refused = (400..600).contains(&status(&answered)) && status(&answered) != 403;
        assert!(refused || answered.is_empty(), "{head:?}: {answered}");
        assert_eq!(answered.matches("HTTP/1.1 ").count(), usize::from(!answered.is_empty()), "{head:?}: {answered}");
    }
    assert!(seen.heads().is_empty(), "{:?}", seen.heads());
    let told = world.judge.stages();
    assert!(told.iter().all(|(stage, _)| *stage == EventStage::Refused) && told.len() > 25);
    // The control: bytes of a body are no request, and the following request is judged.
    let body = format!("POST /ok HTTP/1.1\r\n{host}Content-Length: {}\r\n\r\n{inner}{inner}", inner.len());
    let answered = say(&world, addr, body.as_bytes()).await;
    assert!(answered.starts_with("HTTP/1.1 200") && answered.contains("HTTP/1.1 403"), "{answered}");
    assert_eq!(seen.heads().len(), 1);
}

#[tokio::test]
async fn bodies_that_are_not_what_they_say() {
    let world = World::new();
    let (addr, _) = servers::http1(None).await;
    for body in [
        "zz\r\n",
        "-1\r\n",
        "5\r\nabc\r\n0\r\n\r\n",
        "1\r\nab\r\n",
        "1\nа",
        "fffffffffffffffff\r\n",
        "1\r\na\r\n0\r\nHost: x\r\n\r\n",
    ] {
        let head = format!("POST /ok/p HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let answered = say(&world, addr, head.as_bytes()).await;
        assert!(matches!(status(&answered), 400), "{body:?}: {answered}");
        world.judge.wait(|e| e.stage == EventStage::Failed).await;
    }
}

#[tokio::test]
async fn paths_that_servers_read_differently() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    for path in [
        "/ok/../no",
        "/ok/./a",
        "/ok/%2e%2e/no",
        "/ok/%2E./no",
        "/ok/..%2fno",
        "/ok%2fa",
        "/ok/%5c..%5cno",
        "/ok\\a",
        "/ok//a",
        "//ok",
        "/ok/%",
        "/ok/%zz",
        "/ok/%252e",
        "/ok/%00",
        "/ok/%0d%0aX:y",
        "/ok/not",
        "/ok/%6eot",
        "/ok/not?x",
        "/no?/ok",
        "/OK",
    ] {
        let answered = say(&world, addr, format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answered), 403, "{path}: {answered}");
    }
    for path in ["/ok/a\x7f", "/ok/\u{e9}", "/ok#a", "ok", "/ok a"] {
        let answered = say(&world, addr, format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answered), 400, "{path}: {answered}");
    }
    assert!(seen.heads().is_empty());
    for path in ["/ok/a%20b", "/ok/", "/ok/a.b..c", "/ok?x=/../%2f", "/%6fk"] {
        let answered = say(&world, addr, format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        assert_eq!(status(&answered), 200, "{path}: {answered}");
    }
}

#[tokio::test]
async fn heads_are_bounded() {
    let world = World::new();
    let (addr, seen) = servers::http1(None).await;
    let long = format!("GET /ok HTTP/1.1\r\nHost: {HOST}\r\nX: {}\r\n\r\n", "a".repeat(70_000));
    assert_eq!(status(&say(&world, addr, long.as_bytes()).await), 431);
    let many = format!("GET /ok HTTP/1.1\r\nHost: {HOST}\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert_eq!(status(&say(&world, addr, many.as_bytes()).await), 431);
    assert!(seen.heads().is_empty());
}
