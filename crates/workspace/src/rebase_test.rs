//! Rebases over trees that are built by hand in the form of overlayfs.

use crate::anchor::Anchors;
use crate::diff::{Options, diff};
use crate::git::CommittedFile;
use crate::layer::{Layer, Stack};
use crate::rebase::{MergeBase, Rebase, now, plan};
use crate::testing::{Scratch, picture};
use api::{Diff, Driver, RebaseFate, Rel};
use std::collections::BTreeMap;
use std::time::Duration;
use terms::Fault;

struct Bench {
    tree: Scratch,
    stack: Stack,
    old: BTreeMap<Rel, Vec<u8>>,
}

impl Bench {
    /// A base with these files and `layers` empty layers over it; every later change of the base is drift.
    fn new(files: &[(&str, &str)], layers: usize) -> Bench {
        let tree = Scratch::new();
        let base = tree.mkdir("base");
        files.iter().for_each(|(name, text)| tree.file(&format!("base/{name}"), text.as_bytes()));
        let layers = (0..layers).map(|n| {
            let up = tree.mkdir(&format!("layers/{n}/up"));
            Layer { id: n.to_string(), dir: tree.mkdir(&format!("layers/{n}")), up }
        });
        let layers = layers.collect();
        std::thread::sleep(Duration::from_millis(30));
        let stack = Stack { base, driver: Driver::Overlay, layers, since: now() };
        std::thread::sleep(Duration::from_millis(10));
        let old = files.iter().map(|(name, text)| (Scratch::rel(name), text.as_bytes().to_vec())).collect();
        Bench { tree, stack, old }
    }

    fn up(&self, name: &str, text: &str) {
        self.tree.file(&format!("layers/{}/up/{name}", self.stack.layers.len() - 1), text.as_bytes());
    }

    fn base(&self, name: &str, text: &str) {
        self.tree.file(&format!("base/{name}"), text.as_bytes());
    }

    fn seen(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        let mut file = self.stack.file(&Scratch::rel(name)).ok()?;
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        Some(text)
    }

    fn diff(&self, anchors: &Anchors) -> Diff {
        diff(&self.stack, anchors, &Options::default()).unwrap()
    }

    fn rebase(&self, anchors: &Anchors, before: MergeBase<'_>) -> Result<Rebase, Fault> {
        let diff = self.diff(anchors);
        let rebase = plan(&self.stack, &diff, anchors, before)?;
        rebase.carry_out(&self.stack, &diff, before)?;
        Ok(rebase)
    }

    /// With a known merge base, as from git.
    fn knowing(&self, path: &Rel) -> Result<CommittedFile, Fault> {
        Ok(self.old.get(path).map_or(CommittedFile::Absent, |bytes| CommittedFile::File(bytes.clone())))
    }
}

fn unknown(_: &Rel) -> Result<CommittedFile, Fault> {
    Ok(CommittedFile::Unknown)
}

fn fates(rebase: &Rebase) -> Vec<(String, &RebaseFate)> {
    rebase.moved.iter().map(|moved| (moved.path.to_string(), &moved.fate)).collect()
}

fn conflict(why: &str, marks: bool) -> RebaseFate {
    RebaseFate::Conflict { why: why.into(), marks }
}

const TEN: &str = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n";

// promise 17
#[test]
fn changes_of_both_sides_are_merged_and_drift_is_over() {
    let mut bench = Bench::new(&[("a", TEN), ("b", TEN), ("c", TEN)], 1);
    bench.up("a", &TEN.replace("2\n", "two\n"));
    bench.up("b", &TEN.replace("2\n", "two\n"));
    bench.base("a", &TEN.replace("9\n", "nine\n"));
    let anchors = Anchors::default();
    assert!(bench.diff(&anchors).files.iter().any(|f| f.change.drifted), "there is drift to be dealt with");
    let since = now();
    let rebase = bench.rebase(&anchors, &|path| bench.knowing(path)).unwrap();
    assert_eq!(fates(&rebase), [("a".to_owned(), &RebaseFate::Merged)]);
    assert_eq!(bench.seen("a").unwrap(), TEN.replace("2\n", "two\n").replace("9\n", "nine\n"));
    assert_eq!(bench.seen("b").unwrap(), TEN.replace("2\n", "two\n"), "what did not drift is left alone");
    assert_eq!(bench.tree.read("base/a"), TEN.replace("9\n", "nine\n").as_bytes(), "the base is only read");
    bench.stack.since = since;
    let after = bench.diff(&rebase.anchors);
    assert!(after.files.iter().all(|f| !f.change.drifted), "{after:?}");
    assert_eq!(after.files.len(), 2);
    std::thread::sleep(Duration::from_millis(30));
    bench.base("b", "moved again\n");
    let after = bench.diff(&rebase.anchors);
    let drifted: Vec<_> = after.files.iter().filter(|f| f.change.drifted).map(|f| f.change.path.to_string()).collect();
    assert_eq!(drifted, ["b"], "later drift is seen, also of files that had none");
}

// promise 17
#[test]
fn what_cannot_be_merged_is_marked_or_kept_and_told() {
    let bench = Bench::new(&[("both", TEN), ("gone-here", TEN), ("gone-there", TEN), ("bin", "\0 1"), ("dir", TEN)], 1);
    bench.up("both", &TEN.replace("5\n", "ours\n"));
    bench.base("both", &TEN.replace("5\n", "theirs\n"));
    bench.tree.strike("layers/0/up/gone-here");
    bench.base("gone-here", "changed there\n");
    bench.up("gone-there", "other\n");
    std::fs::remove_file(bench.tree.path.join("base/gone-there")).unwrap();
    bench.up("bin", "\0 2");
    bench.base("bin", "\0 3");
    bench.up("dir", "changed\n");
    std::fs::remove_file(bench.tree.path.join("base/dir")).unwrap();
    bench.base("dir/inner", "x\n");
    let rebase = bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    let expected = [
        ("bin", conflict("not text, and both sides changed it", false)),
        ("both", conflict("both sides changed one place", true)),
        ("dir", conflict("a file in the workspace, a directory in the base", false)),
        ("gone-here", conflict("deleted in the workspace, changed in the base", false)),
        ("gone-there", conflict("changed in the workspace, deleted in the base", false)),
    ];
    for (name, fate) in &expected {
        let found = rebase.moved.iter().find(|m| m.path == Scratch::rel(name)).map(|m| &m.fate);
        assert_eq!(found, Some(fate), "{name}: {:?}", rebase.moved);
    }
    let text = "<<<<<<< workspace\nours\n=======\ntheirs\n>>>>>>> base\n";
    assert_eq!(bench.seen("both").unwrap(), TEN.replace("5\n", text));
    assert_eq!(bench.seen("bin").unwrap(), "\0 2");
    assert_eq!(bench.seen("gone-there").unwrap(), "other\n");
    assert_eq!(bench.seen("gone-here"), None);
}

#[test]
fn an_unknown_past_makes_every_difference_a_conflict_and_a_touch_is_none() {
    let bench = Bench::new(&[("a", TEN), ("touched", TEN)], 1);
    bench.up("a", &TEN.replace("2\n", "two\n"));
    bench.base("a", &TEN.replace("9\n", "nine\n"));
    let rebase = bench.rebase(&Anchors::default(), &unknown).unwrap();
    assert_eq!(
        fates(&rebase),
        [("a".to_owned(), &conflict("both sides changed 2 places; the common ancestor is not known", true))]
    );
    bench.up("touched", "changed\n");
    bench.base("touched", TEN);
    let rebase = bench.rebase(&rebase.anchors, &|path| bench.knowing(path)).unwrap();
    assert_eq!(fates(&rebase), [("touched".to_owned(), &RebaseFate::Kept)]);
    assert_eq!(bench.seen("touched").unwrap(), "changed\n");
}

#[test]
fn what_is_as_the_base_has_it_leaves_the_layer() {
    let bench = Bench::new(&[("same", TEN), ("ours-is-old", TEN), ("gone", TEN), ("kept", TEN)], 1);
    bench.up("same", "new\n");
    bench.base("same", "new\n");
    bench.up("deep/same", "new\n");
    bench.base("deep/same", "new\n");
    bench.up("ours-is-old", TEN);
    bench.base("ours-is-old", "theirs\n");
    bench.tree.strike("layers/0/up/gone");
    std::fs::remove_file(bench.tree.path.join("base/gone")).unwrap();
    bench.up("kept", "mine\n");
    bench.up(".git/x", "new\n");
    bench.base(".git/x", "new\n");
    bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    let left: Vec<String> = picture(&bench.tree.path.join("layers/0/up")).into_keys().collect();
    assert_eq!(left, [".git", ".git/x", "kept"]);
    assert_eq!(bench.seen("ours-is-old").unwrap(), "theirs\n");
}

#[test]
fn frozen_layers_are_not_written_to() {
    let bench = Bench::new(&[("a", TEN), ("d/b", TEN)], 2);
    bench.tree.file("layers/0/up/a", TEN.replace("2\n", "two\n").as_bytes());
    bench.tree.file("layers/0/up/d/b", TEN.as_bytes());
    bench.base("a", &TEN.replace("9\n", "nine\n"));
    bench.base("d/b", "theirs\n");
    let before = picture(&bench.tree.path.join("layers/0"));
    bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    assert_eq!(picture(&bench.tree.path.join("layers/0")), before);
    assert_eq!(bench.seen("a").unwrap(), TEN.replace("2\n", "two\n").replace("9\n", "nine\n"));
    assert_eq!(bench.seen("d/b").unwrap(), "theirs\n");
    assert_eq!(bench.diff(&Anchors::default()).files.len(), 1, "the second is no change any more");
}

#[test]
fn a_moved_file_takes_the_bases_changes_along() {
    let bench = Bench::new(&[("from", TEN)], 1);
    bench.tree.strike("layers/0/up/from");
    bench.up("to", &TEN.replace("2\n", "two\n"));
    bench.base("from", &TEN.replace("9\n", "nine\n"));
    let rebase = bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    assert_eq!(fates(&rebase), [("to".to_owned(), &RebaseFate::Merged)]);
    assert_eq!(bench.seen("to").unwrap(), TEN.replace("2\n", "two\n").replace("9\n", "nine\n"));
    assert_eq!(bench.seen("from"), None);
    assert!(bench.diff(&rebase.anchors).files.iter().all(|f| !f.change.drifted));
}

// promise 17
#[test]
fn done_again_after_a_crash_it_changes_nothing_more() {
    let bench = Bench::new(&[("both", TEN), ("merged", TEN)], 1);
    bench.up("both", &TEN.replace("5\n", "ours\n"));
    bench.base("both", &TEN.replace("5\n", "theirs\n"));
    bench.up("merged", &TEN.replace("2\n", "two\n"));
    bench.base("merged", &TEN.replace("9\n", "nine\n"));
    let anchors = Anchors::default();
    let first = bench.rebase(&anchors, &|path| bench.knowing(path)).unwrap();
    let once = picture(&bench.tree.path.join("layers/0/up"));
    // The anchors were lost, as if the process had ended before they were stored.
    let second = bench.rebase(&anchors, &|path| bench.knowing(path)).unwrap();
    assert_eq!(picture(&bench.tree.path.join("layers/0/up")), once);
    assert_eq!(first.conflicts().count(), 1);
    assert_eq!(fates(&second)[0], ("both".to_owned(), &conflict("both sides changed one place", true)));
    Rebase::forget(&bench.stack).unwrap();
    let names: Vec<String> = picture(&bench.tree.path.join("layers/0")).into_keys().collect();
    assert!(!names.iter().any(|n| n.contains("rebase")), "{names:?}");
    let third = bench.rebase(&second.anchors, &|path| bench.knowing(path)).unwrap();
    assert_eq!(fates(&third), []);
}

/// The merge base from git may be older than the version that the workspace saw; a rebase keeps the version it merged
/// with.
#[test]
fn the_next_rebase_merges_upon_what_the_last_one_saw() {
    let mut bench = Bench::new(&[("a", TEN)], 1);
    bench.up("a", &TEN.replace("2\n", "two\n"));
    bench.base("a", &TEN.replace("9\n", "nine\n"));
    let since = now();
    let first = bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    bench.stack.since = since;
    std::thread::sleep(Duration::from_millis(30));
    bench.base("a", &TEN.replace("9\n", "Nine!\n"));
    let before = |path: &Rel| match crate::known::copy(&bench.stack, &first.anchors, path) {
        Some(bytes) => Ok(CommittedFile::File(bytes)),
        None => bench.knowing(path),
    };
    let second = bench.rebase(&first.anchors, &before).unwrap();
    assert_eq!(fates(&second), [("a".to_owned(), &RebaseFate::Merged)]);
    assert_eq!(bench.seen("a").unwrap(), TEN.replace("2\n", "two\n").replace("9\n", "Nine!\n"));
    assert_eq!(picture(&bench.tree.path.join("layers/0/known")).len(), 1, "only the last copy is kept");
    let unkept = plan(&bench.stack, &bench.diff(&first.anchors), &first.anchors, &|path| bench.knowing(path)).unwrap();
    assert_eq!(unkept.conflicts().count(), 0, "what was merged is not in conflict with itself");
}

#[test]
fn a_copy_follows_its_base_where_it_changed_nothing() {
    let mut bench = Bench::new(&[("same", TEN), ("theirs", TEN), ("ours", TEN), ("gone", TEN)], 1);
    bench.stack.driver = Driver::Copy;
    bench.old.keys().for_each(|path| bench.up(&path.to_string(), TEN));
    bench.base("theirs", "theirs\n");
    bench.base("new", "new\n");
    bench.up("ours", "ours\n");
    std::fs::remove_file(bench.tree.path.join("base/gone")).unwrap();
    bench.rebase(&Anchors::default(), &|path| bench.knowing(path)).unwrap();
    assert_eq!(bench.seen("theirs").as_deref(), Some("theirs\n"));
    assert_eq!(bench.seen("new").as_deref(), Some("new\n"));
    assert_eq!(bench.seen("ours").as_deref(), Some("ours\n"));
    assert_eq!(bench.seen("gone"), None);
}
