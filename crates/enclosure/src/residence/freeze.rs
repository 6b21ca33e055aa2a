//! Freezing a residence, and measuring its use.

use super::Residence;
use crate::actors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::freeze::{self, FreezeError, Freezing};
use terms::{ErrorKind, Fault, Phase};

/// Deadline for freezing all processes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of freezing a residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreezeResult {
    /// "cgroup" or "signals".
    pub with: &'static str,
    /// Bytes of memory that were paged out on request; `None` where the kernel does not support that.
    pub paged_out: Option<u64>,
}

/// The mechanism that keeps the guest frozen.
pub(super) enum FreezeMethod {
    Group,
    /// Held until the thaw.
    Signals(#[allow(dead_code)] freeze::Frozen),
}

/// Present use of the whole enclosure.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUsage {
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub processes: u64,
    pub disk_bytes: u64,
    pub net_bytes: u64,
}

impl Residence<'_> {
    /// Freezes every process, until `thaw`.
    pub fn freeze(&mut self) -> Result<FreezeResult, Fault> {
        let with = |method: &FreezeMethod| match method {
            FreezeMethod::Group => "cgroup",
            FreezeMethod::Signals(_) => "signals",
        };
        if self.is_gone {
            return Err(super::enclosure_gone(Phase::Execution));
        }
        if let Some(method) = &self.frozen {
            return Ok(FreezeResult { with: with(method), paged_out: None });
        }
        let method = match self.guest.meter.freezer().is_some() {
            true => self.freeze_group()?,
            false => self.freeze_by_signals()?,
        };
        let paged_out = freeze::page_out(&freeze::guests(std::process::id()));
        // A frozen shepherd cannot miss its deadline.
        self.jobs.values_mut().for_each(|running| running.end_by = None);
        let frozen = FreezeResult { with: with(&method), paged_out };
        self.frozen = Some(method);
        Ok(frozen)
    }

    pub fn thaw(&mut self) -> Result<(), Fault> {
        match self.frozen.take() {
            Some(FreezeMethod::Group) => self.thaw_group()?,
            Some(FreezeMethod::Signals(frozen)) => drop(frozen),
            None => return Ok(()),
        }
        for running in self.jobs.values_mut().filter(|running| running.ending) {
            running.end();
        }
        for (job, signal) in std::mem::take(&mut self.pending_signals) {
            self.signal(job, signal);
        }
        Ok(())
    }

    fn freeze_group(&mut self) -> Result<FreezeMethod, Fault> {
        let until = Instant::now() + PATIENCE;
        let order = |on: bool| self.guest.meter.freezer().map_or(Ok(()), |group| group.freeze(on));
        order(true).map_err(|e| Fault::internal(format!("cgroup.freeze: {e}")).phase(Phase::Execution))?;
        // Set after the freeze request: calls that wait for an answer are restarted, freeze, and are made again after
        // the thaw.
        let freezing = Arc::clone(&self.guest.judge.freezing);
        freezing.store(true, Ordering::Release);
        let frozen = self.await_frozen(until);
        freezing.store(false, Ordering::Release);
        frozen
    }

    fn await_frozen(&mut self, until: Instant) -> Result<FreezeMethod, Fault> {
        while !self.guest.meter.freezer().is_some_and(sys::cgroup::Group::frozen) {
            if Instant::now() >= until {
                self.thaw_group()?;
                return Err(too_slow("the group was not frozen in time"));
            }
            self.answer_meanwhile();
        }
        Ok(FreezeMethod::Group)
    }

    fn thaw_group(&mut self) -> Result<(), Fault> {
        let thawed = self.guest.meter.freezer().map_or(Ok(()), |group| group.freeze(false));
        thawed.map_err(|e| Fault::internal(format!("cgroup.freeze: {e}")).phase(Phase::Execution))
    }

    fn freeze_by_signals(&mut self) -> Result<FreezeMethod, Fault> {
        let until = Instant::now() + PATIENCE;
        let mut freezing = Freezing::start(std::process::id()).map_err(|e| too_slow(&e.to_string()))?;
        loop {
            match freezing.step() {
                Ok(true) => return Ok(FreezeMethod::Signals(freezing.finish())),
                Ok(false) if Instant::now() < until => self.answer_meanwhile(),
                Ok(false) => return Err(too_slow(&FreezeError::TooSlow(freezing.running()).to_string())),
                Err(trouble) => return Err(too_slow(&trouble.to_string())),
            }
        }
    }

    /// Answers notifications for a while: a thread that waits for an answer cannot freeze.
    fn answer_meanwhile(&mut self) {
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000 };
        match &self.guest.listener {
            Some(listener) => drop(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&PAUSE))),
            None => std::thread::sleep(Duration::from_micros(300)),
        }
        self.hear_calls();
    }

    /// Returns the bytes over the network in both directions; quicker than `usage`.
    pub fn net_bytes(&self) -> u64 {
        self.guest.net_bytes()
    }

    /// Returns the peak of the bytes in the private space and, as far as they were counted, in the workspace since
    /// commands began to run; quicker than `usage`.
    pub fn disk_peak_bytes(&self) -> u64 {
        self.guest.meter.disk_peak_bytes()
    }

    /// Returns the present use, from control groups where there are any, otherwise from /proc.
    pub fn usage(&mut self) -> ResourceUsage {
        let figures = self.guest.meter.figures();
        let counted = match (figures.cpu_us, figures.memory_now, figures.pids_now) {
            (Some(_), Some(_), Some(_)) => actors::Tally::default(),
            _ => actors::tally(self.guest.spawned.pid),
        };
        let ours = 1 + self.jobs.len() as u64;
        let memory_bytes = figures.memory_now.unwrap_or(counted.memory_bytes);
        self.memory_peak = self.memory_peak.max(memory_bytes);
        ResourceUsage {
            cpu_us: figures.cpu_us.unwrap_or(counted.cpu_us),
            memory_bytes,
            memory_peak_bytes: figures.memory_peak.unwrap_or(self.memory_peak),
            processes: figures.pids_now.unwrap_or(counted.processes).saturating_sub(ours),
            disk_bytes: self.guest.meter.disk_bytes(),
            net_bytes: self.guest.net_bytes(),
        }
    }
}

fn too_slow(why: &str) -> Fault {
    Fault::new(ErrorKind::Unavailable, format!("the enclosure cannot be frozen: {why}"))
        .hint("try again, or stop it")
        .phase(Phase::Execution)
}
