//! Refusals that look like something else, and hints that work: what is hidden is refused by name, no hint offers the
//! home directory or a system directory, a followed hint leads on, and failures without a rule come with advice.

use crate::support::world::{PRIVATE, PUBLIC, World};
use crate::support::{As, BOTH, Place, Run, binary, copy_program, either, to_the_end};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A project, a hidden sibling of it, and hidden directories of the host elsewhere.
fn furnished(who: As) -> Place {
    let place = Place::new(who);
    for name in ["home/project/file", "home/notes/text", "elsewhere/dir/text", "elsewhere/file"] {
        place.file(name, "text");
    }
    place.dir("home/project/tree");
    place
}

fn record<'a>(run: &'a Run, op: &str, target: &Path) -> &'a Value {
    run.assert_denied(op, target.to_str().unwrap());
    let list = run.outcome["denials"].as_array().unwrap();
    list.iter().find(|d| d["op"] == op && d["target"] == target.to_str().unwrap()).unwrap()
}

/// The flag and its value at the end of a hint.
fn flag_of(record: &Value) -> [&str; 2] {
    let hint = record["hint"].as_str().unwrap_or_default();
    let (_, flag) = hint.rsplit_once("run with ").unwrap_or_else(|| panic!("no flag: {record}"));
    let (flag, value) = flag.split_once(' ').unwrap();
    [flag, value]
}

/// Changes at names that the host has and the guest is not shown, with operation and target of the denial.
const HIDDEN: [(&str, &str, &str); 9] = [
    ("os.mkdir('{else}/dir')", "fs.create", "elsewhere/dir"),
    ("os.symlink('x', '{else}/file')", "fs.create", "elsewhere/file"),
    ("os.link('file', '{else}/file')", "fs.create", "elsewhere/file"),
    ("os.link('{else}/file', 'new')", "fs.read", "elsewhere/file"),
    ("os.rename('{else}/file', 'new')", "fs.remove", "elsewhere/file"),
    ("os.rename('file', '{else}/dir/new')", "fs.create", "elsewhere/dir/new"),
    ("os.unlink('{else}/file')", "fs.remove", "elsewhere/file"),
    ("os.rmdir('{else}/dir')", "fs.remove", "elsewhere/dir"),
    ("os.open('{else}/file', os.O_CREAT | os.O_EXCL | os.O_WRONLY)", "fs.create", "elsewhere/file"),
];

// promise 9
#[test]
fn a_change_at_a_hidden_name_is_refused_and_told() {
    for who in BOTH {
        let mut wrong = Vec::new();
        for (step, op, target) in HIDDEN {
            let place = furnished(who);
            let step = step.replace("{else}", place.root.join("elsewhere").to_str().unwrap());
            let run = place.python(&[], &format!("import os; {step}"));
            assert_ne!(run.code(), 0, "{step}");
            if !run.was_denied(op, place.root.join(target).to_str().unwrap()) {
                wrong.push(format!("{who:?} {step}: {:?} {}", run.denials(), run.stderr()));
                continue;
            }
            let told = record(&run, op, &place.root.join(target));
            assert_eq!((&told["rule"], run.text("/verdict")), (&Value::from("defaults.fs"), "denied".into()), "{step}");
            flag_of(told);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // Controls: shown or missing names fail for reasons of the command's own.
        let place = furnished(who);
        for step in ["os.mkdir('tree')", "os.mkdir('/usr')", "os.rmdir('missing')", "os.mkdir('../missing/x')"] {
            let run = place.python(&[], &format!("import os; {step}"));
            assert_eq!((run.text("/verdict"), run.denials()), ("failed".into(), vec![]), "{step}: {}", run.story());
        }
    }
}

// promise 9
#[test]
fn a_hidden_directory_can_be_made_after_the_hint_was_followed() {
    for who in BOTH {
        let place = furnished(who);
        let hidden = place.root.join("elsewhere/dir");
        let text = format!("mkdir -p {0}/new && touch {0}/new/file", hidden.display());
        let mut flags: Vec<String> = Vec::new();
        for _ in 0..4 {
            let words: Vec<&str> = flags.iter().map(String::as_str).collect();
            let run = place.sh(&words, &text);
            if run.code() == 0 {
                break;
            }
            for told in run.outcome["denials"].as_array().unwrap() {
                flags.extend(flag_of(told).map(String::from));
            }
        }
        assert!(hidden.join("new/file").exists(), "{who:?}: {flags:?}");
    }
}

/// Paths that no hint may offer as a whole.
fn too_wide(place: &Place) -> Vec<String> {
    let home = place.home.ancestors().map(|at| at.display().to_string());
    home.chain(["/usr", "/etc", "/var", "/opt", "/srv"].map(String::from)).collect()
}

// promise 9
#[test]
fn no_hint_offers_the_home_or_a_system_directory() {
    for who in BOTH {
        let place = furnished(who);
        let wide = too_wide(&place);
        for step in [
            "os.mkdir('/etc/new')",
            "os.mkdir('/new')",
            "open('/usr/new', 'w')",
            "os.mkdir('/srv/new')",
            "os.mkdir('/var/new')",
            "os.unlink('/etc/passwd')",
            "os.rmdir('/opt')",
            "os.chmod('/etc', 0o700)",
            "os.chmod(os.path.expanduser('~/..'), 0o700)",
            "os.rename('file', '/etc/new')",
            "os.symlink('x', '/etc/new')",
        ] {
            let run = place.python(&["--report-reads"], &format!("import os; {step}"));
            assert_eq!(run.text("/verdict"), "denied", "{step}: {}", run.story());
            for told in run.outcome["denials"].as_array().unwrap() {
                let hint = told["hint"].as_str().unwrap_or_default();
                let offered = hint.rsplit_once("run with ").and_then(|(_, flag)| flag.split_once(' '));
                let offers = offered.is_some_and(|(_, path)| wide.iter().any(|wide| wide == path));
                assert!(!offers, "{step}: {hint}");
                assert!(!hint.is_empty(), "{step}: a hint says what to do instead");
            }
        }
        for path in ["/", "/home", "/srv"] {
            let run = place.run(&["-v"], &["ls", "-d", path, "/nowhere"]);
            assert!(!run.stderr().contains("allow it with"), "{}", run.story());
        }
    }
}

/// In a directory that no hint offers, the hint names a way that works: the name is made on the host first.
// promise 9
#[test]
fn a_name_that_does_not_exist_yet_is_made_on_the_host_first() {
    let place = furnished(As::Root);
    let name = format!("/srv/{}-new", place.root.file_name().unwrap().to_str().unwrap());
    let text = format!("mkdir -p {name} && echo x > {name}/file");
    let run = place.sh(&[], &text);
    let told = record(&run, "fs.create", Path::new(&name));
    assert!(told["hint"].as_str().unwrap().contains(&format!("`mkdir {name}`")), "{told}");
    let flags = flag_of(told).map(String::from);
    fs::create_dir(&name).unwrap();
    let again = place.sh(&[&flags[0], &flags[1]], &text);
    let written = fs::read_to_string(Path::new(&name).join("file"));
    fs::remove_dir_all(&name).unwrap();
    again.assert_ok();
    assert_eq!(written.unwrap(), "x\n");
}

const UNLISTED: [&str; 2] = ["--deny-read", "/etc/hosts"];

const LOOK_UP: &str = "
import socket, sys
try: socket.getaddrinfo(sys.argv[1], 443)
except socket.gaierror as e: print(e.errno == socket.EAI_NONAME)
";

// promise 9
#[test]
fn without_a_network_a_look_up_names_the_host() {
    for who in BOTH {
        let world = World::new(who).host(PUBLIC, "good.test").server("http", PUBLIC, 80);
        // Without a network the host's own table of names shows inside, so it is hidden here.
        let run = world.run(&UNLISTED, &["/usr/bin/curl", "-sS", "-m", "10", "http://good.test/"]);
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied", "{}", run.story());
        run.assert_denied("net.resolve", "good.test");
        let told = run.outcome["denials"].as_array().unwrap().iter().find(|d| d["op"] == "net.resolve").unwrap();
        assert_eq!(told["exe"], "/usr/bin/curl", "{told}");
        let [flag, value] = flag_of(told).map(String::from);
        assert_eq!((flag.as_str(), value.as_str()), ("--net", "good.test"));
        // The hint, followed.
        let fetch = ["/usr/bin/curl", "-sS", "-m", "10", "http://good.test/page"];
        world.run(&[&flag, &value], &fetch).assert_ok();
        // A program learns at once that there is no such name, and local names keep their meaning.
        let run = world.run(&UNLISTED, &["/usr/bin/python3", "-c", LOOK_UP, "good.test"]);
        run.assert_ok();
        assert_eq!(run.stdout(), "True\n", "{}", run.story());
        let run = world.run(&UNLISTED, &["/usr/bin/python3", "-c", LOOK_UP, "localhost"]);
        assert_eq!((run.stdout().as_str(), run.denials()), ("", vec![]), "{}", run.story());
    }
}

/// The name server gives a guest no network: its other ports, and every other address, stay out of reach.
// promise 5
#[test]
fn the_name_server_is_no_network() {
    const REACH: &str = "
import socket, sys
def tried(kind, at, send):
    s = socket.socket(socket.AF_INET, kind)
    s.settimeout(5)
    try:
        if send: s.sendto(b'x', at)
        else: s.connect(at); s.send(b'x'); s.recv(1)
        return 'sent'
    except OSError as e: return 'refused'
resolver = [l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0]
print(tried(socket.SOCK_STREAM, (resolver, 53), False), tried(socket.SOCK_DGRAM, (resolver, 54), False))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    print(tried(kind, (sys.argv[1], 80), False))
print(tried(socket.SOCK_DGRAM, (sys.argv[1], 53), True))
";
    for who in either() {
        let world = World::new(who).server("http", PUBLIC, 80).server("udp", PUBLIC, 53);
        let run = world.run(&[], &["/usr/bin/python3", "-c", REACH, PUBLIC]);
        run.assert_ok();
        assert_eq!(run.stdout(), "refused refused\nrefused\nrefused\nrefused\n", "{}", run.story());
        assert_eq!(run.outcome["usage"]["net_bytes"], 0);
    }
}

// promise 9
#[test]
fn a_name_at_a_private_address_is_told_with_the_flag_that_works() {
    for who in either() {
        let world = World::new(who).host(PRIVATE, "inner.test").server("http", PRIVATE, 80);
        let fetch = ["/usr/bin/curl", "-sS", "-m", "10", "http://inner.test/page"];
        for rule in ["inner.test", "inner.test:80"] {
            let run = world.run(&["--net", rule], &fetch);
            assert_ne!(run.code(), 0);
            run.assert_denied("net.resolve", "inner.test");
            let told = &run.outcome["denials"][0];
            assert!(told["hint"].as_str().unwrap().contains(&format!("inner.test leads only to {PRIVATE}")), "{told}");
            let [flag, value] = flag_of(told);
            world.run(&["--net", rule, flag, value], &fetch).assert_ok();
        }
        // A bare address.
        let bare = format!("http://{PRIVATE}/");
        let fetch = ["/usr/bin/curl", "-sS", "-m", "10", &bare];
        let run = world.run(&[], &fetch);
        let [flag, value] = flag_of(&run.outcome["denials"][0]);
        assert_eq!((flag, value), ("--net", &*format!("{PRIVATE}:80")));
        world.run(&[flag, value], &fetch).assert_ok();
    }
}

// promise 9
#[test]
fn a_service_on_the_hosts_loopback_is_pointed_out() {
    const DIAL: &str = "
import socket, sys
try: socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10); print('met')
except ConnectionRefusedError: sys.exit(3)
";
    const OWN: &str = "
import socket
server = socket.create_server(('127.0.0.1', 5432))
socket.create_connection(('127.0.0.1', 5432))
";
    for who in BOTH {
        let world = World::new(who).server("http", "127.0.0.1", 5432);
        let dial = |port: &'static str| ["/usr/bin/python3", "-c", DIAL, port];
        let run = world.run(&["-v"], &dial("5432"));
        assert_eq!((run.code(), run.text("/verdict"), run.denials()), (3, "failed".into(), vec![]), "{}", run.story());
        let note = run.text("/notes/0");
        assert!(note.ends_with("--net 127.0.0.1:5432") && run.stderr().contains(&note), "{}", run.story());
        world.run(&["--net", "127.0.0.1:5432"], &dial("5432")).assert_ok();
        // Controls: no such service, and one of the guest's own.
        assert_eq!(world.run(&[], &dial("5433")).outcome.get("notes"), None);
        let own = world.python(&[], OWN);
        own.assert_ok();
        assert_eq!(own.outcome.get("notes"), None, "{}", own.story());
    }
}

// promise 9
#[test]
fn a_directory_of_the_project_that_cannot_be_renamed_is_explained() {
    for who in either() {
        let place = furnished(who);
        place.file("home/project/tree/inner", "x");
        let run = place.python(&["-v"], "import os; os.rename('tree', 'wood')");
        assert_ne!(run.code(), 0, "{}", run.story());
        assert_eq!((run.text("/verdict"), run.denials()), ("failed".into(), vec![]));
        let note = run.text("/notes/0");
        let advice = format!("`mv {0}/tree {0}/wood`", place.project.display());
        assert!(note.contains(&advice) && run.stderr().contains(&note), "{}", run.story());
        // Controls: the advice works, and neither it nor a directory of the guest's own is commented on.
        let mv = place.sh(
            &[],
            "mv tree wood && test -f wood/inner && mkdir own && python3 -c 'import os; os.rename(\"own\", \"other\")'",
        );
        mv.assert_ok();
        assert_eq!(mv.outcome.get("notes"), None, "{}", mv.story());
    }
}

// promise 9
#[test]
fn a_sandbox_of_the_programs_own_is_explained() {
    for who in BOTH {
        let place = furnished(who);
        let run = place.sh(&[], "unshare -U true");
        assert_ne!(run.code(), 0);
        let told = &run.outcome["denials"][0];
        assert_eq!((&told["op"], &told["target"]), (&"syscall".into(), &"unshare".into()));
        let hint = told["hint"].as_str().unwrap();
        assert!(hint.contains("switch that off") && hint.contains("danger-full-access"), "{hint}");
        // A second cofferdam names the reason first.
        let copy = place.project.join("cofferdam");
        copy_program(binary(), &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let run = place.run(&[], &["./cofferdam", "run", "--", "true"]);
        assert_eq!(run.code(), 125, "{}", run.story());
        let first = run.stderr().lines().next().unwrap_or_default().to_owned();
        assert!(first.contains("this is a sandbox already"), "{}", run.story());
    }
}

/// Commands of a live sandbox are told the same.
#[test]
fn in_a_live_sandbox_it_is_told_too() {
    for who in either() {
        let place = furnished(who);
        let cofferdam = |words: &[&str]| to_the_end(&mut place.cofferdam(words), b"");
        assert!(cofferdam(&["create", "--name", "lab"]).status.success());
        assert!(cofferdam(&["exec", "--detach", "lab", "--", "sleep", "600"]).status.success());
        let said = |text: &str| {
            let ended = cofferdam(&["exec", "-v", "lab", "--", "/usr/bin/python3", "-c", text]);
            String::from_utf8_lossy(&ended.stderr).into_owned()
        };
        let looked = said("import socket; socket.getaddrinfo('host.example.org', 443)");
        assert!(looked.contains("refused net.resolve host.example.org by /usr/bin/python3"), "{who:?}: {looked}");
        let renamed = said("import os; os.rename('tree', 'wood')");
        assert!(renamed.contains("could not be renamed") && !renamed.contains("net.resolve"), "{who:?}: {renamed}");
        assert!(cofferdam(&["rm", "--force", "lab"]).status.success());
    }
}

/// A withheld tree lands whole or not at all, and a large one is told in one line.
#[test]
fn a_withheld_tree_lands_whole() {
    let place = Place::new(As::User);
    let make = "mkdir -p .venv/lib; echo a > .venv/pyvenv.cfg; for i in $(seq 80); do echo b > .venv/lib/m$i.py; done";
    place.sh(&[], make).assert_ok();
    let cofferdam = |words: &[&str]| to_the_end(&mut place.cofferdam(words), b"");
    assert!(cofferdam(&["diff", "--all", "--no-pager"]).status.success());
    let part = cofferdam(&["approve", ".venv"]);
    assert!(!part.status.success());
    let said = String::from_utf8_lossy(&part.stderr).into_owned();
    assert!(said.contains("would land in part") && said.contains("--runs-on-host"), "{said}");
    assert!(!place.project.join(".venv").exists(), "nothing landed");
    let whole = cofferdam(&["approve", "--runs-on-host", ".venv"]);
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    assert_eq!(String::from_utf8_lossy(&whole.stdout), "added     .venv/ (81 files)\n");
    assert!(place.project.join(".venv/pyvenv.cfg").exists() && place.project.join(".venv/lib/m80.py").exists());
}
