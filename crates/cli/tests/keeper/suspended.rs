//! Suspend and resume: frozen processes continue, hibernated services start again, and a request wakes a sandbox.

use crate::place::{LiveSandbox, soon};
use crate::support::{Place, either};
use crate::words::{Verbs, text};
use serde_json::json;
use std::process::Stdio;

const TICK: &str = "tick=while :; do echo x >> ticks; sleep 0.05; done";

fn ticks(place: &Place) -> usize {
    let layer = place.layers().into_iter().next().unwrap();
    std::fs::read(layer.join("up/ticks")).map_or(0, |bytes| bytes.len())
}

// promise 20
#[test]
fn frozen_it_stands_still_and_goes_on_where_it_was() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &["--service", TICK]);
        let run = live.detach(&["-t", "280s"], "i=0; while [ ! -e go ]; do i=$((i+1)); sleep 0.05; done; echo same $$");
        soon(|| ticks(&place) > 2);
        let done = place.json(&["suspend", &live.id]);
        assert_eq!((&done["reached"], &done["changed"]), (&json!("frozen"), &json!(true)), "{who:?}");
        let before = ticks(&place);
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(ticks(&place) <= before + 1, "{who:?}: it goes on");
        assert_eq!(live.inspect()["standing"], "frozen");
        assert_eq!(place.json(&["suspend", &live.id])["changed"], false);
        place.fault(&["rm", &live.id], "conflict");
        let woken = place.json(&["resume", &live.id]);
        assert_eq!((&woken["was"], &woken["changed"]), (&json!("frozen"), &json!(true)));
        soon(|| ticks(&place) > before + 2);
        assert_eq!(place.json(&["resume", &live.id])["changed"], false);
        // A request thaws it, too.
        place.json(&["suspend", &live.id]);
        assert_eq!(live.sh(&[], "touch go; echo awake", b"").stdout, b"awake\n");
        assert_eq!(live.inspect()["standing"], "running");
        let outcome = live.outcome(&run);
        assert_eq!(outcome["success"], true, "{outcome}");
        assert!(text(&live.logs(&[&run]).stdout).starts_with("same"));
    }
}

// promise 20
#[test]
fn hibernated_it_keeps_files_and_services() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &["--service", TICK]);
        let run = live.detach(&[], "trap 'echo kept > file; exit 0' TERM; touch ready; while :; do sleep 0.05; done");
        soon(|| live.sh(&[], "test -e ready", b"").status.success());
        let done = place.json(&["suspend", "--hibernate", &live.id]);
        assert_eq!(done["reached"], "hibernated", "{who:?}");
        assert_eq!(done["ended"].as_array().unwrap().len(), 2, "{done}");
        let whole = live.inspect();
        assert_eq!((&whole["standing"], &whole["live"]), (&json!("hibernated"), &json!(false)));
        assert_eq!(live.outcome(&run)["exit"]["code"], 0, "it was asked first");
        let before = ticks(&place);
        let woken = place.json(&["resume", &live.id]);
        assert_eq!((&woken["was"], woken["started"].as_array().unwrap().len()), (&json!("hibernated"), 1));
        soon(|| ticks(&place) > before);
        assert_eq!(live.sh(&[], "cat file", b"").stdout, b"kept\n");
        // A request wakes it as well, with its services.
        place.json(&["suspend", "--hibernate", &live.id]);
        let before = ticks(&place);
        assert_eq!(live.sh(&[], "echo awake", b"").stdout, b"awake\n");
        soon(|| ticks(&place) > before);
        assert_eq!(live.inspect()["standing"], "running");
        place.json(&["stop", &live.id]);
        place.fault(&["suspend", &live.id], "conflict");
        place.fault(&["resume", &live.id], "conflict");
    }
}

#[test]
fn services_are_declared_with_care() {
    let place = Place::new(crate::support::As::User);
    for bad in ["no-command", "=x", "a b=x", "web="] {
        place.fault(&["create", "--service", bad], "invalid_request");
    }
    place.fault(&["create", "--service", "a=true", "--service", "a=true"], "invalid_request");
    let live = LiveSandbox::new(&place, &["--service", "once=echo $0 ran; exit 3"]);
    soon(|| live.inspect()["last_runs"][0]["status"] == 3);
    let run = live.inspect()["last_runs"][0].clone();
    assert_eq!(run["service"], "once");
    assert_eq!(live.logs(&[run["run"].as_str().unwrap()]).stdout, b"sh ran\n");
}

/// Attaching to a frozen command, or signalling it, thaws it.
#[test]
fn a_frozen_command_hears_who_comes_to_it() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(&place, &[]);
        let run = live.detach(&[], "trap 'echo asked; exit 5' TERM; touch ready; while :; do sleep 0.05; done");
        soon(|| live.sh(&[], "test -e ready", b"").status.success());
        let freeze = || {
            place.json(&["suspend", &live.id]);
            assert_eq!(live.inspect()["standing"], "frozen", "{who:?}");
        };
        freeze();
        live.logs(&[&run]);
        assert_eq!(live.inspect()["standing"], "frozen", "the control: who only reads wakes nothing");
        let mut attached =
            place.cofferdam(["attach", &run]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        soon(|| live.inspect()["standing"] == "running");
        freeze();
        place.json(&["kill", "-s", "TERM", &run]);
        assert_eq!(live.outcome(&run)["exit"]["code"], 5, "{who:?}");
        assert_eq!(attached.wait().unwrap().code(), Some(5), "{who:?}");
    }
}
