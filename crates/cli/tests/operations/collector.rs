//! A real receiver of OTLP, in clear and by TLS, and what it takes only from whom.

use crate::daemon::{Daemon, python_path, until};
use crate::support::{As, Place, to_the_end, unique};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A collector that decodes what it is sent with the schema itself, refuses what it does not know, and writes it down.
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

    /// With a certificate and its key it speaks TLS, and nothing else.
    pub fn start_with(place: &Place, at: &str, tls: &[&Path]) -> Collector {
        let seen = place.file(format!("collected-{}", unique()), "");
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", COLLECTOR]).arg(&seen).args(tls);
        let mut child = command.env("PYTHONPATH", python_path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Collector { child, seen, endpoint: format!("{at}:{}", port.trim()) }
    }

    /// What each request proved who it was with.
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

/// A certificate for `localhost` alone that is its own authority, and its key.
fn signed(place: &Place, name: &str) -> (PathBuf, PathBuf) {
    let (key, cert) = (place.root.join(format!("{name}.key")), place.root.join(format!("{name}.pem")));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::set_permissions(&cert, fs::Permissions::from_mode(0o644)).unwrap();
    place.own(&key);
    (cert, key)
}

fn secret(place: &Place, name: &str, text: &str) -> PathBuf {
    let file = place.file(name, text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

const SOON: [(&str, &str); 1] = [("COFFERDAM_TELEMETRY_INTERVAL", "200ms")];

#[test]
fn a_collector_behind_tls_is_told_only_when_it_proves_its_name() {
    let place = Place::new(As::User);
    let ((cert, key), (other, _)) = (signed(&place, "own"), signed(&place, "other"));
    let (cert, other) = (cert.to_str().unwrap(), other.to_str().unwrap());
    let collector = Collector::start_with(&place, "https://localhost", &[Path::new(cert), &key]);
    let headers = secret(&place, "headers", "authorization: Bearer canary-one\nX-Scope-OrgID: blue\n");
    let words = |endpoint: &str, ca: &str| {
        let file = headers.to_str().unwrap();
        ["--otlp-endpoint", endpoint, "--otlp-ca", ca, "--otlp-headers-file", file].map(str::to_owned)
    };
    let start = |words: [String; 6]| Daemon::start(&place, &words.each_ref().map(String::as_str), &SOON);
    // Signed by somebody else, and under a name that it does not have: not a byte is told.
    let wrong_name = collector.endpoint.replace("localhost", "127.0.0.1");
    for (endpoint, ca) in [(collector.endpoint.as_str(), other), (&wrong_name, cert)] {
        let daemon = start(words(endpoint, ca));
        until("it says why", || daemon.log().contains("does not prove who it is").then_some(()));
        let log = daemon.end();
        assert!(!log.contains("canary"), "{log}");
        assert_eq!(collector.proofs(), Vec::<Value>::new(), "{endpoint} {ca}");
    }
    // The control: the same with the right one.
    let daemon = start(words(&collector.endpoint, cert));
    daemon.get("/v1/sandboxes");
    until("spans and metrics", || {
        let both = ["/v1/traces", "/v1/metrics"].iter().all(|path| !collector.messages(path).is_empty());
        both.then_some(())
    });
    let span = collector.spans().into_iter().find(|span| span["name"] == "GET /v1/sandboxes");
    assert!(span.is_some(), "{:?}", collector.spans());
    assert!(collector.proofs().iter().all(|proof| *proof == serde_json::json!(["Bearer canary-one", "blue"])));
    // A token is exchanged without a restart; while its file is open to others nothing is sent at all.
    secret(&place, "headers", "authorization: Bearer canary-two\n");
    let two = |proof: &Value| proof[0] == "Bearer canary-two" && proof[1].is_null();
    until("the new token", || collector.proofs().last().is_some_and(two).then_some(()));
    fs::set_permissions(&headers, fs::Permissions::from_mode(0o644)).unwrap();
    until("it says why", || daemon.log().contains("others may read or change it").then_some(()));
    let log = daemon.end();
    assert!(!log.contains("canary"), "{log}");
}

#[test]
fn what_could_not_work_or_would_be_read_on_the_way_is_refused_at_the_start() {
    let place = Place::new(As::User);
    let (cert, key) = signed(&place, "own");
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
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
        (&["--otlp-endpoint", far, "--otlp-headers-file", good][..], "would be read on the way"),
        (&["--otlp-endpoint", clear, "--otlp-ca", cert], "is for TLS"),
        (&["--otlp-endpoint", tls, "--otlp-ca", key], "no certificate in it"),
        (&["--otlp-endpoint", tls, "--otlp-ca", "/nowhere"], "/nowhere"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", open], "others may read or change it"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", odd], "line 1: this header is ours"),
        (&["--otlp-endpoint", tls, "--otlp-headers-file", "/dev/zero"], "not a regular file"),
        (&["--otlp-endpoint", "https://me:canary@localhost"], "more than a host"),
        (&["--otlp-endpoint", "https://localhost/?key=canary"], "more than a host"),
        (&["--otlp-endpoint", "https://"], "no http:// or https:// URL"),
        (&["--otlp-endpoint", "grpc://localhost"], "no http:// or https:// URL"),
    ] {
        let (code, why) = check(words);
        assert!(code == Some(2) && why.contains(says), "{words:?}: {code:?} {why}");
        assert!(!why.contains("canary"), "{why}");
    }
}
