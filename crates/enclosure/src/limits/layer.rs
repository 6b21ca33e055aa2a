//! The account of a workspace. Its space raises no event, so it is polled within a time budget.

use crate::nameless::UnlinkedFileFinder;
use crate::workspace::{Gauge, TotalExceeded};
use std::time::{Duration, Instant};

/// Divisor of the time spent on measuring: at most one part in twenty.
const SHARE: u32 = 20;
/// Deadline of the last measurement, after the run's end.
const LAST: Duration = Duration::from_secs(5);
/// Deadline of the measurement after one command of a resident guest: the keeper serves no other request meanwhile.
const LAST_OF_A_COMMAND: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Layer<'a> {
    gauge: Option<Box<dyn Gauge + 'a>>,
    /// Last known bytes and entries.
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

    pub fn count_nameless(&mut self, files: UnlinkedFileFinder) {
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

    pub fn crowded(&mut self) -> Option<TotalExceeded> {
        self.gauge.as_mut()?.crowded()
    }

    /// Returns the last measurement; takes a new one when it is due.
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

    /// Measures until the scan is complete.
    pub fn finish(&mut self) {
        let end = Instant::now() + LAST;
        self.look_until(end);
        // Keeps this measurement; later calls do not repeat it.
        self.not_before = Some(end + LAST);
    }

    /// Measures anew after a command, however recent the last measurement is.
    pub fn finish_command(&mut self) {
        let began = Instant::now();
        self.look_until(began + LAST_OF_A_COMMAND);
        self.not_before = Some(began + began.elapsed() * SHARE);
    }

    fn look_until(&mut self, end: Instant) {
        let Some(gauge) = &mut self.gauge else { return };
        gauge.look_anew();
        while Instant::now() < end {
            if let Some(found) = gauge.used() {
                self.last = found;
                break;
            }
        }
    }
}
