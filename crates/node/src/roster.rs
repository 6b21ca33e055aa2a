//! Which runs go on in a guest, for those who want to know whose something is. Known to the broker's thread as well as to the
//! supervisor's; holds ids and numbers of processes, and looks at nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A run that begins: its first process is not known yet.
const BEGINS: i32 = 0;

/// Runs by the number outside of the process that all of one is below.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster(Arc<Mutex<BTreeMap<i32, Arc<str>>>>);

/// Who is on it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    None,
    /// Whatever happens is this one's.
    One(Arc<str>),
    /// These processes tell them apart.
    Several(Vec<i32>),
}

impl Roster {
    /// Of a guest that is there for one run.
    pub fn of(run: &str) -> Roster {
        let roster = Roster::default();
        roster.begins(run);
        roster
    }

    /// One that is about to start; the next only when its start is known.
    pub fn begins(&self, run: &str) {
        self.lock().insert(BEGINS, run.into());
    }

    /// It has started. Without a number it is told from others only while it is alone.
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

    /// The run of one of several processes.
    pub fn below(&self, first: i32) -> Option<Arc<str>> {
        self.lock().get(&first).cloned()
    }

    /// The number outside of the process that all of a run is below, once it is known.
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
