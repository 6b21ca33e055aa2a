//! An approval or an undo that is killed, or whose calls fail, at any point: the next command finds the base exactly as it was or
//! exactly as it shall be, the journal is whole, and asking again succeeds.

use crate::support::harm::{Harm, Walk};
use crate::support::tree::Tree;
use crate::support::{As, Place};
use crate::world::World;
use std::rc::Rc;

/// Calls that change something, or are the last before one that does.
const CHANGING: &str = "openat,openat2,mkdirat,renameat,renameat2,unlinkat,unlink,symlinkat,write,pwrite64,ftruncate,fchmod,\
                        fsetxattr,utimensat,fsync,fdatasync,syncfs,flock";
const ALL: &str = "%file,%desc,fsync,fdatasync,syncfs";

/// The tree before and after an approval of all.
fn ends() -> (Tree, Tree) {
    let w = World::new(As::Root);
    let before = w.tree();
    w.ok(&["approve", "--unseen"]);
    (before, w.tree())
}

fn walk(harm: Harm, calls: &'static str, points: usize, undo: bool) {
    let (before, after) = ends();
    let walk = Walk { harm, calls, points };
    let place = Rc::new(Place::new(As::Root));
    let (mut was_before, mut was_after) = (0, 0);
    let verb = |world: &World| match undo {
        true => vec!["undo".to_owned(), world.name.clone()],
        false => vec!["approve".to_owned(), world.name.clone(), "--unseen".to_owned()],
    };
    let fresh = || {
        let world = World::beside(&place);
        if undo {
            world.ok(&["approve", "--unseen"]);
        }
        let words = verb(&world);
        (world, words)
    };
    let check = |world: World, point, output: &std::process::Output| {
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!told.contains("panicked"), "{point:?}: {told}");
        // Whatever comes next brings it to an end.
        world.ok(&["audit", "verify"]);
        let tree = world.tree();
        assert!(tree == before || tree == after, "{point:?}: in between: {:?} {told}", tree.keys());
        if tree == before {
            was_before += 1
        } else {
            was_after += 1
        }
        if output.status.success() {
            assert_eq!(tree == after, !undo, "{point:?}: a success that did not happen");
        }
        if (tree == after) == undo {
            world.ok(&verb(&world).iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(world.tree() == after, !undo, "{point:?}: asked again");
        }
    };
    let walked = walk.go(&place, fresh, check);
    println!("{harm:?}, undo {undo}: {} of {}; {was_before} before, {was_after} after", walked.tried, walked.calls);
}

#[test]
fn approve_killed_at_any_call() {
    walk(Harm::Kill, CHANGING, 40, false);
}

#[test]
fn undo_killed_at_any_call() {
    walk(Harm::Kill, CHANGING, 25, true);
}

#[test]
fn approve_with_an_error_at_any_call() {
    for error in ["EIO", "ENOSPC", "EMFILE"] {
        walk(Harm::Error(error), ALL, 15, false);
    }
}

#[test]
fn undo_with_an_error_at_any_call() {
    for error in ["EIO", "ENOSPC"] {
        walk(Harm::Error(error), ALL, 12, true);
    }
}
