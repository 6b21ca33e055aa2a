//! Dealing with what happens in a residence.

use super::{End, Happened, Job, Residence, Slot};
use crate::driver;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::time::{Duration, Instant};
use sys::cgroup::EventFd;
use sys::job::Heard;
use terms::{Fault, LimitHit};

/// Entries of the list that are looked at in one turn.
const MOST_EVENTS: usize = 64;
/// Calls that are answered in a row before anything else is looked at.
const MOST_CALLS: usize = 32;
/// How long a process that was lost to memory is looked for among those that end.
const CLAIMED_WITHIN: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;
/// The status of one of ours that could not become the command.
const NOT_STARTED: i32 = 127;

impl Residence<'_> {
    /// Deals with whatever happened; to be called whenever one of those is ready or the time has come. Never blocks for long.
    pub fn turn(&mut self) -> Result<Vec<Happened>, Fault> {
        self.hear_those_who_were_quick();
        for slot in self.happening()? {
            match slot {
                Slot::Control => self.fall(),
                Slot::Listener => self.hear_calls(),
                Slot::Network => {
                    let hit = self.guest.hear_network();
                    self.limit(hit);
                    self.guest.hear_asked();
                }
                Slot::Event => {
                    self.guest.meter.events.iter().for_each(EventFd::rearm);
                    self.guest.meter.note_event();
                    self.look_at = Some(Instant::now());
                }
                Slot::Job(job) => self.hear_job(job)?,
            }
        }
        self.check_limits();
        self.check_endings();
        self.tell_denials();
        Ok(std::mem::take(&mut self.told))
    }

    fn happening(&self) -> Result<Vec<Slot>, Fault> {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(MOST_EVENTS);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&AT_ONCE)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(events.iter().map(|event| Slot::of(event.data)).collect()),
            Err(_) => Err(driver::lacks("epoll_wait")),
        }
    }

    /// Answers those who ask, as long as somebody does.
    pub(super) fn hear_calls(&mut self) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..MOST_CALLS {
            let Some(listener) = &self.guest.listener else { return };
            let mut asked = [PollFd::new(listener, PollFlags::IN)];
            if poll(&mut asked, Some(&AT_ONCE)) != Ok(1) {
                return;
            }
            if !asked[0].revents().contains(PollFlags::IN) {
                // Nobody is left who could ask.
                let _ = epoll::delete(&self.epoll, listener);
                self.guest.listener = None;
                return;
            }
            let hit = self.guest.hear_call();
            self.limit(hit);
        }
    }

    fn hear_job(&mut self, job: Job) -> Result<(), Fault> {
        let Some(running) = self.jobs.get(&job) else { return Ok(()) };
        let heard = running.line.hear().map_err(|e| crate::launch::internal(terms::Phase::Execution, e))?;
        self.job_told(job, heard);
        Ok(())
    }

    /// Those who had ended before their start was known.
    fn hear_those_who_were_quick(&mut self) {
        let over: Vec<(Job, Heard)> =
            self.jobs.iter_mut().filter_map(|(job, running)| Some((*job, running.over.take()?))).collect();
        over.into_iter().for_each(|(job, heard)| self.job_told(job, heard));
    }

    fn job_told(&mut self, job: Job, heard: Heard) {
        match heard {
            Heard::Ended { status, cpu_us, max_rss_kb } => self.ended(job, Some(status), cpu_us, max_rss_kb),
            Heard::Lost { cpu_us, max_rss_kb } => self.ended(job, None, cpu_us, max_rss_kb),
            // Only the end of the first process leaves a line without a word.
            Heard::Closed => self.fall(),
            // Held up until after its start was told, it did not become the command; this is how such a one ends.
            Heard::NotStarted { .. } => self.ended(job, Some(NOT_STARTED << 8), 0, 0),
            Heard::Born(_) | Heard::Begins { .. } => {}
        }
    }

    fn ended(&mut self, job: Job, status: Option<i32>, cpu_us: u64, max_rss_kb: u64) {
        self.check_memory();
        // Who met a limit and was over before anybody looked has met it all the same.
        if !self.fell && self.jobs.get(&job).is_some_and(|running| !running.ending) {
            let hit = self.guest.meter.exceeded_beside_memory();
            self.limit(hit);
        }
        let Some(running) = self.jobs.remove(&job) else { return };
        let _ = epoll::delete(&self.epoll, &running.line);
        let killed = matches!(status, None | Some(SIGKILL)) || status == Some((128 + SIGKILL) << 8);
        let claimed = self.memory.unclaimed > 0 && killed && !running.ending;
        self.memory.unclaimed -= u64::from(claimed);
        let out_of_memory = (claimed || running.out_of_memory).then(|| self.guest.meter.memory_hit()).flatten();
        self.guest.hear_reports();
        self.guest.judge.hear_waiters();
        self.tell_denials();
        let flock = self.guest.judge.flock.as_mut();
        let (denials, denials_dropped) = flock.map(|flock| flock.remove(job)).unwrap_or_default();
        let end = End { status, cpu_us, max_rss_kb, out_of_memory, denials, denials_dropped };
        self.told.push(Happened::Ended { job, end });
        self.guest.meter.admit_ours(1 + self.jobs.len() as u64);
        self.held.retain(|(of, _)| *of != job);
        if self.jobs.is_empty() {
            self.look_at = None;
        }
    }

    /// The first process is gone; so is everything as soon as it can be collected.
    fn fall(&mut self) {
        if std::mem::replace(&mut self.fell, true) {
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
        let jobs: Vec<Job> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.ended(job, None, 0, 0));
        let reason = match memory {
            true => "the enclosure's memory was used up, and the kernel killed its first process",
            false => "the enclosure's first process was killed from outside",
        };
        self.told.push(Happened::Fell { reason: reason.into() });
    }

    fn check_limits(&mut self) {
        if self.jobs.is_empty() {
            self.look_at = None;
        }
        // Who stands still uses nothing.
        if self.still.is_some() || self.look_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.check_memory();
        let hit = self.guest.meter.exceeded_beside_memory();
        self.limit(hit);
        self.look_at = self.guest.meter.next_look();
    }

    /// Everything that runs ends.
    fn limit(&mut self, hit: Option<LimitHit>) {
        let Some(hit) = hit.filter(|_| !self.limited && !self.jobs.is_empty()) else { return };
        self.limited = true;
        self.told.push(Happened::Limit(hit));
        let jobs: Vec<Job> = self.jobs.keys().copied().collect();
        jobs.into_iter().for_each(|job| self.end(job));
    }

    /// The kernel says that it killed for memory, and not whom. Where one command runs it was that one's; else whoever ends by
    /// such a signal soon.
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

    /// Shepherds that were stopped or starved are not waited for.
    fn check_endings(&mut self) {
        let now = Instant::now();
        self.jobs.values_mut().filter(|r| r.end_by.is_some_and(|at| now >= at)).for_each(|running| running.give_up());
    }

    fn tell_denials(&mut self) {
        let Some(flock) = &mut self.guest.judge.flock else { return };
        let told = flock.told().into_iter().map(|(job, denial)| Happened::Denied { job, denial });
        self.told.extend(told);
    }
}
