//! Floods by a hostile guest, each with the CVE it is known by.

use super::frames::*;
use super::servers::{self, Seen};
use super::world::*;
use egress::event::EventStage;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::io::DuplexStream;

pub type Guest = Peer<DuplexStream>;

pub const FLOW_CONTROL_ERROR: u32 = 3;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A world, a server, and a guest that has sent its preface. An honest guest is served before and after.
pub struct Stage2 {
    pub world: World,
    pub addr: SocketAddr,
    pub seen: Seen,
    watch: Watch,
}

impl Stage2 {
    pub async fn new() -> Stage2 {
        Stage2::with(World::new()).await
    }

    pub async fn with(world: World) -> Stage2 {
        let watch = Watch::begin();
        let (addr, seen) = servers::http2(None).await;
        let stage = Stage2 { world, addr, seen, watch };
        stage.others_are_served().await;
        stage
    }

    pub async fn guest(&self) -> Guest {
        self.guest_with(&[]).await
    }

    pub async fn guest_with(&self, settings: &[u8]) -> Guest {
        let mut guest = Peer(self.world.connect(self.addr, &[HOST]));
        assert!(guest.say(&[PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()).await);
        guest
    }

    pub fn fields(&self, method: &str, path: &str) -> Vec<u8> {
        let authority = format!("{HOST}:{}", self.addr.port());
        block(&[(":method", method), (":scheme", "http"), (":path", path), (":authority", &authority)])
    }

    pub fn get(&self, id: u32, path: &str) -> Vec<u8> {
        frame(HEADERS, END_HEADERS | END_STREAM, id, &self.fields("GET", path))
    }

    /// The control: an honest guest is served.
    pub async fn others_are_served(&self) {
        let mut guest = self.guest().await;
        guest.say(&self.get(1, "/ok/control")).await;
        assert!(matches!(guest.fate(1).await, Fate::Answered(text) if text.starts_with('{')));
    }

    pub fn grown(&self) -> usize {
        self.watch.grown()
    }

    /// Number of requests that reached the server, without those of the controls.
    pub fn reached(&self) -> usize {
        self.seen.heads().iter().filter(|head| !head.contains("/ok/control")).count()
    }

    /// Waits until all opened requests have ended.
    pub async fn all_ends(&self) {
        for _ in 0..6000 {
            let stages = self.world.judge.stages();
            let opened = stages.iter().filter(|(stage, _)| *stage == EventStage::Opened).count();
            let ended = stages.iter().filter(|(s, _)| matches!(s, EventStage::Closed | EventStage::Failed)).count();
            if ended >= opened {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("something that was opened does not end");
    }
}

/// CVE-2023-44487: rapid reset.
// promise 6
#[tokio::test]
async fn rapid_reset() {
    const TIMES: u32 = 20_000;
    let stage = Stage2::new().await;
    let cancel = 8u32.to_be_bytes();
    for pause in [false, true] {
        let before = stage.reached();
        let mut guest = stage.guest().await;
        for i in 0..TIMES {
            let id = 2 * i + 1;
            let both = [stage.get(id, "/ok/never"), frame(RST_STREAM, 0, id, &cancel)].concat();
            let Ok(true) = tokio::time::timeout(Duration::from_secs(2), guest.say(&both)).await else {
                break;
            };
            if pause {
                // Lets the inspector take each request before its reset.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
            }
        }
        stage.others_are_served().await;
        assert_eq!(guest.end().await, Some(ENHANCE_YOUR_CALM), "with pauses: {pause}");
        let reached = stage.reached() - before;
        assert!(reached < 2000, "{reached} requests reached the server");
    }
    stage.all_ends().await;
    stage.others_are_served().await;
}

/// The control: a client that resets some of its requests is served.
#[tokio::test]
async fn ending_requests_now_and_then_is_no_attack() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    for i in 0..3000 {
        let id = 4 * i + 1;
        guest.say(&stage.get(id, "/ok/a")).await;
        assert!(matches!(guest.fate(id).await, Fate::Answered(_)), "{i}");
        guest.say(&[stage.get(id + 2, "/ok/never"), frame(RST_STREAM, 0, id + 2, &[0, 0, 0, 8])].concat()).await;
    }
}

/// CVE-2025-8671: the guest provokes a reset by the inspector, so that the stream no longer counts while the server
/// works on it.
// promise 6
#[tokio::test]
async fn made_you_reset() {
    const TIMES: u32 = 5000;
    let stage = Stage2::new().await;
    let no_room = [0; 4];
    let too_much = 0x7fff_ffffu32.to_be_bytes();
    type Fault = Box<dyn Fn(u32) -> Vec<u8>>;
    let faults: [Fault; 4] = [
        Box::new(move |id| frame(WINDOW_UPDATE, 0, id, &no_room)),
        Box::new(move |id| frame(WINDOW_UPDATE, 0, id, &too_much).repeat(2)),
        Box::new(|id| frame(DATA, 0, id, b"after the end")),
        Box::new(|id| frame(PRIORITY, 0, id, &[&id.to_be_bytes()[..], &[1]].concat())),
    ];
    for (which, fault) in faults.iter().enumerate() {
        let before = stage.reached();
        let mut guest = stage.guest().await;
        for i in 0..TIMES {
            let id = 2 * i + 1;
            let both = [stage.get(id, "/ok/never"), fault(id)].concat();
            let Ok(true) = tokio::time::timeout(Duration::from_secs(2), guest.say(&both)).await else {
                break;
            };
            tokio::task::yield_now().await;
        }
        stage.others_are_served().await;
        // A zero window increment or a self-dependent priority may end the connection at once.
        let _ = tokio::time::timeout(Duration::from_secs(2), guest.end()).await;
        drop(guest);
        let reached = stage.reached() - before;
        assert!(reached < 2000, "{reached} requests reached the server by way {which}");
    }
    stage.all_ends().await;
    stage.others_are_served().await;
}

/// CVE-2024-27316: CONTINUATION flood.
// promise 6
#[tokio::test]
async fn continuations_without_end() {
    let stage = Stage2::new().await;
    let opening = frame(HEADERS, END_STREAM, 1, &stage.fields("GET", "/ok/flood"));
    let large = literal(b"x-a", &[b'a'; 16_000]);
    for more in [&b""[..], &literal(b"x", b"y"), &large, &[0x82]] {
        let mut guest = stage.guest().await;
        guest.say(&opening).await;
        guest.flood(&frame(CONTINUATION, 0, 1, more), 100_000).await;
        stage.others_are_served().await;
        assert!(guest.end().await.is_some_and(|reason| reason != 0));
    }
    assert_eq!(stage.reached(), 0);
    // The control: a head in several frames passes.
    let mut guest = stage.guest().await;
    let fields = stage.fields("GET", "/ok/flood");
    let (one, two) = fields.split_at(20);
    guest.say(&[frame(HEADERS, END_STREAM, 1, one), frame(CONTINUATION, END_HEADERS, 1, two)].concat()).await;
    assert!(matches!(guest.fate(1).await, Fate::Answered(_)));
    assert_eq!(stage.reached(), 1);
}

/// HPACK bomb: one large field in the table, referenced by one byte each.
// promise 6
#[tokio::test]
async fn small_heads_that_unpack_to_large_ones() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    let large = kept(b"x-large", &[b'a'; 4000]);
    guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &[stage.fields("GET", "/ok/a"), large].concat())).await;
    assert!(matches!(guest.fate(1).await, Fate::Answered(_)));
    let call = 0x80 | 62;
    for i in 1..200 {
        let bomb = [stage.fields("GET", "/ok/bomb"), vec![call; 12_000]].concat();
        if !guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, &bomb)).await {
            break;
        }
    }
    stage.others_are_served().await;
    drop(guest);
    // Many small fields, and names without values.
    let mut guest = stage.guest().await;
    for i in 0..200 {
        let many = [stage.fields("GET", "/ok/bomb"), block(&[("x", ""); 5000])].concat();
        if !guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * i + 1, &many)).await {
            break;
        }
    }
    stage.others_are_served().await;
    drop(guest);
    // A table size above the announced maximum.
    let mut guest = stage.guest().await;
    let grow = [vec![0x3f, 0xff, 0xff, 0xff, 0x7f], stage.fields("GET", "/ok/bomb")].concat();
    guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &grow)).await;
    assert!(guest.end().await.is_some_and(|reason| reason != 0));
    // A large table announced by the guest does not make the inspector keep a large one.
    let mut guest = stage.guest_with(&setting(1, u32::MAX)).await;
    for i in 0..300 {
        guest.say(&stage.get(2 * i + 1, "/ok/control")).await;
        assert!(matches!(guest.fate(2 * i + 1).await, Fate::Answered(_)));
    }
    assert_eq!(stage.reached(), 1);
}

#[tokio::test]
async fn a_head_that_is_too_large_costs_only_itself() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    let large = literal(b"x-a", &[b'a'; 15_000]);
    let opening = frame(HEADERS, END_STREAM, 1, &stage.fields("GET", "/ok/large"));
    let more = frame(CONTINUATION, 0, 1, &large).repeat(4);
    guest.say(&[opening, more, frame(CONTINUATION, END_HEADERS, 1, &large)].concat()).await;
    assert_eq!(guest.fate(1).await, Fate::Answered(String::new()));
    guest.say(&stage.get(3, "/ok/small")).await;
    assert!(matches!(guest.fate(3).await, Fate::Answered(text) if text.starts_with('{')));
    let many = [stage.fields("GET", "/ok/many"), block(&[("x", "y"); 200])].concat();
    guest.say(&frame(HEADERS, END_HEADERS | END_STREAM, 5, &many)).await;
    assert!(matches!(guest.fate(5).await, Fate::Answered(text) if text.contains("more than 128 fields")));
    assert_eq!(stage.reached(), 1);
}

/// CVE-2019-9512, 9515, 9513, 9518 and similar: frames that cost the sender nothing, and whose replies are never read.
// promise 6
#[tokio::test]
async fn frames_that_say_nothing() {
    let stage = Stage2::new().await;
    let on_stream = |kind: u8, payload: &[u8]| frame(kind, 0, 1, payload);
    for (what, bytes) in [
        ("settings", frame(SETTINGS, 0, 0, &setting(4, 65_535))),
        ("empty settings", frame(SETTINGS, 0, 0, &[])),
        ("pings", frame(PING, 0, 0, &[0; 8])),
        ("answers to no ping", frame(PING, ACK, 0, &[7; 8])),
        ("room", frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("room for a stream", on_stream(WINDOW_UPDATE, &1u32.to_be_bytes())),
        ("priorities", on_stream(PRIORITY, &[0, 0, 0, 0, 16])),
        ("priorities of idle streams", frame(PRIORITY, 0, 999, &[0, 0, 0, 0, 16])),
        ("empty data", on_stream(DATA, &[])),
        ("little data", on_stream(DATA, b"x")),
        ("padding", frame(DATA, 8, 1, &[&[200][..], &[0; 200]].concat())),
        ("unknown frames", frame(0xbe, 0xff, 1, b"what")),
        ("unknown settings", frame(SETTINGS, 0, 0, &setting(0x0a0a, 1).repeat(1000))),
    ] {
        let mut guest = stage.guest().await;
        guest.say(&frame(HEADERS, END_HEADERS, 1, &stage.fields("POST", "/ok/never"))).await;
        guest.flood(&bytes, 200_000).await;
        stage.others_are_served().await;
        drop(guest);
        stage.all_ends().await;
        assert!(stage.grown() < ROOM, "{what} took {} KiB", stage.grown() >> 10);
    }
}

/// CVE-2019-9511, 9517: a guest that requests much and reads nothing.
// promise 6
#[tokio::test]
async fn answers_that_nobody_takes() {
    let stage = Stage2::new().await;
    let (none, all) = (setting(4, 0), setting(4, 0x7fff_ffff));
    // Without a stream window; then with the largest windows and no reads from the socket.
    for settings in [none, all] {
        let before = stage.world.judge.spent.0.load(SeqCst);
        let mut guest = stage.guest_with(&settings).await;
        if settings.ends_with(&[0xff]) {
            guest.say(&frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000u32.to_be_bytes())).await;
        }
        for i in 0..128 {
            guest.say(&stage.get(2 * i + 1, "/ok/bulk?n=10000000")).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let taken = stage.world.judge.spent.0.load(SeqCst) - before;
        assert!(taken < 24 << 20, "{taken} bytes were taken from the server");
        stage.others_are_served().await;
    }
    stage.all_ends().await;
}

#[tokio::test]
async fn more_streams_than_were_offered() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    for i in 0..1000 {
        guest.say(&stage.get(2 * i + 1, "/ok/never")).await;
    }
    assert_eq!(guest.fate(1999).await, Fate::Reset(REFUSED_STREAM));
    stage.others_are_served().await;
    assert!(stage.reached() <= 128, "{}", stage.reached());
    drop(guest);
    stage.all_ends().await;
}

/// Connections are limited in number, since each may hold memory.
// promise 6
#[tokio::test]
async fn more_connections_than_can_be_held() {
    let stage = Stage2::new().await;
    let mut guests = Vec::new();
    // The first connection that is closed at once is beyond the limit.
    while guests.len() < 1000 {
        let mut guest = stage.guest().await;
        guest.say(&stage.get(1, "/ok/a")).await;
        match guest.fate(1).await {
            Fate::Answered(_) => guests.push(guest),
            fate => {
                assert_eq!(fate, Fate::Gone(None));
                break;
            }
        }
    }
    assert!((16..=256).contains(&guests.len()), "{}", guests.len());
    // A client that also offers HTTP/1.1 gets that meanwhile.
    let (addr, _) = servers::https2(&stage.world.servers).await;
    let both = stage.world.guest_tls(stage.world.connect(addr, &[HOST]), HOST, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(both.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (plain, _) = servers::http1(None).await;
    assert_eq!(get(&mut stage.world.connect(plain, &[HOST]), "/ok").await.status, 200);
    // Closing connections frees their slots.
    guests.truncate(guests.len() / 2);
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let both = stage.world.guest_tls(stage.world.connect(addr, &[HOST]), HOST, &["h2", "http/1.1"]).await.unwrap();
        if both.get_ref().1.alpn_protocol() == Some(&b"h2"[..]) {
            return stage.others_are_served().await;
        }
    }
    panic!("there is no room again");
}

#[tokio::test]
async fn a_greeting_that_is_not_finished() {
    let settings = egress::inspect::InspectorSettings {
        head: Duration::from_millis(700),
        idle: Duration::from_millis(1000),
        ..Default::default()
    };
    let stage = Stage2::with(World::with(RULES, false, settings)).await;
    let unfinished = frame(HEADERS, END_STREAM, 1, &stage.fields("GET", "/ok/half"));
    let whole = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for said in [
        PREFACE[..1].to_vec(),
        PREFACE[..20].to_vec(),
        PREFACE.to_vec(),
        [PREFACE, &[0, 0]].concat(),
        [PREFACE, &frame(PING, 0, 0, &[0; 8])].concat(),
        [PREFACE, b"GET /ok HTTP/1.1\r\n\r\n"].concat(),
        whole.clone(),
        [whole, unfinished].concat(),
    ] {
        let mut guest = Peer(stage.world.connect(stage.addr, &[HOST]));
        guest.say(&said).await;
        let _ = guest.end().await;
    }
    assert_eq!(stage.reached(), 0);
    stage.others_are_served().await;
}

#[tokio::test]
async fn frames_where_none_belong() {
    let stage = Stage2::new().await;
    let finished = stage.get(1, "/ok/a");
    let get = |id| stage.get(id, "/ok/b");
    // Frames on an ended stream do not end the connection.
    for odd in [frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), frame(RST_STREAM, 0, 1, &[0; 4]), frame(0xbe, 0, 1, b"?")] {
        let mut guest = stage.guest().await;
        guest.say(&finished).await;
        assert!(matches!(guest.fate(1).await, Fate::Answered(_)));
        guest.say(&[odd, get(3)].concat()).await;
        assert!(matches!(guest.fate(3).await, Fate::Answered(_)));
    }
    let reached = stage.reached();
    // Frames that end the connection.
    for odd in [
        frame(DATA, 0, 5, b"on a stream that never was"),
        frame(RST_STREAM, 0, 5, &[0; 4]),
        frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 1]),
        frame(CONTINUATION, END_HEADERS, 5, b""),
        frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
        frame(HEADERS, END_HEADERS | END_STREAM, 2, &stage.fields("GET", "/ok/b")),
        frame(HEADERS, END_HEADERS | END_STREAM, 0, &stage.fields("GET", "/ok/b")),
        frame(SETTINGS, 0, 1, &[]),
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(SETTINGS, 0, 0, &setting(4, u32::MAX)),
        frame(SETTINGS, 0, 0, &setting(5, 1)),
        frame(SETTINGS, ACK, 0, &setting(4, 1)),
        frame(PING, 0, 0, &[0; 7]),
        frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes()).repeat(2),
        frame(DATA, 8, 1, &[200, 1]),
        frame(HEADERS, END_HEADERS | END_STREAM, 5, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        frame(HEADERS, END_HEADERS | END_STREAM, 5, &[0x80]),
        frame(DATA, 0, 1, &vec![0; 20_000]),
    ] {
        let mut guest = stage.guest().await;
        guest.say(&[odd.clone(), get(7)].concat()).await;
        assert!(guest.end().await.is_some_and(|reason| reason != 0), "{:?}", &odd[..odd.len().min(30)]);
    }
    assert_eq!(stage.reached(), reached);
    stage.others_are_served().await;
}

/// Data beyond the announced flow control window is refused.
#[tokio::test]
async fn more_data_than_there_is_room_for() {
    let stage = Stage2::new().await;
    let mut guest = stage.guest().await;
    guest.say(&frame(HEADERS, END_HEADERS, 1, &stage.fields("POST", "/ok/never"))).await;
    guest.flood(&frame(DATA, 0, 1, &[0; 16_000]), 10_000).await;
    stage.others_are_served().await;
    let end = guest.fate(1).await;
    assert!(matches!(end, Fate::Reset(FLOW_CONTROL_ERROR) | Fate::Gone(Some(FLOW_CONTROL_ERROR))), "{end:?}");
    stage.all_ends().await;
}
