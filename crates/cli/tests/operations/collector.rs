//! A real OTLP receiver, in clear and over TLS, and the credentials that it requires.

use crate::daemon::{Daemon, python_path, until};
use crate::support::certificate::Certificate;
use crate::support::{As, Place, to_the_end, unique};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Collector that decodes requests with the OTLP schema, refuses unknown fields, and records them.
pub struct Collector {
    child: Child,
    seen: PathBuf,
    pub endpoint: String,
}

const COLLECTOR: &str = r#"
import http.server, json, ssl, sys
from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
kinds = {'/v1/traces': ExportTraceServiceRequest, '/v1/metrics': ExportMetricsServiceRequest}
def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in (value if field.is_repeated else [value]):
                known(one)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.headers['content-type'] == 'application/x-protobuf'
        body = self.rfile.read(int(self.headers['content-length']))
        message = kinds[self.path]()
        message.ParseFromString(body)
        known(message)
        assert message.ByteSize() > 0
        with open(sys.argv[1], 'a') as out:
            proof = [self.headers[name] for name in ('authorization', 'x-scope-orgid')]
            out.write(json.dumps({'path': self.path, 'proof': proof, 'message': MessageToDict(message)}) + '\n')
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

impl Collector {
    pub fn start(place: &Place) -> Collector {
        Collector::start_with(place, "http://127.0.0.1", &[])
    }

    /// Starts with a certificate and key, for TLS only.
    pub fn start_with(place: &Place, at: &str, tls: &[&str]) -> Collector {
        let seen = place.file(format!("collected-{}", unique()), "");
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", COLLECTOR]).arg(&seen).args(tls);
        let mut child = command.env("PYTHONPATH", python_path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Collector { child, seen, endpoint: format!("{at}:{}", port.trim()) }
    }

    /// Credentials of each request.
    pub fn proofs(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.seen).unwrap();
        let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.map(|mut one| one["proof"].take()).collect()
    }

    pub fn messages(&self, path: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.seen).unwrap();
        let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(|one| one["path"] == path).map(|mut one| one["message"].take()).collect()
    }

    pub fn spans(&self) -> Vec<Value> {
        let messages = self.messages("/v1/traces");
        let all = messages.iter().flat_map(|m| below(&m["resourceSpans"], "scopeSpans"));
        all.flat_map(|scope| scope["spans"].as_array().cloned().unwrap_or_default()).collect()
    }
}

pub fn below(list: &Value, name: &str) -> Vec<Value> {
    let items = list.as_array().into_iter().flatten();
    items.flat_map(|item| item[name].as_array().cloned().unwrap_or_default()).collect()
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn secret(place: &Place, name: &str, text: &str) -> PathBuf {
    let file = place.file(name, text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

const SOON: [(&str, &str); 1] = [("COFFERDAM_TELEMETRY_INTERVAL", "200ms")];

// promise 26
#[test]
fn a_collector_behind_tls_is_told_only_when_it_proves_its_name() {
    let place = Place::new(As::User);
    let signed = |name: &str| Certificate::new(&place, name, "DNS:localhost");
    let (Certificate { cert, key }, Certificate { cert: other, .. }) = (signed("own"), signed("other"));
    let collector = Collector::start_with(&place, "https://localhost", &[&cert, &key]);
    let headers = secret(&place, "headers", "authorization: Bearer canary-one\nX-Scope-OrgID: blue\n");
    let words = |endpoint: &str, ca: &str| {
        let file = headers.to_str().unwrap();
        ["--otlp-endpoint", endpoint, "--otlp-ca", ca, "--otlp-headers-file", file].map(str::to_owned)
    };
    let start = |words: [String; 6]| Daemon::start(&place, &words.each_ref().map(String::as_str), &SOON);
    // A certificate of another authority, and a name that it does not cover: not a byte is sent.
    let wrong_name = collector.endpoint.replace("localhost", "127.0.0.1");
    for (endpoint, ca) in [(collector.endpoint.as_str(), &other), (&wrong_name, &cert)] {
        let daemon = start(words(endpoint, ca));
        until("it says why", || daemon.log().contains("certificate is not accepted").then_some(()));
        let log = daemon.end();
        assert!(!log.contains("canary"), "{log}");
        assert_eq!(collector.proofs(), Vec::<Value>::new(), "{endpoint} {ca}");
    }
    // The control: the right certificate.
    let daemon = start(words(&collector.endpoint, &cert));
    daemon.get("/v1/sandboxes");
    until("spans and metrics", || {
        let both = ["/v1/traces", "/v1/metrics"].iter().all(|path| !collector.messages(path).is_empty());
        both.then_some(())
    });
    let span = collector.spans().into_iter().find(|span| span["name"] == "GET /v1/sandboxes");
    assert!(span.is_some(), "{:?}", collector.spans());
    assert!(collector.proofs().iter().all(|proof| *proof == serde_json::json!(["Bearer canary-one", "blue"])));
    // A token is replaced without a restart; while its file is readable by others nothing is sent.
    secret(&place, "headers", "authorization: Bearer canary-two\n");
    let two = |proof: &Value| proof[0] == "Bearer canary-two" && proof[1].is_null();
    until("the new token", || collector.proofs().last().is_some_and(two).then_some(()));
    fs::set_permissions(&headers, fs::Permissions::from_mode(0o644)).unwrap();
    until("it says why", || daemon.log().contains("other users can read or change it").then_some(()));
    let log = daemon.end();
    assert!(!log.contains("canary"), "{log}");
}

// promise 26
#[test]
fn what_could_not_work_or_would_be_read_on_the_way_is_refused_at_the_start() {
    let place = Place::new(As::User);
    let Certificate { cert, key } = Certificate::new(&place, "own", "DNS:localhost");
    let (cert, key) = (cert.as_str(), key.as_str());
    let good = secret(&place, "good", "authorization: Bearer canary\n");
    let odd = secret(&place, "odd", "host: canary\n");
    let open = place.file("open", "authorization: Bearer canary\n");
    let [good, odd, open] = [&good, &odd, &open].map(|file| file.to_str().unwrap());
    let check = |words: &[&str]| {
        let mut command = place.cofferdam(["serve", "--check", "--json"]);
        let output = to_the_end(command.args(words), b"");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said["message"].as_str().unwrap_or_default().to_owned())
    };
    let (tls, clear, far) = ("https://localhost:4318", "http://127.0.0.1:4318", "http://192.0.2.1:4318");
    for fine in [
        &["--otlp-endpoint", tls, "--otlp-ca", cert, "--otlp-headers-file", good][..],
        &["--otlp-endpoint", tls],
        &["--otlp-endpoint", clear, "--otlp-headers-file", good],
        &["--otlp-endpoint", far],
    ] {
        let (code, why) = check(fine);
        assert_eq!(code, Some(0), "the control: {fine:?}: {why}");
    }
    for (words, says) in [
        (&["--otlp-endpoint", far, "--otlp-headers-file", good][..], "would be sent to the collector unencrypted"),
        (&["--otlp-endpoint", clear, "--otlp-ca", cert], "is for TLS"),
        (&["--otlp-endpoint", tls, "--otlp-ca", key], "no certificate in it"),
        (&["--otlp-endpoint", tls, "--otlp-ca", "/nowhere"], "/nowhere"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", open], "other users can read or change it"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", odd], "line 1: this header is set"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", "/dev/zero"], "not a regular file"),
        (&["--otlp-endpoint", "https://me:canary@localhost"], "more than a host"),
        (&["--otlp-endpoint", "https://localhost/?key=canary"], "more than a host"),
        (&["--otlp-endpoint", "https://"], "not an http:// or https:// URL"),
        (&["--otlp-endpoint", "grpc://localhost"], "not an http:// or https:// URL"),
    ] {
        let (code, why) = check(words);
        assert!(code == Some(2) && why.contains(says), "{words:?}: {code:?} {why}");
        assert!(!why.contains("canary"), "{why}");
    }
}

/// A bad collector: answers connections in turn in one of these ways, and counts open ones.
const GARBAGE: &str = r#"
import os, select, socket, sys, threading, time
ways = ['huge', 'endless', 'slow', 'half', 'redirect', 'nonsense', 'silent', 'reset', 'continue', 'head', 'deaf', 'refusal']
server = socket.socket()
server.bind(('127.0.0.1', 0))
server.listen(64)
print(server.getsockname()[1], flush=True)
lock, open_now, most, told = threading.Lock(), 0, 0, set()
def note(change, way):
    global open_now, most
    with lock:
        open_now += change
        most = max(most, open_now)
        told.add(way)
        with open(sys.argv[1] + '.part', 'w') as out:
            out.write('%d %d %s' % (open_now, most, ' '.join(sorted(told))))
        os.rename(sys.argv[1] + '.part', sys.argv[1])
def answer(line, way):
    note(1, way)
    try:
        line.settimeout(20)
        if way != 'deaf':
            line.recv(1 << 16)
        say = line.sendall
        if way == 'huge':
            say(b'HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n')
            for _ in range(15000): say(b'x' * 65536)
        elif way == 'endless':
            say(b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n')
            while True: say(b'1000\r\n' + b'y' * 4096 + b'\r\n')
        elif way == 'slow':
            for byte in b'HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabcdefghi':
                say(bytes([byte])); time.sleep(0.5)
        elif way == 'half':
            say(b'HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf')
        elif way == 'redirect':
            at = 'http://127.0.0.1:%d/elsewhere' % int(sys.argv[2])
            say(('HTTP/1.1 307 Temporary Redirect\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n' % at).encode())
        elif way == 'nonsense':
            say(bytes(range(256)) * 64)
        elif way == 'silent' or way == 'deaf':
            # Waits until the daemon gives up.
            gone = select.poll(); gone.register(line, select.POLLRDHUP | select.POLLHUP); gone.poll(15000)
        elif way == 'continue':
            while True: say(b'HTTP/1.1 100 Continue\r\n\r\n')
        elif way == 'head':
            say(b'HTTP/1.1 200 OK\r\n')
            while True: say(b'x-more: ' + b'z' * 4000 + b'\r\n')
        elif way == 'refusal':
            say(b'HTTP/1.1 503 Unavailable\r\nretry-after: 99999\r\ncontent-length: 0\r\n\r\n')
    except OSError:
        pass
    finally:
        line.close()
        note(-1, way)
n = 0
while True:
    line, _ = server.accept()
    threading.Thread(target=answer, args=(line, ways[n % len(ways)]), daemon=True).start()
    n += 1
"#;

/// Responses that are huge, slow, truncated, endless, redirects or garbage cost the daemon neither time nor memory nor
/// connections, and are not followed.
// promise 24
#[test]
fn garbage_of_a_collector_hurts_nobody() {
    let place = Place::new(As::User);
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let told = place.root.join("told");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", GARBAGE]).arg(&told).arg(elsewhere.local_addr().unwrap().port().to_string());
    let mut garbage = crate::daemon::Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(garbage.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let endpoint = format!("http://127.0.0.1:{}", port.trim());
    let daemon = Daemon::start(&place, &["--otlp-endpoint", &endpoint], &[("COFFERDAM_TELEMETRY_INTERVAL", "20ms")]);
    let field = |name: &str| -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        status.lines().find_map(|l| l.strip_prefix(name)?.trim().split(' ').next()?.parse().ok()).unwrap()
    };
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    daemon.get("/v1/sandboxes");
    let (memory, handles) = (field("VmHWM:"), descriptors());
    let ways = 12;
    let all = || fs::read_to_string(&told).unwrap_or_default();
    let begun = std::time::Instant::now();
    let mut slowest = std::time::Duration::ZERO;
    while all().split(' ').count() < 2 + ways {
        assert!(begun.elapsed() < std::time::Duration::from_secs(180), "{}", all());
        let asked = std::time::Instant::now();
        assert_eq!(daemon.get("/v1/sandboxes").status, 200);
        slowest = slowest.max(asked.elapsed());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The collector stays silent for longer than that.
    assert!(slowest < std::time::Duration::from_secs(12), "requests do not wait for it: {slowest:?}");
    let grown = field("VmHWM:").saturating_sub(memory);
    assert!(grown < 24 << 10, "{grown} KiB");
    // Spans and metrics have one connection each; abandoned ones are closed.
    let most: u64 = all().split(' ').nth(1).unwrap().parse().unwrap();
    assert!(most <= 4, "{}", all());
    assert!(descriptors() <= handles + 4, "{} after {handles}", descriptors());
    assert!(elsewhere.accept().is_err(), "no redirect is followed");
    let log = daemon.end();
    assert!(
        log.contains("it responded with 307") || log.contains("traces") || log.contains("metrics"),
        "it is told: {log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}
