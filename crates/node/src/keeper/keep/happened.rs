//! What happens by itself: ends of runs, limits, what the clerk has written, the clock.

use super::clerk::{Done, Task};
use super::client::Owed;
use super::work::Stage;
use super::{
    GRACE, KILL, Keep, MOST_KEPT, MOST_KEPT_BYTES, MOST_PAST, PRUNED_EVERY, PRUNED_EVERY_BYTES, Past, SEEN_EVERY, work,
};
use crate::fresh;
use crate::keeper::wire;
use crate::keeper::wire::{Listed, Started, Waited};
use crate::questions::Question;
use enclosure::{Happened, Job};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use terms::{Fault, LimitHit, Outcome, Phase};

impl Keep {
    pub(super) fn hear_residence(&mut self) -> Result<(), Fault> {
        for happened in self.residence.turn()? {
            match happened {
                Happened::Ended { job, end } => self.ended(job, &end),
                // Told again with the end of the run.
                Happened::Denied { .. } => {}
                Happened::Limit(hit) => self.all_hit(hit),
                Happened::Fell { reason } => self.fall(reason),
            }
        }
        self.tell_questions();
        Ok(())
    }

    /// What is asked is in the journal, so that those hear of it who follow events.
    fn tell_questions(&mut self) {
        let Some(questions) = &self.premises.questions else { return };
        let new: Vec<Question> = questions.open().into_iter().filter(|q| q.number > self.last_asked).collect();
        let Some(last) = new.iter().map(|question| question.number).max() else { return };
        self.last_asked = last;
        // One that has no place in the journal is still listed among those that are open.
        self.clerk.give(Task::Asked(new));
    }

    pub(super) fn ended(&mut self, job: Job, end: &enclosure::End) {
        let Some(run) = self.works.iter().find(|(_, work)| work.job == job).map(|(run, _)| run.clone()) else { return };
        self.close(&run, Some(end), None);
    }

    /// The tree of a run is gone.
    pub(super) fn close(&mut self, run: &str, end: Option<&enclosure::End>, reason: Option<&str>) {
        let (net, disk) = (self.residence.net_bytes(), self.residence.disk_peak_bytes());
        let Some(work) = self.works.get_mut(run) else { return };
        let outcome = self.premises.outcome(work.run_id.clone());
        let mut outcome = work.close(end, outcome, net, disk, &mut self.buffer);
        if let Some(reason) = reason {
            outcome.message = Some(reason.to_owned());
        }
        work.note.ended_ms = Some(fresh::now_ms());
        let (mut note, waiting) = (work.note.clone(), std::mem::take(&mut work.feeds));
        note.timer.enter(Phase::Close);
        for feed in waiting {
            self.answer(feed.client, wire::refusal(&work::unread(run)));
        }
        if !self.clerk.give(Task::End(note, Box::new(outcome.clone()))) {
            outcome.message.get_or_insert("the run could not be written down".into());
            self.finish(run, &outcome);
        }
    }

    /// A limit of all was met: who runs is ended by it.
    pub(super) fn all_hit(&mut self, hit: LimitHit) {
        for work in self.works.values_mut().filter(|work| work.stage != Stage::Ending) {
            work.hit.get_or_insert(hit);
            self.residence.end(work.job);
        }
    }

    pub(super) fn fall(&mut self, reason: String) {
        let runs: Vec<String> =
            self.works.iter().filter(|(_, w)| w.stage != Stage::Ending).map(|(run, _)| run.clone()).collect();
        runs.iter().for_each(|run| self.close(run, None, Some(&reason)));
        self.fell = Some(reason);
    }

    pub(super) fn hear_clerk(&mut self) {
        for done in self.clerk.done() {
            match done {
                Done::Begun(run, begun) => self.begun(&run, begun),
                Done::Ended(run, outcome) => self.finish(&run, &outcome),
            }
        }
    }

    pub(super) fn begun(&mut self, run: &str, begun: Result<(), Fault>) {
        let Some(work) = self.works.get_mut(run) else { return };
        if work.stage == Stage::Beginning {
            work.stage = Stage::Running;
        }
        let (pid, job) = (work.pid, work.job);
        let (command, started_ms) = (work.note.command.clone(), work.note.started_ms);
        let started = Started { run: run.to_owned(), pid, existed: false, command, started_ms, waits: false };
        if begun.is_err() {
            work.cancelled_by = Some(KILL);
            self.residence.end(job);
        }
        for client in self.clients.values_mut() {
            let (existed, waits) = match &client.owed {
                Owed::Begin { run: wanted, existed, waits } if wanted == run => (*existed, *waits),
                _ => continue,
            };
            client.answer(match &begun {
                Ok(()) => told(Started { existed, waits, ..started.clone() }),
                Err(fault) => wire::refusal(fault),
            });
            if waits && begun.is_ok() {
                client.owed = Owed::Wait { run: run.to_owned(), until: None, said: true };
            }
        }
    }

    /// Its end is written down: now it is told.
    pub(super) fn finish(&mut self, run: &str, outcome: &Outcome) {
        let Some(mut work) = self.works.remove(run) else { return };
        self.premises.roster.ended(run);
        if work.brings {
            // Where what is kept cannot be read, nothing holds any more.
            let _nothing_is_left = self.premises.bring(&Default::default());
        }
        let outcome = &work::fitting(outcome.clone());
        self.service_ended(run, outcome, work.cancelled_by.is_some());
        let end = work.finish(outcome);
        let unwritten = end.is_none().then(|| Box::new(outcome.clone()));
        let listed = Listed { input: false, ..work.listed() };
        let (ended_ms, writers) = (work.note.ended_ms, std::mem::take(&mut work.writers));
        let past = Past { listed, end, unwritten, ended_ms, writers };
        for client in self.clients.values_mut() {
            let Owed::Wait { run: wanted, said, .. } = &client.owed else { continue };
            if wanted == run {
                let log = said.then(|| work.spool.whole(end)).flatten();
                let (outcome, offset, whole) = (Some(outcome.clone()), past.listed.offset, log.is_some());
                let waited = wire::value(&Waited { outcome, offset, ended_ms: past.ended_ms, whole });
                client.answer(waited.with(log.unwrap_or_default()));
            }
        }
        self.past.push_back(past);
        if self.past.len() > MOST_PAST {
            self.past.pop_front();
        }
        self.stirred = Instant::now();
        let (runs, bytes) = &mut self.unpruned;
        (*runs, *bytes) = (*runs + 1, bytes.saturating_add(work.spool.next()));
        if self.works.is_empty() {
            self.farewell();
        }
    }

    /// Looks for old output now and then; not before those who wait have their answers.
    pub(super) fn look_at_output(&mut self) {
        let (runs, bytes) = self.unpruned;
        if runs >= PRUNED_EVERY || bytes >= PRUNED_EVERY_BYTES {
            self.prune();
        }
    }

    /// Output of runs that ended long ago goes, so that a sandbox that lives for ever does not fill the disk.
    pub(super) fn prune(&mut self) {
        self.unpruned = (0, 0);
        let Ok(entries) = std::fs::read_dir(self.place.dir.join("runs")) else { return };
        let mut found: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| !self.works.contains_key(name)))
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

    pub(super) fn look_at_clock(&mut self) {
        let now = Instant::now();
        if self.frozen.is_none() {
            for work in self.works.values_mut() {
                if work.met_wall(now) {
                    self.residence.end(work.job);
                }
            }
        }
        for client in self.clients.values_mut() {
            let Owed::Wait { run, until: Some(until), .. } = &client.owed else { continue };
            if now >= *until {
                let offset = self.works.get(run).map_or(0, |work| work.spool.next());
                client.answer(wire::value(&Waited { offset, ..Waited::default() }));
            }
        }
        if let Some(end) = self.ending.as_mut().filter(|end| now >= end.kill_at) {
            for (run, work) in self.works.iter_mut().filter(|(_, work)| work.stage != Stage::Ending) {
                end.left.ended.iter_mut().filter(|(ended, _)| ended == run).for_each(|(_, killed)| *killed = true);
                work.cancelled_by = Some(KILL);
                self.residence.end(work.job);
            }
            end.kill_at = now + GRACE;
        }
    }

    /// Where its place is gone, with the state directory or without, nobody can find it any more: it ends with all that it keeps.
    pub(super) fn look_at_place(&mut self) {
        if self.ending.is_some() || self.seen.elapsed() < SEEN_EVERY {
            return;
        }
        self.seen = Instant::now();
        if self.place.is_lost(self.card.pid) {
            self.begin_end(Duration::ZERO);
        }
    }

    pub(super) fn hear_signals(&mut self) {
        while sys::process::next_signal(self.signals.as_fd()).is_some() {
            self.begin_end(GRACE);
        }
    }
}

/// That a run was begun, and with what words as far as they fit: spelled as text they may be longer than what was asked.
fn told(mut started: Started) -> wire::Frame {
    let frame = wire::value(&started);
    if frame.fits() {
        return frame;
    }
    started.command.clear();
    wire::value(&started)
}

/// What the segments of one log take.
fn size_of(log: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(log).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}
