//! Streams and waits hold no thread: with more of them open than the verbs' thread pool has threads, ordinary requests
//! are answered.

use crate::runs::RunsFixture;
use crate::support::As;
use crate::support::http::Open;
use crate::support::left::soon;
use serde_json::json;
use std::time::{Duration, Instant};

/// In total more than three times the 64 threads of the verbs' pool.
const FOLLOWS: usize = 100;
const WAITS: usize = 100;
const WATCHES: usize = 32;
/// Threads that may have been added for steps and ordinary requests.
const MORE_THREADS: usize = 16;

/// Names of the daemon's threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
}

/// Threads outside the runtime and its pool.
fn own_threads(pid: u32) -> usize {
    threads(pid).iter().filter(|name| !name.starts_with("tokio")).count()
}

/// Requests in flight by the daemon's own metric, including the one that asks.
fn in_flight(w: &RunsFixture) -> usize {
    let text = w.daemon.ask("GET", "/metrics").send().text();
    let line = text.lines().find(|line| line.starts_with("cofferdam_http_requests_in_flight")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn streams_and_waits_hold_no_thread() {
    let w = RunsFixture::new(As::Root);
    let pid = w.daemon.child.id();
    let run = w.begin(json!({"shell": "echo begun; sleep 600"}));
    let (before, own) = (threads(pid).len(), own_threads(pid));
    let open =
        |count: usize, path: String| -> Vec<Open> { (0..count).map(|_| w.daemon.ask("GET", &path).open()).collect() };
    let mut follows = open(FOLLOWS, format!("/v1/runs/{run}/output"));
    let mut waits = open(WAITS, format!("/v1/runs/{run}?wait=5m"));
    assert!(follows.iter_mut().all(|stream| stream.until("begun")), "every stream has what was said");
    assert!(soon(|| in_flight(&w) > WAITS), "every wait has come to the daemon: {}", in_flight(&w));
    // Threads that were started for the load exit after an idle time.
    let settled = soon(|| threads(pid).len() <= before + MORE_THREADS);
    assert!(settled, "{} threads after {before}", threads(pid).len());
    let mut watches = open(WATCHES, "/v1/sandboxes/s/files/watch?path=.".into());
    assert!(watches.iter_mut().all(|stream| stream.until("event: ready")));
    let since = Instant::now();
    for _ in 0..10 {
        w.daemon.get("/v1/sandboxes/s").assert_ok();
        let done = w.daemon.post("/v1/sandboxes/s/runs?wait=20s", json!({"command": ["true"]})).assert_ok();
        assert_eq!(done["outcome"]["verdict"], "ok", "{done}");
    }
    assert!(since.elapsed() < Duration::from_secs(20), "ordinary requests took {:?}", since.elapsed());
    assert_eq!(own_threads(pid), own, "no stream has a thread of its own: {:?}", threads(pid));
    // The control: all streams were open all the time, and get their event.
    assert!(in_flight(&w) > WAITS, "{} requests wait", in_flight(&w));
    w.daemon.post("/v1/sandboxes/s/runs?wait=20s", json!({"shell": "echo x > file"})).assert_ok();
    assert!(watches.iter_mut().all(|stream| stream.until("event: change")), "every watch tells of the file");
    assert_eq!(w.daemon.ask("POST", &format!("/v1/runs/{run}/kill")).send().assert_ok()["changed"], true);
    for stream in &mut follows {
        assert!(stream.rest().contains("event: end"), "{}", String::from_utf8_lossy(&stream.text));
    }
    for wait in &mut waits {
        assert!(wait.until("\"outcome\""), "{}", String::from_utf8_lossy(&wait.text));
    }
}
