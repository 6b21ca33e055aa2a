//! HTTP/2 through the inspector.

use super::servers::{self, send2};
use super::world::*;
use bytes::Bytes;
use egress::event::EventStage;
use h2::Reason;
use http::{HeaderMap, Request};
use std::net::SocketAddr;
use std::time::Duration;

type Requests = h2::client::SendRequest<Bytes>;

fn request(method: &str, addr: SocketAddr, path: &str) -> Request<()> {
    let uri = format!("https://{HOST}:{}{path}", addr.port());
    Request::builder().method(method).uri(uri).body(()).unwrap()
}

/// Sends a request without a body, and returns status, headers, body and trailers of the response.
pub async fn fetch(requests: &Requests, request: Request<()>) -> (u16, HeaderMap, String, HeaderMap) {
    within(async {
        let mut requests = requests.clone().ready().await.unwrap();
        let response = requests.send_request(request, true).unwrap().0.await.unwrap();
        let (parts, body) = response.into_parts();
        let (text, trailers) = read(body).await;
        (parts.status.as_u16(), parts.headers, text, trailers)
    })
    .await
}

async fn read(mut body: h2::RecvStream) -> (String, HeaderMap) {
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        text.extend(data);
    }
    let trailers = body.trailers().await.unwrap().unwrap_or_default();
    (String::from_utf8_lossy(&text).into_owned(), trailers)
}

#[tokio::test]
async fn requests_are_judged_one_by_one() {
    let world = World::new();
    let (addr, seen) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    assert_eq!(fetch(&requests, request("GET", addr, "/ok/a?b")).await.0, 200);
    let (status, headers, text, _) = fetch(&requests, request("GET", addr, "/no")).await;
    assert_eq!((status, headers["cofferdam-rule"].to_str().unwrap()), (403, "defaults.net"));
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["error_kind"], "policy_denied");
    assert_eq!(fetch(&requests, request("GET", addr, "/warn")).await.0, 200);
    assert_eq!(fetch(&requests, request("DELETE", addr, "/ok")).await.0, 403);
    assert_eq!(fetch(&requests, request("HEAD", addr, "/ok")).await.0, 200);
    assert_eq!(fetch(&requests, request("HEAD", addr, "/no")).await.0, 403);
    assert_eq!((seen.heads().len(), seen.connections()), (3, 1));
    world.judge.wait(|e| e.path.as_deref() == Some("/ok/a?b") && e.stage == EventStage::Closed && e.bytes_in > 0).await;
}

#[tokio::test]
async fn many_at_once() {
    let world = World::new();
    let (addr, seen) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    let mut all = tokio::task::JoinSet::new();
    for i in 0..300 {
        let requests = requests.clone();
        let path = if i % 3 == 0 { format!("/no/{i}") } else { format!("/ok/bulk?n={}", i * 100) };
        let request = request("GET", addr, &path);
        all.spawn(async move { (i, fetch(&requests, request).await) });
    }
    while let Some(done) = within(all.join_next()).await {
        let (i, (status, _, text, _)) = done.unwrap();
        let wanted = if i % 3 == 0 { (403, text.len()) } else { (200, i * 100) };
        assert_eq!((status, text.len()), wanted, "{i}");
    }
    assert_eq!(seen.connections(), 1);
}

#[tokio::test]
async fn streams_flow_both_ways_at_once() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let mut requests = world.http2(addr).await.ready().await.unwrap();
    let mut opening = request("POST", addr, "/ok/both-ways");
    opening.headers_mut().insert("te", "trailers".parse().unwrap());
    opening.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let (response, mut out) = requests.send_request(opening, false).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    for text in ["one", "two", "three"] {
        send2(&mut out, text.into()).await;
        let data = within(body.data()).await.unwrap().unwrap();
        assert_eq!(data, text);
        let _ = body.flow_control().release_capacity(data.len());
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "3".parse().unwrap());
    out.send_trailers(trailers).unwrap();
    let (rest, trailers) = within(read(body)).await;
    assert_eq!(
        (rest.as_str(), &trailers["grpc-status"], &trailers["x-sum"]),
        ("", &"0".parse().unwrap(), &"3".parse().unwrap())
    );
}

#[tokio::test]
async fn bodies_are_not_gathered() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let mut requests = world.http2(addr).await.ready().await.unwrap();
    let (response, _) = requests.send_request(request("GET", addr, "/ok/bulk?n=100000000"), true).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    within(body.data()).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The guest reads nothing here, so back-pressure stops the server early.
    let spent = world.judge.spent.0.load(std::sync::atomic::Ordering::SeqCst);
    assert!(spent < 8 << 20, "{spent} bytes were taken from the server");
}

#[tokio::test]
async fn ends_are_passed_on() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    let mut ready = requests.clone().ready().await.unwrap();
    let error = within(ready.send_request(request("GET", addr, "/ok/reset"), true).unwrap().0).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    // A client that resets its stream.
    let mut ready = requests.clone().ready().await.unwrap();
    let (response, mut out) = ready.send_request(request("POST", addr, "/ok/never"), false).unwrap();
    world.judge.wait(|e| e.path.as_deref() == Some("/ok/never") && e.stage == EventStage::Opened).await;
    out.send_reset(Reason::CANCEL);
    drop(response);
    world.judge.wait(|e| e.path.as_deref() == Some("/ok/never") && e.stage == EventStage::Failed).await;
    // The connection continues.
    assert_eq!(fetch(&requests, request("GET", addr, "/ok")).await.0, 200);
}

#[tokio::test]
async fn a_client_that_only_begins_and_ends_leaves_nothing_behind() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let mut requests = world.http2(addr).await;
    for i in 0..3000 {
        let Ok(ready) = within(requests.ready()).await else {
            break;
        };
        requests = ready;
        let Ok((_, mut out)) = requests.send_request(request("POST", addr, "/ok/never"), false) else {
            break;
        };
        if i % 50 == 0 {
            // Long enough for the request to be sent.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
        out.send_reset(Reason::CANCEL);
    }
    let counts = || {
        let stages = world.judge.stages();
        let opened = stages.iter().filter(|(s, _)| *s == EventStage::Opened).count();
        let ended = stages.iter().filter(|(s, _)| matches!(s, EventStage::Closed | EventStage::Failed)).count();
        (opened, ended)
    };
    let all_ended = |(opened, ended): (usize, usize)| opened > 30 && ended >= opened;
    for _ in 0..3000 {
        if all_ended(counts()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(all_ended(counts()), "(opened, ended): {:?}", counts());
    // The control: another connection is served.
    let requests = world.http2(addr).await;
    assert_eq!(fetch(&requests, request("GET", addr, "/ok")).await.0, 200);
}

#[tokio::test]
async fn a_server_that_goes_away_takes_the_client_along() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    assert_eq!(fetch(&requests, request("GET", addr, "/ok/goaway")).await.0, 200);
    // After GOAWAY the client cannot open another stream.
    let mut gone = false;
    for _ in 0..3000 {
        gone = requests.clone().ready().await.is_err();
        if gone {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(gone);
}

#[tokio::test]
async fn a_server_may_say_a_word_before_its_answer() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let mut requests = world.http2(addr).await.ready().await.unwrap();
    let (mut response, _) = requests.send_request(request("GET", addr, "/ok/hints"), true).unwrap();
    let word = within(std::future::poll_fn(|cx| response.poll_informational(cx))).await.unwrap().unwrap();
    assert_eq!((word.status().as_u16(), word.headers()["link"].to_str().unwrap()), (103, "</a>"));
    assert_eq!(within(response).await.unwrap().status(), 200);
}

#[tokio::test]
async fn without_tls_too() {
    let world = World::new();
    let (addr, _) = servers::http2(None).await;
    let (mut requests, connection) = h2::client::handshake(world.connect(addr, &[HOST])).await.unwrap();
    tokio::spawn(connection);
    for (path, status) in [("/ok", 200), ("/no", 403)] {
        let uri = format!("http://{HOST}:{}{path}", addr.port());
        requests = requests.ready().await.unwrap();
        let request = Request::get(uri).body(()).unwrap();
        assert_eq!(within(requests.send_request(request, true).unwrap().0).await.unwrap().status(), status);
    }
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    let world = World::new();
    let (addr, seen) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    let with = |name: &'static str, value: &str| {
        let mut request = request("GET", addr, "/ok");
        request.headers_mut().append(name, value.parse().unwrap());
        request
    };
    let elsewhere = |authority: &str| Request::get(format!("https://{authority}/ok")).body(()).unwrap();
    let mut twice = with("content-length", "0");
    twice.headers_mut().append("content-length", "0".parse().unwrap());
    for (request, status) in [
        (with("host", OTHER), 400),
        (with("host", "evil"), 400),
        (with("content_length", "5"), 400),
        (with("transfer_encoding", "chunked"), 400),
        (twice, 400),
        (elsewhere(OTHER), 421),
        (elsewhere("evil.example.org"), 421),
        (elsewhere("user@api.example.org"), 400),
        (elsewhere("0x7f.1"), 400),
        (elsewhere("api.example.org:1"), 421),
        (request("get", addr, "/ok"), 501),
        (request("GET", addr, "/ok/%2e%2e/no"), 403),
        (request("GET", addr, "/ok//x"), 403),
        (request("GET", addr, "/ok/..%2fno"), 403),
        (request("GET", addr, "/ok/%"), 403),
    ] {
        let told = format!("{request:?}");
        assert_eq!(fetch(&requests, request).await.0, status, "{told}");
    }
    let connect = Request::connect(format!("{HOST}:{}", addr.port())).body(()).unwrap();
    assert_eq!(fetch(&requests, connect).await.0, 405);
    assert!(seen.heads().is_empty());
    // The controls.
    assert_eq!(fetch(&requests, with("host", &format!("{HOST}:{}", addr.port()))).await.0, 200);
    assert_eq!(fetch(&requests, elsewhere("API.Example.org")).await.0, 200);
}

#[tokio::test]
async fn other_rules_cut_what_they_forbid() {
    let world = World::new();
    let (addr, _) = servers::https2(&world.servers).await;
    let requests = world.http2(addr).await;
    let mut ready = requests.clone().ready().await.unwrap();
    let (response, mut out) = ready.send_request(request("POST", addr, "/ok/both-ways"), false).unwrap();
    let mut body = within(response).await.unwrap().into_body();
    send2(&mut out, "a".into()).await;
    within(body.data()).await.unwrap().unwrap();
    world.judge.replace(r#"{"action":"allow","host":"api.example.org","paths":["/other"]}"#);
    assert!(within(body.data()).await.unwrap().is_err());
    assert_eq!(fetch(&requests, request("GET", addr, "/ok")).await.0, 403);
    assert_eq!(fetch(&requests, request("GET", addr, "/other")).await.0, 200);
}
