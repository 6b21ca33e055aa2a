//! Retention of past records: kept for a time and up to a number, listed before they go, and never removed while a
//! record needs them.

use super::words::{Verbs, text};
use crate::support::{As, Place, either, to_the_end};
use serde_json::Value;

/// Runs a verb with retention settings; returns its document.
#[track_caller]
fn under(place: &Place, keep: &[(&str, &str)], words: &[&str]) -> Value {
    let mut command = place.cofferdam(words.iter().chain(&["--json"]));
    command.envs(keep.iter().map(|(key, value)| (format!("COFFERDAM_KEEP_{key}"), value)));
    let output = to_the_end(&mut command, b"");
    assert!(output.status.success(), "{words:?}: {}{}", text(&output.stderr), text(&output.stdout));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn sorts(document: &Value, sort: &str) -> Vec<String> {
    let items = document["items"].as_array().unwrap().iter().filter(|item| item["sort"] == sort);
    items.map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

fn removed(place: &Place) -> Vec<String> {
    let rows = place.json(&["ls", "--all"])["sandboxes"].as_array().unwrap().clone();
    let gone = rows.iter().filter(|row| row["state"] == "removed");
    gone.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn exec(place: &Place, id: &str, script: &str) {
    let done = place.verb(&["exec", id, "--", "sh", "-c", script]);
    assert!(done.status.success(), "{}", text(&done.stderr));
}

// promise 18
#[test]
fn what_is_past_goes_by_number_and_by_age_and_provenance_stays() {
    for who in either() {
        let place = Place::new(who);
        let stays = place.create(&["--name", "stays"]);
        (0..3).for_each(|_| exec(&place, &stays, "true"));
        // A sandbox whose changes landed.
        let landed = place.create(&["--name", "worker"]);
        exec(&place, &landed, "echo done > result");
        let run = place.json(&["inspect", &landed])["last_runs"][0]["run"].clone();
        place.json(&["diff", &landed]);
        place.json(&["approve", &landed]);
        place.json(&["rm", "--force", &landed]);
        let gone: Vec<String> = (0..4)
            .map(|_| {
                let id = place.create(&[]);
                exec(&place, &id, "true");
                place.json(&["rm", "--force", &id]);
                id
            })
            .collect();
        assert!(place.json(&["gc", "-n"])["items"].as_array().unwrap().is_empty(), "nothing is past by default");
        let keep = [("REMOVED", "2"), ("RUNS", "4"), ("JOURNAL", "20")];
        let listed = under(&place, &keep, &["gc", "--dry-run"]);
        assert_eq!(removed(&place).len(), 5, "listing takes nothing");
        assert_eq!(sorts(&listed, "tombstone"), [landed.as_str(), &gone[0], &gone[1]], "{who:?}: the oldest");
        // Of 8 runs 4 are over the bound; runs of an existing sandbox stay.
        assert_eq!(sorts(&listed, "past_run").len(), 1, "{listed}");
        assert_eq!(sorts(&listed, "past_run")[0], run.as_str().unwrap(), "{listed}");
        assert_eq!(sorts(&listed, "journal").len(), 1, "{listed}");
        let taken = under(&place, &keep, &["gc"]);
        assert_eq!(listed["items"], taken["items"], "{who:?}: what is listed is what goes");
        assert_eq!(removed(&place).len(), 2);
        // A lookup of a collected record says so; the control: a record that is still there gives its date.
        let fault = place.fault(&["inspect", &gone[0]], "not_found");
        assert!(fault["message"].as_str().unwrap().contains("collected"), "{fault}");
        assert!(fault["hint"].as_str().unwrap().contains("audit log"), "{fault}");
        let fault = place.fault(&["inspect", &gone[3]], "not_found");
        assert!(fault["message"].as_str().unwrap().contains("was removed on"), "{fault}");
        let fault = place.fault(&["wait", run.as_str().unwrap()], "not_found");
        assert!(fault["hint"].as_str().unwrap().contains("collected"), "{fault}");
        assert_eq!(place.json(&["inspect", &stays])["last_runs"].as_array().unwrap().len(), 3);
        // Provenance of landed changes is still complete, and the journal is intact.
        let told = place.json(&["provenance", "result"])["batches"][0].clone();
        assert_eq!((&told["sandbox"], &told["sandbox_name"]), (&Value::from(landed.clone()), &Value::from("worker")));
        assert!(told["runs"].as_array().unwrap().contains(&run) && told["at_ms"].is_u64(), "{told}");
        assert!(!told["actor"].as_str().unwrap().is_empty());
        let verified = place.json(&["audit", "verify"]);
        assert!(verified["broken"].is_null() && verified["archived"].as_u64().unwrap() > 0, "{verified}");
        assert_eq!(verified["archived"], verified["archived_here"]);
        // By age, every record goes that may.
        let taken = under(&place, &[("REMOVED_FOR", "1ms"), ("RUNS_FOR", "1ms")], &["gc"]);
        assert_eq!((sorts(&taken, "tombstone").len(), sorts(&taken, "past_run").len()), (2, 4), "{taken}");
        assert_eq!(place.json(&["inspect", &stays])["last_runs"].as_array().unwrap().len(), 3);
        assert!(removed(&place).is_empty());
        place.audit();
    }
}

/// A layer that a removal left behind is known only by the record of the removal, which is collected after the layer:
/// otherwise the layer would be adopted again.
// promise 18
#[test]
fn what_a_removal_left_is_known_for_as_long_as_it_lies_there() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    exec(&place, &id, "echo x > file");
    let layer = place.layers().remove(0);
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    place.dir("keep");
    copied(&layer, &place.root.join("keep"));
    place.json(&["rm", "--force", &id]);
    copied(&place.root.join("keep").join(layer.file_name().unwrap()), &layer);
    let first = under(&place, &[("REMOVED_FOR", "1ms")], &["gc"]);
    assert_eq!((sorts(&first, "dead_layer").len(), sorts(&first, "tombstone").len()), (1, 0), "{first}");
    let second = under(&place, &[("REMOVED_FOR", "1ms")], &["gc"]);
    assert_eq!(sorts(&second, "tombstone"), [id]);
    assert!(place.layers().is_empty() && place.states().is_empty());
}

/// Archived events and entries are reported as archived, and later ones are there.
// promise 18
#[test]
fn what_was_archived_is_told_as_such() {
    let place = Place::new(As::User);
    for _ in 0..12 {
        let id = place.create(&[]);
        place.json(&["rm", &id]);
    }
    let entries = place.audit();
    under(&place, &[("JOURNAL", "10")], &["gc"]);
    let fault = place.fault(&["events", "--from", "1"], "not_found");
    assert!(fault["message"].as_str().unwrap().contains("archived"), "{fault}");
    let shown = place.verb(&["events"]);
    assert!(shown.status.success() && !shown.stdout.is_empty(), "{}", text(&shown.stderr));
    assert!(place.audit() > entries, "numbers go on");
    let told = text(&place.verb(&["audit", "verify"]).stdout);
    assert!(told.contains("are archived"), "{told}");
    // A changed part is detected.
    let parts = std::fs::read_dir(place.state().join("journal")).unwrap();
    let part = parts.map(|part| part.unwrap().path()).next().unwrap();
    let changed = std::fs::read_to_string(&part).unwrap().replacen("create", "creute", 1);
    std::fs::write(&part, changed).unwrap();
    assert_eq!(place.verb(&["audit", "verify"]).status.code(), Some(1));
}
