//! Pages of origins that the operator named, and requests that can send no header: tickets and signed URLs.

use crate::support::http::{Answer, Ask, Daemon, receive};
use crate::support::left::soon;
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::io::Write;

const APP: &str = "https://app.example";

struct PagesFixture {
    place: Place,
    daemon: Daemon,
    agent: String,
    agent_id: String,
}

impl PagesFixture {
    fn new() -> PagesFixture {
        let place = Place::new(As::User);
        let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
        command.env("COFFERDAM_SERVE_ALLOW_ORIGINS", APP);
        let daemon = Daemon::spawn(&place, command);
        let made = daemon.post("/v1/tokens", json!({"name": "page", "scopes": ["agent"]})).assert_ok();
        let (agent, agent_id) = (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned());
        let pages = PagesFixture { place, daemon, agent, agent_id };
        pages.ask("POST", "/v1/sandboxes").bearer(&pages.agent).json(json!({"name": "s"})).send().assert_ok();
        pages
    }

    fn ask(&self, method: &str, path: &str) -> Ask<'_> {
        self.daemon.ask(method, path).over_tcp()
    }

    fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path).bearer(&self.agent).json(body).send()
    }

    fn ticket(&self, path: &str) -> String {
        let made = self.post("/v1/tickets", json!({"path": path})).assert_ok();
        made["ticket"].as_str().unwrap().to_owned()
    }

    fn signed(&self, method: &str, url: &str, ttl_ms: u64) -> String {
        let made = self.post("/v1/urls", json!({"method": method, "url": url, "ttl_ms": ttl_ms})).assert_ok();
        made["url"].as_str().unwrap().to_owned()
    }
}

impl Drop for PagesFixture {
    fn drop(&mut self) {
        let _ = self.place.cofferdam(["rm", "--force", "--timeout", "0s", "s"]).output();
    }
}

#[test]
fn pages_of_named_origins_may_send_requests_and_no_others() {
    let pages = PagesFixture::new();
    let preflight = |origin: &str| {
        let ask = pages.ask("OPTIONS", "/v1/sandboxes").header("origin", origin);
        ask.header("access-control-request-method", "POST").header("sec-fetch-site", "cross-site").send()
    };
    let allowed = preflight(APP);
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (204, Some(APP)), "{allowed:?}");
    assert!(allowed.header("access-control-allow-headers").unwrap().contains("authorization"));
    assert!(allowed.header("access-control-allow-credentials").is_none());
    for other in ["https://other.example", "http://app.example", "https://app.example:8443", "null"] {
        let refused = preflight(other);
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None), "{other}");
    }
    let get = |origin: &str| {
        let ask = pages.ask("GET", "/v1/sandboxes").header("origin", origin).header("sec-fetch-site", "cross-site");
        ask.bearer(&pages.agent).send()
    };
    let read = get(APP);
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, Some(APP)), "{read:?}");
    get("https://other.example").assert_fault(403, "policy_denied");
    // The origin is no credential, and a change needs a header that a form cannot send.
    pages.ask("GET", "/v1/sandboxes").header("origin", APP).send().assert_fault(401, "unauthenticated");
    let change = |own: bool| {
        let ask = pages.ask("POST", "/v1/sandboxes/s/stop").header("origin", APP).bearer(&pages.agent);
        if own { ask.header("x-cofferdam", "1").send() } else { ask.send() }
    };
    change(false).assert_fault(403, "policy_denied");
    change(true).assert_ok();
}

#[test]
fn a_ticket_opens_one_stream_and_only_that() {
    let pages = PagesFixture::new();
    let run = pages.post("/v1/sandboxes/s/runs", json!({"shell": "echo said; sleep 600"})).assert_ok();
    let run = run["run"].as_str().unwrap().to_owned();
    let (output, attach) = (format!("/v1/runs/{run}/output"), format!("/v1/runs/{run}/attach"));
    let ticket = pages.ticket(&output);
    let at = format!("{output}?from=0&cofferdam_ticket={ticket}");
    let mut open = pages.ask("GET", &at).header("origin", APP).header("sec-fetch-site", "cross-site").open();
    assert!(open.until("said"), "{}", String::from_utf8_lossy(&open.text));
    pages.ask("GET", &at).send().assert_fault(401, "unauthenticated");
    pages
        .ask("GET", &format!("{attach}?cofferdam_ticket={}", pages.ticket(&output)))
        .send()
        .assert_fault(401, "unauthenticated");
    let both = format!("{output}?cofferdam_ticket={}", pages.ticket(&output));
    pages.ask("GET", &both).bearer(&pages.agent).send().assert_fault(400, "invalid_request");
    // A WebSocket, as a browser begins it.
    let mut stream = pages.daemon.tcp();
    let head = format!(
        "GET {attach}?cofferdam_ticket={} HTTP/1.1\r\nhost: localhost:{}\r\norigin: {APP}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        pages.ticket(&attach),
        pages.daemon.port.unwrap()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(receive(&mut stream).unwrap().status, 101);
    // It is the token's request: what the token may not see is not there.
    pages.daemon.post("/v1/sandboxes", json!({"name": "others"})).assert_ok();
    let path = "/v1/sandboxes/others/runs";
    pages.ask("GET", &format!("{path}?cofferdam_ticket={}", pages.ticket(path))).send().assert_fault(404, "not_found");
    pages
        .ask("GET", &format!("/v1/tokens?cofferdam_ticket={}", pages.ticket("/v1/tokens")))
        .send()
        .assert_fault(403, "policy_denied");
    for bad in ["/v1/runs?x=1", "runs", "/other"] {
        pages.post("/v1/tickets", json!({"path": bad})).assert_fault(400, "invalid_request");
    }
    pages.daemon.ask("DELETE", "/v1/sandboxes/others").send().assert_ok();
}

#[test]
fn a_signed_url_is_for_one_file_and_no_longer_than_its_token() {
    let pages = PagesFixture::new();
    let content = "/v1/sandboxes/s/files/content?path=file";
    let (put, get) = (pages.signed("PUT", content, 600_000), pages.signed("GET", content, 600_000));
    let upload =
        |url: &str| pages.ask("PUT", url).header("origin", APP).body("application/octet-stream", b"bytes").send();
    upload(&put).assert_ok();
    // A link on a page of any site.
    let download = |url: &str| pages.ask("GET", url).header("sec-fetch-site", "cross-site").send();
    let read = download(&get);
    assert_eq!(
        (read.status, read.text().as_str(), read.header("content-disposition")),
        (200, "bytes", Some("attachment"))
    );
    upload(&get).assert_fault(401, "unauthenticated");
    for (from, to) in [("path=file", "path=other"), ("/s/", "/others/"), ("cofferdam_expires=", "cofferdam_expires=9")]
    {
        download(&get.replace(from, to)).assert_fault(401, "unauthenticated");
    }
    download(&format!("{get}&download=true")).assert_fault(401, "unauthenticated");
    let short = pages.signed("GET", content, 1000);
    assert!(soon(|| download(&short).status == 401), "it expires");
    assert_eq!(download(&get).status, 200, "the control");
    for (method, url) in
        [("GET", "/v1/tokens"), ("PUT", "/v1/sandboxes/s/export"), ("GET", "https://x/v1/sandboxes/s/export")]
    {
        pages.post("/v1/urls", json!({"method": method, "url": url})).assert_fault(400, "invalid_request");
    }
    // What the token may not see stays hidden, and with the token the URL ends.
    pages.daemon.post("/v1/sandboxes", json!({"name": "others"})).assert_ok();
    let foreign = pages.signed("GET", "/v1/sandboxes/others/files/content?path=x", 600_000);
    download(&foreign).assert_fault(404, "not_found");
    pages.daemon.ask("DELETE", "/v1/sandboxes/others").send().assert_ok();
    pages.daemon.ask("DELETE", &format!("/v1/tokens/{}", pages.agent_id)).send().assert_ok();
    download(&get).assert_fault(401, "unauthenticated");
}
