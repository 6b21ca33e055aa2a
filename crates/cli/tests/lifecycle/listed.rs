//! Lists of sandboxes and of their commands, and removal of many at once.

use super::words::{Verbs, text};
use crate::support::terminal::at_terminal;
use crate::support::{BOTH, Place, either};
use serde_json::{Value, json};

fn sandboxes(place: &Place) -> Vec<Value> {
    place.json(&["ls"])["sandboxes"].as_array().unwrap().clone()
}

#[test]
fn a_list_tells_command_changes_and_size() {
    for who in either() {
        let place = Place::new(who);
        place.file("home/project/old/a", "a");
        place.file("home/project/old/b", "b");
        let told = place.sh(&["--name", "cleaned"], "rm -r old; echo new > new").stderr();
        assert!(told.contains("4 files changed in cleaned"), "as diff counts them: {told}");
        let row = sandboxes(&place).pop().unwrap();
        assert_eq!((&row["pending"]["changes"], &row["command"][2]), (&4.into(), &"rm -r old; echo new > new".into()));
        assert!(row["disk"]["bytes"].as_u64().unwrap() > 0 && row["created_ms"].is_u64(), "{row}");
        let shown = text(&place.verb(&["ls"]).stdout);
        let head = shown.lines().next().unwrap();
        assert!(["CHANGES", "SIZE", "AGE", "COMMAND"].iter().all(|column| head.contains(column)), "{head}");
        assert!(shown.contains("rm -r old; echo new"), "{shown}");
        assert_eq!(text(&place.verb(&["diff", "cleaned", "--name-only"]).stdout).lines().count(), 4);
        // What is withheld is told as that.
        let told = place.sh(&[], "mkdir node_modules; touch node_modules/1 node_modules/2").stderr();
        assert!(told.contains("withheld from review in sbx_"), "{told}");
    }
}

#[test]
fn commands_that_have_ended_are_listed_on_request() {
    for who in either() {
        let place = Place::new(who);
        place.create(&["--name", "one"]);
        place.create(&["--name", "two"]);
        for (name, script) in [("one", "exit 3"), ("two", "true")] {
            place.verb(&["exec", name, "--", "sh", "-c", script]);
        }
        let runs = |words: &[&str]| place.json(words)["runs"].as_array().unwrap().clone();
        assert_eq!((runs(&["ps"]).len(), runs(&["ps", "-a"]).len()), (0, 2), "{who:?}");
        let one = runs(&["ps", "-a", "one"]);
        assert_eq!((one.len(), &one[0]["status"], &one[0]["running"]), (1, &3.into(), &false.into()), "{one:?}");
        let run = place.json(&["start", "--live", "two"])["id"].as_str().unwrap().to_owned();
        let id = text(&place.verb(&["exec", "-d", "two", "--", "sleep", "3600"]).stdout).trim().to_owned();
        assert_eq!((runs(&["ps", "two"])[0]["run"].as_str(), runs(&["ps", "one"]).len()), (Some(&*id), 0), "{run}");
        let shown = text(&place.verb(&["ps", "-a"]).stdout);
        assert!(shown.contains("ended (3)") && shown.contains("running"), "{shown}");
        place.fault(&["ps", "nosuch"], "not_found");
    }
}

// promise 18
#[test]
fn many_are_removed_at_once_and_only_on_purpose() {
    for who in BOTH {
        let place = Place::new(who);
        for name in ["a", "b", "live"] {
            place.create(&["--name", name]);
        }
        place.json(&["start", "--live", "live"]);
        let asked = place.fault(&["rm", "--all"], "invalid_request");
        assert!(asked["hint"].as_str().unwrap().contains("--force"), "{asked}");
        assert_eq!(place.verb(&["rm", "--all", "a"]).status.code(), Some(2));
        let wrong = place.fault(&["rm", "--older", "soon", "--force"], "invalid_request");
        assert!(wrong["message"].as_str().unwrap().contains("--older \"soon\""), "{wrong}");
        let none = place.json(&["rm", "--older", "7d", "--force"]);
        assert_eq!((none["removed"].as_array().unwrap().len(), sandboxes(&place).len()), (0, 3), "{who:?}");
        // On a terminal a question comes first, and what lives is refused.
        let answer = |answer: &str| {
            let steps = json!([["expect", "[y/N] "], ["send", answer]]);
            at_terminal(&place, &["rm", "--all"], steps).assert_code(0).text.clone()
        };
        let refused = at_terminal(&place, &["rm", "--all"], json!([])).assert_code(125).text.clone();
        assert!(refused.contains("1 of 3 sandboxes run or are live: live"), "{refused}");
        place.json(&["stop", "live"]);
        assert!(answer("n\n").contains("nothing was removed"));
        assert_eq!(sandboxes(&place).len(), 3);
        assert!(answer("y\n").contains("remove 3 sandboxes with 0 changes"));
        assert_eq!(sandboxes(&place).len(), 0, "{who:?}");
        let id = place.create(&["--name", "live"]);
        place.json(&["start", "--live", "live"]);
        let removed = place.json(&["rm", "--older", "1ms", "--force"]);
        assert_eq!(removed["removed"][0]["id"], Value::String(id), "{removed}");
        assert!(place.layers().is_empty());
    }
}
