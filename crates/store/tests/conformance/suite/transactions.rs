//! Isolation, lost updates, durability.

use super::{entry, get, insert, thing};
use crate::place::{BackEnd, Place, READ, RELAXED, WRITE, commit};
use std::process::Command;
use std::time::{Duration, Instant};
use store::backend::{Backend, WriteOutcome};
use terms::{ErrorKind, Retry};

pub fn a_dropped_transaction_has_no_effect(place: &Place) {
    let handle = place.open();
    let tx = handle.begin(WRITE).unwrap();
    insert(&*tx, &thing("a", "{}"));
    tx.append(&entry(1)).unwrap();
    assert!(get(&*tx, "a").is_some() && tx.entry_range().unwrap() == Some((1, 1)), "it sees its own writes");
    drop(tx);
    let tx = handle.begin(READ).unwrap();
    assert!(get(&*tx, "a").is_none() && tx.entry_range().unwrap().is_none());
    drop(tx);
    commit(&*handle, WRITE, |tx| {
        insert(tx, &thing("a", "{}"));
        Ok(())
    });
    commit(&*place.open(), READ, |tx| {
        assert!(get(tx, "a").is_some(), "control");
        Ok(())
    });
}

pub fn a_reader_sees_one_state(place: &Place) {
    let (reader, writer) = (place.open(), place.open());
    commit(&*writer, WRITE, |tx| {
        insert(tx, &thing("a", "{}"));
        Ok(())
    });
    let tx = reader.begin(READ).unwrap();
    assert_eq!(tx.count("thing").unwrap(), 1);
    commit(&*writer, WRITE, |other| {
        insert(other, &thing("b", "{}"));
        other.append(&entry(1))?;
        assert!(other.delete("thing", "a")?);
        Ok(())
    });
    assert_eq!(tx.count("thing").unwrap(), 1);
    assert!(get(&*tx, "a").is_some() && get(&*tx, "b").is_none() && tx.last_entry().unwrap().is_none());
    drop(tx);
    commit(&*reader, READ, |tx| {
        assert!(get(tx, "a").is_none() && get(tx, "b").is_some());
        Ok(())
    });
}

pub fn a_reader_does_not_wait_for_a_writer(place: &Place) {
    let (reader, writer) = (place.open(), place.open());
    let tx = writer.begin(WRITE).unwrap();
    insert(&*tx, &thing("a", "{}"));
    let since = Instant::now();
    commit(&*reader, READ, |tx| {
        assert!(get(tx, "a").is_none(), "nothing is seen before the commit");
        Ok(())
    });
    assert!(since.elapsed() < Duration::from_secs(5));
    tx.commit().unwrap();
    commit(&*reader, READ, |tx| {
        assert!(get(tx, "a").is_some());
        Ok(())
    });
}

pub fn a_second_writer_waits_and_then_gets_a_fault(place: &Place) {
    let (first, second) = (place.open(), place.open_for(Duration::from_millis(100)));
    let tx = first.begin(WRITE).unwrap();
    let busy = second.begin(WRITE).err().expect("another writes");
    assert_eq!((busy.error_kind, busy.retry), (ErrorKind::Unavailable, Retry::Later), "{busy:?}");
    tx.commit().unwrap();
    // One that waits gets its turn when the first is done.
    std::thread::scope(|scope| {
        let tx = first.begin(WRITE).unwrap();
        insert(&*tx, &thing("a", "{}"));
        let patient = scope.spawn(|| {
            commit(&*place.open(), WRITE, |tx| {
                assert!(get(tx, "a").is_some(), "it sees what the first wrote");
                Ok(())
            });
        });
        std::thread::sleep(Duration::from_millis(50));
        tx.commit().unwrap();
        patient.join().unwrap();
    });
}

pub fn a_handle_has_one_transaction_at_a_time(place: &Place) {
    let handle = place.open();
    for first in [READ, WRITE, RELAXED] {
        let tx = handle.begin(first).unwrap();
        for second in [READ, WRITE, RELAXED] {
            assert!(handle.begin(second).is_err(), "{first:?}, {second:?}");
        }
        tx.commit().unwrap();
    }
    commit(&*handle, WRITE, |tx| {
        insert(tx, &thing("a", "{}"));
        Ok(())
    });
}

pub fn a_read_transaction_cannot_write(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| tx.append(&entry(1)));
    let tx = handle.begin(READ).unwrap();
    assert!(tx.insert(&thing("a", "{}")).is_err());
    assert!(tx.update(&thing("a", "{}"), 1).is_err());
    assert!(tx.delete("thing", "a").is_err());
    assert!(tx.append(&entry(2)).is_err());
    assert!(tx.delete_entries(1).is_err());
    assert!(tx.delete_expired_key("k", 1).is_err());
    tx.commit().unwrap();
    commit(&*handle, READ, |tx| {
        assert_eq!((tx.count("thing")?, tx.entry_range()?), (0, Some((1, 1))));
        Ok(())
    });
}

const THREADS: u64 = 6;
const ROUNDS: u64 = 30;

/// Each thread reads a counter and writes it back, incremented.
pub fn no_update_is_lost(place: &Place) {
    commit(&*place.open(), WRITE, |tx| {
        insert(tx, &thing("counter", r#"{"n":0}"#));
        Ok(())
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let handle = place.open();
                for round in 0..ROUNDS {
                    let access = if (thread + round).is_multiple_of(2) { WRITE } else { RELAXED };
                    commit(&*handle, access, |tx| {
                        let row = get(tx, "counter").unwrap();
                        let body = format!("{{\"n\":{}}}", number(&row.body) + 1);
                        assert_eq!(tx.update(&thing("counter", &body), row.version)?, WriteOutcome::Done);
                        Ok(())
                    });
                }
            });
        }
    });
    let row = commit(&*place.open(), READ, |tx| Ok(get(tx, "counter").unwrap()));
    assert_eq!((number(&row.body), row.version), (THREADS * ROUNDS, THREADS * ROUNDS + 1));
}

fn number(body: &str) -> u64 {
    serde_json::from_str::<serde_json::Value>(body).unwrap()["n"].as_u64().unwrap()
}

pub fn an_update_from_an_old_version_is_stale(place: &Place) {
    let (one, other) = (place.open(), place.open());
    commit(&*one, WRITE, |tx| {
        insert(tx, &thing("a", r#"{"n":1}"#));
        Ok(())
    });
    let read = commit(&*one, READ, |tx| Ok(get(tx, "a").unwrap()));
    commit(&*other, WRITE, |tx| {
        assert_eq!(tx.update(&thing("a", r#"{"n":2}"#), read.version)?, WriteOutcome::Done);
        Ok(())
    });
    commit(&*one, WRITE, |tx| {
        assert_eq!(tx.update(&thing("a", r#"{"n":3}"#), read.version)?, WriteOutcome::Stale);
        assert_eq!(tx.update(&thing("none", r#"{"n":3}"#), 1)?, WriteOutcome::Stale);
        Ok(())
    });
    let row = commit(&*one, READ, |tx| Ok(get(tx, "a").unwrap()));
    assert_eq!((row.version, number(&row.body)), (2, 2));
}

pub fn relaxed_commits_are_seen_at_once_and_synced_once(place: &Place) {
    let (one, other) = (place.open(), place.open());
    assert!(one.pending().is_none());
    commit(&*one, RELAXED, |tx| {
        insert(tx, &thing("a", "{}"));
        tx.append(&entry(1))
    });
    commit(&*other, READ, |tx| {
        assert!(get(tx, "a").is_some() && tx.last_entry()?.is_some());
        Ok(())
    });
    assert!(other.pending().is_none(), "a handle tells of its own commits");
    let pending = one.pending().unwrap();
    assert!(one.pending().is_none());
    // Another thread waits for the disk, while the handle goes on.
    let thread = std::thread::spawn(move || pending.sync().and_then(|()| pending.maintain()));
    commit(&*one, RELAXED, |tx| tx.append(&entry(2)));
    thread.join().unwrap().unwrap();
    assert!(one.pending().is_some() && one.is_sound() && !one.is_in_doubt());
}

const CRASH: &str = "COFFERDAM_CONFORMANCE_CRASH";

/// Every commit of a process that is killed is there, of either durability; its open transaction is not, and holds up no one.
pub fn commits_survive_a_killed_process(place: &Place) {
    if !place.persists() {
        return;
    }
    if let Some(dir) = std::env::var_os(CRASH) {
        let mut there = Place::new(place.back_end);
        std::fs::remove_dir_all(&there.dir).unwrap();
        there.dir = dir.into();
        crash(&*there.open());
    }
    let name = match place.back_end {
        BackEnd::Sqlite => "sqlite::commits_survive_a_killed_process",
        BackEnd::Memory => unreachable!("it does not persist"),
    };
    let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CRASH, &place.dir).output();
    assert!(!child.unwrap().status.success(), "control: it is killed");
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        assert_eq!(tx.entry_range()?, Some((1, 6)));
        assert_eq!(tx.count("thing")?, 6);
        tx.append(&entry(7))
    });
}

fn crash(handle: &dyn Backend) -> ! {
    for n in 1..=6 {
        commit(handle, if n == 3 { WRITE } else { RELAXED }, |tx| {
            insert(tx, &thing(&n.to_string(), "{}"));
            tx.append(&entry(n))
        });
    }
    let tx = handle.begin(WRITE).unwrap();
    insert(&*tx, &thing("7", "{}"));
    tx.append(&entry(7)).unwrap();
    std::process::abort();
}
