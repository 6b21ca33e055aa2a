//! Connections: relayed bytes, half-close, reset, failure, and changes of the rules.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo, greet};
use egress::event::{EventStage, Op};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    Case::new("the_server_may_speak_first", server_first, stage_plain, check_server_first),
    Case::new("either_end_may_say_less", half_closed, stage_plain, |_| {}),
    Case::new("much_passes_both_ways", much, stage_plain, |_| {}),
    Case::new("a_server_that_is_not_there_is_told_of_as_outside", unreachable, stage_unreachable, check_unreachable),
    Case::new("a_call_that_is_given_up_is_given_up_outside", given_up, stage_given_up, check_given_up),
    Case::new("a_reset_outside_is_a_reset_inside", resets_pass, stage_plain, |_| {}),
    Case::new("new_rules_close_what_they_forbid", replaced, stage_replaced, check_replaced),
    Case::new("new_rules_refuse_those_that_wait", replaced_waiting, stage_replaced_waiting, check_replaced_waiting),
    Case::new("the_byte_limit_cuts_everything", limited, stage_limited, check_limited),
    Case::new("the_byte_limit_itself_is_still_good", exactly, stage_exactly, check_exactly),
    Case::new("a_thousand_connections_cost_little", thousand, stage_thousand, check_thousand),
    Case::new("large_transfers_do_not_hold_up_others", fair, stage_fair, |_| {}),
];

fn stage_plain(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve("93.184.216.34:25", greet);
    world.serve("93.184.216.34:7", echo);
    // Reads to the end, then answers with the length.
    world.serve("93.184.216.34:9", |mut stream| {
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).is_ok() {
            write!(stream, "{}", all.len()).unwrap();
        }
    });
    // Writes, half-closes, and reads on.
    world.serve("93.184.216.34:10", |mut stream| {
        stream.write_all(b"all").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"\x01late words");
    });
    world.serve("93.184.216.34:11", |mut stream| {
        stream.read_exact(&mut [0; 1]).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = TcpListener::bind("93.184.216.34:12").unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    world.beside(move || runtime.block_on(many_echoes(listener)));
}

async fn many_echoes(listener: TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
    }
}

fn server_first() {
    resolve("a.example.org");
    let mut stream = connect("93.184.216.34:25");
    read(&mut stream, b"220 hello\r\n");
    echoes(&mut stream, b"EHLO me\r\n");
    echoes(&mut stream, b"GET / HTTP/1.1\r\nHost: elsewhere.org\r\n\r\n");
}

fn check_server_first(seen: &Seen) {
    let opened = seen.one(Op::Connect, EventStage::Opened);
    assert_eq!((opened.name.as_deref(), opened.rule.as_str()), (Some("a.example.org"), "net.rules[0]"));
}

fn half_closed() {
    resolve("a.example.org");
    let mut stream = connect("93.184.216.34:9");
    stream.write_all(&[1; 100_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "100000");
    // The half-close may come with the first byte, or without any.
    for say in [&b""[..], b"\x01"] {
        let mut stream = connect("93.184.216.34:9");
        stream.write_all(say).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, say.len().to_string());
    }
    let mut stream = connect("93.184.216.34:10");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "all");
    stream.write_all(b"\x01late words").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0);
}

fn much() {
    resolve("a.example.org");
    let mut stream = connect("93.184.216.34:7");
    let sent: Vec<u8> = (0..20_000_000u32).map(|i| (i.wrapping_mul(31) >> 3) as u8 | 1).collect();
    let (mut half, copy) = (stream.try_clone().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || {
        half.write_all(&copy).unwrap();
        half.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(got == sent);
}

fn stage_unreachable(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    // A full backlog: further SYNs get no answer.
    let listener = TcpListener::bind("93.184.216.34:13").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    world.beside(move || {
        let taken: Vec<_> = (0..3)
            .map(|_| std::thread::spawn(|| TcpStream::connect_timeout(&"93.184.216.34:13".parse().unwrap(), PATIENCE)))
            .collect();
        taken.into_iter().for_each(|t| std::mem::forget(t.join()));
        drop(listener);
    });
}

fn unreachable() {
    resolve("a.example.org");
    let took = |_| {
        let begun = Instant::now();
        is_refused("93.184.216.34:14");
        begun.elapsed()
    };
    let soonest = (0..5).map(took).min().unwrap();
    assert!(soonest < Duration::from_millis(900), "a refusal is passed on at once, not when it is asked for again");
    std::thread::sleep(Duration::from_millis(200));
    // Longer than the timeout of proxy clients.
    let nobody = TcpStream::connect_timeout(&"93.184.216.34:13".parse().unwrap(), Duration::from_millis(2500));
    assert_eq!(nobody.unwrap_err().kind(), ErrorKind::TimedOut);
}

fn check_unreachable(seen: &Seen) {
    let reasons: Vec<_> = seen.all(Op::Connect, EventStage::Failed).iter().map(|e| e.reason.clone().unwrap()).collect();
    let refused = ["the server refused the connection"; 5];
    assert_eq!(reasons, [&refused[..], &["the server does not answer"]].concat());
}

fn stage_given_up(world: &mut World) {
    stage_plain(world);
    world.rules = r#"{"action":"allow","host":"a.example.org"},{"action":"allow","cidr":"5.5.6.0/24"}"#.to_owned();
    stage_slow(world);
}

/// Starts a server with a full backlog that accepts once it is told to, and a second server that tells it so and
/// reports its state.
fn stage_slow(world: &mut World) {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    static FULL: AtomicBool = AtomicBool::new(false);
    static ROOM: AtomicBool = AtomicBool::new(false);
    let listener = TcpListener::bind("5.5.6.6:80").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    world.serve("93.184.216.34:14", |mut stream| {
        ROOM.fetch_or(read_word(&mut stream) == 2, Ordering::SeqCst);
        let (full, open) = (FULL.load(Ordering::SeqCst), OPEN.load(Ordering::SeqCst));
        write!(stream, "{full} {open}").unwrap();
    });
    world.beside(move || {
        let at = listener.local_addr().unwrap();
        let full: Vec<_> = (0..3)
            .map(|_| std::thread::spawn(move || TcpStream::connect_timeout(&at, Duration::from_secs(1))))
            .collect();
        let full: Vec<_> = full.into_iter().filter_map(|t| t.join().unwrap().ok()).collect();
        FULL.store(true, Ordering::SeqCst);
        while !ROOM.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        rustix::net::listen(&listener, 100).unwrap();
        full.iter().for_each(|_| drop(listener.accept().unwrap()));
        for stream in listener.incoming() {
            OPEN.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                greet(stream.unwrap());
                OPEN.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
}

fn read_word(stream: &mut TcpStream) -> u8 {
    let mut word = [0; 1];
    stream.read_exact(&mut word).unwrap();
    word[0]
}

/// Sends a command to the second server and returns its report.
fn told(word: &[u8; 1]) -> String {
    let mut stream = connect("93.184.216.34:14");
    stream.write_all(word).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Polls the second server until it reports this.
fn awaits(wanted: &str) {
    let begun = Instant::now();
    while told(b"\x01") != wanted {
        assert!(begun.elapsed() < Duration::from_secs(60), "{wanted}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// promise 5
fn given_up() {
    resolve("a.example.org");
    awaits("true 0");
    let place = "5.5.6.6:80".parse().unwrap();
    // The first connection times out before the backlog has room, the second waits.
    let soon = TcpStream::connect_timeout(&place, Duration::from_millis(200));
    assert_eq!(soon.unwrap_err().kind(), ErrorKind::TimedOut);
    told(b"\x02");
    let mut patient = TcpStream::connect_timeout(&place, Duration::from_secs(60)).unwrap();
    patient.set_read_timeout(Some(PATIENCE)).unwrap();
    read(&mut patient, b"220 hello\r\n");
    // The first connection is closed, however far it got.
    std::thread::sleep(Duration::from_secs(8));
    awaits("true 1");
    echoes(&mut patient, b"\x01on");
}

fn check_given_up(seen: &Seen) {
    let place: std::net::SocketAddr = "5.5.6.6:80".parse().unwrap();
    let opened = seen.all(Op::Connect, EventStage::Opened).into_iter().filter(|e| e.address == Some(place)).count();
    assert_eq!(opened, 1, "{:#?}", seen.events);
}

fn resets_pass() {
    resolve("a.example.org");
    breaks(connect("93.184.216.34:11"), b"\x01");
}

fn stage_replaced(world: &mut World) {
    stage_plain(world);
    world.rules = r#"{"action":"allow","host":"a.example.org"},{"action":"allow","host":"b.example.org"}"#.to_owned();
    world.later = r#"{"action":"allow","host":"b.example.org"},{"action":"allow","host":"c.example.org"}"#.to_owned();
    world.name("b.example.org", &["93.184.216.35"]);
    world.name("c.example.org", &["93.184.216.36"]);
    world.serve("93.184.216.35:7", echo);
    world.serve("93.184.216.36:7", echo);
}

// promise 5
fn replaced() {
    resolve("a.example.org");
    resolve("b.example.org");
    let mut closed = connect("93.184.216.34:7");
    let mut kept = connect("93.184.216.35:7");
    let waiting = connect("93.184.216.34:7");
    echoes(&mut closed, b"\x01before");
    echoes(&mut kept, b"\x01before");
    is_reset("93.184.216.36:7", b"\x01");
    assert_eq!(control("replace"), "2");
    breaks(closed, b"");
    breaks(waiting, b"");
    echoes(&mut kept, b"after");
    is_reset("93.184.216.34:7", b"\x01");
    resolve("c.example.org");
    reaches("93.184.216.36:7");
}

fn check_replaced(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let told: Vec<_> = refused.iter().map(|e| (e.revision, e.address.unwrap().to_string())).collect();
    assert_eq!(told[0], (1, "93.184.216.36:7".to_owned()));
    assert_eq!(told.iter().filter(|t| **t == (2, "93.184.216.34:7".to_owned())).count(), 3, "{told:?}");
    let last = seen.all(Op::Connect, EventStage::Opened).into_iter().next_back().unwrap();
    assert_eq!((last.revision, last.name.as_deref()), (2, Some("c.example.org")));
}

fn stage_replaced_waiting(world: &mut World) {
    stage_given_up(world);
    world.later = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
}

/// Regression test: a connection that waited for its server was admitted when the server accepted, and only then judged
/// by the new rules.
// promise 5
fn replaced_waiting() {
    resolve("a.example.org");
    awaits("true 0");
    let place = "5.5.6.6:80".parse().unwrap();
    let call = std::thread::spawn(move || TcpStream::connect_timeout(&place, Duration::from_secs(60)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!call.is_finished(), "control: the server does not answer");
    assert_eq!(control("replace"), "2");
    assert_eq!(call.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    // The backlog has room now, and no connection arrives.
    told(b"\x02");
    std::thread::sleep(Duration::from_secs(3));
    awaits("true 0");
}

fn check_replaced_waiting(seen: &Seen) {
    let refused = seen.one(Op::Connect, EventStage::Refused);
    assert_eq!((refused.revision, refused.address), (2, Some("5.5.6.6:80".parse().unwrap())));
    let place = |e: &&egress::event::Event| e.address == refused.address;
    for stage in [EventStage::Opened, EventStage::Failed] {
        assert_eq!(seen.all(Op::Connect, stage).into_iter().filter(place).count(), 0, "{:#?}", seen.events);
    }
}

fn stage_limited(world: &mut World) {
    stage_plain(world);
    world.max_net_bytes = Some(100_000);
}

fn limited() {
    resolve("a.example.org");
    let mut idle = connect("93.184.216.34:7");
    echoes(&mut idle, b"\x01");
    let mut stream = connect("93.184.216.34:9");
    let error = loop {
        if let Err(error) = stream.write_all(&[1; 10_000]) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    breaks(idle, b"");
    is_reset("93.184.216.34:7", b"\x01");
}

fn check_limited(seen: &Seen) {
    assert!(seen.over_limit && seen.net_bytes > 100_000);
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 3, "{refused:#?}");
    assert!(refused.iter().all(|e| e.rule == "limits.max_net_bytes"));
    let passed: u64 = refused.iter().map(|e| e.bytes_in + e.bytes_out).sum();
    assert!(passed <= 100_000, "{passed}");
}

fn stage_exactly(world: &mut World) {
    world.rules = r#"{"action":"allow","cidr":"93.184.216.34/32"}"#.to_owned();
    world.serve("93.184.216.34:9", |mut stream| {
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
    world.max_net_bytes = Some(100_000);
}

fn exactly() {
    let mut stream = connect("93.184.216.34:9");
    stream.write_all(&[1; 100_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0);
}

fn check_exactly(seen: &Seen) {
    assert!(!seen.over_limit);
    assert_eq!(seen.net_bytes, 100_000);
}

fn stage_thousand(world: &mut World) {
    stage_plain(world);
    world.forgetful = true;
}

fn thousand() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    resolve("a.example.org");
    let memory = || control("memory").parse::<u64>().unwrap();
    let mut used = vec![memory()];
    for _ in 0..6 {
        let mut all: Vec<TcpStream> = (0..1000).map(|_| connect("93.184.216.34:12")).collect();
        all.iter_mut().for_each(|stream| stream.write_all(b"\x01one").unwrap());
        all.iter_mut().for_each(|stream| read(stream, b"\x01one"));
        all.iter_mut().for_each(|stream| echoes(stream, b"two"));
        used.push(memory());
        drop(all);
        // Connections of one round are closed before the next.
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("memory of the world in KiB, before and with 1000 connections, again and again: {used:?}");
    assert!(used[1] - used[0] < 32 * 1024, "{used:?}");
    // Connections of the round before may still be closing: a leak shows in both of the last rounds.
    assert!(used[5].min(used[6]).saturating_sub(used[2]) < 2 * 1024, "{used:?}");
}

fn check_thousand(seen: &Seen) {
    assert!(seen.net_bytes >= 6 * 1000 * 14, "{}", seen.net_bytes);
}

fn stage_fair(world: &mut World) {
    stage_plain(world);
    world.serve("93.184.216.34:19", |mut stream| while stream.write_all(&[1; 1 << 16]).is_ok() {});
}

fn fair() {
    resolve("a.example.org");
    for _ in 0..4 {
        let mut stream = connect("93.184.216.34:19");
        std::thread::spawn(move || while stream.read(&mut [0; 1 << 16]).unwrap() > 0 {});
    }
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        reaches("93.184.216.34:7");
    }
}
