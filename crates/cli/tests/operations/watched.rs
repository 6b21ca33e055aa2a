//! Observability of the daemon: logs, metrics for Prometheus, traces and metrics by OTLP.

use crate::collector::{Collector, below};
use crate::daemon::{Daemon, python_path, until};
use crate::support::http::Answer;
use crate::support::{As, Place, either, to_the_end};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn create(daemon: &Daemon, place: &Place, name: &str) -> Value {
    let made = daemon.ask("POST", "/v1/sandboxes").json(json!({"dir": place.project, "name": name})).send();
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

#[test]
fn requests_are_logged_by_template_and_without_what_is_private() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place, &["--log-format", "json"], &[]);
        let made = create(&daemon, &place, "body-word");
        let id = made["id"].as_str().unwrap();
        let looked = daemon.get(&format!("/v1/sandboxes/{id}?wait=1ms"));
        assert_eq!(looked.status, 200, "{looked:?}");
        let token = format!("cof_{}_{}", "a".repeat(32), "b".repeat(64));
        let refused = daemon.ask("GET", "/v1/sandboxes").bearer(&token).send();
        assert_eq!(refused.status, 401);
        let nothing = daemon.get("/v1/private-word");
        assert_eq!(nothing.status, 404);
        daemon.get("/v1/health/live");
        let text = daemon.end();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |answer: &Answer| {
            let id = answer.header("x-request-id").unwrap();
            let found = lines.iter().find(|line| line["request_id"] == id);
            found.unwrap_or_else(|| panic!("{id} is logged: {text}")).clone()
        };
        let line = of(&looked);
        let fields = [&line["level"], &line["method"], &line["route"], &line["tenant"]];
        assert_eq!(fields, ["info", "GET", "/v1/sandboxes/{id}", "default"].map(Value::from).each_ref());
        assert!(line["status"] == 200 && line["ms"].as_f64().unwrap() >= 0.0, "{line}");
        assert_eq!(of(&refused)["error_kind"], "unauthenticated");
        assert_eq!((&of(&nothing)["route"], &of(&nothing)["status"]), (&"none".into(), &404.into()));
        for private in ["cof_", "body-word", "wait=1ms", "private-word", id] {
            assert!(!text.contains(private), "{private} is in the log: {text}");
        }
        assert!(!text.contains("/v1/health"), "health is asked for all day");
        assert!(lines.iter().any(|line| line["message"] == "the daemon is ready"));
    }
}

/// Requests over the rate limit are logged with tenant and route.
#[test]
fn a_request_too_many_is_logged_with_whose_and_which_it_was() {
    let place = Place::new(As::User);
    let config = place.file("c.toml", "[tenant.default.quota]\nrequests_per_minute = 2\n");
    let daemon = Daemon::start(&place, &["--log-format", "json", "--config", config.to_str().unwrap()], &[]);
    let asked = (0..12).map(|_| daemon.get("/v1/sandboxes/sbx_1")).collect::<Vec<_>>();
    let over = asked.iter().find(|answer| answer.status == 429).expect("one is too many");
    let nowhere = daemon.get("/v1/nowhere");
    assert_eq!((asked[0].status, nowhere.status), (404, 429), "the control, and a path that leads nowhere");
    let text = daemon.end();
    let id = over.header("x-request-id").unwrap();
    let line = text.lines().find(|line| line.contains(id)).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let fields = [&line["route"], &line["tenant"], &line["error_kind"], &line["limit_kind"]];
    let want = ["/v1/sandboxes/{id}", "default", "limit_exceeded", "requests_per_minute"];
    assert_eq!(fields, want.map(Value::from).each_ref(), "{line}");
}

#[test]
fn a_level_and_a_format_can_be_chosen() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place, &["--log-format", "text", "--log-level", "warn"], &[]);
    daemon.get("/v1/sandboxes");
    assert_eq!(daemon.end(), "");
    let daemon = Daemon::start(&place, &["--log-format", "text", "--log-level", "debug"], &[]);
    daemon.get("/v1/health/live");
    let text = daemon.end();
    assert!(
        text.lines().any(|line| line.contains(" debug request ") && line.contains("route=/v1/health/live")),
        "{text}"
    );
}

/// Metrics as parsed by Prometheus' own client library: `[[name, labels, value], …]`, with their families' types
/// checked.
fn figures(text: &str) -> Vec<(String, Value, f64)> {
    const READ: &str = "
import json, sys
from prometheus_client.parser import text_string_to_metric_families as read
seen = set()
out = []
for family in read(sys.stdin.read()):
    assert family.documentation and family.type in ('counter', 'gauge', 'histogram'), family
    for s in family.samples:
        key = (s.name, tuple(sorted(s.labels.items())))
        assert key not in seen, key
        seen.add(key)
        assert s.value >= 0 and s.value == s.value, s
        out.append([s.name, s.labels, s.value])
    if family.type == 'histogram':
        for s in family.samples:
            if s.name.endswith('_count'):
                rest = {k: v for k, v in s.labels.items()}
                buckets = [b.value for b in family.samples if b.name.endswith('_bucket')
                           and {k: v for k, v in b.labels.items() if k != 'le'} == rest]
                assert buckets == sorted(buckets) and buckets[-1] == s.value, (s, buckets)
print(json.dumps(out))
";
    let mut python = Command::new("/usr/bin/python3");
    let output = to_the_end(python.args(["-c", READ]).env("PYTHONPATH", python_path()), text.as_bytes());
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<(String, Value, f64)> = serde_json::from_slice(&output.stdout).unwrap();
    found
}

/// The value of the first sample with these labels.
fn value(figures: &[(String, Value, f64)], name: &str, labels: Value) -> Option<f64> {
    let fits = |all: &Value| labels.as_object().unwrap().iter().all(|(key, value)| all[key] == *value);
    figures.iter().find(|(n, all, _)| n == name && fits(all)).map(|(_, _, value)| *value)
}

// promise 26
#[test]
fn figures_are_what_prometheus_reads() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place, &[], &[]);
        let id = create(&daemon, &place, "one")["id"].as_str().unwrap().to_owned();
        assert_eq!(daemon.get("/v1/nothing").status, 404);
        // Counting starts with the first scrape.
        figures(&daemon.get("/metrics").text());
        for command in [&["true"][..], &["false"], &["-t", "100ms", "--", "sleep", "60"]] {
            place.cofferdam(["exec", &id]).args(command).status().unwrap();
        }
        let now = until("the runs are counted", || {
            let answer = daemon.get("/metrics");
            assert_eq!((answer.status, answer.header("content-type").unwrap().contains("0.0.4")), (200, true));
            let now = figures(&answer.text());
            (value(&now, "cofferdam_runs_started_total", json!({})) == Some(3.0)).then_some(now)
        });
        let ended = |verdict: &str| value(&now, "cofferdam_runs_ended_total", json!({ "verdict": verdict }));
        assert_eq!((ended("ok"), ended("failed"), ended("limit_exceeded")), (Some(1.0), Some(1.0), Some(1.0)));
        assert_eq!(value(&now, "cofferdam_limits_met_total", json!({"limit_kind": "wall_ms"})), Some(1.0));
        let labels = json!({"method": "POST", "route": "/v1/sandboxes", "status": "201"});
        assert_eq!(value(&now, "cofferdam_http_requests_total", labels), Some(1.0));
        let labels = json!({"method": "POST", "route": "/v1/sandboxes"});
        assert_eq!(value(&now, "cofferdam_http_request_duration_seconds_count", labels), Some(1.0));
        assert_eq!(value(&now, "cofferdam_http_refused_total", json!({"error_kind": "not_found"})), Some(1.0));
        assert_eq!(value(&now, "cofferdam_sandboxes", json!({"state": "active"})), Some(1.0));
        for name in [
            "cofferdam_keepers",
            "cofferdam_queue_length",
            "cofferdam_store_bytes",
            "cofferdam_journal_head",
            "process_resident_memory_bytes",
            "process_open_fds",
            "cofferdam_log_lines_dropped_total",
        ] {
            assert!(value(&now, name, json!({})).is_some(), "{name} is told");
        }
        until("layers are measured", || {
            value(&figures(&daemon.get("/metrics").text()), "cofferdam_layers_bytes", json!({}))
        });
        // Paths chosen by a client never become labels.
        assert!(!daemon.get("/metrics").text().contains("nothing"));
    }
}

#[test]
fn figures_are_for_operators_and_those_who_were_let() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place, &[], &[]);
    let token = |scope: &str, tenant: &str| {
        let mut command = place.cofferdam(["token", "create", "watcher", "--scope", scope, "--tenant", tenant]);
        let output = to_the_end(&mut command, b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let status = |token: Option<&str>| {
        let ask = daemon.ask("GET", "/metrics").over_tcp();
        token.map_or_else(|| ask.clone(), |token| ask.clone().bearer(token)).send().status
    };
    assert_eq!(status(None), 401);
    assert_eq!(status(Some(&token("agent", "default"))), 403);
    assert_eq!(status(Some(&token("reviewer", "default"))), 403);
    assert_eq!(status(Some(&token("operator", "blue"))), 403, "figures are of all tenants");
    let metrics = token("metrics", "default");
    assert_eq!(status(Some(&metrics)), 200);
    assert_eq!(
        daemon.ask("GET", "/v1/sandboxes").bearer(&metrics).send().status,
        403,
        "and it is good for nothing else"
    );
    assert_eq!(status(Some(&token("operator", "default"))), 200);
}

/// Protobuf's JSON encodes ids in base64.
fn base64_of_hex(hex: &str) -> String {
    let mut python = Command::new("/usr/bin/python3");
    let text = "import base64,sys; print(base64.b64encode(bytes.fromhex(sys.argv[1])).decode())";
    String::from_utf8(to_the_end(python.args(["-c", text, hex]), b"").stdout).unwrap().trim().to_owned()
}

fn attribute(span: &Value, name: &str) -> Value {
    let found = span["attributes"].as_array().into_iter().flatten().find(|pair| pair["key"] == name);
    found.map_or(Value::Null, |pair| pair["value"].clone())
}

// promise 26
#[test]
fn a_collector_gets_requests_and_runs_as_trees_with_phases() {
    let place = Place::new(As::User);
    let collector = Collector::start(&place);
    let env = [("COFFERDAM_TELEMETRY_INTERVAL", "300ms"), ("OTEL_SERVICE_NAME", "coffer-test")];
    let daemon = Daemon::start(&place, &["--otlp-endpoint", &collector.endpoint], &env);
    let id = create(&daemon, &place, "traced")["id"].as_str().unwrap().to_owned();
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let header = format!("00-{trace}-{parent}-01");
    daemon.ask("GET", &format!("/v1/sandboxes/{id}")).header("traceparent", &header).send();
    let unwanted = "00-11111111111111111111111111111111-00f067aa0ba902b7-00";
    daemon.ask("GET", &format!("/v1/sandboxes/{id}")).header("traceparent", unwanted).send();
    let mut run = place.cofferdam(["exec", &id, "--", "sh", "-c", "exit 3"]);
    run.env("TRACEPARENT", &header).status().unwrap();
    let (trace, parent) = (base64_of_hex(trace), base64_of_hex(parent));
    let ours = |name: &str, spans: &[Value]| {
        spans.iter().find(|s| s["name"] == name && s["traceId"] == trace.as_str()).cloned()
    };
    let spans = until("the run's spans", || {
        let spans = collector.spans();
        ours("run", &spans).map(|_| spans)
    });
    let request = ours("GET /v1/sandboxes/{id}", &spans).expect("the request's span");
    assert_eq!((&request["parentSpanId"], &request["kind"]), (&parent.as_str().into(), &"SPAN_KIND_SERVER".into()));
    assert_eq!(attribute(&request, "http.response.status_code")["intValue"], "200");
    let run = ours("run", &spans).unwrap();
    assert_eq!(run["parentSpanId"], parent.as_str());
    assert_eq!(attribute(&run, "cofferdam.verdict")["stringValue"], "failed");
    assert_eq!(attribute(&run, "process.exit.code")["intValue"], "3");
    assert_eq!(run["status"]["code"], "STATUS_CODE_ERROR");
    let time = |span: &Value, field: &str| span[field].as_str().unwrap().parse::<u64>().unwrap();
    let mut end = time(&run, "startTimeUnixNano");
    for phase in ["admission", "planning", "preparation", "start", "execution", "close"] {
        let span = ours(phase, &spans).unwrap_or_else(|| panic!("{phase} is a span: {spans:#?}"));
        assert_eq!(span["parentSpanId"], run["spanId"], "{phase} is below the run");
        assert_eq!(time(&span, "startTimeUnixNano"), end, "{phase} follows without a gap");
        end = time(&span, "endTimeUnixNano");
    }
    assert_eq!(end, time(&run, "endTimeUnixNano"));
    assert!(
        !spans.iter().any(|s| s["traceId"] == base64_of_hex(&"1".repeat(32)).as_str()),
        "who wants no trace has none"
    );
    assert!(!spans.iter().any(|s| s["name"].as_str().unwrap().contains("health")));
    // Each run appears once; runs without a caller's trace start their own.
    assert_eq!(spans.iter().filter(|s| s["name"] == "run").count(), 1);
    let metrics = until("metrics", || {
        let found: Vec<Value> = collector.messages("/v1/metrics");
        let all: Vec<Value> = found
            .iter()
            .flat_map(|m| below(&m["resourceMetrics"], "scopeMetrics"))
            .flat_map(|s| below(&json!([s]), "metrics"))
            .collect();
        all.iter().any(|m| m["name"] == "cofferdam_runs_started_total").then_some(all)
    });
    let named = |name: &str| metrics.iter().rfind(|m| m["name"] == name).unwrap_or_else(|| panic!("{name}")).clone();
    assert_eq!(named("cofferdam_runs_started_total")["sum"]["isMonotonic"], true);
    assert!(named("cofferdam_sandboxes")["gauge"]["dataPoints"].as_array().unwrap().len() > 2);
    let spread = named("cofferdam_http_request_duration_seconds")["histogram"]["dataPoints"][0].clone();
    assert_eq!(
        spread["bucketCounts"].as_array().unwrap().len(),
        spread["explicitBounds"].as_array().unwrap().len() + 1
    );
    let first = collector.messages("/v1/traces")[0]["resourceSpans"][0]["resource"].clone();
    assert_eq!(attribute(&first, "service.name")["stringValue"], "coffer-test");
    // A run of a keeper has the same phases.
    let detached = to_the_end(&mut place.cofferdam(["exec", "-d", &id, "--", "true"]), b"");
    let run_id = String::from_utf8(detached.stdout).unwrap().trim().to_owned();
    assert!(run_id.starts_with("run_"), "{}", String::from_utf8_lossy(&detached.stderr));
    let (run, spans) = until("the spans of a run that a keeper holds", || {
        let spans = collector.spans();
        let of = |s: &&Value| attribute(s, "cofferdam.run_id")["stringValue"] == run_id.as_str();
        Some((spans.iter().find(of)?.clone(), spans))
    });
    let below = spans.iter().filter(|s| s["traceId"] == run["traceId"] && s["parentSpanId"] == run["spanId"]);
    let names: Vec<&str> = below.map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["admission", "planning", "preparation", "start", "execution", "close"]);
    assert!(run["parentSpanId"].is_null(), "a trace of its own");
    place.cofferdam(["stop", &id]).status().unwrap();
    place.cofferdam(["start", &id]).status().unwrap();
    // Runs that end while no daemon is there are reported by the next one.
    daemon.end();
    place.cofferdam(["exec", &id, "--", "true"]).status().unwrap();
    let _daemon = Daemon::start(&place, &["--otlp-endpoint", &collector.endpoint], &env);
    until("the run that ended meanwhile", || {
        (collector.spans().iter().filter(|s| s["name"] == "run").count() == 3).then_some(())
    });
}

/// Collectors that refuse connections, and that accept them and never answer.
// promise 26
#[test]
fn a_collector_that_is_down_costs_nobody_anything() {
    let place = Place::new(As::User);
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = std::net::SocketAddr::from(([127, 0, 0, 1], crate::support::free_port()));
    let timed = |args: &[&str]| {
        let daemon = Daemon::start(&place, args, &[("COFFERDAM_TELEMETRY_INTERVAL", "200ms")]);
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(daemon.get("/v1/sandboxes").status, 200);
        }
        let took = began.elapsed();
        (daemon, took)
    };
    let (daemon, alone) = timed(&[]);
    daemon.end();
    for endpoint in [mute.local_addr().unwrap(), gone] {
        let (daemon, took) = timed(&["--otlp-endpoint", &format!("http://{endpoint}")]);
        assert!(took < 3 * alone + Duration::from_secs(10), "{took:?} with {endpoint}, {alone:?} without");
        if endpoint == gone {
            let lost = json!({"signal": "spans", "outcome": "dropped"});
            until("what is lost is counted", || {
                let now = figures(&daemon.get("/metrics").text());
                value(&now, "cofferdam_telemetry_total", lost.clone()).filter(|lost| *lost > 0.0)
            });
            assert_eq!(daemon.log().matches("cannot export to the collector").count(), 2, "told once for each signal");
        }
        let began = Instant::now();
        daemon.end();
        assert!(began.elapsed() < Duration::from_secs(10), "and it ends in time");
    }
}

#[test]
fn a_log_that_nobody_reads_makes_nobody_wait() {
    let place = Place::new(As::Root);
    let mut command = place.cofferdam(["serve", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let socket = place.state().join("cofferdam.sock");
    // Far more than a pipe holds.
    let one = "GET /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let ask = |socket: &Path| {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = [0; 16];
        for _ in 0..50 {
            stream.write_all(one.as_bytes()).unwrap();
            let mut whole = Vec::new();
            while !whole.ends_with(b"}") {
                let n = std::io::Read::read(&mut stream, &mut answer).expect("an answer in time");
                assert!(n > 0);
                whole.extend(&answer[..n]);
            }
        }
    };
    (0..20).for_each(|_| ask(&socket));
    child.kill().unwrap();
    child.wait().unwrap();
}
