//! Event handling of a residence.

use super::{CommandEnd, EpollSlot, Residence, ResidenceEvent};
use crate::driver;
use crate::faults::internal;
use crate::flock::JobId;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::time::{Duration, Instant};
use sys::cgroup::EventFd;
use sys::job::JobEvent;
use terms::{Fault, LimitHit};

/// epoll events handled in one turn.
const MOST_EVENTS: usize = 64;
/// Notifications answered in a row before other events are handled.
const MOST_CALLS: usize = 32;
/// Time in which an OOM kill is attributed to a command that ends.
const CLAIMED_WITHIN: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;
/// Exit status of a child that could not exec the command.
const NOT_STARTED: i32 = 127;

impl Residence<'_> {
    /// Handles all pending events; to be called when a descriptor of `waits` is readable or its deadline has passed.
    /// Never blocks for long.
    pub fn turn(&mut self) -> Result<Vec<ResidenceEvent>, Fault> {
        self.handle_early_ends();
        for slot in self.ready_slots()? {
            match slot {
                EpollSlot::Control => self.first_process_ended(),
                EpollSlot::Listener => self.hear_calls(),
                EpollSlot::Network => {
                    let hit = self.guest.hear_network();
                    self.end_all(hit);
                    self.guest.hear_asked();
                }
                EpollSlot::Event => {
                    self.guest.meter.events.iter().for_each(EventFd::rearm);
                    self.guest.meter.note_event();
                    self.next_check = Some(Instant::now());
                }
                EpollSlot::Job(job) => self.hear_job(job)?,
            }
        }
        self.check_limits();
        self.check_endings();
        self.collect_denials();
        Ok(std::mem::take(&mut self.events))
    }

    fn ready_slots(&self) -> Result<Vec<EpollSlot>, Fault> {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(MOST_EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&AT_ONCE)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(events.iter().map(|event| EpollSlot::of(event.data)).collect()),
            Err(_) => Err(driver::lacks("epoll_wait")),
        }
    }

    /// Answers notifications while there are any, up to a bound.
    pub(super) fn hear_calls(&mut self) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..MOST_CALLS {
            let Some(listener) = &self.guest.listener else { return };
            let mut asked = [PollFd::new(listener, PollFlags::IN)];
            if poll(&mut asked, Some(&AT_ONCE)) != Ok(1) {
                return;
            }
            if !asked[0].revents().contains(PollFlags::IN) {
                // POLLHUP: no process with the filter is left.
                let _ = epoll::delete(&self.epoll, listener);
                self.guest.listener = None;
                return;
            }
            let hit = self.guest.hear_call();
            self.end_all(hit);
        }
    }

    fn hear_job(&mut self, job: JobId) -> Result<(), Fault> {
        let Some(running) = self.jobs.get(&job) else { return Ok(()) };
        let heard = running.control.next_event().map_err(|e| internal(terms::Phase::Execution, e))?;
        self.handle_job_event(job, heard);
        Ok(())
    }

    /// Handles jobs that had ended before their start was complete.
    fn handle_early_ends(&mut self) {
        let early_ends: Vec<(JobId, JobEvent)> =
            self.jobs.iter_mut().filter_map(|(job, running)| Some((*job, running.early_end.take()?))).collect();
        early_ends.into_iter().for_each(|(job, heard)| self.handle_job_event(job, heard));
    }

    fn handle_job_event(&mut self, job: JobId, heard: JobEvent) {
        match heard {
            JobEvent::Ended { status, cpu_us, max_rss_kb } => self.ended(job, Some(status), cpu_us, max_rss_kb),
            JobEvent::Lost { cpu_us, max_rss_kb } => self.ended(job, None, cpu_us, max_rss_kb),
            // The control line closes without an event only when the first process ends.
            JobEvent::Closed => self.first_process_ended(),
            // The exec failed after the start was reported; the job ends with status 127.
            JobEvent::NotStarted { .. } => self.ended(job, Some(NOT_STARTED << 8), 0, 0),
            JobEvent::Born(_) | JobEvent::Begins { .. } => {}
        }
    }

    fn ended(&mut self, job: JobId, status: Option<i32>, cpu_us: u64, max_rss_kb: u64) {
        self.check_memory();
        // A command that exceeded a limit and ended before the next check still counts as having exceeded it.
        if !self.is_gone && self.jobs.get(&job).is_some_and(|running| !running.ending) {
            self.guest.meter.close_command_accounts();
            let hit = self.guest.meter.exceeded_beside_memory();
            self.end_all(hit);
        }
        let Some(running) = self.jobs.remove(&job) else { return };
        let _ = epoll::delete(&self.epoll, &running.control);
        let killed = matches!(status, None | Some(SIGKILL)) || status == Some((128 + SIGKILL) << 8);
        let claimed = self.memory.unclaimed > 0 && killed && !running.ending;
        self.memory.unclaimed -= u64::from(claimed);
        let out_of_memory = (claimed || running.out_of_memory).then(|| self.guest.meter.memory_hit()).flatten();
        self.guest.hear_reports();
        self.guest.judge.hear_waiters();
        self.collect_denials();
        let flock = self.guest.judge.flock.as_mut();
        let (denials, denials_dropped, notes) = flock.map(|flock| flock.remove(job)).unwrap_or_default();
        let end = CommandEnd { status, cpu_us, max_rss_kb, out_of_memory, denials, denials_dropped, notes };
        self.events.push(ResidenceEvent::Ended { job, end });
        self.guest.meter.admit_ours(1 + self.jobs.len() as u64);
        self.pending_signals.retain(|(of, _)| *of != job);
        if self.jobs.is_empty() {
            self.next_check = None;
        }
    }

    /// Handles the end of the first process. All others end with it.
    fn first_process_ended(&mut self) {
        if std::mem::replace(&mut self.is_gone, true) {
            return;
        }
        self.guest.kill();
        self.guest.reap();
        let _ = epoll::delete(&self.epoll, self.guest.spawned.control());
        if let Some(listener) = self.guest.listener.take() {
            let _ = epoll::delete(&self.epoll, &listener);
        }
        let memory = self.guest.meter.memory_kills() > self.memory.kills;
        self.jobs.values_mut().for_each(|running| running.out_of_memory |= memory);
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.ended(job, None, 0, 0));
        let reason = match memory {
            true => "the enclosure's memory was used up, and the kernel killed its first process",
            false => "the enclosure's first process was killed from outside",
        };
        self.events.push(ResidenceEvent::Fell { reason: reason.into() });
    }

    fn check_limits(&mut self) {
        if self.jobs.is_empty() {
            self.next_check = None;
        }
        // A frozen guest uses no resources.
        if self.frozen.is_some() || self.next_check.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.check_memory();
        let hit = self.guest.meter.exceeded_beside_memory();
        self.end_all(hit);
        self.next_check = self.guest.meter.next_look();
    }

    /// Kills all commands because of a limit.
    fn end_all(&mut self, hit: Option<LimitHit>) {
        let Some(hit) = hit.filter(|_| !self.limited && !self.jobs.is_empty()) else { return };
        self.limited = true;
        self.events.push(ResidenceEvent::Limit(hit));
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.end(job));
    }

    /// Attributes OOM kills: the kernel counts them without naming the victim. A single running command is the victim;
    /// among several, the next that ends by SIGKILL.
    fn check_memory(&mut self) {
        let kills = self.guest.meter.memory_kills();
        let new = kills.saturating_sub(std::mem::replace(&mut self.memory.kills, kills));
        if self.memory.since.is_some_and(|at| at.elapsed() > CLAIMED_WITHIN) {
            (self.memory.unclaimed, self.memory.since) = (0, None);
        }
        if new == 0 {
            return;
        }
        let only = if self.jobs.len() == 1 { self.jobs.keys().next().copied() } else { None };
        match only {
            Some(job) => {
                self.jobs.values_mut().for_each(|running| running.out_of_memory = true);
                self.end(job);
            }
            None => {
                self.memory.unclaimed += new;
                self.memory.since = Some(Instant::now());
            }
        }
    }

    /// Kills shepherds that are stopped or starved and missed their deadline.
    fn check_endings(&mut self) {
        let now = Instant::now();
        self.jobs.values_mut().filter(|r| r.end_by.is_some_and(|at| now >= at)).for_each(|running| running.give_up());
    }

    fn collect_denials(&mut self) {
        let Some(flock) = &mut self.guest.judge.flock else { return };
        let denied = flock.take_unreported().into_iter().map(|(job, denial)| ResidenceEvent::Denied { job, denial });
        self.events.extend(denied);
    }
}
