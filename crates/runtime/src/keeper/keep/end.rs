//! Shutdown of the keeper: SIGTERM, grace period, SIGKILL, answers.

use super::client::OwedReply;
use super::work::RunStage;
use super::{GRACE, Keep, PendingEnd, TERM};
use crate::keeper::wire::{self, EndedRuns, Frame};
use std::time::{Duration, Instant};

impl Keep {
    pub(super) fn end(&mut self, id: u64, grace: Duration) -> Option<Frame> {
        self.owe(id, OwedReply::End);
        self.begin_end(grace);
        if self.runs.is_empty() {
            self.answer_end();
        }
        None
    }

    pub(super) fn begin_end(&mut self, grace: Duration) {
        let kill_at = Instant::now().checked_add(grace).unwrap_or_else(|| Instant::now() + GRACE);
        if let Some(end) = &mut self.ending {
            // The shortest grace period wins.
            end.kill_at = end.kill_at.min(kill_at);
            return;
        }
        let _ = self.thaw(); // a run that stays frozen is killed at the deadline
        self.hang_up_contexts();
        let mut left = EndedRuns::default();
        for (run, active) in self.runs.iter_mut().filter(|(_, active)| active.stage != RunStage::Ending) {
            active.cancelled_by.get_or_insert(TERM);
            self.residence.signal(active.job, TERM);
            left.ended.push((run.clone(), false));
        }
        self.ending = Some(PendingEnd { kill_at, left });
    }

    /// Answers all clients that requested the end.
    pub(super) fn answer_end(&mut self) {
        let Some(end) = &self.ending else { return };
        let frames = self.clients.values_mut().filter(|client| matches!(client.owed, OwedReply::End));
        frames.for_each(|client| client.answer(wire::value(&end.left)));
    }
}
