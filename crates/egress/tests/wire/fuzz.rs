//! A fuzzer without tools: the kept corpus, mutated from a seed. The number of inputs is fixed; `COFFERDAM_FULL=1` tries a hundred times
//! as many. A failure prints the seed and the input; keep the input as a
//! file of the corpus, and `corpus_never_panics` holds it for good.

use crate::input::{dechunk, one_by_one};
use egress::chunked::DecodeStep;
use egress::dns::{self, Rcode, RecordType, ResponseError};
use egress::hello::{self, Hello};
use egress::hosts::Hosts;
use egress::http1::{self, BodyFraming, Head, HeadScan, RequestHead, Response};
use egress::resolv_conf::Resolv;
use egress::socks::{SocksHandshake, SocksStep};
use policy::{Context, Format, HostName, NetRequest, Resolved};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use testkit::sample::{self, Random, mutate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Dns,
    Hello,
    Http,
    Socks,
    Files,
    Path,
}

const TARGETS: [(Target, &str); 6] = [
    (Target::Dns, "dns"),
    (Target::Hello, "hello"),
    (Target::Http, "http"),
    (Target::Socks, "socks"),
    (Target::Files, "files"),
    (Target::Path, "path"),
];

/// Dictionary of words that random mutation would not find.
const WORDS: [&[u8]; 50] = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b":",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Host: a.org\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: x\r\n",
    b"HTTP/1.0",
    b"HTTP/1.1 101 x\r\n",
    b"CONNECT a.org:1 ",
    b"OPTIONS * ",
    b"http://",
    b"@",
    b"#",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"fffffffffffffff\r\n",
    b";ext=1",
    b"X: y\r\n",
    b"\xc0\x0c",
    b"\xc0\x00",
    b"\xff\xff",
    b"\x00\x05\x00\x01\x00\x00\x00\x01\x00\x02\xc0\x0c",
    b"\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\x01\x02\x03\x04",
    b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00",
    b"\x3f",
    b"\x16\x03\x01\x00\x01",
    b"\x00\x00\x00\x0a\x00\x08\x00\x00\x05a.org",
    b"\xfe\x0d\x00\x00",
    b"\x00\x10\x00\x05\x00\x03\x02h2",
    b"\x05\x01\x00",
    b"\x05\x01\x00\x03\x05a.org\x00\x50",
    b"nameserver ",
    b"options timeout:",
    b"/../",
    b"/..;/",
    b"/ok/not",
    b"%2e",
    b"%2f",
    b"%5c",
    b"%3b",
    b"%25",
    b"\\",
    b"//",
];

/// Checks the invariants for any input. Returns true if the input was accepted.
fn check(target: Target, bytes: &[u8]) -> bool {
    match target {
        Target::Dns => check_query(bytes) | check_answer(bytes),
        Target::Hello => check_hello(bytes),
        Target::Http => check_request(bytes) | check_response(bytes) | check_chunked(bytes),
        Target::Socks => check_socks(bytes),
        Target::Files => check_files(&String::from_utf8_lossy(bytes)),
        Target::Path => check_path(&String::from_utf8_lossy(bytes)),
    }
}

fn check_query(bytes: &[u8]) -> bool {
    let question = match dns::parse_query(bytes) {
        Ok(question) => question,
        Err(bad) => {
            assert!(!bad.reason.is_empty() && bad.reply.is_none_or(|r| r.len() == 12));
            return false;
        }
    };
    assert!(question.name.len() <= 4 * 255 && question.name.is_ascii());
    assert_eq!(question.is_host, matches!(HostName::parse(&question.name), Ok(HostName::Name(_))));
    let records: Vec<IpAddr> = (0..300u16).map(|n| [10, 0, (n >> 8) as u8, n as u8].into()).collect();
    let told = dns::udp_reply(&question, Rcode::NoError, &records, 60);
    assert!(told.len() <= question.udp_size.unwrap_or(512).clamp(512, 4096).into());
    let whole = dns::tcp_reply(&question, Rcode::NoError, &records[..70], 60);
    if question.is_host {
        let read =
            dns::parse_response(&whole, question.id, &question.name, question.record_type).expect("our own answer");
        assert_eq!(read.addresses.len(), if question.record_type == RecordType::A { 64 } else { 0 });
        let asked = dns::build_query(question.id, &question.name, question.record_type).expect("a host name");
        let again = dns::parse_query(&asked).expect("our own question");
        assert_eq!((again.id, again.name, again.record_type), (question.id, question.name, question.record_type));
    }
    true
}

fn check_answer(bytes: &[u8]) -> bool {
    let id = bytes.get(..2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let read = |kind| dns::parse_response(bytes, id, "www.example.org", kind);
    let mut taken = false;
    for kind in [RecordType::A, RecordType::Aaaa] {
        match read(kind) {
            Ok(answer) => {
                assert!(answer.addresses.len() <= dns::MAX_ADDRESSES);
                assert!(answer.addresses.iter().all(|a| a.is_ipv4() == (kind == RecordType::A)));
                assert!(answer.rcode == Rcode::NoError || answer.addresses.is_empty());
                taken = true;
            }
            Err(ResponseError::NotOurs(reason) | ResponseError::Bad(reason)) => assert!(!reason.is_empty()),
        }
    }
    taken
}

fn check_hello(bytes: &[u8]) -> bool {
    let whole = hello::read(bytes);
    assert_eq!(one_by_one(bytes, hello::read, |h| *h == Hello::NeedMore).0, whole);
    assert!(bytes.len() < hello::MAX_HELLO || whole != Hello::NeedMore);
    let Hello::Client(client) = whole else {
        return false;
    };
    if let Some(name) = client.sni {
        assert_eq!(HostName::parse(&name), Ok(HostName::Name(name.clone())));
    }
    assert!(client.alpn.iter().all(|p| p.is_ascii() && !p.is_empty()) && !client.versions.is_empty());
    true
}

fn check_request(bytes: &[u8]) -> bool {
    let whole = http1::read_request(bytes);
    assert_eq!(one_by_one(bytes, http1::read_request, |h| *h == Head::NeedMore).0, whole);
    let mut seen = HeadScan::default();
    let resumed = (0..=bytes.len()).map(|len| http1::resume_request(&bytes[..len], &mut seen));
    assert_eq!(resumed.into_iter().find(|h| *h != Head::NeedMore).unwrap_or(Head::NeedMore), whole);
    match whole {
        Head::Done(request) => {
            check_request_head(&request, bytes);
            true
        }
        Head::Bad { status, reason } => {
            assert!((400..=505).contains(&status) && !reason.is_empty());
            false
        }
        Head::NeedMore => false,
    }
}

/// Checks that an accepted head contains nothing ambiguous, and serialises to the same head.
fn check_request_head(request: &RequestHead, bytes: &[u8]) {
    let head = &bytes[..request.consumed];
    assert!(head.ends_with(b"\r\n\r\n") && head.len() <= http1::MAX_HEAD);
    check_lines(head);
    assert!(request.fields.all("host").count() <= 1);
    assert_eq!(HostName::parse(&request.host.to_string()).as_ref(), Ok(&request.host));
    assert_ne!(request.body, BodyFraming::UntilClose);
    check_framing(&request.fields, request.body);
    let written = http1::write_request(&request.method, &request.target.to_string(), &request.fields);
    let Head::Done(again) = http1::read_request(&written.expect("what was read can be written")) else {
        // A request of HTTP/1.0 may leave Host out, one of HTTP/1.1 may not.
        assert_eq!((request.version, request.fields.get("host")), (http1::Version::Http10, None));
        return;
    };
    assert_eq!((&again.method, &again.target, &again.fields), (&request.method, &request.target, &request.fields));
    assert_eq!((&again.host, again.port, again.body), (&request.host, request.port, request.body));
}

fn check_response(bytes: &[u8]) -> bool {
    let mut taken = false;
    for method in ["GET", "HEAD", "CONNECT"] {
        let read = |bytes: &[u8]| http1::read_response(bytes, method);
        let whole = read(bytes);
        assert_eq!(one_by_one(bytes, read, |h| *h == Head::NeedMore).0, whole);
        match whole {
            Head::Done(response) => {
                check_response_head(&response, bytes, method);
                taken = true;
            }
            Head::Bad { status, .. } => assert_eq!(status, 502),
            Head::NeedMore => {}
        }
    }
    taken
}

fn check_response_head(response: &Response, bytes: &[u8], method: &str) {
    check_lines(&bytes[..response.consumed]);
    let bodiless = matches!(response.status, 100..=199 | 204 | 304) || method == "HEAD";
    assert!(!bodiless || response.body == BodyFraming::None);
    let written = http1::write_response(response.status, &response.reason, &response.fields);
    let Head::Done(again) = http1::read_response(&written.expect("what was read can be written"), method) else {
        panic!("what was written is not read");
    };
    assert_eq!((again.status, &again.reason, &again.fields), (response.status, &response.reason, &response.fields));
}

fn check_lines(head: &[u8]) {
    for (at, byte) in head.iter().enumerate() {
        match byte {
            b'\n' => assert_eq!(head[at - 1], b'\r'),
            b'\r' => assert_eq!(head[at + 1], b'\n'),
            byte => assert!(*byte == b'\t' || *byte >= b' ' && *byte != 0x7f),
        }
    }
    assert!(head.windows(3).all(|w| w != b"\r\n " && w != b"\r\n\t"));
}

fn check_framing(fields: &http1::HeaderFields, body: BodyFraming) {
    let lengths: Vec<&[u8]> = fields.all("content-length").collect();
    let codings: Vec<&[u8]> = fields.all("transfer-encoding").collect();
    match body {
        BodyFraming::Length(len) => assert_eq!((lengths, codings.len()), (vec![len.to_string().as_bytes()], 0)),
        BodyFraming::Chunked => assert_eq!((lengths.len(), codings), (0, vec![&b"chunked"[..]])),
        BodyFraming::None | BodyFraming::UntilClose => assert!(codings.is_empty()),
    }
}

fn check_chunked(bytes: &[u8]) -> bool {
    let start = bytes.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |at| at + 4);
    let bytes = &bytes[start..];
    let whole = dechunk(bytes, bytes.len());
    for step in [1, 3] {
        assert_eq!(dechunk(bytes, step), whole);
    }
    assert!(whole.0.len() <= bytes.len() && whole.2 <= bytes.len());
    matches!(whole.1, DecodeStep::End(_))
}

fn check_socks(bytes: &[u8]) -> bool {
    let whole = converse(bytes, bytes.len());
    assert_eq!(converse(bytes, 1), whole);
    match whole.1 {
        SocksStep::Connect { host, port, .. } => {
            assert!(port > 0);
            assert_eq!(HostName::parse(&host.to_string()), Ok(host));
            true
        }
        SocksStep::Bad { reply, reason } => {
            assert!(reply.len() <= 10 && !reason.is_empty());
            false
        }
        _ => {
            assert!(bytes.len() - whole.2 <= 513);
            false
        }
    }
}

/// Runs a whole SOCKS handshake with `size` bytes at a time.
fn converse(input: &[u8], size: usize) -> (Vec<u8>, SocksStep, usize) {
    let mut socks = SocksHandshake::new();
    let (mut sent, mut used, mut have) = (Vec::new(), 0, 0);
    loop {
        match socks.step(&input[used..have]) {
            SocksStep::NeedMore if have == input.len() => return (sent, SocksStep::NeedMore, used),
            SocksStep::NeedMore => have = (have + size).min(input.len()),
            SocksStep::Reply { bytes, consumed } => {
                sent.extend(bytes);
                used += consumed;
            }
            end => return (sent, end, used),
        }
    }
}

fn check_files(text: &str) -> bool {
    let resolv = Resolv::parse(text);
    assert!((1..=3).contains(&resolv.servers.len()));
    assert!((1..=30).contains(&resolv.timeout) && (1..=5).contains(&resolv.attempts));
    let hosts = Hosts::parse(text);
    let found = text.split_ascii_whitespace().filter(|word| !hosts.lookup(word).is_empty()).count();
    found > 0 || resolv != Resolv::parse("")
}

/// Checks that an allowed path stays within the allowed prefix, however a server decodes it.
fn check_path(path: &str) -> bool {
    static RULES: OnceLock<Resolved> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let text = r#"{"version":1,"defaults":{"net":"deny"},"net":{"rules":[
            {"action":"allow","host":"a.org","paths":["/ok","/ok/**"]},
            {"action":"deny","host":"a.org","paths":["/ok/not","/ok/not/**"]}]}}"#;
        let document = policy::parse(text, Format::Json, "test").expect("a policy");
        let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
        policy::resolve(&policy::effective(&[document]).expect("a policy"), &ctx).expect("a policy")
    });
    let ask = NetRequest { method: Some("GET"), path: Some(path), ..NetRequest::tcp("a.org", 443) };
    if !rules.net(&ask).allowed() {
        return false;
    }
    for reading in readings(path) {
        let names: Vec<&str> = reading.iter().map(String::as_str).collect();
        assert!(names.starts_with(&["ok"]) && !names.starts_with(&["ok", "not"]), "a server may read {names:?}");
    }
    true
}

/// Returns the paths that servers may derive: decoded once or twice, backslashes as slashes, parameters removed, in any
/// order, and dot segments resolved last.
fn readings(path: &str) -> Vec<Vec<String>> {
    let plain = path.split(['?', '#']).next().unwrap_or_default();
    let mut out = Vec::new();
    for choices in 0..16u8 {
        let chosen = |bit: u8| choices & 1 << bit != 0;
        let mut text = plain.to_owned();
        if chosen(0) {
            text = without_parameters(&text);
        }
        text = decoded(&text);
        if chosen(1) {
            text = decoded(&text);
        }
        if chosen(2) {
            text = text.replace('\\', "/");
        }
        if chosen(3) {
            text = without_parameters(&text);
        }
        let mut segments: Vec<String> = Vec::new();
        for segment in text.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(segments.pop()),
                name => segments.push(name.to_owned()),
            }
        }
        out.push(segments);
    }
    out
}

fn without_parameters(path: &str) -> String {
    let names: Vec<&str> = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    names.join("/")
}

fn decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Runs one input; a panic prints the seed and the input.
fn run(target: Target, bytes: &[u8], seed: u64) -> bool {
    match catch_unwind(AssertUnwindSafe(|| check(target, bytes))) {
        Ok(accepted) => accepted,
        Err(_) => panic!("{target:?} failed; COFFERDAM_TEST_SEED={seed}\ninput: {}", bytes.escape_ascii()),
    }
}

fn corpus() -> Vec<(Target, PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut out = Vec::new();
    for (target, dir) in TARGETS {
        let entries = std::fs::read_dir(root.join(dir)).expect("the corpus is kept");
        for path in entries.filter_map(|e| e.ok().map(|e| e.path())) {
            let bytes = std::fs::read(&path).expect("readable");
            out.push((target, path, bytes));
        }
    }
    out.sort_by(|a, b| a.1.cmp(&b.1));
    out
}

#[test]
fn corpus_never_panics() {
    let corpus = corpus();
    for (_, path, bytes) in &corpus {
        for (target, _) in TARGETS {
            if catch_unwind(AssertUnwindSafe(|| check(target, bytes))).is_err() {
                panic!("{} as {target:?}", path.display());
            }
        }
    }
    println!("{} files of the corpus", corpus.len());
}

/// Number of inputs for each target in one run.
const INPUTS: u64 = 8_000;

fn fuzz(target: Target) {
    let seed = sample::seed();
    let mut random = Random(seed);
    let mut pool: Vec<Vec<u8>> = corpus().into_iter().filter(|c| c.0 == target).map(|c| c.2).collect();
    let mut accepted = 0u64;
    let inputs = sample::times(INPUTS, 100 * INPUTS);
    for _ in 0..inputs {
        let bytes = pool[random.below(pool.len())].clone();
        let other = pool[random.below(pool.len())].clone();
        let input = mutate(&bytes, &other, &WORDS, &mut random);
        if run(target, &input, seed) {
            accepted += 1;
            // Accepted inputs lead to deeper states.
            if pool.len() < 500 && input.len() < 1000 {
                pool.push(input);
            }
        }
    }
    println!("{target:?}: {inputs} inputs, {accepted} accepted, seed {seed}");
    assert!(accepted > 0, "nothing was accepted: the corpus has rotted");
}

#[test]
fn fuzz_dns() {
    fuzz(Target::Dns);
}

#[test]
fn fuzz_hello() {
    fuzz(Target::Hello);
}

#[test]
fn fuzz_http() {
    fuzz(Target::Http);
}

#[test]
fn fuzz_socks() {
    fuzz(Target::Socks);
}

#[test]
fn fuzz_files() {
    fuzz(Target::Files);
}

#[test]
fn fuzz_path() {
    fuzz(Target::Path);
}
