//! Races between reading a sandbox's record and opening its layers: a concurrent change is reported as such,
//! never as an internal fault.

use crate::support::{As, Place, binary};
use crate::words::{Verbs, text};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Runs a command that strace delays where it opens the top layer; returns its result after `other` was done in
/// between.
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
    // A command that is delayed later than this finds it done already, and reports the same.
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
    // The control: an untouched sandbox is only slow.
    let id = place.create(&[]);
    let told = held_up(&place, &id, || {});
    assert_eq!(told["verdict"], "ok", "{told:#}");
}
