//! SOCKS5 and HTTP proxy clients.

use crate::guest::*;
use crate::world::{Case, SERVER, Seen, World, echo, greet, http};
use egress::event::{EventStage, Op};
use std::io::{Read, Write};
use std::net::TcpStream;

pub const CASES: &[Case] = &[
    Case::new("socks_goes_by_the_same_rules", socks, stage, check_socks),
    Case::new("connect_goes_by_the_same_rules", connects, stage, check_connects),
    Case::new("whole_urls_go_each_to_its_host", urls, stage, |_| {}),
    Case::new("curl_goes_every_way", curl, stage, |_| {}),
];

const SOCKS: &str = "192.0.0.53:1080";
const PROXY: &str = "192.0.0.53:3128";

fn stage(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"},{"action":"allow","host":"b.example.org"},
        {"action":"allow","cidr":"93.184.216.40/32"},{"action":"allow","cidr":"2606:2800:220:2::/64"}"#
        .to_owned();
    world.name("a.example.org", &[SERVER]);
    world.name("b.example.org", &[SERVER, "2606:2800:220:1::1"]);
    world.name("evil.org", &[SERVER]);
    for at in ["93.184.216.34:443", "93.184.216.40:443"] {
        world.serve(at, echo);
    }
    world.serve("93.184.216.34:25", greet);
    world.serve("93.184.216.34:80", http);
    world.serve("[2606:2800:220:2::1]:8080", http);
}

/// Requests a name at the SOCKS server and returns the stream with the reply's status.
fn socks_to(host: &str, port: u16) -> (TcpStream, u8) {
    let mut stream = connect(SOCKS);
    stream.write_all(&[5, 1, 0]).unwrap();
    read(&mut stream, &[5, 0]);
    let mut request = vec![5, 1, 0, 3, host.len() as u8];
    request.extend(host.as_bytes());
    request.extend(port.to_be_bytes());
    stream.write_all(&request).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    (stream, reply[1])
}

fn socks() {
    let (mut stream, status) = socks_to("a.example.org", 443);
    assert_eq!(status, 0);
    echoes(&mut stream, &hello(Some("a.example.org")));
    // The same address under another allowed name is another host.
    let (stream, status) = socks_to("a.example.org", 443);
    assert_eq!(status, 0);
    breaks(stream, &hello(Some("b.example.org")));
    let (mut stream, _) = socks_to("a.example.org", 25);
    read(&mut stream, b"220 hello\r\n");
    echoes(&mut stream, b"EHLO x\r\n");
    assert_eq!(socks_to("evil.org", 443).1, 2);
    assert_eq!(socks_to("127.0.0.1", 443).1, 2);
    assert_eq!(socks_to("a.example.org", 444).1, 5);
    let (mut stream, status) = socks_to("93.184.216.40", 443);
    assert_eq!(status, 0);
    echoes(&mut stream, b"\x01");
}

fn check_socks(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let mismatch = "the client asks for b.example.org on a connection to a.example.org";
    assert_eq!(refused[0].reason.as_deref(), Some(mismatch));
    assert_eq!(seen.one(Op::Connect, EventStage::Failed).name.as_deref(), Some("a.example.org"));
    assert!(!seen.questions.contains(&"evil.org".to_owned()));
}

fn connect_to(authority: &str) -> (TcpStream, u16, String) {
    let mut stream = connect(PROXY);
    write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    let (status, body) = response(&mut stream);
    (stream, status, body)
}

fn connects() {
    let (mut stream, status, _) = connect_to("a.example.org:443");
    assert_eq!(status, 200);
    echoes(&mut stream, &hello(Some("a.example.org")));
    let (stream, status, _) = connect_to("a.example.org:443");
    assert_eq!(status, 200);
    breaks(stream, &hello(Some("b.example.org")));
    let (mut stream, _, _) = connect_to("a.example.org:80");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: b.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 403);
    let (mut stream, _, _) = connect_to("a.example.org:80");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 200);
    let (_, status, body) = connect_to("evil.org:443");
    assert_eq!(status, 403);
    assert!(body.contains("policy_denied"), "{body}");
    assert_eq!(connect_to("169.254.169.254:80").1, 403);
    assert_eq!(connect_to("a.example.org:444").1, 502);
    // The ClientHello directly after the request.
    let mut stream = connect(PROXY);
    let mut bytes = b"CONNECT a.example.org:443 HTTP/1.1\r\nHost: a.example.org:443\r\n\r\n".to_vec();
    bytes.extend(hello(Some("a.example.org")));
    stream.write_all(&bytes).unwrap();
    assert_eq!(response(&mut stream).0, 200);
    read(&mut stream, &hello(Some("a.example.org")));
}

fn check_connects(seen: &Seen) {
    let refused = seen.all(Op::Connect, EventStage::Refused);
    let mismatches =
        refused.iter().filter(|e| e.reason.as_deref().is_some_and(|r| r.contains("on a connection to"))).count();
    assert_eq!(mismatches, 2);
}

fn urls() {
    let mut stream = connect(PROXY);
    for host in ["a.example.org", "b.example.org", "b.example.org"] {
        let secret = "Proxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n";
        write!(stream, "GET http://{host}/p?q HTTP/1.1\r\nHost: {host}\r\n{secret}\r\n").unwrap();
        assert_eq!(response(&mut stream), (200, format!("GET /p?q HTTP/1.1|{host}|")));
    }
    write!(stream, "POST http://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\nContent-Length: 3\r\n\r\nabc")
        .unwrap();
    assert_eq!(response(&mut stream).1, "POST / HTTP/1.1|a.example.org|abc");
    write!(stream, "GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).0, 403);
    for bad in [
        "GET http://a.example.org/ HTTP/1.1\r\nHost: b.example.org\r\n\r\n",
        "GET https://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        "GET http://user@a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
    ] {
        let mut stream = connect(PROXY);
        stream.write_all(bad.as_bytes()).unwrap();
        assert_eq!(response(&mut stream).0, 400, "{bad}");
    }
}

/// A third-party client, if installed.
fn curl() {
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new("curl");
        command.env_clear().args(["-sS", "-m", "5", "-w", "%{http_code}"]).args(args);
        match command.output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => panic!("{error}"),
        }
    };
    if std::process::Command::new("curl").arg("-V").output().is_err() {
        println!("curl is not installed; nothing is shown");
        return;
    }
    resolve("a.example.org");
    let there = "GET / HTTP/1.1|a.example.org|200";
    let to = "http://a.example.org/";
    assert_eq!(run(&["--resolve", "a.example.org:80:93.184.216.34", to]), there);
    assert_eq!(run(&["-x", "http://192.0.0.53:3128", to]), there);
    assert_eq!(run(&["-p", "-x", "http://192.0.0.53:3128", to]), there);
    assert_eq!(run(&["-x", "socks5h://192.0.0.53:1080", to]), there);
    assert_eq!(run(&["-x", "socks5h://192.0.0.53:1080", "http://evil.org/"]), "000");
    assert!(run(&["-x", "http://192.0.0.53:3128", "http://evil.org/"]).ends_with("403"));
    // Addresses in brackets in several spellings, reachable or not.
    for url in ["http://[2606:2800:220:2::1]:8080/", "http://[2606:2800:220:2:0:0:0:1]:8080/"] {
        for way in [&["-x", "http://192.0.0.53:3128"][..], &["-p", "-x", "http://192.0.0.53:3128"]] {
            let said = run(&[way, &[url]].concat());
            assert_eq!(said, "GET / HTTP/1.1|[2606:2800:220:2::1]:8080|200", "{way:?} {url}");
        }
    }
    // One proxy connection for several hosts.
    let several = ["-x", "http://192.0.0.53:3128", to, "http://[2606:2800:220:2::1]:8080/", to];
    let there_by_address = "GET / HTTP/1.1|[2606:2800:220:2::1]:8080|200";
    assert_eq!(run(&several), format!("{there}{there_by_address}{there}"));
    assert_eq!(run(&["-x", "http://192.0.0.53:3128", several[3], to]), format!("{there_by_address}{there}"));
    let beside = run(&["-x", "http://192.0.0.53:3128", "http://[2001:db8::1]:8080/"]);
    assert!(beside.contains("special address") && beside.ends_with("403"), "{beside}");
    let fronted = run(&["--resolve", "evil.org:80:93.184.216.34", "http://evil.org/"]);
    assert!(fronted.contains("evil.org, which did not resolve to 93.184.216.34") && fronted.ends_with("403"));
}
