//! Segments of the journal in files: the chain goes on behind them, and every change to either is found.

mod scratch;

use rusqlite::Connection;
use scratch::{Scratch, note};
use std::fs;
use std::path::PathBuf;
use store::{Segment, Store, examine, restore};
use terms::ErrorKind;

fn filled(entries: u64) -> (Scratch, Store) {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=entries).for_each(|n| assert_eq!(note(&store, n), n));
    (scratch, store)
}

fn segments(store: &Store) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(store.segments()).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

// promise 18
#[test]
fn the_chain_goes_on_behind_what_was_archived() {
    let (scratch, store) = filled(30);
    let segment = store.archive(10, "tester", 1).unwrap().unwrap();
    assert_eq!((segment.first, segment.last), (1, 10));
    assert_eq!(store.archive(10, "tester", 1).unwrap(), None, "once");
    assert_eq!(store.archive(31, "tester", 1).unwrap(), None, "something stays behind");
    assert_eq!(note(&store, 32), 32, "numbers go on");
    let segment = store.archive(20, "tester", 1).unwrap().unwrap();
    assert_eq!((segment.first, segment.last), (11, 20));
    let verified = store.verify().unwrap();
    assert_eq!((verified.entries, verified.archived, verified.archived_here, verified.broken), (33, 20, 20, None));
    assert_eq!(store.read(|tx| tx.archived()).unwrap(), 20);
    // A segment that the operator has moved elsewhere is no defect.
    fs::remove_file(&segments(&store)[0]).unwrap();
    let verified = store.verify().unwrap();
    assert_eq!((verified.entries, verified.archived_here, verified.broken), (33, 10, None));
    // A copy is whole by itself, and put back it goes on.
    let copy = scratch.dir.join("copy");
    store.backup(&copy).unwrap();
    assert_eq!(examine(&copy).unwrap().entries, 33);
    drop(store);
    restore(&scratch.dir, &copy, 1).unwrap();
    let store = scratch.store();
    assert_eq!((note(&store, 34), store.verify().unwrap().broken), (34, None));
}

/// Entries that go without that, or that were changed before, are told.
// promise 18
#[test]
fn nothing_goes_unseen_by_being_called_archived() {
    let raw = |scratch: &Scratch, statement: &str| {
        Connection::open(scratch.dir.join("store.db")).unwrap().execute(statement, []).unwrap();
    };
    for (statement, seq) in [
        ("DELETE FROM journal WHERE seq <= 12", 1),
        ("UPDATE journal SET body = '{\"first\":1,\"last\":12,\"hash\":\"x\"}' WHERE verb = 'archive'", 1),
        ("DELETE FROM journal WHERE seq = 25", 25),
        ("UPDATE journal SET actor = 'another' WHERE seq = 11", 11),
        ("DELETE FROM journal WHERE verb = 'archive'", 1),
    ] {
        let (scratch, store) = filled(30);
        store.archive(10, "tester", 1).unwrap().unwrap();
        assert_eq!(store.verify().unwrap().broken, None, "control");
        raw(&scratch, statement);
        assert_eq!(store.verify().unwrap().broken.map(|broken| broken.seq), Some(seq), "{statement}");
    }
    // A journal that was tampered with is not moved out of sight.
    let (scratch, store) = filled(30);
    raw(&scratch, "UPDATE journal SET actor = 'another' WHERE seq = 7");
    let fault = store.archive(10, "tester", 1).unwrap_err();
    assert!(fault.error_kind == ErrorKind::Conflict && fault.message.contains("entry 7"), "{fault:?}");
    assert_eq!(store.read(|tx| tx.archived()).unwrap(), 0);
}

// promise 18
#[test]
fn a_segment_that_was_changed_is_found() {
    for change in ["tester", "\"seq\":5,", "sbx_1"] {
        let (_scratch, store) = filled(30);
        store.archive(10, "tester", 1).unwrap().unwrap();
        let file = segments(&store).remove(0);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen(change, &change.replace(['t', '5', 'x'], "9"), 1)).unwrap();
        let broken = store.verify().unwrap().broken.unwrap();
        assert!(broken.seq <= 10 && broken.why.contains("jsonl"), "{change}: {broken:?}");
    }
    // Another whole chain in its place does not end as the journal says.
    let (_one, store) = filled(30);
    store.archive(10, "tester", 1).unwrap().unwrap();
    let other = Scratch::new();
    let another = other.store();
    (100..=130).for_each(|n| assert_eq!(note(&another, n), n - 99));
    another.archive(10, "tester", 1).unwrap().unwrap();
    fs::copy(&segments(&another)[0], &segments(&store)[0]).unwrap();
    assert!(store.verify().unwrap().broken.unwrap().why.contains("another end"));
}

/// Killed between the file and the cut, it is done again; what the file then holds is what goes.
#[test]
fn a_segment_that_was_written_and_not_cut_is_written_again() {
    let (_scratch, store) = filled(30);
    fs::create_dir_all(store.segments()).unwrap();
    let name = store.segments().join(format!("{:012}-{:012}.jsonl", 1, 10));
    fs::write(&name, "cut sh").unwrap();
    fs::write(name.with_extension("part"), "cut sh").unwrap();
    let Segment { first, last, .. } = store.archive(10, "tester", 1).unwrap().unwrap();
    assert_eq!((first, last, store.verify().unwrap().archived_here), (1, 10, 10));
    assert_eq!(segments(&store).len(), 1);
}

/// Records that come and go take no more room than there are at a time, and so do entries that are archived.
// promise 18
#[test]
fn the_file_does_not_grow_with_what_is_gone() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let round = |at: u64| {
        for n in at..at + 400 {
            let text = "x".repeat(1000);
            store.write_soon(|tx| tx.add(&format!("thing_{n}"), scratch::thing(&text)).map(drop)).unwrap();
            scratch::note_soon(&store, n);
        }
        store
            .write(|tx| (at..at + 400).try_for_each(|n| tx.remove::<scratch::Thing>(&format!("thing_{n}")).map(drop)))
            .unwrap();
        let last = store.read(|tx| tx.last_noted()).unwrap();
        store.archive(last - 1, "tester", 1).unwrap().unwrap();
        fs::metadata(scratch.dir.join("store.db")).unwrap().len()
    };
    let sizes: Vec<u64> = (0..6).map(|n| round(1 + n * 400)).collect();
    assert!(sizes[5] <= sizes[1] + (16 << 10), "{sizes:?}");
}
