//! Random transactions on the model and on each other back end: every answer is the same.

use crate::place::{BackEnd, Place, READ, RELAXED, WRITE};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fmt::Debug;
use std::ops::ControlFlow;
use store::backend::{
    Access, Backend, EntryQuery, EntryRow, Filter, KeyRow, Order, RecordFields, RecordQuery, Transaction,
};
use terms::Fault;

/// Few and similar texts, so that they meet.
const TEXTS: [&str; 10] = ["", "a", "a/b", "a/b/c", "a0", "b", "é", "%", "a\u{10ffff}", "A"];
const KINDS: [&str; 2] = ["thing", "other"];

type Text = Option<usize>;

#[derive(Clone, Debug)]
enum Operation {
    Insert {
        kind: usize,
        id: usize,
        name: Text,
        scope: Text,
        body: Body,
    },
    Update {
        kind: usize,
        id: usize,
        name: Text,
        scope: Text,
        body: Body,
        expected: u64,
    },
    Delete {
        kind: usize,
        id: usize,
    },
    Select {
        kind: usize,
        filter: usize,
        text: usize,
        limit: Option<u32>,
    },
    Ids {
        kind: usize,
        prefix: usize,
        limit: u32,
    },
    IdsInScope {
        scope: usize,
        limit: u32,
    },
    Times {
        kind: usize,
    },
    References {
        except: Option<usize>,
    },
    PutKey {
        key: usize,
        expires_ms: u64,
    },
    Key {
        key: usize,
        now_ms: u64,
    },
    ExpiredKeys {
        now_ms: u64,
        limit: u32,
    },
    DeleteExpiredKey {
        key: usize,
        now_ms: u64,
    },
    /// The next entry, or one with a number that is off by so much.
    Append {
        off: u64,
        verb: usize,
        subject: usize,
    },
    Entries {
        after: u64,
        below: Option<u64>,
        verb: Text,
        subject: Text,
        newest_first: bool,
        limit: Option<u32>,
    },
    DeleteEntries {
        last: u64,
    },
}

#[derive(Clone, Debug)]
struct Body {
    ended_ms: Option<u64>,
    layers: Vec<usize>,
}

impl Body {
    fn json(&self) -> String {
        let layers: Vec<&str> = self.layers.iter().map(|text| TEXTS[*text]).collect();
        serde_json::json!({ "ended_ms": self.ended_ms, "layers": layers }).to_string()
    }
}

#[derive(Clone, Debug)]
struct Step {
    access: Access,
    operations: Vec<Operation>,
    commits: bool,
    /// The handle that it is done with.
    handle: usize,
}

fn operations() -> impl Strategy<Value = Operation> {
    let (text, kind, limit) = (0..TEXTS.len(), 0..KINDS.len(), 0u32..5);
    let some = || prop::option::of(0..TEXTS.len());
    let body = (prop::option::of(0u64..4), prop::collection::vec(0..TEXTS.len(), 0..3))
        .prop_map(|(ended_ms, layers)| Body { ended_ms, layers });
    prop_oneof![
        6 => (kind.clone(), text.clone(), some(), some(), body.clone())
            .prop_map(|(kind, id, name, scope, body)| Operation::Insert { kind, id, name, scope, body }),
        6 => (kind.clone(), text.clone(), some(), some(), body, 1u64..4)
            .prop_map(|(kind, id, name, scope, body, expected)| Operation::Update { kind, id, name, scope, body, expected }),
        2 => (kind.clone(), text.clone()).prop_map(|(kind, id)| Operation::Delete { kind, id }),
        6 => (kind.clone(), 0usize..7, text.clone(), prop::option::of(limit.clone()))
            .prop_map(|(kind, filter, text, limit)| Operation::Select { kind, filter, text, limit }),
        2 => (kind.clone(), text.clone(), limit.clone())
            .prop_map(|(kind, prefix, limit)| Operation::Ids { kind, prefix, limit }),
        1 => (text.clone(), limit.clone()).prop_map(|(scope, limit)| Operation::IdsInScope { scope, limit }),
        1 => kind.clone().prop_map(|kind| Operation::Times { kind }),
        1 => prop::option::of(kind).prop_map(|except| Operation::References { except }),
        2 => (text.clone(), 0u64..9).prop_map(|(key, expires_ms)| Operation::PutKey { key, expires_ms }),
        1 => (text.clone(), 0u64..9).prop_map(|(key, now_ms)| Operation::Key { key, now_ms }),
        1 => (0u64..9, limit.clone()).prop_map(|(now_ms, limit)| Operation::ExpiredKeys { now_ms, limit }),
        1 => (text.clone(), 0u64..9).prop_map(|(key, now_ms)| Operation::DeleteExpiredKey { key, now_ms }),
        4 => (prop_oneof![9 => Just(0u64), 1 => 1u64..3], text.clone(), text)
            .prop_map(|(off, verb, subject)| Operation::Append { off, verb, subject }),
        3 => (0u64..9, prop::option::of(0u64..12), some(), some(), any::<bool>(), prop::option::of(limit)).prop_map(
            |(after, below, verb, subject, newest_first, limit)| Operation::Entries { after, below, verb, subject, newest_first, limit }
        ),
        1 => (0u64..6).prop_map(|last| Operation::DeleteEntries { last }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let access = prop_oneof![1 => Just(READ), 3 => Just(WRITE), 2 => Just(RELAXED)];
    let step = (access, prop::collection::vec(operations(), 1..8), prop::bool::weighted(0.8), 0usize..2)
        .prop_map(|(access, operations, commits, handle)| Step { access, operations, commits, handle });
    prop::collection::vec(step, 1..12)
}

fn text(text: Text) -> Option<&'static str> {
    text.map(|text| TEXTS[text])
}

/// The answer as text; a fault is a fault, however a back end words it.
fn answer<T: Debug>(answer: Result<T, Fault>) -> String {
    answer.map_or_else(|_| "fault".to_owned(), |answer| format!("{answer:?}"))
}

fn apply(tx: &dyn Transaction, operation: &Operation) -> String {
    match operation {
        Operation::Insert { kind, id, name, scope, body } => {
            let (kind, id, body) = (KINDS[*kind], TEXTS[*id], &body.json());
            answer(tx.insert(&RecordFields { kind, id, name: text(*name), scope: text(*scope), body }))
        }
        Operation::Update { kind, id, name, scope, body, expected } => {
            let (kind, id, body) = (KINDS[*kind], TEXTS[*id], &body.json());
            answer(tx.update(&RecordFields { kind, id, name: text(*name), scope: text(*scope), body }, *expected))
        }
        Operation::Delete { kind, id } => answer(tx.delete(KINDS[*kind], TEXTS[*id])),
        Operation::Select { kind, filter, text, limit } => {
            let text = TEXTS[*text];
            let filters = [
                Filter::All,
                Filter::Id(text),
                Filter::Name(text),
                Filter::IdPrefix(text),
                Filter::Scope(text),
                Filter::ScopeBelow(text),
                Filter::Open,
            ];
            let mut rows = Vec::new();
            let query = RecordQuery { kind: KINDS[*kind], filter: filters[*filter], limit: *limit };
            let done = tx.select(&query, &mut |row| {
                rows.push(row);
                Ok(())
            });
            answer(done.map(|()| rows))
        }
        Operation::Ids { kind, prefix, limit } => answer(tx.ids(KINDS[*kind], TEXTS[*prefix], *limit)),
        Operation::IdsInScope { scope, limit } => answer(tx.ids_in_scope(TEXTS[*scope], *limit)),
        Operation::Times { kind } => answer(tx.times(KINDS[*kind], "ended_ms")),
        Operation::References { except } => {
            let except: Vec<&str> = except.map(|kind| KINDS[kind]).into_iter().collect();
            answer(tx.references("layers", &except))
        }
        Operation::PutKey { key, expires_ms } => {
            let (key, subject, params) = (TEXTS[*key].to_owned(), "s".to_owned(), format!("[{expires_ms}]"));
            answer(tx.put_key(&KeyRow { key, subject, params, expires_ms: *expires_ms }))
        }
        Operation::Key { key, now_ms } => answer(tx.key(TEXTS[*key], *now_ms)),
        Operation::ExpiredKeys { now_ms, limit } => answer(tx.expired_keys(*now_ms, *limit)),
        Operation::DeleteExpiredKey { key, now_ms } => answer(tx.delete_expired_key(TEXTS[*key], *now_ms)),
        Operation::Append { off, verb, subject } => {
            let seq = tx.last_entry().unwrap().map_or(0, |link| link.seq) + 1 + off;
            let (verb, subject) = (TEXTS[*verb].to_owned(), TEXTS[*subject].to_owned());
            let (step, actor, body, hash) = ("done".into(), "ann".into(), "{}".into(), format!("{verb} {subject}"));
            answer(tx.append(&EntryRow { seq, at_ms: seq, verb, step, subject, actor, body, hash }))
        }
        Operation::Entries { after, below, verb, subject, newest_first, limit } => {
            let order = if *newest_first { Order::NewestFirst } else { Order::OldestFirst };
            let (verb, subject) = (text(*verb), text(*subject));
            let limit = *limit;
            entries(
                tx,
                &EntryQuery { after: *after, below: *below, verb, subject, order, limit, ..EntryQuery::default() },
            )
        }
        Operation::DeleteEntries { last } => answer(tx.delete_entries(*last)),
    }
}

fn entries(tx: &dyn Transaction, query: &EntryQuery<'_>) -> String {
    let mut rows = Vec::new();
    let done = tx.entries(query, &mut |row| {
        rows.push(row?);
        Ok(ControlFlow::Continue(()))
    });
    answer(done.map(|()| rows))
}

/// Reads all rows.
fn dump(handle: &dyn Backend) -> Vec<String> {
    let tx = handle.begin(READ).unwrap();
    let all = |kind| Operation::Select { kind, filter: 0, text: 0, limit: None };
    let mut dump = vec![apply(&*tx, &all(0)), apply(&*tx, &all(1)), entries(&*tx, &EntryQuery::default())];
    dump.push(answer(tx.expired_keys(u64::MAX >> 1, 1000)));
    dump.push(format!("{:?} {:?}", tx.entry_range().unwrap(), tx.last_entry().unwrap()));
    dump
}

fn run(place: &Place, steps: &[Step]) -> Vec<String> {
    let handles = [place.open(), place.open()];
    let mut answers = Vec::new();
    for step in steps {
        let tx = handles[step.handle].begin(step.access).unwrap();
        answers.extend(step.operations.iter().map(|operation| apply(&*tx, operation)));
        if step.commits {
            answers.push(answer(tx.commit()));
        }
    }
    handles.iter().for_each(|handle| answers.extend(dump(&**handle)));
    answers.extend(dump(&*place.open()));
    answers
}

#[test]
fn back_ends_give_the_answers_of_the_model() {
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let agreed = runner.run(&steps(), |steps| {
        let expected = run(&Place::new(BackEnd::Memory), &steps);
        let given = run(&Place::new(BackEnd::Sqlite), &steps);
        prop_assert_eq!(given, expected);
        Ok(())
    });
    agreed.unwrap();
}
