//! Access to the daemon: credentials, hosts, origins and paths. Each refusal has a control that must succeed.

use crate::support::http::{Ask, Daemon, exchange};
use crate::support::{As, Place, USER, either};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

fn tcp<'a>(daemon: &'a Daemon, method: &str, path: &str) -> Ask<'a> {
    daemon.ask(method, path).over_tcp()
}

/// TCP requests need a valid token in the Authorization header.
// promise 23
#[test]
fn only_a_good_token_in_a_header_opens_the_door() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start_tcp(&place);
        let good = daemon.operator_token();
        let file = fs::metadata(place.state().join("operator.token")).unwrap();
        assert_eq!(file.mode() & 0o777, 0o600);
        tcp(&daemon, "GET", "/v1/sandboxes").bearer(&good).send().assert_ok();

        let list = || tcp(&daemon, "GET", "/v1/sandboxes");
        let answer = list().send();
        answer.assert_fault(401, "unauthenticated");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        let last = if good.ends_with('0') { "1" } else { "0" };
        let almost = format!("{}{last}", &good[..good.len() - 1]);
        let unknown = format!("cof_{}_{}", "0".repeat(32), "0".repeat(64));
        for bad in
            [almost.as_str(), &unknown, "", "x", &good[..good.len() - 1], &format!("{good}0"), &good.to_uppercase()]
        {
            list().bearer(bad).send().assert_fault(401, "unauthenticated");
        }
        list().header("authorization", &format!("Basic {good}")).send().assert_fault(401, "unauthenticated");
        list().header("authorization", &good).send().assert_fault(401, "unauthenticated");
        list().header("cookie", &format!("token={good}")).send().assert_fault(401, "unauthenticated");
        list().bearer(&good).bearer(&good).send().assert_fault(400, "invalid_request");
        for query in ["token", "access_token", "x"] {
            let fault = tcp(&daemon, "GET", &format!("/v1/sandboxes?{query}={good}"))
                .send()
                .assert_fault(400, "invalid_request");
            assert!(!fault.to_string().contains(&good), "it is not told back");
        }
        // A wrong token is refused on routes that need none, too.
        daemon.ask("GET", "/v1/sandboxes").bearer(&unknown).send().assert_fault(401, "unauthenticated");
        daemon.ask("GET", "/v1/health/live").bearer(&unknown).send().assert_fault(401, "unauthenticated");
        tcp(&daemon, "GET", "/v1/health/live").send().assert_ok();
    }
}

/// Tokens stop working on expiry and on revocation, by the daemon or by the binary beside it.
// promise 23
#[test]
fn expired_and_revoked_tokens_open_nothing() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let ask = |token: &str| tcp(&daemon, "GET", "/v1/sandboxes").bearer(token).send();
    let made = daemon.post("/v1/tokens", json!({"name": "x", "scopes": ["agent"]})).assert_ok();
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    ask(token).assert_ok();
    assert_eq!(daemon.ask("DELETE", &format!("/v1/tokens/{id}")).send().assert_ok()["changed"], true);
    ask(token).assert_fault(401, "unauthenticated");
    assert_eq!(daemon.ask("DELETE", &format!("/v1/tokens/{id}")).send().assert_ok()["changed"], false);
    daemon.ask("DELETE", "/v1/tokens/tok_none").send().assert_fault(404, "not_found");

    let short = daemon.token(json!({"name": "short", "scopes": ["agent"], "ttl_ms": 1}));
    std::thread::sleep(std::time::Duration::from_millis(5));
    ask(&short).assert_fault(401, "unauthenticated");

    let made = place.cofferdam(["token", "create", "cli", "--scope", "agent,reviewer", "--json"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    ask(made["token"].as_str().unwrap()).assert_ok();
    let listed = place.cofferdam(["token", "ls"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("agent,reviewer") && !listed.contains("cof_"), "{listed}");
    let gone = place.cofferdam(["token", "rm", made["id"].as_str().unwrap()]).output().unwrap();
    assert!(gone.status.success(), "{gone:?}");
    ask(made["token"].as_str().unwrap()).assert_fault(401, "unauthenticated");
}

/// A token's secret is in no store, journal, log or list: only its owner has it.
// promise 23
#[test]
fn secrets_of_tokens_are_found_nowhere() {
    let place = Place::new(As::User);
    let log = place.root.join("log");
    let mut command = place.cofferdam(["serve", "--json", "--listen", "127.0.0.1:0"]);
    command.stderr(fs::File::create(&log).unwrap());
    let daemon = Daemon::spawn(&place, command);
    let token = daemon.token(json!({"name": "secret", "scopes": ["operator"]}));
    let secret = token.rsplit('_').next().unwrap().to_owned();
    tcp(&daemon, "GET", "/v1/sandboxes").bearer(&token).send().assert_ok();
    tcp(&daemon, "GET", &format!("/v1/nothing/{token}")).bearer(&token).send();
    let listed = tcp(&daemon, "GET", "/v1/tokens").bearer(&token).send().assert_ok();
    assert!(listed.to_string().contains("secret") && !listed.to_string().contains(&secret));
    let mut told = vec![fs::read(&log).unwrap()];
    told.extend(fs::read_dir(place.state()).unwrap().flatten().filter_map(|f| fs::read(f.path()).ok()));
    let operator = daemon.operator_token();
    assert!(told.iter().any(|bytes| find(bytes, operator.as_bytes())), "the control: the operator's is in its file");
    assert!(!told.iter().any(|bytes| find(bytes, secret.as_bytes())), "a secret was kept");
    let line = fs::read(format!("/proc/{}/cmdline", daemon.child.id())).unwrap();
    assert!(!find(&line, b"cof_"));
}

fn find(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

/// The socket belongs to its user: the kernel reports the peer's uid, and every other uid is refused.
// promise 23
#[test]
fn other_users_are_refused_by_the_socket() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    assert_eq!(fs::metadata(&daemon.socket).unwrap().mode() & 0o777, 0o600);
    let curl = |uid: u32| {
        let ids = [uid.to_string(), uid.to_string()];
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &ids[0], "--regid", &ids[1], "--clear-groups", "--", "curl", "-s", "-m", "20"]);
        command
            .args(["-w", "\n%{http_code}", "--unix-socket"])
            .arg(&daemon.socket)
            .arg("http://localhost/v1/sandboxes");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(curl(USER).ends_with("\n200"), "the control: its own user");
    assert!(curl(USER + 1).ends_with("\n000"), "the directory is closed to others");
    // Open permissions on the socket and its directory admit no other uid.
    for path in [place.state(), daemon.socket.clone()] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    for other in [USER + 1, 0] {
        let told = curl(other);
        assert!(told.ends_with("\n401") && told.contains("unauthenticated"), "{told}");
    }
    // A user namespace that maps the peer to any uid changes nothing.
    let mut inside = Command::new("setpriv");
    inside.args([
        "--reuid",
        "1501",
        "--regid",
        "1501",
        "--clear-groups",
        "--",
        "unshare",
        "-U",
        "--map-root-user",
        "curl",
        "-s",
    ]);
    let told = inside.arg("--unix-socket").arg(&daemon.socket).arg("http://localhost/v1/sandboxes").output().unwrap();
    assert!(String::from_utf8_lossy(&told.stdout).contains("unauthenticated"), "{told:?}");
}

/// A request must carry exactly one Host header, with a name that the daemon listens on.
// promise 23
#[test]
fn other_hosts_are_not_answered_for() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--allow-host", "box.example"]);
    let (token, port) = (daemon.operator_token(), daemon.port.unwrap());
    let ask = |host: &str| tcp(&daemon, "GET", "/v1/sandboxes").bearer(&token).host(host).send();
    for good in ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "box.example"] {
        ask(&format!("{good}:{port}")).assert_ok();
    }
    let odd = [format!("localhost:{}", port + 1), "localhost".into(), format!("localhost.evil:{port}"), "evil".into()];
    for bad in odd.iter().map(String::as_str).chain(["box.example", "0.0.0.0", "169.254.169.254", ""]) {
        let answer = ask(bad);
        answer.assert_fault(421, "invalid_request");
    }
    let raw = |head: String| exchange(daemon.tcp(), head.as_bytes());
    let auth = format!("authorization: Bearer {token}\r\n");
    raw(format!("GET /v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\n{auth}\r\n")).assert_ok();
    for bad in [
        format!("GET /v1/sandboxes HTTP/1.1\r\n{auth}\r\n"),
        format!("GET /v1/sandboxes HTTP/1.0\r\n{auth}\r\n"),
        format!("GET /v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\nhost: evil\r\n{auth}\r\n"),
        format!("GET http://localhost:{port}/v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\n{auth}\r\n"),
        format!("GET http://evil/v1/sandboxes HTTP/1.1\r\nhost: localhost:{port}\r\n{auth}\r\n"),
        format!("CONNECT evil:443 HTTP/1.1\r\nhost: localhost:{port}\r\n{auth}\r\n"),
    ] {
        raw(bad).assert_fault(400, "invalid_request");
    }
}

/// Pages of other sites read nothing and change nothing, by any method, header or body type.
// promise 23
#[test]
fn pages_of_other_sites_get_nothing_and_change_nothing() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let (token, port) = (daemon.operator_token(), daemon.port.unwrap());
    let own = format!("http://localhost:{port}");
    let make = || tcp(&daemon, "POST", "/v1/sandboxes").bearer(&token);
    make().header("origin", &own).header("x-cofferdam", "1").json(json!({"name": "control"})).send().assert_ok();
    tcp(&daemon, "GET", "/v1/sandboxes").bearer(&token).header("origin", &own).send().assert_ok();

    let other = format!("http://localhost:{}", port + 1);
    for origin in
        ["http://evil.example", "null", &other, &format!("https://localhost:{port}"), "", &format!("{own}/"), "file://"]
    {
        let get = tcp(&daemon, "GET", "/v1/sandboxes").bearer(&token).header("origin", origin);
        get.send().assert_fault(403, "policy_denied");
        let socket =
            get.header("connection", "upgrade").header("upgrade", "websocket").header("sec-websocket-version", "13");
        socket.header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==").send().assert_fault(403, "policy_denied");
        make()
            .header("origin", origin)
            .header("x-cofferdam", "1")
            .json(json!({}))
            .send()
            .assert_fault(403, "policy_denied");
    }
    make().header("origin", &own).json(json!({})).send().assert_fault(403, "policy_denied");
    for site in ["cross-site", "same-site"] {
        tcp(&daemon, "GET", "/v1/sandboxes")
            .bearer(&token)
            .header("sec-fetch-site", site)
            .send()
            .assert_fault(403, "policy_denied");
    }
    // Body types that an HTML form can send are refused, also on a request without a body.
    for sort in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        make().body(sort, b"{\"name\":\"form\"}").send().assert_fault(415, "invalid_request");
        tcp(&daemon, "POST", "/v1/gc")
            .bearer(&token)
            .header("content-type", sort)
            .send()
            .assert_fault(415, "invalid_request");
    }
    make().header("content-length", "2").send();
    let all = daemon.get("/v1/sandboxes").assert_ok();
    assert_eq!(all["sandboxes"].as_array().unwrap().len(), 1, "{all}");
}

/// Responses carry no CORS header that would let a page of another site read them.
// promise 23
#[test]
fn no_answer_opens_itself_to_other_origins() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let token = daemon.operator_token();
    let own = format!("http://localhost:{}", daemon.port.unwrap());
    for origin in [&own, "http://evil.example", "null"] {
        for method in ["OPTIONS", "GET", "POST"] {
            let ask = tcp(&daemon, method, "/v1/sandboxes").bearer(&token).header("origin", origin);
            let ask = ask
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "authorization");
            let answer = ask.header("access-control-request-private-network", "true").send();
            assert!(!answer.headers.iter().any(|(name, _)| name.starts_with("access-control")), "{answer:?}");
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            assert!(answer.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
            assert!(method != "OPTIONS" || answer.status >= 400, "{answer:?}");
        }
    }
    tcp(&daemon, "GET", "/v1/sandboxes").bearer(&token).header("origin", &own).send().assert_ok();
}

/// Encoded separators and dot segments in a path are refused.
// promise 23
#[test]
fn encoded_ways_around_are_refused() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "plain"})).assert_ok();
    daemon.get("/v1/sandboxes/plain").assert_ok();
    for path in [
        "/v1/sandboxes/%2e%2e/tokens",
        "/v1/sandboxes/../tokens",
        "/v1/sandboxes/..%2ftokens",
        "/v1/sandboxes/plain%00",
        "/v1/sandboxes/%252e%252e",
        "/v1/sandboxes/plain%0d%0ax:y",
        "/v1/%2e/sandboxes",
        "/v1/sandboxes/plain%5c..",
        "/v1/sandboxes/%ff%fe",
    ] {
        daemon.get(path).assert_fault(400, "invalid_request");
    }
}

/// Streams close when their token is revoked, by the daemon or by the binary, or expires; the last event gives the
/// reason.
// promise 23
#[test]
fn streams_close_with_their_token() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let mint = |ask: Value| daemon.post("/v1/tokens", ask).assert_ok();
    let open = |minted: &Value| {
        let mut stream = tcp(&daemon, "GET", "/v1/events").bearer(minted["token"].as_str().unwrap()).open();
        assert!(stream.until("text/event-stream"), "{:?}", String::from_utf8_lossy(&stream.text));
        stream
    };
    let plain = || mint(json!({"name": "s", "scopes": ["operator"]}));
    let (kept, by_route, by_hand) = (plain(), plain(), plain());
    let short = mint(json!({"name": "s", "scopes": ["operator"], "ttl_ms": 1500}));
    let mut control = open(&kept);
    let (mut first, mut second, mut third) = (open(&by_route), open(&by_hand), open(&short));
    daemon.ask("DELETE", &format!("/v1/tokens/{}", by_route["id"].as_str().unwrap())).send().assert_ok();
    let gone = place.cofferdam(["token", "rm", by_hand["id"].as_str().unwrap()]).output().unwrap();
    assert!(gone.status.success());
    for stream in [&mut first, &mut second, &mut third] {
        let told = stream.rest();
        assert!(told.contains("event: closing") && told.contains("\"credential\""), "{told}");
    }
    daemon.post("/v1/sandboxes", json!({"name": "after"})).assert_ok();
    assert!(control.until("after"), "a stream whose token is good goes on");
}
