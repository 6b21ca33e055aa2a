//! Durations of a run's phases: written to the journal with its end, where traces are made from them.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use terms::Phase;

/// The phases of one run, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Start of the first phase, in microseconds since 1970.
    pub begun_us: u64,
    pub list: Vec<Timed>,
    /// Trace that the run belongs to, in `traceparent` notation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trace: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    pub phase: Phase,
    /// Offset from the start of the first phase.
    pub from_us: u64,
    pub us: u64,
}

/// Longest `traceparent` that is accepted.
const LONGEST: usize = 64;

impl Phases {
    /// Reads the phases from an entry of the journal.
    pub fn of(body: &serde_json::Value) -> Option<Phases> {
        Phases::deserialize(body.get("phases")?).ok()
    }
}

/// Stopwatch of a run's phases. A run enters each at most a few times.
#[derive(Clone, Debug)]
pub struct Timer {
    begun_us: u64,
    zero: Instant,
    list: Vec<Timed>,
    now: Option<(Phase, u64)>,
    trace: Option<String>,
}

impl Timer {
    /// Starts with a phase. `trace` is the caller's `traceparent`.
    pub fn begin(phase: Phase, trace: Option<&OsStr>) -> Timer {
        let begun_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let trace = trace.and_then(OsStr::to_str).filter(|text| text.len() <= LONGEST).map(str::to_owned);
        Timer { begun_us, zero: Instant::now(), list: Vec::new(), now: Some((phase, 0)), trace }
    }

    /// Ends the present phase and enters another.
    pub fn enter(&mut self, phase: Phase) {
        self.enter_at(phase, Instant::now());
    }

    /// Same as `enter`, at an instant in the past.
    pub fn enter_at(&mut self, phase: Phase, at: Instant) {
        let now = at.saturating_duration_since(self.zero).as_micros() as u64;
        if let Some((before, from)) = self.now.replace((phase, now)) {
            self.list.push(Timed { phase: before, from_us: from, us: now.saturating_sub(from) });
        }
    }

    /// Returns all phases, the last one up to now.
    pub fn phases(&self) -> Phases {
        let mut all = self.clone();
        all.enter(Phase::Close);
        Phases { begun_us: all.begun_us, list: all.list, trace: all.trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn phases_follow_one_another_without_a_gap() {
        let mut timer = Timer::begin(Phase::Planning, Some(OsStr::new("00-1-2-3")));
        let half = timer.zero + Duration::from_micros(500);
        timer.enter_at(Phase::Start, half);
        timer.enter_at(Phase::Execution, half + Duration::from_millis(2));
        let phases = timer.phases();
        let told: Vec<_> = phases.list.iter().map(|t| (t.phase, t.from_us)).collect();
        assert_eq!(told, [(Phase::Planning, 0), (Phase::Start, 500), (Phase::Execution, 2500)]);
        assert_eq!((phases.list[0].us, phases.list[1].us), (500, 2000));
        assert_eq!(phases.trace.as_deref(), Some("00-1-2-3"));
        let body = serde_json::json!({"run": "run_1", "phases": phases});
        assert_eq!(Phases::of(&body), Some(phases));
        assert_eq!(Phases::of(&serde_json::json!({"run": "run_1"})), None);
    }
}
