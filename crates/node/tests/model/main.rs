//! The life of sandboxes against a model: any sequence of verbs gives the answers, the states and the files that a few plain
//! lists in memory give. A verb is added as one more `Op`, with what it does to `Model` in `expect` and to the world in `act`.

mod expect;
mod world;

use expect::{Model, Said};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use world::World;

/// One request. Numbers choose among the sandboxes and snapshots that there ever were, modulo how many.
#[derive(Clone, Debug)]
pub enum Op {
    Create(Wanted),
    /// A command that writes `value` to the file `file`; see `world`.
    Write {
        sandbox: usize,
        file: u8,
        value: u16,
    },
    Stop(usize),
    Start(usize),
    Remove(usize),
    /// With a version that is not the one.
    StopStale(usize),
    Snapshot(usize),
    Fork(usize),
    /// Of a snapshot whose sandbox may be gone.
    ForkSnapshot(usize),
    /// Of the sandbox that it was taken of.
    Restore(usize),
    Collect,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    pub name: Option<u8>,
    pub reserve: Option<&'static str>,
    pub shared: bool,
    pub until_stop: bool,
    /// Expired as soon as it is made.
    pub short: bool,
    pub key: Option<u8>,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let reserve = prop::option::weighted(0.5, prop::sample::select(vec!["a", "a/b", "a/b/c", "c", "."]));
    let (name, key) = (prop::option::weighted(0.4, 0u8..3), prop::option::weighted(0.3, 0u8..3));
    (name, reserve, any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), key).prop_map(
        |(name, reserve, shared, until_stop, short, key)| Wanted { name, reserve, shared, until_stop, short, key },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0usize..64;
    prop_oneof![
        6 => wanted().prop_map(Op::Create),
        6 => (which.clone(), 0u8..4, any::<u16>()).prop_map(|(sandbox, file, value)| Op::Write { sandbox, file, value }),
        3 => which.clone().prop_map(Op::Stop),
        3 => which.clone().prop_map(Op::Start),
        3 => which.clone().prop_map(Op::Remove),
        1 => which.clone().prop_map(Op::StopStale),
        4 => which.clone().prop_map(Op::Snapshot),
        1 => which.clone().prop_map(Op::Fork),
        2 => which.clone().prop_map(Op::ForkSnapshot),
        2 => which.prop_map(Op::Restore),
        2 => Just(Op::Collect),
    ]
}

#[test]
fn any_sequence_of_verbs_does_what_the_model_says() {
    let mut runner = TestRunner::new(Config { cases: 10, failure_persistence: None, ..Config::default() });
    let result = runner.run(&prop::collection::vec(op(), 20..70), |ops| {
        let (world, mut model) = (World::new(), Model::default());
        for (n, op) in ops.iter().enumerate() {
            let said = world.act(op, &model);
            let step = format!("step {n}, {op:?}");
            match model.expect(op) {
                Some(want) => prop_assert_eq!(said.kind(), want, "{}: {:?}", step, said),
                None => continue,
            }
            if let Said::Done(answer) = said {
                model.learn(op, &answer);
            }
            prop_assert_eq!(world.states(), model.states(), "{}", step);
            prop_assert_eq!(world.files(&model), model.files(), "{}", step);
            world.check(matches!(op, Op::Collect));
        }
        Ok(())
    });
    result.unwrap();
}
