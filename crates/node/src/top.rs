//! What sandboxes use now: asked of keepers where sandboxes live, and of the kernel where a run has no keeper.

use crate::list;
use runtime::Node;
use runtime::keeper::client::{LISTING, silence};
use runtime::keeper::survey::{Reply, Subject, survey};
use runtime::keeper::wire::{self, Request, Used};
use serde::{Deserialize, Serialize};
use state::admission::Standing;
use state::sandbox::{Run, Sandbox};
use state::{Caller, State};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use store::Kept;
use terms::Fault;
use utoipa::ToSchema;
use workspace::disk_usage;

/// What a sandbox takes on the disk is walked for at most so often.
const WALKED: Duration = Duration::from_secs(10);
/// What the kernel counts processor time in for everybody outside of it: so many microseconds.
const TICK_US: u64 = 10_000;
/// Processes that are looked at.
const MOST: usize = 100_000;

/// One sandbox as it is now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TopRow)]
pub struct Row {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub state: Standing,
    /// A keeper holds it.
    pub live: bool,
    /// Which keeper did not answer, where its state is `silent`: figures are then what the kernel knows of its processes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    pub runs: u64,
    pub processes: u64,
    /// Processors' worth of time since the look before, in percent of one; none at the first look.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_percent: Option<f64>,
    pub cpu_us: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// None where nobody counts it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub net_bytes: Option<u64>,
}

/// All of them at one moment, the busiest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TopLook)]
pub struct Look {
    pub at_ms: u64,
    pub sandboxes: Vec<Row>,
}

/// Looks again and again.
#[derive(Default)]
pub struct Top {
    /// When each was looked at last, and what it had used by then.
    before: BTreeMap<String, (u64, u64)>,
    disk: BTreeMap<String, (Instant, u64)>,
}

impl Top {
    pub fn look(&mut self, node: &Node, caller: &Caller) -> Result<Look, Fault> {
        let state = node.states.open(caller)?;
        let (sandboxes, open) = state.store.read(|tx| Ok((tx.list::<Sandbox>()?, tx.list_open::<Run>()?)))?;
        let rows = list::list(node, caller, false)?;
        let listed: BTreeMap<&str, &list::Row> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        let sandboxes: Vec<&Kept<Sandbox>> =
            sandboxes.iter().filter(|kept| listed.contains_key(kept.id.as_str())).collect();
        let subjects: Vec<Subject> = sandboxes.iter().map(|kept| Subject::new(&state.path, &kept.id)).collect();
        let replies = survey(node, &subjects, Some(&Request::Usage), LISTING);
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
        Ok(self.compare(Look { at_ms: terms::clock::now_ms(), sandboxes: all }))
    }

    /// Adds to a look what was used since the one before, wherever it was taken.
    pub fn compare(&mut self, look: Look) -> Look {
        let Look { at_ms, sandboxes: mut all } = look;
        for row in &mut all {
            row.cpu_percent = self.percent(row, at_ms);
        }
        self.before.retain(|id, _| all.iter().any(|row| row.id == *id));
        let busy = |row: &Row| (row.cpu_percent.unwrap_or(0.0), row.memory_bytes);
        all.sort_by(|a, b| {
            let (a_busy, b_busy) = (busy(a), busy(b));
            b_busy.0.total_cmp(&a_busy.0).then(b_busy.1.cmp(&a_busy.1)).then_with(|| a.id.cmp(&b.id))
        });
        Look { at_ms, sandboxes: all }
    }

    fn percent(&mut self, row: &Row, now_ms: u64) -> Option<f64> {
        let (at, before) = self.before.insert(row.id.clone(), (now_ms, row.cpu_us))?;
        // A clock that was set back tells nothing.
        let passed = now_ms.saturating_sub(at) as f64 * 1000.0;
        // What began anew counts from nothing.
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

fn used(listed: &list::Row, reply: Reply, runs: &[&Run], processes: &Processes) -> Row {
    let mut row = Row {
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
    };
    let runs = runs.iter().filter(|run| state::process::handle(run).is_some());
    match reply {
        Reply::Answered(_, Some(frame)) => {
            if let Ok(now) = wire::read_answer::<Used>(&frame) {
                (row.live, row.runs, row.processes) = (true, now.running, now.processes);
                (row.cpu_us, row.memory_bytes, row.net_bytes) = (now.cpu_us, now.memory_bytes, Some(now.net_bytes));
                return row;
            }
        }
        Reply::Silent(card) => {
            (row.state, row.live, row.runs) = (Standing::Silent, true, runs.count() as u64);
            row.silent = Some(silence(&row.id, &card, LISTING));
            row.add(processes.below(card.pid));
            return row;
        }
        Reply::Absent | Reply::Refused(_) | Reply::Answered(_, None) => {}
    }
    for run in runs {
        row.runs += 1;
        row.add(processes.below(run.pid));
    }
    row
}

impl Row {
    fn add(&mut self, sum: Sum) {
        self.processes += sum.count;
        self.cpu_us += sum.cpu_us;
        self.memory_bytes += sum.memory_bytes;
    }
}

/// All processes of the host, each with its parent.
struct Processes(BTreeMap<u32, Process>);

struct Process {
    parent: u32,
    cpu_us: u64,
}

#[derive(Default)]
struct Sum {
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

    /// All that a process started, and what that started; without the process itself.
    fn below(&self, pid: u32) -> Sum {
        let mut sum = Sum::default();
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
        // No line of parents is longer than there are processes.
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

/// With what its children that are gone have used.
fn process(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last bracket may hold anything.
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

/// Rows and columns of the terminal that we write to, as it is now; none where that is none.
pub fn size() -> Option<(usize, usize)> {
    let out = rustix::stdio::stdout();
    let (rows, columns) = rustix::termios::isatty(out).then(|| enclosure::terminal::size(out))?;
    Some((rows.into(), columns.into()))
}
