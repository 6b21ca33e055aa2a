//! Templates.

use crate::snapshots::{FIRST, inside, project, view};
use crate::support::{As, either};
use crate::words::Verbs;

// promise 17
#[test]
fn a_template_is_prepared_once_and_begun_from_often() {
    for who in either() {
        let (place, _) = project(who);
        let made = place.json(&[
            "template",
            "create",
            "warm",
            "--prepare",
            "echo $((6*7)) > answer; date +%N > when",
            "--limit",
            "wall=60s",
        ]);
        let address = made["address"].as_str().unwrap();
        assert!(address.starts_with("warm@sha256:"), "{address}");
        let (one, two) = (place.create(&["--template", "warm"]), place.create(&["--template", address]));
        assert_eq!(inside(&place, &one, "cat answer"), "42\n");
        assert_eq!(view(&place, &one), view(&place, &two), "prepared once");
        let inspected = place.json(&["inspect", &one]);
        assert_eq!(inspected["limits"]["max_wall_ms"], 60_000, "a template carries its limits: {inspected}");
        inside(&place, &one, "echo own > own");
        place.json(&["template", "rm", "warm"]);
        assert_eq!(inside(&place, &two, "cat answer"), "42\n", "what began from it stays");
        place.fault(&["create", "--template", "warm"], "not_found");
    }
}

#[test]
fn a_name_means_one_thing() {
    let (place, id) = project(As::User);
    inside(&place, &id, FIRST);
    let one = place.json(&["template", "create", "base", "--from", &id]);
    let again = place.json(&["template", "create", "base", "--from", &id]);
    assert_eq!((again["unchanged"].as_bool(), &again["address"]), (Some(true), &one["address"]));
    inside(&place, &id, "echo more > more");
    place.fault(&["template", "create", "base", "--from", &id], "conflict");
    place.fault(&["create", "--template", "base@sha256:0123456789abcdef"], "conflict");
    let listed = place.json(&["template", "ls"])["templates"].as_array().unwrap().len();
    assert_eq!(listed, 1);
}

#[test]
fn a_preparation_that_fails_leaves_nothing() {
    let (place, _) = project(As::User);
    let before = (place.states().len(), place.layers().len());
    let output = place.verb(&["template", "create", "bad", "--prepare", "echo x > x; exit 3"]);
    assert!(!output.status.success());
    place.fault(&["template", "inspect", "bad"], "not_found");
    place.json(&["gc"]);
    assert_eq!((place.states().len(), place.layers().len()), before);
}
