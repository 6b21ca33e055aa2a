//! Load benchmark of a daemon: a real daemon with its own state, as a second process, driven over
//! its socket by this one. The unit of comparison is the time that the same command takes without
//! the product, measured in the same run.

mod client;
mod usage;

use super::statistics::{Quantiles, Samples};
use super::work::WorkDir;
use super::{BenchConfig, Progress, load, round, time};
pub(super) use client::{BenchClient, lost};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use terms::{Fault, PROTOCOL_VERSION};

pub use usage::{Count, Idle, Weight};

/// Sizes of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Samples per row.
    pub rounds: u32,
    pub sandboxes: u32,
    pub cycles: u32,
}

impl Amount {
    /// Enough to see that the benchmark works, and too little for figures.
    pub const QUICK: Amount = Amount { rounds: 20, sandboxes: 6, cycles: 40 };
}

#[derive(Clone, Debug, Serialize)]
pub struct DaemonReport {
    pub protocol_version: u32,
    pub kernel: String,
    pub cpus: usize,
    pub load: f64,
    pub command: &'static str,
    /// Start to end of the command without the product.
    pub unit_us: Quantiles,
    pub rows: Vec<LoadRow>,
    pub idle: Idle,
    pub growth: Growth,
}

#[derive(Clone, Debug, Serialize)]
pub struct LoadRow {
    pub name: &'static str,
    pub clients: u32,
    pub times: u32,
    pub per_second: f64,
    pub us: Quantiles,
    /// The median divided by the unit's median.
    pub units: f64,
    /// Ratio of the 99th percentile to the median.
    pub p99_by_p50: f64,
}

/// Leftovers of many cycles of create, command and delete.
#[derive(Clone, Debug, Serialize)]
pub struct Growth {
    pub cycles: u32,
    pub failed: u32,
    pub seconds: f64,
    pub before: Count,
    pub after: Count,
    /// No cycle failed, and the counts before and after are equal.
    pub clean: bool,
    /// Weights early on (after at least a tenth of the cycles), and after all.
    pub early: Weight,
    pub late: Weight,
}

const CREATE: &str = "create and first command";
const CYCLE: &str = "create, command, delete";
const EXEC: &str = "command in a live sandbox";
/// Concurrent clients of the concurrent rows.
const MANY: u32 = 8;

pub fn daemon(config: &BenchConfig, amount: Amount, progress: Progress<'_>) -> Result<DaemonReport, Fault> {
    let load = load();
    let nothing = super::nothing()?;
    let place = WorkDir::make(config)?;
    let daemon = Daemon::start(&config.exe, &place.root)?;
    let bench = Bench { daemon: &daemon, nothing, rounds: amount.rounds };
    let unit_us = unit(nothing, amount.rounds)?;
    let mut rows = Vec::new();
    for (clients, what) in [(1, CREATE), (1, CYCLE), (MANY, CYCLE), (1, EXEC), (MANY, EXEC)] {
        progress(what, 0, 1);
        rows.push(bench.row(what, clients, &unit_us)?);
    }
    let idle = bench.idle(amount.sandboxes, progress)?;
    let growth = bench.growth(amount.cycles, progress)?;
    Ok(DaemonReport {
        protocol_version: PROTOCOL_VERSION,
        kernel: super::kernel(),
        cpus: super::cpus(),
        load,
        command: nothing,
        unit_us,
        rows,
        idle,
        growth,
    })
}

fn unit(nothing: &str, rounds: u32) -> Result<Quantiles, Fault> {
    let mut samples = Samples::default();
    for _ in 0..rounds.max(100) {
        let (took, _) = time(&mut Command::new(nothing)).map_err(|e| lost(&format!("{nothing}: {e}")))?;
        samples.add(took);
    }
    samples.quantiles().ok_or_else(|| lost("nothing was measured"))
}

struct Bench<'a> {
    daemon: &'a Daemon,
    nothing: &'static str,
    rounds: u32,
}

impl Bench<'_> {
    fn client(&self) -> Result<BenchClient, Fault> {
        BenchClient::connect(&self.daemon.socket)
    }

    fn row(&self, name: &'static str, clients: u32, unit: &Quantiles) -> Result<LoadRow, Fault> {
        // The total number of samples is the same for any number of clients.
        let each = self.rounds.div_ceil(clients);
        let taken = self.at_once(clients, || match name {
            EXEC => self.execs(each),
            _ => self.cycles(each, name == CREATE),
        })?;
        let (mut samples, mut times, mut busy) = (Samples::default(), 0, Duration::ZERO);
        for took in taken.into_iter().flatten() {
            samples.add(took);
            (times, busy) = (times + 1, busy + took);
        }
        let us = samples.quantiles().ok_or_else(|| lost("nothing was measured"))?;
        // All clients were busy for the whole time, so the elapsed time is `busy / clients`.
        let per_second = (f64::from(times * clients) / busy.as_secs_f64() * 10.0).round() / 10.0;
        let (units, p99_by_p50) = (round(us.p50 / unit.p50), round(us.p99 / us.p50));
        Ok(LoadRow { name, clients, times, per_second, us, units, p99_by_p50 })
    }

    fn at_once<T: Send>(&self, clients: u32, work: impl Fn() -> Result<T, Fault> + Sync) -> Result<Vec<T>, Fault> {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..clients).map(|_| scope.spawn(&work)).collect();
            all.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(lost("a client of ours broke")))).collect()
        })
    }

    /// Measures commands in a live sandbox of its own.
    fn execs(&self, times: u32) -> Result<Vec<Duration>, Fault> {
        let mut client = self.client()?;
        let id = create(&mut client)?;
        client.ask("POST", &format!("/v1/sandboxes/{id}/start?live=true"), None)?;
        // Warm-up.
        self.exec(&mut client, &id)?;
        let took = (0..times).map(|_| timed(|| self.exec(&mut client, &id))).collect();
        remove(&mut client, &id)?;
        took
    }

    /// Measures whole cycles, or only up to the end of the command, without the deletion.
    fn cycles(&self, times: u32, without_end: bool) -> Result<Vec<Duration>, Fault> {
        let mut client = self.client()?;
        let mut all = Vec::new();
        for _ in 0..times {
            let begun = Instant::now();
            let id = create(&mut client)?;
            self.exec(&mut client, &id)?;
            let first = begun.elapsed();
            remove(&mut client, &id)?;
            all.push(if without_end { first } else { begun.elapsed() });
        }
        Ok(all)
    }

    fn exec(&self, client: &mut BenchClient, id: &str) -> Result<(), Fault> {
        let body = json!({"command": [self.nothing]});
        let shown = client.ask("POST", &format!("/v1/sandboxes/{id}/runs?wait=60s"), Some(&body))?;
        match shown["outcome"]["verdict"].as_str() {
            Some("ok") => Ok(()),
            verdict => Err(lost(&format!("a command ended {verdict:?}"))),
        }
    }

    fn idle(&self, sandboxes: u32, progress: Progress<'_>) -> Result<Idle, Fault> {
        let (pid, mut client) = (self.daemon.child.id(), self.client()?);
        let before = usage::own(pid);
        let begun = Instant::now();
        let mut all = Vec::new();
        for at in 0..sandboxes {
            let id = create(&mut client)?;
            client.ask("POST", &format!("/v1/sandboxes/{id}/start?live=true"), None)?;
            all.push(id);
            progress("idle", at + 1, sandboxes);
        }
        let took = begun.elapsed();
        // Descriptors that a start opens are closed a moment later.
        std::thread::sleep(Duration::from_secs(2));
        let idle = usage::idle(pid, sandboxes, before, took);
        all.iter().try_for_each(|id| remove(&mut client, id))?;
        idle
    }

    fn growth(&self, cycles: u32, progress: Progress<'_>) -> Result<Growth, Fault> {
        const AT_ONCE: u32 = 4;
        let (pid, state) = (self.daemon.child.id(), &self.daemon.state);
        // A first pass, so that lazily made objects exist.
        self.at_once(AT_ONCE, || self.cycles(2, true))?;
        let before = usage::at_rest(pid, state)?;
        let (begun, failed, done) = (Instant::now(), AtomicU32::new(0), AtomicU32::new(0));
        let mut early = None;
        // In twenty parts, for progress reports.
        let parts = 20.min(cycles.div_ceil(AT_ONCE)).max(1);
        for part in 0..parts {
            let each = (cycles * (part + 1) / parts - done.load(Ordering::Relaxed)).div_ceil(AT_ONCE);
            self.at_once(AT_ONCE, || {
                for _ in 0..each {
                    failed.fetch_add(u32::from(self.cycles(1, true).is_err()), Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })?;
            if part >= parts / 10 && early.is_none() {
                early = Some(usage::weight(pid, state)?);
            }
            progress("cycles", done.load(Ordering::Relaxed).min(cycles), cycles);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let after = usage::settled(pid, state, |now| *now == before)?;
        let late = usage::weight(pid, state)?;
        let (failed, cycles) = (failed.into_inner(), done.into_inner());
        let clean = before == after && failed == 0;
        Ok(Growth { cycles, failed, seconds, before, after, clean, early: early.unwrap_or_default(), late })
    }
}

fn timed(work: impl FnOnce() -> Result<(), Fault>) -> Result<Duration, Fault> {
    let begun = Instant::now();
    work().map(|()| begun.elapsed())
}

pub(super) fn create(client: &mut BenchClient) -> Result<String, Fault> {
    let made = client.ask("POST", "/v1/sandboxes", Some(&json!({})))?;
    made["id"].as_str().map(str::to_owned).ok_or_else(|| lost("a sandbox without an id"))
}

fn remove(client: &mut BenchClient, id: &str) -> Result<(), Fault> {
    client.ask("DELETE", &format!("/v1/sandboxes/{id}?force=true"), None).map(drop)
}

/// The daemon under measurement. Dropping it ends its keepers, then the daemon.
pub(super) struct Daemon {
    child: Child,
    pub socket: PathBuf,
    pub state: PathBuf,
}

impl Daemon {
    pub fn start(exe: &Path, root: &Path) -> Result<Daemon, Fault> {
        let state = root.join("state");
        let mut command = Command::new(exe);
        command.args(["serve", "--json"]).env("COFFERDAM_STATE", &state).env("COFFERDAM_LOG_LEVEL", "error");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.map_err(|e| lost(&e.to_string()))?;
        let out = child.stdout.take();
        let mut daemon = Daemon { child, socket: PathBuf::new(), state };
        let told = out.and_then(|out| announced(BufReader::new(out))).ok_or_else(|| lost("it does not start"))?;
        daemon.socket = told["socket"].as_str().map(PathBuf::from).ok_or_else(|| lost("it has no socket"))?;
        Ok(daemon)
    }
}

/// Reads the document that the daemon prints when it is ready.
fn announced(mut out: impl BufRead) -> Option<Value> {
    let mut text = String::new();
    while out.read_line(&mut text).ok()? > 0 {
        if let Ok(told) = serde_json::from_str(&text) {
            return Some(told);
        }
    }
    None
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Keepers would outlive the daemon, so they are ended first.
        let node = node::Node::for_command();
        for id in node::keeper::place::KeeperDir::all(&self.state) {
            let keeper = node::keeper::Keeper::find(&node, &self.state, &id);
            let _ = keeper.map(|keeper| keeper.end(&node.keepers, Duration::ZERO));
        }
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
