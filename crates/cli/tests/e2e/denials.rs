//! Denials in the outcome: operation, target, rule, process, count, and a hint that would allow it. Failures of the
//! command's own making are never among them.

use crate::support::terminal::on_terminal;
use crate::support::{As, BOTH, Place, Run, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn denial(run: &Run, op: &str, target: &str) -> Value {
    run.assert_denied(op, target);
    let list = run.outcome["denials"].as_array().unwrap();
    list.iter().find(|d| d["op"] == op && d["target"] == target).unwrap().clone()
}

/// A project with a file, directories and a program, and files outside of it.
fn furnished(who: As) -> Place {
    let place = Place::new(who);
    for name in
        ["home/project/file", "home/project/other", "home/project/full/inner", "home/notes/text", "elsewhere/file"]
    {
        place.file(name, "text");
    }
    place.dir("home/project/empty");
    place
}

/// Shell texts that must fail, each with operation and target of the denial.
const REFUSED: [(&str, &str, &str); 24] = [
    ("echo x > file", "fs.write", "file"),
    ("echo x >> file", "fs.write", "file"),
    ("echo x > new", "fs.create", "new"),
    ("echo x > full/../new", "fs.create", "new"),
    ("mkdir new", "fs.create", "new"),
    ("mkfifo new", "fs.create", "new"),
    ("ln -s target new", "fs.create", "new"),
    ("ln file new", "fs.create", "new"),
    ("mknod new c 0 0", "fs.create", "new"),
    ("rm -f file", "fs.remove", "file"),
    ("rmdir empty", "fs.remove", "empty"),
    ("rm -rf full", "fs.remove", "full/inner"),
    ("mv file new", "fs.remove", "file"),
    ("mv empty new", "fs.remove", "empty"),
    ("mv file full/", "fs.remove", "file"),
    ("truncate -s 1 file", "fs.write", "file"),
    ("/usr/bin/python3 -c 'import os; os.truncate(\"file\", 0)'", "fs.write", "file"),
    ("/usr/bin/python3 -c 'import os; os.open(\"file\", os.O_RDWR)'", "fs.write", "file"),
    ("chmod 600 file", "fs.write", "file"),
    ("chmod 700 empty", "fs.write", "empty"),
    ("chgrp $(id -g) file", "fs.write", "file"),
    ("cp file new", "fs.create", "new"),
    ("sed -i s/a/b/ file", "fs.create", "*"),
    ("cd full && echo x > ../new", "fs.create", "new"),
];

// promise 9
#[test]
fn every_refused_change_is_told_and_its_hint_allows_it() {
    for who in BOTH {
        let mut wrong = Vec::new();
        for (text, op, target) in REFUSED {
            let place = furnished(who);
            let run = place.sh(&["--read-only"], text);
            assert_ne!(run.code(), 0, "{text}: {}", run.story());
            assert_eq!(run.text("/verdict"), "denied", "{text}: {}", run.story());
            assert_eq!(run.text("/error_kind"), "policy_denied");
            if target == "*" {
                assert!(run.denials().iter().any(|(o, _)| o == op), "{text}: {}", run.story());
            } else {
                let record = denial(&run, op, place.project.join(target).to_str().unwrap());
                assert_eq!(record["rule"], "defaults.fs", "{text}");
                assert_eq!(record["action"], "deny");
                assert!(record["count"].as_u64() >= Some(1));
            }
            if text.starts_with("mknod") {
                continue;
            }
            wrong.extend(follow_hints(&place, text, run).err());
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Changes through separate system calls: times, extended attributes, binding a socket.
// promise 9
#[test]
fn rarer_changes_are_told_too() {
    for who in BOTH {
        let place = furnished(who);
        let mut wrong = Vec::new();
        for (step, op, target) in [
            ("os.utime('file')", "fs.write", "file"),
            ("os.setxattr('file', 'user.note', b'x')", "fs.write", "file"),
            ("socket.socket(socket.AF_UNIX).bind('sock')", "fs.create", "sock"),
            ("os.rename('file', 'full/file')", "fs.remove", "file"),
            ("os.fchmod(os.open('file', os.O_RDONLY), 0o600)", "fs.write", "file"),
        ] {
            let text = format!("import os, socket; {step}");
            let run = place.python(&["--read-only"], &text);
            assert_ne!(run.code(), 0, "{step}: {}", run.story());
            if !run.was_denied(op, place.project.join(target).to_str().unwrap()) {
                wrong.push(format!("{step}: {:?} {}", run.denials(), run.stderr().lines().last().unwrap_or_default()));
            }
            place.python(&["--direct", "--write", "."], &text).assert_ok();
            place.file("home/project/file", "text");
        }
        assert!(wrong.is_empty(), "not told: {}", wrong.join("\n"));
    }
}

/// Applies the flags that hints name until no denial is left; the command must then succeed.
fn follow_hints(place: &Place, text: &str, mut run: Run) -> Result<(), String> {
    let mut flags: Vec<String> = Vec::new();
    for _ in 0..6 {
        let hints = run.outcome["denials"].as_array().cloned().unwrap_or_default();
        for record in hints {
            let hint = record["hint"].as_str().unwrap_or_default();
            let words = hint.split("run with ").nth(1).ok_or_else(|| format!("{text}: no flag in {hint:?}"))?;
            let (flag, path) = words.split_once(' ').unwrap();
            if !flags.iter().any(|f| f == path) {
                flags.extend([flag.to_owned(), path.to_owned()]);
            }
        }
        let words: Vec<&str> = ["--read-only"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        run = place.sh(&words, text);
        if run.code() == 0 {
            return Ok(());
        }
    }
    Err(format!("{text}: the hints do not lead there: {flags:?}: {}", run.story()))
}

#[test]
fn a_refusal_says_who_asked() {
    for who in BOTH {
        let place = furnished(who);
        let run = place.sh(&["--read-only"], "echo $$; echo x > file");
        let record = denial(&run, "fs.write", place.project.join("file").to_str().unwrap());
        assert_eq!(record["pid"].as_i64().unwrap().to_string(), run.stdout().trim(), "the pid it has inside");
        assert_eq!(record["exe"], "/usr/bin/dash");
        let run = place.sh(&["--read-only"], "touch new & wait");
        let record = denial(&run, "fs.create", place.project.join("new").to_str().unwrap());
        assert_eq!(record["exe"], "/usr/bin/touch");
        // A denial in a thread names the thread's process.
        let run = place.python(&["--read-only"], IN_A_THREAD);
        let record = denial(&run, "fs.create", place.project.join("new").to_str().unwrap());
        assert_eq!(record["exe"], fs::canonicalize("/usr/bin/python3").unwrap().to_str().unwrap());
        assert_eq!(record["pid"].as_i64().unwrap().to_string(), run.stdout().trim());
    }
}

const IN_A_THREAD: &str = "
import os, threading
print(os.getpid())
def make():
    try: os.mkdir('new')
    except OSError: pass
thread = threading.Thread(target=make)
thread.start()
thread.join()
";

#[test]
fn equal_refusals_are_counted_together() {
    for who in BOTH {
        let place = furnished(who);
        let run = place.python(
            &["--read-only"],
            "import os\nfor i in range(700):\n  try: os.mkdir('new')\n  except OSError: pass",
        );
        run.assert_ok();
        let record = denial(&run, "fs.create", place.project.join("new").to_str().unwrap());
        assert_eq!(record["count"], 700);
        assert_eq!(run.denials().len(), 1);
        let run = place.python(
            &["--read-only"],
            "import os\nfor i in range(700):\n  try: os.mkdir(f'new{i}')\n  except OSError: pass",
        );
        let kept = run.denials().len() as u64;
        assert!(kept >= 100, "{kept}");
        assert_eq!(kept + run.outcome["denials_dropped"].as_u64().unwrap(), 700, "what is not listed is counted");
    }
}

// promise 9
#[test]
fn refused_programs_are_told_and_the_hint_allows_them() {
    for who in BOTH {
        let place = furnished(who);
        let mut document = json!({"version": 1, "extends": ["default"], "defaults": {"exec": "deny"},
            "exec": {"rules": [{"action": "allow", "path": "/bin/sh"}]}});
        let policy = place.policy(document.clone());
        let run = place.sh(&["-p", &policy], "id");
        run.assert_code(126);
        let record = denial(&run, "exec", "/usr/bin/id");
        assert_eq!((&record["rule"], &record["exe"]), (&json!("defaults.exec"), &json!("/usr/bin/dash")));
        let hint = record["hint"].as_str().unwrap();
        let rule = hint.strip_prefix("add ").and_then(|h| h.split(" to exec.rules").next()).unwrap();
        document["exec"]["rules"].as_array_mut().unwrap().push(serde_json::from_str(rule).unwrap());
        place.sh(&["-p", &place.policy(document)], "id").assert_ok();
        // A denied command itself: a fault with the same hint.
        let run = place.run(&["-p", &policy], &["id"]);
        run.assert_code(126);
        assert_eq!(run.text("/error_kind"), "policy_denied");
        assert!(run.text("/hint").contains("/usr/bin/id"), "{}", run.story());
    }
}

// promise 9
#[test]
fn refused_connections_are_told() {
    const DIAL: &str = "
import socket, sys
host, port, six = sys.argv[1:]
s = socket.socket(socket.AF_INET6 if six == '1' else socket.AF_INET)
s.settimeout(5)
s.connect((host, int(port)))
";
    const MEET: &str = "
import socket
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname())
print('met')
";
    for who in BOTH {
        let place = furnished(who);
        for (host, port, six, target) in
            [("192.0.2.1", "443", "0", "192.0.2.1:443"), ("2001:db8::1", "80", "1", "[2001:db8::1]:80")]
        {
            let run = place.run(&[], &["/usr/bin/python3", "-c", DIAL, host, port, six]);
            assert_ne!(run.code(), 0);
            assert_eq!(run.text("/verdict"), "denied", "{}", run.story());
            assert_eq!(denial(&run, "net.connect", target)["rule"], "defaults.net");
        }
        // Datagrams need a rule as well.
        let text = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))";
        let run = place.python(&[], text);
        assert_ne!(run.code(), 0);
        let record = denial(&run, "net.connect", "192.0.2.1:53");
        // Port 53 means a DNS query, so the hint suggests the host that was meant instead of the name server.
        assert!(record["hint"].as_str().unwrap().ends_with("or run with --net HOST"), "{record}");
        // The guest's loopback is private: a refused connect there is the command's own failure.
        let run = place.run(&[], &["/usr/bin/python3", "-c", DIAL, "127.0.0.1", "9", "0"]);
        assert_eq!((run.text("/verdict"), run.denials().len()), ("failed".into(), 0), "{}", run.story());
        assert_eq!(place.python(&[], MEET).assert_ok().stdout(), "met\n");
    }
}

// promise 9
#[test]
fn refused_system_calls_are_told() {
    for who in BOTH {
        let place = furnished(who);
        for (number, name) in [
            ("SYS_mount", "mount"),
            ("SYS_bpf", "bpf"),
            ("SYS_keyctl", "keyctl"),
            ("SYS_io_uring_setup", "io_uring_setup"),
        ] {
            let source = format!(
                "#include <sys/syscall.h>\n#include <unistd.h>\nint main() {{ return syscall({number}, 0, 0, 0, 0, 0) < 0; }}"
            );
            let program = place.c_program("call", &source);
            let run = place.run(&[], &[program.to_str().unwrap()]);
            run.assert_code(1);
            let record = denial(&run, "syscall", name);
            assert_eq!((run.text("/verdict"), &record["rule"]), ("denied".into(), &json!("syscalls")));
            assert_eq!(record["exe"], program.to_str().unwrap());
            assert!(record["hint"].as_str().unwrap().contains("never allowed"), "{record}");
        }
        let policy =
            place.policy(json!({"version": 1, "extends": ["default"], "syscalls": {"deny": ["symlinkat", "symlink"]}}));
        let run = place.sh(&["-p", &policy], "ln -s a /tmp/b");
        assert_ne!(run.code(), 0, "{}", run.story());
        assert_eq!(run.outcome["denials"][0]["op"], "syscall", "{}", run.story());
        assert!(run.text("/denials/0/rule").ends_with("syscalls.deny"), "{}", run.story());
        place.sh(&[], "ln -s a /tmp/b").assert_ok();
    }
}

// promise 9
#[test]
fn refused_reads_are_told_when_asked_for() {
    for who in BOTH {
        let place = furnished(who);
        let notes = place.home.join("notes");
        for (text, target) in [
            ("cat ~/notes/text", notes.join("text")),
            ("/usr/bin/python3 -c 'import os; os.listdir(\"../notes\")'", notes.clone()),
            ("cat ../notes/text", notes.join("text")),
            ("cat ../../elsewhere/file", place.root.join("elsewhere/file")),
        ] {
            let target = target.to_str().unwrap();
            let run = place.sh(&["--report-reads"], text);
            assert_ne!(run.code(), 0, "{text}: {}", run.story());
            assert_eq!(run.text("/verdict"), "denied", "{text}: {}", run.story());
            assert_eq!(denial(&run, "fs.read", target)["rule"], "defaults.fs");
            follow_hints(&place, text, run).unwrap();
            let quiet = place.sh(&[], text);
            assert_ne!(quiet.code(), 0);
        }
        let run = place.sh(&["--report-reads", "--deny-read", "full"], "cat full/inner");
        let record = denial(&run, "fs.read", place.project.join("full/inner").to_str().unwrap());
        assert!(record["rule"].as_str().unwrap().contains("--deny-read"), "{record}");
        assert!(!record["hint"].as_str().unwrap_or_default().contains("run with"), "no flag lifts a denial: {record}");
        place
            .sh(&["--report-reads"], "cat full/inner >/dev/null && ls >/dev/null && /usr/bin/python3 -c 'import ssl'")
            .assert_ok();
    }
}

/// Most programs stat a file before they open it, so stat of a hidden path is reported on request.
// promise 9
#[test]
fn looking_at_what_is_hidden_is_told_when_asked_for() {
    for who in BOTH {
        let place = furnished(who);
        for (text, target) in [("ls ~/notes", "home/notes"), ("test -f ~/notes/text", "home/notes/text")] {
            let run = place.sh(&["--report-reads"], text);
            assert_ne!(run.code(), 0);
            run.assert_denied("fs.read", place.root.join(target).to_str().unwrap());
            follow_hints(&place, text, run).unwrap();
        }
        let run = place.sh(&["--report-reads"], "test -e ~/missing");
        assert_eq!((run.code(), run.denials()), (1, vec![]), "{}", run.story());
        place.sh(&["--report-reads"], "ls / ~ .. && test -d ~ && test -f file").assert_ok();
    }
}

/// Reading paths that the default policy shows is never a denial, in any amount.
// promise 9
#[test]
fn ordinary_work_has_no_refusals() {
    for who in BOTH {
        let place = furnished(who);
        for text in [
            "ls -la / /usr /etc >/dev/null; cat /etc/hostname /proc/meminfo >/dev/null; id; date; find . >/dev/null",
            "echo x > /tmp/f; mkdir /tmp/d; mv /tmp/f /tmp/d; rm -r /tmp/d; echo x > /dev/null; echo x > /dev/shm/s",
            "/usr/bin/python3 -c 'import tempfile; tempfile.NamedTemporaryFile().write(b\"x\")'; sort file; sed s/t/T/ file",
            "cc --version >/dev/null; git --version; perl -e 'print 1'",
        ] {
            let run = place.sh(&["--report-reads"], text);
            run.assert_ok();
            assert_eq!(run.denials(), [], "{text}: {}", run.story());
            assert_eq!(run.text("/verdict"), "ok");
        }
    }
}

// promise 9
#[test]
fn the_commands_own_failures_are_no_refusals() {
    for who in BOTH {
        let place = furnished(who);
        let closed = place.file("home/project/closed", "text");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let fixed = place.file("home/project/fixed", "text");
        fs::set_permissions(&fixed, fs::Permissions::from_mode(0o444)).unwrap();
        let dir = place.dir("home/project/fixed-dir");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
        symlink("nowhere", place.project.join("dangling")).unwrap();
        for (flags, text) in [
            (&[][..], "exit 1"),
            (&[], "cat missing"),
            (&[], "cat missing/file"),
            (&[], "cat file/below"),
            (&[], "ls ~/missing"),
            (&[], "echo x > missing/new"),
            (&[], "rm missing"),
            (&[], "mv missing new"),
            (&[], "rmdir missing"),
            (&[], "chmod 600 missing"),
            (&[], "cat dangling"),
            (&[], "./missing"),
            (&[], "cat closed"),
            (&["--write", "."], "echo x > fixed"),
            (&["--write", "."], "echo x > fixed-dir/new"),
            (&["--write", "."], "rmdir full"),
            (&["--write", "."], "mkdir full"),
            (&["--write", "."], "cat < /dev/tty"),
            (&[], "kill -9 1"),
            (&[], "echo x > /proc/sys/kernel/hostname"),
        ] {
            let mut all = vec!["--report-reads"];
            all.extend(flags);
            let run = place.sh(&all, text);
            if run.code() == 0 && text.contains("kill") {
                continue;
            }
            assert_ne!(run.code(), 0, "{text}: {}", run.story());
            assert_eq!(run.denials(), [], "{text}: {}", run.story());
            assert_eq!(run.text("/verdict"), "failed", "{text}: {}", run.story());
        }
        let run = place.python(&[], "raise PermissionError(13, 'Permission denied: sandbox policy')");
        assert_eq!((run.text("/verdict"), run.denials().len()), ("failed".into(), 0), "words are no evidence");
    }
}

/// On a read-only mount the kernel returns EEXIST for existing names, and programs rely on that.
// promise 9
#[test]
fn what_exists_already_is_no_refusal() {
    const TRY: &str = "
import errno, os
def name(step):
    try: step(); return 'ok'
    except OSError as e: return errno.errorcode[e.errno]
print(
    name(lambda: os.mkdir('empty')),
    name(lambda: os.mkdir('/usr')),
    name(lambda: os.symlink('x', 'file')),
    name(lambda: os.link('file', 'other')),
    name(lambda: os.mkfifo('file')),
    name(lambda: os.open('file', os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
    name(lambda: os.makedirs('full', exist_ok=True)),
    name(lambda: os.open('file', os.O_CREAT | os.O_RDONLY)))
";
    for who in BOTH {
        let place = furnished(who);
        let run = place.python(&["--read-only"], TRY);
        assert_eq!(run.stdout().trim(), "EEXIST EEXIST EEXIST EEXIST EEXIST EEXIST ok ok", "{}", run.story());
        assert_eq!(run.denials(), [], "{}", run.story());
        place.sh(&["--read-only"], "mkdir -p full empty /usr/lib /tmp/a/b").assert_ok();
    }
}

// promise 9
#[test]
fn the_verdict_is_denied_only_when_the_command_failed() {
    for who in BOTH {
        let place = furnished(who);
        let run = place.sh(&["--read-only"], "echo x > file; exit 0");
        assert_eq!(run.text("/verdict"), "ok");
        assert_eq!(run.outcome["success"], true);
        assert_eq!(run.outcome.get("error_kind"), None);
        run.assert_denied("fs.write", place.project.join("file").to_str().unwrap());
        let run = place.sh(&["--read-only"], "(echo x > file) 2>/dev/null; exit 1");
        assert_eq!((run.text("/verdict"), run.code()), ("denied".into(), 1));
        let run = place.sh(&["--read-only"], "(echo x > file) 2>/dev/null; kill -9 $$");
        assert_eq!((run.text("/verdict"), run.code()), ("denied".into(), 137));
        let run = place.sh(&["--read-only"], "exit 1");
        assert_eq!(run.text("/verdict"), "failed");
        // A pipeline hides the failed exit status, not the denial.
        let run = place.sh(&["--read-only"], "(echo x > file) 2>&1 | cat >/dev/null");
        assert_eq!(run.text("/verdict"), "ok");
        assert_eq!(run.denials().len(), 1);
    }
}

#[test]
fn warned_operations_go_through_and_are_told() {
    for who in BOTH {
        let place = furnished(who);
        let perms = json!(["read_file", "read_dir", "write_file", "truncate", "make_reg", "remove_file"]);
        let policy = place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": [
            {"action": "warn", "path": place.project, "perms": perms}]}}));
        let run = place.sh(&["--direct", "-p", &policy], "echo x > file; echo y > new; rm other");
        run.assert_ok();
        assert_eq!(run.text("/verdict"), "ok");
        for (op, name) in [("fs.write", "file"), ("fs.create", "new"), ("fs.remove", "other")] {
            let record = denial(&run, op, place.project.join(name).to_str().unwrap());
            assert_eq!(record["action"], "warn", "{record}");
            assert!(record["rule"].as_str().unwrap().ends_with("fs.rules[0]"), "{record}");
            assert_eq!(record.get("hint"), None);
        }
        assert_eq!(fs::read_to_string(place.project.join("new")).unwrap(), "y\n");
        // Warnings do not turn a failure into a denial.
        let run = place.sh(&["-p", &policy], "echo x > file; exit 4");
        assert_eq!(run.text("/verdict"), "failed", "{}", run.story());
    }
}

#[test]
fn asking_is_refusing_where_nobody_can_answer() {
    for who in BOTH {
        let place = furnished(who);
        let policy = place.policy(json!({"version": 1, "extends": ["workspace-write"], "fs": {"rules": [
            {"action": "ask", "path": place.project.join("file")}]}}));
        let run = place.sh(&["-p", &policy], "echo x > file");
        assert_ne!(run.code(), 0);
        assert_eq!(run.text("/verdict"), "denied");
        let record = denial(&run, "fs.write", place.project.join("file").to_str().unwrap());
        assert_eq!(record["action"], "ask");
        assert!(record["hint"].as_str().unwrap().contains("no answer is possible"), "{record}");
        assert_eq!(fs::read_to_string(place.project.join("file")).unwrap(), "text");
        place.sh(&["-p", &policy], "echo x > other").assert_ok();
    }
}

/// The screen's lines without colours and carriage returns.
fn plain(screen: &str) -> Vec<String> {
    let mut out = String::new();
    let mut rest = screen;
    while let Some(at) = rest.find("\u{1b}[") {
        out.push_str(&rest[..at]);
        let end = rest[at..].find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |n| at + n + 1);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out.lines().map(|l| l.trim_end_matches('\r').to_owned()).collect()
}

#[test]
fn on_a_terminal_each_refusal_is_one_line_after_the_run() {
    for who in BOTH {
        let place = furnished(who);
        let text = "(echo x > file) 2>/dev/null; (echo x > file) 2>/dev/null; mkdir new 2>/dev/null; echo last";
        let screen = on_terminal(&place, &["--read-only", "-c", text], json!([]));
        screen.assert_code(0);
        let lines = plain(&screen.text);
        assert_eq!(lines.len(), 3, "{}", screen.text);
        assert_eq!(lines[0], "last");
        let project = place.project.display();
        assert!(
            lines[1].starts_with(&format!(
                "cofferdam: refused fs.write {project}/file by /usr/bin/dash (2 times): rule defaults.fs"
            )),
            "{}",
            lines[1]
        );
        assert!(lines[1].contains(&format!("--write {project}/file")), "{}", lines[1]);
        assert!(
            lines[2].starts_with(&format!(
                "cofferdam: refused fs.create {project}/new by /usr/bin/mkdir: rule defaults.fs"
            )),
            "{}",
            lines[2]
        );
        let quiet = on_terminal(&place, &["--read-only", "-q", "-c", text], json!([]));
        assert_eq!(plain(&quiet.text), ["last"]);
    }
}

#[test]
fn with_v_refusals_are_told_as_they_happen() {
    for who in BOTH {
        let place = furnished(who);
        let text = "mkdir new 2>/dev/null; echo go; read x; mkdir later 2>/dev/null; echo last";
        let steps = json!([
            ["expect", "/new by"],
            ["expect", "go"],
            ["send", "\n"],
            ["expect", "/later by"],
            ["expect", "last"]
        ]);
        let screen = on_terminal(&place, &["--read-only", "-v", "-c", text], steps);
        screen.assert_code(0);
        let count = plain(&screen.text).iter().filter(|l| l.contains("refused fs.create")).count();
        assert_eq!(count, 2, "each once: {}", screen.text);
        // The terminal is raw during the run: a bare line feed would leave a staircase.
        assert_eq!(screen.text.replace("\r\n", "").matches('\n').count(), 0, "{:?}", screen.text);
        let got =
            to_the_end(&mut place.cofferdam(["run", "--read-only", "-v", "-c", "mkdir new 2>/dev/null; true"]), b"");
        assert_eq!(String::from_utf8_lossy(&got.stderr).matches("refused fs.create").count(), 1);
    }
}

// promise 11
#[test]
fn in_a_pipe_refusals_are_told_on_standard_error_alone() {
    for who in BOTH {
        let place = furnished(who);
        let run = |flags: &[&str]| {
            let text = "mkdir new 2>/dev/null; echo out; echo err >&2; exit 1";
            to_the_end(place.cofferdam(["run", "--read-only"]).args(flags).args(["-c", text]), b"")
        };
        let quiet = run(&["-q"]);
        assert_eq!((&quiet.stdout[..], &quiet.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        let told = run(&[]);
        let said = String::from_utf8(told.stderr).unwrap();
        assert_eq!(&told.stdout[..], b"out\n");
        let ours = said.strip_prefix("err\n").unwrap_or_default();
        assert!(
            ours.contains("refused fs.create") && ours.lines().all(|line| line.starts_with("cofferdam:")),
            "{said}"
        );
    }
}

// promise 2
#[test]
fn hostile_names_cannot_drive_the_terminal() {
    const NAMES: [&str; 6] = [
        "a\u{1b}[2Jb",
        "a\ncofferdam: all is well",
        "a\u{202e}txt.exe",
        "a\rover",
        "a\u{9b}31m",
        "a\u{7}\u{8}\u{200b}z",
    ];
    const MAKE: &str = "
import json, os, sys
for name in json.load(open(sys.argv[1])):
    try: os.mkdir(name)
    except OSError: pass
print('last')
";
    for who in BOTH {
        let place = furnished(who);
        let names = place.file("home/project/names.json", json!(NAMES).to_string());
        for flags in [&["-q"][..], &[], &["-v"]] {
            let mut args = vec!["--read-only"];
            args.extend(flags);
            args.extend(["--", "/usr/bin/python3", "-c", MAKE, names.to_str().unwrap()]);
            let screen = on_terminal(&place, &args, json!([]));
            screen.assert_code(0);
            let lines = plain(&screen.text);
            let reported: Vec<&String> = lines.iter().filter(|l| l.starts_with("cofferdam: refused")).collect();
            assert_eq!(reported.len(), if flags == ["-q"] { 0 } else { NAMES.len() }, "{}", screen.text);
            assert!(!lines.iter().any(|l| l.starts_with("cofferdam: all is well")), "{}", screen.text);
            for c in ['\u{202e}', '\u{9b}', '\u{7}', '\u{8}', '\u{200b}'] {
                assert!(!screen.text.contains(c), "{c:?} reached the terminal: {:?}", screen.text);
            }
            assert!(!screen.text.contains("\u{1b}[2J"), "{:?}", screen.text);
            assert!(!screen.text.replace("\r\n", "").contains("\rover"), "{:?}", screen.text);
            let targets: Vec<&str> =
                screen.outcome["denials"].as_array().unwrap().iter().filter_map(|d| d["target"].as_str()).collect();
            for name in NAMES {
                assert!(
                    targets.contains(&place.project.join(name).to_str().unwrap()),
                    "the document has it whole: {targets:?}"
                );
            }
        }
        // File names that are not UTF-8 are reported with replacement characters.
        let run = place.python(&["--read-only"], "import os\ntry: os.mkdir(b'bad-\\xff-name')\nexcept OSError: pass");
        run.assert_denied("fs.create", place.project.join("bad-\u{fffd}-name").to_str().unwrap());
    }
}

#[test]
fn colours_can_be_switched_off() {
    let place = furnished(As::Root);
    let coloured = on_terminal(&place, &["--read-only", "-c", "mkdir new 2>/dev/null; true"], json!([]));
    assert!(coloured.text.contains("\u{1b}["), "{:?}", coloured.text);
    let text = "import os, sys; os.environ['NO_COLOR'] = '1'; os.execv(sys.argv[1], sys.argv[1:])";
    let mut script = place.outside("script");
    let line = format!(
        "/usr/bin/python3 -c \"{text}\" {} run --read-only -c 'mkdir new 2>/dev/null; true'",
        crate::support::binary().display()
    );
    let got = to_the_end(script.args(["-qec", &line, "/dev/null"]), b"");
    let seen = String::from_utf8_lossy(&got.stdout);
    assert!(seen.contains("refused fs.create") && !seen.contains('\u{1b}'), "{seen:?}");
}
