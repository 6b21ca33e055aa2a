//! Bounds on the work that one client causes: duration of a search, event streams of a tenant, disk space of unread
//! exports.

use crate::support::http::{Answer, Ask, Daemon};
use crate::support::patience::Over;
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

struct TwoTenants {
    daemon: Daemon,
    blue: String,
    green: String,
    _place: Place,
}

impl TwoTenants {
    fn new(config: &str) -> TwoTenants {
        let place = Place::new(As::User);
        let file = place.file("config.toml", "");
        fs::write(&file, config).unwrap();
        let daemon = Daemon::start_with(&place, &["--listen", "127.0.0.1:0", "--config", file.to_str().unwrap()]);
        let token =
            |tenant: &str| daemon.token(json!({"name": tenant, "tenant": tenant, "scopes": ["agent", "reviewer"]}));
        let (blue, green) = (token("blue"), token("green"));
        let fixture = TwoTenants { daemon, blue, green, _place: place };
        for token in [&fixture.blue, &fixture.green] {
            fixture.post(token, "/v1/sandboxes", json!({"name": "s"})).assert_ok();
        }
        fixture
    }

    fn ask(&self, token: &str, method: &str, path: &str) -> Ask<'_> {
        self.daemon.ask(method, path).over_tcp().bearer(token)
    }

    fn get(&self, token: &str, path: &str) -> Answer {
        self.ask(token, "GET", path).send()
    }

    fn post(&self, token: &str, path: &str, body: Value) -> Answer {
        self.ask(token, "POST", path).json(body).send()
    }

    /// Runs a shell text in the tenant's sandbox and returns the run.
    fn run(&self, token: &str, shell: &str) -> Value {
        let run = self.post(token, "/v1/sandboxes/s/runs?wait=120s", json!({"shell": shell})).assert_ok();
        assert_eq!(run["outcome"]["verdict"], "ok", "{run}");
        run
    }

    /// CPU time that the daemon has used.
    fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.daemon.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Number and total size of deleted files that the daemon holds open.
    fn deleted_open_files(&self) -> (usize, u64) {
        let fds = fs::read_dir(format!("/proc/{}/fd", self.daemon.child.id())).unwrap().flatten();
        let gone = |path: &std::path::Path| {
            fs::read_link(path).is_ok_and(|to| to.is_absolute() && to.to_string_lossy().ends_with(" (deleted)"))
        };
        let sizes: Vec<u64> = fds
            .filter(|fd| gone(&fd.path()))
            .filter_map(|fd| fs::metadata(fd.path()).ok())
            .filter(|meta| meta.is_file())
            .map(|meta| meta.len())
            .collect();
        (sizes.len(), sizes.iter().sum())
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(180), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Regression: a pattern that compiles to a large automaton, matched against a crafted line, ran for minutes and
/// continued after its client had disconnected.
#[test]
fn a_search_ends_in_time_and_with_its_client() {
    let w = TwoTenants::new("");
    let mixed = "import random; random.seed(1); text = ''.join(random.choices('abc', k=1000000)); \
                 open('line', 'w').write(text + '\\n' + text + 'needle\\n')";
    w.run(&w.blue, &format!("python3 -c \"{mixed}\""));
    let search = |content: &str| format!("/v1/sandboxes/s/files/search?path=.&content={}", encoded(content));
    let worst = search("(?-u:(a|b)[^u-z]{900}([^u-z]{100}){40}[u-z])");
    let begun = Instant::now();
    let found = w.get(&w.blue, &worst).assert_ok();
    let took = begun.elapsed();
    assert_eq!((&found["complete"], &found["stopped_by"]), (&json!(false), &json!("time")), "{found}");
    // The deadline of a search is ten seconds; without it this search took minutes.
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(60), "{took:?}");
    for ordinary in ["needle$", r"\w+needle", "[a-c]+n", r"\w{10}dle\b"] {
        let found = w.get(&w.blue, &search(ordinary)).assert_ok();
        assert_eq!(
            (&found["complete"], &found["matches"][0]["line"]),
            (&json!(true), &json!(2)),
            "{ordinary}: {found}"
        );
    }
    let begun = w.cpu_time();
    let waits = w.ask(&w.blue, "GET", &worst).open();
    until("the control: it searches while a client waits", || w.cpu_time() - begun > Duration::from_millis(500));
    drop(waits);
    let left = w.cpu_time();
    let mut seen = left;
    until("no client waits, and the search goes on", || {
        std::thread::sleep(Duration::from_millis(500));
        w.cpu_time() - std::mem::replace(&mut seen, w.cpu_time()) < Duration::from_millis(30)
    });
    // The remaining time of the search is more than twice that.
    assert!(
        w.cpu_time() - left < Duration::from_secs(4),
        "no client waits, and the search went on: {:?}",
        w.cpu_time() - left
    );
}

/// Glob patterns against very long paths are matched in bounded time, too.
#[test]
fn patterns_of_names_end_in_time() {
    let w = TwoTenants::new("");
    let deep = "import os\nfor n in range(150):\n  os.mkdir('d' * 200); os.chdir('d' * 200)\nopen('end', 'w')";
    w.run(&w.blue, &format!("python3 -c \"{deep}\""));
    let worst = "**/*d*d".repeat(120);
    let globs: String = (0..9).map(|n| format!("&glob={worst}x{n}")).collect();
    let begun = Instant::now();
    let found = w.get(&w.blue, &format!("/v1/sandboxes/s/files/search?path=.{globs}"));
    assert!(begun.elapsed() < Duration::from_secs(180), "{:?}", begun.elapsed());
    found.assert_ok();
    let found = w.get(&w.blue, "/v1/sandboxes/s/files/search?path=.&glob=end").assert_ok();
    assert_eq!((&found["complete"], found["matches"].as_array().unwrap().len()), (&json!(true), 1), "the control");
    let found =
        w.get(&w.blue, &format!("/v1/sandboxes/s/files/search?path=.&glob={}", encoded("d*/**/end"))).assert_ok();
    assert_eq!(found["matches"].as_array().unwrap().len(), 1, "the control, by the whole path");
}

#[test]
fn no_tenant_has_all_streams_of_events() {
    let w = TwoTenants::new("[serve]\nmax_event_streams = 8\n");
    let open = |token: &str| w.ask(token, "GET", "/v1/events").open();
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut stream = open(&w.blue);
        assert!(stream.until("text/event-stream"));
        held.push(stream);
    }
    let refused = w.get(&w.blue, "/v1/events");
    let fault = refused.assert_fault(429, "limit_exceeded");
    assert_eq!((&fault["limit_kind"], &fault["phase"]), (&json!("streams"), &json!("admission")));
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    assert!(open(&w.green).until("text/event-stream"), "the control: another has his");
    held.pop();
    until("a stream that is closed makes room", || open(&w.blue).until("text/event-stream"));
}

/// Regression: a tenant with hundreds of event streams and constant changes took every slot for run lookups, which all
/// tenants share.
#[test]
fn streams_of_one_tenant_keep_nobody_else_waiting() {
    let w = TwoTenants::new("");
    let run = w.run(&w.green, "echo here")["run"].as_str().unwrap().to_owned();
    let mut streams: Vec<_> = (0..400).map(|_| w.ask(&w.blue, "GET", "/v1/events").open()).collect();
    assert!(streams.iter_mut().all(|stream| stream.until("text/event-stream")));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for thread in 0..8 {
            let (w, over) = (&w, &over);
            scope.spawn(move || {
                for count in 0.. {
                    let dir = json!({"path": format!("d/{thread}/{count}"), "parents": true});
                    w.post(&w.blue, "/v1/sandboxes/s/files/mkdir", dir);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let answers: Vec<u16> = (0..100).map(|_| w.get(&w.green, &format!("/v1/runs/{run}")).status).collect();
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    });
    assert!(streams[0].until("files.mkdir") && streams[399].until("files.mkdir"), "the control: they are told");
    w.get(&w.blue, "/v1/sandboxes/s").assert_ok();
}

const FILL: &str = "head -c 30000000 /dev/urandom > big";

/// Exports are spooled to disk until the client reads them. Their number is bounded, patches included, and the spool
/// goes with the client's connection.
#[test]
fn what_nobody_takes_is_counted_as_an_archive() {
    let w = TwoTenants::new("");
    w.run(&w.green, "head -c 8000000 /dev/urandom > big");
    let taken = w.post(&w.green, "/v1/sandboxes/s/snapshots", json!({})).assert_ok();
    let export = format!("/v1/snapshots/{}/export", taken["id"].as_str().unwrap());
    let mut held: Vec<_> = (0..8).map(|_| w.ask(&w.green, "GET", &export).open()).collect();
    assert!(held.iter_mut().all(|stream| stream.until("200 OK")));
    let (count, bytes) = w.deleted_open_files();
    assert!(count == 8 && bytes > 60_000_000, "the control: {count} files, {bytes} bytes");
    std::thread::scope(|scope| {
        for path in [&export[..], "/v1/sandboxes/s/workspace/patch"] {
            let w = &w;
            scope.spawn(move || {
                let refused = w.get(&w.green, path);
                assert_eq!(refused.assert_fault(429, "limit_exceeded")["limit_kind"], "waiting", "{path}");
                assert!(refused.header("retry-after").is_some());
            });
        }
        let control = w.get(&w.blue, "/v1/sandboxes/s/export");
        assert_eq!(control.status, 200, "the control: another has his");
    });
    assert!(w.deleted_open_files().0 <= 8);
    drop(held);
    until("abandoned exports are removed", || w.deleted_open_files().0 == 0);
    assert_eq!(w.get(&w.green, "/v1/sandboxes/s/workspace/patch").status, 200);
    let whole = w.get(&w.green, &export);
    assert!(whole.status == 200 && whole.is_whole());
}

/// Spooled bodies of one tenant are bounded by its disk quota, separately from its stored data.
#[test]
fn bodies_on_their_way_have_a_quota() {
    let w = TwoTenants::new("[tenant.green.quota]\ndisk = \"40m\"\n");
    w.run(&w.green, FILL);
    let export = "/v1/sandboxes/s/export";
    let mut first = w.ask(&w.green, "GET", export).open();
    assert!(first.until("200 OK"), "the control: what it has can be exported");
    let refused = w.get(&w.green, export);
    let fault = refused.assert_fault(429, "limit_exceeded");
    assert_eq!((&fault["limit_kind"], &fault["phase"]), (&json!("disk_mb"), &json!("admission")), "{fault}");
    assert!(fault["message"].as_str().unwrap().contains("tenant green"), "{fault}");
    let bytes = vec![0; 20 << 20];
    let import = w.ask(&w.green, "POST", "/v1/import").body("application/zstd", &bytes).send();
    assert_eq!(import.assert_fault(429, "limit_exceeded")["limit_kind"], "disk_mb", "what comes in is counted as well");
    assert_eq!(w.deleted_open_files().0, 1);
    drop(first);
    until("it goes with its client", || w.deleted_open_files().0 == 0);
    assert_eq!(w.get(&w.green, export).status, 200);
}
