//! Runs in a workspace: the command changes files freely, the base stays unchanged to the byte, and the changes are
//! kept, continued or dropped on request.

use crate::support::left::mounts;
use crate::support::{As, BOTH, Place, Run, USER, binary, to_the_end};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every property of a directory tree that a change could alter, times and owners included.
fn state(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let m = fs::symlink_metadata(&path).unwrap();
        let bytes = if m.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let line = format!(
            "{:o} {}:{} {} {} {}.{} {:?} {}",
            m.mode(),
            m.uid(),
            m.gid(),
            m.nlink(),
            m.ino(),
            m.mtime(),
            m.mtime_nsec(),
            fs::read_link(&path).ok(),
            String::from_utf8_lossy(&bytes)
        );
        if m.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().flatten().map(|e| e.path()));
        }
        found.insert(path, line);
    }
    found
}

fn layers(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.state().join("layers")).into_iter().flatten().flatten();
    entries.map(|e| e.path()).collect()
}

fn sandbox(run: &Run) -> String {
    let id = run.assert_ok().text("/sandbox");
    assert!(id.starts_with("sbx_"), "{}", run.story());
    id
}

/// `cofferdam exec ID WORDS…`.
fn exec(place: &Place, id: &str, words: &[&str]) -> Run {
    let status = place.file(format!("status-{}", crate::support::unique()), "");
    let mut command = place.cofferdam(["exec", "--status-file"]);
    let output = to_the_end(command.arg(&status).arg(id).args(words), b"");
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    Run { output, outcome }
}

fn furnished(who: As) -> Place {
    let place = Place::new(who);
    for name in ["a", "b", "sub/c", "sub/deep/d", "keep/e"] {
        place.file(place.project.join(name), format!("text of {name}\n"));
    }
    symlink("a", place.project.join("link")).unwrap();
    fs::hard_link(place.project.join("a"), place.project.join("twin")).unwrap();
    place
}

/// A file with two hard links is written through neither.
// promise 12
#[test]
fn the_command_changes_what_it_likes_and_the_directory_stays() {
    let text = r#"
        set -e
        echo more >> a; echo new > new; mkdir -p made/deep; echo x > made/deep/x
        rm b; rm -r sub; mkdir sub; echo again > sub/c
        mv keep kept; mv kept/e kept/f; ln a other; echo linked >> other; echo through >> link; echo two >> twin
        chmod 700 new; touch -d @1 new; ln -s nowhere dangling; mkfifo pipe
        test "$(cat a)" = "$(cat other)"; test ! -e b; test ! -e sub/deep; cat kept/f; pwd"#;
    for who in BOTH {
        let place = furnished(who);
        let (before, mounted) = (state(&place.project), mounts(&place));
        let run = place.sh(&[], text);
        assert_eq!(run.assert_ok().stdout(), format!("text of keep/e\n{}\n", place.project.display()), "{who:?}");
        assert_eq!(run.denials(), [], "{}", run.story());
        assert_eq!(state(&place.project), before, "{who:?}: the directory is as it was");
        assert_eq!(mounts(&place), mounted, "{who:?}: nothing is mounted on the host");
        // On disk every file belongs to the caller, under whichever uid the guest ran.
        let owner = if who == As::User { USER } else { 0 };
        let [layer] = &layers(&place)[..] else { panic!("one layer: {:?}", layers(&place)) };
        for path in state(&layer.join("up")).keys() {
            let found = fs::symlink_metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid()), (owner, owner), "{who:?}: {}", path.display());
        }
        assert_eq!(fs::metadata(layer).unwrap().mode() & 0o777, 0o700);
        // A second command in the sandbox finds the changes of the first.
        let id = sandbox(&run);
        let seen =
            exec(&place, &id, &["sh", "-c", "cat a other sub/c kept/f; ls; stat -c %a:%Y new; readlink dangling"]);
        let a = "text of a\nmore\nlinked\nthrough\n";
        let names = "a\ndangling\nkept\nlink\nmade\nnew\nother\npipe\nsub\ntwin\n";
        assert_eq!(
            seen.assert_ok().stdout(),
            format!("{a}{a}again\ntext of keep/e\n{names}700:1\nnowhere\n"),
            "{who:?}: {}",
            seen.story()
        );
    }
}

// promise 12
#[test]
fn tools_work_inside_as_outside() {
    const SQLITE: &str = "
import sqlite3, mmap
db = sqlite3.connect('data.db'); db.execute('pragma journal_mode=wal'); db.execute('create table t(a)')
db.execute('insert into t values(42)'); db.commit(); print(db.execute('select a from t').fetchone()[0]); db.close()
with open('a', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0); m[0:4] = b'TEXT'; m.flush(); m.close()
print(open('a').read(4))";
    const SOCKET: &str = "
import os, socket
s = socket.socket(socket.AF_UNIX); s.bind('own.sock'); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect('own.sock'); s.accept()[0].send(b'heard'); print(c.recv(9).decode())
os.rename('own.sock', 'sub/moved.sock'); socket.socket(socket.AF_UNIX).connect('sub/moved.sock')
import fcntl
f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); print('locked')";
    for who in BOTH {
        let place = furnished(who);
        let git = "git init -q . && git add . && git -c user.name=n -c user.email=e commit -qm first";
        assert!(place.outside("sh").args(["-c", git]).status().unwrap().success());
        let before = state(&place.project);
        assert_eq!(place.python(&["--rm"], SQLITE).assert_ok().stdout(), "42\nTEXT\n", "{who:?}");
        assert_eq!(place.python(&["--rm"], SOCKET).assert_ok().stdout(), "heard\nlocked\n", "{who:?}");
        let text = "echo more >> a && git -c user.name=n -c user.email=e commit -qam second && git checkout -q -b side && \
                    git stash list && git log --format=%s && git status --porcelain && git gc -q && git fsck";
        let run = place.sh(&[], text);
        assert_eq!(run.assert_ok().stdout(), "second\nfirst\n", "{who:?}: {}", run.story());
        let id = sandbox(&run);
        assert_eq!(run.outcome["changes"]["modified"], 1, "{who:?}: what git keeps for itself is no change");
        assert_eq!(exec(&place, &id, &["git", "log", "--format=%s"]).assert_ok().stdout(), "second\nfirst\n");
        // A daemon counts changes by a diff, which reads commits made inside by a scratch directory in `.git` and removes it again.
        let without_top = |mut files: BTreeMap<_, _>| files.remove(&place.project.join(".git")).map(|_| files);
        assert_eq!(without_top(state(&place.project)), without_top(before), "{who:?}: the repository is as it was");
        // A program built inside runs there, also in the next command.
        let build = "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); }' > p.c && cc p.c -o p && ./p";
        let run = place.sh(&[], build);
        assert_eq!(run.assert_ok().stdout(), "built\n", "{who:?}: {}", run.story());
        assert_eq!(exec(&place, &sandbox(&run), &["./p"]).assert_ok().stdout(), "built\n", "{who:?}");
        place.run(&[], &["./p"]).assert_code(127);
    }
}

// promise 12
#[test]
fn what_is_kept_is_as_much_as_was_asked_for() {
    for who in BOTH {
        let place = furnished(who);
        let git = "git init -q . && git add . && git -c user.name=n -c user.email=e commit -qm first; touch a";
        assert!(place.outside("sh").args(["-c", git]).status().unwrap().success());
        // No change: reading, a private file, a change that was undone, a new mtime alone.
        for text in ["cat a; ls", "touch /tmp/x", "echo x > x; rm x", "echo text of a > a", "git status", "exit 3"] {
            let run = place.sh(&[], text);
            assert_eq!(run.text("/sandbox"), "", "{who:?} {text}: {}", run.story());
            assert_eq!(layers(&place), [] as [PathBuf; 0], "{who:?} {text}");
        }
        assert!(!place.state().join("store.db").exists(), "{who:?}: no record of nothing");
        let run = place.sh(&["--rm"], "echo x > x; cat x");
        assert_eq!((run.assert_ok().stdout().as_str(), layers(&place).len()), ("x\n", 0), "{who:?}");
        assert_eq!(run.outcome["changes"]["added"], 1);
        for (text, changes) in [
            ("echo x > x; echo y > y; echo more >> a; rm b", [2, 1, 1]),
            ("mkdir empty", [1, 0, 0]),
            ("chmod 700 sub", [0, 1, 0]),
            ("rm a; mkdir a", [0, 1, 0]),
            ("rm -r sub; mkdir sub", [0, 0, 2]),
            ("ln -sfn b link", [0, 1, 0]),
            ("exec 3>x; kill -9 $$", [1, 0, 0]),
        ] {
            let run = place.sh(&[], text);
            let counts = ["added", "modified", "deleted"].map(|k| run.outcome["changes"][k].as_u64().unwrap());
            assert_eq!(counts, changes, "{who:?} {text}: {}", run.story());
            assert!(run.text("/sandbox").starts_with("sbx_"), "{who:?} {text}");
        }
        // A commit changes no file of the workspace, and is kept.
        let run = place.sh(&[], "git -c user.name=n -c user.email=e commit -q --allow-empty -m empty");
        assert!(run.text("/sandbox").starts_with("sbx_"), "{who:?}: {}", run.story());
        // A named sandbox is kept without changes, and found by its name.
        let run = place.sh(&["--name", "mine", "--ttl", "1h"], "true");
        let id = sandbox(&run);
        exec(&place, "mine", &["sh", "-c", "echo x > x"]).assert_ok();
        assert_eq!(exec(&place, &id[..12], &["cat", "x"]).assert_ok().stdout(), "x\n", "{who:?}");
        let taken = place.sh(&["--name", "mine"], "true");
        assert_eq!(taken.code(), 125, "{who:?}: {}", taken.story());
        assert_eq!(taken.text("/error_kind"), "conflict");
        for name in ["", "-x", "a b", "sbx_1", "../x"] {
            assert_eq!(place.run(&[&format!("--name={name}")], &["true"]).code(), 2, "{name:?}");
        }
    }
}

/// A line on stderr says what there is to review, also in a pipe: a caller without it would take the changes for
/// landed.
#[test]
fn the_end_is_told_in_one_line() {
    let place = furnished(As::User);
    let stderr_of = |flags: &[&str], text: &str| {
        let mut command = place.cofferdam(["run"]);
        String::from_utf8(to_the_end(command.args(flags).args(["-c", text]), b"").stderr).unwrap()
    };
    let line = stderr_of(&["-v"], "echo x > x; rm a");
    assert!(line.contains("2 files changed in sbx_") && line.contains("(kept 7 days)"), "{line}");
    assert!(line.contains("diff | approve | rm sbx_") && line.lines().count() == 1, "{line}");
    assert!(stderr_of(&["-v", "--ttl", "36h"], "echo x > x").contains("1 file changed in sbx_"));
    assert!(stderr_of(&[], "echo x > x").contains("1 file changed in sbx_"));
    assert_eq!(stderr_of(&["-q"], "echo x > x"), "");
    assert_eq!(stderr_of(&["--json"], "echo x > x"), "");
    assert_eq!(stderr_of(&["-v"], "true"), "");
    assert_eq!(stderr_of(&["-v", "--rm"], "echo x > x"), "");
    assert_eq!(stderr_of(&["-v", "--read-only"], "true"), "");
}

#[test]
fn other_modes_are_chosen_by_name() {
    for who in BOTH {
        let place = furnished(who);
        let other = place.dir("home/other");
        let run = place.sh(&["-w", other.to_str().unwrap()], "pwd; echo x > x");
        assert_eq!(run.assert_ok().stdout(), format!("{}\n", other.display()), "{who:?}");
        assert!(run.text("/sandbox").starts_with("sbx_") && !other.join("x").exists());
        let run = place.sh(&["--workdir", "sub"], "pwd; echo x > ../x");
        assert_eq!(run.assert_ok().stdout(), format!("{}/sub\n", place.project.display()), "{who:?}");
        assert!(run.text("/sandbox").starts_with("sbx_"));

        assert_ne!(place.sh(&["--read-only"], "echo x > a").code(), 0, "{who:?}");
        let run = place.sh(&["--read-only", "-p", "workspace-write"], "echo x > a");
        assert_eq!((run.code(), run.text("/error_kind").as_str()), (2, "invalid_request"), "{}", run.story());
        // The flag contradicts the policy, as above; no command was denied.
        let run = place.sh(&["--direct"], "echo x > a");
        assert_eq!((run.code(), run.text("/error_kind").as_str()), (2, "invalid_request"), "{}", run.story());
        assert!(run.text("/hint").contains("workspace-write"), "{}", run.story());
        place.sh(&["--direct", "-p", "workspace-write"], "echo direct > direct").assert_ok();
        assert_eq!(fs::read_to_string(place.project.join("direct")).unwrap(), "direct\n");
        // A policy without write access denies changes in a workspace as well.
        assert_ne!(place.sh(&["-p", "read-only"], "echo x > a").code(), 0, "{who:?}");
        // A grant outside the base reaches the host; one inside it does not.
        let flags = ["--write", other.to_str().unwrap(), "--write", "sub"];
        place.sh(&flags, "echo out > ../other/file; echo in > sub/file").assert_ok();
        assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "out\n");
        assert!(!place.project.join("sub/file").exists(), "{who:?}");
        // Contradictory modes and empty or invalid values are refused.
        assert_eq!(place.sh(&["--read-only", "--direct"], "true").code(), 2);
        assert_eq!(place.sh(&["--rm", "--keep"], "true").code(), 2);
        assert_eq!(place.sh(&["-w", ""], "true").code(), 2);
        assert_eq!(place.sh(&["--ttl", "soon"], "true").code(), 2);
    }
}

// promise 12
#[test]
fn the_home_directory_wants_a_choice() {
    for who in BOTH {
        let place = furnished(who);
        for dir in [place.home.as_path(), &place.root, Path::new("/")] {
            let run = |flags: &[&str]| {
                place.cofferdam(["run"]).args(flags).args(["-c", "pwd"]).current_dir(dir).output().unwrap()
            };
            let refused = run(&[]);
            let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{who:?} {}: {stderr}", dir.display());
            for choice in ["-w DIR", "--read-only", "--direct"] {
                assert!(stderr.contains(choice), "{stderr}");
            }
            assert!(run(&["--read-only"]).status.success(), "{who:?}");
            let chosen = run(&["-w", place.project.to_str().unwrap()]);
            assert_eq!(chosen.stdout, format!("{}\n", place.project.display()).as_bytes(), "{who:?}");
        }
        // In the guest's private directory there is no base to work on.
        let own = place.cofferdam(["run", "--", "pwd"]).current_dir("/tmp").output().unwrap();
        assert!(own.status.success() && own.stdout == b"/tmp\n", "{who:?}: {own:?}");
        assert_eq!(layers(&place), [] as [PathBuf; 0]);
    }
}

/// Regression: a run started in /tmp saw all of the host's files there, and could write none.
// promise 1
#[test]
fn in_tmp_the_guest_has_its_own_unless_it_is_named() {
    for who in BOTH {
        let place = furnished(who);
        let file = place.file(format!("/tmp/cofferdam-test-{}-{who:?}", std::process::id()), "of the host");
        let name = file.file_name().unwrap().to_str().unwrap();
        let there = |flags: &[&str], text: &str| {
            let mut command = place.cofferdam(["run"]);
            command.args(flags).args(["-c", text, "--", name]).current_dir("/tmp").output().unwrap()
        };
        let own = there(&["-v"], "echo x > made && cat \"$1\"");
        let stderr = String::from_utf8_lossy(&own.stderr).into_owned();
        assert!(!own.status.success() && own.stdout.is_empty(), "{who:?}: {own:?}");
        assert!(
            stderr.contains("belongs to the guest inside") && stderr.contains("is hidden inside"),
            "{who:?}: {stderr}"
        );
        assert!(there(&[], "echo x > made && cat made").status.success(), "{who:?}: it can be written to");
        let named = there(&["-w", "/tmp", "--rm"], "echo changed > \"$1\" && cat \"$1\"");
        assert_eq!(named.stdout, b"changed\n", "{who:?}: {named:?}");
        let seen = there(&["--read-only"], "cat \"$1\"");
        assert_eq!(seen.stdout, b"of the host", "{who:?}: {seen:?}");
        assert_eq!(fs::read(&file).unwrap(), b"of the host");
        assert!(!Path::new("/tmp/made").exists());
        fs::remove_file(&file).unwrap();
    }
}

// promise 12
#[test]
fn a_workspace_and_our_own_state_never_hold_each_other() {
    for who in BOTH {
        let place = furnished(who);
        let state = place.dir(place.project.join("inside/state"));
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&state, place.home.join("alias")).unwrap();
        let run = |at: &Path, state: &Path| {
            place.cofferdam(["run", "-c", "echo x > x"]).env("COFFERDAM_STATE", state).current_dir(at).output().unwrap()
        };
        for (at, state) in [
            (place.project.clone(), state.clone()),
            (place.project.clone(), place.home.join("alias")),
            (state.clone(), state.clone()),
            (place.dir(state.join("below/deep")), state.clone()),
        ] {
            let refused = run(&at, &state);
            let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{who:?}: {stderr}");
            assert!(stderr.contains("COFFERDAM_STATE"), "{stderr}");
        }
        assert!(run(&place.project, &place.state()).status.success(), "control");
        // An unusable state directory is reported with alternatives, and no command runs.
        let shut = place.dir("home/shut");
        fs::set_permissions(&shut, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = run(&place.project, &shut);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(125) && stderr.contains("--read-only"), "{who:?}: {stderr}");
    }
}

// promise 12
#[test]
fn denials_hold_in_a_workspace() {
    for who in BOTH {
        let place = furnished(who);
        place.file(place.project.join(".env"), "TOKEN=secret");
        let hidden = ["--deny-read", ".env"];
        for text in [
            "cat .env",
            "mv .env x && cat x",
            "ln .env x && cat x",
            "cp .env x",
            "rm .env",
            "echo x > .env",
            "cat < /proc/self/root$PWD/.env",
        ] {
            let run = place.sh(&hidden, text);
            assert_ne!(run.code(), 0, "{who:?} {text}: {}", run.story());
            assert!(!run.stdout().contains("secret"), "{who:?} {text}");
        }
        let kept = ["--deny-write", "sub"];
        for text in ["echo x > sub/c", "rm -r sub", "mv sub x", "touch sub/new", "rm sub/deep/d", "chmod 777 sub/c"] {
            let run = place.sh(&kept, text);
            assert_ne!(run.code(), 0, "{who:?} {text}: {}", run.story());
            assert!(!run.denials().is_empty(), "{who:?} {text}: {}", run.story());
        }
        let run = place.sh(&kept, "cat sub/c && echo x > a && echo y > keep/new");
        assert_eq!(run.assert_ok().stdout(), "text of sub/c\n");
        // A denial also covers a file that exists only in the workspace.
        let id =
            sandbox(&place.sh(&[], "echo TOKEN=made > made.env; printf '#!/bin/sh\\necho ran' > tool; chmod 755 tool"));
        let run = exec(&place, &id, &["--deny-read", "made.env", "cat", "made.env"]);
        assert_ne!(run.code(), 0, "{who:?}: {}", run.story());
        assert!(!run.stdout().contains("made"));
        assert_eq!(exec(&place, &id, &["--deny-exec", "tool", "./tool"]).code(), 126, "{who:?}");
        assert_eq!(exec(&place, &id, &["./tool"]).assert_ok().stdout(), "ran\n", "{who:?}");
        // A denied name that does not exist yet stays hidden when the host creates it.
        let mut late = place.cofferdam(["run", "--deny-read", "later", "--deny-read", "sub/later"]);
        late.args(["-c", "echo ready; read x; cat later sub/later 2>/dev/null; ls; echo mine > other; cat other"]);
        let mut late = late.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::io::Read::read_exact(late.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        place.file(place.project.join("later"), "SECRET");
        place.file(place.project.join("sub/later"), "SECRET");
        std::io::Write::write_all(late.stdin.as_mut().unwrap(), b"\n").unwrap();
        let output = late.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && stdout.ends_with("mine\n"), "{who:?}: {stdout}");
        assert!(!stdout.contains("SECRET") && !stdout.contains("later"), "{who:?}: {stdout}");
    }
}

/// Under a list of allowed programs, a workspace is no way around the list, and a listed program in it runs.
// promise 12
#[test]
fn listed_programs_are_listed_in_a_workspace_too() {
    for who in BOTH {
        let place = furnished(who);
        crate::support::copy_program("/usr/bin/id", place.project.join("tool"));
        crate::support::copy_program("/usr/bin/id", place.project.join("unlisted"));
        let python = fs::canonicalize("/usr/bin/python3").unwrap();
        let policy = place.policy(serde_json::json!({"version": 1, "extends": ["default"],
            "defaults": {"exec": "deny"}, "exec": {"rules": [
                {"action": "allow", "path": python}, {"action": "allow", "path": "$WORKSPACE/tool"}]}}));
        let go = |text: &str| place.run(&["-p", &policy], &[python.to_str().unwrap(), "-c", text]);
        assert!(
            go("import subprocess; print(subprocess.run(['./tool', '-u'], capture_output=True).returncode)")
                .assert_ok()
                .stdout()
                .starts_with('0')
        );
        for text in [
            "import os; os.execv('./unlisted', ['id'])",
            "import os, shutil; shutil.copy('tool', 'made'); os.execv('./made', ['id'])",
            "import os; os.rename('tool', 'x'); os.rename('unlisted', 'tool'); os.execv('./tool', ['id'])",
            "open('tool', 'r+b').write(b'#!/bin/sh')",
        ] {
            let run = go(text);
            assert!(run.code() != 0 && !run.stdout().contains("uid="), "{who:?} {text}: {}", run.story());
        }
        go("open('a', 'w').write('free')").assert_ok();
    }
}

#[test]
fn a_sandbox_is_gone_on_with_under_its_own_rules() {
    for who in BOTH {
        let place = furnished(who);
        let outside = place.file("outside/secret", "SECRET");
        let flags = ["--deny-read", "keep", "-m", "64m", "--limit", "files=50"];
        // A memory limit needs control groups, which an ordinary user has only by delegation.
        let flags = if who == As::Root { &flags[..] } else { &["--deny-read", "keep", "--limit", "files=50"] };
        let id = sandbox(&place.sh(flags, "echo 1 > n"));
        assert_eq!(exec(&place, &id, &["cat", "n"]).assert_ok().stdout(), "1\n", "{who:?}");
        assert_ne!(exec(&place, &id, &["cat", "keep/e"]).code(), 0, "{who:?}: its own denial holds");
        let over = exec(&place, &id, &["sh", "-c", "touch $(seq 60)"]);
        assert_eq!(over.text("/limit_kind"), "files", "{who:?}: {}", over.story());
        exec(&place, &id, &["sh", "-c", "rm -f $(seq 60)"]).assert_ok();
        // Flags of `exec` can only restrict.
        for flags in [
            &["--sandbox", &id, "--read", outside.to_str().unwrap()][..],
            &["--sandbox", &id, "-p", "workspace-write"],
            &["--sandbox", &id, "--net", "example.org"],
            &["--sandbox", &id, "--write", "/srv"],
        ] {
            let run = place.sh(flags, "true");
            assert_eq!((run.code(), run.text("/error_kind").as_str()), (2, "invalid_request"), "{}", run.story());
        }
        let wider = exec(&place, &id, &["--limit", "files=500", "sh", "-c", "touch $(seq 60)"]);
        assert_eq!(wider.text("/limit_kind"), "files", "{who:?}: {}", wider.story());
        exec(&place, &id, &["sh", "-c", "rm -f $(seq 60)"]).assert_ok();
        let narrower = exec(&place, &id, &["--deny-write", "n", "sh", "-c", "echo 2 > n"]);
        assert_ne!(narrower.code(), 0, "{who:?}");
        for dir in ["/", "..", "../../outside"] {
            let run =
                exec(&place, &id, &["--workdir", dir, "sh", "-c", "cat secret outside/secret ../outside/secret; true"]);
            assert!(!run.stdout().contains("SECRET"), "{who:?} {dir}: {}", run.story());
        }
        // The working directory is the caller's where it lies in the base, else the base.
        place.sh(&["--sandbox", &id], "mkdir only-inside; pwd").assert_ok();
        assert!(
            exec(&place, &id, &["--workdir", "only-inside", "pwd"]).assert_ok().stdout().ends_with("/only-inside\n")
        );
        let from = |dir: &Path| place.cofferdam(["exec", &id, "pwd"]).current_dir(dir).output().unwrap().stdout;
        assert_eq!(from(&place.project.join("sub")), format!("{}/sub\n", place.project.display()).as_bytes());
        assert_eq!(from(Path::new("/usr")), format!("{}\n", place.project.display()).as_bytes());
        // An unknown sandbox, and a base that was replaced by another directory.
        assert_eq!(exec(&place, "sbx_nowhere", &["true"]).text("/error_kind"), "not_found");
        fs::rename(&place.project, place.home.join("moved")).unwrap();
        place.dir(&place.project);
        let run = exec(&place, &id, &["--workdir", "/", "true"]);
        assert_eq!(run.text("/error_kind"), "conflict", "{who:?}: {}", run.story());
    }
}

#[test]
fn one_run_at_a_time_and_the_other_is_named() {
    for who in BOTH {
        let place = furnished(who);
        let id = sandbox(&place.sh(&["--keep"], "true"));
        let mut first = place.cofferdam(["exec", &id, "--", "sh", "-c", "echo ready; read x; echo kept > kept"]);
        let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        let refused = exec(&place, &id, &["true"]);
        assert_eq!((refused.code(), refused.text("/error_kind").as_str()), (125, "conflict"), "{}", refused.story());
        let message = refused.text("/message");
        assert!(message.contains("run_") && message.contains("pid"), "{message}");
        std::io::Write::write_all(first.stdin.as_mut().unwrap(), b"\n").unwrap();
        assert!(first.wait().unwrap().success());
        assert_eq!(exec(&place, &id, &["cat", "kept"]).assert_ok().stdout(), "kept\n", "{who:?}");
    }
}

/// A killed supervisor leaves no mount and no process; the changes stay, and the sandbox can be continued.
// promise 12
#[test]
fn a_killed_supervisor_leaves_only_the_changes() {
    for who in BOTH {
        let place = furnished(who);
        let mounted = mounts(&place);
        let before = state(&place.project);
        let id = sandbox(&place.sh(&["--keep"], "true"));
        let mark = format!("{}", 200_000 + crate::support::unique() + std::process::id());
        let text = format!("echo x > made; setsid sleep {mark} & echo ready; sleep {mark}");
        for words in [vec!["exec", &id, "--", "sh", "-c", &text], vec!["run", "--", "sh", "-c", &text]] {
            let mut child = Command::new("setpriv");
            if who == As::User {
                child.args(["--reuid", "1500", "--regid", "1500", "--clear-groups"]);
            }
            child.arg(binary()).args(words).env_clear().env("HOME", &place.home).env("COFFERDAM_STATE", place.state());
            child.env("PATH", "/usr/bin:/bin").current_dir(&place.project).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = child.spawn().unwrap();
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            let running = || {
                let list = Command::new("pgrep").args(["-f", &format!("sleep {mark}")]).output().unwrap();
                !list.stdout.is_empty()
            };
            let end = Instant::now() + Duration::from_secs(180);
            while running() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(!running(), "{who:?}: a process outlived the supervisor");
            assert_eq!(mounts(&place), mounted, "{who:?}");
        }
        assert_eq!(exec(&place, &id, &["cat", "made"]).assert_ok().stdout(), "x\n", "{who:?}");
        // The layer without a sandbox is identified by its `meta.json`.
        let left =
            layers(&place).into_iter().find(|l| !fs::read_to_string(l.join("meta.json")).unwrap().contains("keep"));
        let meta: Value = serde_json::from_slice(&fs::read(left.unwrap().join("meta.json")).unwrap()).unwrap();
        assert_eq!(meta["base"], place.project.to_str().unwrap());
        assert!(meta["run_id"].as_str().unwrap().starts_with("run_") && meta["policy"]["version"] == 1, "{meta}");
        assert_eq!(state(&place.project), before, "{who:?}");
    }
}

/// `--explain` shows the workspace and creates none.
#[test]
fn explain_shows_the_layers_and_makes_none() {
    for who in BOTH {
        let place = furnished(who);
        let output = place.cofferdam(["run", "--explain", "--", "true"]).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(stdout.contains("overlay") && stdout.contains("volatile"), "{who:?}: {stdout}");
        assert_eq!(layers(&place), [] as [PathBuf; 0], "{who:?}");
        let output = place.cofferdam(["run", "--read-only", "--explain", "--", "true"]).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("volatile"), "{who:?}");
    }
}

/// Commands that cannot be found or fail to start leave no workspace.
#[test]
fn what_does_not_start_leaves_nothing() {
    for who in BOTH {
        let place = furnished(who);
        place.file(place.project.join("broken"), "#!/no/such/interpreter\n");
        fs::set_permissions(place.project.join("broken"), fs::Permissions::from_mode(0o755)).unwrap();
        place.run(&[], &["no-such-program"]).assert_code(127);
        place.run(&[], &["./broken"]).assert_code(127);
        place.run(&["--deny-exec", "true"], &["true"]).assert_code(126);
        assert_eq!(layers(&place), [] as [PathBuf; 0], "{who:?}");
    }
}

/// A nearly full file system under the layers ends a run early, with a message.
#[test]
fn a_full_file_system_is_told_before_it_is_full() {
    let place = furnished(As::Root);
    let image = place.file("image", "");
    let at = place.dir("small");
    let script = format!(
        "truncate -s 200M {0} && mkfs.ext4 -q {0} && mount -o loop {0} {1} && mkdir -m 700 {1}/state && exec \"$@\"",
        image.display(),
        at.display()
    );
    let go = |before: &str, text: &str| {
        let mut command = place.outside("unshare");
        command.args(["-m", "sh", "-c", &script.replace("exec", &format!("{before} exec")), "sh"]);
        command.arg(binary()).args(["run", "--json", "--rm", "-c", text]).env("COFFERDAM_STATE", at.join("state"));
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let output = to_the_end(&mut command, b"");
        let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (outcome, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (fine, stderr) = go("", "echo x > x");
    assert_eq!(fine["success"], true, "control: {fine:#} {stderr}");
    let (ended, stderr) = go("", "head -c 150000000 /dev/zero > x; sleep 20");
    assert_eq!(
        (&ended["limit_kind"], &ended["verdict"]),
        (&"disk_mb".into(), &"limit_exceeded".into()),
        "{ended:#} {stderr}"
    );
    assert!(ended["message"].as_str().unwrap().contains("nearly full"), "{ended:#}");
    let fill = format!("head -c 150000000 /dev/zero > {}/fill;", at.display());
    let (refused, stderr) = go(&fill, "echo x > x");
    assert_eq!(refused["error_kind"], "limit_exceeded", "{refused:#} {stderr}");
    assert_eq!(refused["phase"], "admission", "{refused:#}");
}
