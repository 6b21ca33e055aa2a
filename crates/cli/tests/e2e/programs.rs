//! Exec rules: one program denied, a few allowed, and the usual ways around either.

use crate::support::{BOTH, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

fn denying(place: &Place, program: &str) -> String {
    let rule = json!({"action": "deny", "path": program});
    place.policy(json!({"version": 1, "extends": ["default"], "exec": {"rules": [rule]}}))
}

/// A policy that allows only these programs, and the files that `default` shows.
fn allowing(place: &Place, programs: Value) -> String {
    let rules: Vec<Value> = programs.as_array().unwrap().iter().map(allow).collect();
    let document =
        json!({"version": 1, "extends": ["default"], "defaults": {"exec": "deny"}, "exec": {"rules": rules}});
    place.policy(document)
}

fn allow(program: &Value) -> Value {
    match program.as_str() {
        Some(path) => json!({"action": "allow", "path": path}),
        None => program.clone(),
    }
}

// promise 4
#[test]
fn a_denied_program_does_not_start_by_any_of_its_names() {
    for who in BOTH {
        let place = Place::new(who);
        symlink("/usr/bin/wc", place.project.join("own-link")).unwrap();
        place.script("home/project/by-interpreter", "#!/usr/bin/wc -c\n");
        let policy = denying(&place, "/usr/bin/wc");
        for text in [
            "/usr/bin/wc -c".to_string(),
            "wc -c".into(),
            "/bin/wc -c".into(),
            "./own-link -c".into(),
            "/proc/self/root/usr/bin/wc -c".into(),
            "cd /usr/lib && ../bin/wc -c".into(),
            "exec /usr/bin/wc -c".into(),
            "env wc -c".into(),
            "./by-interpreter".into(),
            format!("{LOADER} /usr/bin/wc -c"),
            "ln -s /usr/bin/wc /tmp/l && /tmp/l -c".into(),
            "ln /usr/bin/wc /tmp/h && /tmp/h -c".into(),
        ] {
            let text = format!("({text}) </etc/passwd");
            let run = place.sh(&["-p", &policy], &text);
            assert_ne!(run.code(), 0, "{text}: {}", run.story());
            assert!(run.stdout().is_empty(), "{text}: {}", run.story());
            if !text.contains("ln ") || text.contains("ln -s") {
                place.sh(&[], &text).assert_ok();
            }
        }
        let run = place.sh(&["-p", &policy], "wc -c </etc/passwd");
        run.assert_code(126).assert_denied("exec", "/usr/bin/wc");
        let denial = &run.outcome["denials"][0];
        assert!(denial["rule"].as_str().unwrap().ends_with("exec.rules[0]"), "{}", run.story());
        assert_eq!(denial["exe"], "/usr/bin/dash");
        place.run(&["-p", &policy], &["wc", "-c"]).assert_code(126);
        // Other programs start, and the denied file can still be read.
        place.sh(&["-p", &policy], "head -c 4 /usr/bin/wc >/dev/null && ls >/dev/null").assert_ok();
    }
}

// promise 4
#[test]
fn a_denied_link_denies_the_program_it_leads_to() {
    for who in BOTH {
        let place = Place::new(who);
        let policy = denying(&place, "/bin/sh");
        for program in ["/bin/sh", "/usr/bin/sh", "/bin/dash", "/usr/bin/dash"] {
            place.run(&["-p", &policy], &["/bin/bash", "-c", &format!("{program} -c true")]).assert_code(126);
            place.run(&["-p", &policy], &[program, "-c", "true"]).assert_code(126);
        }
        let run = place.python(&["-p", &policy], "import os; exit(os.waitstatus_to_exitcode(os.system('true')))");
        assert_ne!(run.code(), 0, "{}", run.story());
        place.script("home/project/script", "#!/bin/sh\necho ran\n");
        let run = place.run(&["-p", &policy], &["/bin/bash", "-c", "exec ./script"]);
        assert!(run.code() != 0 && run.stdout().is_empty(), "{}", run.story());
        place.run(&["-p", &policy], &["/bin/bash", "-c", "true"]).assert_ok();
    }
}

/// A denial names a path. A copy is another file: where all others may start, so may the copy.
#[test]
fn a_copy_of_a_denied_program_is_another_program() {
    for who in BOTH {
        let place = Place::new(who);
        let policy = denying(&place, "/usr/bin/wc");
        place.sh(&["-p", &policy], "cp /usr/bin/wc /tmp/copy && /tmp/copy -c </etc/passwd").assert_ok();
        place.sh(&["-p", &policy, "--write", "."], "cp /usr/bin/wc copy && ./copy -c </etc/passwd").assert_ok();
    }
}

#[test]
fn a_denied_program_in_a_writable_place_stays_denied() {
    for who in BOTH {
        let place = Place::new(who);
        place.script("home/project/bin/tool", "#!/bin/sh\necho ran\n");
        let flags = ["--write", ".", "--deny-exec", "bin/tool"];
        for text in ["bin/tool", "mv bin/tool t && ./t", "ln bin/tool t && ./t", "mv bin b && b/tool"] {
            let run = place.sh(&flags, text);
            assert!(run.code() != 0 && run.stdout().is_empty(), "{text}: {}", run.story());
        }
        place.sh(&["--write", "."], "bin/tool").assert_ok();
    }
}

// promise 4
#[test]
fn only_listed_programs_start() {
    for who in BOTH {
        let place = Place::new(who);
        let policy = allowing(&place, json!(["/usr/bin/python3"]));
        let run = place.python(&["-p", &policy], "import ctypes, json, ssl, sqlite3; print('works')");
        assert_eq!(run.assert_ok().stdout(), "works\n", "{}", run.story());
        place.run(&["-p", &policy], &["/bin/sh", "-c", "true"]).assert_code(126);
        let start = |argv: &str| {
            let text = format!("import os\ntry: os.execv({argv}[0], {argv})\nexcept OSError as e: exit(50 + e.errno)");
            place.python(&["-p", &policy], &text)
        };
        let refused = 50 + 13;
        for argv in ["['/bin/sh', '-c', 'true']", "['/usr/bin/id']", "['/proc/self/root/usr/bin/id']", "['/bin/id']"] {
            start(argv).assert_code(refused);
        }
        let run = start("['/usr/bin/id']");
        run.assert_denied("exec", "/usr/bin/id");
        assert_eq!(run.outcome["denials"][0]["rule"], "defaults.exec");
        start("['/usr/bin/python3', '-c', 'exit(0)']").assert_ok();
        start("['/proc/self/exe', '-c', 'exit(0)']").assert_ok();
        let run = place.python(&["-p", &policy], "import os; exit(os.waitstatus_to_exitcode(os.system('true')))");
        assert_eq!(run.code(), 127, "there is no shell: {}", run.story());
    }
}

// promise 4
#[test]
fn an_unlisted_program_does_not_start_by_detours() {
    const COMMON: &str = "import ctypes, os, shutil, subprocess, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n\
        data = open('/usr/bin/id', 'rb').read()\n";
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/id", fs::read("/usr/bin/id").unwrap());
        for tries in [
            format!("os.execv('{LOADER}', ['{LOADER}', '/usr/bin/id'])"),
            format!("os.execv('{LOADER}', ['{LOADER}', os.path.realpath('/usr/bin/id')])"),
            "shutil.copy('/usr/bin/id', '/tmp/id'); os.execv('/tmp/id', ['id'])".into(),
            format!("shutil.copy('/usr/bin/id', '/tmp/id'); os.execv('{LOADER}', ['{LOADER}', '/tmp/id'])"),
            "shutil.copy('/usr/bin/id', '/dev/shm/id'); os.execv('/dev/shm/id', ['id'])".into(),
            "fd = os.memfd_create('x', 0); os.write(fd, data); os.execv(f'/proc/self/fd/{fd}', ['id'])".into(),
            "fd = os.memfd_create('x', 8); os.write(fd, data); os.execv(f'/proc/self/fd/{fd}', ['id'])".into(),
            "fd = os.memfd_create('x', 16); os.write(fd, data); os.execv(f'/proc/self/fd/{fd}', ['id'])".into(),
            "fd = os.open('/usr/bin/id', os.O_RDONLY); os.execve(fd, ['id'], {})".into(),
            "fd = os.open('/usr/bin/id', os.O_PATH); os.execve(fd, ['id'], {})".into(),
            "fd = os.open('/usr/bin', os.O_RDONLY); a = (ctypes.c_char_p * 2)(b'id', None); \
                libc.syscall(322 if os.uname().machine == 'x86_64' else 281, fd, b'id', a, a, 0); sys.exit(1)".into(),
            "os.link('/usr/bin/id', '/tmp/hard'); os.execv('/tmp/hard', ['id'])".into(),
            "os.symlink('/usr/bin/id', '/tmp/soft'); os.execv('/tmp/soft', ['id'])".into(),
            "open('/tmp/s', 'w').write('#!/usr/bin/python3\\nprint(\"uid=\")'); os.chmod('/tmp/s', 0o755); os.execv('/tmp/s', ['s'])".into(),
            "os.execv('./id', ['id'])".into(),
            "ctypes.CDLL('/tmp/none' if not shutil.copy('/usr/bin/id', '/tmp/lib.so') else '/tmp/lib.so'); print('uid=')".into(),
        ] {
            let text = format!("{COMMON}{tries}\n");
            let policy = allowing(&place, json!(["/usr/bin/python3"]));
            let run = place.python(&["-p", &policy], &text);
            assert_ne!(run.code(), 0, "{tries}: {}", run.story());
            assert!(!run.stdout().contains("uid="), "{tries}: {}", run.story());
        }
        // Control: without exec rules the plain ways work.
        place
            .python(&[], "import os, shutil\nshutil.copy('/usr/bin/id', '/tmp/id'); os.execv('/tmp/id', ['id'])")
            .assert_ok();
    }
}

// promise 4
#[test]
fn a_script_needs_itself_and_its_interpreter_listed() {
    for who in BOTH {
        let place = Place::new(who);
        let snake = place.script("home/project/snake", "#!/usr/bin/python3\nprint('ran')\n").display().to_string();
        let shell = place.script("home/project/shell", "#!/bin/sh\necho ran\n").display().to_string();
        let neither = allowing(&place, json!(["/usr/bin/python3"]));
        let both = allowing(&place, json!(["/usr/bin/python3", snake, shell]));
        place.run(&["-p", &neither], &[&snake]).assert_code(126);
        // As an argument the script is only read.
        assert_eq!(place.run(&["-p", &neither], &["/usr/bin/python3", &snake]).assert_ok().stdout(), "ran\n");
        assert_eq!(place.run(&["-p", &both], &[&snake]).assert_ok().stdout(), "ran\n");
        let run = place.run(&["-p", &both], &[&shell]);
        run.assert_code(126);
        assert!(run.stdout().is_empty());
        let with_shell = allowing(&place, json!(["/bin/sh", shell]));
        assert_eq!(place.run(&["-p", &with_shell], &[&shell]).assert_ok().stdout(), "ran\n");
    }
}

fn digest(path: &Path) -> String {
    let out = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(out.stdout).unwrap()[..64].to_owned()
}

// promise 4
#[test]
fn a_digest_names_the_bytes_that_run() {
    for who in BOTH {
        let place = Place::new(who);
        let one = place.c_program("one", "#include <stdio.h>\nint main() { puts(\"one\"); }");
        let two = place.c_program("two", "#include <stdio.h>\nint main() { puts(\"two\"); }");
        let tool = place.project.join("tool");
        crate::support::copy_program(&one, &tool);
        place.own(&tool);
        let with =
            |sha256: &str| allowing(&place, json!(["/bin/sh", {"action": "allow", "path": tool, "sha256": sha256}]));
        let (right, wrong) = (with(&digest(&one)), with(&digest(&two)));
        let path = tool.to_str().unwrap();
        assert_eq!(place.run(&["-p", &right], &[path]).assert_ok().stdout(), "one\n");
        assert_eq!(place.sh(&["-p", &right], path).assert_ok().stdout(), "one\n");
        place.run(&["-p", &wrong], &[path]).assert_code(126);
        let run = place.sh(&["-p", &wrong], path);
        run.assert_code(126).assert_denied("exec", path);
        assert!(run.stdout().is_empty());
        // A file replaced during the run: the hashed content is what runs.
        let mut child = place
            .cofferdam(["run", "-p", &right, "--", "/bin/sh", "-c", "echo ready; read x; exec \"$0\"", path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        crate::support::copy_program(&two, &tool);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "one\n");
        place.run(&["-p", &right], &[path]).assert_code(126);
        assert_eq!(place.run(&["-p", &wrong], &[path]).assert_ok().stdout(), "two\n");
    }
}

#[test]
fn what_is_built_in_a_writable_place_runs_where_everything_may() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/hello.c", "#include <stdio.h>\nint main() { puts(\"hello\"); }\n");
        let run = place.sh(&["--direct", "--write", "."], "cc hello.c -o hello && ./hello");
        assert_eq!(run.assert_ok().stdout(), "hello\n");
        assert!(place.project.join("hello").exists());
        let run = place.sh(&[], "cp hello.c /tmp && cd /tmp && cc hello.c -o hello && ./hello");
        assert_eq!(run.assert_ok().stdout(), "hello\n");
        assert_ne!(place.sh(&["--read-only"], "cc hello.c -o other").code(), 0, "nothing is writable without --write");
    }
}

// promise 4
#[test]
fn what_is_writable_is_not_executable_where_programs_are_listed() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/id", fs::read("/usr/bin/id").unwrap());
        let policy = allowing(&place, json!(["/usr/bin/python3"]));
        let flags = ["--direct", "-p", &policy, "--write", "."];
        for text in [
            "import os, shutil; shutil.copy('/usr/bin/id', 'made'); os.execv('./made', ['id'])".to_string(),
            "import os; os.chmod('id', 0o755); os.execv('./id', ['id'])".into(),
            format!("import os; os.execv('{LOADER}', ['{LOADER}', './id'])"),
        ] {
            let run = place.python(&flags, &text);
            assert!(run.code() != 0 && run.stdout().is_empty(), "{text}: {}", run.story());
        }
        place.python(&flags, "open('made', 'w').write('x')").assert_ok();
        assert_eq!(fs::read_to_string(place.project.join("made")).unwrap(), "x");
    }
}

/// A directory cannot be both writable and a list of programs: either the policy is refused, or both rules hold.
#[test]
fn a_writable_directory_listed_as_programs_is_no_silent_surprise() {
    for who in BOTH {
        let place = Place::new(who);
        let policy = allowing(&place, json!(["/usr/bin/python3", "$WORKSPACE"]));
        let run = place.python(&["-p", &policy, "--write", "."], "open('made', 'w').write('x')");
        if run.code() == 125 {
            assert_eq!(run.text("/error_kind"), "unsupported_policy", "{}", run.story());
        } else {
            run.assert_ok();
        }
    }
}

#[test]
fn exec_flags_work_beside_policies() {
    for who in BOTH {
        let place = Place::new(who);
        let policy = allowing(&place, json!(["/bin/sh"]));
        place.sh(&["-p", &policy], "id").assert_code(126);
        place.sh(&["-p", &policy, "--exec", "id"], "id").assert_ok();
        place.sh(&["-p", &policy, "--exec", "/usr/bin/id"], "id").assert_ok();
        place.sh(&["-p", &policy, "--exec", "id", "--deny-exec", "id"], "id").assert_code(126);
        let got = to_the_end(&mut place.cofferdam(["run", "-p", "strict", "--", "true"]), b"");
        assert_eq!(got.status.code(), Some(126));
    }
}

/// Listed programs need the dynamic loader, and the loader starts any program that it is given.
// promise 4
#[test]
fn the_loader_does_not_start_what_is_not_listed() {
    for who in BOTH {
        let place = Place::new(who);
        place.file("home/project/id", fs::read("/usr/bin/id").unwrap());
        let policy = allowing(&place, json!(["/bin/sh"]));
        for program in ["./id", "/usr/bin/id", "/usr/lib/git-core/git"] {
            if !place.project.join(program).exists() {
                continue;
            }
            let run = place.sh(&["-p", &policy], &format!("{LOADER} {program} --version"));
            assert!(run.code() != 0 && run.stdout().is_empty(), "{program}: {}", run.story());
            place.sh(&[], &format!("{LOADER} {program} --version")).assert_ok();
        }
        place.sh(&["-p", &policy], "/bin/sh -c true").assert_ok();
    }
}
