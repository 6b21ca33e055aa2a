//! Common typing mistakes: each answer names the wrong word and the right one, and no command runs.

use crate::support::{As, Place, either, to_the_end};
use serde_json::json;
use std::process::Command;

/// Arguments, exit status, and texts that the answer must contain.
const SLIPS: &[(&[&str], i32, &[&str])] = &[
    (&["rum", "--", "ls"], 127, &["rum: command not found", "did you mean the verb `cofferdam run`?"]),
    (&["aprove"], 127, &["did you mean the verb `cofferdam approve`?"]),
    (&["run"], 2, &["no command given", "cofferdam run -- COMMAND"]),
    (&["run", "--", ""], 2, &["no command given"]),
    (&["run", "--memroy", "5m", "--", "ls"], 2, &["'--memroy'", "'--memory'"]),
    (&["run", "-m", "lots", "--", "ls"], 2, &["--memory", "\"lots\"", "256m"]),
    (&["run", "-m", "-5", "--", "ls"], 2, &["--memory", "\"-5\""]),
    (&["run", "--pids", "-1", "--", "ls"], 2, &["--pids", "\"-1\""]),
    (&["run", "-t", "5x", "--", "ls"], 2, &["--timeout \"5x\"", "use ms, s, m, h or d"]),
    (&["run", "--limit", "mem=5m", "--", "ls"], 2, &["--limit mem", "memory", "net"]),
    (&["run", "--limit", "memory", "--", "ls"], 2, &["NAME=AMOUNT"]),
    (&["run", "--cpus", "0", "--", "ls"], 2, &["--cpus \"0\"", "0.5"]),
    (&["run", "-p", "nosuch", "--", "ls"], 2, &["\"nosuch\" is neither a preset nor a file", "workspace-write"]),
    (&["run", "-p", "8080", "--", "ls"], 2, &["\"8080\" is neither", "-p 8080:80"]),
    (&["run", "--name", "two words", "--", "ls"], 2, &["contains a space", "fix-login"]),
    (&["template", "create", "base", "."], 2, &["--prepare", "--from SNAPSHOT|ID"]),
    (&["run", "-p", "nosuch.json", "--", "ls"], 2, &["nosuch.json: No such file"]),
    (&["run", "-p", "key.json", "--", "ls"], 2, &["key.json:1:20: fs.ruls: unknown key", "\"rules\""]),
    (&["run", "-p", "half.json", "--", "ls"], 2, &["half.json:1:"]),
    (&["run", "-p", "value.toml", "--", "ls"], 2, &["value.toml:3:6: defaults.fs", "\"alow\"", "\"allow\""]),
    (&["run", "-p", "/usr", "--", "ls"], 2, &["/usr: Is a directory"]),
    (
        &["run", "--", "nosuch"],
        127,
        &["nosuch: command not found", "no directory of PATH: /usr/local/bin:/usr/bin:/bin"],
    ),
    (&["run", "--", "./nosuch"], 127, &["./nosuch: command not found", "does not exist"]),
    (&["run", "--", "/usr"], 126, &["/usr: not an executable file but a directory"]),
    (&["run", "--", "./half.json"], 126, &["half.json: not an executable file", "chmod +x"]),
    (&["run", "--workdir", "/nosuch", "--", "ls"], 2, &["/nosuch"]),
    (&["run", "-w", "/nosuch", "--", "ls"], 2, &["workspace /nosuch"]),
    (&["run", "--status-file", "/nosuch/x", "--", "ls"], 2, &["--status-file /nosuch/x"]),
    (&["run", "--status-file", "pipe", "--", "ls"], 2, &["--status-file pipe", "nobody reads", "start its reader"]),
    (&["run", "--events", "pipe", "--", "ls"], 2, &["--events pipe", "nobody reads"]),
    (&["run", "--events", "/usr", "--", "ls"], 2, &["--events /usr: Is a directory"]),
    (&["run", "--status-fd", "99", "--", "ls"], 2, &["--status-fd 99"]),
    (&["run", "--net", "http://example.org/x", "--", "ls"], 2, &["a host is expected", "--net example.org:80"]),
    (&["run", "--net", "https://example.org", "--", "ls"], 2, &["--net example.org;"]),
    (&["run", "--net", "example.org:99999", "--", "ls"], 2, &["\"99999\"", "65535"]),
    (&["run", "--publish", "80", "--", "ls"], 2, &["--publish \"80\"", "8080:80"]),
    (&["run", "-e", "=x", "--", "ls"], 2, &["--env \"=x\""]),
    (&["run", "-t", "banana", "--", "ls"], 2, &["--timeout \"banana\"", "30s"]),
    (&["run", "-t", "banana", "ls"], 127, &["banana: command not found", "-t 30s"]),
    (&["run", "--continue", "--", "ls"], 125, &["no sandbox covers", "start with a run without --continue"]),
    (&["run", "--continue=nosuch", "ls"], 125, &["no sandbox \"nosuch\""]),
    (&["create", "--publish", "80"], 2, &["\"80\""]),
    (&["run", "--sandbox", "nosuch", "--", "ls"], 125, &["no sandbox \"nosuch\"", "cofferdam ls"]),
    (&["diff"], 125, &["no sandbox covers", "cofferdam ls"]),
    (&["policy", "explain"], 2, &["PATH|HOST|CMD"]),
    (&["policy", "import", "key.json"], 2, &["neither srt settings JSON nor codex", "hint"]),
    (&["completion", "tcsh"], 2, &["'tcsh'", "bash, zsh, fish"]),
    (&["--server", "ftp://x", "ls"], 2, &["\"ftp://x\"", "https://HOST:PORT"]),
];

// promise 22
#[test]
fn every_slip_is_answered_with_the_word_and_the_way_out() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/key.json", r#"{"version":1,"fs":{"ruls":[]}}"#);
        place.file("home/project/half.json", r#"{"version":1,"#);
        place.file("home/project/value.toml", "version = 1\n[defaults]\nfs = \"alow\"\n");
        let pipe = place.project.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        place.own(&pipe);
        for (words, code, says) in SLIPS {
            let got = to_the_end(&mut place.cofferdam(*words), b"");
            let stderr = String::from_utf8_lossy(&got.stderr).into_owned();
            assert_eq!(got.status.code(), Some(*code), "{who:?} {words:?}: {stderr}");
            assert!(got.stdout.is_empty(), "{who:?} {words:?} ran: {got:?}");
            for part in *says {
                assert!(stderr.contains(part), "{who:?} {words:?} must say {part:?}: {stderr}");
            }
            assert!(!stderr.contains("panicked") && !stderr.contains('\u{1b}'), "{words:?}: {stderr}");
        }
        // Control: the correct command runs.
        assert!(to_the_end(&mut place.cofferdam(["run", "--", "ls"]), b"").status.success());
    }
}

/// With `-v`, a path in a flag that does not exist is reported.
// promise 22
#[test]
fn a_typed_path_that_is_not_there_is_told() {
    for who in either() {
        let place = Place::new(who);
        let run = place.run(&["-v", "--read", "/nosuch/place"], &["true"]);
        run.assert_ok();
        assert!(run.stderr().contains("/nosuch/place does not exist, so the rule has no effect"), "{}", run.story());
        let run = place.run(&["-v", "--read", "/usr"], &["true"]);
        assert!(!run.stderr().contains("has no effect"), "control: {}", run.story());
    }
}

/// Unusual working directories (home, root, removed) and closed standard streams.
// promise 22
#[test]
fn odd_places_and_streams_are_answered() {
    for who in either() {
        let place = Place::new(who);
        let at = |dir: &std::path::Path, words: &[&str]| {
            let mut command = place.cofferdam(words);
            to_the_end(command.current_dir(dir), b"")
        };
        for (dir, says) in [(place.home.clone(), "is the home directory"), ("/".into(), "holds the home directory")] {
            let got = at(&dir, &["run", "--", "pwd"]);
            let stderr = String::from_utf8_lossy(&got.stderr).into_owned();
            assert_eq!(got.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains(says) && stderr.contains("--read-only"), "{stderr}");
            assert!(at(&dir, &["run", "--read-only", "--", "pwd"]).status.success(), "the way out works");
        }
        let text = "mkdir gone && cd gone && rmdir ../gone && \"$0\" run -- pwd; echo $?; cd .. \n\
                    \"$0\" run -- cat <&-; echo $?; \"$0\" run -- echo x >&-; echo $?; \"$0\" run -- ls 2>&-; echo $?";
        let mut shell = place.outside("sh");
        let got = to_the_end(shell.args(["-c", text]).arg(crate::support::binary()), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout), "2\n0\n0\n0\n", "{got:?}");
        assert!(String::from_utf8_lossy(&got.stderr).contains("change to a directory that exists"), "{got:?}");
    }
}

/// Regression: a guest got advice that only works on the host.
#[test]
fn an_enclosure_in_an_enclosure_is_told_as_such() {
    for who in either() {
        let place = Place::new(who);
        let binary = crate::support::binary().to_str().unwrap();
        for flags in [&["--read-only"][..], &[]] {
            let words: Vec<&str> =
                [binary, "run"].into_iter().chain(flags.iter().copied()).chain(["--", "true"]).collect();
            let run = place.run(&["--read", binary, "-e", "COFFERDAM_STATE=/tmp/state"], &words);
            assert_eq!(run.code(), 125, "{who:?}: {}", run.story());
            assert!(run.stderr().contains("this is a sandbox already"), "{who:?} {flags:?}: {}", run.story());
        }
        // Control: the variable alone changes nothing where an enclosure can be created.
        let mut outside = place.cofferdam(["run", "--", "true"]);
        assert!(outside.env("COFFERDAM", "1").status().unwrap().success(), "{who:?}");
    }
}

/// Regression: a device has no size, and was read without end.
#[test]
fn a_policy_that_never_ends_is_refused() {
    let place = Place::new(As::Root);
    for words in [&["policy", "check", "/dev/zero"][..], &["run", "-p", "/dev/zero", "--", "true"]] {
        let got = to_the_end(&mut place.cofferdam(words), b"");
        assert_eq!(got.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&got.stderr).contains("longer than"), "{got:?}");
    }
    // Control: a pipe has no size either, and may hold a policy.
    let shown = to_the_end(&mut place.cofferdam(["policy", "show", "default"]), b"").stdout;
    let got = to_the_end(&mut place.cofferdam(["policy", "check", "/dev/stdin"]), &shown);
    assert!(got.status.success(), "{got:?}");
}

/// Regression: `policy check` passed a policy that every run refused.
#[test]
fn what_no_run_could_hold_is_found_by_the_check() {
    let place = Place::new(As::User);
    let check = |call: &str| {
        let policy = json!({"version": 1, "extends": ["default"], "syscalls": {"deny": [call]}});
        let policy = place.policy(policy);
        let checked = to_the_end(&mut place.cofferdam(["policy", "check", &policy]), b"");
        let created = to_the_end(&mut place.cofferdam(["create", "-p", &policy]), b"");
        let ran = place.run(&["-p", &policy, "--rm"], &["true"]).code();
        (checked.status.code(), created.status.code(), ran)
    };
    assert_eq!(check("no_such_call"), (Some(125), Some(125), 125));
    assert_eq!(check("ptrace"), (Some(0), Some(0), 0));
}

/// The variable is for clients of the daemon, and a shell that starts the daemon may have it.
#[test]
fn a_daemon_is_not_led_astray_by_the_variable_of_its_clients() {
    let place = Place::new(As::User);
    let serve = |flags: &[&str]| {
        let mut command = place.cofferdam(["serve", "--check"]);
        to_the_end(command.env("COFFERDAM_SERVER", "/nowhere/cofferdam.sock").args(flags), b"")
    };
    assert!(serve(&[]).status.success(), "{:?}", serve(&[]));
    let named = serve(&["--server", "/nowhere/cofferdam.sock"]);
    assert_eq!(named.status.code(), Some(125), "control: the flag is a mistake");
}
