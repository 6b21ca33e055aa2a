//! Current resource usage of sandboxes, from keepers of live sandboxes and from the kernel for runs without a keeper.

use crate::list;
use api::{CodeTraffic, SandboxState, SandboxSummary, TopReport, TopSandbox};
use runtime::Node;
use runtime::keeper::client::{LISTING, silence};
use runtime::keeper::survey::{Reply, SurveyedSandbox, survey};
use runtime::keeper::wire::{self, KeeperRequest, ResourceUsage};
use state::sandbox::{Run, Sandbox};
use state::{Caller, State};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use store::Kept;
use terms::Fault;
use workspace::disk_usage;

/// Least time between two walks for the disk usage of a sandbox.
const WALKED: Duration = Duration::from_secs(10);
/// Unit in which the kernel reports processor time to other processes, in microseconds.
const TICK_US: u64 = 10_000;
/// Most processes that are read.
const MOST: usize = 100_000;

/// Looks series of samples.
#[derive(Default)]
pub struct UsageSampler {
    /// Time of the last sample of each sandbox, and its processor time by then.
    before: BTreeMap<String, (u64, u64)>,
    disk: BTreeMap<String, (Instant, u64)>,
    /// Time of the last sample of each sandbox with contexts, and what had passed through their rings by then.
    traffic: BTreeMap<String, (u64, CodeTraffic)>,
}

impl UsageSampler {
    pub fn look(&mut self, node: &Node, caller: &Caller) -> Result<TopReport, Fault> {
        let state = node.states.open(caller)?;
        let (sandboxes, open) = state.store.read(|tx| Ok((tx.list::<Sandbox>()?, tx.list_open::<Run>()?)))?;
        let rows = list::list(node, caller, false)?;
        let listed: BTreeMap<&str, &SandboxSummary> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        let sandboxes: Vec<&Kept<Sandbox>> =
            sandboxes.iter().filter(|kept| listed.contains_key(kept.id.as_str())).collect();
        let subjects: Vec<SurveyedSandbox> =
            sandboxes.iter().map(|kept| SurveyedSandbox::new(&state.path, &kept.id)).collect();
        let replies = survey(node, &subjects, Some(&KeeperRequest::Usage), LISTING);
        let processes = Processes::read();
        let mut all = Vec::new();
        for (kept, reply) in sandboxes.into_iter().zip(replies) {
            let Some(listed) = listed.get(kept.id.as_str()) else { continue };
            let runs: Vec<&Run> = open.iter().map(|run| &run.record).filter(|run| run.sandbox == kept.id).collect();
            let mut row = used(listed, reply, &runs, &processes);
            row.disk_bytes = self.disk(&state, kept);
            all.push(row);
        }
        self.disk.retain(|id, _| all.iter().any(|row| row.id == *id));
        Ok(self.compare(TopReport { at_ms: terms::clock::now_ms(), sandboxes: all }))
    }

    /// Adds to a sample the processor usage since the previous one, wherever that was taken.
    pub fn compare(&mut self, look: TopReport) -> TopReport {
        let TopReport { at_ms, sandboxes: mut all } = look;
        for row in &mut all {
            row.cpu_percent = self.percent(row, at_ms);
            self.add_rates(row, at_ms);
        }
        self.before.retain(|id, _| all.iter().any(|row| row.id == *id));
        self.traffic.retain(|id, _| all.iter().any(|row| row.id == *id));
        let busy = |row: &TopSandbox| (row.cpu_percent.unwrap_or(0.0), row.memory_bytes);
        all.sort_by(|a, b| {
            let (a_busy, b_busy) = (busy(a), busy(b));
            b_busy.0.total_cmp(&a_busy.0).then(b_busy.1.cmp(&a_busy.1)).then_with(|| a.id.cmp(&b.id))
        });
        TopReport { at_ms, sandboxes: all }
    }

    /// Adds what has passed through the rings since the previous sample. A counter that restarted counts from zero.
    fn add_rates(&mut self, row: &mut TopSandbox, now_ms: u64) {
        let Some(now) = row.code else {
            self.traffic.remove(&row.id);
            return;
        };
        let Some((at, before)) = self.traffic.insert(row.id.clone(), (now_ms, now)) else { return };
        let passed = now_ms.saturating_sub(at).max(1);
        let rate = |now: u64, before: u64| Some(now.checked_sub(before).unwrap_or(now).saturating_mul(1000) / passed);
        row.code_bytes_per_s = rate(now.bytes, before.bytes);
        row.code_messages_per_s = rate(now.messages, before.messages);
    }

    fn percent(&mut self, row: &TopSandbox, now_ms: u64) -> Option<f64> {
        let (at, before) = self.before.insert(row.id.clone(), (now_ms, row.cpu_us))?;
        // After the clock was set back no usage can be computed.
        let passed = now_ms.saturating_sub(at) as f64 * 1000.0;
        // A counter that restarted counts from zero.
        let spent = row.cpu_us.checked_sub(before).unwrap_or(row.cpu_us) as f64;
        Some(if passed > 0.0 { (spent * 1000.0 / passed).round() / 10.0 } else { 0.0 })
    }

    fn disk(&mut self, state: &State, kept: &Kept<Sandbox>) -> u64 {
        if let Some((at, bytes)) = self.disk.get(&kept.id)
            && at.elapsed() < WALKED
        {
            return *bytes;
        }
        let bytes = kept.record.layers.iter().map(|id| disk_usage::layer(&state.layers, id).bytes).sum();
        self.disk.insert(kept.id.clone(), (Instant::now(), bytes));
        bytes
    }
}

fn used(listed: &SandboxSummary, reply: Reply, runs: &[&Run], processes: &Processes) -> TopSandbox {
    let mut row = TopSandbox {
        id: listed.id.clone(),
        name: listed.name.clone(),
        state: listed.state,
        live: false,
        silent: None,
        runs: 0,
        processes: 0,
        cpu_percent: None,
        cpu_us: 0,
        memory_bytes: 0,
        disk_bytes: 0,
        net_bytes: None,
        code: None,
        code_bytes_per_s: None,
        code_messages_per_s: None,
    };
    let runs = runs.iter().filter(|run| state::process::handle(run).is_some());
    match reply {
        Reply::Answered(_, Some(frame)) => {
            if let Ok(now) = wire::read_answer::<ResourceUsage>(&frame) {
                (row.live, row.runs, row.processes) = (true, now.running, now.processes);
                (row.cpu_us, row.memory_bytes, row.net_bytes) = (now.cpu_us, now.memory_bytes, Some(now.net_bytes));
                row.code = Some(now.code).filter(|code| code.contexts > 0);
                return row;
            }
        }
        Reply::Silent(card) => {
            (row.state, row.live, row.runs) = (SandboxState::Silent, true, runs.count() as u64);
            row.silent = Some(silence(&row.id, &card, LISTING));
            add(&mut row, processes.below(card.pid));
            return row;
        }
        Reply::Absent | Reply::Refused(_) | Reply::Answered(_, None) => {}
    }
    for run in runs {
        row.runs += 1;
        add(&mut row, processes.below(run.pid));
    }
    row
}

fn add(row: &mut TopSandbox, sum: UsageSum) {
    row.processes += sum.count;
    row.cpu_us += sum.cpu_us;
    row.memory_bytes += sum.memory_bytes;
}

/// The processes of the host, each with its parent.
struct Processes(BTreeMap<u32, Process>);

struct Process {
    parent: u32,
    cpu_us: u64,
}

#[derive(Default)]
struct UsageSum {
    count: u64,
    cpu_us: u64,
    memory_bytes: u64,
}

impl Processes {
    fn read() -> Processes {
        let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten().take(MOST);
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Processes(numbers.filter_map(|pid| Some((pid, process(pid)?))).collect())
    }

    /// Sums the descendants of a process, without the process itself.
    fn below(&self, pid: u32) -> UsageSum {
        let mut sum = UsageSum::default();
        for (number, process) in &self.0 {
            if *number != pid && self.is_below(*number, pid) {
                sum.count += 1;
                sum.cpu_us += process.cpu_us;
                sum.memory_bytes += resident(*number).unwrap_or(0);
            }
        }
        sum
    }

    fn is_below(&self, mut pid: u32, above: u32) -> bool {
        // No chain of parents is longer than the number of processes.
        for _ in 0..=self.0.len() {
            match self.0.get(&pid) {
                Some(process) if process.parent == above => return true,
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    }
}

/// Reads a process, with the usage of its reaped children.
fn process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last bracket may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks: u64 = (11..15).filter_map(number).sum();
    Some(Process { parent: number(1)? as u32, cpu_us: ticks * TICK_US })
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

/// Returns the rows and columns of the terminal on standard output; none if it is no terminal.
pub fn size() -> Option<(usize, usize)> {
    let out = rustix::stdio::stdout();
    let (rows, columns) = rustix::termios::isatty(out).then(|| enclosure::terminal::size(out))?;
    Some((rows.into(), columns.into()))
}
