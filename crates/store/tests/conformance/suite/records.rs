//! Records and idempotency keys.

use super::{get, ids, insert, select, thing};
use crate::place::{Place, READ, WRITE, commit};
use std::collections::BTreeMap;
use store::backend::{Filter, KeyRow, RecordFields, WriteOutcome};

fn named<'a>(kind: &'a str, id: &'a str, name: &'a str) -> RecordFields<'a> {
    RecordFields { kind, id, name: Some(name), scope: None, body: "{}" }
}

pub fn ids_and_names_are_unique_in_their_kind(place: &Place) {
    commit(&*place.open(), WRITE, |tx| {
        insert(tx, &named("thing", "a", "fix"));
        insert(tx, &named("other", "a", "fix"));
        insert(tx, &thing("b", "{}"));
        insert(tx, &thing("c", "{}"));
        assert_eq!(tx.insert(&thing("a", "{}"))?, WriteOutcome::Taken);
        assert_eq!(tx.insert(&named("thing", "d", "fix"))?, WriteOutcome::Taken);
        assert_eq!(tx.update(&named("thing", "b", "fix"), 1)?, WriteOutcome::Taken);
        assert_eq!(tx.update(&named("thing", "a", "fix"), 1)?, WriteOutcome::Done, "its own name is no obstacle");
        assert_eq!(tx.update(&thing("a", "{}"), 2)?, WriteOutcome::Done);
        assert_eq!(tx.update(&named("thing", "b", "fix"), 1)?, WriteOutcome::Done, "the name is free");
        assert!(tx.delete("thing", "b")? && !tx.delete("thing", "b")?);
        insert(tx, &named("thing", "d", "fix"));
        Ok(())
    });
    commit(&*place.open(), READ, |tx| {
        assert_eq!(ids(tx, Filter::Name("fix"), None), ["d"]);
        assert_eq!(get(tx, "a").map(|row| row.version), Some(3));
        assert_eq!((tx.count("thing")?, tx.count("other")?, tx.count("none")?), (3, 1, 0));
        Ok(())
    });
}

pub fn a_refused_row_leaves_the_transaction_usable(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        insert(tx, &named("thing", "a", "fix"));
        Ok(())
    });
    commit(&*handle, WRITE, |tx| {
        insert(tx, &thing("b", "{}"));
        assert_eq!(tx.insert(&named("thing", "c", "fix"))?, WriteOutcome::Taken);
        assert_eq!(tx.update(&thing("b", "{}"), 9)?, WriteOutcome::Stale);
        assert!(get(tx, "b").is_some() && get(tx, "c").is_none());
        insert(tx, &thing("d", "{}"));
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(ids(tx, Filter::All, None), ["a", "b", "d"]);
        Ok(())
    });
}

/// Ids as no sane caller makes them.
pub const ODD: [&str; 22] = [
    "",
    " ",
    "  ",
    "'",
    "\"",
    "%",
    "_",
    "\\",
    "a",
    "A",
    "a b",
    "a\n",
    "a/b",
    "ab",
    "b",
    "é",
    "e\u{301}",
    "\u{d7ff}",
    "\u{e000}",
    "\u{ffff}",
    "\u{1f980}",
    "\u{10ffff}",
];

pub fn odd_ids_come_back_in_byte_order(place: &Place) {
    let long = "x".repeat(100_000);
    let all: Vec<&str> = ODD.into_iter().chain([long.as_str()]).collect();
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        for (n, id) in all.iter().enumerate() {
            let body = format!("{{\"n\":{n}}}");
            insert(tx, &RecordFields { kind: "thing", id, name: Some(id), scope: Some(id), body: &body });
        }
        Ok(())
    });
    let mut sorted = all.clone();
    sorted.sort_unstable_by_key(|id| id.as_bytes());
    commit(&*handle, READ, |tx| {
        assert_eq!(ids(tx, Filter::All, None), sorted);
        assert_eq!(tx.ids("thing", "", 1000)?, sorted);
        for (n, id) in all.iter().enumerate() {
            let body = format!("{{\"n\":{n}}}");
            for filter in [Filter::Id(id), Filter::Name(id), Filter::Scope(id)] {
                let found = select(tx, "thing", filter, None);
                assert!(found.len() == 1 && found[0].id == *id && found[0].body == body, "{filter:?}");
            }
            assert_eq!(tx.ids_in_scope(id, 9)?, [("thing".to_owned(), (*id).to_owned())]);
        }
        Ok(())
    });
    commit(&*handle, WRITE, |tx| {
        all.iter().for_each(|id| assert!(tx.delete("thing", id).unwrap(), "{id:?}"));
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(tx.count("thing")?, 0);
        Ok(())
    });
}

pub fn prefixes_and_limits_bound_a_list(place: &Place) {
    let mut all = vec!["b\u{10ffff}", "b\u{10ffff}c", "c", "\u{d7ff}x", "\u{10ffff}x", "\u{10ffff}\u{10ffff}"];
    all.extend(ODD);
    all.sort_unstable();
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        all.iter().for_each(|id| insert(tx, &thing(id, "{}")));
        Ok(())
    });
    commit(&*handle, WRITE, |tx| {
        insert(tx, &named("other", "ab", "x"));
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        for prefix in all.iter().copied().chain(["zz", "ba", "a\0", "\0"]) {
            for limit in [0, 1, 3, u32::MAX] {
                let expected = all.iter().filter(|id| id.starts_with(prefix)).take(limit as usize);
                let expected: Vec<&str> = expected.copied().collect();
                assert_eq!(ids(tx, Filter::IdPrefix(prefix), Some(limit)), expected, "{prefix:?}, {limit}");
                assert_eq!(tx.ids("thing", prefix, limit)?, expected, "{prefix:?}, {limit}");
            }
        }
        assert_eq!(ids(tx, Filter::All, Some(2)), all[..2]);
        for filter in [Filter::Id("a\0"), Filter::Name("\0"), Filter::Scope("a\0b"), Filter::ScopeBelow("\0")] {
            assert!(ids(tx, filter, None).is_empty(), "{filter:?}");
        }
        Ok(())
    });
}

pub fn scopes_are_matched_whole_or_as_paths(place: &Place) {
    let handle = place.open();
    let scopes = ["/p", "/p/", "/p/sub", "/p/sub/deep", "/p-other", "/p0", "/p.", "/", "", "q", "/P/x", "/p/é"];
    commit(&*handle, WRITE, |tx| {
        for (n, scope) in scopes.iter().enumerate() {
            insert(tx, &RecordFields { scope: Some(scope), ..thing(&format!("{n:02}"), "{}") });
        }
        insert(tx, &thing("without", "{}"));
        insert(tx, &RecordFields { kind: "other", scope: Some("/p"), ..thing("x", "{}") });
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(ids(tx, Filter::Scope("/p"), None), ["00"]);
        assert_eq!(ids(tx, Filter::ScopeBelow("/p"), None), ["02", "03", "11"]);
        assert_eq!(ids(tx, Filter::ScopeBelow("/p/"), None), ["02", "03", "11"]);
        assert_eq!(ids(tx, Filter::ScopeBelow("/p"), Some(1)), ["02"]);
        assert_eq!(ids(tx, Filter::ScopeBelow("/"), None).len(), 9);
        let both = [("other".to_owned(), "x".to_owned()), ("thing".to_owned(), "00".to_owned())];
        assert_eq!(tx.ids_in_scope("/p", 9)?, both);
        assert_eq!(tx.ids_in_scope("/p", 1)?, both[..1]);
        Ok(())
    });
    commit(&*handle, WRITE, |tx| {
        let moved = RecordFields { scope: Some("/new"), ..thing("00", "{}") };
        assert_eq!(tx.update(&moved, 1)?, WriteOutcome::Done);
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        assert!(ids(tx, Filter::Scope("/p"), None).is_empty());
        assert_eq!(ids(tx, Filter::Scope("/new"), None), ["00"]);
        Ok(())
    });
}

pub fn records_without_an_end_are_open(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        insert(tx, &thing("a", r#"{"ended_ms":5}"#));
        insert(tx, &thing("b", r#"{"ended_ms":null}"#));
        insert(tx, &thing("c", r#"{"inner":{"ended_ms":5}}"#));
        insert(tx, &thing("d", r#"{"ended_ms":0}"#));
        insert(tx, &thing("e", r#"{}"#));
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(ids(tx, Filter::Open, None), ["b", "c", "e"]);
        Ok(())
    });
    commit(&*handle, WRITE, |tx| tx.update(&thing("c", r#"{"ended_ms":7}"#), 1));
    commit(&*handle, READ, |tx| {
        assert_eq!(ids(tx, Filter::Open, Some(9)), ["b", "e"]);
        Ok(())
    });
}

pub fn times_are_sorted_and_ties_broken_by_id(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        for (id, at) in [("c", "5"), ("a", "5"), ("b", "1"), ("d", "null"), ("e", "4611686018427387904")] {
            insert(tx, &RecordFields { scope: Some(id), ..thing(id, &format!("{{\"at_ms\":{at}}}")) });
        }
        insert(tx, &thing("f", "{}"));
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        let times = tx.times("thing", "at_ms")?;
        let times: Vec<_> = times.iter().map(|t| (t.id.as_str(), t.scope.as_deref(), t.at_ms)).collect();
        assert_eq!(times, [("b", Some("b"), 1), ("a", Some("a"), 5), ("c", Some("c"), 5), ("e", Some("e"), 1 << 62)]);
        assert!(tx.times("thing", "other_ms")?.is_empty());
        Ok(())
    });
}

pub fn references_are_counted_by_text(place: &Place) {
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        insert(tx, &thing("a", r#"{"layers":["l1","l2"],"gone":["l9"]}"#));
        insert(tx, &thing("b", r#"{"layers":["l1","\"","é"]}"#));
        insert(tx, &thing("c", r#"{"layers":[]}"#));
        insert(tx, &thing("d", r#"{"layers":null,"x":["layers"]}"#));
        insert(tx, &thing("e", r#"{"inner":{"layers":["l7"]}}"#));
        insert(tx, &thing("f", r#"{"layers":[1,["l8"],{"l":"l8"},"l2"]}"#));
        insert(tx, &RecordFields { kind: "other", ..thing("a", r#"{"layers":["l1"]}"#) });
        Ok(())
    });
    commit(&*handle, READ, |tx| {
        let counts = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(text, count)| ((*text).to_owned(), *count)).collect()
        };
        let all = counts(&[("l1", 3), ("l2", 2), ("\"", 1), ("é", 1)]);
        assert_eq!(tx.references("layers", &[])?, all);
        assert_eq!(tx.references("layers", &["thing", "none"])?, counts(&[("l1", 1)]));
        assert_eq!(tx.references("gone", &[])?, counts(&[("l9", 1)]));
        assert!(tx.references("none", &[])?.is_empty());
        Ok(())
    });
}

pub fn keys_expire(place: &Place) {
    let key = |key: &str, expires_ms: u64| KeyRow {
        key: key.to_owned(),
        subject: "sbx_1".to_owned(),
        params: r#"{"a":"é"}"#.to_owned(),
        expires_ms,
    };
    let handle = place.open();
    commit(&*handle, WRITE, |tx| {
        [key("a", 100), key("b", 50), key("c", 50), key("", 200), key("d", 300)]
            .iter()
            .try_for_each(|key| tx.put_key(key))
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(tx.key("a", 99)?, Some(key("a", 100)));
        assert_eq!((tx.key("a", 100)?, tx.key("none", 0)?, tx.key("a\0", 0)?), (None, None, None));
        assert_eq!(tx.expired_keys(200, 9)?, ["b", "c", "a", ""]);
        assert_eq!(tx.expired_keys(200, 2)?, ["b", "c"]);
        assert!(tx.expired_keys(49, 9)?.is_empty() && tx.expired_keys(200, 0)?.is_empty());
        Ok(())
    });
    commit(&*handle, WRITE, |tx| {
        assert!(
            !tx.delete_expired_key("a", 99)? && tx.delete_expired_key("a", 100)? && !tx.delete_expired_key("a", 100)?
        );
        tx.put_key(&key("b", 500))
    });
    commit(&*handle, READ, |tx| {
        assert_eq!(tx.key("b", 499)?, Some(key("b", 500)), "replaced");
        Ok(())
    });
}
