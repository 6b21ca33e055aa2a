//! The network journal: one line per event, the process behind a denial, and a count of dropped events.

use crate::network::{curl, rules, world};
use crate::support::world::PUBLIC;
use crate::support::{As, Run, either};
use serde_json::{Value, json};
use std::fs;

// promise 9
#[test]
fn every_event_is_a_line_where_one_is_asked_for() {
    const FIELDS: [&str; 18] = [
        "action",
        "address",
        "bytes_in",
        "bytes_out",
        "exe",
        "method",
        "name",
        "op",
        "path",
        "pid",
        "port",
        "proto",
        "reason",
        "revision",
        "rule",
        "run",
        "stage",
        "time",
    ];
    for who in either() {
        let world = world(who);
        let file = world.file();
        let flags = ["--net", "good.test", "--events", file.to_str().unwrap()];
        world.sh(&flags, "curl -sS -m 5 http://good.test/a?b=c; curl -s -m 5 http://bad.test/").assert_code(6);
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        for line in &lines {
            let mut keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!(keys, FIELDS, "{line}");
        }
        let is = |op: &str, stage: &str, name: &str| {
            lines.iter().find(|l| l["op"] == op && l["stage"] == stage && l["name"] == name).cloned()
        };
        let opened = is("net.connect", "opened", "good.test").unwrap_or_else(|| panic!("{text}"));
        assert_eq!(
            (&opened["address"], &opened["port"], &opened["rule"]),
            (&json!(PUBLIC), &json!(80), &json!("--net"))
        );
        assert!(is("net.connect", "closed", "good.test").unwrap()["bytes_in"].as_u64().unwrap() > 50, "{text}");
        assert!(is("net.resolve", "refused", "bad.test").is_some(), "{text}");
        assert!(!text.contains("b=c"));
        // A policy can require the journal; a run without a file for it is refused.
        let policy = world.place.policy(json!({"version": 1, "extends": ["default"], "audit": {"events": ["net"]}}));
        assert_eq!(world.run(&["-p", &policy], &["true"]).text("/error_kind"), "unsupported_policy");
        world.run(&["-p", &policy, "--events", file.to_str().unwrap()], &["true"]).assert_ok();
    }
}

/// Pid and program in the denial of an operation on a target.
fn actor(run: &Run, op: &str, target: &str) -> (i64, String) {
    let all = run.outcome["denials"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|d| d["op"] == op && d["target"].as_str().is_some_and(|t| t.ends_with(target)));
    let found = found.unwrap_or_else(|| panic!("{op} of {target}: {}", run.story()));
    (found["pid"].as_i64().unwrap(), found["exe"].as_str().unwrap().to_owned())
}

// promise 9
#[test]
fn a_refusal_names_who_was_refused() {
    // Each client runs in the background, so that its pid is known, beside other processes with sockets.
    const TEXT: &str = r#"
python3 -c 'import socket, time; s = socket.create_connection(("good.test", 7000)); s.recv(4); time.sleep(60)' & other=$!
curl -s -m 10 http://good.test:81/ & wait $!; echo tcp $!
curl -s -m 10 -6 "http://[::ffff:5.5.5.5]:82/" & wait $!; echo mapped $!
getent hosts bad.test & wait $!; echo dns $!
/usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10); s.connect(("5.5.5.5", 83)); s.send(b"x")
try: s.recv(1)
except ConnectionRefusedError: pass
' & wait $!; echo udp $!
curl -s -m 10 -X POST -d x https://api.test/ & wait $!; echo method $!
curl -s -m 10 -x http://192.0.0.53:3128 http://worse.test/ & wait $!; echo proxy $!
curl -s -m 10 --socks5-hostname 192.0.0.53:1080 http://worst.test/ & wait $!; echo socks $!
curl -s -m 10 http://warned.test/ >/dev/null & wait $!; echo warned $!
kill $other
"#;
    for who in either() {
        let world =
            world(who).host(PUBLIC, "api.test warned.test").certificate(&["api.test"]).server("https", PUBLIC, 443);
        let policy = rules(
            &world,
            json!([{"action": "allow", "host": "good.test", "ports": "80,7000"},
                {"action": "warn", "host": "warned.test", "ports": "80"},
                {"action": "allow", "host": "api.test", "ports": "443", "methods": ["GET"]}]),
        );
        let file = world.file();
        let run = world.sh(&["-p", &policy, "--events", file.to_str().unwrap()], TEXT);
        run.assert_ok();
        let stdout = run.stdout();
        let number = |what: &str| -> i64 {
            let line = stdout.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(' '));
            line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{what}: {}", run.story()))
        };
        for (what, op, target, exe) in [
            ("tcp", "net.connect", ":81", "/usr/bin/curl"),
            ("mapped", "net.connect", ":82", "/usr/bin/curl"),
            ("dns", "net.resolve", "bad.test", "/usr/bin/getent"),
            ("udp", "net.connect", ":83", "/usr/bin/python3"),
            ("method", "net.request", "POST api.test:443/", "/usr/bin/curl"),
            ("proxy", "net.resolve", "worse.test", "/usr/bin/curl"),
            ("socks", "net.connect", "worst.test:80", "/usr/bin/curl"),
            ("warned", "net.connect", "warned.test:80", "/usr/bin/curl"),
        ] {
            let (pid, named) = actor(&run, op, target);
            assert!(pid == number(what) && named.starts_with(exe), "{who:?} {what}: {pid} {named}\n{}", run.story());
        }
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let of = |port: u16, stage: &str| lines.iter().find(|l| l["port"] == port && l["stage"] == stage).unwrap();
        let refused = of(81, "refused");
        assert_eq!((&refused["pid"], &refused["exe"]), (&json!(number("tcp")), &json!("/usr/bin/curl")));
        assert_eq!(of(7000, "opened")["pid"], Value::Null, "allowed connections are not attributed to a process");
    }
}

// promise 9
#[test]
fn the_journal_is_bounded_and_says_what_it_lacks() {
    const TEXT: &str = r#"
import socket
for n in range(60):
    try: socket.gethostbyname(f"no{n}.test")
    except OSError: pass
"#;
    for who in either() {
        let world = world(who);
        let file = world.file();
        let flags = ["--net", "good.test", "--events", file.to_str().unwrap()];
        let whole = world.python(&flags, TEXT);
        whole.assert_ok();
        assert_eq!(whole.outcome["events_dropped"], Value::Null, "{}", whole.story());
        let all = fs::read_to_string(&file).unwrap().lines().count();
        assert!(all >= 60, "{all}");
        let run = world.python(&[&flags[..], &["--events-max", "4k"]].concat(), TEXT);
        run.assert_ok();
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let (last, kept) = lines.split_last().unwrap();
        assert!(text.len() <= 4096 && kept.len() > 3, "{text}");
        let dropped = run.outcome["events_dropped"].as_u64().unwrap();
        assert_eq!((&last["op"], last["count"].as_u64()), (&json!("net.lost"), Some(dropped)));
        assert!(dropped + kept.len() as u64 >= 60, "{dropped} and {}", kept.len());
        assert!(run.text("/events_reason").contains("--events-max"), "{}", run.story());
        assert!(run.stderr().contains("not in the journal"), "{}", run.story());
        // A full disk stops no connection and is reported.
        let full = world.python(&["--net", "good.test", "--events", "/dev/full"], TEXT);
        full.assert_ok();
        assert!(full.outcome["events_dropped"].as_u64().unwrap() >= 60, "{}", full.story());
        assert!(full.text("/events_reason").contains("No space left"), "{}", full.story());
        assert!(full.stderr().contains("No space left"), "{}", full.story());
        world.run(&["--events", file.to_str().unwrap(), "--events-max", "1"], &["true"]).assert_code(2);
        world.run(&["--events-max", "1m"], &["true"]).assert_code(2);
    }
}

#[test]
fn live_refusals_are_told_with_v() {
    let run = curl(&world(As::User), &["-v", "--net", "good.test"], &["http://bad.test/"]);
    assert!(run.stderr().contains("refused net.resolve bad.test"), "{}", run.story());
}
