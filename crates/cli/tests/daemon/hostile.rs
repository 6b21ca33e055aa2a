//! Attacks by a tenant with an agent's token, and by a guest, on data that the daemon trusts.

use crate::support::http::Daemon;
use crate::support::{As, Place, either};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

/// Guest server that redirects to wherever the query says, with method and body kept; reports any other request.
const LEADS: &str = r#"
import http.server, urllib.parse
class Guest(http.server.BaseHTTPRequestHandler):
    def reply(self):
        at = urllib.parse.urlparse(self.path)
        self.send_response(307 if at.path == "/a/lead" else 200)
        if at.path == "/a/lead":
            self.send_header("location", urllib.parse.unquote(at.query))
        self.end_headers()
        self.wfile.write(f"guest: {self.command} {self.path}".encode())
    do_GET = do_DELETE = do_POST = reply
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Guest).serve_forever()
"#;

/// Spellings of hosts that are the daemon's own, and some that cannot be resolved to a host.
const OURS: [&str; 21] = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "127%2e0.0.1",
    "0x7f.1",
    "017700000001",
    "localhost%2e",
    "localhost.",
    "LOCALHOST",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "foo.localhost",
    "0.0.0.0",
    "0",
    "[::]",
    "127.0.0.2",
    "ip6-localhost",
    "box.example",
    "BOX.example.",
    "1.2.3.4.5",
    "127.0.0.256",
];

/// Clients follow a redirect with the token of the first request, also for DELETE.
// promise 23
#[test]
fn a_redirect_of_a_guest_takes_no_token_to_the_daemon() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--allow-host", "box.example"]);
    for name in ["web", "victim"] {
        daemon.post("/v1/sandboxes", json!({ "name": name })).assert_ok();
    }
    let started = place.cofferdam(["exec", "-d", "web", "python3", "-c", LEADS]).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let begun = Instant::now();
    while daemon.get("/v1/sandboxes/web/ports/8000/").status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(180), "the server inside does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (token, port) = (daemon.operator_token(), daemon.port.unwrap());
    let curl = |method: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-s", "-m", "30", "-L", "--max-redirs", "5", "-X", method]);
        command.args(["-H", &format!("authorization: Bearer {token}")]).arg(format!("http://localhost:{port}{path}"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let led = |to: &str| curl("DELETE", &format!("/v1/sandboxes/web/ports/8000/a/lead?{}", to.replace('%', "%25")));
    // The control: redirects within the guest's own server work.
    for (to, there) in [("/there", "/there"), ("there", "/a/there"), ("http://localhost:8000/x", "/x")] {
        assert_eq!(led(to), format!("guest: DELETE {there}"), "{to}");
    }
    let name = "victim?force=true&timeout=0s";
    for to in [
        format!("/../../../{name}"),
        format!("../../../../{name}"),
        format!("/%2e%2e/%2E%2e/.%2e/{name}"),
        format!("http://localhost:8000/../../../{name}"),
        format!("//localhost:8000/../../../{name}"),
        format!("http://localhost:{port}/v1/sandboxes/{name}"),
        format!("//localhost:{port}/v1/sandboxes/{name}"),
        format!("http:/v1/sandboxes/{name}"),
        format!("/\\localhost:{port}/v1/sandboxes/{name}"),
    ] {
        let said = led(&to);
        assert!(said.starts_with("guest: DELETE /") || said.contains("provider_failed"), "{to}: {said}");
        assert_eq!(daemon.get("/v1/sandboxes/victim").status, 200, "{to}");
    }
    // An address has many spellings, and clients accept them all.
    let raw = |to: &str| daemon.get(&format!("/v1/sandboxes/web/ports/8000/a/lead?{}", to.replace('%', "%25")));
    for host in OURS {
        raw(&format!("http://{host}:{port}/v1/tokens")).assert_fault(502, "provider_failed");
        raw(&format!("//{host}:{port}/v1/tokens")).assert_fault(502, "provider_failed");
    }
    // The control: other hosts pass unchanged, and the guest's own names stay below its path.
    for (to, there) in [
        ("http://other.example:7171/v1/tokens", "http://other.example:7171/v1/tokens"),
        ("http://192.0.2.7/a", "http://192.0.2.7/a"),
        ("http://localhost.example/a", "http://localhost.example/a"),
        ("../x", "/v1/sandboxes/web/ports/8000/x"),
        ("http://0.0.0.0:8000/x", "/v1/sandboxes/web/ports/8000/x"),
    ] {
        let led = raw(to);
        assert_eq!((led.status, led.header("location")), (307, Some(there)), "{to}");
    }
    // The control: the same token deletes the sandbox when its owner means it.
    curl("DELETE", &format!("/v1/sandboxes/{name}"));
    assert_eq!(daemon.get("/v1/sandboxes/victim").status, 404);
    daemon.ask("DELETE", "/v1/sandboxes/web?force=true&timeout=0s").send().assert_ok();
}

/// Writes a workspace archive without files whose `about` repeats one byte: however large the result, it compresses to
/// a few hundred blocks.
const TELLS: &str = r#"
import hashlib, io, json, re, struct, sys, tarfile
first, byte, count, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
about = (first + byte * count + last).encode()
plain = json.dumps(json.loads(about), separators=(",", ":")).encode()
digest = hashlib.sha256(struct.pack("<Q", len(plain)) + plain).hexdigest()
told = b'{"format":1,"about":%s,"digest":"%s","entries":[]}' % (about, digest.encode())
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
    info = tarfile.TarInfo("manifest.json")
    info.size = len(told)
    tar.addfile(info, io.BytesIO(told))
rest, blocks, at = out.getvalue(), [], 0
for run in re.finditer(rb"(?s)(.)\1{4095,}", rest):
    blocks += [(0, rest[at:run.start()]), (1, run.group())]
    at = run.end()
blocks.append((0, rest[at:]))
frame = [b"\x28\xb5\x2f\xfd\x00\x38"]
for kind, data in blocks:
    for part in (data[i:i + 131072] for i in range(0, len(data), 131072)):
        frame.append(struct.pack("<I", kind << 1 | len(part) << 3)[:3] + (part[:1] if kind else part))
frame.append(b"\x01\x00\x00")
sys.stdout.buffer.write(b"".join(frame))
"#;

/// The `about` text of an import is chosen by its maker, so it must cost neither memory nor space in the records.
#[test]
fn an_import_costs_no_more_than_it_brings() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let telling = |first: &str, byte: &str, count: u32, last: &str| {
        let mut python = Command::new("python3");
        let made = python.args(["-c", TELLS, first, byte, &count.to_string(), last]).output().unwrap();
        assert!(made.status.success() && made.stdout.len() < 16 << 10, "{made:?}");
        made.stdout
    };
    let import = |key: &str, bytes: &[u8]| {
        let ask = daemon.ask("POST", "/v1/import").header("idempotency-key", key);
        ask.body("application/zstd", bytes).send()
    };
    let kept = || {
        let sizes = ["store.db", "store.db-wal"].map(|name| std::fs::metadata(place.state().join(name)));
        sizes.into_iter().flatten().map(|meta| meta.len()).sum::<u64>()
    };
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let (records, memory) = (kept(), peak());
    let long = telling("\"", "a", 20 << 20, "\"");
    let deep = telling("[", " ", 40 << 20, "]");
    for (n, bytes) in [&long, &deep].into_iter().cycle().take(4).enumerate() {
        import(&format!("bad{n}"), bytes).assert_fault(400, "invalid_request");
    }
    let fair = telling("\"", "a", 1_000_000, "\"");
    for n in 0..4 {
        let told = import(&format!("fair{n}"), &fair);
        assert_eq!(told.assert_ok()["about"].as_str().unwrap().len(), 1_000_000, "the control: some is told");
        assert_eq!(import(&format!("fair{n}"), &fair).assert_ok()["id"], told.json()["id"]);
    }
    assert!(kept() - records < 2 << 20, "{records} bytes of records became {}", kept());
    assert!(peak() - memory < 200 << 20, "{memory} bytes of memory became {}", peak());
    // The control: an ordinary workspace of many files is imported and exported unchanged.
    daemon.post("/v1/sandboxes", json!({ "name": "many" })).assert_ok();
    let fill = "for n in $(seq 2000); do echo $n > file-$n; done";
    let run = daemon.post("/v1/sandboxes/many/runs?wait=120s", json!({ "shell": fill })).assert_ok();
    assert_eq!(run["outcome"]["exit"], json!({ "code": 0 }), "{run}");
    daemon.ask("POST", "/v1/sandboxes/many/stop").send().assert_ok();
    let exported = daemon.get("/v1/sandboxes/many/export");
    let told = import("many", &exported.body).assert_ok();
    assert_eq!(told["entries"], 2000, "{told}");
    assert_eq!(import("many", &exported.body).assert_ok(), told);
}

/// An explanation resolves links of the host and drops rules for absent paths. Other callers than the host's operator
/// can observe neither.
// promise 23
#[test]
fn an_explanation_tells_nothing_of_the_host() {
    for who in either() {
        let place = Place::new(who);
        let hidden = place.dir("home/hidden");
        place.dir("home/hidden/there");
        std::os::unix::fs::symlink(hidden.join("there"), hidden.join("link")).unwrap();
        let daemon = Daemon::start(&place);
        let agent = daemon.token(json!({ "name": "a", "scopes": ["agent"], "dirs": [place.project] }));
        let other =
            daemon.token(json!({ "name": "b", "tenant": "b", "scopes": ["operator"], "dirs": [place.project] }));
        let ask = |token: &str, ask: Value| daemon.ask("POST", "/v1/policies/explain").bearer(token).json(ask).send();
        let (there, gone, link) = (hidden.join("there"), hidden.join("gone"), hidden.join("link"));
        let told = |token: &str, dir: &std::path::Path, what: &std::path::Path| {
            let answer = ask(token, json!({ "what": what.join("x"), "dir": dir }));
            let text = answer.text().replace(answer.header("x-request-id").unwrap(), "ID");
            (answer.status, text.replace(dir.to_str().unwrap(), "DIR").replace(what.to_str().unwrap(), "WHAT"))
        };
        for token in [&agent, &other] {
            // Existence of a path, and the target of a link.
            assert_eq!(told(token, &there, &there), told(token, &gone, &gone));
            assert_eq!(told(token, &link, &there), told(token, &link, &gone));
            let (status, text) = told(token, &place.project, &place.project);
            assert!(status == 200 && text.contains("allow"), "the control: {text}");
        }
        let denial = |what: &std::path::Path| {
            let rule = json!({ "action": "deny", "path": link, "perms": ["read_file"] });
            let policy = json!({ "version": 1, "extends": ["default"], "fs": { "rules": [rule] } });
            let answer = ask(&other, json!({ "what": what.join("x"), "policy": policy }));
            answer.assert_ok();
            answer.text().replace(what.to_str().unwrap(), "WHAT")
        };
        assert_eq!(denial(&there), denial(&gone), "a rule about a link does not show where it leads");
        let of_operator = |what: &std::path::Path| {
            let answer = daemon.post("/v1/policies/explain", json!({ "what": what.join("x"), "dir": there }));
            answer.assert_ok()["decisions"][0]["action"].clone()
        };
        assert_eq!(of_operator(&link), "allow", "the control: to the operator of the host links are followed");
    }
}

/// Extreme and odd numbers in every field: each is refused or carried out, and nothing crashes.
// promise 23
#[test]
fn no_number_breaks_the_daemon() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let agent = daemon.token(json!({ "name": "a", "scopes": ["agent"] }));
    let ask = |method: &str, path: &str, body: Option<&Value>| {
        let ask = daemon.ask(method, path).bearer(&agent);
        body.map_or_else(|| ask.clone(), |body| ask.clone().json(body.clone())).send()
    };
    // An agent that lowers its limits cannot raise them again, so one sandbox is used up for that.
    for name in ["s", "tight"] {
        ask("POST", "/v1/sandboxes", Some(&json!({ "name": name }))).assert_ok();
    }
    ask("POST", "/v1/sandboxes/s/files/mkdir", Some(&json!({ "path": "target" }))).assert_ok();
    let run = json!({ "shell": "trap '' HUP; while :; do sleep 1; done", "terminal": { "rows": 24, "columns": 80 } });
    let run = ask("POST", "/v1/sandboxes/s/runs", Some(&run));
    let run = run.assert_ok()["run"].as_str().unwrap().to_owned();
    let odd: [Value; 11] = [
        json!(0),
        json!(1),
        json!(-1),
        json!(65_536),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e308),
        json!(1e-308),
    ];
    for n in &odd {
        let text = n.to_string().replace('+', "%2B");
        let bodies = [
            ("POST", "/v1/sandboxes".to_owned(), json!({ "ttl_ms": n })),
            ("POST", "/v1/sandboxes".to_owned(), json!({ "idle_ms": n })),
            ("POST", "/v1/sandboxes".to_owned(), json!({ "cpus": n })),
            ("POST", "/v1/sandboxes".to_owned(), json!({ "limits": { "max_memory_mb": n, "max_disk_mb": n } })),
            (
                "POST",
                "/v1/sandboxes".to_owned(),
                json!({ "limits": { "max_wall_ms": n, "max_cpu_ms": n, "max_files": n } }),
            ),
            ("PATCH", "/v1/sandboxes/s".to_owned(), json!({ "ttl_ms": n })),
            ("PATCH", "/v1/sandboxes/s".to_owned(), json!({ "idle_ms": n })),
            ("PATCH", "/v1/sandboxes/tight".to_owned(), json!({ "limits": { "max_output_bytes": n } })),
            ("PATCH", "/v1/sandboxes/s".to_owned(), json!({ "ttl_ms": null, "idle_ms": null })),
            ("POST", "/v1/sandboxes/s/runs".to_owned(), json!({ "shell": "true", "limits": { "max_wall_ms": n } })),
            (
                "POST",
                "/v1/sandboxes/s/runs".to_owned(),
                json!({ "shell": "true", "limits": { "max_cpu_ms": n, "max_processes": n } }),
            ),
            (
                "POST",
                "/v1/sandboxes/s/runs".to_owned(),
                json!({ "shell": "true", "terminal": { "rows": n, "columns": n } }),
            ),
            ("POST", format!("/v1/runs/{run}/resize"), json!({ "rows": n, "columns": n })),
            ("POST", format!("/v1/runs/{run}/signal"), json!({ "signal": n })),
            ("POST", "/v1/sandboxes/s/files/mkdir".to_owned(), json!({ "path": format!("d{text}"), "mode": text })),
            ("POST", "/v1/sandboxes/s/files/chmod".to_owned(), json!({ "path": "target", "mode": text })),
            ("POST", "/v1/sandboxes/s/fork".to_owned(), json!({ "count": n })),
            ("POST", "/v1/sandboxes/s/suspend".to_owned(), json!({ "tier": "frozen", "grace_ms": n })),
        ];
        for (method, path, body) in &bodies {
            let answer = ask(method, path, Some(body));
            assert!(answer.status < 500 || answer.status == 501, "{method} {path} {body}: {answer:?}");
        }
        ask("POST", "/v1/sandboxes/s/resume", None);
        for path in [
            format!("/v1/sandboxes/s/files/list?path=.&depth={text}"),
            format!("/v1/sandboxes/s/files/list?path=.&limit={text}"),
            format!("/v1/sandboxes/s/files/search?path=.&limit={text}"),
            format!("/v1/sandboxes?limit={text}"),
            format!("/v1/runs/{run}/output?from={text}&follow=false"),
            format!("/v1/sandboxes/s/ports/{text}/"),
            format!("/v1/sandboxes/s/runs?limit={text}"),
        ] {
            let answer = ask("GET", &path, None);
            assert!(answer.status < 500 || [501, 503].contains(&answer.status), "{path}: {answer:?}");
        }
        for range in [
            format!("bytes={text}-"),
            format!("bytes=-{text}"),
            format!("bytes=0-{text}"),
            format!("bytes={text}-{text}"),
        ] {
            let answer =
                daemon.ask("GET", "/v1/sandboxes/s/files/content?path=f").bearer(&agent).header("range", &range).send();
            assert!(answer.status < 500, "{range}: {answer:?}");
        }
    }
    // The daemon and its runs still work.
    assert_eq!(ask("GET", &format!("/v1/runs/{run}"), None).assert_ok()["running"], true);
    let said = ask("POST", "/v1/sandboxes/s/runs?wait=120s", Some(&json!({ "shell": "echo still here" })));
    assert_eq!(said.assert_ok()["outcome"]["stdout"], "still here\n", "{said:?}");
    daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send().assert_ok();
}
