//! File permissions, singly and nested: granted operations work, others fail, and only intended writes remain on the
//! host.

use crate::support::{As, BOTH, Place, Run, USER, unique};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

type Row = (&'static str, &'static [&'static str], Option<(&'static str, &'static str)>);

/// Every permission, with the permissions it depends on and its denial: operation and target.
const TABLE: [Row; 17] = [
    ("execute", &["execute", "read_file"], Some(("exec", "tool"))),
    ("write_file", &["write_file"], Some(("fs.write", "file"))),
    ("read_file", &["read_file"], Some(("fs.read", "file"))),
    ("read_dir", &["read_dir"], Some(("fs.read", "sub"))),
    ("remove_dir", &["remove_dir"], Some(("fs.remove", "empty"))),
    ("remove_file", &["remove_file"], Some(("fs.remove", "victim"))),
    ("make_char", &["make_char"], Some(("fs.create", "new-char"))),
    ("make_dir", &["make_dir"], Some(("fs.create", "new-dir"))),
    ("make_reg", &["make_reg"], Some(("fs.create", "new-reg"))),
    ("make_sock", &["make_sock"], Some(("fs.create", "new-sock"))),
    ("make_fifo", &["make_fifo"], Some(("fs.create", "new-fifo"))),
    ("make_block", &["make_block"], Some(("fs.create", "new-block"))),
    ("make_sym", &["make_sym"], Some(("fs.create", "new-sym"))),
    ("refer", &["refer", "remove_file", "make_reg"], Some(("fs.create", "b/moved"))),
    ("refer by link", &["refer", "make_reg"], Some(("fs.create", "b/linked"))),
    ("truncate", &["truncate"], Some(("fs.write", "longer"))),
    ("ioctl_dev", &["ioctl_dev"], None),
];

const PERMS: [&str; 16] = [
    "execute",
    "write_file",
    "read_file",
    "read_dir",
    "remove_dir",
    "remove_file",
    "make_char",
    "make_dir",
    "make_reg",
    "make_sock",
    "make_fifo",
    "make_block",
    "make_sym",
    "refer",
    "truncate",
    "ioctl_dev",
];

/// Tries every operation once and prints a line for each: its name, and `ok` or the error.
const PROBE: &str = r#"
import errno, fcntl, os, stat, subprocess, sys, termios
area, device = sys.argv[1:]
def at(name): return os.path.join(area, name)
def ioctl():
    fd = os.open(device, os.O_RDWR)
    try: fcntl.ioctl(fd, termios.TCGETS, b'\0' * 64)
    except OSError as e:
        if e.errno != errno.ENOTTY: raise
steps = {
    'execute': lambda: subprocess.run([at('tool')], check=True),
    'write_file': lambda: os.close(os.open(at('file'), os.O_WRONLY)),
    'read_file': lambda: os.close(os.open(at('file'), os.O_RDONLY)),
    'read_dir': lambda: os.listdir(at('sub')),
    'remove_dir': lambda: os.rmdir(at('empty')),
    'remove_file': lambda: os.unlink(at('victim')),
    'make_char': lambda: os.mknod(at('new-char'), stat.S_IFCHR | 0o600, 0),
    'make_dir': lambda: os.mkdir(at('new-dir')),
    'make_reg': lambda: os.mknod(at('new-reg'), stat.S_IFREG | 0o600),
    'make_sock': lambda: os.mknod(at('new-sock'), stat.S_IFSOCK | 0o600),
    'make_fifo': lambda: os.mkfifo(at('new-fifo')),
    'make_block': lambda: os.mknod(at('new-block'), stat.S_IFBLK | 0o600, os.makedev(7, 0)),
    'make_sym': lambda: os.symlink('target', at('new-sym')),
    'refer': lambda: os.rename(at('a/moving'), at('b/moved')),
    'refer by link': lambda: os.link(at('a/linking'), at('b/linked')),
    'truncate': lambda: os.truncate(at('longer'), 1),
    'ioctl_dev': ioctl,
}
for name, step in steps.items():
    try:
        step()
        print(name, 'ok', sep='=')
    except OSError as e:
        print(name, errno.errorcode[e.errno], sep='=')
"#;

struct Area {
    dir: PathBuf,
    device: PathBuf,
}

fn area(place: &Place) -> Area {
    let name = format!("area-{}", unique());
    let dir = place.dir(&name);
    for file in ["file", "longer", "victim", "a/moving", "a/linking", "sub/inner"] {
        place.file(dir.join(file), "text");
    }
    for sub in ["empty", "b"] {
        place.dir(dir.join(sub));
    }
    let tool = dir.join("tool");
    crate::support::copy_program("/usr/bin/true", &tool);
    place.own(&tool);
    let device = place.root.join(format!("null-{}", unique()));
    assert!(Command::new("mknod").arg(&device).args(["-m", "666", "c", "1", "3"]).status().unwrap().success());
    Area { dir, device }
}

/// Runs the probe with exactly these permissions on the area.
fn try_all(place: &Place, area: &Area, perms: &[&str]) -> (Run, BTreeMap<String, String>) {
    let mut on_device = vec!["read_file", "write_file"];
    on_device.extend(perms.iter().filter(|p| **p == "ioctl_dev"));
    let policy = place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": [
        {"action": "allow", "path": area.dir, "perms": perms},
        {"action": "allow", "path": area.device, "perms": on_device},
    ]}}));
    let (dir, device) = (area.dir.to_str().unwrap(), area.device.to_str().unwrap());
    let flags = ["--report-reads", "-p", &policy];
    let run = place.run(&flags, &["/usr/bin/python3", "-c", PROBE, dir, device]);
    run.assert_ok();
    let lines = run.stdout();
    let got = lines.lines().filter_map(|l| l.split_once('=')).map(|(n, e)| (n.to_owned(), e.to_owned())).collect();
    (run, got)
}

#[track_caller]
fn check_table(place: &Place, perms: &[&str]) {
    let area = area(place);
    let (run, got) = try_all(place, &area, perms);
    for (name, needs, denial) in TABLE {
        let granted = needs.iter().all(|n| perms.contains(n));
        let answer = got.get(name).map(String::as_str).unwrap_or("nothing");
        if granted && name != "make_block" {
            assert_eq!(answer, "ok", "{name} with {perms:?} as {:?}: {}", place.who, run.story());
            continue;
        }
        // Between directories the kernel returns EXDEV, and programs then copy.
        let want: &[&str] = match own_permission(name) {
            "make_block" if granted => &["EPERM"],
            "refer" => &["EACCES", "EXDEV"],
            _ => &["EACCES"],
        };
        assert!(want.contains(&answer), "{name} gave {answer} with {perms:?} as {:?}: {}", place.who, run.story());
        let missing: Vec<&&str> = needs.iter().filter(|n| !perms.contains(n)).collect();
        if let ([missing], Some((op, target))) = (&missing[..], denial)
            && **missing == own_permission(name)
        {
            run.assert_denied(op, area.dir.join(target).to_str().unwrap());
        }
    }
}

fn own_permission(name: &str) -> &str {
    name.split(' ').next().unwrap()
}

// promise 1
#[test]
fn each_permission_alone_allows_its_operation_and_no_other() {
    for who in BOTH {
        let place = Place::new(who);
        for (_, needs, _) in TABLE {
            check_table(&place, needs);
        }
    }
}

// promise 1
#[test]
fn each_permission_taken_away_forbids_its_operation_and_no_other() {
    for who in BOTH {
        let place = Place::new(who);
        check_table(&place, &PERMS);
        for perm in PERMS {
            let rest: Vec<&str> = PERMS.into_iter().filter(|p| *p != perm).collect();
            check_table(&place, &rest);
        }
    }
}

/// Moving a directory, link or pipe needs the permission that creates its kind.
#[test]
fn moving_needs_the_permission_of_the_kind_that_is_moved() {
    for who in BOTH {
        let place = Place::new(who);
        for (make, kind) in
            [("mkdir x", "make_dir"), ("ln -s t x", "make_sym"), ("mkfifo x", "make_fifo"), ("touch x", "make_reg")]
        {
            for granted in ["make_dir", "make_sym", "make_fifo", "make_reg"] {
                let dir = place.dir(format!("move-{}", unique()));
                assert!(place.outside("sh").args(["-c", make]).current_dir(&dir).status().unwrap().success());
                let perms = json!(["read_file", "read_dir", "remove_file", "remove_dir", granted]);
                let rule = json!({"action": "allow", "path": dir, "perms": perms});
                let policy = place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": [rule]}}));
                let run = place
                    .run(&["-p", &policy], &["mv", dir.join("x").to_str().unwrap(), dir.join("y").to_str().unwrap()]);
                assert_eq!(run.code() == 0, granted == kind, "{make} with {granted}: {}", run.story());
            }
        }
    }
}

/// Every entry below a directory: kind, mode, owner, size, content.
fn snapshot(dir: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let text = if meta.is_file() { format!("{:?}", fs::read(&path)) } else { String::new() };
        all.insert(format!(
            "{} {:o} {}:{} {} {text}",
            path.display(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.nlink()
        ));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().flatten().map(|e| e.path()));
        }
    }
    all
}

const WRITE: [&str; 12] = [
    "read_file",
    "read_dir",
    "write_file",
    "truncate",
    "make_dir",
    "make_reg",
    "make_sym",
    "make_sock",
    "make_fifo",
    "remove_file",
    "remove_dir",
    "refer",
];

fn rules(place: &Place, rules: Value) -> String {
    place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": rules}}))
}

fn write_and_execute() -> Value {
    let mut perms = WRITE.to_vec();
    perms.push("execute");
    json!(perms)
}

// promise 1
#[test]
fn a_denied_file_or_directory_inside_a_grant_is_hidden() {
    for who in BOTH {
        let place = Place::new(who);
        let dir = place.dir("area");
        for name in ["open", "secret", "deep/secrets/key", "deep/other"] {
            place.file(dir.join(name), format!("text of {name}"));
        }
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": dir, "perms": write_and_execute()},
                {"action": "deny", "path": dir.join("secret")},
                {"action": "deny", "path": dir.join("deep/secrets")},
            ]),
        );
        let before = snapshot(&dir);
        let run = |text: &str| {
            place.run(&["--direct", "--workdir", dir.to_str().unwrap(), "-p", &policy], &["sh", "-c", text])
        };
        for text in [
            "cat secret",
            "echo x > secret",
            "echo x >> secret",
            "rm -f secret",
            "mv secret elsewhere",
            "ln secret linked",
            "ls deep/secrets/key",
            "cat deep/secrets/key",
            "rm -rf deep/secrets",
            "touch deep/secrets/new",
            "mkdir deep/secrets/new",
            "mv deep/secrets elsewhere",
            "mv deep elsewhere",
            "chmod 777 secret",
            "cat /proc/self/root/\"$PWD\"/secret",
            "ln -s secret via && cat via",
            "mv open secret",
            "truncate -s 0 secret",
        ] {
            let got = run(&format!("({text}); code=$?; rm -f via linked; exit $code"));
            assert_ne!(got.code(), 0, "{text} must fail: {}", got.story());
            assert!(!got.stdout().contains("text of"), "{text} must show nothing: {}", got.story());
            assert_eq!(snapshot(&dir), before, "{text} must change nothing");
        }
        let got = run("cat open deep/other; ls deep; ls deep/secrets");
        assert!(got.stdout().starts_with("text of opentext of deep/other"), "{}", got.story());
        run("echo changed > open && echo made > deep/new && mv deep/other deep/moved").assert_ok();
        assert_eq!(fs::read_to_string(dir.join("open")).unwrap(), "changed\n");
        assert_eq!(fs::read_to_string(dir.join("deep/moved")).unwrap(), "text of deep/other");
        assert_eq!(fs::read_to_string(dir.join("deep/secrets/key")).unwrap(), "text of deep/secrets/key");
    }
}

#[test]
fn denied_writes_leave_reading_and_denied_execution_leaves_both() {
    const CHANGES: [&str; 5] = ["write_file", "truncate", "refer", "make_*", "remove_*"];
    for who in BOTH {
        let place = Place::new(who);
        let dir = place.dir("area");
        for name in ["kept/file", "kept-file", "plain"] {
            place.file(dir.join(name), "text");
        }
        for name in ["bin/tool", "tool", "other"] {
            place.script(dir.join(name), "#!/bin/sh\necho ran\n");
        }
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": dir, "perms": write_and_execute()},
                {"action": "deny", "path": dir.join("kept"), "perms": CHANGES},
                {"action": "deny", "path": dir.join("kept-file"), "perms": CHANGES},
                {"action": "deny", "path": dir.join("bin"), "perms": ["execute"]},
                {"action": "deny", "path": dir.join("tool"), "perms": ["execute"]},
            ]),
        );
        let run = |text: &str| {
            place.run(&["--direct", "--workdir", dir.to_str().unwrap(), "-p", &policy], &["sh", "-c", text])
        };
        let before = snapshot(&dir);
        for (text, op, target) in [
            ("echo x >> kept/file", "fs.write", "kept/file"),
            ("touch kept/new", "fs.create", "kept/new"),
            ("rm -f kept/file", "fs.remove", "kept/file"),
            ("echo x >> kept-file", "fs.write", "kept-file"),
            ("mv plain kept/plain", "fs.create", "kept/plain"),
            ("./tool", "exec", "tool"),
            ("bin/tool", "exec", "bin/tool"),
        ] {
            let got = run(text);
            assert_ne!(got.code(), 0, "{text} must fail: {}", got.story());
            got.assert_denied(op, dir.join(target).to_str().unwrap());
            assert_eq!(snapshot(&dir), before, "{text} must change nothing");
        }
        let got = run("cat kept/file kept-file; ls kept; ./other; sh tool; echo more >> bin/tool; echo more >> tool");
        got.assert_ok();
        assert_eq!(got.stdout(), "texttextfile\nran\nran\n");
        run("mv kept elsewhere").assert_code(1);
        run("mv bin elsewhere").assert_code(1);
    }
}

#[test]
fn an_allowance_inside_a_denial_stays_denied() {
    for who in BOTH {
        let place = Place::new(who);
        let dir = place.dir("area");
        place.file(dir.join("closed/open/file"), "hidden");
        place.file(dir.join("beside"), "shown");
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": dir, "perms": ["read_file", "read_dir"]},
                {"action": "deny", "path": dir.join("closed")},
                {"action": "allow", "path": dir.join("closed/open"), "perms": ["read_file", "read_dir"]},
            ]),
        );
        let cat = |name: &str| place.run(&["-p", &policy], &["cat", dir.join(name).to_str().unwrap()]);
        assert_ne!(cat("closed/open/file").code(), 0);
        cat("beside").assert_ok();
    }
}

/// A denied path that does not exist: the policy is refused by name, or the path cannot be created. No stub is left.
// promise 1
#[test]
fn a_denied_path_that_does_not_exist_never_appears() {
    for who in BOTH {
        let place = Place::new(who);
        let dir = place.dir("area");
        place.file(dir.join("there"), "text");
        for (path, tries) in [
            ("later", &["touch later", "mkdir later", "ln -s x later", "mv there later", "ln there later"][..]),
            ("sub/later", &["mkdir sub && touch sub/later", "mkdir -p x && touch x/later && mv x sub"]),
            ("*.pem", &["touch a.pem", "mv there b.pem"]),
        ] {
            let policy = rules(
                &place,
                json!([
                    {"action": "allow", "path": dir, "perms": WRITE},
                    {"action": "deny", "path": dir.join(path)},
                ]),
            );
            for text in tries {
                let before = snapshot(&dir);
                let run =
                    place.run(&["--direct", "--workdir", dir.to_str().unwrap(), "-p", &policy], &["sh", "-c", text]);
                if run.code() == 125 {
                    assert_eq!(run.text("/error_kind"), "unsupported_policy", "{}", run.story());
                    assert!(run.text("/message").contains("fs.rules[1]"), "names the rule: {}", run.story());
                } else {
                    assert_ne!(run.code(), 0, "{text}: {}", run.story());
                }
                let mut after = snapshot(&dir);
                after.retain(|line| !line.contains("/area/x") && !line.contains("/area/sub "));
                let mut before = before;
                before.retain(|line| !line.contains("/area/sub "));
                let names = |set: &BTreeSet<String>| {
                    set.iter().map(|l| l.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
                };
                assert_eq!(names(&after), names(&before), "{text}: {}", run.story());
                for left in ["x", "sub"] {
                    let _ = fs::remove_dir_all(dir.join(left));
                }
            }
        }
        // Control: a path without a deny rule can be created.
        let policy = rules(&place, json!([{"action": "allow", "path": dir, "perms": WRITE}]));
        place.run(&["--direct", "--workdir", dir.to_str().unwrap(), "-p", &policy], &["touch", "later"]).assert_ok();
    }
}

// promise 1
#[test]
fn a_run_leaves_the_host_as_it_was() {
    for who in BOTH {
        let place = Place::new(who);
        for name in
            ["home/project/src/main.c", "home/project/.git/config", "home/.ssh/id", "home/.bashrc", "elsewhere/file"]
        {
            place.file(name, name);
        }
        symlink("../elsewhere", place.home.join("link")).unwrap();
        let before = snapshot(&place.home);
        let git = place.project.join(".git");
        let policies: [&[&str]; 5] = [
            &[],
            &["--deny-read", git.to_str().unwrap()],
            &["--read", "~/.bashrc"],
            &["--write", ".", "--deny-write", git.to_str().unwrap()],
            &["--write", ".", "--deny-read", git.to_str().unwrap(), "--read", "~/link"],
        ];
        for flags in policies {
            place.sh(flags, "ls -laR . >/dev/null 2>&1; cat .git/config 2>/dev/null; cd /tmp; touch x").assert_ok();
            assert_eq!(snapshot(&place.home), before, "{flags:?}");
        }
        place.sh(&["-p", "strict", "-p", "default"], "true").assert_code(126);
        assert_eq!(snapshot(&place.home), before);
    }
}

#[test]
fn links_in_rule_paths_are_followed() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("real/dir/file", "text");
        place.file("real/hidden/file", "hidden");
        symlink(place.root.join("real"), place.root.join("link")).unwrap();
        let through = place.root.join("link/dir/file").display().to_string();
        let direct = place.root.join("real/dir/file").display().to_string();
        let link = place.root.join("link");
        let policy = rules(&place, json!([{"action": "allow", "path": link, "perms": ["read_file", "read_dir"]}]));
        for path in [&through, &direct] {
            place.run(&["-p", &policy], &["cat", path]).assert_ok();
            assert_ne!(place.run(&[], &["cat", path]).code(), 0);
        }
        // A denial through a link applies to the link's target.
        let real = place.root.join("real");
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": real, "perms": ["read_file", "read_dir"]},
                {"action": "deny", "path": link.join("hidden")},
            ]),
        );
        assert_ne!(place.run(&["-p", &policy], &["cat", real.join("hidden/file").to_str().unwrap()]).code(), 0);
        place.run(&["-p", &policy], &["cat", &direct]).assert_ok();
    }
}

/// A link planted by an earlier run must not widen a later run's grant.
// promise 1
#[test]
fn a_link_planted_in_a_writable_place_does_not_lead_a_grant_away() {
    for who in BOTH {
        let place = Place::new(who);
        let secret = place.file("home/secret/key", "private");
        place.sh(&["--write", "."], "ln -s ../secret data").assert_ok();
        let run = place.sh(&["--write", ".", "--read", "data"], "cat data/key");
        assert_ne!(run.code(), 0, "{}", run.story());
        assert!(!run.stdout().contains("private"));
        place.run(&["--read", secret.to_str().unwrap()], &["cat", secret.to_str().unwrap()]).assert_ok();
    }
}

#[test]
fn variables_and_wildcards_in_rule_paths() {
    for who in BOTH {
        let place = Place::new(who);
        for name in [
            "home/one/file",
            "home/two/file",
            "home/project/build/a.txt",
            "home/project/build/a.pem",
            "home/project/x/deep/k.pem",
        ] {
            place.file(name, "text");
        }
        let reads = json!(["read_file", "read_dir"]);
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": "~/one", "perms": reads},
                {"action": "allow", "path": "$HOME/t*", "perms": reads},
                {"action": "deny", "path": "$WORKSPACE/**/*.pem"},
            ]),
        );
        let cat = |name: &str| place.run(&["-p", &policy], &["cat", place.home.join(name).to_str().unwrap()]);
        for name in ["one/file", "two/file", "project/build/a.txt"] {
            cat(name).assert_ok();
        }
        for name in ["project/build/a.pem", "project/x/deep/k.pem"] {
            assert_ne!(cat(name).code(), 0, "{name}");
        }
        let plain = |name: &str| place.run(&[], &["cat", place.home.join(name).to_str().unwrap()]).code();
        assert_eq!((plain("project/build/a.pem"), plain("one/file")), (0, 1), "without the rules");
    }
}

// promise 1
#[test]
fn the_parent_of_a_denied_path_stays_where_it_is() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/a/b/c/secret", "private");
        place.file("home/project/a/b/other", "text");
        let denied = place.project.join("a/b/c/secret");
        let flags = ["--write", ".", "--deny-read", denied.to_str().unwrap()];
        for text in [
            "mv a/b/c z",
            "mv a/b z",
            "mv a z",
            "rm -rf a/b/c",
            "mkdir fake && python3 -c 'import ctypes; l=ctypes.CDLL(None); exit(l.renameat2(-100, b\"fake\", -100, b\"a\", 2) != 0)'",
        ] {
            let run = place.sh(
                &flags,
                &format!("{text} 2>/dev/null; cat z/secret z/c/secret z/b/c/secret fake/b/c/secret 2>/dev/null"),
            );
            assert!(!run.stdout().contains("private"), "{text}: {}", run.story());
            assert_eq!(fs::read_to_string(&denied).unwrap(), "private", "{text}");
        }
        place.sh(&flags, "mv a/b/other a/b/renamed && mkdir -p p/q && mv p r").assert_ok();
    }
}

// promise 1
#[test]
fn hard_links_do_not_lead_out_of_a_denial() {
    for who in BOTH {
        let place = Place::new(who);
        let kept = place.file("home/project/kept/file", "text");
        let flags = ["--write", ".", "--deny-write", kept.parent().unwrap().to_str().unwrap()];
        let run = place.sh(&flags, "ln kept/file beside && echo x >> beside");
        assert_ne!(run.code(), 0, "{}", run.story());
        assert_eq!(fs::read_to_string(&kept).unwrap(), "text");
        place.sh(&flags, "echo x > new && ln new newer && cat newer").assert_ok();
    }
}

#[test]
fn a_project_below_tmp_is_a_project_like_any_other() {
    for who in BOTH {
        let place = Place::new(who);
        let dir = PathBuf::from(format!("/tmp/cofferdam-test-{}-tmp-{}", std::process::id(), unique()));
        place.dir(&dir);
        place.file(dir.join("sub/file"), "text");
        let go = |flags: &[&str], text: &str| {
            let mut all = vec!["--read-only", "--workdir", dir.to_str().unwrap()];
            all.extend(flags);
            place.run(&all, &["sh", "-c", text])
        };
        let read = go(&[], "cat sub/file && ls /tmp && touch /tmp/private");
        let denied = go(&[], "echo x > sub/new");
        let written = go(&["--write", dir.to_str().unwrap()], "echo new > sub/new; cd /tmp; echo t > t; cat t");
        let hidden = go(&["--deny-read", dir.join("sub").to_str().unwrap()], "cat sub/file");
        let found = fs::read_to_string(dir.join("sub/new"));
        let others = fs::read_dir(&dir).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        read.assert_ok();
        assert_eq!(read.stdout(), format!("text{}\n", dir.file_name().unwrap().to_string_lossy()));
        assert_ne!(denied.code(), 0);
        denied.assert_denied("fs.create", dir.join("sub/new").to_str().unwrap());
        written.assert_ok();
        assert_eq!(found.ok().as_deref(), Some("new\n"), "{}", written.story());
        assert_ne!(hidden.code(), 0);
        assert_eq!(others, 1);
        assert!(!Path::new("/tmp/private").exists());
    }
}

#[test]
fn the_home_directory_is_not_a_project() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/.netrc", "secret");
        place.file("home/notes", "text");
        for dir in [&place.home, &place.root] {
            let dir = dir.to_str().unwrap();
            let run = place.run(
                &["--read-only", "--workdir", dir],
                &["sh", "-c", "pwd; find . -name .netrc -o -name notes; cat ~/.netrc"],
            );
            assert_eq!(run.stdout(), format!("{dir}\n"), "{}", run.story());
            assert_ne!(run.code(), 0);
        }
        let notes = place.home.join("notes").display().to_string();
        let run =
            place.run(&["--read-only", "--workdir", place.home.to_str().unwrap(), "--read", &notes], &["cat", "notes"]);
        assert_eq!(run.assert_ok().stdout(), "text");
    }
}

#[test]
fn flags_grant_and_deny() {
    for who in BOTH {
        let place = Place::new(who);
        for name in ["outside/file", "outside/sub/file", "home/project/file", "home/project/sub/file"] {
            place.file(name, "text");
        }
        let outside = place.root.join("outside").display().to_string();
        let file = format!("{outside}/file");
        for flag in ["--read", "--allow-read"] {
            place.run(&[flag, &outside], &["cat", &file]).assert_ok();
            place.run(&[flag, &file], &["cat", &file]).assert_ok();
            assert_ne!(place.run(&[flag, &outside], &["touch", &file]).code(), 0);
        }
        for flag in ["--write", "--allow-write"] {
            place.run(&[flag, &outside], &["sh", "-c", &format!("echo more >> {file}")]).assert_ok();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "textmore\nmore\n");
        let run = place.sh(
            &["--direct", "--write", ".", "--deny-write", "sub"],
            "echo x > file && cat sub/file && echo x > sub/file",
        );
        assert_ne!(run.code(), 0);
        assert_eq!(fs::read_to_string(place.project.join("sub/file")).unwrap(), "text");
        assert_eq!(fs::read_to_string(place.project.join("file")).unwrap(), "x\n");
        assert_ne!(place.sh(&["--deny-read", "sub"], "cat sub/file").code(), 0);
        assert_ne!(place.sh(&["--read", ".", "--deny-read", "sub"], "cat sub/file").code(), 0);
        place.sh(&["--deny-read", "sub"], "cat file").assert_ok();
        place.sh(&["--write", "file,sub"], "echo y > file; echo y > sub/new").assert_ok();
        assert_eq!(place.run(&["--deny-exec", "wc"], &["sh", "-c", "wc </dev/null"]).code(), 126);
        assert_eq!(place.run(&["--write", ""], &["true"]).code(), 2);
    }
}

#[test]
fn what_is_written_belongs_to_the_caller() {
    for who in BOTH {
        let place = Place::new(who);
        let owner = if who == As::User { USER } else { 0 };
        place
            .sh(
                &["--direct", "--write", "."],
                "umask 022; mkdir d; echo x > d/f; ln -s f d/l; mkfifo p; chmod 600 d/f; touch -d @1 d",
            )
            .assert_ok();
        for name in ["d", "d/f", "d/l", "p"] {
            let meta = fs::symlink_metadata(place.project.join(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (owner, owner), "{name}");
        }
        assert_eq!(fs::metadata(place.project.join("d/f")).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(place.project.join("d")).unwrap().mtime(), 1);
        // Inside, the files also appear as the user's own.
        let run = place.sh(&["--direct", "--write", "."], "stat -c %u:%g d/f; id -u; id -g");
        let words: Vec<String> = run.stdout().split_whitespace().map(String::from).collect();
        assert_eq!(words[0], format!("{}:{}", words[1], words[2]));
        // No set-id file is created on the host.
        place.sh(&["--direct", "--write", "."], "cp /usr/bin/true t; chmod 6755 t; true").assert_ok();
        let mode = fs::metadata(place.project.join("t")).unwrap().permissions().mode();
        if who == As::Root {
            assert_eq!(mode & 0o6000, 0, "a set-id file of root's was made on the host: {mode:o}");
        }
    }
}

/// Result of `policy explain` for a path: action by permission.
fn explained(place: &Place, policy: &str, path: &Path) -> BTreeMap<String, String> {
    let got = crate::support::to_the_end(place.cofferdam(["policy", "explain", "--json", "-p", policy]).arg(path), b"");
    let report: Value =
        serde_json::from_slice(&got.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&got.stderr)));
    let mut all = BTreeMap::new();
    for row in report["decisions"].as_array().unwrap() {
        for operation in row["operations"].as_array().unwrap() {
            let operation = operation.as_str().unwrap();
            let stem = operation.strip_suffix('*');
            let names = PERMS.iter().filter(|p| **p == operation || stem.is_some_and(|s| p.starts_with(s)));
            all.extend(names.map(|p| (p.to_string(), row["action"].as_str().unwrap().to_owned())));
        }
    }
    all
}

// promise 10
#[test]
fn what_is_explained_is_what_is_enforced() {
    const TRY: &str = r#"
import os, subprocess, sys
def works(step):
    try: step(); return True
    except OSError: return False
for path in sys.argv[1:]:
    print('read_file', works(lambda: os.close(os.open(path, os.O_RDONLY))))
    print('write_file', works(lambda: os.close(os.open(path, os.O_WRONLY))))
    print('truncate', works(lambda: os.truncate(path, os.stat(path).st_size)))
    print('execute', works(lambda: subprocess.run([path])))
"#;
    for who in BOTH {
        let place = Place::new(who);
        let dir = place.dir("area");
        let names = ["open", "hidden", "kept/file", "bin/tool", "deep/er/file", "deep/er/no.pem", "warned"];
        for name in names {
            place.script(dir.join(name), "#!/bin/sh\nexit 0\n");
        }
        let outside = place.script("outside", "#!/bin/sh\n");
        symlink(dir.join("hidden"), dir.join("link")).unwrap();
        let policy = rules(
            &place,
            json!([
                {"action": "allow", "path": dir, "perms": write_and_execute()},
                {"action": "deny", "path": dir.join("hidden")},
                {"action": "deny", "path": dir.join("kept"), "perms": ["write_file", "truncate", "refer", "make_*", "remove_*"]},
                {"action": "deny", "path": dir.join("bin"), "perms": ["execute"]},
                {"action": "warn", "path": dir.join("warned"), "perms": ["write_file"]},
                {"action": "deny", "path": dir.join("deep/er/no.pem")},
            ]),
        );
        let mut paths: Vec<PathBuf> = names.iter().map(|n| dir.join(n)).collect();
        paths.extend([outside, dir.join("link"), PathBuf::from("/usr/bin/true"), PathBuf::from("/etc/passwd")]);
        let words: Vec<&str> = paths.iter().map(|p| p.to_str().unwrap()).collect();
        let mut command = vec!["/usr/bin/python3", "-c", TRY];
        command.extend(&words);
        let run = place.run(&["-p", &policy], &command);
        run.assert_ok();
        let out = run.stdout();
        let mut lines = out.lines();
        for path in &paths {
            let actions = explained(&place, &policy, path);
            for _ in 0..4 {
                let (perm, works) = lines.next().unwrap().split_once(' ').unwrap();
                let allowed = matches!(actions[perm].as_str(), "allow" | "warn");
                // No rule makes /etc/passwd executable.
                if perm == "execute" && path.ends_with("etc/passwd") {
                    continue;
                }
                assert_eq!(allowed, works == "True", "{perm} of {}: said {actions:?}; {}", path.display(), run.story());
            }
        }
    }
}
