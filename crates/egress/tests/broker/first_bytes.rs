//! Connections judged by their first bytes: TLS with SNI, HTTP with Host, and other protocols.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo, http};
use egress::event::{EventStage, Op};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case::new("tls_must_ask_for_the_name", tls_names, stage_tls, check_tls_names),
    Case::new("every_request_must_be_for_the_host", http_hosts, stage_http, check_http_hosts),
    Case::new("a_word_is_not_held_until_it_is_a_request", words, stage_words, check_words),
    Case::new("requests_of_many_shapes_pass", http_shapes, stage_http, |_| {}),
    Case::new("places_with_rules_about_requests_are_not_relayed", inspected, stage_inspected, check_inspected),
    Case::new("nonsense_breaks_nothing", nonsense, stage_http, |_| {}),
    Case::new("asking_is_refusing", asking, stage_asking, check_asking),
];

fn stage_tls(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org","ports":"443"},
        {"action":"allow","host":"b.example.org"},
        {"action":"allow","host":"c.example.org"},{"action":"deny","host":"c.example.org","ports":"443"},
        {"action":"allow","host":"solo.example.org"},
        {"action":"allow","cidr":"93.184.216.40/32"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &["93.184.216.35"]);
    world.name("c.example.org", &[SERVER]);
    world.name("solo.example.org", &["93.184.216.36"]);
    for at in ["93.184.216.34:443", "93.184.216.35:443", "93.184.216.36:443", "93.184.216.40:443"] {
        world.serve(at, echo);
    }
}

fn tls_names() {
    for name in ["a.example.org", "b.example.org", "solo.example.org"] {
        resolve(name);
    }
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("a.example.org")));
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("A.Example.org")));
    // Byte by byte the result is the same.
    let mut slow = connect("93.184.216.34:443");
    for byte in hello(Some("a.example.org")) {
        slow.write_all(&[byte]).unwrap();
    }
    read(&mut slow, &hello(Some("a.example.org")));
    // An allowed name that did not resolve to this address, a name without a rule, and a malformed name.
    is_reset("93.184.216.34:443", &hello(Some("b.example.org")));
    is_reset("93.184.216.34:443", &hello(Some("evil.org")));
    is_reset("93.184.216.34:443", &hello(Some("10.0.0.1")));
    // Without SNI the host is unambiguous while only one name resolved to the address.
    echoes(&mut connect("93.184.216.36:443"), &hello(None));
    echoes(&mut connect("93.184.216.34:443"), &hello(None));
    resolve("c.example.org");
    is_reset("93.184.216.34:443", &hello(None));
    is_reset("93.184.216.34:443", &hello(Some("c.example.org")));
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("a.example.org")));
    // Where the address is allowed, names make no difference.
    echoes(&mut connect("93.184.216.40:443"), &hello(Some("evil.org")));
}

fn check_tls_names(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let reasons: Vec<_> = refused.iter().map(|e| e.reason.as_deref().unwrap_or("-")).collect();
    assert_eq!(
        reasons,
        [
            "the client asks for b.example.org, which did not resolve to 93.184.216.34",
            "the client asks for evil.org, which did not resolve to 93.184.216.34",
            "the TLS hello cannot be read: the server name is an address",
            "the client names no host, and c.example.org has the same address",
            "-",
        ]
    );
    assert_eq!(refused[4].rule, "net.rules[3]");
}

fn stage_http(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"},{"action":"allow","host":"b.example.org"},
        {"action":"allow","cidr":"93.184.216.40/32"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &["93.184.216.35"]);
    world.serve("93.184.216.34:80", http);
    world.serve("93.184.216.40:80", http);
}

fn http_hosts() {
    resolve("a.example.org");
    resolve("b.example.org");
    let mut stream = connect("93.184.216.34:80");
    stream.write_all(b"GET /1 HTTP/1.1\r\nHost: a.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream), (200, "GET /1 HTTP/1.1|a.example.org|".into()));
    stream.write_all(b"GET /2 HTTP/1.1\r\nHost: A.example.org:80\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream), (200, "GET /2 HTTP/1.1|A.example.org:80|".into()));
    // The connection does not carry a request for another host.
    stream.write_all(b"GET /3 HTTP/1.1\r\nHost: b.example.org\r\n\r\n").unwrap();
    let (status, body) = response(&mut stream);
    assert_eq!(status, 403);
    assert!(body.contains("which did not resolve to 93.184.216.34") && body.contains("policy_denied"), "{body}");
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0);
    for host in ["evil.org", "93.184.216.34", "a.example.org.evil.org"] {
        let mut stream = connect("93.184.216.34:80");
        write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        assert_eq!(response(&mut stream).0, 403, "{host}");
    }
    // Ambiguous requests are not forwarded.
    for bad in [
        "GET / HTTP/1.1\r\nHost: a.example.org\r\nHost: evil.org\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.example.org\n\n",
        "GET / HTTP/1.0\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
    ] {
        is_reset("93.184.216.34:80", bad.as_bytes());
    }
    let mut open = connect("93.184.216.40:80");
    open.write_all(b"GET / HTTP/1.1\r\nHost: whoever.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut open).0, 200);
}

fn check_http_hosts(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 8, "{refused:#?}");
    assert_eq!(refused[0].name.as_deref(), Some("b.example.org"));
    assert!(refused[0].bytes_out > 0 && refused[0].bytes_in > 0);
    assert!(refused[4].reason.as_deref().unwrap().contains("Host comes twice"), "{:?}", refused[4]);
}

fn stage_words(world: &mut World) {
    stage_http(world);
    world.serve("93.184.216.34:7", echo);
    world.serve("93.184.216.40:7", echo);
    world.serve("93.184.216.34:9", |mut stream| {
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).is_ok() {
            write!(stream, "{}", all.len()).unwrap();
        }
    });
}

/// A server that answers to a single letter gets it at once, although it could start a request; if it does become a
/// request, the request is judged.
fn words() {
    resolve("a.example.org");
    for word in ["P", "GET", "\r", "PRI", "EHLO me"] {
        let mut stream = connect("93.184.216.34:7");
        word.as_bytes().chunks(1).for_each(|letter| echoes(&mut stream, letter));
        echoes(&mut stream, b"\x01and on");
    }
    // Where the address is allowed, an incomplete request passes.
    for word in ["GET /", "GET http://a.b/", "CONNECT x", "\x16\x03"] {
        let mut stream = connect("93.184.216.40:7");
        word.as_bytes().chunks(1).for_each(|letter| echoes(&mut stream, letter));
    }
    let mut stream = connect("93.184.216.34:9");
    stream.write_all(b"x").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1");
    let slowly = |host: &str| {
        let mut stream = connect("93.184.216.34:80");
        for part in ["G", "ET", " ", "/slow HTTP/1.1\r\nHo", &format!("st: {host}\r\n\r\n")] {
            stream.write_all(part.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        stream
    };
    let mut stream = slowly("a.example.org");
    assert_eq!(response(&mut stream), (200, "GET /slow HTTP/1.1|a.example.org|".into()));
    stream.write_all(b"GET /again HTTP/1.1\r\nHost: a.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream), (200, "GET /again HTTP/1.1|a.example.org|".into()));
    assert_eq!(response(&mut slowly("evil.org")).0, 403);
    // The server receives no byte of a request before it is judged.
    let mut stream = connect("93.184.216.34:7");
    echoes(&mut stream, b"GET");
    stream.write_all(b" /x HTTP/1.1\r\nHost: evil.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 403);
}

// promise 6
fn check_words(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused.iter().all(|event| event.name.as_deref() == Some("evil.org")), "{refused:#?}");
    // Only the bytes that passed before the judgement were counted.
    assert_eq!((refused[0].bytes_out, refused[1].bytes_out), (4, 3));
}

fn http_shapes() {
    resolve("a.example.org");
    let mut stream = connect("93.184.216.34:80");
    // Pipelined requests, with and without bodies.
    let one = "GET /1 HTTP/1.1\r\nHost: a.example.org\r\n\r\n";
    let two = "POST /2 HTTP/1.1\r\nHost: a.example.org\r\nContent-Length: 5\r\n\r\nhello";
    write!(stream, "{one}{two}{one}").unwrap();
    assert_eq!(response(&mut stream).1, "GET /1 HTTP/1.1|a.example.org|");
    assert_eq!(response(&mut stream).1, "POST /2 HTTP/1.1|a.example.org|hello");
    assert_eq!(response(&mut stream).1, "GET /1 HTTP/1.1|a.example.org|");
    // A delayed body.
    write!(stream, "{}", &two[..two.len() - 5]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    write!(stream, "later").unwrap();
    assert_eq!(response(&mut stream).1, "POST /2 HTTP/1.1|a.example.org|later");
    // A protocol switch.
    write!(stream, "GET /x HTTP/1.1\r\nHost: a.example.org\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 101);
    echoes(&mut stream, b"anything at all");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0);
}

fn stage_inspected(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org","methods":["GET"]},
        {"action":"allow","host":"b.example.org"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &[SERVER]);
    world.serve("93.184.216.34:443", echo);
}

fn inspected() {
    resolve("a.example.org");
    is_reset("93.184.216.34:443", &hello(Some("a.example.org")));
    is_reset("93.184.216.34:443", b"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n");
    is_reset("93.184.216.34:443", b"\x01");
    resolve("b.example.org");
    echoes(&mut connect("93.184.216.34:443"), &hello(Some("b.example.org")));
    is_reset("93.184.216.34:443", &hello(Some("a.example.org")));
    is_reset("93.184.216.34:443", &hello(None));
}

fn check_inspected(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let reasons: Vec<_> = refused.iter().map(|e| e.reason.as_deref().unwrap_or("-")).collect();
    let unread = "requests to a.example.org are inspected, and this is neither HTTP nor TLS";
    assert_eq!(reasons[2], unread);
    assert_eq!(seen.all(Op::Connect, EventStage::Opened).len(), 1);
}

fn stage_asking(world: &mut World) {
    world.rules =
        r#"{"action":"allow","host":"a.example.org"},{"action":"ask","host":"a.example.org","ports":"7"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve("93.184.216.34:7", echo);
    world.serve("93.184.216.34:8", echo);
}

fn asking() {
    resolve("a.example.org");
    reaches("93.184.216.34:8");
    is_reset("93.184.216.34:7", b"\x01");
}

fn check_asking(seen: &Seen) {
    let refused = seen.one(Op::Connect, EventStage::Refused);
    assert_eq!((refused.action, refused.rule.as_str()), (terms::Action::Ask, "net.rules[1]"));
}

/// Malformed input from a fixed seed, at every place where the broker parses.
fn nonsense() {
    let seeds: [(&str, Vec<u8>); 5] = [
        ("93.184.216.34:80", b"POST /x HTTP/1.1\r\nHost: a.example.org\r\nContent-Length: 3\r\n\r\nabcGET ".to_vec()),
        ("93.184.216.34:80", hello(Some("a.example.org"))),
        ("192.0.0.53:1080", b"\x05\x01\x00\x05\x01\x00\x03\x0da.example.org\x00\x50".to_vec()),
        ("192.0.0.53:3128", b"GET http://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n".to_vec()),
        (
            "8.8.8.8:53",
            [&[0, 31][..], &egress::dns::build_query(7, "a.example.org", egress::dns::RecordType::A).unwrap()].concat(),
        ),
    ];
    resolve("a.example.org");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..400 {
        let (to, seed) = &seeds[round % seeds.len()];
        let mut bytes = seed.clone();
        for _ in 0..1 + random(4) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, random(256) as u8),
            }
        }
        let mut stream = connect(to);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        // The connection ends, with or without an error.
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(!ended.is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "{to} hangs on {}", bytes.escape_ascii());
    }
    let mut stream = connect("93.184.216.34:80");
    stream.write_all(b"GET /1 HTTP/1.1\r\nHost: a.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 200);
}
