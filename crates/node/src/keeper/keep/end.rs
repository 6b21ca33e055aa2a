//! The end of the keeper, in order.

use super::client::Owed;
use super::work::Stage;
use super::{End, GRACE, Keep, TERM};
use crate::keeper::wire;
use crate::keeper::wire::{Frame, Left};
use std::time::{Duration, Instant};

impl Keep {
    pub(super) fn end(&mut self, id: u64, grace: Duration) -> Option<Frame> {
        self.owe(id, Owed::End);
        self.begin_end(grace);
        if self.works.is_empty() {
            self.farewell();
        }
        None
    }

    pub(super) fn begin_end(&mut self, grace: Duration) {
        let kill_at = Instant::now().checked_add(grace).unwrap_or_else(|| Instant::now() + GRACE);
        if let Some(end) = &mut self.ending {
            // Whoever has less patience is heard; nobody is given more.
            end.kill_at = end.kill_at.min(kill_at);
            return;
        }
        let _they_are_killed_then = self.thaw();
        let mut left = Left::default();
        for (run, work) in self.works.iter_mut().filter(|(_, work)| work.stage != Stage::Ending) {
            work.cancelled_by.get_or_insert(TERM);
            self.residence.signal(work.job, TERM);
            left.ended.push((run.clone(), false));
        }
        self.ending = Some(End { kill_at, left });
    }

    /// All who asked for the end hear that it has come.
    pub(super) fn farewell(&mut self) {
        let Some(end) = &self.ending else { return };
        let frames = self.clients.values_mut().filter(|client| matches!(client.owed, Owed::End));
        frames.for_each(|client| client.answer(wire::value(&end.left)));
    }
}
