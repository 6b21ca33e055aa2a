//! A hostile guest, many times over: real conversations, mutated from a seed for a while. Nothing may panic, and every
//! connection must end. `COFFERDAM_FUZZ_SECONDS` says how long (2 by default), `COFFERDAM_FUZZ_SEED` repeats a run.

use super::servers;
use super::world::*;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A small generator; the same seed gives the same run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

const WORDS: [&[u8]; 14] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: api.example.org\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"HTTP/1.0",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08",
    b"\x00\x00\x00\x04\x01\x00\x00\x00\x00",
];

fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
            4 => {
                let end = (at + random.below(40)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => {
                let end = (at + random.below(20)).min(bytes.len());
                drop(bytes.drain(at..end));
            }
        }
    }
    bytes
}

/// What an HTTP/2 client says when it knows what it wants.
async fn conversation2() -> Vec<u8> {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let (mut requests, connection) = h2::client::handshake(ours).await.unwrap();
    let driving = tokio::spawn(connection);
    for (method, path) in [("GET", "/ok"), ("POST", "/ok/p"), ("GET", "/no")] {
        let request = http::Request::builder().method(method).uri(format!("http://{HOST}{path}")).body(()).unwrap();
        let (_, mut out) = requests.send_request(request, false).unwrap();
        out.send_data(bytes::Bytes::from_static(b"hello"), true).unwrap();
    }
    let mut said = vec![0; 64 * 1024];
    tokio::time::sleep(Duration::from_millis(50)).await;
    let len = theirs.read(&mut said).await.unwrap();
    said.truncate(len);
    driving.abort();
    said
}

async fn seeds() -> Vec<Vec<u8>> {
    let host = format!("Host: {HOST}\r\n");
    vec![
        format!("GET /ok HTTP/1.1\r\n{host}\r\nGET /no HTTP/1.1\r\n{host}\r\n").into_bytes(),
        format!("POST /ok/p HTTP/1.1\r\n{host}Content-Length: 5\r\n\r\nhelloHEAD /ok HTTP/1.1\r\n{host}\r\n")
            .into_bytes(),
        format!("POST /ok/p HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n")
            .into_bytes(),
        format!("GET /ok/ws HTTP/1.1\r\n{host}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes").into_bytes(),
        format!("GET /ok/tell HTTP/1.1\r\n{host}Authorization: {PLACEHOLDER}\r\n\r\n").into_bytes(),
        format!("POST /ok/continue HTTP/1.0\r\n{host}Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx").into_bytes(),
        hello_of("curl"),
        hello_of("openssl-fragmented"),
        conversation2().await,
    ]
}

#[tokio::test]
async fn mutated_conversations_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = number("COFFERDAM_FUZZ_SECONDS").unwrap_or(2);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("COFFERDAM_FUZZ_SEED").unwrap_or(now);
    let mut random = Random(seed);
    let settings = egress::inspect::Settings {
        head: Duration::from_millis(200),
        idle: Duration::from_millis(300),
        ..Default::default()
    };
    let world = Arc::new(World::with(RULES, true, settings));
    let (old, _) = servers::http1(None).await;
    let (new, _) = servers::http2(None).await;
    let (secure, _) = servers::https(&world.servers).await;
    let seeds = seeds().await;
    let (until, mut tried) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < until {
        let mut round = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let which = random.below(seeds.len());
            let bytes = mutated(&seeds[which], &mut random);
            let inside = random.below(4) == 0;
            let addr = if inside || which == 6 || which == 7 { secure } else { [old, new][usize::from(which == 8)] };
            let world = world.clone();
            round.spawn(async move {
                let kept = bytes.clone();
                let ended = tokio::time::timeout(Duration::from_secs(20), converse(&world, addr, bytes, inside)).await;
                (ended.is_ok(), kept)
            });
            tried += 1;
        }
        while let Some(done) = round.join_next().await {
            let (ended, bytes) = done.unwrap_or_else(|e| panic!("{e} with seed {seed}"));
            assert!(ended, "with seed {seed} this did not end: {}", bytes.escape_ascii());
        }
    }
    assert!(tried >= 32, "{tried} conversations");
    // Whatever was said, nobody but the allowed was reached, and the inspector still works.
    let mut guest = world.https(secure).await;
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
}

/// Says the bytes, perhaps inside TLS, and hears all that comes until the end. The secret is never part of it.
async fn converse(world: &World, addr: std::net::SocketAddr, bytes: Vec<u8>, inside: bool) {
    let stream = world.connect(addr, &[HOST]);
    let mut back = Vec::new();
    if inside {
        let mut tls = world.guest_tls(stream, HOST, &["http/1.1"]).await.unwrap();
        let _ = tls.write_all(&bytes).await;
        let _ = tls.shutdown().await;
        let _ = tls.read_to_end(&mut back).await;
    } else {
        let mut stream = stream;
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut back).await;
    }
    let found = back.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
    assert!(!found, "the secret came back for {}", bytes.escape_ascii());
}
