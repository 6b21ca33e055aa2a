//! Ports inside a live sandbox through the daemon: HTTP and WebSockets, and the little that a hostile guest gains by
//! them.

use crate::support::http::{Answer, Daemon, exchange};
use crate::support::{BOTH, Place, either};
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Guest server that echoes the request, sets cookies and redirects; upgrades to a protocol of its own at `/up`.
const SERVER: &str = r#"
import http.server
class Guest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self):
        if self.headers.get("upgrade"):
            self.send_response(101)
            self.send_header("connection", "upgrade")
            self.send_header("upgrade", "echo")
            self.end_headers()
            self.wfile.flush()
            while got := self.connection.recv(100):
                self.connection.sendall(got.upper())
            return
        got = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        names = ",".join(sorted(name.lower() for name in self.headers))
        body = f"{self.command} {self.path} host={self.headers['host']} body={got} headers={names}".encode()
        self.send_response(404 if self.path.startswith("/gone") else 302 if self.path == "/led" else 200)
        if self.path == "/led":
            self.send_header("location", "http://localhost:8000/there")
        self.send_header("set-cookie", "a=b; Path=/; Domain=localhost")
        self.send_header("access-control-allow-origin", "*")
        self.send_header("clear-site-data", "*")
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)
    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = reply
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Guest).serve_forever()
"#;

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

struct PortsFixture {
    daemon: Daemon,
    place: Place,
}

impl PortsFixture {
    fn new(place: Place) -> PortsFixture {
        let daemon = Daemon::start_tcp(&place);
        daemon.post("/v1/sandboxes", json!({"name": "web", "dir": place.project})).assert_ok();
        let started = place.cofferdam(["exec", "-d", "web", "python3", "-c", SERVER]).output().unwrap();
        assert!(started.status.success(), "{started:?}");
        let w = PortsFixture { daemon, place };
        let begun = Instant::now();
        while w.daemon.get("/v1/sandboxes/web/ports/8000/").status != 200 {
            assert!(begun.elapsed() < Duration::from_secs(180), "the server inside does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        w
    }
}

impl Drop for PortsFixture {
    fn drop(&mut self) {
        let _ = self.place.cofferdam(["stop", "web"]).output();
    }
}

#[test]
fn a_port_inside_is_reached_and_what_is_ours_stays_outside() {
    for who in either() {
        let w = PortsFixture::new(Place::new(who));
        let agent = w.daemon.token(json!({"name": "a", "scopes": ["agent"], "sandboxes": ["web"]}));
        let ask = |method: &str, path: &str| {
            w.daemon.ask(method, &format!("/v1/sandboxes/web/ports/8000{path}")).over_tcp().bearer(&agent)
        };
        let got = ask("GET", "/x%2Fy?q=1&q=2").header("x-own", "1").header("cookie", "a=b").send();
        assert_eq!(got.status, 200, "{got:?}");
        let told = text(&got);
        assert!(told.starts_with("GET /x%2Fy?q=1&q=2 host=localhost:8000 body= "), "{told}");
        assert!(told.ends_with("headers=cookie,host,x-forwarded-prefix,x-own"), "{told}");
        assert_eq!(got.header("set-cookie"), Some("cofferdam-a=b; Path=/v1/sandboxes/web/ports/8000/"));
        assert_eq!((got.header("access-control-allow-origin"), got.header("clear-site-data")), (None, None));
        assert!(got.header("content-security-policy").unwrap().starts_with("sandbox "), "{got:?}");

        // Paths reach the guest byte for byte.
        for path in ["/x%ff", "/%c3%28/%FF?q=%ff", "/%2e%2e/%2E%2e/y", "/a//b/", "/%"] {
            let told = text(&ask("GET", path).send());
            assert!(told.starts_with(&format!("GET {path} host=localhost:8000 ")), "{path}: {told}");
        }
        for odd in ["web/ports/x/", "web/ports/70000/x%ff", "web/ports/%ff/"] {
            let answer = w.daemon.ask("GET", &format!("/v1/sandboxes/{odd}")).over_tcp().bearer(&agent).send();
            let fault = answer.assert_fault(400, "invalid_request");
            assert!(fault["message"].as_str().unwrap().starts_with("the path: port "), "{odd}: {fault}");
        }
        let missing = w.daemon.ask("GET", "/v1/sandboxes/%ff/ports/8000/x").over_tcp().bearer(&agent).send();
        missing.assert_fault(404, "not_found");

        let posted = ask("POST", "/form").body("text/plain", b"hello").send();
        assert!(text(&posted).contains("POST /form host=localhost:8000 body=hello "), "{posted:?}");
        // Refusals by the guest are passed on unchanged.
        let gone = ask("GET", "/gone").send();
        assert_eq!(gone.status, 404);
        assert!(text(&gone).starts_with("GET /gone"), "{gone:?}");
        let led = ask("GET", "/led").send();
        assert_eq!((led.status, led.header("location")), (302, Some("/v1/sandboxes/web/ports/8000/there")));

        // Refusals by the daemon: a request without a token, another tenant, a port without a listener.
        w.daemon.ask("GET", "/v1/sandboxes/web/ports/8000/").over_tcp().send().assert_fault(401, "unauthenticated");
        let other = w.daemon.token(json!({"name": "b", "tenant": "b", "scopes": ["agent"]}));
        let foreign = w.daemon.ask("GET", "/v1/sandboxes/web/ports/8000/").over_tcp().bearer(&other).send();
        foreign.assert_fault(404, "not_found");
        let reviewer = w.daemon.token(json!({"name": "r", "scopes": ["reviewer"]}));
        let reviewed = w.daemon.ask("GET", "/v1/sandboxes/web/ports/8000/").over_tcp().bearer(&reviewer).send();
        reviewed.assert_fault(403, "policy_denied");
        let silent = w.daemon.ask("GET", "/v1/sandboxes/web/ports/8001/").over_tcp().bearer(&agent).send();
        silent.assert_fault(503, "unavailable");
        let evil = ask("GET", "/").header("origin", "http://evil.example").send();
        evil.assert_fault(403, "policy_denied");
    }
}

#[test]
fn another_protocol_passes_both_ways() {
    let w = PortsFixture::new(Place::new(BOTH[1]));
    let agent = w.daemon.token(json!({"name": "a", "scopes": ["agent"], "sandboxes": ["web"]}));
    let mut stream = w.daemon.tcp();
    let port = w.daemon.port.unwrap();
    write!(
        stream,
        "GET /v1/sandboxes/web/ports/8000/up HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {agent}\r\n\
         connection: keep-alive, Upgrade\r\nupgrade: echo\r\n\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: echo"), "{head}");
    for word in ["one", "two"] {
        stream.write_all(word.as_bytes()).unwrap();
        let mut heard = [0; 3];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(std::str::from_utf8(&heard).unwrap(), word.to_uppercase());
    }
    // The tunnel closes when its token is revoked.
    let id = agent.split('_').nth(1).unwrap();
    let tokens = w.daemon.get("/v1/tokens").assert_ok();
    let known = tokens["tokens"].as_array().unwrap().iter().find(|t| t["id"].as_str().unwrap().contains(id)).unwrap();
    w.daemon.ask("DELETE", &format!("/v1/tokens/{}", known["id"].as_str().unwrap())).send().assert_ok();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "it closes with its credential");
    // A tunnel needs a token.
    let bare = format!(
        "GET /v1/sandboxes/web/ports/8000/up HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
    );
    exchange(w.daemon.tcp(), bare.as_bytes()).assert_fault(401, "unauthenticated");
}

/// A service needs a moment until it listens; a request that wakes its sandbox waits for that, and no longer where
/// nothing will listen.
#[test]
fn who_wakes_a_sandbox_is_answered_by_what_listens_there() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let services =
            json!([{"name": "web", "command": "sleep 0.3; exec python3 -m http.server 8000 --bind 127.0.0.1"}]);
        daemon.post("/v1/sandboxes", json!({"name": "web", "dir": place.project, "services": services})).assert_ok();
        let get = |port: u16| daemon.get(&format!("/v1/sandboxes/web/ports/{port}/"));
        assert_eq!(get(8000).status, 200, "it is made live by the request");
        let rested = daemon.post("/v1/sandboxes/web/suspend", json!({"tier": "hibernated"})).assert_ok();
        assert_eq!(rested["reached"], "hibernated");
        assert_eq!(get(8000).status, 200, "the request that wakes it");
        // The wait for a port without a listener ends.
        let begun = Instant::now();
        get(8001).assert_fault(503, "unavailable");
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
        let begun = Instant::now();
        get(8001).assert_fault(503, "unavailable");
        // Waiting for a service would take ten seconds.
        assert!(begun.elapsed() < Duration::from_secs(9), "it stands long since: {:?}", begun.elapsed());

        daemon.ask("POST", "/v1/sandboxes/web/stop?timeout=0s").send().assert_ok();
        let fault = get(8000).assert_fault(409, "conflict");
        assert!(fault["message"].as_str().unwrap().contains("is stopped"), "{fault}");
        let run = daemon.post("/v1/sandboxes/web/runs", json!({"command": ["true"]})).assert_fault(409, "conflict");
        assert_eq!((&run["message"], &run["hint"]), (&fault["message"], &fault["hint"]), "as every command is told");
        daemon.ask("POST", "/v1/sandboxes/web/start").send().assert_ok();
        assert_eq!(get(8000).status, 200, "the control");
        let _ = place.cofferdam(["rm", "--force", "--timeout", "0s", "web"]).output();
    }
}
