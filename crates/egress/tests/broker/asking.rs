//! Questions to a person: operations wait for the answer, the answer covers what it should, and no byte leaves before
//! it.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo, http};
use egress::dns::{Rcode, RecordType};
use egress::event::{EventStage, Op};
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use terms::Action;

pub const CASES: &[Case] = &[
    Case::new("a_connection_waits_for_its_answer", connection, stage_addresses, check_connection),
    Case::new("nobody_answers_and_it_is_refused", nobody, stage_impatient, check_nobody),
    Case::new("a_name_waits_and_no_resolver_hears_of_it", name, stage_names, check_name),
    Case::new("a_request_for_another_host_waits", request, stage_requests, |_| {}),
    Case::new("a_client_of_a_proxy_waits", proxied, stage_names, |_| {}),
    Case::new("datagrams_wait_for_an_answer", datagrams, stage_datagrams, |_| {}),
    Case::new("who_gives_up_is_asked_about_no_longer", given_up, stage_addresses, |_| {}),
    Case::new("other_rules_answer_what_waits", replaced, stage_replaced, |_| {}),
    Case::new("questions_do_not_pile_up", piled_up, stage_addresses, check_piled_up),
];

fn stage_addresses(world: &mut World) {
    world.rules = r#"{"action":"ask","cidr":"93.184.216.0/24"}"#.to_owned();
    world.patience = Some(Duration::from_secs(60));
    world.serve("93.184.216.34:7", echo);
    world.serve("93.184.216.34:8", echo);
}

fn stage_impatient(world: &mut World) {
    stage_addresses(world);
    world.patience = Some(Duration::from_millis(300));
}

fn stage_names(world: &mut World) {
    world.rules = r#"{"action":"ask","host":"*.example.org"}"#.to_owned();
    world.patience = Some(Duration::from_secs(60));
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &[SERVER]);
    world.name("c.example.org", &[SERVER]);
    world.serve("93.184.216.34:7", echo);
}

fn stage_requests(world: &mut World) {
    world.rules =
        r#"{"action":"allow","host":"a.example.org"},{"action":"ask","host":"b.example.org","ports":"80"},{"action":"warn","host":"b.example.org","ports":"81"}"#.to_owned();
    world.patience = Some(Duration::from_secs(60));
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &[SERVER]);
    world.serve("93.184.216.34:80", http);
}

fn stage_datagrams(world: &mut World) {
    world.rules = r#"{"action":"ask","proto":"udp","cidr":"93.184.216.0/24"}"#.to_owned();
    world.patience = Some(Duration::from_secs(60));
    world.serve_datagrams("93.184.216.34:53000", |bytes| bytes.to_vec());
}

fn stage_replaced(world: &mut World) {
    stage_addresses(world);
    world.later = r#"{"action":"allow","cidr":"93.184.216.34/32"}"#.to_owned();
}

/// Waits for this question and answers it.
#[track_caller]
fn answer(word: &str, target: &str) {
    let begun = Instant::now();
    while control("questions") != target {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} instead of {target}", control("questions"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(control(word), target);
}

fn connecting(to: &'static str) -> std::thread::JoinHandle<std::io::Result<TcpStream>> {
    std::thread::spawn(move || TcpStream::connect(to))
}

fn connection() {
    let held = connecting("93.184.216.34:7");
    answer("allow once", "93.184.216.34:7");
    let mut stream = held.join().unwrap().expect("it was let through");
    echoes(&mut stream, b"\x01one");
    // The next connection is asked about again, and refused; the open one continues.
    let held = connecting("93.184.216.34:7");
    answer("deny once", "93.184.216.34:7");
    assert_eq!(held.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    echoes(&mut stream, b"\x01two");
    let held = connecting("93.184.216.34:8");
    answer("allow run", "93.184.216.34:8");
    assert!(held.join().unwrap().is_ok());
    reaches("93.184.216.34:8");
    reaches("93.184.216.34:8");
    assert_eq!(control("questions"), "");
}

fn check_connection(seen: &Seen) {
    assert_eq!(seen.all(Op::Connect, EventStage::Asked).len(), 3);
    let refused = seen.one(Op::Connect, EventStage::Refused);
    assert_eq!((refused.action, refused.reason.as_deref()), (Action::Ask, Some("the person who was asked refused it")));
    assert_eq!((refused.rule.as_str(), &refused.hint), ("net.rules[0]", &None));
    assert!(seen.all(Op::Connect, EventStage::Opened).len() >= 3, "{:#?}", seen.events);
}

fn nobody() {
    is_reset("93.184.216.34:7", b"\x01");
}

fn check_nobody(seen: &Seen) {
    assert_eq!(seen.all(Op::Connect, EventStage::Asked).len(), 1);
    let refused = seen.one(Op::Connect, EventStage::Refused);
    assert_eq!(refused.reason.as_deref(), Some("no answer within 0.3 s"));
}

fn name() {
    let held = std::thread::spawn(|| (ask("a.example.org", RecordType::A), ask("a.example.org", RecordType::Aaaa)));
    answer("allow once", "a.example.org");
    let (v4, v6) = held.join().unwrap();
    assert_eq!((v4.rcode, v4.addresses.len(), v6.rcode), (Rcode::NoError, 1, Rcode::NoError));
    // Approval of a name covers connections under it.
    reaches("93.184.216.34:7");
    let held = std::thread::spawn(|| ask("b.example.org", RecordType::A));
    answer("deny once", "b.example.org");
    assert_eq!(held.join().unwrap().rcode, Rcode::NxDomain);
    assert_eq!(ask("b.example.org", RecordType::Aaaa).rcode, Rcode::NxDomain, "nobody is asked twice at once");
    assert_eq!(ask("other.net", RecordType::A).rcode, Rcode::NxDomain);
}

fn check_name(seen: &Seen) {
    assert!(seen.questions.iter().all(|name| name == "a.example.org"), "{:?}", seen.questions);
    assert!(!seen.questions.is_empty());
}

fn request() {
    resolve("a.example.org");
    resolve("b.example.org");
    let mut stream = connect("93.184.216.34:80");
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(get("a.example.org").as_bytes()).unwrap();
    assert_eq!(response(&mut stream).0, 200);
    stream.write_all(get("b.example.org").as_bytes()).unwrap();
    answer("allow once", "b.example.org:80");
    assert_eq!(response(&mut stream), (200, "GET / HTTP/1.1|b.example.org|".to_owned()));
    let mut stream = connect("93.184.216.34:80");
    stream.write_all(get("b.example.org").as_bytes()).unwrap();
    answer("deny once", "b.example.org:80");
    assert_eq!(response(&mut stream).0, 403);
}

fn proxied() {
    let mut stream = connect("192.0.0.53:3128");
    stream.write_all(b"CONNECT c.example.org:7 HTTP/1.1\r\nHost: c.example.org:7\r\n\r\n").unwrap();
    answer("allow run", "c.example.org");
    read(&mut stream, b"HTTP/1.1 200 Connection established\r\n\r\n");
    echoes(&mut stream, b"\x01proxied");
}

fn datagrams() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.connect("93.184.216.34:53000").unwrap();
    socket.send(b"lost").unwrap();
    answer("allow once", "93.184.216.34:53000");
    let mut got = [0; 16];
    let heard = (0..20).any(|_| {
        socket.send(b"heard").unwrap();
        socket.recv(&mut got).is_ok()
    });
    assert!(heard && &got[..5] == b"heard");
}

fn given_up() {
    // Closing a waiting socket withdraws its question, once its next SYN retransmission is missing.
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let to: std::net::SocketAddr = "93.184.216.34:7".parse().unwrap();
    assert_eq!(rustix::net::connect(&socket, &to), Err(rustix::io::Errno::INPROGRESS));
    let begun = Instant::now();
    while control("questions") != "93.184.216.34:7" {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    drop(socket);
    while !control("questions").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the question stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn replaced() {
    let (one, two) = (connecting("93.184.216.34:7"), connecting("93.184.216.40:7"));
    let begun = Instant::now();
    while control("questions").split(',').count() != 2 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(control("replace"), "2");
    assert!(one.join().unwrap().is_ok());
    assert_eq!(two.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(control("questions"), "");
}

fn piled_up() {
    let many: Vec<_> = (100..140)
        .map(|host| std::thread::spawn(move || TcpStream::connect(format!("93.184.216.{host}:7")).is_ok()))
        .collect();
    let begun = Instant::now();
    while many.iter().filter(|one| one.is_finished()).count() != 40 - 16 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", control("questions"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(control("questions").split(',').count(), 16);
    (0..16).for_each(|_| drop(control("deny once")));
    assert!(many.into_iter().all(|one| !one.join().unwrap()));
}

fn check_piled_up(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let over = refused.iter().filter(|e| e.reason.as_deref() == Some("16 questions are open already")).count();
    assert_eq!((refused.len(), over), (40, 24));
}
