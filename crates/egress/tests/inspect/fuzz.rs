//! Hostile guests and servers: real conversations, mutated from a seed. The inspector must not panic, every connection
//! must end, and no secret may come back. `COFFERDAM_FULL=1` tries a hundred times as many.

use super::servers;
use super::world::*;
use std::sync::Arc;
use std::time::Duration;
use testkit::sample::{self, Random, mutate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

/// Records the bytes of an HTTP/2 client with prior knowledge.
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

/// Rounds of 32 conversations at once.
const ROUNDS: u64 = 16;

fn impatient() -> egress::inspect::InspectorSettings {
    egress::inspect::InspectorSettings {
        head: Duration::from_millis(200),
        idle: Duration::from_millis(300),
        ..Default::default()
    }
}

#[tokio::test]
async fn mutated_conversations_end() {
    let seed = sample::seed();
    let mut random = Random(seed);
    let world = Arc::new(World::with(RULES, true, impatient()));
    let (old, _) = servers::http1(None).await;
    let (new, _) = servers::http2(None).await;
    let (secure, _) = servers::https(&world.servers).await;
    let seeds = seeds().await;
    for _ in 0..sample::times(ROUNDS, 100 * ROUNDS) {
        let mut round = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let which = random.below(seeds.len());
            let bytes = mutate(&seeds[which], &seeds[0], &WORDS, &mut random);
            let inside = random.below(4) == 0;
            let addr = if inside || which == 6 || which == 7 { secure } else { [old, new][usize::from(which == 8)] };
            let world = world.clone();
            round.spawn(async move {
                let kept = bytes.clone();
                let ended = tokio::time::timeout(Duration::from_secs(60), converse(&world, addr, bytes, inside)).await;
                (ended.is_ok(), kept)
            });
        }
        while let Some(done) = round.join_next().await {
            let (ended, bytes) = done.unwrap_or_else(|e| panic!("{e} with seed {seed}"));
            assert!(ended, "with seed {seed} this did not end: {}", bytes.escape_ascii());
        }
    }
    // The inspector still works, and only allowed requests reached the server.
    let mut guest = world.https(secure).await;
    assert_eq!(get(&mut guest, "/ok").await.status, 200);
}

/// Sends the bytes, perhaps inside TLS, and returns everything that comes back. The secret is never part of it.
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

/// Responses that contain the secret, in HTTP/1.x and, from the sixth on, in HTTP/2 to the first request of a
/// connection.
fn answers() -> Vec<Vec<u8>> {
    let ok = "HTTP/1.1 200 OK\r\n";
    let len = SECRET.len();
    let frame = |kind: u8, flags: u8, id: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id], payload].concat()
    };
    let field = |name: &str, value: &str| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    let told = field("x-told", SECRET);
    let greeting = [frame(4, 0, 0, b""), frame(4, 1, 0, b"")].concat();
    let words = [b"\x08\x03103".to_vec(), told.clone()].concat();
    let half = &SECRET.as_bytes()[..len / 2];
    vec![
        format!("{ok}X-Told: {SECRET}\r\nContent-Length: {len}\r\n\r\n{SECRET}").into_bytes(),
        format!("{ok}Transfer-Encoding: chunked\r\n\r\n{len:x}\r\n{SECRET}\r\n0\r\nX-T: {SECRET}\r\n\r\n").into_bytes(),
        format!("HTTP/1.1 103 Hints\r\nLink: {SECRET}\r\n\r\n{ok}\r\nuntil close: {SECRET}").into_bytes(),
        format!("HTTP/1.1 302 {SECRET}\r\nLocation: {SECRET}\r\nContent-Length: 0\r\n\r\n").into_bytes(),
        [
            b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x01",
            &[len as u8 / 2][..],
            half,
            &[0x89, 2, b'h', b'i', 0x80, (len - len / 2) as u8],
            &SECRET.as_bytes()[len / 2..],
        ]
        .concat(),
        [&greeting[..], &frame(1, 4, 1, &[&[0x88], &told[..]].concat()), &frame(0, 1, 1, SECRET.as_bytes())].concat(),
        [&greeting[..], &frame(1, 4, 1, &words), &frame(1, 5, 1, &[&[0x88], &told[..]].concat())].concat(),
        [
            &greeting[..],
            &frame(1, 4, 1, &[0x88]),
            &frame(0, 0, 1, half),
            &frame(6, 0, 0, &[0; 8]),
            &frame(0, 0, 1, &SECRET.as_bytes()[len / 2..]),
            &frame(1, 5, 1, &told),
        ]
        .concat(),
    ]
}

/// Serves one connection with these bytes, split at `cut`.
async fn answering(bytes: Vec<u8>, cut: usize) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        // Reads until the request is complete.
        let mut asked = vec![0; 16 * 1024];
        let _ = tcp.read(&mut asked).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        for piece in [&bytes[..cut], &bytes[cut..]] {
            let _ = tcp.write_all(piece).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = tcp.shutdown().await;
        let _ = tcp.read_to_end(&mut asked).await;
    });
    addr
}

#[tokio::test]
async fn mutated_answers_end_and_tell_no_secret() {
    const OF_HTTP1: usize = 5;
    let seed = sample::seed();
    let mut random = Random(seed);
    let world = Arc::new(World::with(RULES, true, impatient()));
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    let old = format!("GET /ok HTTP/1.1\r\nHost: {HOST}\r\n{upgrade}\r\n").into_bytes();
    let new = conversation2().await;
    let answers = answers();
    let mut masked = 0;
    for _ in 0..sample::times(ROUNDS, 100 * ROUNDS) {
        let mut round = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let which = random.below(answers.len());
            // An eighth of the inputs is not mutated.
            let bytes = if random.below(8) == 0 {
                answers[which].clone()
            } else {
                mutate(&answers[which], &answers[0], &WORDS, &mut random)
            };
            let cut = random.below(bytes.len() + 1);
            let request = if which < OF_HTTP1 { old.clone() } else { new.clone() };
            let addr = answering(bytes.clone(), cut).await;
            let world = world.clone();
            round.spawn(async move {
                let heard = tokio::time::timeout(Duration::from_secs(60), hear(&world, addr, &request)).await;
                (heard, bytes)
            });
        }
        while let Some(done) = round.join_next().await {
            let (heard, bytes) = done.unwrap_or_else(|e| panic!("{e} with seed {seed}"));
            let heard = heard.unwrap_or_else(|_| panic!("with seed {seed} this did not end: {}", bytes.escape_ascii()));
            let found = heard.windows(SECRET.len()).any(|w| w == SECRET.as_bytes());
            assert!(!found, "with seed {seed} the secret came through in {}", bytes.escape_ascii());
            // The control: some responses do pass, with the secret masked.
            masked += usize::from(heard.windows(8).any(|w| w == b"********"));
        }
    }
    assert!(masked > 0, "no answer came through with its secret masked");
}

async fn hear(world: &World, addr: std::net::SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = world.connect(addr, &[HOST]);
    let _ = stream.write_all(request).await;
    let mut back = Vec::new();
    let _ = stream.read_to_end(&mut back).await;
    back
}
