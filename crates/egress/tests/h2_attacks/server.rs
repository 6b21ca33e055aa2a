//! Hostile servers. An honest guest must learn the end of its request, and other requests must be served.

use super::frames::*;
use super::guest::Stage2;
use super::world::*;
use bytes::Bytes;
use egress::event::EventStage;
use h2::Reason;
use http::Request;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

type Requests = h2::client::SendRequest<Bytes>;

/// Acts once a request has arrived on that stream.
type Script = fn(Peer<TcpStream>, u32) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn listen(script: Script) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut preface = [0; PREFACE.len()];
                tokio::io::AsyncReadExt::read_exact(&mut tcp, &mut preface).await.unwrap();
                let mut server = Peer(tcp);
                server.say(&[frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat()).await;
                while let Some(got) = read_frame(&mut server.0).await {
                    if got.kind == HEADERS {
                        return script(server, got.id).await;
                    }
                }
            });
        }
    });
    addr
}

async fn client(world: &World, addr: SocketAddr) -> Requests {
    let (requests, connection) = h2::client::handshake(world.connect(addr, &[HOST])).await.unwrap();
    tokio::spawn(connection);
    requests
}

fn get(addr: SocketAddr, path: &str) -> Request<()> {
    Request::get(format!("http://{HOST}:{}{path}", addr.port())).body(()).unwrap()
}

/// Returns the end of an honest guest's request: status and whole body, or an error.
async fn ends(requests: &Requests, request: Request<()>) -> Result<(u16, Vec<u8>), h2::Error> {
    within(async {
        let mut requests = requests.clone().ready().await?;
        let response = requests.send_request(request, true)?.0.await?;
        let (parts, mut body) = response.into_parts();
        let mut text = Vec::new();
        while let Some(data) = body.data().await {
            let data = data?;
            let _ = body.flow_control().release_capacity(data.len());
            text.extend(data);
        }
        body.trailers().await?;
        Ok((parts.status.as_u16(), text))
    })
    .await
}

const OK: [u8; 1] = [0x88];

fn answer(id: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, id, &OK)
}

/// Keeps the connection open until the peer closes it.
async fn wait(mut server: Peer<TcpStream>) {
    while read_frame(&mut server.0).await.is_some() {}
}

// promise 6
#[tokio::test]
async fn floods_end_with_the_request() {
    let stage = Stage2::new().await;
    // The flag: whether the guest gets 502, and not only a reset.
    let scripts: [(&str, bool, Script); 11] = [
        ("continuations of nothing", true, |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, 0, id, &OK)).await;
                s.flood(&frame(CONTINUATION, 0, id, &[]), 200_000).await;
                wait(s).await;
            })
        }),
        ("continuations of much", true, |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, 0, id, &OK)).await;
                s.flood(&frame(CONTINUATION, 0, id, &literal(b"x", &[b'a'; 16_000])), 20_000).await;
                wait(s).await;
            })
        }),
        ("a head that unpacks", false, |mut s, id| {
            Box::pin(async move {
                let head = [&OK[..], &kept(b"x", &[b'a'; 4000]), &[0x80 | 62; 12_000]].concat();
                s.say(&frame(HEADERS, END_HEADERS, id, &head)).await;
                wait(s).await;
            })
        }),
        ("words before the answer", true, |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "103"), ("link", "</a>")])), 100_000)
                    .await;
                wait(s).await;
            })
        }),
        ("large words before the answer", true, |mut s, id| {
            Box::pin(async move {
                let head = [block(&[(":status", "103")]), literal(b"link", &[b'a'; 15_000])].concat();
                s.flood(&frame(HEADERS, END_HEADERS, id, &head), 10_000).await;
                wait(s).await;
            })
        }),
        ("a promise", true, |mut s, id| {
            Box::pin(async move {
                let promise = [&2u32.to_be_bytes()[..], &block(&[(":method", "GET"), (":path", "/")])].concat();
                s.flood(&frame(PUSH_PROMISE, END_HEADERS, id, &promise), 10_000).await;
                wait(s).await;
            })
        }),
        ("empty data", false, |mut s, id| {
            Box::pin(async move {
                s.say(&answer(id, 0)).await;
                s.flood(&frame(DATA, 0, id, &[]), 200_000).await;
                wait(s).await;
            })
        }),
        ("trailers without end", false, |mut s, id| {
            Box::pin(async move {
                s.say(&answer(id, 0)).await;
                s.say(&frame(HEADERS, END_STREAM, id, &block(&[("x", "y")]))).await;
                s.flood(&frame(CONTINUATION, 0, id, &literal(b"x", &[b'a'; 16_000])), 20_000).await;
                wait(s).await;
            })
        }),
        ("more than there is room for", false, |mut s, id| {
            Box::pin(async move {
                s.say(&answer(id, 0)).await;
                s.flood(&frame(DATA, 0, id, &[0; 16_000]), 20_000).await;
                wait(s).await;
            })
        }),
        ("data before a head", true, |mut s, id| {
            Box::pin(async move {
                s.say(&frame(DATA, END_STREAM, id, b"what")).await;
                wait(s).await;
            })
        }),
        ("streams of its own", true, |mut s, _| {
            Box::pin(async move {
                s.flood(&frame(HEADERS, END_HEADERS, 2, &OK), 10_000).await;
                wait(s).await;
            })
        }),
    ];
    for (what, heard, script) in scripts {
        let addr = listen(script).await;
        let requests = client(&stage.world, addr).await;
        let end = ends(&requests, get(addr, "/ok/x")).await;
        match &end {
            Ok((status, text)) => {
                assert_eq!(*status, 502, "{what}: {}", text.escape_ascii());
                assert!(String::from_utf8_lossy(text).contains("unavailable"), "{what}");
            }
            Err(error) => assert!(!heard || error.is_reset(), "{what}: {error}"),
        }
        stage.world.judge.wait(|e| e.address == Some(addr) && e.stage == EventStage::Failed).await;
        stage.others_are_served().await;
    }
}

/// Floods that violate no rule: they cost the server as much, and no other connection suffers.
// promise 6
#[tokio::test]
async fn floods_that_are_held() {
    let stage = Stage2::new().await;
    let scripts: [(&str, Script); 5] = [
        ("settings", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(SETTINGS, 0, 0, &setting(1, u32::MAX)), 200_000).await;
                s.say(&answer(id, END_STREAM)).await;
                wait(s).await;
            })
        }),
        ("pings", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(PING, 0, 0, &[0; 8]), 200_000).await;
                s.say(&answer(id, END_STREAM)).await;
                wait(s).await;
            })
        }),
        ("priorities", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(PRIORITY, 0, id, &[0, 0, 0, 0, 1]), 200_000).await;
                s.say(&answer(id, END_STREAM)).await;
                wait(s).await;
            })
        }),
        ("unknown frames", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(0xbe, 0, id, &[0; 100]), 200_000).await;
                s.say(&answer(id, END_STREAM)).await;
                wait(s).await;
            })
        }),
        ("resets", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(RST_STREAM, 0, id, &8u32.to_be_bytes()), 200_000).await;
                wait(s).await;
            })
        }),
    ];
    for (what, script) in scripts {
        let addr = listen(script).await;
        let requests = client(&stage.world, addr).await;
        let asking = tokio::spawn(async move { ends(&requests, get(addr, "/ok/x")).await });
        stage.others_are_served().await;
        let _ = asking.await.unwrap();
        stage.others_are_served().await;
        assert!(stage.grown() < ROOM, "{what} took {} KiB", stage.grown() >> 10);
    }
}

/// Malformed responses are not forwarded.
#[tokio::test]
async fn answers_that_are_none() {
    let stage = Stage2::new().await;
    let scripts: [(&str, Script); 9] = [
        ("no status", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[("x", "y")]))).await;
                wait(s).await;
            })
        }),
        ("a status that is a word", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "abc")]))).await;
                wait(s).await;
            })
        }),
        ("two", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "200"), (":status", "403")]))).await;
                wait(s).await;
            })
        }),
        ("a word that ends the stream", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS | END_STREAM, id, &block(&[(":status", "103")]))).await;
                wait(s).await;
            })
        }),
        ("a field of HTTP/1.x", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "200"), ("connection", "close")]))).await;
                wait(s).await;
            })
        }),
        ("large letters", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "200"), ("X-Y", "z")]))).await;
                wait(s).await;
            })
        }),
        ("a line break", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "200"), ("x", "y\r\nz: 1")]))).await;
                wait(s).await;
            })
        }),
        ("another protocol", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "101"), ("x", "y")]))).await;
                s.say(&frame(DATA, 0, id, b"something else")).await;
                wait(s).await;
            })
        }),
        ("a shorter body than was said", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, END_HEADERS, id, &block(&[(":status", "200"), ("content-length", "9")]))).await;
                s.say(&frame(DATA, END_STREAM, id, b"short")).await;
                wait(s).await;
            })
        }),
    ];
    for (what, script) in scripts {
        let addr = listen(script).await;
        let requests = client(&stage.world, addr).await;
        let end = ends(&requests, get(addr, "/ok/x")).await;
        assert!(matches!(&end, Ok((502, _)) | Err(_)), "{what}: {end:?}");
        stage.world.judge.wait(|e| e.address == Some(addr) && e.stage == EventStage::Failed).await;
        stage.others_are_served().await;
    }
}

/// GOAWAY names the requests that a server has not processed. They are refused so that the client retries them
/// elsewhere; requests in progress continue.
#[tokio::test]
async fn a_server_that_goes_away_gives_back_what_it_has_not_looked_at() {
    let stage = Stage2::new().await;
    let addr = listen(|mut s, id| {
        Box::pin(async move {
            // The first request is answered after the second was refused.
            while read_frame(&mut s.0).await.is_some_and(|f| f.kind != HEADERS) {}
            let last = [&id.to_be_bytes()[..], &0u32.to_be_bytes()].concat();
            s.say(&frame(GOAWAY, 0, 0, &last)).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            s.say(&answer(id, END_STREAM)).await;
            wait(s).await;
        })
    })
    .await;
    let requests = client(&stage.world, addr).await;
    let (first, second) = (requests.clone(), requests.clone());
    let first = tokio::spawn(async move { ends(&first, get(addr, "/ok/first")).await });
    stage.world.judge.wait(|e| e.path.as_deref() == Some("/ok/first") && e.stage == EventStage::Opened).await;
    let error = ends(&second, get(addr, "/ok/second")).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{error}");
    assert_eq!(first.await.unwrap().unwrap().0, 200);
    // The guest got GOAWAY as well.
    let third = ends(&requests, get(addr, "/ok/third")).await;
    assert!(third.as_ref().is_err_and(|e| e.is_go_away() || e.reason() == Some(Reason::REFUSED_STREAM)), "{third:?}");
    stage.others_are_served().await;
}

/// After GOAWAY with an error the requests fail: a retry would not help.
#[tokio::test]
async fn a_server_that_goes_away_in_anger() {
    let stage = Stage2::new().await;
    let addr = listen(|mut s, _| {
        Box::pin(async move {
            let angry = [0, 0, 0, 0, 0, 0, 0, 11];
            s.flood(&frame(GOAWAY, 0, 0, &[&angry[..], &[b'!'; 4000]].concat()), 1000).await;
            wait(s).await;
        })
    })
    .await;
    let requests = client(&stage.world, addr).await;
    assert!(matches!(ends(&requests, get(addr, "/ok/x")).await, Ok((502, _))));
    stage.others_are_served().await;
}

/// Servers that stall, each in its way. The guest waits for the configured timeout.
#[tokio::test]
async fn a_server_that_does_not_go_on() {
    let settings = egress::inspect::InspectorSettings { idle: Duration::from_millis(1000), ..Default::default() };
    let stage = Stage2::with(World::with(RULES, false, settings)).await;
    let scripts: [(&str, Script); 4] = [
        ("silence", |s, _| Box::pin(wait(s))),
        ("half a head", |mut s, id| {
            Box::pin(async move {
                s.say(&frame(HEADERS, 0, id, &OK)).await;
                wait(s).await;
            })
        }),
        ("room without end", |mut s, id| {
            Box::pin(async move {
                s.flood(&frame(WINDOW_UPDATE, 0, id, &0x7fff_ffffu32.to_be_bytes()), 10_000).await;
                wait(s).await;
            })
        }),
        ("no body", |mut s, id| {
            Box::pin(async move {
                s.say(&answer(id, 0)).await;
                wait(s).await;
            })
        }),
    ];
    for (what, script) in scripts {
        let addr = listen(script).await;
        let requests = client(&stage.world, addr).await;
        let end = ends(&requests, get(addr, "/ok/x")).await;
        assert!(matches!(&end, Ok((502, _)) | Err(_)), "{what}: {end:?}");
        stage.others_are_served().await;
    }
}
