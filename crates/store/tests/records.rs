//! Tests of records and idempotency keys: versions, names, scopes, references, and atomic
//! transactions.

mod scratch;

use scratch::{Only, Ruled, Scratch, Thing, thing};
use store::{Key, Store};
use terms::{ErrorKind, Fault};

// promise 18
#[test]
fn a_record_changes_only_from_the_version_that_was_read() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let first = store.write(|tx| tx.add("a", thing("one"))).unwrap();
    let mut second = first.clone();
    second.record.text = "two".into();
    assert_eq!(store.write(|tx| tx.change(second)).unwrap().version, 2);
    let stale = store.write(|tx| tx.change(first)).unwrap_err();
    assert_eq!(stale.error_kind, ErrorKind::Conflict);
    assert_eq!(store.read(|tx| tx.get::<Thing>("a")).unwrap().unwrap().record.text, "two");
}

#[test]
fn a_name_is_had_once_and_free_again_when_its_record_goes() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let named = |text: &str| Thing { name: Some("fix".into()), ..thing(text) };
    store.write(|tx| tx.add("a", named("one"))).unwrap();
    let taken = store.write(|tx| tx.add("b", named("two"))).unwrap_err();
    assert_eq!(taken.error_kind, ErrorKind::Conflict);
    assert!(store.write(|tx| tx.remove::<Thing>("a")).unwrap());
    store.write(|tx| tx.add("b", named("two"))).unwrap();
    assert_eq!(store.read(|tx| tx.get_named::<Thing>("fix")).unwrap().unwrap().id, "b");
}

#[test]
fn what_ends_in_a_fault_leaves_nothing() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let failed: Result<(), Fault> = store.write(|tx| {
        tx.add("a", thing("one"))?;
        Err(Fault::internal("changed my mind"))
    });
    assert!(failed.is_err());
    assert!(store.read(|tx| tx.get::<Thing>("a")).unwrap().is_none());
}

#[test]
fn records_are_found_by_scope_beginning_and_reference() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let add = |id: &str, scope: &str, layers: &[&str], ended_ms: Option<u64>| {
        let layers = layers.iter().map(|l| (*l).to_owned()).collect();
        let record = Thing { scope: Some(scope.into()), layers, ended_ms, ..thing(id) };
        store.write(|tx| tx.add(id, record)).unwrap();
    };
    add("aa1", "/p", &["lay_1", "lay_2"], None);
    add("aa2", "/p/sub", &["lay_1"], Some(5));
    add("ab3", "/p-other", &["lay_3"], None);
    add("b%4", "/p/sub/deep", &[], Some(7));
    let ids = |found: Vec<store::Kept<Thing>>| found.into_iter().map(|k| k.id).collect::<Vec<_>>();
    assert_eq!(ids(store.read(|tx| tx.list_in("/p")).unwrap()), ["aa1"]);
    assert_eq!(ids(store.read(|tx| tx.list_below("/p")).unwrap()), ["aa2", "b%4"]);
    assert_eq!(ids(store.read(|tx| tx.list_below("/")).unwrap()).len(), 4);
    assert_eq!(ids(store.read(|tx| tx.list_from("aa", 9)).unwrap()), ["aa1", "aa2"]);
    assert_eq!(ids(store.read(|tx| tx.list_from("a", 2)).unwrap()), ["aa1", "aa2"]);
    assert!(ids(store.read(|tx| tx.list_from("%", 9)).unwrap()).is_empty(), "no pattern");
    assert_eq!(ids(store.read(|tx| tx.list_open()).unwrap()), ["aa1", "ab3"]);
    assert_eq!(store.read(|tx| tx.count::<Thing>()).unwrap(), 4);
    let referred = store.read(|tx| tx.referred("layers")).unwrap();
    let counts: Vec<_> = referred.iter().map(|(id, n)| (id.as_str(), *n)).collect();
    assert_eq!(counts, [("lay_1", 2), ("lay_2", 1), ("lay_3", 1)]);
    let but = |kind: &str| store.read(|tx| tx.referred_but("layers", &[kind])).unwrap();
    assert!(but("another") == referred && but(<Thing as store::Record>::KIND.name).is_empty());
}

#[test]
fn a_key_is_known_until_it_expires() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let key = Key { key: "k".into(), subject: "sbx_1".into(), params: serde_json::json!({"a": 1}), expires_ms: 100 };
    store.write(|tx| tx.keep_key(&key)).unwrap();
    assert_eq!(store.read(|tx| tx.key("k", 99)).unwrap(), Some(key));
    assert_eq!(store.read(|tx| tx.key("k", 100)).unwrap(), None);
    assert!(store.read(|tx| tx.expired_keys(99, 9)).unwrap().is_empty());
    assert!(!store.write(|tx| tx.forget_key("k", 99)).unwrap(), "not before its time");
    assert_eq!(store.read(|tx| tx.expired_keys(100, 9)).unwrap(), ["k"]);
    assert!(store.write(|tx| tx.forget_key("k", 100)).unwrap());
    assert!(!store.write(|tx| tx.forget_key("k", 100)).unwrap());
}

#[test]
fn an_id_has_the_shape_of_its_kind() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let refused =
        |fault: Fault| assert!(fault.error_kind == ErrorKind::Internal && fault.message.contains("not an id"));
    refused(store.write(|tx| tx.add("thing_1", Ruled {})).unwrap_err());
    refused(store.write(|tx| tx.add("first", Only {})).unwrap_err());
    store.write(|tx| tx.add("rul_1", Ruled {}).and(tx.add("last", Only {}))).unwrap();
    let counts = store.read(|tx| Ok((tx.count::<Ruled>()?, tx.count::<Only>()?))).unwrap();
    assert_eq!(counts, (1, 1));
}

#[test]
fn a_text_with_a_nul_character_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.store();
    let named = Thing { name: Some("a\0b".into()), ..thing("x") };
    let scoped = Thing { scope: Some("\0".into()), ..thing("x") };
    for (id, record) in [("a\0", thing("x")), ("b", named), ("c", scoped)] {
        let fault = store.write(|tx| tx.add(id, record)).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::InvalidRequest, "{fault:?}");
    }
    store.write(|tx| tx.add("d", thing("in a body it is \0 escaped"))).unwrap();
    assert_eq!(store.read(|tx| tx.count::<Thing>()).unwrap(), 1);
}

#[test]
fn a_store_is_opened_by_a_directory_or_a_url() {
    let scratch = Scratch::new();
    scratch.store().write(|tx| tx.add("a", thing("x"))).unwrap();
    let url = format!("sqlite://{}", scratch.dir.display());
    assert_eq!(Store::open(url.as_str()).unwrap().read(|tx| tx.count::<Thing>()).unwrap(), 1);
    assert_eq!(Store::open(scratch.dir.to_str().unwrap()).unwrap().read(|tx| tx.count::<Thing>()).unwrap(), 1);
    let refused = Store::open("postgres://user:secret@host/db").err().unwrap();
    assert_eq!(refused.error_kind, ErrorKind::InvalidRequest);
    assert!(refused.message.contains("postgres") && !refused.message.contains("secret"), "{refused:?}");
}

/// Fifty threads, each with a store of its own, as processes have.
#[test]
fn writers_take_turns_and_nothing_is_lost() {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        for n in 0..50 {
            let dir = &scratch.dir;
            scope.spawn(move || {
                let store = Store::open(dir).unwrap();
                store.write(|tx| tx.add(&format!("t{n}"), thing("x"))).unwrap();
                scratch::note(&store, n);
            });
        }
    });
    let store = scratch.store();
    assert_eq!(store.read(|tx| tx.count::<Thing>()).unwrap(), 50);
    let verified = store.verify().unwrap();
    assert_eq!((verified.entries, verified.anchored, verified.broken), (50, 50, None));
}
