//! Invalid policies, empty lists, and working directories: none of them widens access.

use crate::support::{As, BOTH, Place};
use crate::{CANARY, assert_no_canary};
use std::fs;
use std::os::unix::fs::symlink;

/// Invalid policies are refused with the place of the mistake, and no command runs.
// promise 10
#[test]
fn a_policy_that_is_not_understood_is_not_run() {
    let place = Place::new(As::User);
    let good = r#"{"version": 1, "extends": ["default"]"#;
    // Each part is put on line 2 of an otherwise valid document.
    let wrong = [
        // unknown keys, at every level
        r#""colour": 1"#,
        r#""limit": {}"#,
        r#""defaults": {"file": "deny"}"#,
        r#""fs": {"rule": []}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": ["read_file"], "when": 1}]}"#,
        r#""net": {"rules": [{"action": "deny", "hosts": "a.b"}]}"#,
        r#""exec": {"rules": [{"action": "allow", "path": "/bin/true", "md5": "x"}]}"#,
        r#""syscalls": {"allow": []}"#,
        r#""env": {"passes": []}"#,
        r#""limits": {"max_wall": 1}"#,
        r#""audit": {"event": []}"#,
        // keys twice
        r#""version": 1"#,
        r#""fs": {"rules": [], "rules": []}"#,
        r#""limits": {"max_files": 9, "max_files": 99}"#,
        r#""env": {"set": {"A": "1", "A": "2"}}"#,
        // wrong types
        r#""defaults": "deny""#,
        r#""defaults": {"fs": true}"#,
        r#""defaults": {"fs": null}"#,
        r#""fs": []"#,
        r#""fs": {"rules": {}}"#,
        r#""fs": {"rules": ["/opt"]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": ["/opt"], "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": "read_file"}]}"#,
        r#""limits": {"max_files": "9"}"#,
        r#""limits": {"max_files": 1.5}"#,
        r#""limits": {"max_memory_mb": "64m"}"#,
        r#""env": {"pass": "LANG"}"#,
        r#""syscalls": {"deny": "ptrace"}"#,
        r#""degrade": "landlock""#,
        // wrong values
        r#""defaults": {"fs": "maybe"}"#,
        r#""fs": {"rules": [{"action": "permit", "path": "/opt", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "relative", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/a/../b", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/a\u0000b", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "", "perms": ["read_file"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt", "perms": ["fly"]}]}"#,
        r#""fs": {"rules": [{"action": "allow", "path": "/opt"}]}"#,
        r#""fs": {"rules": [{"path": "/opt", "perms": ["read_file"]}]}"#,
        r#""net": {"rules": [{"action": "deny"}]}"#,
        r#""net": {"rules": [{"action": "deny", "host": "a.b", "cidr": "10.0.0.0/8"}]}"#,
        r#""net": {"rules": [{"action": "deny", "cidr": "10.0.0.0/99"}]}"#,
        r#""net": {"rules": [{"action": "deny", "host": "a.b", "ports": "70000"}]}"#,
        r#""degrade": ["everything"]"#,
        r#""exec": {"rules": [{"action": "allow", "path": "/bin/true", "sha256": "12"}]}"#,
    ];
    for part in wrong {
        let file = place.file("p.json", format!("{good},\n{part}}}\n"));
        let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
        assert_eq!((run.code(), run.stdout().as_str()), (2, ""), "{part}: {}", run.story());
        assert_eq!(run.text("/error_kind"), "invalid_request", "{part}");
        let position = format!("{}:2:", file.display());
        assert!(run.stderr().contains(&position), "{part} must name {position}: {}", run.story());
    }
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{} {}",
        r#"{"version": 2}"#,
        r#"{"extends": ["default"]}"#,
        "{\"version\": 1,}",
        "\u{feff}x",
    ] {
        let file = place.file("p.json", text);
        let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
        assert_eq!((run.code(), run.stdout().as_str()), (2, ""), "{text:?}: {}", run.story());
        assert!(run.stderr().contains(file.to_str().unwrap()), "{text:?}: {}", run.story());
    }
    for (text, code) in [(r#"{"version": 1, "extends": ["no-such"]}"#, 2), (&format!("{good}}}"), 0)] {
        let file = place.file("p.json", text);
        place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]).assert_code(code);
    }
    // A system call unknown to this machine cannot be denied: refused as unsupported, not as a mistake.
    let file = place.file("p.json", format!(r#"{good}, "syscalls": {{"deny": ["no_such_call"]}}}}"#));
    let run = place.run(&["-s", file.to_str().unwrap()], &["/bin/echo", "ran"]);
    run.assert_code(125);
    assert_eq!(run.text("/error_kind"), "unsupported_policy", "{}", run.story());
    for missing in [vec!["-s", "/nowhere/p.json"], vec!["-p", "no-such-preset"], vec!["-s", "/"]] {
        place.run(&missing, &["/bin/echo", "ran"]).assert_code(2);
    }
}

/// An empty list is not a wildcard.
// promise 10
#[test]
fn an_empty_list_means_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let secret = place.file("home/project/secret", CANARY);
        let run_with = |text: &str, command: &[&str]| {
            let file = place.file("p.json", text);
            place.run(&["-s", file.to_str().unwrap()], command)
        };
        // Without a rule no file is visible, not even the program.
        for text in [r#"{"version": 1}"#, r#"{"version": 1, "fs": {"rules": []}}"#, r#"{"version": 1, "extends": []}"#]
        {
            let run = run_with(text, &["/bin/cat", secret.to_str().unwrap()]);
            run.assert_code(126);
            assert_no_canary(&run);
        }
        let none = run_with(r#"{"version": 1, "extends": ["default"], "env": {"pass": []}}"#, &["/usr/bin/env"]);
        let names: Vec<String> =
            none.assert_ok().stdout().lines().map(|l| l.split('=').next().unwrap().to_string()).collect();
        assert_eq!(names, ["COFFERDAM", "COFFERDAM_RUN_ID"], "{}", none.story());
        let programs = r#"{"version": 1, "extends": ["default"], "defaults": {"exec": "deny"}, "exec": {"rules": []}}"#;
        run_with(programs, &["/bin/true"]).assert_code(126);
        // Without a permission there is no access.
        let perms = r#"{"version": 1, "extends": ["default"], "fs": {"rules": [{"action": "allow", "path": "/root", "perms": []}]}}"#;
        let run = run_with(perms, &["/bin/ls", "/root"]);
        assert_ne!(run.code(), 0, "{}", run.story());
        // Control: the default policy shows the file.
        let all = run_with(r#"{"version": 1, "extends": ["default"]}"#, &["/bin/cat", secret.to_str().unwrap()]);
        assert_eq!(all.assert_ok().stdout(), CANARY);
    }
}

#[test]
fn a_working_directory_widens_nothing() {
    for who in BOTH {
        let place = Place::new(who);
        let vault = place.dir("home/project/vault");
        place.file("home/project/vault/secret", CANARY);
        place.file("home/private/secret", CANARY);
        place.file("home/project/open", "in policy");
        let link = place.project.join("way");
        symlink(&vault, &link).unwrap();
        let deny = ["--deny-read", vault.to_str().unwrap()];
        let look = "cat secret vault/secret way/secret ./secret ../private/secret private/secret project/vault/secret 2>/dev/null; ls vault way 2>/dev/null; true";
        let project = place.project.to_str().unwrap();
        let up = format!("{project}/..");
        for dir in [
            project,
            vault.to_str().unwrap(),
            link.to_str().unwrap(),
            "vault",
            "way",
            "vault/../vault",
            &up,
            "..",
            "/",
            "/proc/self/cwd",
        ] {
            for flags in [
                vec!["-w", dir],
                vec!["-w", dir, "--read", vault.to_str().unwrap()],
                vec!["-w", dir, "--write", vault.to_str().unwrap()],
                vec!["-w", dir, "--read", link.to_str().unwrap(), "--read", project],
            ] {
                let run = place.sh(&[&flags[..], &deny[..]].concat(), look);
                assert_no_canary(&run);
                let run = place.sh(&[&deny[..], &flags[..]].concat(), look);
                assert_no_canary(&run);
            }
        }
        // Directories of the kernel, and directories that do not exist.
        for dir in ["/proc", "/proc/self", "/proc/1/root", "/dev", "/sys", "/nowhere", "open", ""] {
            let run = place.sh(&["-w", dir], "echo ran");
            assert!(run.code() == 2 && run.stdout().is_empty(), "{who:?} {dir:?}: {}", run.story());
        }
        // The caller's working directory, without any flag.
        for dir in ["/proc/self", "/dev", "/sys"] {
            let output = place.cofferdam(["run", "--", "/bin/echo", "ran"]).current_dir(dir).output().unwrap();
            assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{who:?} {dir}: {output:?}");
        }
        let through = place
            .cofferdam(["run", "--deny-read"])
            .arg(&vault)
            .args(["-c", "cat secret; true"])
            .current_dir(&link)
            .output();
        assert!(!String::from_utf8_lossy(&through.unwrap().stdout).contains(CANARY));
        // A deny in any source overrides an allow in any other.
        let file = place.file(
            "deny.json",
            format!(
                r#"{{"version": 1, "extends": ["default"], "fs": {{"rules": [{{"action": "deny", "path": "{}"}}]}}}}"#,
                vault.display()
            ),
        );
        for flags in [
            ["-s", file.to_str().unwrap(), "--read", vault.to_str().unwrap()],
            ["--write", vault.to_str().unwrap(), "-s", file.to_str().unwrap()],
        ] {
            assert_no_canary(&place.sh(&flags, look));
        }
        let kept = place.file("home/project/kept", "as it was");
        let both = ["--direct", "--write", project, "--deny-write", kept.to_str().unwrap()];
        place.sh(&both, "echo changed > kept; rm -f kept; mv kept other; echo new > made").assert_ok();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was");
        // Controls: without the denial the files can be read and written.
        assert!(place.project.join("made").exists());
        assert_eq!(place.sh(&["-w", vault.to_str().unwrap()], "cat secret").assert_ok().stdout(), CANARY);
        assert_eq!(
            place.sh(&["-w", "way"], "cat secret; pwd").assert_ok().stdout(),
            format!("{CANARY}{}\n", vault.display())
        );
        assert_eq!(place.sh(&deny, "cat open").assert_ok().stdout(), "in policy");
    }
}

/// A misspelt denial in another tool's settings refuses the run instead of being ignored. Settings without an
/// equivalent are reported at every run.
#[test]
fn slips_in_imported_settings_do_not_open_what_they_deny() {
    for who in crate::support::BOTH {
        let place = Place::new(who);
        let secret = place.file("home/project/key", crate::CANARY);
        let settings = |deny: &str, more: &str| {
            let text = format!(
                r#"{{"network": {{{more}}}, "filesystem": {{"{deny}": ["{}"], "allowWrite": ["."], "denyWrite": []}}}}"#,
                secret.display()
            );
            place.file("settings.json", text).display().to_string()
        };
        let cat = ["/bin/cat", secret.to_str().unwrap()];
        // Controls: the denial holds, and without it the file is readable.
        let run = place.run(&["-s", &settings("denyRead", "")], &cat);
        assert_ne!(run.code(), 0, "{who:?}: {}", run.story());
        crate::assert_no_canary(&run);
        assert!(place.run(&["-s", &settings("allowRead", "")], &cat).assert_ok().stdout().contains(crate::CANARY));
        for slip in ["denyReed", "DenyRead", "deny_read"] {
            let run = place.run(&["-s", &settings(slip, "")], &cat);
            assert_eq!((run.code(), run.stdout().as_str()), (2, ""), "{who:?} {slip}: {}", run.story());
            assert_eq!(run.text("/error_kind"), "invalid_request");
            let says = format!("filesystem.{slip}: unknown key");
            assert!(
                run.stderr().contains(&says) && run.stderr().contains("did you mean \"denyRead\"?"),
                "{}",
                run.story()
            );
        }
        // Standard error is a pipe here, not a terminal.
        let file =
            settings("denyRead", r#""mitmProxy": {"socketPath": "/s", "domains": ["a.org"]}, "parentProxy": {}"#);
        let warning = "network.mitmProxy: not carried over";
        let run = place.run(&["-s", &file], &["/bin/true"]);
        assert_eq!(run.assert_ok().stderr().matches("not carried over").count(), 1, "{who:?}: {}", run.story());
        assert!(
            run.stderr().contains(warning) && run.text("/policy/left_out/0").contains(warning),
            "{who:?}: {}",
            run.story()
        );
        let quiet = place.run(&["-q", "-s", &file], &["/bin/true"]);
        assert_eq!(quiet.assert_ok().stderr(), "", "{who:?}");
        assert!(quiet.text("/policy/left_out/0").contains(warning), "{who:?}: {}", quiet.story());
    }
}
