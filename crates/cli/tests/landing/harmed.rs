//! Approvals and undos that are killed, or whose calls fail, at any point: the next command finds the base exactly as
//! before or as approved, the journal verifies, and a retry succeeds.

use crate::fixture::EditedProject;
use crate::support::harm::{Harm, Walk};
use crate::support::tree::Tree;
use crate::support::{As, Place};
use std::rc::Rc;

/// System calls that change files, or directly precede one that does.
const CHANGING: &str = "openat,openat2,mkdirat,renameat,renameat2,unlinkat,unlink,symlinkat,write,pwrite64,ftruncate,fchmod,\
                        fsetxattr,utimensat,fsync,fdatasync,syncfs,flock";
const ALL: &str = "%file,%desc,fsync,fdatasync,syncfs";

/// The tree before and after an approval of everything.
fn ends() -> (Tree, Tree) {
    let w = EditedProject::new(As::Root);
    let before = w.tree();
    w.ok(&["approve", "--unseen"]);
    (before, w.tree())
}

fn walk(harm: Harm, calls: &'static str, points: usize, undo: bool) {
    let (before, after) = ends();
    let walk = Walk { harm, calls, points };
    let place = Rc::new(Place::new(As::Root));
    let (mut was_before, mut was_after) = (0, 0);
    let verb = |project: &EditedProject| match undo {
        true => vec!["undo".to_owned(), project.name.clone()],
        false => vec!["approve".to_owned(), project.name.clone(), "--unseen".to_owned()],
    };
    let fresh = || {
        let project = EditedProject::beside(&place);
        if undo {
            project.ok(&["approve", "--unseen"]);
        }
        let words = verb(&project);
        (project, words)
    };
    let check = |project: EditedProject, point, output: &std::process::Output| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!testkit::harm::panicked(&stderr), "{point:?}: {stderr}");
        // The next verb completes or rolls back the interrupted batch.
        project.ok(&["audit", "verify"]);
        let tree = project.tree();
        // A file that could not be read is held back, like one that is not text.
        if output.status.success() && stderr.contains("left: mode: runs on your machine") {
            project.ok(&["approve", "--unseen", "--runs-on-host"]);
            return;
        }
        assert!(tree == before || tree == after, "{point:?}: in between: {:?} {stderr}", tree.keys());
        if tree == before {
            was_before += 1
        } else {
            was_after += 1
        }
        if output.status.success() {
            assert_eq!(tree == after, !undo, "{point:?}: a success that did not happen");
        }
        if (tree == after) == undo {
            project.ok(&verb(&project).iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(project.tree() == after, !undo, "{point:?}: asked again");
        }
    };
    let walked = walk.go(&place, fresh, check);
    println!("{harm:?}, undo {undo}: {} of {}; {was_before} before, {was_after} after", walked.tried, walked.calls);
}

// promise 15
#[test]
fn approve_killed_at_any_call() {
    walk(Harm::Kill, CHANGING, 16, false);
}

// promise 15
#[test]
fn undo_killed_at_any_call() {
    walk(Harm::Kill, CHANGING, 12, true);
}

// promise 15
#[test]
fn approve_with_an_error_at_any_call() {
    for error in ["EIO", "ENOSPC", "EMFILE"] {
        walk(Harm::Error(error), ALL, 6, false);
    }
}

#[test]
fn undo_with_an_error_at_any_call() {
    for error in ["EIO", "ENOSPC"] {
        walk(Harm::Error(error), ALL, 6, true);
    }
}
