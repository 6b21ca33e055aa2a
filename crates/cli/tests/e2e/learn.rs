//! `policy learn` from a command's network connections and unix sockets.

use crate::sockets::{Service, TRY};
use crate::support::world::{OWN, PRIVATE, PUBLIC, World};
use crate::support::{As, Place, Run, binary, either, to_the_end};
use serde_json::{Value, json};
use std::fs;

fn world(who: As) -> World {
    World::new(who)
        .host(PUBLIC, "good.test other.test")
        .host(PRIVATE, "inner.test")
        .server("http", PUBLIC, 80)
        .server("http", PUBLIC, 8080)
        .server("http", PRIVATE, 80)
        .server("udp", PUBLIC, 123)
}

/// `policy learn` in the test network: the run, and the document as file name and as value.
fn learn(world: &World, flags: &[&str], command: &[&str]) -> (Run, String, Value) {
    let file = world.file();
    let mut args = vec!["policy", "learn", "-o", file.to_str().unwrap()];
    args.extend(flags);
    args.push("--");
    args.extend(command);
    let output = to_the_end(&mut world.command(binary().to_str().unwrap(), &args), b"");
    let run = Run { output, outcome: Value::Null };
    let text = fs::read_to_string(&file).unwrap();
    let document = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", run.story()));
    let policy = world.place.file(format!("learned-{}.json", crate::support::unique()), text);
    (run, policy.to_str().unwrap().to_owned(), document)
}

fn net_rules(document: &Value) -> Vec<Value> {
    document["net"]["rules"].as_array().cloned().unwrap_or_default()
}

fn fetch(url: &str) -> Vec<&str> {
    [&CURL[..], &[url]].concat()
}

const CURL: [&str; 5] = ["/usr/bin/curl", "-sS", "-f", "-m", "10"];

// promise 9
#[test]
fn a_fetch_becomes_a_rule_by_name_and_port() {
    for who in either() {
        let world = world(who);
        let command = [&CURL[..], &["http://good.test:8080/a", "http://good.test/b"]].concat();
        for flags in [&["--net", "*"][..], &["--net", "good.test"]] {
            let (run, policy, document) = learn(&world, flags, &command);
            run.assert_ok();
            assert!(run.stdout().contains("GET /a host=good.test:8080"), "{}", run.story());
            let wanted = json!({"action": "allow", "host": "good.test", "ports": "80,8080"});
            assert_eq!(net_rules(&document), [wanted], "{who:?}: {document:#}");
            let again = world.run(&["-p", &policy], &command);
            again.assert_ok();
            assert_eq!(again.stdout(), run.stdout());
            // Other hosts and ports stay denied.
            let other = world.run(&["-p", &policy], &[&CURL[..], &["http://other.test/"]].concat());
            other.assert_denied("net.resolve", "other.test");
            let port = world.run(&["-p", &policy], &[&CURL[..], &["http://good.test:81/"]].concat());
            port.assert_denied("net.connect", "good.test:81");
        }
    }
}

// promise 9
#[test]
fn without_leave_nothing_gets_out_and_the_rule_is_proposed_all_the_same() {
    for who in either() {
        let world = world(who);
        let command = [&CURL[..], &["http://good.test:8080/a"]].concat();
        let (run, policy, document) = learn(&world, &[], &command);
        assert_ne!(run.code(), 0, "nothing was let through: {}", run.story());
        assert!(!run.stdout().contains("GET"), "{}", run.story());
        let wanted = json!({"action": "allow", "host": "good.test", "ports": "8080"});
        assert_eq!(net_rules(&document), [wanted], "{who:?}: {}", run.story());
        world.run(&["-p", &policy], &command).assert_ok();
    }
}

// promise 9
#[test]
fn special_addresses_are_noted_and_not_allowed() {
    for who in either() {
        let world = world(who);
        let own = format!("http://{OWN}/");
        let private = format!("http://{PRIVATE}/");
        for url in [own.as_str(), &private, "http://169.254.169.254/", "http://metadata.google.internal/"] {
            for flags in [&[][..], &["--net", "*"]] {
                let (run, _, document) = learn(&world, flags, &fetch(url));
                assert_ne!(run.code(), 0, "{url}: {}", run.story());
                assert_eq!(net_rules(&document), [] as [Value; 0], "{who:?} {url}: {document:#}");
                assert!(run.stderr().contains("no rule was written"), "{who:?} {url}: {}", run.story());
            }
        }
        // A `--net` flag of the caller overrides that.
        let (run, policy, document) = learn(&world, &["--net", &format!("{PRIVATE}:80")], &fetch(&private));
        run.assert_ok();
        assert_eq!(net_rules(&document).len(), 1, "{document:#}");
        world.run(&["-p", &policy], &fetch(&private)).assert_ok();
    }
}

// promise 9
#[test]
fn datagrams_and_addresses_become_rules_too() {
    const TEXT: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10)
try:
    s.connect((socket.gethostbyname('good.test'), 123)); s.send(b'x'); got = s.recv(9)
except OSError as e: got = e
s = socket.create_connection(('5.5.5.5', 8080)); s.settimeout(10)
try: s.sendall(b'GET / HTTP/1.0\\r\\nHost: 5.5.5.5\\r\\n\\r\\n'); print(got, s.recv(12))
except OSError as e: print(got, e)
";
    for who in either() {
        let world = world(who);
        let command = ["/usr/bin/python3", "-c", &TEXT.replace("\\\\", "\\")];
        let (run, policy, document) = learn(&world, &[], &command);
        let wanted = json!([
            {"action": "allow", "cidr": "5.5.5.5/32", "ports": "8080"},
            {"action": "allow", "proto": "udp", "host": "good.test", "ports": "123"},
        ]);
        assert_eq!(Value::Array(net_rules(&document)), wanted, "{who:?}: {}", run.story());
        let again = world.run(&["-p", &policy], &command);
        assert_eq!(again.stdout(), "b'x' b'HTTP/1.1 200'\n", "{who:?}: {}", again.story());
    }
}

// promise 9
#[test]
fn a_socket_of_the_host_becomes_a_rule() {
    for who in either() {
        let place = Place::new(who);
        let service = Service::new(&place, "run/service.sock");
        let engine = Service::new(&place, "run/docker.sock");
        let file = place.file("learned.json", "");
        let policy = file.to_str().unwrap();
        let connect = |paths: &[&str]| -> Vec<String> {
            let head = ["/usr/bin/python3", "-c", TRY, "SOCK_STREAM"];
            head.iter().chain(paths).map(|word| (*word).to_owned()).collect()
        };
        let learn = |flags: &[&str], paths: &[&str]| {
            let mut all = place.cofferdam(["policy", "learn", "-o", policy]);
            let output = to_the_end(all.args(flags).arg("--").args(connect(paths)), b"");
            let document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            (Run { output, outcome: Value::Null }, net_rules(&document))
        };
        let (run, rules) = learn(&[], &[service.text(), engine.text()]);
        assert_eq!((service.seen(), engine.seen()), (0, 0), "{who:?}: {}", run.story());
        assert!(rules.len() == 1 && rules[0]["path"].as_str().unwrap().ends_with("service.sock"), "{rules:?}");
        assert!(run.stderr().contains("docker.sock") && run.stderr().contains("no rule"), "{}", run.story());
        let command = connect(&[service.text(), engine.text()]);
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let again = place.run(&["-p", policy], &command);
        assert!(again.stdout().starts_with("service.sock "), "{who:?}: {}", again.story());
        assert_eq!((service.seen(), engine.seen()), (1, 0), "{who:?}: {}", again.story());
        // A socket that controls the whole host gets a rule only from an explicit `--net`.
        let (run, rules) = learn(&["--net", &engine.target()], &[engine.text()]);
        assert_eq!((rules.len(), engine.seen()), (1, 1), "{who:?}: {}", run.story());
    }
}

/// A tool that reads its previous output and moves files between directories: the policy learned from its first run
/// also permits the later ones.
// promise 9
#[test]
fn a_learned_policy_passes_again_over_what_the_command_left() {
    let tool = "import os\nos.chdir('area')\n\
        if os.path.exists('out'): open('out').read(); open('tree/in').read()\n\
        os.makedirs('tree', exist_ok=True); open('tree/in', 'w').write('x'); open('from/part', 'w').write('x')\n\
        os.rename('from/part', 'to/part'); open('new', 'w').write('done'); os.rename('new', 'out')";
    for who in either() {
        let place = Place::new(who);
        for dir in ["from", "to"] {
            place.dir(format!("home/project/area/{dir}"));
        }
        place.file("home/project/private", "not its business");
        let learned = place.root.join("home/learned.json").to_str().unwrap().to_owned();
        let words = ["policy", "learn", "--write", ".", "-o", &learned, "--", "/usr/bin/python3", "-c", tool];
        let lesson = to_the_end(&mut place.cofferdam(words), b"");
        assert!(lesson.status.success(), "{lesson:?}");
        for round in 0..3 {
            place.run(&["--direct", "-p", &learned], &["/usr/bin/python3", "-c", tool]).assert_ok();
            assert_eq!(fs::read_to_string(place.project.join("area/to/part")).unwrap(), "x", "{round}");
        }
        let other = place.run(&["--direct", "-p", &learned], &["/usr/bin/python3", "-c", "open('private').read()"]);
        assert_ne!(other.code(), 0, "and no more than that: {}", other.story());
    }
}

/// npm reads settings in many places, keeps cache and logs in the home directory, and writes a package into the
/// project.
// promise 9
#[test]
fn npm_packs_under_the_policy_that_was_learned_from_it() {
    for who in either() {
        let place = Place::new(who);
        let package = r#"{"name": "boat", "version": "1.0.0", "files": ["index.js"]}"#;
        place.file("home/project/package.json", package);
        place.file("home/project/index.js", "module.exports = 'canary of the package'\n");
        let private = place.file("home/other/private", "not its business").to_str().unwrap().to_owned();
        let learned = place.root.join("home/learned.json").to_str().unwrap().to_owned();
        let cache = place.dir("home/.npm").to_str().unwrap().to_owned();
        let words = ["policy", "learn", "--write", ".", "--write", &cache, "-o", &learned, "--", "npm", "pack"];
        let lesson = to_the_end(&mut place.cofferdam(words), b"");
        assert!(lesson.status.success(), "{who:?}: {lesson:?}");
        let tarball = place.project.join("boat-1.0.0.tgz");
        for round in 0..2 {
            let _ = fs::remove_file(&tarball);
            let run = place.run(&["--direct", "-p", &learned], &["npm", "pack"]);
            assert_eq!(run.assert_ok().stdout(), "boat-1.0.0.tgz\n", "{who:?}, {round}: {}", run.story());
            let packed = place.outside("tar").args(["-xzOf", tarball.to_str().unwrap(), "package/index.js"]).output();
            assert!(String::from_utf8_lossy(&packed.unwrap().stdout).contains("canary of the package"), "{who:?}");
        }
        let read = format!("require('fs').readFileSync('{private}')");
        let other = place.run(&["--direct", "-p", &learned], &["node", "-e", &read]);
        assert_ne!(other.code(), 0, "{who:?}: the program is allowed, and the file is not: {}", other.story());
        let own = place.run(&["--direct", "-p", &learned], &["node", "-e", "require('fs').readFileSync('index.js')"]);
        own.assert_ok();
    }
}
