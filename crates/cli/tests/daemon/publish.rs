//! Published ports of a live sandbox: added, removed, refused, and restored when it is live again.

use crate::support::http::{Answer, Daemon};
use crate::support::left::soon;
use crate::support::{As, BOTH, Place, either};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Echo server, in upper case.
const ECHO: &str = "exec python3 -c 'import socketserver as s
class H(s.BaseRequestHandler):
    def handle(self):
        while got := self.request.recv(100): self.request.sendall(got.upper())
s.ThreadingTCPServer.allow_reuse_address = True
s.ThreadingTCPServer((\"127.0.0.1\", 8000), H).serve_forever()'";

struct PublishFixture {
    daemon: Daemon,
    place: Place,
}

impl PublishFixture {
    fn new(who: As) -> PublishFixture {
        let place = Place::new(who);
        let daemon = Daemon::start_tcp(&place);
        let services = json!([{"name": "echo", "command": ECHO}]);
        daemon.post("/v1/sandboxes", json!({"name": "web", "dir": place.project, "services": services})).assert_ok();
        daemon.ask("POST", "/v1/sandboxes/web/start?live=true").send().assert_ok();
        PublishFixture { daemon, place }
    }

    fn patch(&self, body: Value) -> Answer {
        self.daemon.ask("PATCH", "/v1/sandboxes/web").json(json!({ "publish": body })).send()
    }

    fn version(&self) -> Value {
        self.daemon.get("/v1/sandboxes/web").assert_ok()["version"].clone()
    }
}

/// A connection that the server inside has answered.
fn echoes(port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"hello").ok()?;
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).ok()?;
    (heard == *b"HELLO").then_some(stream)
}

fn is_closed(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err()
}

// promise 20
#[test]
fn ports_are_opened_and_closed_while_it_lives() {
    for who in BOTH {
        let w = PublishFixture::new(who);
        let (port, other) = (crate::support::free_port(), crate::support::free_port());
        assert!(is_closed(port));
        let before = w.version();
        let added = w.patch(json!({"add": [format!("{port}:8000")]})).assert_ok();
        assert_eq!((&added["live"], &added["publish"]), (&json!(true), &json!([format!("127.0.0.1:{port}:8000")])));
        assert_ne!(added["version"], before);
        assert!(soon(|| echoes(port).is_some()));
        // A repeated PATCH is a no-op, and one for an old version is a conflict.
        assert_eq!(w.patch(json!({"add": [format!("{port}:8000")]})).assert_ok()["changed"], false);
        let late = w.daemon.ask("PATCH", "/v1/sandboxes/web").header("if-match", &format!("\"{before}\""));
        late.json(json!({"publish": {"remove": [port.to_string()]}})).send().assert_fault(409, "conflict");
        assert!(echoes(port).is_some());
        // Ports that fail: in use, privileged, and zero. A PATCH with two ports is all or nothing.
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = busy.local_addr().unwrap().port();
        let both = json!({"add": [format!("{other}:8000"), format!("{taken}:8000")]});
        let fault = w.patch(both).assert_fault(409, "conflict");
        assert!(fault["message"].as_str().unwrap().contains(&taken.to_string()), "{fault}");
        assert!(is_closed(other) && echoes(port).is_some());
        let lowest: u16 =
            std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap().trim().parse().unwrap();
        if who == As::User && lowest > 81 {
            let fault = w.patch(json!({"add": ["81:8000"]})).assert_fault(503, "unavailable");
            assert!(fault["hint"].as_str().unwrap().contains("1024"), "{fault}");
        }
        w.patch(json!({"add": ["0:80"]})).assert_fault(400, "invalid_request");
        w.patch(json!({"add": [format!("{port}:9000")]})).assert_fault(400, "invalid_request");
        w.patch(json!({"remove": [other.to_string()]})).assert_fault(404, "not_found");
        // Publishing needs the host's operator: neither an agent nor a tenant's operator can do it. Removing is open
        // to an agent.
        let agent = w.daemon.token(json!({"name": "a", "scopes": ["agent"], "sandboxes": ["web"]}));
        let as_agent = |body: Value| {
            let ask = w.daemon.ask("PATCH", "/v1/sandboxes/web").over_tcp().bearer(&agent);
            ask.json(json!({ "publish": body })).send()
        };
        as_agent(json!({"add": [format!("{other}:8000")]})).assert_fault(403, "policy_denied");
        let blue = w.daemon.token(json!({"name": "b", "tenant": "blue", "scopes": ["agent", "operator"]}));
        let blues = |method: &str, path: &str| w.daemon.ask(method, path).over_tcp().bearer(&blue);
        blues("POST", "/v1/sandboxes").json(json!({"name": "web"})).send().assert_ok();
        let wish = json!({"publish": {"add": [format!("{other}:8000")]}});
        blues("PATCH", "/v1/sandboxes/web").json(wish).send().assert_fault(403, "policy_denied");
        assert!(is_closed(other));

        // Unpublishing a port closes its connections, and no others.
        w.patch(json!({"add": [format!("{other}:8000")]})).assert_ok();
        let (mut one, mut two) = (echoes(port).unwrap(), echoes(other).unwrap());
        as_agent(json!({"remove": [format!("{other}:8000")]})).assert_ok();
        assert!(is_closed(other));
        assert!(matches!(two.read(&mut [0; 5]), Ok(0) | Err(_)), "broken off");
        let mut heard = [0; 4];
        one.write_all(b"more").unwrap();
        one.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"MORE");
        let log = w.place.cofferdam(["audit", "log", "web", "--json"]).output().unwrap();
        assert!(String::from_utf8_lossy(&log.stdout).contains("\"remove\""), "it is in the journal");
    }
}

// promise 20
#[test]
fn what_is_published_is_there_again_with_the_sandbox() {
    for who in either() {
        let mut w = PublishFixture::new(who);
        let (port, other) = (crate::support::free_port(), crate::support::free_port());
        let cli = |w: &PublishFixture, words: &[&str]| {
            let done = w.place.cofferdam(words).output().unwrap();
            assert!(done.status.success(), "{words:?}: {done:?}");
            String::from_utf8(done.stdout).unwrap()
        };
        let told = cli(&w, &["publish", "web", "-p", &format!("{port}:8000"), "-p", &format!("{other}:8001")]);
        assert_eq!(told, format!("127.0.0.1:{port}:8000\n127.0.0.1:{other}:8001\n"));
        assert!(soon(|| echoes(port).is_some()) && echoes(other).is_none());
        // A single command moves a port to another target.
        cli(&w, &["publish", "web", "--remove", &other.to_string(), "-p", &format!("{other}:8000")]);
        assert!(echoes(other).is_some() && echoes(port).is_some());
        w.daemon.child.kill().unwrap();
        w.daemon.child.wait().unwrap();
        assert!(echoes(port).is_some(), "the keeper has it");
        w.daemon = Daemon::start_tcp(&w.place);
        for (down, up) in [
            (vec!["suspend", "--hibernate", "web"], vec!["resume", "web"]),
            (vec!["stop", "web"], vec!["start", "--live", "web"]),
        ] {
            cli(&w, &down);
            assert!(is_closed(port));
            cli(&w, &up);
            assert!(soon(|| echoes(port).is_some()) && echoes(other).is_some(), "after {up:?}");
        }
        // A sandbox that is not live accepts changes, too, and checks that the port could be bound.
        cli(&w, &["stop", "web"]);
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = format!("{}:8000", busy.local_addr().unwrap().port());
        let refused = w.place.cofferdam(["publish", "web", "-p", &taken]).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        cli(&w, &["publish", "web", "--remove", &port.to_string()]);
        cli(&w, &["start", "--live", "web"]);
        assert!(soon(|| echoes(other).is_some()) && is_closed(port));
    }
}
