//! Services that exit: restarted with growing delays and given up at last; never restarted after a requested end.

use crate::place::{LiveSandbox, soon};
use crate::support::{As, Place, either};
use crate::words::Verbs;
use serde_json::{Value, json};
use std::fs;

/// A service's state by `inspect`.
fn now(live: &LiveSandbox<'_>, name: &str) -> Value {
    let all = live.inspect()["services_now"].clone();
    all.as_array().unwrap().iter().find(|service| service["name"] == name).cloned().unwrap_or_default()
}

fn lines(live: &LiveSandbox<'_>, file: &str) -> usize {
    live.sh(&[], &format!("cat {file}"), b"").stdout.split(|b| *b == b'\n').count() - 1
}

// promise 20
#[test]
fn what_fails_is_started_again_and_given_up_at_last() {
    for who in either() {
        let place = Place::new(who);
        let live = LiveSandbox::new(
            &place,
            &[
                "--policy",
                "workspace-write",
                "--service",
                "bad=echo once >> bad; exit 7",
                "--service",
                "good=echo once >> good; exec sleep 1000",
            ],
        );
        soon(|| now(&live, "bad")["restarts"].as_u64() > Some(0));
        soon(|| now(&live, "bad")["state"] == "failed");
        let bad = now(&live, "bad");
        assert_eq!((&bad["restarts"], &bad["last"]), (&json!(5), &json!("ended with status 7")), "{bad}");
        assert_eq!(lines(&live, "bad"), 6, "the first and five more");
        assert_eq!((&now(&live, "good")["state"], &now(&live, "good")["restarts"]), (&json!("running"), &json!(0)));
        let events = place.json(&["audit", "log", &live.id]);
        let told = events["entries"].as_array().unwrap().iter().filter(|entry| entry["verb"] == "service");
        let told: Vec<&Value> = told.collect();
        assert!(told.len() == 1 && told[0]["step"] == "failed" && told[0]["body"]["service"] == "bad", "{told:?}");
        // A sandbox that is live again tries its services again.
        place.json(&["stop", &live.id]);
        assert_eq!(now(&live, "good")["state"], "stopped");
        place.json(&["start", "--live", &live.id]);
        soon(|| lines(&live, "bad") > 6 && lines(&live, "good") == 2);
    }
}

// promise 20
#[test]
fn whoever_is_told_to_end_stays_ended() {
    let place = Place::new(As::User);
    let words = [
        ["--policy", "workspace-write"],
        ["--service", "often=echo once >> often; sleep 0.1"],
        ["--service", "done=echo once >> done"],
        ["--service", "never=exit 1"],
        ["--service", "killed=echo $$ > pid; exec sleep 1000"],
        ["--restart", "always"],
        ["--restart", "done=on-failure"],
        ["--restart", "never=never"],
    ];
    place.fault(&["create", "--service", "a=true", "--restart", "sometimes"], "invalid_request");
    place.fault(&["create", "--service", "a=true", "--restart", "b=never"], "invalid_request");
    let live = LiveSandbox::new(&place, &words.concat());
    soon(|| lines(&live, "often") >= 3);
    soon(|| now(&live, "done")["state"] == "ended" && now(&live, "never")["state"] == "ended");
    assert_eq!(now(&live, "never")["last"], "ended with status 1");
    let run = now(&live, "killed")["run"].as_str().unwrap().to_owned();
    place.json(&["kill", &run]);
    soon(|| now(&live, "killed")["state"] == "ended");
    // A service that dies, also by a signal from inside, is restarted.
    place.json(&["stop", &live.id]);
    place.json(&["start", "--live", &live.id]);
    soon(|| now(&live, "killed")["state"] == "running");
    soon(|| live.sh(&[], "kill -9 $(cat pid)", b"").status.success());
    soon(|| now(&live, "killed")["restarts"] == 1 && now(&live, "killed")["state"] == "running");
    assert_eq!((&now(&live, "done")["restarts"], lines(&live, "done")), (&json!(0), 2));
    // No service starts while the sandbox is hibernated or stopped.
    place.json(&["suspend", "--hibernate", &live.id]);
    let layer = place.json(&["inspect", &live.id])["layers"][0].as_str().unwrap().to_owned();
    let often = || fs::read(place.state().join("layers").join(&layer).join("up/often")).unwrap().len();
    let before = often();
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(often(), before);
    assert_eq!(now(&live, "often")["state"], "stopped");
    place.json(&["resume", &live.id]);
    soon(|| often() > before);
}
