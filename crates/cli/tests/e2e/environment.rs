//! Environment variables of a command: the documented ones, those passed, those set, and no other.

use crate::support::{Place, either, to_the_end, unique};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

#[test]
fn variables_are_passed_and_set_by_flag() {
    for who in either() {
        let place = Place::new(who);
        let flags = [
            "-e",
            "GIVEN",
            "-e",
            "MADE=a=b",
            "-e",
            "EMPTY=",
            "-e",
            "ABSENT",
            "-e",
            "LANG=xx",
            "-e",
            "COFFERDAM=0",
            "--env",
            "LONG=1",
        ];
        let mut command = place.cofferdam(["run"]);
        command.env("GIVEN", "from the caller").args(flags).args(["--", "env"]);
        let inside = variables(&to_the_end(&mut command, b"").stdout, b'\n');
        let get = |name: &str| inside.get(name).map(String::as_str);
        assert_eq!(get("GIVEN"), Some("from the caller"));
        assert_eq!(get("MADE"), Some("a=b"));
        assert_eq!(get("EMPTY"), Some(""));
        assert_eq!(get("ABSENT"), None);
        assert_eq!(get("LANG"), Some("xx"));
        assert_eq!(get("LONG"), Some("1"));
        assert_eq!(get("COFFERDAM"), Some("1"), "whether it is enclosed is not for a flag to say");
    }
}

fn variables(text: &[u8], end: u8) -> BTreeMap<String, String> {
    let lines = text.split(|b| *b == end).filter(|l| !l.is_empty());
    let pairs = lines.map(|l| String::from_utf8_lossy(l).into_owned());
    pairs.map(|l| l.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned())).unwrap()).collect()
}

// promise 2
#[test]
fn the_environment_is_exactly_what_is_promised() {
    const PASSED: [(&str, &str); 9] = [
        ("LOGNAME", "tester"),
        ("SHELL", "/bin/sh"),
        ("LC_ALL", "C"),
        ("LC_TIME", "C"),
        ("TERM", "dumb"),
        ("COLORTERM", "truecolor"),
        ("TZ", "UTC"),
        ("LANG", "C.UTF-8"),
        ("USER", "tester"),
    ];
    const KEPT_OUT: [&str; 7] = [
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "SSH_AUTH_SOCK",
        "BASH_ENV",
        "DISPLAY",
        "COFFERDAM_SERVER_CA",
        "HTTPS_PROXY",
    ];
    for who in either() {
        let place = Place::new(who);
        let secret = format!("secret-{}", unique());
        let status = place.file("status", "");
        let mut command = place.cofferdam(["run", "--status-file"]);
        command.arg(&status).envs(PASSED).args(["--", "env", "-0"]);
        command.envs(KEPT_OUT.map(|name| (name, &secret)));
        let inside = variables(&to_the_end(&mut command, b"").stdout, 0);
        let outcome: Value = serde_json::from_str(&fs::read_to_string(&status).unwrap()).unwrap();
        let mut want: BTreeMap<String, String> = PASSED.map(|(n, v)| (n.into(), v.into())).into();
        want.insert("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        want.insert("HOME".into(), place.home.display().to_string());
        want.insert("COFFERDAM".into(), "1".into());
        want.insert("COFFERDAM_RUN_ID".into(), outcome["run_id"].as_str().unwrap().into());
        assert_eq!(inside, want);
        // Secrets are absent from the environment of pid 1 as well, which starts as a copy of the supervisor.
        let look = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -ac secret-; true";
        let got = to_the_end(place.cofferdam(["run", "-c", look]).env("GITHUB_TOKEN", &secret), b"");
        assert_eq!(String::from_utf8_lossy(&got.stdout).trim(), "1", "only the search's own command line");
    }
}

#[test]
fn a_policy_decides_about_the_environment() {
    for who in either() {
        let place = Place::new(who);
        let policy = place.policy(
            json!({"version": 1, "extends": ["default"], "env": {"pass": ["WANTED", "PRE_*"], "set": {"CI": "1"}}}),
        );
        let mut command = place.cofferdam(["run", "-p", &policy, "--", "/usr/bin/env"]);
        let inside =
            variables(&to_the_end(command.env("WANTED", "w").env("PRE_A", "p").env("OTHER", "o"), b"").stdout, b'\n');
        let names: Vec<&str> = inside.keys().map(String::as_str).collect();
        assert_eq!(names, ["CI", "COFFERDAM", "COFFERDAM_RUN_ID", "PRE_A", "WANTED"]);
    }
}
