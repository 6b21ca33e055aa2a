//! Rejected changes disappear from the workspace, and only they; the base is never touched.

use crate::batch::{hunks, paths, tree};
use crate::fixture::*;
use crate::undoing::motley;
use api::Driver;
use std::fs;
use terms::ErrorKind;
use workspace::select::Selection;

// promise 14
#[test]
fn rejecting_everything_leaves_no_change_and_an_empty_layer() {
    let w = motley();
    let before = tree(&w.base());
    w.reject(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    assert_eq!(tree(&w.base()), before);
    assert_eq!(fs::read_dir(w.up()).unwrap().count(), 0);
}

#[test]
fn rejecting_everything_that_frozen_layers_hold() {
    let mut w = motley();
    w.push_layer();
    write(&w.up(), "changed", "again");
    let before = tree(&w.base());
    w.reject(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    assert_eq!(tree(&w.base()), before);
}

// promise 14
#[test]
fn rejecting_each_change_alone_leaves_the_others() {
    let all = motley().pending();
    for line in &all {
        for frozen in [false, true] {
            let mut w = motley();
            if frozen {
                w.push_layer();
            }
            let path = line.rsplit(' ').next().unwrap();
            let below = format!("{path}/");
            let expected = all.iter().filter(|other| {
                let other = other.rsplit(' ').next().unwrap();
                // A restored file brings its parent directories back.
                let brought = line.starts_with("deleted") && path.starts_with(&format!("{other}/"));
                other != path && !other.starts_with(&below) && !brought
            });
            let expected: Vec<_> = expected.cloned().collect();
            match w.reject(&paths(&[path])) {
                Ok(()) => assert_eq!(w.pending(), expected, "rejected {path}, frozen {frozen}"),
                // A file below a directory that became a file cannot be restored alone.
                Err(fault) => {
                    assert_eq!(fault.error_kind, ErrorKind::Conflict, "{fault}");
                    assert!(path.starts_with("was-dir/"), "{path}: {fault}");
                }
            }
        }
    }
}

#[test]
fn one_file_of_a_deleted_directory_comes_back() {
    let w = motley();
    w.reject(&paths(&["dead/d/e"])).unwrap();
    let stack = w.stack();
    assert!(stack.meta(&rel("dead/d/e")).unwrap().is_some());
    assert!(stack.meta(&rel("dead/f")).unwrap().is_none(), "control: the rest stays deleted");
    let pending = w.pending();
    assert!(
        pending.contains(&"deleted dead/f".to_owned()) && !pending.iter().any(|p| p.ends_with("dead/d/e")),
        "{pending:?}"
    );
}

// promise 14
#[test]
fn a_hunk_is_rejected_alone() {
    let w = StackFixture::new();
    let text = |changed: &[usize]| -> String {
        (0..30).map(|n| if changed.contains(&n) { format!("LINE {n}\n") } else { format!("line {n}\n") }).collect()
    };
    write(&w.base(), "f", text(&[]));
    write(&w.up(), "f", text(&[3, 25]));
    chmod(&w.up(), "f", 0o755);
    let ids = hunk_ids(file(&w.diff(), "f"));
    w.reject(&hunks(&[&ids[0]])).unwrap();
    assert_eq!(fs::read_to_string(w.up().join("f")).unwrap(), text(&[25]));
    assert_eq!(hunk_ids(file(&w.diff(), "f")), ids[1..]);
    assert_eq!(fs::read_to_string(w.base().join("f")).unwrap(), text(&[]));
}

#[test]
fn a_copied_workspace_shows_its_base_again() {
    let mut w = StackFixture::new();
    w.driver = Driver::Copy;
    for (path, text) in [("same", "x"), ("changed", "old"), ("gone", "old"), ("d/gone", "old")] {
        write(&w.base(), path, text);
    }
    write(&w.up(), "same", "x");
    write(&w.up(), "changed", "new");
    write(&w.up(), "added/deep", "new");
    assert_eq!(w.pending().len(), 5, "{:?}", w.pending());
    w.reject(&Selection::all()).unwrap();
    assert_eq!(w.pending(), Vec::<String>::new());
    assert!(!w.up().join("added").exists());
    write(&w.up(), "changed", "newer");
    let batch = w.approve(&Selection::all()).unwrap();
    assert_eq!(fs::read_to_string(w.base().join("changed")).unwrap(), "newer");
    assert_eq!(w.pending(), Vec::<String>::new());
    w.undo(&batch).unwrap();
    assert_eq!(w.pending(), ["modified changed"]);
}

/// A guest replaced a directory of the base with a link to the outside: rejecting the change writes nothing there.
// promise 14
#[test]
fn rejecting_goes_through_no_link_of_the_guest() {
    let w = StackFixture::new();
    let (base, up, outside) = (w.base(), w.up(), w.top.join("outside"));
    write(&outside, "file", "outside\n");
    write(&base, "src/file", "base\n");
    link(&up, "src", outside.to_str().unwrap());
    assert_eq!(w.pending().len(), 2, "the link came and the file went: {:?}", w.pending());
    w.reject(&paths(&["src/file"])).map(drop).unwrap_or_default();
    w.reject(&Selection::all()).unwrap();
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing came there");
    assert_eq!(w.pending(), Vec::<String>::new(), "control: the workspace shows its base again");
    assert_eq!(fs::read_to_string(base.join("src/file")).unwrap(), "base\n");
}
