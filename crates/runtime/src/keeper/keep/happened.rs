//! Events of the poll loop that no client requested: ends of runs, limits, results of the clerk, timers.

use super::clerk::{CompletedTask, Task};
use super::client::OwedReply;
use super::work::RunStage;
use super::{
    DIR_CHECK_EVERY, EndedRun, GRACE, KILL, Keep, MOST_ENDED, MOST_KEPT, MOST_KEPT_BYTES, PRUNED_EVERY,
    PRUNED_EVERY_BYTES, work,
};
use crate::keeper::wire::{self, RunSummary, Started, Waited};
use api::Question;
use enclosure::{JobId, ResidenceEvent};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use terms::{Fault, LimitHit, Outcome, Phase};

impl Keep {
    pub(super) fn poll_residence(&mut self) -> Result<(), Fault> {
        for happened in self.residence.turn()? {
            match happened {
                ResidenceEvent::Ended { job, end } => self.ended(job, &end),
                // Reported again with the end of the run.
                ResidenceEvent::Denied { .. } => {}
                ResidenceEvent::Limit(hit) => self.end_all_by_limit(hit),
                ResidenceEvent::Fell { reason } => self.fail_runs(reason),
            }
        }
        self.record_questions();
        Ok(())
    }

    /// Writes new questions to the journal, where event streams pick them up.
    fn record_questions(&mut self) {
        let Some(questions) = &self.premises.questions else { return };
        let new: Vec<Question> = questions.open().into_iter().filter(|q| q.number > self.last_asked).collect();
        let Some(last) = new.iter().map(|question| question.number).max() else { return };
        self.last_asked = last;
        // A question that does not fit the clerk's queue is still listed as open.
        self.clerk.give(Task::Asked(new));
    }

    pub(super) fn ended(&mut self, job: JobId, end: &enclosure::CommandEnd) {
        let Some(run) = self.runs.iter().find(|(_, active)| active.job == job).map(|(run, _)| run.clone()) else {
            return;
        };
        self.close(&run, Some(end), None);
    }

    /// Closes a run whose process tree has ended, and queues its record.
    pub(super) fn close(&mut self, run: &str, end: Option<&enclosure::CommandEnd>, reason: Option<&str>) {
        let (net, disk) = (self.residence.net_bytes(), self.residence.disk_peak_bytes());
        let Some(active) = self.runs.get_mut(run) else { return };
        let outcome = self.premises.outcome(active.run_id.clone());
        let mut outcome = active.close(end, outcome, net, disk, &mut self.buffer);
        if let Some(reason) = reason {
            outcome.message = Some(reason.to_owned());
        }
        active.note.ended_ms = Some(terms::clock::now_ms());
        let (mut note, waiting) = (active.note.clone(), std::mem::take(&mut active.feeds));
        note.timer.enter(Phase::Close);
        for feed in waiting {
            self.answer(feed.client, wire::refusal(&work::unread(run)));
        }
        if !self.clerk.give(Task::End(note, Box::new(outcome.clone()))) {
            outcome.message.get_or_insert("the run could not be recorded".into());
            self.finish(run, &outcome);
        }
    }

    /// Ends every run, because a limit of the whole sandbox was exceeded.
    pub(super) fn end_all_by_limit(&mut self, hit: LimitHit) {
        for active in self.runs.values_mut().filter(|active| active.stage != RunStage::Ending) {
            active.hit.get_or_insert(hit);
            self.residence.end(active.job);
        }
    }

    pub(super) fn fail_runs(&mut self, reason: String) {
        let runs: Vec<String> =
            self.runs.iter().filter(|(_, w)| w.stage != RunStage::Ending).map(|(run, _)| run.clone()).collect();
        runs.iter().for_each(|run| self.close(run, None, Some(&reason)));
        self.failure = Some(reason);
    }

    pub(super) fn take_clerk_results(&mut self) {
        for done in self.clerk.done() {
            match done {
                CompletedTask::Begun(run, begun) => self.begun(&run, begun),
                CompletedTask::Ended(run, outcome) => self.finish(&run, &outcome),
            }
        }
    }

    pub(super) fn begun(&mut self, run: &str, begun: Result<(), Fault>) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.stage == RunStage::Beginning {
            active.stage = RunStage::Running;
        }
        let (pid, job) = (active.pid, active.job);
        let (command, started_ms) = (active.note.command.clone(), active.note.started_ms);
        let started = Started { run: run.to_owned(), pid, existed: false, command, started_ms, waits: false };
        if begun.is_err() {
            active.cancelled_by = Some(KILL);
            self.residence.end(job);
        }
        for client in self.clients.values_mut() {
            let (existed, waits) = match &client.owed {
                OwedReply::Begin { run: wanted, existed, waits } if wanted == run => (*existed, *waits),
                _ => continue,
            };
            client.answer(match &begun {
                Ok(()) => start_answer(Started { existed, waits, ..started.clone() }),
                Err(fault) => wire::refusal(fault),
            });
            if waits && begun.is_ok() {
                client.owed = OwedReply::Wait { run: run.to_owned(), until: None, said: true };
            }
        }
    }

    /// Answers the clients that wait for a run's end, once it is recorded.
    pub(super) fn finish(&mut self, run: &str, outcome: &Outcome) {
        let Some(mut active) = self.runs.remove(run) else { return };
        self.premises.roster.ended(run);
        self.context_ended(run);
        if active.has_secrets {
            // Where the kept secrets cannot be read, no secret is valid any more.
            let _ = self.premises.bring(&Default::default());
        }
        let outcome = &work::truncate_denials(outcome.clone());
        self.service_ended(run, outcome, active.cancelled_by.is_some());
        let end = active.finish(outcome);
        let unwritten = end.is_none().then(|| Box::new(outcome.clone()));
        let listed = RunSummary { input: false, ..active.listed() };
        let (ended_ms, writers) = (active.note.ended_ms, std::mem::take(&mut active.writers));
        let past = EndedRun { listed, end, unwritten, ended_ms, writers };
        for client in self.clients.values_mut() {
            let OwedReply::Wait { run: wanted, said, .. } = &client.owed else { continue };
            if wanted == run {
                let log = said.then(|| active.spool.whole(end)).flatten();
                let (outcome, offset, whole) = (Some(outcome.clone()), past.listed.offset, log.is_some());
                let waited = wire::value(&Waited { outcome, offset, ended_ms: past.ended_ms, whole });
                client.answer(waited.with(log.unwrap_or_default()));
            }
        }
        self.ended_runs.push_back(past);
        if self.ended_runs.len() > MOST_ENDED {
            self.ended_runs.pop_front();
        }
        self.last_activity = Instant::now();
        let (runs, bytes) = &mut self.unpruned;
        (*runs, *bytes) = (*runs + 1, bytes.saturating_add(active.spool.next()));
        if self.runs.is_empty() {
            self.answer_end();
        }
    }

    /// Runs the output retention now and then, after waiting clients have their answers.
    pub(super) fn prune_if_due(&mut self) {
        let (runs, bytes) = self.unpruned;
        if runs >= PRUNED_EVERY || bytes >= PRUNED_EVERY_BYTES {
            self.prune();
        }
    }

    /// Deletes the output of the oldest ended runs, so that a long-lived sandbox does not fill the disk.
    pub(super) fn prune(&mut self) {
        self.unpruned = (0, 0);
        let Ok(entries) = std::fs::read_dir(self.place.dir.join("runs")) else { return };
        let mut found: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| !self.runs.contains_key(name)))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        found.sort();
        let mut bytes = 0;
        for (place, (_, path)) in found.iter().rev().enumerate() {
            bytes += size_of(path);
            if place >= MOST_KEPT || (place > 0 && bytes > MOST_KEPT_BYTES) {
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }

    pub(super) fn check_timers(&mut self) {
        let now = Instant::now();
        if self.frozen.is_none() {
            for active in self.runs.values_mut() {
                if active.check_wall_limit(now) {
                    self.residence.end(active.job);
                }
            }
        }
        for client in self.clients.values_mut() {
            let OwedReply::Wait { run, until: Some(until), .. } = &client.owed else { continue };
            if now >= *until {
                let offset = self.runs.get(run).map_or(0, |active| active.spool.next());
                client.answer(wire::value(&Waited { offset, ..Waited::default() }));
            }
        }
        self.check_contexts(now);
        if let Some(end) = self.ending.as_mut().filter(|end| now >= end.kill_at) {
            for (run, active) in self.runs.iter_mut().filter(|(_, active)| active.stage != RunStage::Ending) {
                end.left.ended.iter_mut().filter(|(ended, _)| ended == run).for_each(|(_, killed)| *killed = true);
                active.cancelled_by = Some(KILL);
                self.residence.end(active.job);
            }
            end.kill_at = now + GRACE;
        }
    }

    /// Ends the keeper when its directory is gone, with or without the state directory: no client can find it any more.
    pub(super) fn check_dir(&mut self) {
        if self.ending.is_some() || self.dir_checked_at.elapsed() < DIR_CHECK_EVERY {
            return;
        }
        self.dir_checked_at = Instant::now();
        if self.place.is_lost(self.card.pid) {
            self.begin_end(Duration::ZERO);
        }
    }

    pub(super) fn read_signals(&mut self) {
        while sys::process::next_signal(self.signals.as_fd()).is_some() {
            self.begin_end(GRACE);
        }
    }
}

/// Builds the answer to a start. The command is left out where it does not fit: escaped as JSON it may be longer than the request was.
fn start_answer(mut started: Started) -> wire::Frame {
    let frame = wire::value(&started);
    if frame.fits() {
        return frame;
    }
    started.command.clear();
    wire::value(&started)
}

/// Returns the total size of a log's segments.
fn size_of(log: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(log).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
