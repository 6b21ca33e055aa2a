//! A run that is explained by a daemon: the same lines as without one, for who has the daemon's host; nothing is started, looked up or
//! kept; and nobody else learns of places of the host.

use crate::support::http::{Answer, Daemon};
use crate::support::{As, BOTH, Place, to_the_end};
use serde_json::{Value, json};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// The command line, here or at a daemon.
fn explain(place: &Place, daemon: Option<&Daemon>, args: &[&str]) -> Output {
    let mut command = place.cofferdam(args);
    if let Some(daemon) = daemon {
        command.env("COFFERDAM_SERVER", &daemon.socket);
    }
    to_the_end(&mut command, b"")
}

/// What both print, but for names that are made anew each time.
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

#[test]
fn the_lines_are_those_of_a_run_here_and_nothing_is_done() {
    for who in BOTH {
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
        // A rule that is typed is a document there, and has another name in the notes.
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

#[test]
fn explaining_a_run_at_a_daemon_looks_no_secret_up() {
    for who in BOTH {
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
            (&*command, "# secrets\nTOKEN: what the command \"touch "),
            ("TOKEN=env:NOWHERE", "TOKEN: the variable NOWHERE, which is not set"),
            ("TOKEN=file:/no/such", "TOKEN: the file /no/such"),
            ("TOKEN=store:OTHER", "TOKEN: the secret OTHER, which is not kept"),
        ] {
            let text = told(word);
            assert!(text.contains(says), "{word}: {text}");
        }
        assert!(!made.exists(), "{who:?}: the command of a secret was run");
        daemon.ask("PUT", "/v1/secrets/OTHER").json(json!({"value": "what-is-kept"})).send().assert_ok();
        let text = told("TOKEN=store:OTHER");
        assert!(text.contains("TOKEN: the secret OTHER that is kept") && !text.contains("what-is-kept"), "{text}");
        // A value that somebody sends all the same is not taken.
        let make = json!({"dir": place.project, "policies": [serde_json::from_str::<Value>(POLICY).unwrap()],
                          "secrets": ["TOKEN=brought:run"]});
        let wish = |run: Value| daemon.post("/v1/runs/explain", json!({"create": make, "run": run}));
        let brought = wish(json!({"command": ["true"]})).assert_ok();
        assert_eq!(brought["secrets"], json!(["TOKEN: whoever runs a command"]), "the control");
        let fault = wish(json!({"command": ["true"], "secrets": {"TOKEN": "v4lue"}}));
        assert!(!fault.assert_fault(400, "invalid_request").to_string().contains("v4lue"));
        nothing_is_left(&place, &daemon);
        let run = explain(&place, Some(&daemon), &["run", "-p", &policy, "--secret", &command, "--", "true"]);
        assert!(run.status.success() && made.exists(), "a run runs it: {}", String::from_utf8_lossy(&run.stderr));
    }
}

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
        // What it says of the policy is what the sandbox would say of itself.
        let made = daemon.ask("POST", "/v1/sandboxes").bearer(who).json(json!({"dir": project})).send().assert_ok();
        let shown = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
        let shown = daemon.ask("GET", &shown).bearer(who).send().assert_ok();
        assert_eq!((&told["policy"], &told["notes"]), (&shown["policy"], &made["notes"]));
        assert!(!of_host(&told), "what the host has and has not: {told}");
    }
    as_who(&reviewer, over(&project)).assert_fault(403, "policy_denied");
    daemon.ask("POST", "/v1/runs/explain").over_tcp().json(over(&project)).send().assert_fault(401, "unauthenticated");
    // Whether a directory is there that was not granted is not told, and neither is another's sandbox.
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
    // Nor more of the host by a policy than a sandbox would get.
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
    // Much is told whole, and more than a body may be is not taken.
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

/// Whoever was sent to find out the steps, and lives.
fn sent(place: &Place) -> Vec<u32> {
    let mine = |pid: &u32| {
        let text = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let (line, around) = (text("cmdline"), text("environ"));
        let state = place.state().to_string_lossy().into_owned();
        String::from_utf8_lossy(&line).contains("keep\0--explain") && String::from_utf8_lossy(&around).contains(&state)
    };
    let all =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter(mine).collect()
}

/// At any moment: whoever was sent ends by itself, and takes along what it made.
#[test]
fn a_daemon_that_is_killed_while_it_explains_leaves_nothing() {
    let place = Place::new(As::User);
    let mut seen = 0;
    for wait in (0..12).map(|n| Duration::from_millis(n * 8)) {
        let mut daemon = Daemon::start(&place);
        let mut client = place.cofferdam(["run", "--explain", "--", "true"]);
        let client = client.env("COFFERDAM_SERVER", &daemon.socket).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        std::thread::sleep(wait);
        seen += sent(&place).len();
        daemon.signal("KILL");
        daemon.ended();
        let _told_or_lost = client.wait().unwrap();
        let begun = Instant::now();
        while !sent(&place).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it goes on: {:?}", sent(&place));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let daemon = Daemon::start(&place);
    nothing_is_left(&place, &daemon);
    assert!(explain(&place, Some(&daemon), &["run", "--explain", "--", "true"]).status.success(), "the control");
    println!("{seen} were seen at work");
}

/// What it had made by then is nobody's, and is collected like everything that a crash leaves.
#[test]
fn who_was_sent_and_is_killed_is_told_as_such_and_collected() {
    let place = Place::new(As::User);
    let daemon = Daemon::start(&place);
    let mut killed = 0;
    for _ in 0..40 {
        let mut client = place.cofferdam(["run", "--json", "--explain", "--", "true"]);
        let client = client.env("COFFERDAM_SERVER", &daemon.socket).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut client = client.spawn().unwrap();
        while client.try_wait().unwrap().is_none() && sent(&place).is_empty() {}
        for pid in sent(&place) {
            // By its number, which is not another's as long as the daemon has not buried it.
            let _gone_already = rustix::process::kill_process(
                rustix::process::Pid::from_raw(pid as i32).unwrap(),
                rustix::process::Signal::KILL,
            );
        }
        let out = client.wait_with_output().unwrap();
        if !out.status.success() {
            let fault: Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!((fault["error_kind"].as_str(), out.status.code()), (Some("unavailable"), Some(125)), "{fault}");
            killed += 1;
        }
        if killed == 3 {
            break;
        }
    }
    assert!(killed > 0, "none was met at work");
    assert!(explain(&place, Some(&daemon), &["run", "--explain", "--", "true"]).status.success(), "the control");
    assert!(explain(&place, Some(&daemon), &["gc"]).status.success());
    nothing_is_left(&place, &daemon);
}
