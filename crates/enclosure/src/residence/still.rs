//! Holding a residence still, and what it uses.

use super::Residence;
use crate::actors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::freeze::{self, Freezing, Trouble};
use terms::{ErrorKind, Fault, Phase};

/// How long all may take to stand still.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a residence was made to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// "cgroup" or "signals".
    pub with: &'static str,
    /// Bytes of memory that the kernel took back at our wish; none where it would not hear of it.
    pub paged_out: Option<u64>,
}

/// What holds it.
pub(super) enum Stillness {
    Group,
    /// Kept until all go on.
    Signals(#[allow(dead_code)] freeze::Frozen),
}

/// What the whole enclosure uses now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
}

impl Residence<'_> {
    /// Stops every process, until `thaw`.
    pub fn freeze(&mut self) -> Result<Frozen, Fault> {
        let with = |still: &Stillness| match still {
            Stillness::Group => "cgroup",
            Stillness::Signals(_) => "signals",
        };
        if self.fell {
            return Err(super::fallen(Phase::Execution));
        }
        if let Some(still) = &self.still {
            return Ok(Frozen { with: with(still), paged_out: None });
        }
        let still = match self.guest.meter.freezer().is_some() {
            true => self.freeze_group()?,
            false => self.freeze_by_signals()?,
        };
        let paged_out = freeze::page_out(&freeze::guests(std::process::id()));
        // Nobody who stands still can be late.
        self.jobs.values_mut().for_each(|running| running.end_by = None);
        let frozen = Frozen { with: with(&still), paged_out };
        self.still = Some(still);
        Ok(frozen)
    }

    pub fn thaw(&mut self) -> Result<(), Fault> {
        match self.still.take() {
            Some(Stillness::Group) => self.thaw_group()?,
            Some(Stillness::Signals(frozen)) => drop(frozen),
            None => return Ok(()),
        }
        for running in self.jobs.values_mut().filter(|running| running.ending) {
            running.end();
        }
        for (job, signal) in std::mem::take(&mut self.held) {
            self.signal(job, signal);
        }
        Ok(())
    }

    fn freeze_group(&mut self) -> Result<Stillness, Fault> {
        let until = Instant::now() + PATIENCE;
        let order = |on: bool| self.guest.meter.freezer().map_or(Ok(()), |group| group.freeze(on));
        order(true).map_err(|e| Fault::internal(format!("cgroup.freeze: {e}")).phase(Phase::Execution))?;
        // Only now: those who wait for an answer have been told to stand still, and make their call again afterwards.
        let still = Arc::clone(&self.guest.judge.still);
        still.store(true, Ordering::Release);
        let frozen = self.await_frozen(until);
        still.store(false, Ordering::Release);
        frozen
    }

    fn await_frozen(&mut self, until: Instant) -> Result<Stillness, Fault> {
        while !self.guest.meter.freezer().is_some_and(sys::cgroup::Group::frozen) {
            if Instant::now() >= until {
                self.thaw_group()?;
                return Err(too_slow("the group was not frozen in time"));
            }
            self.answer_meanwhile();
        }
        Ok(Stillness::Group)
    }

    fn thaw_group(&mut self) -> Result<(), Fault> {
        let thawed = self.guest.meter.freezer().map_or(Ok(()), |group| group.freeze(false));
        thawed.map_err(|e| Fault::internal(format!("cgroup.freeze: {e}")).phase(Phase::Execution))
    }

    fn freeze_by_signals(&mut self) -> Result<Stillness, Fault> {
        let until = Instant::now() + PATIENCE;
        let mut freezing = Freezing::start(std::process::id()).map_err(|e| too_slow(&e.to_string()))?;
        loop {
            match freezing.step() {
                Ok(true) => return Ok(Stillness::Signals(freezing.finish())),
                Ok(false) if Instant::now() < until => self.answer_meanwhile(),
                Ok(false) => return Err(too_slow(&Trouble::TooSlow(freezing.moving()).to_string())),
                Err(trouble) => return Err(too_slow(&trouble.to_string())),
            }
        }
    }

    /// Who waits for an answer of ours cannot stand still.
    fn answer_meanwhile(&mut self) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000 };
        match &self.guest.listener {
            Some(listener) => drop(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&PAUSE))),
            None => std::thread::sleep(Duration::from_micros(300)),
        }
        self.hear_calls();
    }

    /// Bytes over the network both ways so far; quicker than `usage`.
    pub fn net_bytes(&self) -> u64 {
        self.guest.net_bytes()
    }

    /// The most bytes that were seen in the private space and, as far as they were counted, in the workspace since commands began
    /// to run; likewise.
    pub fn disk_peak_bytes(&self) -> u64 {
        self.guest.meter.disk_peak_bytes()
    }

    /// What it uses now: by its groups where it has some, else by what the kernel tells of its processes.
    pub fn usage(&mut self) -> Use {
        let figures = self.guest.meter.figures();
        let counted = match (figures.cpu_us, figures.memory_now, figures.pids_now) {
            (Some(_), Some(_), Some(_)) => actors::Tally::default(),
            _ => actors::tally(self.guest.spawned.pid),
        };
        let ours = 1 + self.jobs.len() as u64;
        let memory_bytes = figures.memory_now.unwrap_or(counted.memory_bytes);
        self.peak = self.peak.max(memory_bytes);
        Use {
            cpu_us: figures.cpu_us.unwrap_or(counted.cpu_us),
            memory_bytes,
            memory_peak_bytes: figures.memory_peak.unwrap_or(self.peak),
            processes: figures.pids_now.unwrap_or(counted.processes).saturating_sub(ours),
            disk_bytes: self.guest.meter.disk_bytes(),
            net_bytes: self.guest.net_bytes(),
        }
    }
}

fn too_slow(why: &str) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("the enclosure does not stand still: {why}"))
        .hint("try again, or stop it")
        .phase(Phase::Execution)
}
