//! Trouble with the file: locked, damaged, gone, older, newer, read-only, full disk. Each is a fault that says what to do, and
//! the next call works once it is over.

mod scratch;

use rusqlite::Connection;
use scratch::{Scratch, Thing, note, thing};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;
use store::{SCHEMA, Store};
use terms::{ErrorKind, Fault};

fn refused(scratch: &Scratch) -> Fault {
    match scratch.open() {
        Ok(_) => panic!("must be refused"),
        Err(fault) => fault,
    }
}

#[track_caller]
fn check(fault: &Fault, kind: ErrorKind, says: &str) {
    assert_eq!(fault.error_kind, kind, "{fault:?}");
    assert!(fault.message.contains(says), "{fault:?}");
    assert!(fault.hint.is_some(), "{fault:?}");
}

// promise 19
#[test]
fn nobody_else_can_read_what_is_kept() {
    let scratch = Scratch::new();
    let store = scratch.store();
    note(&store, 1);
    let names = ["store.db", "store.db-wal", "store.db-shm", "journal.head", "reserve"];
    let mode = |name: &str| fs::metadata(scratch.dir.join(name)).unwrap().permissions().mode() & 0o777;
    names.iter().for_each(|name| assert_eq!(mode(name), 0o600, "{name}"));
    drop(store);
    fs::set_permissions(scratch.dir.join("store.db"), fs::Permissions::from_mode(0o644)).unwrap();
    scratch.store();
    assert_eq!(mode("store.db"), 0o600);
}

#[test]
fn reading_writes_nothing() {
    let scratch = Scratch::new();
    note(&scratch.store(), 1);
    let bytes = |name: &str| fs::read(scratch.dir.join(name)).unwrap();
    let stamp = |name: &str| fs::metadata(scratch.dir.join(name)).unwrap().modified().unwrap();
    let names = ["store.db", "store.db-wal", "journal.head"];
    let before: Vec<_> = names.iter().map(|name| (bytes(name), stamp(name))).collect();
    for _ in 0..3 {
        let store = scratch.store();
        assert!(store.read(|tx| tx.get::<Thing>("a")).unwrap().is_none());
        assert_eq!(store.verify().unwrap().entries, 1);
    }
    let after: Vec<_> = names.iter().map(|name| (bytes(name), stamp(name))).collect();
    assert!(before == after);
}

// promise 19
#[test]
fn a_newer_file_is_left_alone() {
    let scratch = Scratch::new();
    note(&scratch.store(), 1);
    let raw = Connection::open(scratch.dir.join("store.db")).unwrap();
    raw.pragma_update(None, "user_version", SCHEMA + 1).unwrap();
    check(&refused(&scratch), ErrorKind::UnsupportedHost, "newer version");
    raw.pragma_update(None, "user_version", SCHEMA).unwrap();
    assert_eq!(scratch.store().verify().unwrap().entries, 1);
}

/// The file as the first version made it: no keys, no head beside it.
const FIRST: &str = "
    CREATE TABLE record (
        kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, name TEXT, scope TEXT, body TEXT NOT NULL,
        PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE UNIQUE INDEX record_name ON record (kind, name) WHERE name IS NOT NULL;
    CREATE INDEX record_scope ON record (kind, scope);
    CREATE TABLE journal (
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, verb TEXT NOT NULL, step TEXT NOT NULL, subject TEXT NOT NULL,
        actor TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
    CREATE INDEX journal_subject ON journal (subject, seq);
    INSERT INTO record VALUES ('thing', 'old', 3, NULL, NULL, '{\"text\":\"from before\"}');
    PRAGMA user_version = 1;";

#[test]
fn an_older_file_is_brought_up_and_kept_in_a_copy() {
    let scratch = Scratch::new();
    Connection::open(scratch.dir.join("store.db")).unwrap().execute_batch(FIRST).unwrap();
    let store = scratch.store();
    let old = store.read(|tx| tx.get::<Thing>("old")).unwrap().unwrap();
    assert_eq!((old.version, old.record), (3, thing("from before")));
    note(&store, 1);
    assert_eq!(store.verify().unwrap().broken, None);
    let copy = scratch.dir.join("store.db.schema-1");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    let copy = Connection::open(copy).unwrap();
    let version: i64 = copy.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
    let body: String = copy.query_row("SELECT body FROM record", [], |r| r.get(0)).unwrap();
    assert_eq!((version, body.as_str()), (1, r#"{"text":"from before"}"#));
}

// promise 19
#[test]
fn another_writer_is_waited_for_and_then_named() {
    let scratch = Scratch::new();
    let other = scratch.store();
    let store = Store::open_patiently(&scratch.dir, Duration::from_millis(200)).unwrap();
    other
        .write(|_| {
            let busy = store.write(|tx| tx.add("a", thing("x"))).unwrap_err();
            check(&busy, ErrorKind::Unavailable, "locked");
            assert!(store.read(|tx| tx.get::<Thing>("a")).unwrap().is_none(), "readers need not wait");
            Ok(())
        })
        .unwrap();
    store.write(|tx| tx.add("a", thing("x"))).unwrap();
}

#[test]
fn a_file_that_is_gone_is_not_silently_begun_anew() {
    let scratch = Scratch::new();
    note(&scratch.store(), 1);
    let moved = scratch.dir.join("elsewhere.db");
    let wal = |name: &str| scratch.dir.join(name);
    Connection::open(wal("store.db")).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    fs::rename(wal("store.db"), &moved).unwrap();
    check(&refused(&scratch), ErrorKind::Unavailable, "is gone");
    fs::rename(&moved, wal("store.db")).unwrap();
    assert_eq!(scratch.store().verify().unwrap().entries, 1, "put back, it goes on");
    fs::remove_file(wal("store.db")).unwrap();
    fs::remove_file(wal("journal.head")).unwrap();
    assert_eq!(scratch.store().verify().unwrap().entries, 0, "begun anew on purpose");
}

#[test]
fn what_is_no_database_is_refused() {
    let scratch = Scratch::new();
    fs::write(scratch.dir.join("store.db"), vec![7u8; 8192]).unwrap();
    check(&refused(&scratch), ErrorKind::Internal, "not a database");
    fs::remove_file(scratch.dir.join("store.db")).unwrap();
    fs::create_dir(scratch.dir.join("store.db")).unwrap();
    check(&refused(&scratch), ErrorKind::Unavailable, "store.db");
    fs::remove_dir(scratch.dir.join("store.db")).unwrap();
    note(&scratch.store(), 1);
}

/// Bytes flipped anywhere: an answer, or a fault that says what to do; never a panic, and never an entry that says something
/// else and is taken for sound.
// promise 19
#[test]
fn flipped_bytes_are_a_fault_or_found_or_without_effect() {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=40).for_each(|n| assert_eq!(note(&store, n), n));
    (0..20).for_each(|n| drop(store.write(|tx| tx.add(&format!("t{n}"), thing("x"))).unwrap()));
    let written = store.read(|tx| tx.noted(None, None, 100)).unwrap();
    drop(store);
    let path = scratch.dir.join("store.db");
    Connection::open(&path).unwrap().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let good = fs::read(&path).unwrap();
    let (mut faults, mut found, mut harmless) = (0, 0, 0);
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..600 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        fs::write(&path, &good).unwrap();
        let (at, bit) = ((seed as usize >> 3) % good.len(), seed as u8 & 7);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[good[at] ^ 1 << bit], at as u64).unwrap();
        let _ = fs::remove_file(scratch.dir.join("store.db-shm"));
        let looked = scratch.open().and_then(|store| {
            let verified = store.verify()?;
            let entries = store.read(|tx| tx.noted(None, None, 100))?;
            store.read(|tx| tx.list::<Thing>())?;
            Ok((verified.broken, entries))
        });
        match looked {
            Err(fault) => {
                assert!(fault.hint.is_some(), "byte {at}: {fault:?}");
                faults += 1;
            }
            Ok((Some(_), _)) => found += 1,
            Ok((None, entries)) => {
                assert!(entries == written, "byte {at}, bit {bit}");
                harmless += 1;
            }
        }
    }
    println!("{faults} faults, {found} found, {harmless} without effect");
    assert!(faults + found > 50, "{faults} {found} {harmless}");
    fs::write(&path, &good).unwrap();
    assert_eq!(scratch.store().verify().unwrap().broken, None, "a good copy put back is as before");
}

#[test]
fn a_read_only_disk_can_be_read() {
    let scratch = Scratch::small(24 << 10);
    note(&scratch.store(), 1);
    scratch.remount("ro");
    let store = scratch.store();
    assert_eq!(store.verify().unwrap().entries, 1);
    let fault = store.write(|tx| tx.add("a", thing("x"))).unwrap_err();
    check(&fault, ErrorKind::Unavailable, "readonly");
    drop(store);
    scratch.remount("rw");
    note(&scratch.store(), 2);
    assert_eq!(scratch.store().verify().unwrap().entries, 2);
}

/// On a full disk all can be read and a little can be written, which is what it takes to free some.
// promise 19
#[test]
fn a_full_disk_leaves_room_to_free_some() {
    let scratch = Scratch::small(32 << 10);
    note(&scratch.store(), 1);
    let held = || fs::metadata(scratch.dir.join("reserve")).map_or(0, |meta| meta.len());
    let before = held();
    let fill = scratch.dir.join("fill");
    fill_up(&fill);
    let store = scratch.store();
    assert_eq!(store.verify().unwrap().entries, 1);
    store.write(|tx| tx.add("a", thing("the last words"))).unwrap();
    note(&store, 2);
    assert!(held() <= before / 8, "what was held is given back, but for a little: {} of {before}", held());
    drop(store);
    // Another process takes that, too.
    fill_up(&scratch.dir.join("more"));
    let store = scratch.store();
    let big = "x".repeat(4 << 20);
    let full = store.write(|tx| tx.add("b", thing(&big))).unwrap_err();
    check(&full, ErrorKind::Unavailable, "full");
    assert_eq!(store.read(|tx| tx.count::<Thing>()).unwrap(), 1, "nothing of it landed");
    drop(store);
    fs::remove_file(&fill).unwrap();
    let store = scratch.store();
    store.write(|tx| tx.add("c", thing("x"))).unwrap();
    note(&store, 3);
    assert_eq!((store.verify().unwrap().entries, store.verify().unwrap().broken), (3, None));
    assert!(before > 0 && held() == before, "and held again: {} of {before}", held());
}

/// Without a file nothing is recorded by which space could be freed; the hint promised that once.
#[test]
fn a_full_disk_without_a_file_is_told_as_such() {
    let scratch = Scratch::small(24 << 10);
    let fill = scratch.dir.join("fill");
    fill_up(&fill);
    let store = scratch.store();
    assert_eq!(store.read(|tx| tx.count::<Thing>()).unwrap(), 0, "nothing is recorded, and that can be read");
    let full = store.write(|tx| tx.add("a", thing("x"))).unwrap_err();
    check(&full, ErrorKind::Unavailable, "full");
    assert!(!store.is_usable(), "it is opened anew when there may be room");
    drop(store);
    assert!(full.hint.as_deref().is_some_and(|hint| hint.contains("free some space")), "{full:?}");
    assert!(!scratch.dir.join("store.db.part").exists(), "nothing half made is left");
    fs::remove_file(&fill).unwrap();
    note(&scratch.store(), 1);
}

/// The fault names the obstacle to a new file, not a leftover of an earlier try.
#[test]
fn a_read_only_disk_without_a_file_is_told_as_such() {
    let scratch = Scratch::small(24 << 10);
    fs::write(scratch.dir.join("store.db.part"), "").unwrap();
    scratch.remount("ro");
    let fault = scratch.open().err().expect("it cannot be made");
    check(&fault, ErrorKind::Unavailable, "Read-only file system");
    scratch.remount("rw");
    note(&scratch.store(), 1);
}

fn fill_up(path: &std::path::Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    for size in [64 << 10, 4096, 1] {
        let chunk = vec![1u8; size];
        while file.write_all(&chunk).is_ok() {}
    }
    let _ = file.sync_all();
}
