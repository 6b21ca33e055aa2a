//! A batch interrupted between any two renames is completed or rolled back by the next process, also if that one is
//! interrupted.

use crate::batch::{dir_mode, tree};
use crate::fixture::*;
use crate::undoing::motley;
use std::collections::BTreeMap;
use std::fs;
use workspace::land::Landing;
use workspace::plan::{Plan, Shape};
use workspace::select::{Marked, Selection, choose};
use workspace::stage::{self, BatchDirs, CheckedDrafts};
use workspace::{Stack, goal};

fn staged(w: &StackFixture, stack: &Stack) -> Plan {
    let diff = w.diff();
    let chosen = choose(&diff, &Selection::all(), &Marked::new()).unwrap();
    let (goals, _) = goal::goals(&chosen.picks).unwrap();
    let (id, batch) = w.batch();
    let site = BatchDirs { base: &stack.base, batch: &batch, id: &id, view: Some(stack), undone: None };
    let drawn = CheckedDrafts::of(&stack.base, goals, &|at| Ok(Shape::dir(dir_mode(stack, at)))).unwrap();
    stage::stage(&site, &drawn).unwrap()
}

/// The plan as a process would have left it after so many renames.
fn only_first(plan: &Plan, steps: usize) -> Plan {
    Plan { steps: plan.steps[..steps].to_vec(), ..plan.clone() }
}

fn without_pieces(tree: BTreeMap<Vec<u8>, String>) -> BTreeMap<Vec<u8>, String> {
    tree.into_iter().filter(|(path, _)| !String::from_utf8_lossy(path).contains(".cofferdam-")).collect()
}

#[test]
fn staging_changes_nothing_that_has_a_name() {
    let w = motley();
    let before = tree(&w.base());
    let stack = w.stack();
    let plan = staged(&w, &stack);
    assert!(plan.steps.len() > 8);
    assert_eq!(without_pieces(tree(&w.base())), before);
    Landing::new(&stack.base, &plan).tidy().unwrap();
    assert_eq!(tree(&w.base()), before);
}

// promise 15
#[test]
fn cut_off_after_each_rename_it_is_taken_back_exactly() {
    let count = {
        let w = motley();
        let stack = w.stack();
        staged(&w, &stack).steps.len()
    };
    for steps in 0..=count {
        let w = motley();
        let before = tree(&w.base());
        let stack = w.stack();
        let plan = staged(&w, &stack);
        Landing::new(&stack.base, &only_first(&plan, steps)).carry_out().unwrap();
        // Interrupted during the rollback as well, then restarted.
        if steps > 2 {
            let part = Plan { steps: plan.steps[steps - 2..].to_vec(), ..plan.clone() };
            Landing::new(&stack.base, &part).roll_back().unwrap();
        }
        let mut found = Landing::new(&stack.base, &plan);
        assert_eq!(found.roll_back().unwrap(), Vec::<String>::new());
        found.tidy().unwrap();
        assert_eq!(tree(&w.base()), before, "after {steps} of {count}");
    }
}

// promise 15
#[test]
fn cut_off_after_each_rename_it_is_finished_where_that_is_possible() {
    let after = {
        let mut w = motley();
        w.approve(&Selection::all()).unwrap();
        crate::batch::shape(&w.base())
    };
    let count = {
        let w = motley();
        let stack = w.stack();
        staged(&w, &stack).steps.len()
    };
    let mut finished = 0;
    for steps in 0..=count {
        let w = motley();
        let before = tree(&w.base());
        let stack = w.stack();
        let plan = staged(&w, &stack);
        Landing::new(&stack.base, &only_first(&plan, steps)).carry_out().unwrap();
        let mut found = Landing::new(&stack.base, &plan);
        if found.can_be_carried_out().unwrap() {
            found.carry_out().unwrap();
            found.tidy().unwrap();
            assert_eq!(crate::batch::shape(&w.base()), after, "after {steps}");
            finished += 1;
        } else {
            found.roll_back().unwrap();
            found.tidy().unwrap();
            assert_eq!(tree(&w.base()), before, "after {steps}");
        }
    }
    assert!(finished > 0);
}

// promise 14
#[test]
fn a_file_that_somebody_wrote_meanwhile_is_neither_lost_nor_replaced() {
    let w = motley();
    let stack = w.stack();
    let plan = staged(&w, &stack);
    fs::write(w.base().join("changed"), "by the user").unwrap();
    fs::write(w.base().join("fresh"), "by the user, too").unwrap();
    let now = without_pieces(tree(&w.base()));
    let mut landing = Landing::new(&stack.base, &plan);
    assert!(!landing.can_be_carried_out().unwrap());
    landing.carry_out().unwrap_err();
    assert_eq!(landing.roll_back().unwrap(), Vec::<String>::new());
    landing.tidy().unwrap();
    assert_eq!(tree(&w.base()), now);
}

/// A full file system under the base.
#[test]
fn a_full_disk_is_told_changes_nothing_and_is_no_harm_later() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut w = StackFixture::new();
    let image = w.top.join("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let run = |program: &str, words: &[&str]| {
        let done = std::process::Command::new(program).args(words).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let (image, base) = (image.to_str().unwrap().to_owned(), w.base());
    run("mkfs.ext4", &["-q", "-m", "0", &image]);
    run("mount", &["-o", "loop", &image, base.to_str().unwrap()]);
    write(&base, "f", "old");
    write(&base, "filler", vec![7u8; 3 << 20]);
    write(&w.up(), "f", vec![9u8; 4 << 20]);
    write(&w.up(), "g", "small");
    let before = tree(&base);
    let result = w.approve(&Selection::all());
    let full = tree(&base);
    fs::remove_file(base.join("filler")).unwrap();
    let again = w.approve(&Selection::all());
    let landed = fs::metadata(base.join("f")).unwrap().len();
    run("umount", &["-l", base.to_str().unwrap()]);
    let fault = result.unwrap_err();
    assert_eq!(fault.error_kind, terms::ErrorKind::Unavailable, "{fault}");
    assert_eq!(full, before);
    again.unwrap();
    assert_eq!(landed, 4 << 20);
}
