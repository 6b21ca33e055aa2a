//! Attacks through arguments of the review verbs: paths that lead out of the project, and directories that share its
//! prefix.

use crate::review_unseen::Desk;
use crate::support::{BOTH, Place};
use std::fs;

/// Every verb with a path argument refuses a path outside, in any spelling.
// promise 14
#[test]
fn no_word_names_a_file_outside_the_project() {
    for who in BOTH {
        let place = Place::new(who);
        let name = place.project.file_name().unwrap().to_str().unwrap().to_owned();
        let twin = place.project.with_file_name(format!("{name}-evil"));
        place.dir(&twin);
        place.file(twin.join("file"), "canary\n");
        let desk = Desk::new(place, &[("dir/file", "base\n")], "echo new > dir/file; ln -s ../dir dir/up");
        let absolute = twin.join("file").to_str().unwrap().to_owned();
        let up = format!("../{name}-evil/file");
        let deep = format!("dir/../../{name}-evil/file");
        let seen = desk.ok(&["diff", "agent", "--json"]);
        assert!(!seen.contains("canary"));
        for path in [absolute.as_str(), up.as_str(), deep.as_str(), "..", "/", "/etc/passwd", "dir/up/file"] {
            for verb in ["diff", "approve", "reject"] {
                let fault = desk.fault(&[verb, "agent", path, "--json"]);
                let kind = fault["error_kind"].as_str().unwrap();
                assert!(["invalid_request", "not_found"].contains(&kind), "{verb} {path}: {fault}");
            }
        }
        assert_eq!(fs::read_to_string(twin.join("file")).unwrap(), "canary\n");
        let inside = desk.place.project.join("dir/../dir/file");
        desk.ok(&["approve", "agent", inside.to_str().unwrap()]);
        assert_eq!(fs::read_to_string(desk.place.project.join("dir/file")).unwrap(), "new\n", "control");
    }
}
