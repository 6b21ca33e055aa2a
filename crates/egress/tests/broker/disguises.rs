//! Two sites at one address, of which a rule names one. The server is as lenient as any: it skips and accepts what some
//! server skips and accepts. No request for the other site may reach it, and other protocols must not suffer.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo};
use egress::event::{EventStage, Op};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case::new("no_disguise_reaches_another_site", disguised, stage_disguised, check_disguised),
    Case::new("http2_without_tls_is_judged_by_its_authority", http2, stage_http2, check_http2),
    Case::new("what_a_server_answers_in_http_was_a_request", answered, stage_answered, check_answered),
    Case::new("no_request_changes_to_a_protocol_with_hosts", offers, stage_disguised, check_offers),
    Case::new("other_protocols_go_by_address_and_port", other_protocols, stage_other, |seen| {
        assert!(seen.all(Op::Connect, EventStage::Refused).is_empty(), "{:#?}", seen.events);
    }),
    Case::new("an_opaque_rule_goes_by_address_and_port", opaque, stage_opaque, check_opaque),
];

/// Address at which everything is allowed, as the control: the server does accept a disguised request.
const OPEN: &str = "93.184.216.40:80";
const NAMED: &str = "93.184.216.34:80";

/// Hosts of the requests that reached the server under a host rule.
static REACHED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn reached(host: &str, stream: &TcpStream) {
    if stream.local_addr().unwrap().to_string() == NAMED {
        REACHED.lock().unwrap().push(host.to_owned());
    }
}

/// Finds a request anywhere in its input, and answers with the request's host.
fn lenient(mut stream: TcpStream) {
    let (mut all, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&all).to_lowercase().replace('\r', "");
        let host =
            text.split("host:").nth(1).and_then(|rest| rest.split_once("\n\n")).map(|(host, _)| host.trim().to_owned());
        if let Some(host) = host {
            reached(&host, &stream);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{host}", host.len());
            all.clear();
        }
        match stream.read(&mut chunk) {
            Ok(len @ 1..) => all.extend(&chunk[..len]),
            _ => return,
        }
    }
}

fn stage_disguised(world: &mut World) {
    world.rules =
        r#"{"action":"allow","host":"a.example.org"},{"action":"allow","cidr":"93.184.216.40/32"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve(NAMED, lenient);
    world.serve(OPEN, lenient);
}

fn disguises() -> Vec<Vec<u8>> {
    let head = "Host: b.example.org\r\n\r\n";
    let mut all: Vec<Vec<u8>> = Vec::new();
    for before in [
        &b"\r\n"[..],
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b" \r\n",
        b"\0",
        b"\x0b",
        b"\xef\xbb\xbf",
        b"\xa0",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x02\x03\x04\x05\x06\x07\x08\0\x01\0\x50",
        b"PROXY TCP4 1.2.3.4 93.184.216.34 1000 80\r\n",
        b"\0\0\0\x08\x04\xd2\x16\x2f ",
        b"\x05\x01\0",
    ] {
        all.push([before, b"GET / HTTP/1.1\r\n", head.as_bytes()].concat());
    }
    for line in [
        "GET / HTTP/1.1\r\n",
        "get / HTTP/1.1\r\n",
        "GET / http/1.1\r\n",
        "GET\t/\tHTTP/1.1\r\n",
        "GET x HTTP/1.1\r\n",
        "GET  / HTTP/1.1\r\n",
        "{} / HTTP/1.1\r\n",
        "GET /\r\n",
        "GET / HTTP/1.1\n",
        "GET http://a.example.org/ HTTP/1.1\r\n",
    ] {
        all.push(format!("{line}{head}").into_bytes());
    }
    all.push([vec![b'x'; 20_000], format!(" / HTTP/1.1\r\n{head}").into_bytes()].concat());
    all
}

fn disguised() {
    resolve("a.example.org");
    for disguise in disguises() {
        let mut open = connect(OPEN);
        open.write_all(&disguise).unwrap();
        assert_eq!(response(&mut open).1, "b.example.org", "the server takes {}", disguise.escape_ascii());
        let parts = [disguise.len(), 1, disguise.len().div_ceil(3)];
        for size in parts.into_iter().filter(|size| disguise.len() / size < 200) {
            let mut stream = connect(NAMED);
            for part in disguise.chunks(size) {
                if stream.write_all(part).is_err() {
                    break;
                }
                if size > 1 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            let mut got = Vec::new();
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut got);
            let got = String::from_utf8_lossy(&got);
            assert!(!got.contains(" 200 "), "{}: {got}", disguise.escape_ascii());
        }
    }
    let mut stream = connect(NAMED);
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n").unwrap();
        assert_eq!(response(&mut stream).1, "a.example.org");
    }
    stream.write_all(b"GET / HTTP/1.1\r\nHost: b.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 403);
}

fn check_disguised(seen: &Seen) {
    assert_eq!(*REACHED.lock().unwrap(), ["a.example.org", "a.example.org"]);
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert!(refused.len() > 2 * disguises().len(), "{refused:#?}");
    assert!(refused.iter().all(|event| event.reason.is_some()), "{refused:#?}");
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Builds an HTTP/2 request on a new stream.
fn request(stream: u32, authority: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x84, 0x41, authority.len() as u8];
    block.extend(authority.as_bytes());
    let mut frame = vec![0, 0, block.len() as u8, 1, 5];
    frame.extend(stream.to_be_bytes());
    frame.extend(block);
    frame
}

/// Returns true if the next response has status 200.
fn is_answered(stream: &mut TcpStream) -> bool {
    loop {
        let mut head = [0; 9];
        // A connection that ends or is reset answers nothing.
        if stream.read_exact(&mut head).is_err() {
            return false;
        }
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == 1 {
            return payload[0] == 0x88;
        }
    }
}

/// HTTP/2 server that answers each request.
fn http2_server(stream: TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let at_name = stream.local_addr().unwrap().to_string() == NAMED;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            if at_name {
                REACHED.lock().unwrap().push(request.uri().authority().unwrap().to_string());
            }
            let _ = respond.send_response(http::Response::new(()), true);
        }
    });
}

fn stage_http2(world: &mut World) {
    stage_disguised_names(world);
    world.serve(NAMED, http2_server);
    world.serve(OPEN, http2_server);
}

fn stage_disguised_names(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"},{"action":"allow","host":"c.example.org"},
        {"action":"allow","cidr":"93.184.216.40/32"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("c.example.org", &["93.184.216.35"]);
}

fn http2() {
    resolve("a.example.org");
    resolve("c.example.org");
    let mut stream = connect(NAMED);
    stream.write_all(&[PREFACE, &request(1, "a.example.org")].concat()).unwrap();
    assert!(is_answered(&mut stream), "the control");
    for (number, other) in
        ["b.example.org", "c.example.org", "93.184.216.34", "a.example.org:81"].into_iter().enumerate()
    {
        stream.write_all(&request(3 + 2 * number as u32, other)).unwrap();
        assert!(!is_answered(&mut stream), "{other}");
    }
    stream.write_all(&request(99, "a.example.org")).unwrap();
    assert!(is_answered(&mut stream), "the connection goes on");
    // Byte by byte, and as the first request.
    let mut slow = connect(NAMED);
    for byte in [PREFACE, &request(1, "b.example.org")].concat() {
        // The refusal may come before the last byte has gone.
        if slow.write_all(&[byte]).is_err() {
            break;
        }
    }
    assert!(!is_answered(&mut slow));
    let mut open = connect(OPEN);
    open.write_all(&[PREFACE, &request(1, "b.example.org")].concat()).unwrap();
    assert!(is_answered(&mut open), "where the address is let through");
}

fn check_http2(seen: &Seen) {
    assert_eq!(*REACHED.lock().unwrap(), ["a.example.org", "a.example.org"]);
    assert_eq!(seen.all(Op::Request, EventStage::Refused).len(), 5, "{:#?}", seen.events);
}

fn stage_answered(world: &mut World) {
    world.rules =
        r#"{"action":"allow","host":"a.example.org"},{"action":"allow","cidr":"93.184.216.40/32"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    let answers_anything = |mut stream: TcpStream| {
        let mut bytes = [0; 100];
        if stream.read(&mut bytes).is_ok_and(|len| len > 0) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
        let _ = stream.read(&mut bytes);
    };
    world.serve(NAMED, answers_anything);
    world.serve(OPEN, answers_anything);
    world.serve("93.184.216.34:81", |mut stream| {
        let _ = stream.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64");
        let _ = stream.read(&mut [0; 100]);
    });
    // A server that times out the request (408).
    world.serve("93.184.216.34:82", |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n");
    });
}

/// The response to an undetected request does not reach the guest.
fn answered() {
    resolve("a.example.org");
    for text in [&b"\xd2\xd2\n"[..], b"HELO x\r\n"] {
        let mut open = connect(OPEN);
        open.write_all(text).unwrap();
        assert_eq!(response(&mut open).0, 200);
        breaks(connect(NAMED), text);
    }
    // An HTTP/2 server that sends its SETTINGS first.
    let mut stream = connect("93.184.216.34:81");
    read(&mut stream, b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64");
    breaks(stream, b"\xd2\xd2\n");
    assert_eq!(response(&mut connect("93.184.216.34:82")).0, 408);
}

fn check_answered(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 3, "{refused:#?}");
    let reason = "the server answers in HTTP, but the first bytes of the client name no host";
    assert!(refused.iter().all(|event| event.reason.as_deref() == Some(reason)), "{refused:#?}");
}

/// Upgrades from HTTP/1 to HTTP/2 or TLS are offered to no server; the request itself is answered.
fn offers() {
    resolve("a.example.org");
    for offer in ["h2c", "H2C", "websocket, h2c", "TLS/1.2", "HTTP/2.0"] {
        let text = format!(
            "GET / HTTP/1.1\r\nUpgrade: {offer}\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: a.example.org\r\n\r\n"
        );
        let mut stream = connect(NAMED);
        stream.write_all(text.as_bytes()).unwrap();
        assert_eq!(response(&mut stream).1, "a.example.org", "{offer}");
        // The following bytes are parsed as a request, not as another protocol.
        stream.write_all(&[PREFACE, &request(1, "b.example.org")].concat()).unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(got.starts_with(b"HTTP/1.1 505") || got.starts_with(b"HTTP/1.1 400"), "{}", got.escape_ascii());
    }
}

fn check_offers(seen: &Seen) {
    assert!(REACHED.lock().unwrap().iter().all(|host| host == "a.example.org"));
    assert_eq!(seen.all(Op::Connect, EventStage::Refused).len(), 5, "{:#?}", seen.events);
}

fn stage_other(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve("93.184.216.34:22", |mut stream| {
        let _ = stream.write_all(b"SSH-2.0-server\r\n");
        echo(stream);
    });
    world.serve("93.184.216.34:5432", |mut stream| {
        let mut request = [0; 8];
        let _ = stream.read_exact(&mut request).and_then(|()| stream.write_all(b"N"));
        echo(stream);
    });
    world.serve("93.184.216.34:6379", echo);
    world.serve("93.184.216.34:9", |mut stream| {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let _ = write!(stream, "{}", all.len());
    });
}

fn other_protocols() {
    resolve("a.example.org");
    let mut ssh = connect("93.184.216.34:22");
    ssh.write_all(b"SSH-2.0-OpenSSH_9.6p1 Debian-1\r\n").unwrap();
    read(&mut ssh, b"SSH-2.0-server\r\nSSH-2.0-OpenSSH_9.6p1 Debian-1\r\n");
    let mut smtp = connect("93.184.216.34:22");
    read(&mut smtp, b"SSH-2.0-server\r\n");
    echoes(&mut smtp, b"EHLO me\r\n");
    echoes(&mut smtp, b"GET / HTTP/1.1\r\nHost: b.example.org\r\n\r\n");
    let mut postgres = connect("93.184.216.34:5432");
    postgres.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").unwrap();
    read(&mut postgres, b"N");
    echoes(&mut postgres, b"\0\0\0\x14\0\x03\0\0user\0me\0\0");
    echoes(&mut postgres, b"Q\0\0\0\x30insert into log values ('GET / HTTP/1.1')\0");
    for text in [
        &b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"[..],
        b"KEYS *\r\n",
        b"get key\r\n",
        b"CONNECT {\"verbose\":false}\r\n",
        b"\x10\x0f\0\x04MQTT",
    ] {
        echoes(&mut connect("93.184.216.34:6379"), text);
    }
    // A line without end, and bytes without a line feed.
    for fill in [b'x', 0, 1, 0xd2] {
        let mut sink = connect("93.184.216.34:9");
        sink.write_all(&[fill; 300_000]).unwrap();
        sink.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        sink.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "300000", "{fill}");
    }
}

fn stage_opaque(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"o.example.org","ports":"80","opaque":true},
        {"action":"allow","host":"a.example.org","ports":"81"},{"action":"allow","host":"o.example.org","ports":"81"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("o.example.org", &[SERVER]);
    world.serve(NAMED, lenient);
    world.serve("93.184.216.34:81", lenient);
}

fn opaque() {
    resolve("a.example.org");
    is_refused(NAMED);
    resolve("o.example.org");
    for disguise in disguises() {
        let mut stream = connect(NAMED);
        stream.write_all(&disguise).unwrap();
        assert_eq!(response(&mut stream).1, "b.example.org");
    }
    // `opaque` holds for its own rule only.
    breaks(connect("93.184.216.34:81"), b" GET / HTTP/1.1\r\nHost: b.example.org\r\n\r\n");
    let mut stream = connect("93.184.216.34:81");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: o.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).1, "o.example.org");
}

fn check_opaque(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    assert_eq!(refused.len(), 2, "{refused:#?}");
    assert!(refused[1].hint.as_deref().is_some_and(|hint| hint.contains("opaque")), "{refused:#?}");
}
