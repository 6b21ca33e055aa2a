//! `run --explain` at a daemon: the same lines as without one for a caller that owns the daemon's host; nothing is
//! started, looked up or kept, and no other caller learns about paths of the host.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, Place, either, to_the_end};
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use std::time::Duration;

/// Runs the command line, locally or at a daemon.
fn explain(place: &Place, daemon: Option<&Daemon>, args: &[&str]) -> Output {
    let mut command = place.cofferdam(args);
    if let Some(daemon) = daemon {
        command.env("COFFERDAM_SERVER", &daemon.socket);
    }
    to_the_end(&mut command, b"")
}

/// Printed lines, with ids that differ between calls replaced.
fn lines(out: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let random = |word: &str| word.starts_with("lay_") || word.starts_with("layers/");
    let plain = |line: &str| {
        let words = line.split_inclusive([' ', '/', ':', ',']);
        words.map(|word| if random(word) { "LAYER " } else { word }).collect::<String>()
    };
    text.lines().map(plain).collect()
}

fn nothing_is_left(place: &Place, daemon: &Daemon) {
    assert_eq!(daemon.get("/v1/sandboxes").assert_ok()["sandboxes"], json!([]));
    let layers: Vec<_> = std::fs::read_dir(place.state().join("layers")).unwrap().flatten().collect();
    assert!(layers.is_empty(), "{layers:?}");
}

// promise 27
#[test]
fn the_lines_are_those_of_a_run_here_and_nothing_is_done() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let command = ["-c", "touch made"];
        for flags in [
            &[][..],
            &["--read-only"],
            &["--report-reads"],
            &["-p", "default", "-p", "workspace-write", "-m", "256m", "-t", "5s"],
            &["-p", "default", "-p", "networked", "--publish", "8099:80"],
            &["--workdir", ".", "-e", "A=b"],
        ] {
            let args = [&["run", "--explain"][..], flags, &command].concat();
            let (here, there) = (explain(&place, None, &args), explain(&place, Some(&daemon), &args));
            let (here, there) = (lines(&here), lines(&there));
            assert!(here.len() > 40 && here.contains(&"# setup".to_owned()), "{flags:?}: {here:#?}");
            let differ = here.iter().zip(&there).find(|(a, b)| a != b);
            assert!(here == there, "{who:?} {flags:?}: {differ:#?} {} {}", here.len(), there.len());
        }
        // A rule given as a flag is sent as a document, and has another name in the notes.
        let args = ["run", "--explain", "--read", "/var/log", "--deny-read", "secret", "--", "true"];
        let steps = |daemon: Option<&Daemon>| {
            let all = lines(&explain(&place, daemon, &args));
            all[all.iter().position(|line| line == "# setup").unwrap()..].to_vec()
        };
        assert_eq!(steps(None), steps(Some(&daemon)));
        nothing_is_left(&place, &daemon);
        assert!(!place.project.join("made").exists());
        // The control: the same words without the flag.
        let ran = explain(&place, Some(&daemon), &[&["run"][..], &command].concat());
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(daemon.get("/v1/sandboxes").assert_ok()["sandboxes"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_command_in_a_sandbox_is_explained_as_long_as_nothing_runs_there() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let explained = |there: bool| {
        explain(&place, there.then_some(&daemon), &["exec", "--json", "--explain", "box", "--", "touch", "made"])
    };
    assert!(explain(&place, Some(&daemon), &["create", "--name", "box"]).status.success());
    assert_eq!(lines(&explained(false)), lines(&explained(true)));
    assert_eq!(daemon.get("/v1/sandboxes/box/runs").assert_ok()["runs"], json!([]));
    assert!(explain(&place, Some(&daemon), &["start", "--live", "box"]).status.success());
    for there in [false, true] {
        let out = explained(there);
        let fault: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((fault["error_kind"].as_str(), out.status.code()), (Some("conflict"), Some(125)), "{fault}");
    }
    assert!(explain(&place, Some(&daemon), &["stop", "box"]).status.success());
    assert_eq!(explained(true).status.code(), explained(false).status.code(), "as here, it must be started first");
    assert!(explain(&place, Some(&daemon), &["start", "box"]).status.success());
    assert!(explained(true).status.success(), "the control");
}

const POLICY: &str = r#"{"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "api.test"}]},
    "secrets": [{"name": "TOKEN", "inject": {"host": "api.test", "header": "authorization", "format": "Bearer {}"}}]}"#;

// promise 27
#[test]
fn explaining_a_run_at_a_daemon_looks_no_secret_up() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let policy = place.file("policy.json", POLICY).to_string_lossy().into_owned();
        let made = place.project.join("made");
        let command = format!("TOKEN=cmd:touch {}; echo x", made.display());
        let told = |word: &str| {
            let out =
                explain(&place, Some(&daemon), &["run", "--explain", "-p", &policy, "--secret", word, "--", "true"]);
            lines(&out).join("\n")
        };
        for (word, says) in [
            (&*command, "# secrets\nTOKEN: the output of the command \"touch "),
            ("TOKEN=env:NOWHERE", "TOKEN: the variable NOWHERE, which is not set"),
            ("TOKEN=file:/no/such", "TOKEN: the file /no/such"),
            ("TOKEN=store:OTHER", "TOKEN: the secret OTHER, which is not stored"),
        ] {
            let text = told(word);
            assert!(text.contains(says), "{word}: {text}");
        }
        assert!(!made.exists(), "{who:?}: the command of a secret was run");
        daemon.ask("PUT", "/v1/secrets/OTHER").json(json!({"value": "what-is-kept"})).send().assert_ok();
        let text = told("TOKEN=store:OTHER");
        assert!(text.contains("TOKEN: the stored secret OTHER") && !text.contains("what-is-kept"), "{text}");
        // A secret value in the request is refused.
        let make = json!({"dir": place.project, "policies": [serde_json::from_str::<Value>(POLICY).unwrap()],
                          "secrets": ["TOKEN=brought:run"]});
        let wish = |run: Value| daemon.post("/v1/runs/explain", json!({"create": make, "run": run}));
        let brought = wish(json!({"command": ["true"]})).assert_ok();
        assert_eq!(brought["secrets"], json!(["TOKEN: the client of each command"]), "the control");
        let fault = wish(json!({"command": ["true"], "secrets": {"TOKEN": "v4lue"}}));
        assert!(!fault.assert_fault(400, "invalid_request").to_string().contains("v4lue"));
        nothing_is_left(&place, &daemon);
        let run = explain(&place, Some(&daemon), &["run", "-p", &policy, "--secret", &command, "--", "true"]);
        assert!(run.status.success() && made.exists(), "a run runs it: {}", String::from_utf8_lossy(&run.stderr));
    }
}

// promise 27
#[test]
fn steps_are_told_to_who_has_the_host_and_the_rest_to_who_may_run() {
    let place = Place::new(As::Root);
    let daemon = Daemon::start_tcp(&place);
    let token = |ask: Value| daemon.token(ask);
    let agent = token(json!({"name": "a", "scopes": ["agent"], "dirs": [place.project]}));
    let other = token(json!({"name": "b", "scopes": ["agent"], "dirs": [place.project]}));
    let reviewer = token(json!({"name": "r", "scopes": ["reviewer"]}));
    let tenant = token(json!({"name": "t", "scopes": ["operator"], "tenant": "ann", "dirs": [place.project]}));
    let as_who =
        |token: &str, wish: Value| -> Answer { daemon.ask("POST", "/v1/runs/explain").bearer(token).json(wish).send() };
    let over = |dir: &str| json!({"create": {"dir": dir}, "run": {"command": ["true"]}});
    let project = place.project.to_string_lossy().into_owned();
    let whole = daemon.post("/v1/runs/explain", over(&project)).assert_ok();
    let of_host = |told: &Value| told.to_string().contains("does not exist");
    assert!(whole["setup"].as_array().unwrap().len() > 20 && of_host(&whole), "the control: {whole}");
    as_who(&daemon.operator_token(), over(&project)).assert_ok()["setup"].as_array().unwrap();
    for who in [&agent, &tenant] {
        let told = as_who(who, over(&project)).assert_ok();
        assert!(told.get("setup").is_none() && told["policy"]["version"] == 1, "{told}");
        // The explained policy is the one that the sandbox would report.
        let made = daemon.ask("POST", "/v1/sandboxes").bearer(who).json(json!({"dir": project})).send().assert_ok();
        let shown = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
        let shown = daemon.ask("GET", &shown).bearer(who).send().assert_ok();
        assert_eq!((&told["policy"], &told["notes"]), (&shown["policy"], &made["notes"]));
        assert!(!of_host(&told), "what the host has and has not: {told}");
    }
    as_who(&reviewer, over(&project)).assert_fault(403, "policy_denied");
    daemon.ask("POST", "/v1/runs/explain").over_tcp().json(over(&project)).send().assert_fault(401, "unauthenticated");
    // Neither the existence of a directory that was not granted nor another owner's sandbox is revealed.
    let refused = |dir: &str| {
        let fault = as_who(&agent, over(dir)).assert_fault(403, "policy_denied");
        fault["message"].as_str().unwrap().replace(dir, "DIR")
    };
    assert_eq!(refused("/root"), refused("/no/such/place"));
    let own = daemon.ask("POST", "/v1/sandboxes").bearer(&agent).json(json!({"name": "own"})).send().assert_ok();
    let within = |word: &str| json!({"sandbox": word, "run": {"command": ["true"]}});
    as_who(&agent, within("own")).assert_ok();
    for word in ["own", own["id"].as_str().unwrap()] {
        as_who(&other, within(word)).assert_fault(404, "not_found");
        as_who(&tenant, within(word)).assert_fault(404, "not_found");
    }
    // A policy in the request reaches no more of the host than it could for a sandbox.
    let reach = json!({"version": 1, "fs": {"rules": [{"action": "allow", "path": "/root", "perms": ["read_file"]}]}});
    let wish = json!({"create": {"dir": project, "policies": [reach]}, "run": {"command": ["true"]}});
    assert!([400, 403].contains(&as_who(&agent, wish).status));
}

#[test]
fn what_cannot_be_explained_is_refused_by_the_name_of_its_field() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let ask = |wish: Value| daemon.post("/v1/runs/explain", wish);
    let (run, dir) = (json!({"command": ["true"]}), place.project.clone());
    ask(json!({"create": {"dir": dir}, "run": run})).assert_ok();
    for (wish, field) in [
        (json!({"run": run}), "sandbox and create"),
        (json!({"run": run, "sandbox": "x", "create": {"dir": dir}}), "sandbox and create"),
        (json!({"create": {"dir": dir}}), "run"),
        (json!({"create": {"dir": dir}, "run": {}}), "command"),
        (json!({"create": {"dir": dir}, "run": {"command": "true"}}), "run.command"),
        (json!({"create": {"dir": dir}, "run": {"command": ["a\u{0}b"]}}), "zero byte"),
        (json!({"create": {"dir": dir}, "run": run, "steps": true}), "steps"),
        (json!({"create": {"dir": "relative"}, "run": run}), "dir"),
        (json!({"create": {"dir": dir, "template": "t"}, "run": run}), "create"),
        (json!({"create": {}, "run": run}), "create"),
        (json!({"create": {"dir": dir, "ask_timeout_ms": 1}, "run": run}), "ask_timeout_ms"),
        (json!({"create": {"dir": dir, "direct": true}, "run": run}), "direct"),
        (json!([]), ""),
    ] {
        let fault = ask(wish.clone()).assert_fault(400, "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains(field), "{wish}: {fault}");
    }
    ask(json!({"sandbox": "nobody", "run": run})).assert_fault(404, "not_found");
    ask(json!({"create": {"dir": dir}, "run": {"command": ["true"], "report_reads": true}}))
        .assert_fault(409, "conflict");
    ask(json!({"create": {"dir": dir}, "run": {"command": ["no-such-program"]}})).assert_fault(404, "not_found");
    // A large explanation is complete, and a body over the limit is refused.
    let rules = |count: usize| -> Value {
        let path = |n: usize| format!("/srv/{}/{n}", "x".repeat(200));
        let rule = |n: usize| json!({"action": "deny", "path": path(n), "perms": ["read_file"]});
        json!({"version": 1, "extends": ["default"], "fs": {"rules": (0..count).map(rule).collect::<Vec<_>>()}})
    };
    let wide = |count: usize| ask(json!({"create": {"dir": dir, "policies": [rules(count)]}, "run": run}));
    let told = wide(1500).assert_ok();
    assert!(told["policy"]["fs"]["rules"].as_array().unwrap().len() > 1500 && told["setup"].is_array());
    assert!(matches!(wide(60_000).status, 400 | 413));
    nothing_is_left(&place, &daemon);
    ask(json!({"create": {"dir": dir}, "run": run})).assert_ok();
}

/// A kill at any moment: leftovers of the plan are collected like those of any crash.
// promise 27
#[test]
fn a_daemon_that_is_killed_while_it_explains_leaves_nothing_that_stays() {
    let place = Place::new(As::User);
    for wait in (0..12).map(|n| Duration::from_millis(n * 8)) {
        let mut daemon = Daemon::start(&place);
        let mut client = place.cofferdam(["run", "--explain", "--", "true"]);
        let client = client.env("COFFERDAM_SERVER", &daemon.socket).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        std::thread::sleep(wait);
        daemon.signal("KILL");
        daemon.ended();
        let _ = client.wait().unwrap(); // answered or cut off, by the moment of the kill
    }
    let daemon = Daemon::start(&place);
    assert!(explain(&place, Some(&daemon), &["run", "--explain", "--", "true"]).status.success(), "the control");
    assert!(explain(&place, Some(&daemon), &["gc"]).status.success());
    nothing_is_left(&place, &daemon);
}

/// Open files of a process, its mappings of at least an arena's size, and its children.
fn held_by(pid: u32) -> (usize, usize, usize) {
    const ARENA: u64 = 8 << 20;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let size = |line: &str| -> Option<u64> {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
    };
    let shared = maps.lines().filter(|line| line.contains(" rw-s ") && size(line).is_some_and(|size| size >= ARENA));
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children = children.map(|text| text.split_whitespace().count()).sum();
    (std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(), shared.count(), children)
}

// promise 27
#[test]
fn a_daemon_explains_again_and_again_and_keeps_nothing_of_it() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let wish = json!({"create": {"dir": place.project}, "run": {"command": ["true"]}});
    let told = || daemon.post("/v1/runs/explain", wish.clone()).assert_ok();
    let first = told();
    assert!(first["setup"].as_array().unwrap().len() > 20, "{first}");
    let settle = || {
        // State handles that are idle between two verbs are closed after a while.
        std::thread::sleep(Duration::from_secs(2));
        held_by(daemon.child.id())
    };
    let before = settle();
    (0..40).for_each(|_| drop(told()));
    let after = settle();
    assert_eq!((after.1, after.2), (0, before.2), "arenas and children: {before:?}, {after:?}");
    assert!(after.0 <= before.0 + 4, "open files: {before:?}, {after:?}");
    nothing_is_left(&place, &daemon);
}

// promise 27
#[test]
fn a_program_that_is_listed_by_its_digest_is_told_as_here() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let sum = to_the_end(std::process::Command::new("sha256sum").arg("/usr/bin/env"), b"");
    let digest = String::from_utf8_lossy(&sum.stdout)[..64].to_owned();
    let rules = json!([{"action": "allow", "path": "/bin/sh"},
                       {"action": "allow", "path": "/usr/bin/env", "sha256": digest}]);
    let policy = json!({"version": 1, "extends": ["default"], "defaults": {"exec": "deny"}, "exec": {"rules": rules}})
        .to_string();
    let policy = place.file("policy.json", &policy).to_string_lossy().into_owned();
    let args = ["run", "--explain", "-p", &policy, "--", "/bin/sh", "-c", "true"];
    let steps = |daemon: Option<&Daemon>| {
        let all = lines(&explain(&place, daemon, &args));
        all[all.iter().position(|line| line == "# setup").unwrap()..].to_vec()
    };
    let here = steps(None);
    assert!(here.iter().any(|step| step.contains("/program-") && !step.contains(", 0 bytes")), "{here:#?}");
    assert_eq!(here, steps(Some(&daemon)));
}
