//! Random operations, identical outside and inside, over several mounts of the same layers: compares each result, the
//! final tree, the diff, and the base, which must not change.

use crate::inside::{Inside, python_outside};
use crate::support::{As, BOTH, Place, sample};
use serde_json::Value;
use std::collections::BTreeMap;

const STORM: &str = include_str!("storm.py");
const INVENTORY: &str = include_str!("inventory.py");

/// Each round is a separate run.
const ROUNDS: usize = 3;
const STEPS: usize = 150;

/// Variants of a storm. A hard link that is written to does not survive a snapshot, so a storm has one or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Besides {
    Links,
    Snapshots,
    /// Links, in a workspace of driver `copy`.
    Copy,
}

/// Two seeds per run; each `COFFERDAM_TEST_SEED` gives others.
fn seeds() -> std::ops::Range<u64> {
    let first = 2 * sample::seed();
    first..first + sample::times(2, 200)
}

// promise 12
#[test]
fn random_operations_do_the_same_inside_as_outside() {
    for seed in seeds() {
        BOTH.iter().for_each(|who| storm(*who, seed, Besides::Links));
    }
}

// promise 12
#[test]
fn random_operations_do_the_same_across_snapshots() {
    for seed in seeds() {
        BOTH.iter().for_each(|who| storm(*who, seed, Besides::Snapshots));
    }
}

// promise 12
#[test]
fn random_operations_do_the_same_in_a_copy() {
    for seed in seeds() {
        BOTH.iter().for_each(|who| storm(*who, seed, Besides::Copy));
    }
}

fn storm(who: As, seed: u64, besides: Besides) {
    let tag = format!("seed {seed}, {who:?}, {besides:?}");
    println!("{tag}");
    // A guest is never root, so the comparison outside runs as an ordinary user.
    let (plain, place) = (Place::new(As::User), Place::new(who));
    for tree in [&plain, &place] {
        python_outside(tree, STORM, &[&path_of(tree), &seed.to_string(), "0", "0"]);
    }
    let base = trees_of(&python_outside(&place, INVENTORY, &[&path_of(&place)]));
    assert!(base.len() > 20, "control: {tag}: {} entries are planted", base.len());
    let inside = Inside::by(&place, if besides == Besides::Copy { "copy" } else { "overlay" });
    for round in 0..ROUNDS {
        let (first, steps) = ((round * STEPS + 1).to_string(), STEPS.to_string());
        let seed = seed.to_string();
        let links = if besides == Besides::Snapshots { "" } else { "links" };
        let outside = python_outside(&plain, STORM, &[&path_of(&plain), &seed, &first, &steps, links]);
        let within = inside.python(STORM, &[&path_of(&place), &seed, &first, &steps, links]);
        assert_same_lines(&outside, &within, &tag);
        if besides == Besides::Snapshots {
            inside.snapshot();
        }
    }
    let (expected, seen) =
        (python_outside(&plain, INVENTORY, &[&path_of(&plain)]), inside.python(INVENTORY, &[&path_of(&place)]));
    let expected = trees_of(&expected);
    assert_same_trees(&expected, &trees_of(&seen), &format!("{tag}: the view from inside"));
    assert_same_trees(
        &base,
        &trees_of(&python_outside(&place, INVENTORY, &[&path_of(&place)])),
        &format!("{tag}: the base"),
    );
    let mut landed = land(&entries(&base), &inside.diff(), &tag);
    // A diff lists a new directory by its content.
    let is_new_dir = |(path, found): &(&String, &Value)| found["holds"] == true && !base.contains_key(*path);
    for (path, found) in expected.iter().filter(is_new_dir) {
        landed.entry(path.clone()).or_insert_with(|| found["entry"].clone());
    }
    assert_same_trees(&entries(&expected), &landed, &format!("{tag}: base and diff"));
}

fn path_of(place: &Place) -> String {
    place.project.to_string_lossy().into_owned()
}

/// Inventory of a tree: properties by path, with paths as JSON strings.
type Tree = BTreeMap<String, Value>;

fn trees_of(inventory: &str) -> Tree {
    let list: Vec<Value> = serde_json::from_str(inventory).unwrap();
    list.into_iter().map(|found| (found["path"].to_string(), found)).collect()
}

/// The part of an inventory that a diff shows.
fn entries(tree: &Tree) -> Tree {
    tree.iter().map(|(path, found)| (path.clone(), found["entry"].clone())).collect()
}

/// The base with every change of a diff applied. The recorded state before each change must match the base.
fn land(base: &Tree, diff: &Value, tag: &str) -> Tree {
    let mut tree = base.clone();
    let changes = diff["files"].as_array().unwrap();
    assert!(changes.len() > 10, "control: {tag}: {} changes", changes.len());
    for change in changes {
        let from = change.pointer("/kind/renamed/from").unwrap_or(&change["path"]).to_string();
        assert_eq!(base.get(&from), change.get("before"), "{tag}: before {change}");
        tree.remove(&from);
    }
    for change in changes {
        if let Some(after) = change.get("after") {
            tree.insert(change["path"].to_string(), after.clone());
        }
    }
    tree
}

/// Reports the first step with different results.
#[track_caller]
fn assert_same_lines(outside: &str, inside: &str, tag: &str) {
    let both = outside.lines().zip(inside.lines());
    if let Some((n, (a, b))) = both.enumerate().find(|(_, (a, b))| a != b) {
        let before = outside.lines().nth(n.saturating_sub(1)).unwrap_or_default();
        panic!("{tag}: after {before}\noutside: {a}\ninside:  {b}");
    }
    assert_eq!(outside.lines().count(), inside.lines().count(), "{tag}");
}

#[track_caller]
fn assert_same_trees(expected: &Tree, found: &Tree, tag: &str) {
    for path in expected.keys().chain(found.keys()) {
        assert_eq!(expected.get(path), found.get(path), "{tag}: {path}");
    }
}
