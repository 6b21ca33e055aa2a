//! Imports at a daemon under the client's own policies: several files and a preset at once all arrive.

use crate::support::http::Daemon;
use crate::support::{Place, either, to_the_end};
use serde_json::{Value, json};
use std::process::Output;

/// Runs `cofferdam ARGS…` as a client without a state directory.
fn asked(place: &Place, daemon: &Daemon, args: &[&str]) -> Output {
    let mut command = place.cofferdam(args);
    command.env("COFFERDAM_SERVER", &daemon.socket).env("COFFERDAM_STATE", place.root.join("none"));
    to_the_end(&mut command, b"")
}

/// Writes a policy file that denies these files of the workspace.
fn denying(place: &Place, names: &[String]) -> String {
    let rules = names.iter().map(|name| json!({"action": "deny", "path": format!("$WORKSPACE/{name}")}));
    place.policy(json!({"version": 1, "extends": ["default"], "fs": {"rules": rules.collect::<Vec<_>>()}}))
}

// promise 27
#[test]
fn an_import_takes_every_policy_file_along() {
    for who in either() {
        let place = Place::new(who);
        let daemon = Daemon::start(&place);
        let ok = |args: &[&str]| {
            let out = asked(&place, &daemon, args);
            assert!(out.status.success(), "{who:?} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8(out.stdout).unwrap()
        };
        ok(&["create", "--name", "from"]);
        ok(&["exec", "from", "--", "sh", "-c", "for f in first second third; do echo $f > $f; done"]);
        ok(&["stop", "from"]);
        ok(&["export", "from", "out.zst"]);
        let [first, second] = ["first", "second"].map(|name| denying(&place, &[name.to_owned()]));
        ok(&["import", "out.zst", "--onto", ".", "--name", "both", "-p", &first, "-p", "no-network", "-p", &second]);
        ok(&["import", "out.zst", "--onto", ".", "--name", "one", "-p", &first]);
        let reads = |sandbox: &str, file: &str| {
            let out = asked(&place, &daemon, &["exec", sandbox, "--", "cat", file]);
            out.status.success() && out.stdout == format!("{file}\n").as_bytes()
        };
        let seen = |sandbox: &str| ["first", "second", "third"].map(|file| reads(sandbox, file));
        assert_eq!(seen("both"), [false, false, true], "{who:?}: both files hold, and nothing else is denied");
        assert_eq!(seen("one"), [false, true, true], "{who:?}: the control");
        // Policies too large for the request head are refused by the client, and nothing is created.
        let many: Vec<String> = (0..300).map(|number| format!("third-{number}")).collect();
        let large = denying(&place, &many);
        let out =
            asked(&place, &daemon, &["import", "out.zst", "--onto", ".", "--name", "large", "-p", &large, "--json"]);
        let fault: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((fault["error_kind"].as_str(), out.status.code()), (Some("unsupported_host"), Some(125)), "{fault}");
        assert!(fault["hint"].as_str().unwrap().contains("without --server"), "{fault}");
        let all: Value = serde_json::from_str(&ok(&["ls", "--json"])).unwrap();
        let mut names: Vec<_> = all["sandboxes"].as_array().unwrap().iter().map(|s| s["name"].as_str()).collect();
        names.sort();
        assert_eq!(names, ["both", "from", "one"].map(Some), "{who:?}");
    }
}
