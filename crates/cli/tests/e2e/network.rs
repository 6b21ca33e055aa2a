//! What a guest with a network can reach, and how a refusal looks to it and in the outcome.

use crate::support::world::{OWN, PRIVATE, PUBLIC, World};
use crate::support::{As, BOTH, Place, Run, to_the_end};
use serde_json::{Value, json};
use std::fs;

/// A server under two names, of which rules allow one.
fn world(who: As) -> World {
    World::new(who).host(PUBLIC, "good.test bad.test").server("http", PUBLIC, 80).server("greet", PUBLIC, 7000)
}

/// A policy of the preset `default` and these network rules.
fn rules(world: &World, rules: Value) -> String {
    world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": rules}}))
}

fn curl(world: &World, flags: &[&str], args: &[&str]) -> Run {
    let mut command = vec!["/usr/bin/curl", "-sS", "-m", "10"];
    command.extend(args);
    world.run(flags, &command)
}

#[test]
fn a_name_that_a_rule_allows_can_be_reached() {
    for who in BOTH {
        let world = world(who);
        let run = curl(&world, &["--net", "good.test"], &["http://good.test/page"]);
        run.assert_ok();
        assert_eq!(run.stdout(), "GET /page host=good.test auth= body=0\n", "{}", run.story());
        assert_eq!(run.outcome["denials"], json!([]));
        assert!(run.outcome["usage"]["net_bytes"].as_u64().unwrap() > 100, "{}", run.story());
    }
}

#[test]
fn without_rules_there_is_no_network_and_each_try_is_told() {
    for who in BOTH {
        let world = world(who);
        let run = curl(&world, &[], &[&format!("http://{PUBLIC}/")]);
        assert_ne!(run.code(), 0);
        run.assert_denied("net.connect", &format!("{PUBLIC}:80"));
        assert_eq!(run.text("/verdict"), "denied");
    }
}

#[test]
fn a_name_without_a_rule_is_refused_and_told() {
    for who in BOTH {
        let world = world(who);
        let run = curl(&world, &["--net", "good.test"], &["http://bad.test/"]);
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied");
        run.assert_denied("net.resolve", "bad.test");
        let hint = run.text("/denials/0/hint");
        assert!(hint.contains("bad.test"), "{hint}");
    }
}

#[test]
fn an_address_needs_a_name_or_a_rule_of_its_own() {
    for who in BOTH {
        let world = world(who);
        let bare = format!("http://{PUBLIC}/");
        let run = curl(&world, &["--net", "good.test"], &[&bare]);
        assert_ne!(run.code(), 0);
        run.assert_denied("net.connect", &format!("{PUBLIC}:80"));
        curl(&world, &["--net", &format!("{PUBLIC}/32")], &[&bare]).assert_ok();
        curl(&world, &["--net", &format!("{PUBLIC}:80")], &[&bare]).assert_ok();
    }
}

#[test]
fn a_port_that_no_rule_names_is_refused_at_once() {
    for who in BOTH {
        let world = world(who);
        let run = curl(&world, &["--net", "good.test:80"], &["http://good.test:7000/"]);
        assert_ne!(run.code(), 0);
        run.assert_denied("net.connect", "good.test:7000");
        assert!(run.outcome["usage"]["wall_ms"].as_u64().unwrap() < 5000, "{}", run.story());
    }
}

#[test]
fn a_server_may_speak_first_and_last() {
    const TALK: &str = "
import socket
s = socket.create_connection(('good.test', 7000), 10)
assert s.recv(100) == b'220 hello\\n'
s.sendall(b'x' * 300000)
s.shutdown(socket.SHUT_WR)
got = b''
while part := s.recv(65536): got += part
assert got == b'x' * 300000 + b'bye\\n', len(got)
";
    for who in BOTH {
        world(who).python(&["--net", "good.test:7000"], TALK).assert_ok();
    }
}

#[test]
fn what_cannot_be_reached_fails_soon() {
    const CALL: &str = "
import socket
try:
    s = socket.create_connection(('good.test', 9), 10)
    s.sendall(b'x')
    print('got', s.recv(1))
except ConnectionError as e:
    print(type(e).__name__)
";
    for who in BOTH {
        let run = world(who).python(&["--net", "good.test"], CALL);
        run.assert_ok();
        assert_eq!(run.stdout(), "ConnectionRefusedError\n", "{}", run.story());
    }
}

#[test]
fn many_connections_at_a_time_all_work() {
    const MANY: &str = "
import concurrent.futures, urllib.request
def one(i):
    return len(urllib.request.urlopen(f'http://good.test/large/{1000 + i}', timeout=30).read()) == 1000 + i
with concurrent.futures.ThreadPoolExecutor(40) as pool:
    assert all(pool.map(one, range(400)))
";
    for who in BOTH {
        world(who).python(&["--net", "good.test"], MANY).assert_ok();
    }
}

#[test]
fn every_public_address_can_be_allowed_and_special_ones_stay_out() {
    for who in BOTH {
        let world = world(who).host(PRIVATE, "inner.test").server("http", PRIVATE, 80);
        let open = ["-p", "default", "-p", "networked"];
        curl(&world, &open, &["http://bad.test/"]).assert_ok();
        curl(&world, &open, &[&format!("http://{PUBLIC}/")]).assert_ok();
        for target in [format!("http://{PRIVATE}/"), "http://169.254.169.254/".into(), "http://inner.test/".into()] {
            let run = curl(&world, &open, &[&target]);
            assert_ne!(run.code(), 0, "{target}: {}", run.story());
            assert!(!run.denials().is_empty(), "{target}: {}", run.story());
        }
        let run = curl(&world, &["-p", "default", "-p", "networked", "--deny-net", "bad.test"], &["http://bad.test/"]);
        assert_ne!(run.code(), 0);
    }
}

#[test]
fn a_rule_that_names_a_private_range_allows_it() {
    for who in BOTH {
        let world = world(who).host(PRIVATE, "inner.test").server("http", PRIVATE, 80);
        let named = format!("{PRIVATE}/32");
        curl(&world, &["--net", &named], &[&format!("http://{PRIVATE}/")]).assert_ok();
        let policy =
            rules(&world, json!([{"action": "allow", "host": "inner.test"}, {"action": "allow", "cidr": named}]));
        curl(&world, &["-p", &policy], &["http://inner.test/"]).assert_ok();
        let run = curl(&world, &["--net", "inner.test"], &["http://inner.test/"]);
        assert_ne!(run.code(), 0, "{}", run.story());
    }
}

#[test]
fn a_named_port_of_the_hosts_loopback_leads_there() {
    const OWN: &str = "
import socket
own = socket.create_server(('127.0.0.1', 6000))
socket.create_connection(('127.0.0.1', 6000)).close()
try: socket.create_connection(('127.0.0.1', 7777))
except ConnectionRefusedError: print('refused')
";
    for who in BOTH {
        let world = world(who).server("http", "127.0.0.1", 5432).server("http", "127.0.0.2", 5432).server(
            "http",
            "127.0.0.1",
            7777,
        );
        for at in ["127.0.0.1", "127.0.0.2"] {
            let run = curl(&world, &["--net", &format!("{at}:5432")], &[&format!("http://{at}:5432/db")]);
            run.assert_ok();
            assert!(run.stdout().starts_with("GET /db"), "{}", run.story());
        }
        // Every other port is the guest's own, whatever listens on the host.
        let run = world.python(&["--net", "127.0.0.1:5432"], OWN);
        run.assert_ok();
        assert_eq!(run.stdout(), "refused\n");
        for (rule, says) in [("127.0.0.1", "ports"), ("127.0.0.1:1-100", "fewer")] {
            let run = world.run(&["--net", rule], &["true"]);
            run.assert_code(125);
            assert_eq!(run.text("/error_kind"), "unsupported_policy");
            assert!(run.text("/hint").contains(says), "{}", run.story());
        }
    }
}

#[test]
fn the_hosts_own_addresses_are_special_whatever_their_range() {
    for who in BOTH {
        let world = world(who).host(OWN, "own.test").server("http", OWN, 80);
        // A name that leads there, and a policy that means the world.
        for rules in
            [json!([{"action": "allow", "host": "own.test"}]), json!([{"action": "allow", "cidr": "5.5.7.0/24"}])]
        {
            let policy = self::rules(&world, rules);
            for target in ["http://own.test/".to_owned(), format!("http://{OWN}/")] {
                assert_ne!(curl(&world, &["-p", &policy], &["-f", &target]).code(), 0, "{policy} {target}");
            }
        }
        let policy = rules(&world, json!([{"action": "allow", "host": OWN, "ports": "80"}]));
        curl(&world, &["-p", &policy], &["-f", &format!("http://{OWN}/")]).assert_ok();
    }
}

#[test]
fn a_warning_lets_it_pass_and_asking_does_not() {
    for who in BOTH {
        let world = world(who);
        let policy = rules(&world, json!([{"action": "warn", "host": "good.test"}]));
        let run = curl(&world, &["-p", &policy], &["http://good.test/"]);
        run.assert_ok();
        let warned = run.outcome["denials"].as_array().unwrap();
        assert!(warned.iter().any(|d| d["op"] == "net.connect" && d["action"] == "warn"), "{}", run.story());
        let policy = rules(&world, json!([{"action": "ask", "host": "good.test"}]));
        let run = curl(&world, &["-p", &policy], &["http://good.test/"]);
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied");
        assert!(run.outcome["denials"].as_array().unwrap().iter().any(|d| d["action"] == "ask"), "{}", run.story());
    }
}

#[test]
fn datagrams_need_a_rule_that_says_so() {
    const ASK: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
s.connect((socket.gethostbyname('good.test'), 7001))
try:
    s.send(b'ping')
    print(s.recv(100))
except (TimeoutError, ConnectionRefusedError) as e:
    print('nothing')
";
    for who in BOTH {
        let world = world(who).server("udp", PUBLIC, 7001);
        let run = world.python(&["--net", "good.test"], ASK);
        assert_eq!(run.stdout(), "nothing\n", "{}", run.story());
        let policy = rules(&world, json!([{"action": "allow", "proto": "udp", "host": "good.test", "ports": "7001"}]));
        let run = world.python(&["-p", &policy], ASK);
        assert_eq!(run.stdout(), "b'ping'\n", "{}", run.story());
    }
}

#[test]
fn a_shared_address_does_not_open_its_other_names() {
    for who in BOTH {
        let world = world(who).certificate(&["good.test", "bad.test"]).server("https", PUBLIC, 443);
        // An answer says why; `-f` makes curl fail on it.
        let host = ["-f", "-H", "Host: bad.test", "http://good.test/"];
        let run = curl(&world, &["--net", "good.test"], &host);
        assert_ne!(run.code(), 0, "{}", run.story());
        assert!(run.denials().iter().any(|(op, _)| op.starts_with("net.")), "{}", run.story());
        let ca = ["--cacert", "ca.pem"];
        curl(&world, &["--net", "good.test"], &[&ca[..], &["https://good.test/"]].concat()).assert_ok();
        let fronted = format!("bad.test:443:{PUBLIC}");
        // The name is resolved first, so that the address is one that the guest may call.
        let text = format!(
            "curl -s -m 5 http://good.test/ > /dev/null; exec curl -sS -m 10 --cacert ca.pem --resolve {fronted} https://bad.test/"
        );
        let run = world.sh(&["--net", "good.test"], &text);
        assert_ne!(run.code(), 0, "{}", run.story());
        assert!(
            run.denials().iter().any(|(op, target)| op == "net.connect" && target.contains("443")),
            "{}",
            run.story()
        );
    }
}

#[test]
fn requests_are_judged_one_by_one_where_rules_look_at_them() {
    for who in BOTH {
        let world = world(who).certificate(&["good.test"]).server("https", PUBLIC, 443);
        let policy =
            rules(&world, json!([{"action": "allow", "host": "good.test", "methods": ["GET"], "paths": ["/v1/*"]}]));
        for scheme in ["http", "https"] {
            let at = |path: &str| format!("{scheme}://good.test{path}");
            // The host trusts the server, and the guest trusts whoever reads its requests: no flag is needed.
            let run = curl(&world, &["-p", &policy], &[&at("/v1/a"), &at("/v1/b")]);
            run.assert_ok();
            assert_eq!(run.stdout().lines().count(), 2, "{}", run.story());
            for args in [vec!["-f", "-X", "POST", "-d", "x"], vec!["-f"]] {
                let path = if args.len() > 1 { "/v1/a?token=x" } else { "/v2/a?token=x" };
                let target = at(path);
                let run = curl(&world, &["-p", &policy], &[&args[..], &[&target]].concat());
                assert_ne!(run.code(), 0, "{}", run.story());
                let told = run.denials().into_iter().find(|(op, _)| op == "net.request");
                let (_, told) = told.unwrap_or_else(|| panic!("{}", run.story()));
                assert!(told.contains("good.test") && !told.contains("token"), "{told}");
            }
        }
    }
}

#[test]
fn bytes_are_counted_and_limited() {
    for who in BOTH {
        let world = world(who);
        let run = curl(
            &world,
            &["--net", "good.test", "--limit", "net=1m"],
            &["-o", "/dev/null", "http://good.test/large/900000"],
        );
        run.assert_ok();
        assert!(run.outcome["usage"]["net_bytes"].as_u64().unwrap() > 900_000, "{}", run.story());
        let run = curl(
            &world,
            &["--net", "good.test", "--limit", "net=100k"],
            &["-o", "/dev/null", "http://good.test/large/900000"],
        );
        run.assert_code(137);
        assert_eq!((run.text("/verdict"), run.text("/limit_kind")), ("limit_exceeded".into(), "net_bytes".into()));
        assert_eq!(run.outcome["limit"], 102_400);
        assert!(run.outcome["used"].as_u64().unwrap() > 102_400, "{}", run.story());
        // Without a network there is nothing to count.
        let run = world.run(&["--limit", "net=1m"], &["true"]);
        assert_eq!(run.text("/error_kind"), "unsupported_limit");
    }
}

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
    for who in BOTH {
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
        // A policy may ask for the journal; then there must be a place for it.
        let policy = world.place.policy(json!({"version": 1, "extends": ["default"], "audit": {"events": ["net"]}}));
        assert_eq!(world.run(&["-p", &policy], &["true"]).text("/error_kind"), "unsupported_policy");
        world.run(&["-p", &policy, "--events", file.to_str().unwrap()], &["true"]).assert_ok();
    }
}

/// The denial of an operation on a target: its pid and program.
fn actor(run: &Run, op: &str, target: &str) -> (i64, String) {
    let all = run.outcome["denials"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|d| d["op"] == op && d["target"].as_str().is_some_and(|t| t.ends_with(target)));
    let found = found.unwrap_or_else(|| panic!("{op} of {target}: {}", run.story()));
    (found["pid"].as_i64().unwrap(), found["exe"].as_str().unwrap().to_owned())
}

#[test]
fn a_refusal_names_who_was_refused() {
    // Each in the background, so that its number is known, beside others that hold sockets of their own.
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
    for who in BOTH {
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
        let said = run.stdout();
        let number = |what: &str| -> i64 {
            let line = said.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(' '));
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
        assert_eq!(of(7000, "opened")["pid"], Value::Null, "nobody is looked for where nothing was refused");
    }
}

#[test]
fn the_journal_is_bounded_and_says_what_it_lacks() {
    const TEXT: &str = r#"
import socket
for n in range(60):
    try: socket.gethostbyname(f"no{n}.test")
    except OSError: pass
"#;
    for who in BOTH {
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
        // A disk that is full stops nothing and is told.
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

/// The file as it is inside, with a host whose `/etc` was changed by `before`.
fn resolv_conf(who: As, before: &str) -> Run {
    let world = world(who).own_etc().before(before);
    let run = world.sh(&["--net", "good.test"], "cat /etc/resolv.conf && curl -sS -m 5 -o /dev/null http://good.test/");
    run.assert_ok();
    run
}

#[test]
fn names_are_asked_of_the_broker_however_the_host_asks() {
    const OURS: &str = "nameserver 192.0.0.53\n";
    for who in BOTH {
        for before in [
            "true",
            // As systemd-resolved and NetworkManager have it, with and without the file behind it.
            "ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf",
            "ln -sf /var/run/NetworkManager/resolv.conf /etc/resolv.conf",
            "echo nameserver 1.1.1.1 > /etc/resolv.other; ln -sf resolv.other /etc/resolv.conf",
            "rm /etc/resolv.conf",
            "ln -sf resolv.missing /etc/resolv.conf",
        ] {
            let run = resolv_conf(who, before);
            assert!(run.stdout().starts_with(OURS), "{before}: {}", run.story());
        }
    }
}

#[test]
fn only_the_guest_itself_is_in_its_hosts_file() {
    for who in BOTH {
        let run = world(who).sh(&["--net", "good.test"], "cat /etc/hosts");
        run.assert_ok();
        assert!(run.stdout().contains("127.0.0.1 localhost\n"), "{}", run.story());
        assert!(!run.stdout().contains("test"), "{}", run.story());
    }
}

#[test]
fn the_files_are_there_under_a_policy_that_shows_nothing_of_etc() {
    for who in BOTH {
        let world = world(who);
        let policy = world.place.policy(json!({"version": 1, "fs": {"rules": [
            {"action": "allow", "path": "/usr", "perms": ["read_file", "read_dir", "execute"]}]},
            "net": {"rules": [{"action": "allow", "host": "good.test"}]}}));
        let text = "import socket; print(open('/etc/resolv.conf').read(), socket.gethostbyname('good.test'))";
        let run = world.python(&["-p", &policy, "--workdir", "/usr"], text);
        run.assert_ok();
        assert!(run.stdout().contains("192.0.0.53") && run.stdout().contains(PUBLIC), "{}", run.story());
    }
}

#[test]
fn proxies_of_the_caller_never_pass() {
    for who in BOTH {
        let world = world(who);
        let policy = world
            .place
            .policy(json!({"version": 1, "extends": ["default"], "env": {"pass": ["*"], "set": {"A": "1"}}}));
        let proxies = [("http_proxy", "http://p"), ("HTTPS_PROXY", "http://p"), ("All_Proxy", "p"), ("no_proxy", "x")];
        let run = world.run_with(&["-p", &policy], &["env"], &proxies);
        run.assert_ok();
        assert!(!run.stdout().to_lowercase().contains("proxy"), "{}", run.story());
        // What the policy or a flag says outright is meant.
        let run = world.run(&["--env", "http_proxy=http://here"], &["env"]);
        assert!(run.stdout().contains("http_proxy=http://here"), "{}", run.story());
    }
}

#[test]
fn without_namespaces_a_network_is_refused() {
    let place = Place::new(As::User);
    let policy = place.policy(json!({"version": 1, "extends": ["default"], "degrade": ["namespaces"],
        "net": {"rules": [{"action": "allow", "host": "good.test"}]}}));
    let socket = place.policy(json!({"version": 1, "net": {"rules": [
        {"action": "allow", "proto": "unix", "path": "/run/x.sock"}]}}));
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    for (flags, says) in [
        (vec!["-p", &policy], "asks for the network"),
        (vec!["-p", &socket], "asks for a socket"),
        (vec!["--publish", "18999:80"], "asks for a port"),
    ] {
        let consent = place.policy(json!({"version": 1, "extends": ["default"], "degrade": ["namespaces"]}));
        let mut unshare = place.outside("unshare");
        unshare.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", script, "sh"]);
        unshare.arg(crate::support::binary()).args(["run", "--json", "-p", &consent]).args(flags).args(["--", "true"]);
        let output = unshare.output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["error_kind"], "unsupported_policy", "{document}");
        assert!(document["message"].as_str().unwrap().contains(says), "{document}");
    }
}

#[test]
fn the_steps_are_explained() {
    let place = Place::new(As::User);
    let with = place.cofferdam(["run", "--explain", "--net", "127.0.0.1:5432", "--", "true"]).output().unwrap();
    let with = String::from_utf8_lossy(&with.stdout).into_owned();
    for step in ["netlink            routes", "netlink            rules", "open-doors", "127.0.0.1:5432"] {
        assert!(with.contains(step), "{step}: {with}");
    }
    let without = place.cofferdam(["run", "--explain", "--", "true"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&without.stdout).contains("doors"));
}

/// Asks each place for an echo, both ways that programs know, and says who answered with what was sent.
const PING: &str = r#"
import os, select, socket, struct, sys
def ping(host, size=56, bound=20):
    six = ":" in host
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    s = socket.socket(family, socket.SOCK_DGRAM, protocol)
    payload = os.urandom(size)
    got = []
    for sequence in (1, 2, 65535):
        s.sendto(struct.pack(">BBHHH", 128 if six else 8, 0, 0, 0, sequence) + payload, (host, 0))
        if not select.select([s], [], [], bound)[0]: return "nothing"
        answer, place = s.recvfrom(65536)
        kind, code, _, own, number = struct.unpack(">BBHHH", answer[:8])
        if (kind, code, number, answer[8:], place[0]) != (129 if six else 0, 0, sequence, payload, host): return "something else"
        if own != s.getsockname()[1]: return "another's"
    return "answered"
"#;

/// A world whose users may send echo requests, with an address that answers none.
fn echoing(who: As) -> World {
    let range = "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range\necho 1 > /proc/sys/net/ipv6/ip_nonlocal_bind\n\
         ip -6 route add local 2a0b:5::5 dev lo";
    world(who).before(range).host(PUBLIC, "echo.test")
}

#[test]
fn echo_requests_need_a_rule_that_says_so() {
    for who in BOTH {
        let world = echoing(who);
        let ask = |text: &str| format!("{PING}\n{text}");
        let flags = ["--net", "icmp:echo.test", "--net", "icmp:2a0b:5::5", "--net", "good.test"];
        let run = world.python(
            &flags,
            &ask("address = socket.gethostbyname('echo.test')\n\
                 print(ping(address), ping(address, 0), ping(address, 20000), ping('2a0b:5::5'), ping('127.0.0.1'), ping('::1'))\n\
                 print(ping('10.9.8.7', bound=1), ping('2a0b:6::6', bound=1), ping('5.5.7.7', bound=1))"),
        );
        run.assert_ok();
        assert_eq!(
            run.stdout(),
            "answered answered answered answered answered answered\nnothing nothing nothing\n",
            "{}",
            run.story()
        );
        for refused in ["icmp:10.9.8.7", "icmp:2a0b:6::6", "icmp:5.5.7.7"] {
            run.assert_denied("net.connect", refused);
        }
        assert!(run.outcome["usage"]["net_bytes"].as_u64().unwrap() > 3 * 2 * 20000, "{}", run.story());
        // Rules about servers do not mean it, whatever they allow; and then there is no such socket at all.
        for flags in [&["--net", "echo.test"][..], &["-p", "default", "-p", "networked"]] {
            let run = world.python(
                flags,
                &ask("socket.gethostbyname('echo.test')\ntry: ping('5.5.5.5')\nexcept PermissionError as e: print(e)"),
            );
            assert_eq!(run.assert_ok().stdout(), "[Errno 13] Permission denied\n", "{}", run.story());
        }
        // What denies a place denies this, too.
        let allow = json!({"action": "allow", "proto": "icmp", "cidr": "5.5.0.0/16"});
        for (list, told) in
            [(json!([allow]), "answered\n"), (json!([allow, {"action": "deny", "cidr": "5.5.5.5/32"}]), "nothing\n")]
        {
            let run = world.python(&["-p", &rules(&world, list)], &ask("print(ping('5.5.5.5', bound=1))"));
            assert_eq!(run.assert_ok().stdout(), told, "{}", run.story());
        }
    }
}

#[test]
fn echo_requests_are_explained_and_written_right() {
    let place = Place::new(As::User);
    let policy = |flag: &str, what: &str| {
        let output = to_the_end(&mut place.cofferdam(["policy", "explain", what, "--net", flag]), b"");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let allowed = policy("icmp:echo.test", "icmp:echo.test");
    assert!(allowed.starts_with("icmp echo.test\n  allow connect  (--net)"), "{allowed}");
    let denied = policy("echo.test", "icmp:echo.test");
    assert!(
        denied.contains("deny") && denied.contains(r#"{"action":"allow","proto":"icmp","host":"echo.test"}"#),
        "{denied}"
    );
    assert!(policy("icmp:echo.test", "echo.test:80").contains("deny"));
    assert!(policy("icmp:echo.test:7", "icmp:echo.test").contains("an echo request has no ports"));
}

#[test]
fn a_host_that_allows_no_echo_requests_is_named() {
    for who in BOTH {
        let run = world(who)
            .before("echo '1 0' > /proc/sys/net/ipv4/ping_group_range")
            .python(&["--net", "icmp:good.test"], "");
        assert_eq!(run.outcome["error_kind"], "unsupported_policy", "{}", run.story());
        assert!(run.stderr().contains("net.ipv4.ping_group_range"), "{}", run.story());
    }
}

#[test]
fn a_flood_of_echo_requests_is_slowed_down() {
    const FLOOD: &str = r#"
import time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.setblocking(False)
sent, heard, began = 0, 0, time.monotonic()
while sent < 3000:
    try:
        s.sendto(struct.pack(">BBHHH", 8, 0, 0, 0, sent % 65536) + b"x" * 56, ("5.5.5.5", 0))
        sent += 1
        while True:
            s.recv(100)
            heard += 1
    except BlockingIOError: pass
took = time.monotonic() - began
assert 0 < heard <= 101 + took * 100, (sent, heard, took)
time.sleep(1)
print(ping("5.5.5.5"))
"#;
    for who in BOTH {
        let run = echoing(who).python(&["--net", "icmp:5.5.5.5"], &format!("{PING}\n{FLOOD}"));
        assert_eq!(run.assert_ok().stdout(), "answered\n", "{}", run.story());
    }
}
