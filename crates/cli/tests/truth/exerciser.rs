//! fsx: thousands of seeded reads, writes, mappings, holes and truncations of one file, which checks itself. The bytes that it
//! leaves must be those that the same seed leaves outside, and those that a diff tells of.

use crate::inside::{Inside, bring, said};
use crate::support::{As, BOTH, Place};
use serde_json::Value;
use std::fs;

/// A file that is made, or cut to nothing when it is there.
const FREE: &str = "flen = 262144\n[weights]\nclose_open = 1\ninvalidate = 1\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\n\
    punch_hole = 1\nsendfile = 1\nposix_fadvise = 1\ncopy_file_range = 1\n";

/// A file whose size stays what it was.
const FIXED: &str = "blockmode = true\n[weights]\ninvalidate = 1\nfsync = 1\nfdatasync = 1\npunch_hole = 1\nsendfile = 1\n\
    posix_fadvise = 1\ncopy_file_range = 1\ntruncate = 0\n";

const FILES: [(&str, &str); 3] = [("made", "free.toml"), ("emptied", "free.toml"), ("kept", "fixed.toml")];

#[test]
fn fsx_leaves_the_same_bytes_inside_as_outside() {
    let outside = place(As::User);
    exercise(|words| said(outside.outside(words[0]).args(&words[1..]), "fsx outside"));
    for who in BOTH {
        let place = place(who);
        let inside = Inside::new(&place);
        exercise(|words| inside.said(words));
        let diff = inside.diff();
        for (name, _) in FILES {
            let sum = |text: String| text.split(' ').next().unwrap_or_default().to_owned();
            let expected = sum(said(outside.outside("sha256sum").arg(name), "sha256sum"));
            assert_eq!(sum(inside.said(&["sha256sum", name])), expected, "{who:?}: {name}");
            let told = diff["files"].as_array().unwrap().iter().find(|file| file["path"] == name);
            let digest = told.and_then(|file| file.pointer("/after/digest")).and_then(Value::as_str);
            assert_eq!(digest, Some(expected.as_str()), "{who:?}: {name} in the diff");
            let in_base = fs::read(place.project.join(name)).ok();
            assert_eq!(in_base, (name != "made").then(content), "{who:?}: {name} in the base");
        }
    }
}

/// A project with the tool, its settings and the files that are there before.
fn place(who: As) -> Place {
    let place = Place::new(who);
    bring(&place, "fsx");
    place.file("home/project/free.toml", FREE);
    place.file("home/project/fixed.toml", FIXED);
    for name in ["emptied", "kept"] {
        place.file(format!("home/project/{name}"), content());
    }
    place
}

fn content() -> Vec<u8> {
    (0..100_000u32).map(|n| (n % 251 * (n % 241) % 256) as u8).collect()
}

/// Two runs of each file, with other seeds: the second finds what the first left.
fn exercise(run: impl Fn(&[&str]) -> String) {
    for seed in ["7", "8"] {
        for (name, configuration) in FILES {
            let told = run(&["./fsx", "-N", "600", "-S", seed, "-f", configuration, "-P", "/tmp", name]);
            assert!(told.contains("A-OK"), "{name}, seed {seed}: {told}");
        }
    }
}
