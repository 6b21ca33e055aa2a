//! Concurrency during a landing: guests that write, users who edit the base, attackers who swap directories for links.

use crate::batch::{paths, shape, tree};
use crate::fixture::*;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use terms::ErrorKind;
use workspace::select::Selection;

// promise 14
#[test]
fn a_file_that_changes_after_review_does_not_land() {
    let mut w = StackFixture::new();
    write(&w.base(), "f", "old\n");
    write(&w.up(), "f", "reviewed\n");
    write(&w.up(), "g", "reviewed\n");
    let seen = w.diff();
    write(&w.up(), "f", "swapped!\n");
    let fault = w.approve_seen(&seen, &Selection::all()).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    assert!(fault.message.contains('f'), "{fault}");
    assert_eq!(shape(&w.base()).len(), 1, "nothing of it landed");
    w.approve_seen(&seen, &paths(&["g"])).unwrap();
    assert_eq!(fs::read_to_string(w.base().join("g")).unwrap(), "reviewed\n", "control: what is as reviewed lands");
}

/// A guest rewrites a file all the time: the landed content is that of the diff, or nothing lands.
// promise 13, 14
#[test]
fn shown_bytes_are_landed_bytes_while_a_guest_writes() {
    let mut w = StackFixture::new();
    write(&w.base(), "f", "old\n");
    let path = w.up().join("f");
    fs::write(&path, "0\n".repeat(2000)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let (mut landed, mut refused) = (0, 0);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            for n in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::os::unix::fs::FileExt::write_all_at(&file, format!("{n:08}\n").repeat(2000).as_bytes(), 0)
                    .unwrap();
            }
        });
        while landed + refused < 200 {
            let seen = w.diff();
            let Some(shown) = seen.files.first().and_then(|f| f.change.after.as_ref()?.digest.clone()) else {
                continue;
            };
            match w.approve_seen_keeping(&seen) {
                Ok(_) => {
                    assert_eq!(sha256(&fs::read(w.base().join("f")).unwrap()), shown);
                    landed += 1;
                }
                Err(fault) => {
                    assert_eq!(fault.error_kind, ErrorKind::Conflict, "{fault}");
                    refused += 1;
                }
            }
        }
    });
    println!("{landed} landed, {refused} refused");
    assert!(refused > 0);
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

// promise 14
#[test]
fn a_file_that_changed_in_the_base_is_refused_by_name_and_others_land() {
    let mut w = StackFixture::new();
    for path in ["drifted", "quiet"] {
        write(&w.base(), path, "old\n");
        write(&w.up(), path, "of the guest\n");
    }
    let seen = w.diff();
    write(&w.base(), "drifted", "of somebody else\n");
    let fault = w.approve_seen(&seen, &Selection::all()).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    assert!(fault.message.contains("drifted") && !fault.message.contains("quiet"), "{fault}");
    assert_eq!(fs::read_to_string(w.base().join("drifted")).unwrap(), "of somebody else\n");
    w.approve_seen(&seen, &paths(&["quiet"])).unwrap();
    assert_eq!(fs::read_to_string(w.base().join("quiet")).unwrap(), "of the guest\n");
}

/// An attacker swaps the parent directory with a link to the outside, all the time.
// promise 14
#[test]
fn no_swap_of_a_parent_leads_outside() {
    let mut w = StackFixture::new();
    let (base, outside) = (w.base(), w.top.join("outside"));
    fs::create_dir(&outside).unwrap();
    write(&outside, "f", "canary");
    write(&base, "d/f", "0");
    link(&base, "other", "../outside");
    let canary = tree(&outside);
    let stop = AtomicBool::new(false);
    let (mut landed, mut refused) = (0, 0);
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let swaps = scope.spawn(|| {
            // Sometimes slower than a landing, sometimes faster.
            for n in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(std::time::Duration::from_micros(n * 7919 % 40_000));
                renameat_with(CWD, base.join("d"), CWD, base.join("other"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        for n in 1..=300 {
            write(&w.up(), "d/f", n.to_string());
            write(&w.up(), &format!("d/new-{n}"), "x");
            // A diff from a moment at which the directory was a directory.
            let seen = loop {
                assert!(!swaps.is_finished(), "the swaps go on");
                let Ok(seen) = workspace::diff::diff(&w.stack(), &w.anchors, &Default::default()) else { continue };
                if seen.files.iter().all(|f| f.change.path.is_at_or_below(&rel("d")) && f.change.path != rel("d")) {
                    break seen;
                }
            };
            match w.approve_seen_keeping(&seen) {
                Ok(_) => landed += 1,
                Err(_) => refused += 1,
            }
            let _ = fs::remove_dir_all(w.up().join("d"));
        }
    });
    println!("{landed} landed, {refused} refused");
    assert!(landed > 0 && refused > 0, "control: some land, some are stopped");
    let pieces = fs::read_dir(if base.join("d").is_symlink() { base.join("other") } else { base.join("d") }).unwrap();
    let pieces =
        pieces.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with(".cofferdam-")).count();
    assert_eq!(pieces, 0, "pieces that were left in the directory");
    assert_eq!(tree(&outside), canary, "nothing was written, replaced or left outside");
}

/// Parallel approvals over one base, of workspaces that all changed the same file.
// promise 14
#[test]
fn parallel_approvals_are_one_after_the_other_and_one_wins() {
    let w = StackFixture::new();
    write(&w.base(), "f", "old\n");
    let workspaces: Vec<StackFixture> = (0..50)
        .map(|n| {
            let other = w.beside();
            write(&other.up(), "f", format!("of {n}\n"));
            write(&other.up(), &format!("own-{n}"), "x");
            other
        })
        .collect();
    let reviewed: Vec<_> = workspaces.into_iter().map(|other| (other.diff(), other)).collect();
    let results: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = reviewed
            .into_iter()
            .map(|(seen, mut other)| scope.spawn(move || (other.approve_seen(&seen, &Selection::all()), other)))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let won = results.iter().filter(|(result, _)| result.is_ok()).count();
    assert_eq!(won, 1);
    for (result, _) in results.iter().filter(|(result, _)| result.is_err()) {
        assert_eq!(result.as_ref().unwrap_err().error_kind, ErrorKind::Conflict);
    }
    assert_eq!(shape(&w.base()).len(), 2, "the file and the winner's own");
}
