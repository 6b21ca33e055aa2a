//! HTTP/1.x responses of a hostile server. An honest guest gets an error for its request, and other requests are served
//! meanwhile.

use super::servers;
use super::world::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Serves `begin` once, and then `again` repeatedly, up to `most` bytes.
async fn listen(begin: Vec<u8>, again: Vec<u8>, most: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let (begin, again) = (begin.clone(), again.clone());
            tokio::spawn(async move {
                head(&mut tcp).await;
                let many = again.repeat(64 * 1024 / again.len().max(1) + 1);
                let mut said = 0;
                let mut going = tcp.write_all(&begin).await.is_ok();
                while going && said < most && !many.is_empty() {
                    going = tcp.write_all(&many).await.is_ok();
                    said += many.len();
                }
                // Stays open, so that only the peer can close it.
                let _ = tcp.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    addr
}

async fn control(world: &World, addr: SocketAddr) {
    assert_eq!(get(&mut world.connect(addr, &[HOST]), "/ok").await.status, 200);
}

#[tokio::test]
async fn heads_that_are_none() {
    let world = World::new();
    let (good, _) = servers::http1(None).await;
    let ok = "HTTP/1.1 200 OK\r\n";
    let none = "Content-Length: 0\r\n\r\n";
    for said in [
        "\r\n\r\n".to_owned(),
        "hello\r\n\r\n".to_owned(),
        format!("HTTP/2 200 OK\r\n{none}"),
        format!("HTTP/1.1 99 OK\r\n{none}"),
        format!("HTTP/1.1 2000 OK\r\n{none}"),
        format!("HTTP/1.1 2OO OK\r\n{none}"),
        format!("HTTP/1.1  200 OK\r\n{none}"),
        format!("HTTP/1.1 200 O\0K\r\n{none}"),
        format!("{ok}X: y\nZ: 1\r\n{none}"),
        format!("{ok}X: y\rZ: 1\r\n{none}"),
        format!("{ok} X: y\r\n{none}"),
        format!("{ok}X: y\r\n folded\r\n{none}"),
        format!("{ok}X : y\r\n{none}"),
        format!("{ok}X\r\n{none}"),
        format!("{ok}Content-Length: 0\r\n{none}"),
        format!("{ok}Content-Length: 5\r\n{none}"),
        format!("{ok}Transfer-Encoding: chunked\r\n{none}"),
        format!("{ok}Transfer-Encoding: gzip, chunked\r\n\r\n"),
        format!("{ok}Content-Length: -1\r\n\r\n"),
        format!("{ok}Content-Length: 1e3\r\n\r\n"),
        format!("{ok}Content_Length: 5\r\n{none}"),
        "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".to_owned(),
        "HTTP/1.1 103 Hints\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
    ] {
        let addr = listen(said.clone().into_bytes(), Vec::new(), 0).await;
        let answered = get(&mut world.connect(addr, &[HOST]), "/ok").await;
        assert_eq!((answered.status, answered.json()["error_kind"].as_str()), (502, Some("unavailable")), "{said:?}");
        control(&world, good).await;
    }
}

#[tokio::test]
async fn heads_without_end() {
    let world = World::with_secret();
    let (good, _) = servers::http1(None).await;
    const MUCH: usize = 64 << 20;
    let ok = b"HTTP/1.1 200 OK\r\n".to_vec();
    for (begin, again) in [
        (ok.clone(), b"X: y\r\n".to_vec()),
        (ok.clone(), b"x".to_vec()),
        ([&ok[..], b"X: "].concat(), b"aaaaaaaaaaaaaaaa".to_vec()),
        (b"HTTP/1.1 200 ".to_vec(), b"aaaaaaaaaaaaaaaa".to_vec()),
        (Vec::new(), b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec()),
        (Vec::new(), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
    ] {
        let addr = listen(begin, again.clone(), MUCH).await;
        let mut guest = world.connect(addr, &[HOST]);
        send(&mut guest, format!("GET /ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        let mut told = Vec::new();
        within(guest.read_to_end(&mut told)).await.unwrap();
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains("HTTP/1.1 502 ") && told.len() < 16 * 1024, "{} {told}", again.escape_ascii());
        control(&world, good).await;
    }
    let spent = world.judge.spent.0.load(std::sync::atomic::Ordering::SeqCst);
    assert!(spent < 8 << 20, "{spent} bytes were taken from the servers");
}

#[tokio::test]
async fn chunks_that_are_none() {
    let world = World::new();
    let (good, _) = servers::http1(None).await;
    let ok = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (begin, again) in [
        ("zz\r\n", ""),
        ("-1\r\nx\r\n", ""),
        ("1\nx\n0\n\n", ""),
        ("1\r\nxy\r\n", ""),
        ("fffffffffffffffff\r\n", ""),
        ("", "0"),
        ("1;", "a"),
        ("0\r\n", "X: y\r\n"),
        ("0\r\nX: ", "yyyyyyyy"),
        ("", "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n"),
        ("0\r\nContent-Length: 5\r\n\r\n", ""),
        ("0\r\nX: y\nZ: 1\r\n\r\n", ""),
    ] {
        let addr = listen(format!("{ok}{begin}").into_bytes(), again.as_bytes().to_vec(), 16 << 20).await;
        let mut guest = world.connect(addr, &[HOST]);
        send(&mut guest, format!("GET /ok HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await;
        let mut told = Vec::new();
        let _ = within(guest.read_to_end(&mut told)).await;
        // The truncated body is not a complete one.
        assert!(!told.ends_with(b"0\r\n\r\n") && told.len() < 64 * 1024, "{begin:?} {again:?} {}", told.escape_ascii());
        control(&world, good).await;
    }
}
