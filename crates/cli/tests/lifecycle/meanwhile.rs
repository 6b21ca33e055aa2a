//! What a verb has read of a sandbox may be past when it opens the layers: somebody was quicker. That is told as what it is, and never
//! as a failure of ours.

use crate::support::{As, Place, binary};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Starts a command in a sandbox that is held up for some seconds where it opens the top layer; what came of it, when `other` was done
/// in between.
fn held_up(place: &Place, id: &str, other: impl FnOnce()) -> Value {
    let told = place.json(&["inspect", id]);
    let layer = told["layers"].as_array().unwrap().last().unwrap().clone();
    let layer = layer["id"].as_str().or(layer.as_str()).unwrap().to_owned();
    let mut command = place.outside("strace");
    command.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=openat2",
        "-e",
        "inject=openat2:delay_enter=8000000:when=1",
    ]);
    command.arg("-P").arg(place.state().join("layers").join(layer));
    command.arg(binary()).args(["exec", "--json", id, "--", "/bin/true"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Whoever is held up later than this finds it done already, and is told the same.
    std::thread::sleep(Duration::from_secs(2));
    other();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)))
}

#[test]
fn a_sandbox_that_was_removed_meanwhile_is_not_there() {
    let place = Place::new(As::User);
    let id = place.create(&[]);
    let told = held_up(&place, &id, || drop(place.json(&["rm", &id])));
    assert_eq!(told["error_kind"], "not_found", "{told:#}");
    // The control: one that nobody touches is only slow.
    let id = place.create(&[]);
    let told = held_up(&place, &id, || {});
    assert_eq!(told["verdict"], "ok", "{told:#}");
}
