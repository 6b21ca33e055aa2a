//! Sandboxes and their review compared with a model: any sequence of verbs gives the results, states, changes and files
//! that a few plain lists in memory give. A new verb is one more `Op`, with its effect on `Model` in `expect` and its
//! call in `done`. For more cases or a given seed: `MODEL_CASES=1000 MODEL_SEED=7`.

mod expect;
mod real;
mod tree;

use expect::{Model, VerbResult};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use real::RealNode;

/// A request. Numbers select among all sandboxes, snapshots and batches ever made, modulo their count.
#[derive(Clone, Debug)]
pub enum Op {
    Create(Wanted),
    /// A command that writes or removes a file of the workspace.
    Write {
        sandbox: usize,
        path: &'static str,
        write: Option<Write>,
    },
    /// A host process that writes or removes a file of the base.
    Outside {
        path: &'static str,
        write: Option<Write>,
    },
    Stop(usize),
    Start(usize),
    Remove(usize),
    /// With an outdated version.
    StopStale(usize),
    Snapshot(usize),
    Fork(usize),
    /// From a snapshot whose sandbox may be gone.
    ForkSnapshot(usize),
    /// Restores the snapshot's own sandbox.
    Restore(usize),
    Collect,
    Diff(usize),
    /// With the digest of the current diff, or with a wrong one.
    Approve {
        sandbox: usize,
        part: Part,
        stale: bool,
    },
    Reject {
        sandbox: usize,
        part: Part,
    },
    /// Any batch, also one that undid another.
    Undo(usize),
}

/// Selected part of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    All,
    At(&'static str),
}

/// New state of a file.
#[derive(Clone, Debug)]
pub struct Write {
    pub kind: char,
    pub value: u8,
}

impl Write {
    /// Contents are unique per path, so that a move is two changes.
    pub fn text(&self, path: &str) -> String {
        format!("{}{} in {path}", self.kind, self.value)
    }
}

/// Paths that are written to. The base has the first four, and `STAYS` keeps the directory in existence.
pub const PATHS: [&str; 5] = ["a", "b", "d/a", "d/b", "c"];
pub const IN_BASE: usize = 4;
pub const STAYS: &str = "d/stays";

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

fn write() -> impl Strategy<Value = Option<Write>> {
    // Few values, so that some repeat.
    let some = (prop::sample::select(vec!['-', '-', 'x', 'l']), 0u8..4).prop_map(|(kind, value)| Write { kind, value });
    prop::option::weighted(0.8, some)
}

fn part() -> impl Strategy<Value = Part> {
    let one = prop::sample::select(PATHS.into_iter().chain(["d"]).collect::<Vec<_>>());
    prop_oneof![1 => Just(Part::All), 2 => one.prop_map(Part::At)]
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0usize..64;
    let path = prop::sample::select(PATHS.to_vec());
    let written = (which.clone(), path.clone(), write());
    prop_oneof![
        6 => wanted().prop_map(Op::Create),
        14 => written.prop_map(|(sandbox, path, write)| Op::Write { sandbox, path, write }),
        3 => (path, write()).prop_map(|(path, write)| Op::Outside { path, write }),
        2 => which.clone().prop_map(Op::Stop),
        3 => which.clone().prop_map(Op::Start),
        2 => which.clone().prop_map(Op::Remove),
        1 => which.clone().prop_map(Op::StopStale),
        3 => which.clone().prop_map(Op::Snapshot),
        2 => which.clone().prop_map(Op::Fork),
        2 => which.clone().prop_map(Op::ForkSnapshot),
        2 => which.clone().prop_map(Op::Restore),
        1 => Just(Op::Collect),
        2 => which.clone().prop_map(Op::Diff),
        10 => (which.clone(), part(), prop::bool::weighted(0.1))
            .prop_map(|(sandbox, part, stale)| Op::Approve { sandbox, part, stale }),
        4 => (which.clone(), part()).prop_map(|(sandbox, part)| Op::Reject { sandbox, part }),
        7 => which.prop_map(Op::Undo),
    ]
}

fn asked(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |text| text.parse().expect("a number"))
}

// promise 14, 18
#[test]
fn any_sequence_of_verbs_does_what_the_model_says() {
    let seed = asked("MODEL_SEED", rand_seed());
    println!("MODEL_SEED={seed}");
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let cases = u32::try_from(asked("MODEL_CASES", 12)).expect("not so many");
    let config = Config { cases, failure_persistence: None, max_shrink_time: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let result = runner.run(&prop::collection::vec(op(), 1..90), |ops| {
        let real = RealNode::new();
        let mut model = Model::new(&real.base());
        for (n, op) in ops.iter().enumerate() {
            if let Op::Approve { sandbox, .. } | Op::Diff(sandbox) = op
                && let Some(id) = model.pick(*sandbox).filter(|held| held.alive).map(|held| held.id.clone())
            {
                model.adopt_drift(&id, &real.diff(&id));
            }
            let result = real.act(op, &model);
            let step = format!("MODEL_SEED={seed}, step {n}, {op:?}");
            match model.expect(op) {
                Some(want) => prop_assert_eq!(result.kind(), want, "{}: {:?}", step, result),
                None => continue,
            }
            if let VerbResult::Done(answer) = result {
                model.apply(op, &answer);
            }
            prop_assert_eq!(real.base(), model.base.files(), "{}", step);
            prop_assert_eq!(real.states(), model.states(), "{}", step);
            prop_assert_eq!(real.files(&model), model.files(), "{}", step);
            if let Op::Diff(n) = op
                && let Some(held) = model.pick(*n).filter(|held| held.alive)
            {
                prop_assert_eq!(real.diff(&held.id), model.diff(held), "{}", step);
            }
            real.check(matches!(op, Op::Collect));
        }
        // At the end the pending changes agree in every sandbox.
        for id in model.states().into_keys() {
            model.adopt_drift(&id, &real.diff(&id));
        }
        for held in model.sandboxes.iter().filter(|held| held.alive) {
            prop_assert_eq!(real.diff(&held.id), model.diff(held), "MODEL_SEED={}, the diff of {}", seed, held.id);
        }
        Ok(())
    });
    result.unwrap();
}

/// A seed per run; it is printed, and a failure names it.
fn rand_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64 ^ u64::from(std::process::id()))
}
