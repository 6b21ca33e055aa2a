//! Running commands of a guest, for attributing events to runs. Shared by the broker's thread and the supervisor's; holds ids and pids, and
//! inspects no process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Key of a run whose first process is not known yet.
const BEGINS: i32 = 0;

/// Runs by the host pid of the process that is the ancestor of all others of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster(Arc<Mutex<BTreeMap<i32, Arc<str>>>>);

/// Present runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    None,
    /// The only run; every event belongs to it.
    One(Arc<str>),
    /// First processes, by which the runs are told apart.
    Several(Vec<i32>),
}

impl Roster {
    /// Roster of a guest with a single run.
    pub fn of(run: &str) -> Roster {
        let roster = Roster::default();
        roster.begins(run);
        roster
    }

    /// Adds a run that is about to start; the next one only after `begun`.
    pub fn begins(&self, run: &str) {
        self.lock().insert(BEGINS, run.into());
    }

    /// Records the start of a run. Without a pid the run can be attributed only while it is alone.
    pub fn begun(&self, run: &str, first: Option<i32>) {
        let mut runs = self.lock();
        if let Some(first) = first {
            runs.remove(&BEGINS);
            runs.insert(first, run.into());
        }
    }

    pub fn ended(&self, run: &str) {
        self.lock().retain(|_, of| **of != *run);
    }

    pub fn now(&self) -> Runs {
        let runs = self.lock();
        match (runs.len(), runs.values().next()) {
            (0, _) | (_, None) => Runs::None,
            (1, Some(run)) => Runs::One(run.clone()),
            _ => Runs::Several(runs.keys().copied().filter(|first| *first != BEGINS).collect()),
        }
    }

    /// Returns the run of a first process.
    pub fn below(&self, first: i32) -> Option<Arc<str>> {
        self.lock().get(&first).cloned()
    }

    /// Returns the host pid of a run's first process, once it is known.
    pub fn first_of(&self, run: &str) -> Option<i32> {
        self.lock().iter().find(|(first, of)| **first != BEGINS && ***of == *run).map(|(first, _)| *first)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn one_alone_needs_nobody_to_be_looked_for() {
        let roster = Roster::default();
        assert_eq!(roster.now(), Runs::None);
        roster.begins("run_a");
        assert_eq!((roster.now(), roster.first_of("run_a")), (Runs::One("run_a".into()), None));
        roster.begun("run_a", Some(7));
        assert_eq!(roster.now(), Runs::One("run_a".into()));
        roster.begins("run_b");
        assert_eq!(roster.now(), Runs::Several(vec![7]));
        assert_eq!(roster.below(7), Some("run_a".into()));
        roster.begun("run_b", Some(9));
        assert_eq!(roster.now(), Runs::Several(vec![7, 9]));
        assert_eq!((roster.below(9), roster.below(8)), (Some("run_b".into()), None));
        assert_eq!((roster.first_of("run_b"), roster.first_of("run_c")), (Some(9), None));
        roster.ended("run_a");
        assert_eq!(roster.now(), Runs::One("run_b".into()));
        roster.ended("run_b");
        assert_eq!((roster.now(), Roster::of("run_c").now()), (Runs::None, Runs::One("run_c".into())));
    }
}
