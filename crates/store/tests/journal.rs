//! The journal: every change, drop, move or rewrite of an entry is found, and a crash is not taken for one.

mod scratch;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rusqlite::{Connection, params};
use scratch::{Scratch, note, note_soon};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

const COUNT: u32 = 30;
const ENTRIES: u64 = COUNT as u64;

/// A store whose entries are all in the one file.
fn filled() -> Scratch {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=ENTRIES).for_each(|n| assert_eq!(note(&store, n), n));
    drop(store);
    raw(&scratch.dir).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    scratch
}

fn raw(dir: &Path) -> Connection {
    let db = Connection::open(dir.join("store.db")).unwrap();
    db.execute_batch("PRAGMA synchronous = OFF").unwrap();
    db
}

/// A change by a process that can write the file.
#[derive(Clone, Debug)]
enum Mutation {
    Flip {
        entry: u32,
        column: usize,
        at: usize,
        bit: u8,
    },
    Renumber {
        entry: u32,
        by: i64,
    },
    Retime {
        entry: u32,
        by: i64,
    },
    Drop {
        from: u32,
        count: u32,
    },
    DropEnd {
        count: u32,
    },
    Exchange {
        a: u32,
        b: u32,
    },
    Repeat {
        entry: u32,
    },
    /// Changes one entry and makes the chain sound again from there on.
    WriteAnew {
        entry: u32,
    },
    /// Another journal in the place of this one.
    Replace {
        entries: u32,
    },
    ForgetHead,
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let entry = 1..=COUNT;
    prop_oneof![
        8 => (entry.clone(), 0usize..6, any::<usize>(), 0u8..8)
            .prop_map(|(entry, column, at, bit)| Mutation::Flip { entry, column, at, bit }),
        1 => (entry.clone(), 1i64..100).prop_map(|(entry, by)| Mutation::Renumber { entry, by: by * 1000 }),
        2 => (entry.clone(), 1i64..1_000_000).prop_map(|(entry, by)| Mutation::Retime { entry, by }),
        3 => (entry.clone(), 1u32..5).prop_map(|(from, count)| Mutation::Drop { from, count }),
        2 => (1u32..=COUNT).prop_map(|count| Mutation::DropEnd { count }),
        3 => (1u32..COUNT, 1u32..COUNT).prop_map(|(a, by)| Mutation::Exchange { a, b: 1 + (a + by - 1) % COUNT }),
        2 => entry.clone().prop_map(|entry| Mutation::Repeat { entry }),
        3 => entry.prop_map(|entry| Mutation::WriteAnew { entry }),
        1 => (1u32..60).prop_map(|entries| Mutation::Replace { entries }),
        1 => Just(Mutation::ForgetHead),
    ]
}

const COLUMNS: [&str; 6] = ["verb", "step", "subject", "actor", "body", "hash"];

fn mutate(dir: &Path, mutation: &Mutation) {
    let db = raw(dir);
    let run = |sql: &str, with: &[&dyn rusqlite::ToSql]| db.execute(sql, with).unwrap();
    match *mutation {
        Mutation::Flip { entry, column, at, bit } => {
            let column = COLUMNS[column];
            let text: String =
                db.query_row(&format!("SELECT {column} FROM journal WHERE seq = ?1"), [entry], |r| r.get(0)).unwrap();
            let mut bytes = text.into_bytes();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            // As text, valid or not: SQLite does not ask.
            run(&format!("UPDATE journal SET {column} = CAST(?1 AS TEXT) WHERE seq = ?2"), params![bytes, entry]);
        }
        Mutation::Renumber { entry, by } => {
            run("UPDATE journal SET seq = seq + ?1 WHERE seq = ?2", params![by, entry]);
        }
        Mutation::Retime { entry, by } => {
            run("UPDATE journal SET at_ms = at_ms + ?1 WHERE seq = ?2", params![by, entry]);
        }
        Mutation::Drop { from, count } => {
            run("DELETE FROM journal WHERE seq >= ?1 AND seq < ?1 + ?2", params![from, count]);
        }
        Mutation::DropEnd { count } => {
            run("DELETE FROM journal WHERE seq > ?1", params![COUNT - count]);
        }
        Mutation::Exchange { a, b } => {
            run("UPDATE journal SET seq = -1 WHERE seq = ?1", params![a]);
            run("UPDATE journal SET seq = ?1 WHERE seq = ?2", params![a, b]);
            run("UPDATE journal SET seq = ?1 WHERE seq = -1", params![b]);
        }
        Mutation::Repeat { entry } => {
            let columns = "at_ms, verb, step, subject, actor, body, hash";
            run(
                &format!("INSERT INTO journal (seq, {columns}) SELECT ?1, {columns} FROM journal WHERE seq = ?2"),
                params![COUNT + 1, entry],
            );
        }
        Mutation::WriteAnew { entry } => {
            run("UPDATE journal SET actor = 'somebody else' WHERE seq = ?1", params![entry]);
            rechain(&db);
        }
        Mutation::Replace { entries } => {
            run("DELETE FROM journal", &[]);
            for seq in 1..=entries {
                run("INSERT INTO journal VALUES (?1, 1, 'create', 'done', 'sbx_2', 'x', 'null', '')", params![seq]);
            }
            rechain(&db);
        }
        Mutation::ForgetHead => fs::remove_file(dir.join("journal.head")).unwrap(),
    }
}

/// Computes every hash anew, as an attacker would who knows how.
fn rechain(db: &Connection) {
    let mut before = "cofferdam journal 1".to_owned();
    let mut rows = db.prepare("SELECT seq, at_ms, verb, step, subject, actor, body FROM journal ORDER BY seq").unwrap();
    let rows = rows.query_map([], |r| {
        let texts: Vec<String> = (2..7).map(|i| r.get(i)).collect::<Result<_, _>>()?;
        Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?, texts))
    });
    for row in rows.unwrap() {
        let (seq, at_ms, texts) = row.unwrap();
        let mut hasher = Sha256::new();
        hasher.update(before.as_bytes());
        hasher.update(seq.to_le_bytes());
        hasher.update(at_ms.to_le_bytes());
        for text in texts {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        before = hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
        db.execute("UPDATE journal SET hash = ?1 WHERE seq = ?2", params![before, seq]).unwrap();
    }
}

// promise 19
#[test]
fn whatever_is_done_to_the_journal_is_found() {
    let good = filled();
    assert_eq!(good.store().verify().unwrap().broken, None, "control: as written it is sound");
    let sound = rechained_copy(&good);
    assert_eq!(sound.store().verify().unwrap().broken, None, "control: the test makes hashes as the store does");
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    let result = runner.run(&mutations(), |mutation| {
        let copy = copy_of(&good);
        mutate(&copy.dir, &mutation);
        let verified = copy.store().verify().unwrap();
        prop_assert!(verified.broken.is_some(), "not found: {mutation:?}");
        let first = verified.broken.unwrap().seq;
        let at_most = match mutation {
            Mutation::Flip { entry, .. }
            | Mutation::Renumber { entry, .. }
            | Mutation::Retime { entry, .. }
            | Mutation::WriteAnew { entry } => entry,
            Mutation::Drop { from, .. } => from,
            Mutation::DropEnd { count } => COUNT - count + 1,
            Mutation::Exchange { a, b } => a.min(b),
            Mutation::Repeat { .. } | Mutation::ForgetHead => COUNT + 1,
            Mutation::Replace { .. } => 1,
        };
        prop_assert_eq!(first, u64::from(at_most), "the first bad entry of {:?}", mutation);
        Ok(())
    });
    result.unwrap();
}

fn copy_of(scratch: &Scratch) -> Scratch {
    let copy = Scratch::new();
    for name in ["store.db", "journal.head"] {
        fs::copy(scratch.dir.join(name), copy.dir.join(name)).unwrap();
    }
    copy
}

fn rechained_copy(scratch: &Scratch) -> Scratch {
    let copy = copy_of(scratch);
    rechain(&raw(&copy.dir));
    copy
}

/// A crash between the commit and the line in `journal.head` leaves a head that lags, or one that ends in half a line; a power failure also
/// one that has zeros where the last lines were.
// promise 19
#[test]
fn a_head_that_lags_is_no_tampering() {
    let scratch = filled();
    let path = scratch.dir.join("journal.head");
    let text = fs::read_to_string(&path).unwrap();
    for cut in [1, 10, 66, 67, 300, text.len() - 13] {
        for rest in ["".to_owned(), "\0".repeat(cut)] {
            fs::write(&path, text[..text.len() - cut].to_owned() + &rest).unwrap();
            let verified = scratch.store().verify().unwrap();
            assert_eq!((verified.entries, verified.broken), (ENTRIES, None), "{cut} bytes cut");
            assert!(verified.anchored < ENTRIES);
        }
    }
    // It catches up with the next entry, also behind half a line.
    note(&scratch.store(), ENTRIES + 1);
    note(&scratch.store(), ENTRIES + 2);
    let verified = scratch.store().verify().unwrap();
    assert_eq!((verified.anchored, verified.broken), (ENTRIES + 2, None));
}

#[test]
fn the_head_stays_small() {
    let scratch = Scratch::new();
    let store = scratch.store();
    (1..=1500).for_each(|n| assert_eq!(note(&store, n), n));
    assert!(fs::metadata(scratch.dir.join("journal.head")).unwrap().len() <= 70 << 10);
    let verified = store.verify().unwrap();
    assert_eq!((verified.entries, verified.anchored, verified.broken), (1500, 1500, None));
}

/// The log grew by every process that committed once, for ever, and from 256 pages on each of them moved all of its pages again.
// promise 18
#[test]
fn processes_that_commit_once_leave_a_short_log() {
    let scratch = Scratch::new();
    let pages = || fs::metadata(scratch.dir.join("store.db-wal")).unwrap().len() / 4120;
    for n in 1..=200 {
        assert_eq!(note(&scratch.store(), n), n);
        assert!(pages() < 300, "{n}: {}", pages());
    }
    for n in 201..=400 {
        assert_eq!(note_soon(&scratch.store(), n), n);
        assert!(pages() < 560, "{n}: {}", pages());
    }
    assert!(pages() > 300, "control: who does not wait for the disk lets it grow");
    let verified = scratch.store().verify().unwrap();
    assert_eq!((verified.entries, verified.broken), (400, None));
}

/// The files as they are after a failure of power that took everything beside the store from `length` on.
fn after_power_failure(scratch: &Scratch, length: u64) -> Scratch {
    let copy = Scratch::new();
    for name in ["store.db", "store.db-wal", "journal.head"] {
        fs::copy(scratch.dir.join(name), copy.dir.join(name)).unwrap();
    }
    fs::File::options().write(true).open(copy.dir.join("store.db-wal")).unwrap().set_len(length).unwrap();
    copy
}

// promise 20
#[test]
fn what_was_not_on_the_disk_is_gone_after_a_power_failure_and_no_tampering() {
    let scratch = Scratch::new();
    let (store, other) = (scratch.store(), scratch.store());
    let beside = || fs::metadata(scratch.dir.join("store.db-wal")).unwrap().len();
    let sound = |left: &Scratch| {
        let verified = left.store().verify().unwrap();
        assert_eq!(verified.broken, None);
        assert!(verified.anchored <= verified.entries);
        (verified.entries, verified.anchored)
    };
    assert_eq!((note(&store, 1), beside() > 0), (1, true));
    let durable = beside();
    assert_eq!(note_soon(&store, 2), 2);
    assert_eq!(note_soon(&store, 3), 3);
    // Every handle sees it at once.
    assert_eq!(other.verify().unwrap().entries, 3);
    for length in durable..=beside() {
        if (length - durable).is_multiple_of(1021) {
            let (entries, anchored) = sound(&after_power_failure(&scratch, length));
            assert!((1..=3).contains(&entries) && anchored == 1, "{length}: {entries}, {anchored}");
        }
    }
    assert_eq!(sound(&after_power_failure(&scratch, durable)), (1, 1));
    // A control: a head that leads is what a cut journal looks like.
    let cut = after_power_failure(&scratch, durable);
    let ahead = store.read(|tx| tx.noted(None, None, 1)).unwrap().remove(0);
    let mut head = fs::read_to_string(cut.dir.join("journal.head")).unwrap();
    head.push_str(&format!("\n{} {}", ahead.seq, ahead.hash));
    fs::write(cut.dir.join("journal.head"), head).unwrap();
    assert_eq!(cut.store().verify().unwrap().broken.unwrap().seq, 2);
    // Once it is settled the head knows it; once is enough.
    store.unsettled().unwrap().settle().unwrap();
    assert!(store.unsettled().is_none());
    assert_eq!(sound(&after_power_failure(&scratch, beside())), (3, 3));
    // A synced commit of any handle takes all before it to the disk.
    assert_eq!(note_soon(&store, 4), 4);
    assert_eq!(note(&other, 5), 5);
    assert_eq!(sound(&after_power_failure(&scratch, beside())), (5, 5));
}
