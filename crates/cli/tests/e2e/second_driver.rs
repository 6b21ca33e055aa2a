//! Hosts without user namespaces: refused by default, weaker with consent, and reported as such.

use crate::support::{As, Place, Run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Runs `cofferdam ARGS…` where no further user namespace can be created.
fn blocked(place: &Place, args: &[&str]) -> Run {
    let status = place.file("status.json", "");
    let mut all = vec!["run", "--read-only", "--status-file", status.to_str().unwrap()];
    all.extend(args);
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let binary = crate::support::binary();
    let mut c = place.outside("unshare");
    c.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", script, "sh"]).arg(binary).args(all);
    let output = c.output().unwrap();
    let outcome = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap_or(Value::Null);
    Run { output, outcome }
}

fn consenting(place: &Place) -> String {
    let text = r#"{"version":1,"extends":["default"],"degrade":["namespaces"]}"#;
    place.file("consent.json", text).to_str().unwrap().to_string()
}

#[test]
fn without_consent_the_run_is_refused_with_the_blocker_and_a_fix() {
    let place = Place::new(As::User);
    let run = blocked(&place, &["--", "echo", "hi"]);
    run.assert_code(125);
    assert_eq!(run.text("/error_kind"), "unsupported_host");
    assert!(run.text("/message").contains("user.max_user_namespaces is 0"), "{}", run.story());
    assert!(run.text("/hint").contains("degrade"), "{}", run.story());
    assert_eq!(run.stdout(), "");
    place.run(&[], &["echo", "hi"]).assert_ok();
}

#[test]
fn with_consent_it_runs_and_says_what_is_missing() {
    let place = Place::new(As::User);
    place.file("home/project/data", "readable");
    let run = blocked(&place, &["-s", &consenting(&place), "--", "cat", "data"]);
    run.assert_ok();
    assert_eq!(run.stdout(), "readable");
    assert_eq!(run.text("/enforcement/level"), "partial");
    assert!(run.outcome["enforcement"]["missing"].as_array().unwrap().len() >= 5, "{}", run.story());
    // Control: with namespaces, the same policy gives full enforcement.
    let full = place.run(&["-s", &consenting(&place)], &["cat", "data"]);
    assert_eq!(full.text("/enforcement/level"), "full", "{}", full.story());
}

#[test]
fn a_rule_from_above_does_not_reach_into_tmp_without_namespaces() {
    // A rule on / would show the state directory, and hiding it takes a mount; below /tmp it is out of the rule's
    // reach.
    let place = Place::within(As::User, Path::new("/tmp"));
    place.file("home/project/data", "mine");
    let other = place.file("home/other", "other");
    let everything = json!({"action": "allow", "path": "/", "perms": ["read_file", "read_dir", "execute"]});
    let policy = place.policy(json!({"version": 1, "degrade": ["namespaces"], "fs": {"rules": [everything]}}));
    let read = format!("cat data; cat /etc/hostname > /dev/null && echo etc; cat {}", other.display());
    let run = blocked(&place, &["-p", &policy, "--", "sh", "-c", &read]);
    assert_eq!((run.stdout().as_str(), run.code() != 0), ("mineetc\n", true), "{}", run.story());
    let named = blocked(&place, &["-p", &policy, "--read", other.to_str().unwrap(), "--", "sh", "-c", &read]);
    assert_eq!(named.assert_ok().stdout(), "mineetc\nother", "{}", named.story());
}

#[test]
fn files_sockets_and_metadata_are_held_without_namespaces() {
    let place = Place::new(As::User);
    let secret = place.file("home/.netrc", "machine secret");
    let kept = place.file("home/project/kept", "as it was");
    let open = place.dir("home/open");
    let policy = consenting(&place);
    let probe = "cat ~/.netrc; echo x > kept; chmod 600 kept; mkdir ~/made; kill -9 1; echo y > ../open/new; \
                 python3 -c 'import socket; socket.socket()'; exit 7";
    let run = blocked(&place, &["-s", &policy, "--write", open.to_str().unwrap(), "-c", probe]);
    run.assert_code(7);
    assert!(!run.stdout().contains("secret"), "{}", run.story());
    assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was");
    assert!(!place.home.join("made").exists());
    assert_eq!(fs::read_to_string(open.join("new")).unwrap(), "y\n");
    assert!(run.stderr().contains("PermissionError"), "{}", run.story());
    run.assert_denied("fs.write", kept.to_str().unwrap());
    assert!(secret.exists());
}

#[test]
fn the_whole_tree_ends_with_the_run_and_with_its_limit() {
    let place = Place::new(As::User);
    let policy = consenting(&place);
    let mark = format!("{}", 100_000 + std::process::id());
    let running = || {
        let list = std::process::Command::new("pgrep").args(["-f", &format!("sleep {mark}")]).output().unwrap();
        String::from_utf8(list.stdout).unwrap()
    };
    let text = format!("setsid sleep {mark} & (sleep {mark} &) ; exit 3");
    blocked(&place, &["-s", &policy, "-c", &text]).assert_code(3);
    assert_eq!(running(), "", "nothing outlives the command");
    let text = format!("setsid sleep {mark} & sleep {mark}");
    let run = blocked(&place, &["-s", &policy, "-t", "500ms", "-c", &text]);
    run.assert_code(124);
    assert_eq!(run.text("/limit_kind"), "wall_ms");
    assert_eq!(running(), "", "nothing outlives the limit");
}

// promise 21
#[test]
fn what_only_mounts_could_hold_is_refused() {
    let place = Place::new(As::User);
    place.file("home/project/inner/secret", "x");
    let policy = consenting(&place);
    for flags in [["--deny-read", "inner"], ["--deny-exec", "/bin/sh"], ["--disk", "1m"]] {
        let run = blocked(&place, &["-s", &policy, flags[0], flags[1], "--", "true"]);
        run.assert_code(125);
        assert_eq!(run.text("/error_kind"), "unsupported_policy", "{flags:?}: {}", run.story());
        place.run(&flags, &["true"]).assert_ok();
    }
    let asks = r#"{"version":1,"exec":{"rules":[{"action":"ask","path":"/usr/bin/id"}]}}"#;
    let asks = place.file("asks.json", asks).to_str().unwrap().to_owned();
    let run = blocked(&place, &["-s", &policy, "-s", &asks, "--", "true"]);
    run.assert_code(125);
    let message = "/usr/bin/id needs a question before it starts, which needs namespaces";
    assert!(run.text("/message").contains(message), "{}", run.story());
    place.run(&["-s", &policy, "-s", &asks], &["true"]).assert_ok();
}

/// A limit that needs a control group is refused for a user without one, unless the policy names it in `degrade`.
#[test]
fn a_limit_can_be_given_up_by_name() {
    let place = Place::new(As::User);
    let text = r#"{"version":1,"extends":["default"],"limits":{"max_memory_mb":64},"degrade":["max_memory_mb"]}"#;
    let policy = place.file("consent.json", text);
    let run = place.run(&["-s", policy.to_str().unwrap()], &["echo", "hi"]);
    run.assert_ok();
    assert_eq!(run.outcome["enforcement"]["missing"], serde_json::json!(["max_memory_mb"]), "{}", run.story());
    assert_eq!(run.text("/enforcement/level"), "partial");
    let strict = place.run(&["-m", "64m"], &["echo", "hi"]);
    strict.assert_code(125);
    assert_eq!(strict.text("/error_kind"), "unsupported_limit");
}
