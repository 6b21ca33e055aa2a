//! Guests and clients that want too much, over HTTP: bounded memory, exact counts, typed answers.

use crate::support::http::{Answer, Daemon};
use crate::support::sse::events;
use crate::support::{As, BOTH, Place, either};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

struct BurdensFixture {
    place: Place,
    daemon: Daemon,
}

impl BurdensFixture {
    fn new(who: As) -> BurdensFixture {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let fixture = BurdensFixture { place, daemon };
        fixture.make(json!({})).assert_ok();
        fixture
    }

    fn make(&self, limits: Value) -> Answer {
        self.daemon.ask("DELETE", "/v1/sandboxes/s?force=true&timeout=0s").send();
        self.daemon.post("/v1/sandboxes", json!({ "name": "s", "policies": ["workspace-write"], "limits": limits }))
    }

    fn python(&self, text: &str, limits: Value) -> Answer {
        let ask = json!({ "command": ["/usr/bin/python3", "-c", text], "limits": limits });
        self.daemon.post("/v1/sandboxes/s/runs?wait=120s", ask)
    }

    fn keeper(&self) -> u64 {
        let id = self.daemon.get("/v1/sandboxes/s").assert_ok()["id"].as_str().unwrap().to_owned();
        let card = fs::read_to_string(self.place.state().join("keepers").join(id).join("keeper.json")).unwrap();
        serde_json::from_str::<Value>(&card).unwrap()["pid"].as_u64().unwrap()
    }
}

impl Drop for BurdensFixture {
    fn drop(&mut self) {
        let _ = self.place.cofferdam(["rm", "--force", "--timeout", "0s", "s"]).output();
    }
}

/// Peak memory of a process in KiB.
fn peak_kib(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok()).unwrap()
}

/// Output beyond the retained size with a reader that lags: the run ends, memory stays bounded, and the reader learns
/// exactly which bytes it missed.
// promise 24
#[test]
fn a_flood_with_a_slow_reader_is_bounded_and_exact() {
    const FIRST: u64 = 10_000_000;
    const LAST: u64 = 17_999_999;
    let w = BurdensFixture::new(As::User);
    w.python("print()", json!({})).assert_ok();
    let both = [u64::from(w.daemon.child.id()), w.keeper()];
    let before = both.map(peak_kib);
    let run = w.daemon.post("/v1/sandboxes/s/runs", json!({ "shell": format!("sleep 0.2; seq {FIRST} {LAST}") }));
    let run = run.assert_ok()["run"].as_str().unwrap().to_owned();
    let mut slow = w.daemon.ask("GET", &format!("/v1/runs/{run}/output")).open();
    assert!(slow.until("event: stdout"));
    let done = w.daemon.get(&format!("/v1/runs/{run}?wait=120s")).assert_ok();
    assert_eq!(done["outcome"]["verdict"], "ok", "{}", done["outcome"]["verdict"]);
    assert_eq!(done["outcome"]["usage"]["output_bytes"], (LAST - FIRST + 1) * 9);
    let keeper = peak_kib(both[1]) - before[1];
    let all = events(&slow.rest());
    let (mut next, mut rest, mut gaps) = (FIRST, String::new(), 0);
    for event in &all {
        if event.name == "gap" {
            // The rest of a line whose beginning was dropped is dropped with it.
            (gaps, next, rest) = (gaps + 1, 0, String::new());
        }
        let Some(data) = event.data["data"].as_str().filter(|_| event.name == "stdout") else { continue };
        rest += data;
        let whole = rest.rfind('\n').map_or(0, |end| end + 1);
        for line in rest[..whole].lines() {
            let number = line.parse::<u64>().ok().filter(|_| line.len() == 8);
            let is_next = number == Some(next) || next == 0;
            assert!(is_next, "{line:?} where {next} was due, after {gaps} gaps");
            next = number.map_or(next, |number| number + 1);
        }
        rest = rest.split_off(whole);
    }
    assert_eq!((all.last().unwrap().name.as_str(), next, rest.as_str()), ("end", LAST + 1, ""));
    assert!(gaps > 0, "more than is kept");
    let daemon = peak_kib(both[0]) - before[0];
    assert!(daemon < 64 << 10 && keeper < 16 << 10, "daemon and keeper grew by {daemon} and {keeper} KiB");
}

/// Denials in a live sandbox are counted, a wall limit holds against every trick, and leftover processes are reaped.
// promise 24
#[test]
fn what_a_live_guest_does_stays_bounded() {
    for who in either() {
        let w = BurdensFixture::new(who);
        let text = "for _ in range(20000):\n try: open('/etc/hostname', 'w')\n except OSError: pass";
        w.python("pass", json!({})).assert_ok();
        let (keeper, before) = (w.keeper(), peak_kib(w.keeper()));
        let outcome = w.python(text, json!({})).assert_ok()["outcome"].clone();
        let denials = outcome["denials"].as_array().unwrap();
        assert_eq!((denials.len(), &denials[0]["count"]), (1, &json!(20_000)), "{outcome}");
        let grown = peak_kib(keeper) - before;
        assert!(grown < 16 << 10, "{grown} KiB");
        for stubborn in [
            "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
            "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(1)",
            "import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)",
        ] {
            let done = w.python(stubborn, json!({ "max_wall_ms": 500 })).assert_ok();
            assert_eq!(done["outcome"]["limit_kind"], "wall_ms", "{stubborn}: {done}");
        }
        let storm = "import os\nfor _ in range(1000):\n if (p := os.fork()) == 0:\n  if os.fork() == 0: os.setsid()\n  os._exit(0)\n os.waitpid(p, 0)";
        assert_eq!(w.python(storm, json!({})).assert_ok()["outcome"]["verdict"], "ok");
        let left = w.python("import os; print(sum(n.isdigit() for n in os.listdir('/proc')))", json!({})).assert_ok();
        let left: u64 = left["outcome"]["stdout"].as_str().unwrap().trim().parse().unwrap();
        assert!(left <= 4, "{left} processes");
        assert_eq!(w.keeper(), keeper, "it was one keeper all the time");
    }
}

/// Concurrent creates at the quota, each repeated under its key: as many sandboxes as fit, one per key; a client told
/// to retry succeeds later.
// promise 24
#[test]
fn a_storm_at_the_quota_makes_what_fits_once() {
    let place = Place::new(As::User);
    let config = place.file("config.toml", "[quota]\nsandboxes = 6\n");
    let daemon = Daemon::start_with(&place, &["--config", config.to_str().unwrap()]);
    let make = |key: usize| {
        let ask = daemon.ask("POST", "/v1/sandboxes").header("idempotency-key", &format!("k{key}"));
        (key, ask.json(json!({})).send())
    };
    let answers: Vec<(usize, Answer)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..60).map(|n| scope.spawn(move || make(n % 20))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut made: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (key, answer) in &answers {
        match answer.status {
            200 | 201 => drop(made.entry(*key).or_default().insert(answer.json()["id"].as_str().unwrap().to_owned())),
            _ => {
                let fault = answer.assert_fault(429, "limit_exceeded");
                assert_eq!(fault["limit_kind"], "sandboxes");
                assert!(answer.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
            }
        }
    }
    assert!(made.len() == 6 && made.values().all(|ids| ids.len() == 1), "{made:?}");
    let listed = daemon.get("/v1/sandboxes").assert_ok();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 6);
    // A refused request does not use up its key.
    let (&first, ids) = made.iter().next().unwrap();
    let late = (0..20).find(|key| !made.contains_key(key)).unwrap();
    daemon.ask("DELETE", &format!("/v1/sandboxes/{}", ids.first().unwrap())).send().assert_ok();
    assert_eq!(make(late).1.status, 201);
    assert_eq!(make(late).1.status, 200, "full again, and the same");
    make(first).1.assert_fault(409, "conflict");
    daemon.post("/v1/sandboxes", json!({})).assert_fault(429, "limit_exceeded");

    // Concurrent snapshots of one sandbox: one per key.
    let id = listed["sandboxes"].as_array().unwrap().iter().find(|row| row["id"] != *ids.first().unwrap()).unwrap();
    let path = format!("/v1/sandboxes/{}/snapshots", id["id"].as_str().unwrap());
    let take = |key: usize| loop {
        let ask = daemon.ask("POST", &path).header("idempotency-key", &format!("s{key}"));
        let answer = ask.json(json!({})).send();
        match answer.status {
            // Another snapshot holds the sandbox at this moment.
            409 => assert_ne!(answer.json()["retry"], "never", "{answer:?}"),
            _ => return (key, answer.assert_ok()["id"].as_str().unwrap().to_owned()),
        }
    };
    let taken: Vec<(usize, String)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..24).map(|n| scope.spawn(move || take(n % 8))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let (pairs, ids): (BTreeSet<_>, BTreeSet<_>) = (taken.iter().collect(), taken.iter().map(|(_, id)| id).collect());
    assert_eq!((pairs.len(), ids.len()), (8, 8), "{taken:?}");
    let listed = daemon.get(&format!("{path}?limit=100")).assert_ok();
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 8);
}

/// Every limit in the API description is enforced or refused by name; none is accepted and ignored.
// promise 24
#[test]
fn every_described_limit_is_held_or_refused() {
    let over = |field: &str| match field {
        "max_wall_ms" => (700, "import time; time.sleep(60)"),
        "max_cpu_ms" => (300, "while True: pass"),
        "max_memory_mb" => (48, "x = bytearray(200 << 20)"),
        "max_output_bytes" => (10, "print('x' * 100)"),
        "max_processes" => (
            4,
            "import os, time\nfor _ in range(8):\n try:\n  if os.fork() == 0: time.sleep(60)\n except OSError: time.sleep(30)",
        ),
        "max_open_files" => (20, "import os\nk = [os.open('/dev/null', 0) for _ in range(40)]"),
        "max_disk_mb" => (1, "open('big', 'wb').write(b'x' * (8 << 20)); import time; time.sleep(30)"),
        "max_files" => {
            (3, "import time\nfor i in range(40): open(f'file-{i}', 'w').close(); time.sleep(0.05)\ntime.sleep(30)")
        }
        // The test uses neither: where they are accepted, a command stays well below them.
        "max_net_bytes" | "max_steps" => (1, ""),
        other => panic!("a new limit, {other}: say how it is met"),
    };
    for who in BOTH {
        let w = BurdensFixture::new(who);
        let described = w.daemon.get("/v1/openapi.json").assert_ok();
        let fields = described["components"]["schemas"]["Limits"]["properties"].as_object().unwrap().clone();
        let mut held = 0;
        for field in fields.keys().filter(|field| field.starts_with("max_")) {
            let (amount, text) = over(field);
            let kind = &field["max_".len()..];
            let refused = |answer: &Answer| {
                let fault = answer.json();
                let named = fault["limit_kind"] == kind && fault["hint"].is_string();
                assert!(
                    answer.status == 501 && fault["error_kind"] == "unsupported_limit" && named,
                    "{field}: {fault}"
                );
            };
            let made = w.make(json!({ field: amount }));
            if made.status != 201 {
                refused(&made);
                continue;
            }
            let run = w.python(text, json!({}));
            if run.status >= 400 {
                refused(&run);
                continue;
            }
            let outcome = &run.json()["outcome"];
            match text.is_empty() {
                true => assert_eq!(outcome["verdict"], "ok", "{field}: {outcome}"),
                false => assert_eq!(
                    (&outcome["verdict"], &outcome["limit_kind"]),
                    (&json!("limit_exceeded"), &json!(kind)),
                    "{who:?} {field}: {outcome}"
                ),
            }
            held += 1;
        }
        assert!(held >= if who == As::Root { 8 } else { 3 }, "{who:?}: {held} limits hold");
    }
}
