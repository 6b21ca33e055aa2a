//! UDP datagram flows.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World};
use egress::event::{EventStage, Op};
use policy::Proto;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case::new("datagrams_go_where_a_rule_says_udp", both_ways, stage, check),
    Case::new("an_idle_flow_of_datagrams_ends", idle, stage_idle, check_idle),
    Case::new("new_rules_close_flows_of_datagrams", replaced, stage_idle, check_replaced),
];

fn stage(world: &mut World) {
    world.rules = r#"{"action":"allow","proto":"udp","host":"a.example.org","ports":"123"},
        {"action":"allow","host":"a.example.org","ports":"443"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve_datagrams("93.184.216.34:123", |bytes| bytes.iter().rev().copied().collect());
    world.serve_datagrams("93.184.216.34:443", |bytes| bytes.to_vec());
}

/// Far above any scheduling delay between two exchanges, so that only a deliberate pause reaches it.
const IDLE: Duration = Duration::from_millis(2500);

fn stage_idle(world: &mut World) {
    stage(world);
    world.udp_idle = IDLE;
    world.later = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
}

fn socket(to: &str) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(to).unwrap();
    socket
}

fn exchange(socket: &UdpSocket) {
    socket.send(b"abc").unwrap();
    let mut got = [0; 10];
    let len = socket.recv(&mut got).expect("an answer");
    assert_eq!(&got[..len], b"cba");
}

fn is_refused(socket: &UdpSocket) {
    socket.send(b"abc").unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

fn both_ways() {
    is_refused(&socket("93.184.216.34:123"));
    resolve("a.example.org");
    let (one, two) = (socket("93.184.216.34:123"), socket("93.184.216.34:123"));
    for _ in 0..3 {
        exchange(&one);
        exchange(&two);
    }
    // A rule without a protocol does not cover UDP.
    let quic = socket("93.184.216.34:443");
    is_refused(&quic);
    is_refused(&quic);
    let large = vec![7; 60_000];
    one.send(&large).unwrap();
    let mut got = vec![0; 65536];
    assert_eq!(one.recv(&mut got).unwrap(), large.len());
}

fn check(seen: &Seen) {
    let opened = seen.all(Op::Connect, EventStage::Opened);
    assert_eq!(opened.len(), 2);
    assert!(opened.iter().all(|e| e.proto == Proto::Udp && e.name.as_deref() == Some("a.example.org")));
    let mut bytes: Vec<_> =
        seen.all(Op::Connect, EventStage::Closed).iter().map(|e| (e.bytes_in, e.bytes_out)).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [(9, 9), (60_009, 60_009)]);
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 2, "each place is told once: {refused:#?}");
    let hint = r#"add {"action":"allow","proto":"udp","host":"a.example.org","ports":"443"} to net.rules"#;
    assert_eq!(refused[1].hint.as_deref(), Some(hint));
}

fn idle() {
    resolve("a.example.org");
    let socket = socket("93.184.216.34:123");
    // Longer than the idle time in sum: each exchange restarts it.
    for _ in 0..9 {
        exchange(&socket);
        std::thread::sleep(IDLE / 8);
    }
    std::thread::sleep(IDLE * 2);
    exchange(&socket);
}

fn check_idle(seen: &Seen) {
    assert_eq!(seen.all(Op::Connect, EventStage::Opened).len(), 2);
    let closed = seen.all(Op::Connect, EventStage::Closed);
    assert_eq!((closed[0].bytes_in, closed[0].bytes_out), (27, 27));
}

fn replaced() {
    resolve("a.example.org");
    let socket = socket("93.184.216.34:123");
    exchange(&socket);
    assert_eq!(control("replace"), "2");
    std::thread::sleep(Duration::from_millis(50));
    is_refused(&socket);
}

fn check_replaced(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert!(refused.iter().all(|e| e.revision == 2 && e.proto == Proto::Udp), "{refused:#?}");
}
