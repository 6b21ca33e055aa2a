//! A kernel without some mechanisms: each missing one is named, and nothing is weakened without consent.

use crate::machine;
use crate::place::{As, outcome, run};
use serde_json::{Value, json};

/// Mechanisms of every run that Linux 6.1 lacks.
const MISSING: [&str; 3] = ["landlock.truncate", "landlock.ioctl_dev", "landlock.scope"];

// promise 10
#[test]
fn what_is_missing_is_named_and_nothing_runs_without_consent() {
    let machine = machine::old();
    for who in [As::Root, As::Plain] {
        let answer = machine.bash(&format!("cd /; {} cofferdam doctor --json", who.word()));
        assert_eq!(answer.status, 1, "{who:?}: {answer:?}");
        let report = answer.json();
        let failed: Vec<&str> = report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|c| c["ok"] == false && c["required"] == true)
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        for name in MISSING {
            assert!(failed.contains(&name), "{who:?}: {name} is not among {failed:?}");
        }
        let answer = run(machine, who, "", "echo ran");
        let o = outcome(&answer, who, "run");
        assert_eq!((answer.status, &o["error_kind"]), (125, &json!("unsupported_host")), "{who:?}: {o:#}");
        assert!(o["message"].as_str().unwrap().contains("landlock."), "{o:#}");
        consented(who, &report);
    }
}

/// With `degrade` for what the doctor names, an ordinary user's run starts and reports the missing mechanisms. Root,
/// whose files cannot be shown to a guest on this kernel, is still refused by name.
fn consented(who: As, report: &Value) {
    let machine = machine::old();
    let policy = json!({"version": 1, "extends": ["default"], "degrade": MISSING}).to_string();
    machine.bash(&format!("echo '{policy}' > /tmp/consent.json; chmod 644 /tmp/consent.json")).assert_ok();
    let answer = run(machine, who, "-s /tmp/consent.json", "echo ran");
    let o = outcome(&answer, who, "consent");
    if report["level"] == "partial" {
        assert_eq!((answer.status, &o["enforcement"]["level"]), (0, &json!("partial")), "{who:?}: {o:#}");
        assert_eq!(o["enforcement"]["missing"], json!(MISSING), "{who:?}: {o:#}");
    } else {
        assert_eq!((answer.status, &o["error_kind"]), (125, &json!("unsupported_host")), "{who:?}: {o:#}");
    }
    assert!(!answer.err.contains("panicked"), "{who:?}: {}", answer.err);
}
