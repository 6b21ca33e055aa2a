//! Reachability for a guest with a network, and denials as the guest and the outcome see them. The journal is tested in
//! `network_told`, echo requests in `network_echo`.

use crate::support::world::{OWN, PRIVATE, PUBLIC, World};
use crate::support::{As, Place, Run, either};
use serde_json::{Value, json};

/// A server under two names, of which rules allow one.
pub fn world(who: As) -> World {
    World::new(who).host(PUBLIC, "good.test bad.test").server("http", PUBLIC, 80).server("greet", PUBLIC, 7000)
}

/// A policy file with the preset `default` and these network rules.
pub fn rules(world: &World, rules: Value) -> String {
    world.place.policy(json!({"version": 1, "extends": ["default"], "net": {"rules": rules}}))
}

pub fn curl(world: &World, flags: &[&str], args: &[&str]) -> Run {
    let mut command = vec!["/usr/bin/curl", "-sS", "-m", "10"];
    command.extend(args);
    world.run(flags, &command)
}

#[test]
fn a_name_that_a_rule_allows_can_be_reached() {
    for who in either() {
        let world = world(who);
        let run = curl(&world, &["--net", "good.test"], &["http://good.test/page"]);
        run.assert_ok();
        assert_eq!(run.stdout(), "GET /page host=good.test auth= body=0\n", "{}", run.story());
        assert_eq!(run.outcome["denials"], json!([]));
        assert!(run.outcome["usage"]["net_bytes"].as_u64().unwrap() > 100, "{}", run.story());
    }
}

// promise 5
#[test]
fn without_rules_there_is_no_network_and_each_try_is_told() {
    for who in either() {
        let world = world(who);
        let run = curl(&world, &[], &[&format!("http://{PUBLIC}/")]);
        assert_ne!(run.code(), 0);
        run.assert_denied("net.connect", &format!("{PUBLIC}:80"));
        assert_eq!(run.text("/verdict"), "denied");
    }
}

// promise 5
#[test]
fn a_name_without_a_rule_is_refused_and_told() {
    for who in either() {
        let world = world(who);
        let run = curl(&world, &["--net", "good.test"], &["http://bad.test/"]);
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied");
        run.assert_denied("net.resolve", "bad.test");
        let hint = run.text("/denials/0/hint");
        assert!(hint.contains("bad.test"), "{hint}");
    }
}

// promise 5
#[test]
fn an_address_needs_a_name_or_a_rule_of_its_own() {
    for who in either() {
        let world = world(who);
        let bare = format!("http://{PUBLIC}/");
        let run = curl(&world, &["--net", "good.test"], &[&bare]);
        assert_ne!(run.code(), 0);
        run.assert_denied("net.connect", &format!("{PUBLIC}:80"));
        curl(&world, &["--net", &format!("{PUBLIC}/32")], &[&bare]).assert_ok();
        curl(&world, &["--net", &format!("{PUBLIC}:80")], &[&bare]).assert_ok();
    }
}

// promise 5
#[test]
fn a_port_that_no_rule_names_is_refused_at_once() {
    for who in either() {
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
    for who in either() {
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
    for who in either() {
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
    return len(urllib.request.urlopen(f'http://good.test/large/{1000 + i}', timeout=200).read()) == 1000 + i
with concurrent.futures.ThreadPoolExecutor(40) as pool:
    assert all(pool.map(one, range(400)))
";
    for who in either() {
        world(who).python(&["--net", "good.test"], MANY).assert_ok();
    }
}

// promise 5
#[test]
fn every_public_address_can_be_allowed_and_special_ones_stay_out() {
    for who in either() {
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

// promise 5
#[test]
fn a_rule_that_names_a_private_range_allows_it() {
    for who in either() {
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

// promise 5
#[test]
fn a_named_port_of_the_hosts_loopback_leads_there() {
    const OWN: &str = "
import socket
own = socket.create_server(('127.0.0.1', 6000))
socket.create_connection(('127.0.0.1', 6000)).close()
try: socket.create_connection(('127.0.0.1', 7777))
except ConnectionRefusedError: print('refused')
";
    for who in either() {
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
        // Every other loopback port is the guest's own, also where a process of the host listens on it.
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

// promise 5
#[test]
fn the_hosts_own_addresses_are_special_whatever_their_range() {
    for who in either() {
        let world = world(who).host(OWN, "own.test").server("http", OWN, 80);
        // A name that resolves to the host itself, and a rule for a range that contains it.
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
    for who in either() {
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

// promise 5
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
    for who in either() {
        let world = world(who).server("udp", PUBLIC, 7001);
        let run = world.python(&["--net", "good.test"], ASK);
        assert_eq!(run.stdout(), "nothing\n", "{}", run.story());
        let policy = rules(&world, json!([{"action": "allow", "proto": "udp", "host": "good.test", "ports": "7001"}]));
        let run = world.python(&["-p", &policy], ASK);
        assert_eq!(run.stdout(), "b'ping'\n", "{}", run.story());
    }
}

// promise 5
#[test]
fn a_shared_address_does_not_open_its_other_names() {
    for who in either() {
        let world = world(who).certificate(&["good.test", "bad.test"]).server("https", PUBLIC, 443);
        // The response gives the reason; `-f` makes curl fail on it.
        let host = ["-f", "-H", "Host: bad.test", "http://good.test/"];
        let run = curl(&world, &["--net", "good.test"], &host);
        assert_ne!(run.code(), 0, "{}", run.story());
        assert!(run.denials().iter().any(|(op, _)| op.starts_with("net.")), "{}", run.story());
        let ca = ["--cacert", "ca.pem"];
        curl(&world, &["--net", "good.test"], &[&ca[..], &["https://good.test/"]].concat()).assert_ok();
        let fronted = format!("bad.test:443:{PUBLIC}");
        // The allowed name is resolved first, so that the address is one the guest may connect to.
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

// promise 6
#[test]
fn requests_are_judged_one_by_one_where_rules_look_at_them() {
    for who in either() {
        let world = world(who).certificate(&["good.test"]).server("https", PUBLIC, 443);
        let policy =
            rules(&world, json!([{"action": "allow", "host": "good.test", "methods": ["GET"], "paths": ["/v1/*"]}]));
        for scheme in ["http", "https"] {
            let at = |path: &str| format!("{scheme}://good.test{path}");
            // The host trusts the server's certificate and the guest trusts the broker's, so no flag is needed.
            let run = curl(&world, &["-p", &policy], &[&at("/v1/a"), &at("/v1/b")]);
            run.assert_ok();
            assert_eq!(run.stdout().lines().count(), 2, "{}", run.story());
            for args in [vec!["-f", "-X", "POST", "-d", "x"], vec!["-f"]] {
                let path = if args.len() > 1 { "/v1/a?token=x" } else { "/v2/a?token=x" };
                let target = at(path);
                let run = curl(&world, &["-p", &policy], &[&args[..], &[&target]].concat());
                assert_ne!(run.code(), 0, "{}", run.story());
                let denial = run.denials().into_iter().find(|(op, _)| op == "net.request");
                let (_, denial) = denial.unwrap_or_else(|| panic!("{}", run.story()));
                assert!(denial.contains("good.test") && !denial.contains("token"), "{denial}");
            }
        }
    }
}

/// Ports may be a list or a range for every kind of host, and one rule may list several hosts.
#[test]
fn ports_are_lists_for_every_kind_of_host() {
    const TRY: &str = "
import socket
for host, port in PLACES:
    try:
        socket.create_connection((host, port), 5).close()
        print(port, end=' ')
    except OSError: print('no', end=' ')
";
    for who in either() {
        let world = world(who).server("http", "127.0.0.1", 5432).server("http", "127.0.0.1", 7777);
        let reached = |list: &str, host: &str, ports: [u16; 3]| {
            let places = ports.map(|port| format!("('{host}', {port})")).join(", ");
            let run = world.python(&["--net", list], &TRY.replace("PLACES", &format!("[{places}]")));
            run.assert_ok().stdout().trim().to_owned()
        };
        assert_eq!(reached("good.test:80,7000", "good.test", [80, 7000, 81]), "80 7000 no", "{who:?}");
        assert_eq!(reached("bad.test:1,good.test:81,7000-7001", "good.test", [80, 7000, 81]), "no 7000 no", "{who:?}");
        assert_eq!(reached(&format!("{PUBLIC}:80,7000,bad.test"), PUBLIC, [80, 7000, 81]), "80 7000 no", "{who:?}");
        assert_eq!(reached(&format!("{PUBLIC}/32:80,81"), PUBLIC, [80, 7000, 81]), "80 no no", "{who:?}");
        assert_eq!(reached("127.0.0.1:5432,7777", "127.0.0.1", [5432, 7777, 80]), "5432 7777 no", "{who:?}");
        assert_eq!(
            reached("[::1]:80,443,[fd00::/8]:80,good.test:80", "good.test", [80, 443, 7000]),
            "80 no no",
            "{who:?}"
        );
    }
    let place = Place::new(As::User);
    for (list, message) in [
        ("good.test,443", r#"--net "443": "443" is a port without a host"#),
        ("good.test:90-80", r#"--net "good.test:90-80": "90-80" is not a port or a range of ports"#),
        (
            "opaque:10.0.0.1:80",
            r#"--net "opaque:10.0.0.1:80": rules for addresses consider only address and port already"#,
        ),
    ] {
        let run = place.run(&["--net", list], &["/bin/true"]);
        run.assert_code(2);
        assert!(run.stderr().contains(message) && run.stderr().contains("hint"), "{list}: {}", run.story());
    }
}

// promise 8
#[test]
fn bytes_are_counted_and_limited() {
    for who in either() {
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
        // Without a network there is no traffic to limit.
        let run = world.run(&["--limit", "net=1m"], &["true"]);
        assert_eq!(run.text("/error_kind"), "unsupported_limit");
    }
}

/// The guest's `/etc/resolv.conf`, on a host whose `/etc` was changed by `before`.
fn resolv_conf(who: As, before: &str) -> Run {
    let world = world(who).own_etc().before(before);
    let run = world.sh(&["--net", "good.test"], "cat /etc/resolv.conf && curl -sS -m 5 -o /dev/null http://good.test/");
    run.assert_ok();
    run
}

// promise 5
#[test]
fn names_are_asked_of_the_broker_however_the_host_asks() {
    const OURS: &str = "nameserver 192.0.0.53\n";
    for who in either() {
        for before in [
            "true",
            // Links of systemd-resolved and NetworkManager, with and without the file that they point to.
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
    for who in either() {
        let run = world(who).sh(&["--net", "good.test"], "cat /etc/hosts");
        run.assert_ok();
        assert!(run.stdout().contains("127.0.0.1 localhost\n"), "{}", run.story());
        assert!(!run.stdout().contains("test"), "{}", run.story());
    }
}

// promise 5
#[test]
fn the_files_are_there_under_a_policy_that_shows_nothing_of_etc() {
    for who in either() {
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
    for who in either() {
        let world = world(who);
        let policy = world
            .place
            .policy(json!({"version": 1, "extends": ["default"], "env": {"pass": ["*"], "set": {"A": "1"}}}));
        let proxies = [("http_proxy", "http://p"), ("HTTPS_PROXY", "http://p"), ("All_Proxy", "p"), ("no_proxy", "x")];
        let run = world.run_with(&["-p", &policy], &["env"], &proxies);
        run.assert_ok();
        assert!(!run.stdout().to_lowercase().contains("proxy"), "{}", run.story());
        // A proxy that the policy or a flag sets explicitly is kept.
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
