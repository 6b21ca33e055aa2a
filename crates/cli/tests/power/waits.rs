//! Number of disk syncs per verb. A sync costs more than the rest of a verb, so that none may be added unnoticed.

use crate::support::{As, Place, binary, to_the_end};
use std::fs;

const CALLS: &str = "trace=fsync,fdatasync,syncfs,sync_file_range,msync,sync";

/// Number of sync calls that a verb makes, child processes included.
fn waits(place: &Place, words: &[&str]) -> usize {
    let log = place.file("waits", "");
    let mut command = place.outside("/usr/bin/strace");
    command.args(["-f", "-e", CALLS, "-o"]).arg(&log).arg(binary()).args(words);
    let output = to_the_end(&mut command, b"");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&log).unwrap();
    text.lines().filter(|line| line.contains("sync") && line.contains('(') && !line.contains("resumed")).count()
}

/// Upper bound of syncs per verb once there is a state directory, with the reason for each.
// promise 15
#[test]
fn verbs_wait_for_the_disk_no_more_than_they_must() {
    let place = Place::new(As::Root);
    for n in 0..4 {
        place.file(format!("home/project/{n}"), "of the base\n");
    }
    // Creating the state directory and the directory of batches costs syncs once.
    let make = |name: &str| ["create", ".", "--name", name].map(str::to_owned);
    let first = make("zero");
    waits(&place, &first.iter().map(String::as_str).collect::<Vec<_>>());
    waits(&place, &["exec", "zero", "--", "sh", "-c", "echo x > 0"]);
    waits(&place, &["approve", "zero", "--unseen"]);
    let edit = "echo x > 1; rm 2; echo new > new";
    let table: &[(&[&str], usize, &str)] = &[
        (&["create", ".", "--name", "one"], 3, "the layer, its name, the record"),
        (&["exec", "one", "--", "sh", "-c", edit], 2, "that it begins, and how it ended"),
        (&["diff", "one"], 0, "who loses that it was shown looks again"),
        (&["snapshot", "one"], 0, "its bytes do not wait either"),
        (&["exec", "one", "--", "sh", "-c", "echo y > 3"], 2, "the same"),
        (&["snapshot", "one", "--sync"], 2, "all layers, the record"),
        (&["fork", "one", "--name", "two"], 1, "the record, with that of the snapshot"),
        (&["ls"], 0, "nothing is written"),
        // The intent; copies of 1, 2 and 3 and new files for 1, new and 3; their directory, the batch's name; the plan
        // and its name; the renames; the result; the removal of leftovers.
        (&["approve", "one", "--unseen"], 14, "as listed"),
        // The change that is put back into the workspace; then the same as the approval, with copies of four files.
        (&["undo", "one"], 15, "as listed"),
        (&["reject", "one", "--all"], 4, "each of three files that is laid over a frozen one, the result"),
        (&["run", "--", "sh", "-c", "echo z > z"], 3, "the layer, its name; sandbox and run in one record"),
        (&["run", "--", "true"], 0, "no record"),
        (&["stop", "one"], 1, "that it is stopped"),
        (&["start", "one"], 1, "that it is not"),
        (&["rm", "two"], 1, "that it is removed"),
        (&["gc"], 1, "what was collected"),
    ];
    let mut excess = Vec::new();
    for (words, most, why) in table {
        let count = waits(&place, words);
        println!("{:<60} {count} of {most}: {why}", words.join(" "));
        if count > *most {
            excess.push(format!("{words:?} waits {count} times, not {most}"));
        }
    }
    assert!(excess.is_empty(), "{excess:#?}");
}
