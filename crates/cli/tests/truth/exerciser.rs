//! fsx: thousands of seeded reads, writes, mappings, holes and truncations of one file, with self-checks. The final
//! content must equal that of the same seed outside, and that in the diff.

use crate::inside::{Inside, bring, stdout_of};
use crate::support::{As, BOTH, Place};
use serde_json::Value;
use std::fs;

/// Operations on a file that is created, or truncated to nothing.
const FREE: &str = "flen = 262144\n[weights]\nclose_open = 1\ninvalidate = 1\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\n\
    punch_hole = 1\nsendfile = 1\nposix_fadvise = 1\ncopy_file_range = 1\n";

/// Operations on a file whose size stays fixed.
const FIXED: &str = "blockmode = true\n[weights]\ninvalidate = 1\nfsync = 1\nfdatasync = 1\npunch_hole = 1\nsendfile = 1\n\
    posix_fadvise = 1\ncopy_file_range = 1\ntruncate = 0\n";

const FILES: [(&str, &str); 3] = [("made", "free.toml"), ("emptied", "free.toml"), ("kept", "fixed.toml")];

// promise 12
#[test]
fn fsx_leaves_the_same_bytes_inside_as_outside() {
    let outside = place(As::User);
    exercise(|words| stdout_of(outside.outside(words[0]).args(&words[1..]), "fsx outside"));
    for who in BOTH {
        let place = place(who);
        let inside = Inside::new(&place);
        exercise(|words| inside.stdout_of(words));
        let diff = inside.diff();
        for (name, _) in FILES {
            let sum = |text: String| text.split(' ').next().unwrap_or_default().to_owned();
            let expected = sum(stdout_of(outside.outside("sha256sum").arg(name), "sha256sum"));
            assert_eq!(sum(inside.stdout_of(&["sha256sum", name])), expected, "{who:?}: {name}");
            let change = diff["files"].as_array().unwrap().iter().find(|file| file["path"] == name);
            let digest = change.and_then(|file| file.pointer("/after/digest")).and_then(Value::as_str);
            assert_eq!(digest, Some(expected.as_str()), "{who:?}: {name} in the diff");
            let in_base = fs::read(place.project.join(name)).ok();
            assert_eq!(in_base, (name != "made").then(content), "{who:?}: {name} in the base");
        }
    }
}

/// A project with the tool, its configuration and the initial files.
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

/// Two runs per file, with different seeds: the second continues on the first one's result.
fn exercise(run: impl Fn(&[&str]) -> String) {
    for seed in ["7", "8"] {
        for (name, configuration) in FILES {
            let output = run(&["./fsx", "-N", "600", "-S", seed, "-f", configuration, "-P", "/tmp", name]);
            assert!(output.contains("A-OK"), "{name}, seed {seed}: {output}");
        }
    }
}
