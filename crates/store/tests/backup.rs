//! Copies of a store: taken while others write, refused when they are not whole, put back.

mod scratch;

use rusqlite::Connection;
use scratch::{Scratch, note, thing};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use store::{SCHEMA, Store, examine, restore};
use terms::ErrorKind;

#[test]
fn a_copy_is_one_moment_and_whole_while_others_write() {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=50).for_each(|n| {
        note(&store, n);
    });
    let dir = scratch.dir.clone();
    let writer = std::thread::spawn(move || {
        let store = Store::open(&dir).unwrap();
        (51..=150).for_each(|n| {
            note(&store, n);
        });
    });
    for n in 0..5 {
        let file = scratch.dir.join(format!("copy-{n}"));
        let copied = store.backup(&file).unwrap();
        assert!((50..=150).contains(&copied.entries) && copied.schema == SCHEMA);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(examine(&file).unwrap(), copied);
    }
    writer.join().unwrap();
    assert_eq!(store.backup(&scratch.dir.join("copy-0")).unwrap_err().error_kind, ErrorKind::Conflict);
    assert_eq!(store.verify().unwrap().entries, 150);
    assert_eq!(store.sound().unwrap(), Vec::<String>::new());
}

#[test]
fn a_copy_put_back_is_the_store_that_it_was() {
    let scratch = Scratch::new();
    let store = scratch.store();
    store.write(|tx| tx.add("one", thing("kept"))).unwrap();
    (1..=3).for_each(|n| {
        note(&store, n);
    });
    let file = scratch.dir.join("copy");
    store.backup(&file).unwrap();
    store.write(|tx| tx.add("two", thing("lost"))).unwrap();
    (4..=9).for_each(|n| {
        note(&store, n);
    });
    drop(store);
    let restored = restore(&scratch.dir, &file, 77).unwrap();
    assert_eq!((restored.copied.entries, restored.entries_before), (3, 9));
    assert!(restored.before.join("store.db").exists() && restored.before.join("journal.head").exists());
    let store = scratch.store();
    assert!(store.read(|tx| tx.get::<scratch::Thing>("one")).unwrap().is_some());
    assert!(store.read(|tx| tx.get::<scratch::Thing>("two")).unwrap().is_none());
    assert_eq!(note(&store, 4), 4);
    assert_eq!(store.verify().unwrap().broken, None);
}

#[test]
fn what_is_no_whole_copy_is_refused_and_changes_nothing() {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=40).for_each(|n| {
        note(&store, n);
    });
    let good = scratch.dir.join("good");
    store.backup(&good).unwrap();
    let told = |name: &str| {
        let fault = restore(&scratch.dir, &scratch.dir.join(name), 1).unwrap_err();
        assert!(scratch.dir.join("store.db").exists() && !scratch.dir.join("before-restore-1").exists());
        format!("{} {}", fault.error_kind.name(), fault.message)
    };
    assert!(told("nothing").contains("No such file"));
    fs::write(scratch.dir.join("text"), "no database at all, and long enough to be taken for one").unwrap();
    assert!(told("text").contains("no store"));
    let mut bytes = fs::read(&good).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(scratch.dir.join("half"), &bytes).unwrap();
    assert!(told("half").starts_with("invalid_request"));
    let change = |name: &str, sql: &str| {
        fs::copy(&good, scratch.dir.join(name)).unwrap();
        Connection::open(scratch.dir.join(name)).unwrap().execute_batch(sql).unwrap();
    };
    change("newer", &format!("PRAGMA user_version = {}", SCHEMA + 1));
    assert!(told("newer").starts_with("unsupported_host"));
    change("edited", "UPDATE journal SET actor = 'eve' WHERE seq = 7");
    assert!(told("edited").contains("entry 7 of its journal"));
    // The control: the good one is taken.
    restore(&scratch.dir, &good, 1).unwrap();
}
