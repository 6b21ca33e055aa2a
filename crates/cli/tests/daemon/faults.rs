//! Every response is a document of the contract, for any request, however malformed.

use crate::support::http::{Daemon, exchange};
use crate::support::{As, Place};
use serde_json::json;

// promise 22
#[test]
fn every_refusal_is_a_fault_with_the_id_of_its_request() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    // The control: a correct request succeeds on the same daemon.
    daemon.get("/v1/sandboxes").assert_ok();

    daemon.get("/nothing").assert_fault(404, "not_found");
    daemon.get("/v1/sandboxes/sbx_0123456789abcdef0123456789abcdef").assert_fault(404, "not_found");
    let other = daemon.ask("PUT", "/v1/sandboxes").send();
    other.assert_fault(405, "invalid_request");
    let allowed: Vec<&str> = other.header("allow").unwrap().split(',').collect();
    assert!(allowed.contains(&"GET") && allowed.contains(&"POST"), "{allowed:?}");
    for method in ["OPTIONS", "TRACE", "DELETE", "PROPFIND"] {
        daemon.ask(method, "/v1/sandboxes").send().assert_fault(405, "invalid_request");
    }

    let sent = |sort: &str, body: &[u8]| daemon.ask("POST", "/v1/sandboxes").body(sort, body).send();
    for sort in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml"]
    {
        sent(sort, b"{}").assert_fault(415, "invalid_request");
    }
    let gzip = daemon.ask("POST", "/v1/sandboxes").header("content-encoding", "gzip").json(json!({})).send();
    gzip.assert_fault(415, "invalid_request");
    let large = sent("application/json", &vec![b' '; (1 << 20) + 1]).assert_fault(413, "limit_exceeded");
    assert_eq!(large["limit_kind"], "body_bytes");

    for (body, named) in [
        (r#"{"nmae": "x"}"#, "nmae"),
        (r#"{"limits": {"max_wall_ms": "soon"}}"#, "limits.max_wall_ms"),
        (r#"{"policies": [3]}"#, "policies[0]"),
        (r#"{"name": "a", "name": "b"}"#, "name"),
        (r#"{"name": "a""#, "column"),
        (r#"{} {}"#, "trailing"),
        ("[1]", "the body"),
        ("\u{feff}{}", "the body"),
    ] {
        let fault = sent("application/json", body.as_bytes()).assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(named), "{body}: {fault}");
    }
    let deep = format!("{{\"policies\":[{}1{}]}}", "[".repeat(5000), "]".repeat(5000));
    sent("application/json", deep.as_bytes()).assert_fault(400, "invalid_request");
    sent("application/json", b"{\"name\":\"\xff\"}").assert_fault(400, "invalid_request");

    for query in ["limit=0", "limit=1001", "limit=x", "limit=-1", "nothing=1", "limit=1&limit=2", "removed=perhaps"] {
        daemon.get(&format!("/v1/sandboxes?{query}")).assert_fault(400, "invalid_request");
    }
    for wait in ["30", "x", "-1s", "1e9s", ""] {
        daemon.get(&format!("/v1/sandboxes/a?wait={wait}")).assert_fault(400, "invalid_request");
    }
    for tag in ["3", "\"x\"", "W/\"3\"", "\"1\", \"2\"", "\"-1\""] {
        let ask = daemon.ask("PATCH", "/v1/sandboxes/a").header("if-match", tag).json(json!({}));
        ask.send().assert_fault(400, "invalid_request");
    }
    for key in ["", "a b", &"k".repeat(256)] {
        let ask = daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", key).json(json!({}));
        ask.send().assert_fault(400, "invalid_request");
    }
    assert_eq!(daemon.get("/v1/sandboxes").json()["sandboxes"], json!([]), "nothing was made");
}

/// Request documents are JSON objects on every route: a list of positional values is refused.
#[test]
fn documents_are_objects_on_every_route() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let id = daemon.post("/v1/sandboxes", json!({ "name": "box" })).assert_ok()["id"].as_str().unwrap().to_owned();
    let at = format!("/v1/sandboxes/{id}");
    let described = daemon.get("/v1/openapi.json").assert_ok();
    let mut asked = 0;
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["requestBody"]["content"]["application/json"].is_null() {
                continue;
            }
            let path = path.replace("{id}", &id).replace(['{', '}'], "");
            for body in ["[]", "[[]]", "[\"a\"]", "[\"a\", \"b\"]", "null", "3", "\"x\""] {
                let ask = daemon.ask(&method.to_uppercase(), &path).body("application/json", body.as_bytes());
                let fault = ask.send().assert_fault(400, "invalid_request");
                let told = fault["message"].as_str().unwrap();
                let is_policy = path.ends_with("/policies/check");
                assert!(is_policy || told.contains("an object"), "{method} {path} {body}: {told}");
                asked += 1;
            }
        }
    }
    assert!(asked > 100, "only {asked} were tried");
    for (method, path, body, named) in [
        ("POST", "/v1/sandboxes", json!({ "limits": [1] }), "limits"),
        ("POST", "/v1/sandboxes", json!({ "services": [["web", "true"]] }), "services[0]"),
        ("POST", &format!("{at}/runs"), json!({ "command": ["true"], "terminal": [24, 80] }), "terminal"),
        ("POST", &format!("{at}/runs"), json!({ "command": [["dHJ1ZQ=="]] }), "command[0]"),
    ] {
        let fault = daemon.ask(method, path).json(body).send().assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(&format!("the body: {named}: ")), "{fault}");
    }
    assert_eq!(daemon.get("/v1/sandboxes").json()["sandboxes"].as_array().unwrap().len(), 1, "nothing was made");
    assert_eq!(daemon.get(&at).assert_ok()["name"], "box");
    // The control: the same values by name.
    daemon.post("/v1/sandboxes", json!({ "limits": { "max_wall_ms": 1000 } })).assert_ok();
    daemon.post(&format!("{at}/runs?wait=120s"), json!({ "command": ["echo", { "base64": "/w==" }] })).assert_ok();
}

/// Cursors of each list resume it, also when their item is gone; any other text is refused.
#[test]
fn a_cursor_that_is_none_is_no_end_of_a_list() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    for name in ["a", "b", "c"] {
        daemon.post("/v1/sandboxes", json!({ "name": name })).assert_ok();
    }
    let part = daemon.get("/v1/sandboxes?limit=1").assert_ok();
    let (next, first) = (part["next"].as_str().unwrap(), part["sandboxes"][0]["id"].as_str().unwrap());
    let behind = format!("/v1/sandboxes?after={next}");
    daemon.ask("DELETE", &format!("/v1/sandboxes/{first}?force=true")).send().assert_ok();
    assert_eq!(daemon.get(&behind).assert_ok()["sandboxes"].as_array().unwrap().len(), 2, "the control");
    let (token, id) = ("0123456789abcdef.tok_0123456789abcdef0123456789abcdef", "snp_0123456789abcdef0123456789abcdef");
    for (list, fine) in [
        ("/v1/sandboxes", next),
        ("/v1/runs", &token.replace("tok", "run")),
        ("/v1/sandboxes/a/runs", &token.replace("tok", "run")),
        ("/v1/tokens", token),
        ("/v1/snapshots", id),
        ("/v1/sandboxes/a/snapshots", id),
        ("/v1/templates", "any-name"),
    ] {
        daemon.get(&format!("{list}?after={fine}")).assert_ok();
        for bad in ["sbx_zzz", "", "%00", "0/1", &first[..20], &format!("{fine}%20")] {
            let fault = daemon.get(&format!("{list}?after={bad}")).assert_fault(400, "invalid_request");
            let told = fault["message"].as_str().unwrap();
            assert!(told.contains("after: \"") && told.contains(&bad[..bad.find('%').unwrap_or(bad.len())]), "{told}");
        }
    }
    for list in ["/v1/sandboxes", "/v1/runs", "/v1/tokens", "/v1/snapshots", "/v1/audit"] {
        daemon.get(&format!("{list}?after=xyz")).assert_fault(400, "invalid_request");
    }
}

/// A refusal names the field and quotes the value as it was sent.
#[test]
fn refusals_name_the_field_and_the_value() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({ "name": "box" })).assert_ok();
    for (query, told) in [
        ("/v1/sandboxes?limit=abc", "limit: \"abc\": "),
        ("/v1/sandboxes?limit=-1", "limit: \"-1\": "),
        ("/v1/sandboxes?removed=perhaps", "removed: \"perhaps\": "),
        ("/v1/sandboxes/box/files/list?path=.&depth=a%0ab", "depth: \"a\\nb\": "),
        ("/v1/sandboxes/box?wait=soon", "wait: \"soon\" is no time"),
        ("/v1/events?from=now", "from: \"now\": "),
    ] {
        let fault = daemon.get(query).assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().starts_with(&format!("the query: {told}")), "{query}: {fault}");
    }
    for (ask, told) in [
        (json!({ "command": ["true"], "variables": ["NOEQ"] }), "variables: \"NOEQ\" has no name before a `=`"),
        (json!({ "command": ["a\0b"] }), "command: \"a\\0b\" contains a zero byte"),
        (json!({ "shell": "a\u{1b}[31m\0" }), "shell: \"a\\u{1b}[31m\\0\" contains a zero byte"),
        (json!({ "command": [{ "base64": "?" }] }), "command: base64 \"?\" is not in canonical form"),
    ] {
        let fault = daemon.post("/v1/sandboxes/box/runs", ask).assert_fault(400, "invalid_request");
        assert_eq!(fault["message"], told);
    }
}

/// Malformed HTTP heads get a fault document, too.
// promise 22
#[test]
fn heads_that_are_none_are_refused_in_words() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let send = |bytes: &[u8]| exchange(daemon.unix(), bytes);
    send(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").assert_ok();
    for bad in [
        &b"NONSENSE\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
    ] {
        let answer = send(bad);
        answer.assert_fault(400, "invalid_request");
    }
    let many = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(110));
    let more = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(1000));
    let long = format!("GET / HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n", "x".repeat(40 << 10));
    let giant = format!("GET / HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n", "x".repeat(300 << 10));
    for bad in [many, more, long, giant] {
        let fault = send(bad.as_bytes()).assert_fault(431, "limit_exceeded");
        assert_eq!(fault["limit_kind"], "header_bytes");
    }
    let address = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(10 << 10));
    send(address.as_bytes()).assert_fault(414, "limit_exceeded");
}

/// A connection is kept alive for further requests, also when a malformed one follows.
#[test]
fn a_connection_is_kept_and_its_last_word_is_ours() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let mut stream = daemon.unix();
    use std::io::Write;
    for _ in 0..3 {
        stream.write_all(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        crate::support::http::receive(&mut stream).unwrap().assert_ok();
    }
    stream.write_all(b"NONSENSE\r\n\r\n").unwrap();
    crate::support::http::receive(&mut stream).unwrap().assert_fault(400, "invalid_request");
}
