//! Ambiguous requests in handmade frames. None of them may reach the server, and following requests on the same
//! connection are served.

use super::frames::*;
use super::guest::Stage2;
use super::world::*;

/// Builds the usual request with some fields changed; `None` removes a field.
fn changed(stage: &Stage2, changes: &[(&str, Option<&str>)], more: &[(&str, &str)]) -> Vec<u8> {
    let authority = format!("{HOST}:{}", stage.addr.port());
    let usual = [(":method", "GET"), (":scheme", "http"), (":path", "/ok/a"), (":authority", &authority)];
    let said = usual.iter().filter_map(|(name, value)| {
        let change = changes.iter().find(|(changed, _)| changed == name);
        change.map_or(Some((*name, *value)), |(_, value)| value.map(|value| (*name, value)))
    });
    let said: Vec<(&str, &str)> = said.chain(more.iter().copied()).collect();
    block(&said)
}

/// Sends each head on one connection, and checks that no response comes from the server.
async fn refused(stage: &Stage2, heads: &[Vec<u8>]) {
    let before = stage.reached();
    let mut guest = stage.guest().await;
    for (i, head) in heads.iter().enumerate() {
        let id = 4 * u32::try_from(i).unwrap() + 1;
        guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, id, head)).await;
        let fate = guest.fate(id).await;
        match &fate {
            Fate::Answered(text) => assert!(text.contains("error_kind"), "{}: {fate:?}", head.escape_ascii()),
            Fate::Reset(reason) => assert_ne!(*reason, 0, "{}", head.escape_ascii()),
            // Invalid HTTP also may end the connection.
            Fate::Gone(reason) => {
                assert!(reason.is_some_and(|reason| reason != 0), "{}: {fate:?}", head.escape_ascii());
                guest = stage.guest().await;
            }
        }
        assert_eq!(stage.reached(), before, "{}", head.escape_ascii());
        // The control: the next request is served.
        guest.say(&stage.get(id + 2, "/ok/control")).await;
        assert!(matches!(guest.fate(id + 2).await, Fate::Answered(text) if text.starts_with('{')));
    }
}

// promise 6
#[tokio::test]
async fn whom_a_request_is_for() {
    let stage = Stage2::new().await;
    let port = stage.addr.port();
    let with_host = |host: &str| changed(&stage, &[], &[("host", host)]);
    let only_host = |host: &str| changed(&stage, &[(":authority", None)], &[("host", host)]);
    let authority = |said: &str| changed(&stage, &[(":authority", Some(said))], &[]);
    refused(
        &stage,
        &[
            with_host(OTHER),
            with_host(&format!("{HOST}:1")),
            with_host(""),
            with_host("api.example.org, evil.example.org"),
            with_host("api.example.org\t"),
            changed(&stage, &[], &[("host", HOST), ("host", OTHER)]),
            changed(&stage, &[(":authority", None)], &[]),
            only_host(OTHER),
            only_host("user@api.example.org"),
            authority(OTHER),
            authority("api.example.org.evil.example.org"),
            authority("api.example.org:1"),
            authority("api.example.org:"),
            authority("user@api.example.org"),
            authority("api.example.org@evil.example.org"),
            authority("api.example.org/ok"),
            authority("api.example.org?x"),
            authority("api.example.org#x"),
            authority("api.example.org evil"),
            authority("api.example.org\0"),
            authority("api.example.org\r\nx: y"),
            authority("http://api.example.org"),
            authority("[::1"),
            authority("0x7f.1"),
            authority("ａpi.example.org"),
            authority(""),
        ],
    )
    .await;
    // The controls: host in one place or in both, and in any case.
    let mut guest = stage.guest().await;
    let named = format!("{HOST}:{port}");
    for (i, head) in [only_host(&named), with_host(&named), authority("API.example.ORG"), with_host("API.EXAMPLE.ORG.")]
        .iter()
        .enumerate()
    {
        let id = 2 * i as u32 + 1;
        guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, id, head)).await;
        let fate = guest.fate(id).await;
        let served = matches!(&fate, Fate::Answered(text) if text.starts_with("{\"") && !text.contains("error_kind"))
            || fate == Fate::Answered("{}".to_owned());
        // Without a port the Host field differs from the authority.
        assert_eq!(served, i != 3, "{}: {fate:?}", head.escape_ascii());
    }
    assert!(stage.seen.heads().iter().all(|head| head.contains(&format!("http://{HOST}:{port}/"))));
}

// promise 6
#[tokio::test]
async fn what_a_request_is_for() {
    let stage = Stage2::new().await;
    let path = |said: &str| changed(&stage, &[(":path", Some(said))], &[]);
    refused(
        &stage,
        &[
            path("/no"),
            path("/ok/../no"),
            path("/ok/./a"),
            path("/ok/%2e%2e/no"),
            path("/ok/%2E%2e/no"),
            path("/ok/..%2fno"),
            path("/ok%2fa"),
            path("/ok/%5c..%5cno"),
            path("/ok\\a"),
            path("/ok//a"),
            path("//ok/a"),
            path("/ok/..;/no"),
            path("/ok/..;x=y/no"),
            path("/ok/..%3b/no"),
            path("/ok/not;x"),
            path("/ok/;/no"),
            path("/ok/%"),
            path("/ok/%zz"),
            path("/ok/%00"),
            path("/ok/%252e%252e/no"),
            path("/ok/%0d%0ax:y"),
            path("/ok/not"),
            path("/ok/not#/ok/a"),
            path("/ok/not?/ok/a"),
            path("/no?/ok"),
            path("/no#/ok"),
            path("/OK"),
            path("/ok /a"),
            path("/ok\t"),
            path("/ok\0"),
            path("/ok\r\nx: y"),
            path("/ok HTTP/1.1\r\nhost: evil\r\n\r\n"),
            path("/ok/\u{e9}"),
            path("/ok/\u{7f}"),
            path("ok"),
            path(""),
            path("*"),
            path("http://evil.example.org/ok"),
            path("http://api.example.org/ok"),
            path("?ok"),
            changed(&stage, &[(":path", None)], &[]),
        ],
    )
    .await;
    // The controls.
    let mut guest = stage.guest().await;
    let good = ["/ok/a%20b", "/ok/", "/ok/a..b", "/ok?x=/../%2f;", "/%6fk", "/ok/a:b@c,d=e+f!$&'()*~"];
    for (i, said) in good.iter().enumerate() {
        let id = 2 * i as u32 + 1;
        guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, id, &path(said))).await;
        assert!(matches!(guest.fate(id).await, Fate::Answered(text) if !text.contains("error_kind")), "{said}");
    }
    assert_eq!(stage.reached(), good.len());
}

// promise 6
#[tokio::test]
async fn how_a_request_says_it() {
    let stage = Stage2::new().await;
    let with = |name: &str, value: &str| changed(&stage, &[], &[(name, value)]);
    let scheme = |said: &str| changed(&stage, &[(":scheme", Some(said))], &[]);
    let method = |said: &str| changed(&stage, &[(":method", Some(said))], &[]);
    let twice = |name: &str, value: &str| [changed(&stage, &[], &[]), block(&[(name, value)])].concat();
    let late = [block(&[("x", "y")]), changed(&stage, &[], &[])].concat();
    refused(
        &stage,
        &[
            scheme("https"),
            scheme("ftp"),
            scheme(""),
            scheme("http://evil/"),
            changed(&stage, &[(":scheme", None)], &[]),
            method("get"),
            method("DELETE"),
            method("CONNECT"),
            method("GET /no HTTP/1.1\r\nx:"),
            method("GET "),
            method(""),
            method(&"A".repeat(100)),
            changed(&stage, &[(":method", None)], &[]),
            // Tunnels: plain CONNECT, and extended CONNECT of RFC 8441.
            changed(&stage, &[(":method", Some("CONNECT")), (":scheme", None), (":path", None)], &[]),
            changed(&stage, &[(":method", Some("CONNECT"))], &[(":protocol", "websocket")]),
            with(":protocol", "websocket"),
            // Pseudo-header fields that are duplicate, late or unknown.
            twice(":path", "/no"),
            twice(":method", "DELETE"),
            twice(":authority", OTHER),
            twice(":scheme", "http"),
            late,
            with(":status", "200"),
            with(":what", "x"),
            // Fields of HTTP/1.x.
            with("connection", "close"),
            with("connection", "content-length"),
            with("keep-alive", "5"),
            with("proxy-connection", "close"),
            with("transfer-encoding", "chunked"),
            with("transfer_encoding", "chunked"),
            with("upgrade", "h2c"),
            with("te", "gzip"),
            // Fields that would change the message in HTTP/1.x.
            with("content-length", "5"),
            with("content-length", "-1"),
            with("content-length", "+0"),
            with("content-length", "0x0"),
            with("content_length", "5"),
            changed(&stage, &[], &[("content-length", "0"), ("content-length", "5")]),
            changed(&stage, &[], &[("content-length", "0"), ("content-length", "0")]),
            with("x", "y\r\nhost: evil"),
            with("x", "y\nz: 1"),
            with("x", "y\0"),
            with("x\r\nhost", "evil"),
            with("x y", "z"),
            with("x:y", "z"),
            with("", "z"),
            with("X-Upper", "z"),
            with("HOST", OTHER),
        ],
    )
    .await;
    assert_eq!(stage.reached(), 0);
}

// promise 6
#[tokio::test]
async fn a_body_that_is_not_what_was_said() {
    let stage = Stage2::new().await;
    let post = |len: &str| {
        changed(&stage, &[(":method", Some("POST")), (":path", Some("/ok/never"))], &[("content-length", len)])
    };
    let mut guest = stage.guest().await;
    // More data than declared, and less.
    for (id, said, sent) in [(1, "3", &b"more than that"[..]), (3, "100", b"short")] {
        guest.say(&frame(HEADERS, END_HEADERS, id, &post(said))).await;
        guest.say(&frame(DATA, END_STREAM, id, sent)).await;
        assert!(matches!(guest.fate(id).await, Fate::Reset(1)), "{said}");
    }
    // Trailers that would belong in the head.
    for (id, name, value) in [
        (5, "host", OTHER),
        (7, "content-length", "5"),
        (9, "transfer-encoding", "chunked"),
        (13, "content_length", "5"),
        (15, "trailer", "x"),
        (17, "connection", "close"),
    ] {
        let opening = changed(&stage, &[(":method", Some("POST")), (":path", Some("/ok/never"))], &[]);
        guest.say(&frame(HEADERS, END_HEADERS, id, &opening)).await;
        guest.say(&frame(DATA, 0, id, b"body")).await;
        guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, id, &block(&[(name, value)]))).await;
        let fate = guest.fate(id).await;
        assert!(matches!(fate, Fate::Reset(1)), "{name}: {value}: {fate:?}");
    }
    stage.all_ends().await;
    // The control, on the same connection.
    let opening =
        changed(&stage, &[(":method", Some("POST")), (":path", Some("/ok/both-ways"))], &[("content-length", "4")]);
    guest.say(&frame(HEADERS, END_HEADERS, 21, &opening)).await;
    guest.say(&frame(DATA, 0, 21, b"body")).await;
    guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 21, &block(&[(":path", "/no"), ("x-sum", "1")]))).await;
    // The late path in the trailers is dropped.
    assert_eq!(guest.fate(21).await, Fate::Answered("body".to_owned()));
}

/// Rules judge the method of the request line. Method override fields are up to the server.
#[tokio::test]
async fn a_method_in_a_field_is_a_field() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    let head = changed(&stage, &[(":method", Some("POST"))], &[("x-http-method-override", "DELETE")]);
    guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head)).await;
    assert!(
        matches!(guest.fate(1).await, Fate::Answered(text) if text.contains("DELETE") && !text.contains("error_kind"))
    );
    assert!(stage.seen.heads().iter().any(|head| head.starts_with("POST ")));
}
