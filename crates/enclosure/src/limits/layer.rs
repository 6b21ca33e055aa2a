//! The account of a workspace, which raises no event: looked at so often that looking costs little.

use crate::nameless::Nameless;
use crate::workspace::{Crowd, Gauge};
use std::time::{Duration, Instant};

/// Of the time that passes, this share at most goes into looking.
const SHARE: u32 = 20;
/// How long the last look, after the end, may take.
const LAST: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Layer<'a> {
    gauge: Option<Box<dyn Gauge + 'a>>,
    /// Bytes and entries when they were last known.
    pub(super) last: (u64, u64),
    not_before: Option<Instant>,
}

impl<'a> Layer<'a> {
    pub fn of(gauge: Option<Box<dyn Gauge + 'a>>) -> Layer<'a> {
        Layer { gauge, ..Layer::default() }
    }

    pub fn is_watched(&self) -> bool {
        self.gauge.is_some()
    }

    pub fn shares(&self) -> bool {
        self.gauge.as_ref().is_some_and(|gauge| gauge.shares())
    }

    pub fn count_nameless(&mut self, files: Nameless) {
        if let Some(gauge) = &mut self.gauge {
            gauge.count_nameless(files);
        }
    }

    pub fn before(&self) -> (u64, u64) {
        self.gauge.as_ref().map_or((0, 0), |gauge| gauge.before())
    }

    pub fn overfull(&self) -> Option<(u64, u64)> {
        self.gauge.as_ref()?.overfull()
    }

    pub fn crowded(&mut self) -> Option<Crowd> {
        self.gauge.as_mut()?.crowded()
    }

    /// What is known to be taken; looks anew if that is due.
    pub fn used(&mut self) -> (u64, u64) {
        let began = Instant::now();
        if self.not_before.is_none_or(|at| began >= at)
            && let Some(gauge) = &mut self.gauge
        {
            self.last = gauge.used().unwrap_or(self.last);
            self.not_before = Some(began + began.elapsed() * SHARE);
        }
        self.last
    }

    /// Looks until all is known.
    pub fn finish(&mut self) {
        let end = Instant::now() + LAST;
        let Some(gauge) = &mut self.gauge else { return };
        gauge.look_anew();
        while Instant::now() < end {
            if let Some(found) = gauge.used() {
                self.last = found;
                break;
            }
        }
        // What was just measured is what counts.
        self.not_before = Some(end + LAST);
    }
}
