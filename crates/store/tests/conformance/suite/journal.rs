//! The journal's rows, and the chain that the store builds on them.

use super::{entry, get, insert, thing};
use crate::place::{Place, READ, WRITE, commit};
use api::JournalStep;
use serde_json::json;
use std::ops::ControlFlow;
use store::backend::{ChainLink, EntryQuery, Order, Transaction};
use store::{Entry, Store, examine};

fn numbers(tx: &dyn Transaction, query: &EntryQuery<'_>) -> Vec<u64> {
    let mut found = Vec::new();
    tx.entries(query, &mut |row| {
        let row = row?;
        assert_eq!(row, entry(row.seq));
        found.push(row.seq);
        Ok(ControlFlow::Continue(()))
    })
    .unwrap();
    found
}

pub fn an_entry_follows_upon_the_last(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        assert_eq!((tx.last_entry()?, tx.entry_range()?), (None, None));
        (1..=5).try_for_each(|seq| tx.append(&entry(seq)))
    });
    let tx = handle.begin(WRITE).unwrap();
    for seq in [0, 3, 5, 7, 1 << 40] {
        assert!(tx.append(&entry(seq)).is_err(), "{seq}");
    }
    assert_eq!(tx.last_entry().unwrap(), Some(ChainLink { seq: 5, hash: "hash 5".into() }));
    drop(tx);
    commit(&*handle, WRITE, |tx| tx.append(&entry(6)));
    commit(&*handle, READ, |tx| {
        assert_eq!(numbers(tx, &EntryQuery::default()), [1, 2, 3, 4, 5, 6]);
        Ok(())
    });
}

pub fn entries_are_selected_by_each_field(place: &Place) {
    const COUNT: u64 = 60;
    let handle = place.open();
    commit(&*handle, WRITE, |tx| (1..=COUNT).try_for_each(|seq| tx.append(&entry(seq))));
    let texts = |all: &[&'static str]| all.iter().map(|text| Some(*text)).chain([None]).collect::<Vec<_>>();
    let tx = handle.begin(READ).unwrap();
    for after in [0, 1, 30, COUNT, u64::MAX] {
        for below in [None, Some(0), Some(1), Some(31), Some(COUNT + 1), Some(u64::MAX)] {
            for subject in texts(&["sbx_1", "sbx_", "sbx_1\0"]) {
                for (verb, actor, step) in
                    [(Some("run"), None, None), (None, Some("eve"), Some("done")), (None, None, None)]
                {
                    for (order, limit) in
                        [(Order::OldestFirst, None), (Order::NewestFirst, Some(4)), (Order::OldestFirst, Some(0))]
                    {
                        let query = EntryQuery { after, below, subject, verb, actor, step, order, limit };
                        let is = |wanted: Option<&str>, text: &str| wanted.is_none_or(|wanted| wanted == text);
                        let mut expected: Vec<u64> = (1..=COUNT)
                            .filter(|seq| *seq > after && below.is_none_or(|below| *seq < below))
                            .filter(|seq| {
                                let row = entry(*seq);
                                is(subject, &row.subject)
                                    && is(verb, &row.verb)
                                    && is(actor, &row.actor)
                                    && is(step, &row.step)
                            })
                            .collect();
                        if order == Order::NewestFirst {
                            expected.reverse();
                        }
                        expected.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
                        assert_eq!(numbers(&*tx, &query), expected, "{query:?}");
                    }
                }
            }
        }
    }
    // The visitor ends the visit, by a word or by a fault.
    let mut seen = 0;
    let mut first = |row: Result<_, _>| {
        seen += 1;
        row.map(|_| ControlFlow::Break(()))
    };
    tx.entries(&EntryQuery::default(), &mut first).unwrap();
    assert_eq!(seen, 1);
    assert!(tx.entries(&EntryQuery::default(), &mut |_| Err(terms::Fault::internal("enough"))).is_err());
}

pub fn old_entries_are_deleted_and_numbers_go_on(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| (1..=9).try_for_each(|seq| tx.append(&entry(seq))));
    commit(&*handle, WRITE, |tx| tx.delete_entries(4));
    commit(&*handle, WRITE, |tx| {
        assert_eq!(tx.entry_range()?, Some((5, 9)));
        tx.append(&entry(10))
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(numbers(tx, &EntryQuery::default()), [5, 6, 7, 8, 9, 10]);
        Ok(())
    });
}

fn note(store: &Store, subject: &str, n: u64) -> u64 {
    let body = json!({ "n": n });
    let entry = Entry { at_ms: n, verb: "create", step: JournalStep::Done, subject, actor: "tester", body };
    if n.is_multiple_of(3) { store.write_soon(|tx| tx.note(&entry)) } else { store.write(|tx| tx.note(&entry)) }
        .unwrap()
}

pub fn the_chain_is_continuous_under_concurrency(place: &Place) {
    const THREADS: u64 = 6;
    const EACH: u64 = 25;
    drop(place.store());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let (store, subject) = (place.store(), format!("sbx_{thread}"));
                let numbers: Vec<u64> = (1..=EACH).map(|n| note(&store, &subject, n)).collect();
                assert!(numbers.is_sorted_by(|a, b| a < b));
                if let Some(unsettled) = store.unsettled() {
                    unsettled.settle().unwrap();
                }
            });
        }
        let reader = place.store();
        for _ in 0..10 {
            let heads = reader.read(|tx| Ok((tx.last_noted()?, tx.noted(None, None, 1)?))).unwrap();
            assert_eq!(heads.1.first().map_or(0, |noted| noted.seq), heads.0);
        }
    });
    let store = place.store();
    // The database alone: what `journal.head` tells of it is tested where it is kept.
    let verified = store.verify().unwrap();
    assert_eq!(verified.entries, THREADS * EACH, "{verified:?}");
    for thread in 0..THREADS {
        let noted = store.read(|tx| tx.noted(Some(&format!("sbx_{thread}")), None, 1000)).unwrap();
        let order: Vec<u64> = noted.iter().map(|noted| noted.at_ms).collect();
        assert_eq!(order, (1..=EACH).collect::<Vec<_>>(), "each thread's entries, in its order");
    }
}

pub fn a_rolled_back_entry_leaves_no_gap(place: &Place) {
    let store = place.store();
    assert_eq!(note(&store, "sbx_1", 1), 1);
    let entry = Entry { at_ms: 2, verb: "x", step: JournalStep::Intent, subject: "s", actor: "a", body: json!(null) };
    let failed: Result<(), _> = store.write(|tx| {
        assert_eq!(tx.note(&entry)?, 2);
        assert_eq!(tx.note(&entry)?, 3);
        Err(terms::Fault::internal("changed my mind"))
    });
    assert!(failed.is_err());
    assert_eq!(note(&store, "sbx_1", 2), 2);
    assert_eq!(store.verify().unwrap().entries, 2);
}

pub fn segments_are_cut_off_and_verified(place: &Place) {
    let store = place.store();
    (1..=30).for_each(|n| assert_eq!(note(&store, "sbx_1", n), n));
    let segment = store.archive(10, "tester", 1).unwrap().unwrap();
    assert_eq!((segment.first, segment.last), (1, 10));
    assert_eq!(store.archive(10, "tester", 1).unwrap(), None, "once");
    let segment = store.archive(20, "tester", 1).unwrap().unwrap();
    assert_eq!((segment.first, segment.last), (11, 20));
    let verified = place.store().verify().unwrap();
    assert_eq!((verified.entries, verified.archived, verified.archived_here), (32, 20, 20), "{verified:?}");
}

pub fn a_copy_holds_one_moment(place: &Place) {
    let store = place.store();
    (1..=30).for_each(|n| assert_eq!(note(&store, "sbx_1", n), n));
    store.archive(10, "tester", 1).unwrap().unwrap();
    commit(&*place.open(), WRITE, |tx| {
        insert(tx, &thing("a", "{}"));
        Ok(())
    });
    let file = place.dir.join("copy");
    let copied = store.backup(&file).unwrap();
    assert_eq!(copied.entries, 31);
    assert_eq!(note(&store, "sbx_1", 32), 32);
    assert_eq!(examine(&file).unwrap(), copied);
    commit(&*place.open(), READ, |tx| {
        assert!(get(tx, "a").is_some());
        Ok(())
    });
    assert!(store.sound().unwrap().is_empty());
}
