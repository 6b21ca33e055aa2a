//! Limits: which of them this host can enforce, how each is set up, and when one has been exceeded. Control groups
//! enforce memory, processes and processor time; wall time, output, descriptors and private space need none.

mod layer;

use self::layer::Layer;
use crate::nameless::UnlinkedFileFinder;
use crate::workspace::{Gauge, TotalExceeded};
use policy::{Perms, Plan};
use rustix::fs::{FileType, OFlags};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::arena::Arena;
use sys::cgroup::{CgroupError, EventFd, Group, GroupSpec, Layout, Missing};
use sys::host::BoundedResource;
use sys::op::Op;
use sys::{core_dumps, host};
use terms::{ErrorKind, Fault, Limit, LimitHit, LimitKind, Limits, Phase, Usage};

/// Processors a guest may use at once; fractions are time shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpus(pub Option<f64>);

const PAGE: u64 = 4096;
/// Polling interval for figures without an event, where a limit depends on them.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Polling interval for the free space of a workspace's file system.
const FREE_SPACE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that the kernel may take to act on an event (OOM kill).
const EVENT_SETTLE_TIME: Duration = Duration::from_secs(2);
/// More tasks than any kernel can have.
const MOST_TASKS: u64 = 4_194_304;
/// The guest's pid 1, which is a task of the group too.
const PID1_TASKS: u64 = 1;

/// Drops the limits that the policy consents to run without and this host cannot enforce. Returns the rest, and the
/// names of those dropped.
pub fn give_up(limits: Limits, cpus: &Cpus, degrade: &[String], network: bool) -> (Limits, Vec<String>) {
    let (mut kept, mut missing) = (limits, Vec::new());
    let consents = |kind: LimitKind| degrade.iter().any(|name| name.strip_prefix("max_") == Some(kind.name()));
    if limits.max_net_bytes.is_some() && !network && consents(LimitKind::NetBytes) {
        kept.max_net_bytes = None;
        missing.push("max_net_bytes".to_string());
    }
    if limits.max_steps.is_some() && consents(LimitKind::Steps) {
        kept.max_steps = None;
        missing.push("max_steps".to_string());
    }
    while wants_group(&kept, cpus) {
        let probe = make_group(&layout(), "probe", &kept, cpus, false);
        let Some(kind) = probe.err().and_then(|fault| fault.limit_kind).filter(|kind| consents(*kind)) else { break };
        match kind {
            LimitKind::MemoryMb => kept.max_memory_mb = None,
            LimitKind::Processes => kept.max_processes = None,
            LimitKind::CpuMs => kept.max_cpu_ms = None,
            _ => break,
        }
        missing.push(format!("max_{}", kind.name()));
    }
    (kept, missing)
}

/// Refuses limits that no control group of this host can enforce, by creating one as a probe.
pub fn holds(limits: &Limits, cpus: &Cpus) -> Result<(), Fault> {
    match wants_group(limits, cpus) {
        true => make_group(&layout(), "probe", limits, cpus, false).map(drop),
        false => Ok(()),
    }
}

/// Refuses limits that this kind of run cannot enforce, before anything is created. Writes below `workspace` are
/// counted.
pub fn check(limits: &Limits, plan: &Plan, network: bool, workspace: Option<&Path>) -> Result<(), Fault> {
    if limits.max_net_bytes.is_some() && !network {
        return Err(unsupported(LimitKind::NetBytes, "the guest has no network, so bytes cannot be counted")
            .hint("leave max_net_bytes out"));
    }
    if limits.max_steps.is_some() {
        let fault = unsupported(LimitKind::Steps, "steps are counted for programs, not for commands");
        return Err(fault.hint("leave max_steps out; max_cpu_ms bounds what a command computes"));
    }
    for (kind, set) in
        [(LimitKind::DiskMb, limits.max_disk_mb.is_some()), (LimitKind::Files, limits.max_files.is_some())]
    {
        let of_host = |g: &&policy::Grant| workspace.is_none_or(|at| !g.path.starts_with(at));
        let grant = plan.grants.iter().filter(of_host).find(|g| !g.perms.and(Perms::CHANGES).is_empty());
        let asked = plan.asked.iter().find(|a| a.changes && workspace.is_none_or(|at| !a.path.starts_with(at)));
        let found = grant.map(|g| (&g.rule, &g.path)).or(asked.map(|a| (&a.rule, &a.path)));
        if let (true, Some((rule, path))) = (set, found) {
            let message = format!("{rule} allows writing {} on the host, where no quota applies", path.display());
            let hint = format!(
                "drop max_{} or the write grant; the guest's private /tmp is covered by the limit",
                kind.name()
            );
            return Err(unsupported(kind, &message).hint(hint));
        }
    }
    Ok(())
}

fn unsupported(kind: LimitKind, why: &str) -> Fault {
    Fault::new(ErrorKind::UnsupportedLimit, format!("max_{} cannot be enforced: {why}", kind.name()))
        .limit(kind)
        .phase(Phase::Admission)
}

fn bytes(megabytes: f64) -> u64 {
    // Capped above any machine's memory, so that the kernel's arithmetic does not overflow.
    (megabytes * 1_048_576.0).round().min((1u64 << 50) as f64) as u64
}

/// Rounds a limit up to whole pages. The tmpfs gets one page more, so that exceeding the limit is distinct from filling
/// it exactly.
fn pages(megabytes: f64) -> u64 {
    bytes(megabytes).div_ceil(PAGE)
}

pub fn scratch_options(limits: &Limits, ours: u64) -> String {
    let size = match limits.max_disk_mb {
        Some(mb) => (pages(mb) + 1) * PAGE,
        None => default_scratch_bytes(),
    };
    let entries = limits.max_files.map_or(DEFAULT_SCRATCH_INODES, |n| n.saturating_add(ours + 1).min(1 << 40));
    format!("mode=755,size={size},nr_inodes={entries}")
}

/// Inodes of the private space without a limit; each takes about a kilobyte of kernel memory.
const DEFAULT_SCRATCH_INODES: u64 = 1 << 20;

/// Default size of the private space. A tmpfs takes the machine's memory: a quarter of that, and at most four
/// gigabytes, leaves enough for the host whatever a guest writes.
fn default_scratch_bytes() -> u64 {
    const MOST: u64 = 4 << 30;
    let memory = host::kernel_file("/proc/meminfo").as_deref().and_then(total_kb).map_or(MOST, |kb| kb * 1024);
    (memory / 4).min(MOST).div_ceil(PAGE) * PAGE
}

fn total_kb(meminfo: &str) -> Option<u64> {
    meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
}

/// Returns `/proc/meminfo` for a guest under a memory limit.
pub fn memory_file(limits: &Limits) -> Option<Vec<u8>> {
    let limit_kb = bytes(limits.max_memory_mb?) / 1024;
    let host = host::kernel_file("/proc/meminfo")?;
    let shown = limit_kb.min(total_kb(&host)?);
    let lines = host.lines().filter_map(|line| {
        let name = line.split(':').next()?;
        let value = match name {
            "MemTotal" | "MemFree" | "MemAvailable" => shown,
            "SwapTotal" | "SwapFree" | "SwapCached" | "Buffers" | "Cached" | "Shmem" | "Active" | "Inactive" => 0,
            _ => return None,
        };
        Some(format!("{:<16}{value:>8} kB\n", format!("{name}:")))
    });
    Some(lines.collect::<String>().into_bytes())
}

/// Returns the limit on descriptors. A tighter RLIMIT_NOFILE of the caller takes precedence.
pub fn open_files(wanted: u64) -> u64 {
    let ours = host::bound(BoundedResource::OpenFiles).maximum;
    ours.map_or(wanted, |ours| wanted.min(ours))
}

/// Returns settings for the guest's user namespace. Its inotify watches count against the caller as well, so each limit
/// is half of the host's: the caller's editors and servers need the rest.
pub fn shared_caps() -> Vec<(&'static str, u64)> {
    let read = |path: &str| host::kernel_file(path)?.trim().parse::<u64>().ok();
    let half = |name: &'static str, host: &str| Some((name, read(host)? / 2));
    [
        half("max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"),
        half("max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the limits that the guest's first process sets on itself.
pub fn ops(cpus: &Cpus, arena: &Arena) -> Vec<Op> {
    const CORE: u32 = 4;
    let mut ops = vec![Op::Rlimit { resource: CORE, name: "core", value: core_dumps::limit() }];
    // Pending signals and POSIX queues count against the caller too, who keeps half.
    for (what, resource, name) in
        [(BoundedResource::PendingSignals, 11, "pending-signals"), (BoundedResource::QueueBytes, 12, "queue-bytes")]
    {
        if let Some(most) = host::bound(what).current {
            ops.push(Op::Rlimit { resource, name, value: most / 2 });
        }
    }
    if let Some(mask) = cpus.0.and_then(processor_mask) {
        ops.push(Op::CpuAffinity { mask: arena.list(&mask) });
    }
    ops
}

/// Returns a mask of the first `cpus` processors in our own affinity mask.
fn processor_mask(cpus: f64) -> Option<Vec<u64>> {
    let ours = rustix::thread::sched_getaffinity(None).ok()?;
    let wanted = cpus.ceil().max(1.0) as usize;
    let mut mask = vec![0u64; rustix::thread::CpuSet::MAX_CPU / 64];
    let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu));
    usable.take(wanted).for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
    Some(mask)
}

/// Returns the controllers that the limits need.
fn wants(limits: &Limits, cpus: &Cpus) -> GroupSpec {
    GroupSpec {
        memory_bytes: limits.max_memory_mb.map(bytes),
        pids: limits.max_processes.map(|n| n.saturating_add(PID1_TASKS).min(MOST_TASKS)),
        cpu_quota: cpus.0,
        cpu_usage: limits.max_cpu_ms.is_some(),
        cpus: None,
        kill: false,
        survives: false,
    }
}

/// True when any limit needs a control group.
pub fn wants_group(limits: &Limits, cpus: &Cpus) -> bool {
    wants(limits, cpus) != GroupSpec::default()
}

/// Returns the paths of the groups that `make_group` will create.
pub fn group_paths(layout: &Layout, run: &str, limits: &Limits, cpus: &Cpus) -> Result<Vec<PathBuf>, Fault> {
    Group::paths_of(layout, run, &wants(limits, cpus)).map_err(group_fault)
}

/// Creates the groups that the limits need. With `survives`, an OOM kill takes one process and not the whole group.
pub fn make_group(layout: &Layout, run: &str, limits: &Limits, cpus: &Cpus, survives: bool) -> Result<Group, Fault> {
    Group::create(layout, run, &GroupSpec { survives, ..wants(limits, cpus) }).map_err(group_fault)
}

pub fn layout() -> Layout {
    Layout::detect(Path::new("/"))
}

fn group_fault(error: CgroupError) -> Fault {
    match error {
        CgroupError::Missing(Missing { limit, reason, fix }) => {
            let fault = match limit {
                "memory_mb" => unsupported(LimitKind::MemoryMb, &reason),
                "processes" => unsupported(LimitKind::Processes, &reason),
                "cpu_ms" => unsupported(LimitKind::CpuMs, &reason),
                other => {
                    let message = format!("--{other} cannot be enforced: {reason}");
                    Fault::new(ErrorKind::UnsupportedLimit, message).phase(Phase::Admission)
                }
            };
            match fix {
                Some(fix) => fault.hint(fix),
                None => fault,
            }
        }
        other => Fault::internal(other.to_string()).phase(Phase::Preparation),
    }
}

/// Measures the resources of one run against its limits.
pub struct Meter<'a> {
    limits: Limits,
    layer: RefCell<Layer<'a>>,
    group: Option<Group>,
    pub events: Vec<EventFd>,
    started: Instant,
    cpu_before: u64,
    scratch: Option<TmpfsUsage>,
    event_at: Option<Instant>,
    /// Counts of a resident guest from before the present commands.
    before: InitialUsage,
    /// Peak of the space in use since the command, or the first of several, started.
    peak_bytes: Cell<u64>,
}

#[derive(Clone, Copy, Default)]
struct InitialUsage {
    bytes: u64,
    entries: u64,
    pids_denied: u64,
}

/// The limited private space, for judging fallocate(2).
pub struct ScratchSpace {
    handle: OwnedFd,
    pages_before: u64,
    limit_mb: f64,
}

impl ScratchSpace {
    /// Returns the limit that reserving this range of a file would exceed. Errs on the side of `None`: as many pages of
    /// the range as the file has may be allocated already.
    pub fn refuses(&self, file: &OwnedFd, offset: u64, length: u64) -> Option<LimitHit> {
        let (own, found) = (rustix::fs::fstat(&self.handle).ok()?, rustix::fs::fstat(file).ok()?);
        let writes = rustix::fs::fcntl_getfl(file).ok()?.intersects(OFlags::WRONLY | OFlags::RDWR);
        if found.st_dev != own.st_dev || !FileType::from_raw_mode(found.st_mode).is_file() || !writes {
            return None;
        }
        let range = offset.checked_add(length)?.div_ceil(PAGE) - offset / PAGE;
        let new = range.saturating_sub(found.st_blocks as u64 * 512 / PAGE);
        let used = used_space(&self.handle)?.0.saturating_sub(self.pages_before);
        let wanted = Limit::Megabytes((used.saturating_add(new)) as f64 * PAGE as f64 / 1_048_576.0);
        let over = new > 0 && used.saturating_add(new) > pages(self.limit_mb);
        over.then(|| hit(LimitKind::DiskMb, Limit::Megabytes(self.limit_mb), wanted))
    }
}

struct TmpfsUsage {
    handle: OwnedFd,
    pages_before: u64,
    entries_before: u64,
}

impl<'a> Meter<'a> {
    pub fn new(limits: Limits, group: Option<Group>) -> Meter<'a> {
        let events = group.as_ref().map(Group::events).unwrap_or_default();
        let started = Instant::now();
        let layer = RefCell::default();
        let before = InitialUsage::default();
        let peak_bytes = Cell::new(0);
        Meter {
            limits,
            layer,
            group,
            events,
            started,
            cpu_before: 0,
            scratch: None,
            event_at: None,
            before,
            peak_bytes,
        }
    }

    /// Sets the gauge of the workspace.
    pub fn watch(&mut self, gauge: Option<Box<dyn Gauge + 'a>>) {
        self.layer = RefCell::new(Layer::of(gauge));
    }

    /// Starts the accounts; use up to here was the setup's.
    pub fn start(&mut self, scratch: Option<OwnedFd>) {
        self.started = Instant::now();
        self.peak_bytes.set(0);
        self.cpu_before = self.cpu_us().unwrap_or(0);
        self.scratch = scratch.and_then(|handle| {
            let (pages_before, entries_before) = used_space(&handle)?;
            Some(TmpfsUsage { handle, pages_before, entries_before })
        });
    }

    /// Restarts the accounts of a resident guest that was idle. Space above the limit is kept as the baseline: it may
    /// shrink, and must not grow.
    pub fn start_anew(&mut self) {
        self.started = Instant::now();
        self.cpu_before = self.cpu_us().unwrap_or(0);
        self.peak_bytes.set(0);
        let (bytes, entries) = if self.limits_space() { self.space_used() } else { (0, 0) };
        let pids_denied = self.group.as_ref().map_or(0, Group::pids_denied);
        self.before = InitialUsage { bytes, entries, pids_denied };
    }

    /// Includes unlinked files of these trees in the count, where a limit bounds the workspace. Scanning for them costs
    /// time that runs without such a limit are spared.
    pub fn count_nameless(&mut self, first: i32, trees: &[&Path]) {
        let layer = self.layer.get_mut();
        if (self.limits.max_disk_mb.is_some() || self.limits.max_files.is_some() || layer.shares())
            && let Some(files) = UnlinkedFileFinder::of(first, trees)
        {
            layer.count_nameless(files);
        }
    }

    /// Measures the workspace where no limit needs it, for reports only; no caller waits for the result.
    pub fn look_at_space(&self) {
        if !self.limits_space() {
            self.layer.borrow_mut().used();
        }
    }

    fn limits_space(&self) -> bool {
        self.limits.max_disk_mb.is_some() || self.limits.max_files.is_some()
    }

    /// Raises the limit on tasks by the number of the supervisor's own tasks among the guest's.
    pub fn admit_ours(&self, ours: u64) {
        if let (Some(most), Some(group)) = (self.limits.max_processes, &self.group) {
            // Fails only where the group is gone, and the guest with it.
            let _ = group.allow_pids(most.saturating_add(ours).min(MOST_TASKS));
        }
    }

    /// Changes memory, process and processor limits of a live guest. False where it was created without the controllers
    /// for them.
    pub fn change(&mut self, limits: &Limits, cpus: &Cpus, ours: u64) -> Result<bool, Fault> {
        let wanted =
            Limits { max_memory_mb: limits.max_memory_mb, max_processes: limits.max_processes, ..Limits::default() };
        let want = GroupSpec { survives: true, ..wants(&wanted, cpus) };
        let Some(group) = &self.group else { return Ok(!wants_group(&wanted, cpus)) };
        let failed = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Conflict, format!("the limit cannot be changed now: {e}"));
            fault.hint("the new limit is below the memory in use; end a command first").phase(Phase::Execution)
        };
        if !group.change(&want).map_err(failed)? {
            return Ok(false);
        }
        (self.limits.max_memory_mb, self.limits.max_processes) = (limits.max_memory_mb, limits.max_processes);
        self.admit_ours(ours);
        Ok(true)
    }

    /// Returns the private space for judging fallocate(2).
    pub fn scratch_space(&self) -> Option<ScratchSpace> {
        let scratch = self.scratch.as_ref()?;
        let handle = scratch.handle.try_clone().ok()?;
        Some(ScratchSpace { handle, pages_before: scratch.pages_before, limit_mb: self.limits.max_disk_mb? })
    }

    /// Records a cgroup event: a limit was met, or is about to be.
    pub fn note_event(&mut self) {
        self.event_at = Some(Instant::now());
    }

    fn cpu_us(&self) -> Option<u64> {
        self.group.as_ref()?.cpu_us()
    }

    fn cpu_spent_ms(&self) -> Option<u64> {
        Some(self.cpu_us()?.saturating_sub(self.cpu_before) / 1000)
    }

    /// Returns the deadline of the next check.
    pub fn next_look(&self) -> Option<Instant> {
        let now = Instant::now();
        let wall = self.limits.max_wall_ms.map(|ms| self.started + Duration::from_millis(ms.saturating_add(1)));
        // Space raises no event, and neither does a full pids group on cgroup v1. The event of an exhausted memory
        // group comes before the OOM kill, so it is followed by polling for a while.
        let settling = self.event_at.is_some_and(|at| at.elapsed() < EVENT_SETTLE_TIME);
        let polled = [
            settling,
            self.limits.max_disk_mb.is_some(),
            self.limits.max_files.is_some(),
            self.limits.max_processes.is_some(),
        ];
        let layer = self.layer.borrow().is_watched().then_some(now + FREE_SPACE_POLL_INTERVAL);
        let space = polled.contains(&true).then_some(now + POLL_INTERVAL).or(layer);
        let cpu = self.limits.max_cpu_ms.and_then(|ms| {
            let left = ms.saturating_sub(self.cpu_spent_ms()?);
            let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
            Some(now + Duration::from_millis((left / cpus).max(1)))
        });
        [wall, space, cpu].into_iter().flatten().min()
    }

    /// Returns the first limit that is exceeded.
    pub fn exceeded(&self) -> Option<LimitHit> {
        self.memory_met().or_else(|| self.exceeded_beside_memory())
    }

    /// Returns the first limit that is exceeded, memory excluded: for guests in which an OOM kill ends one process and
    /// not all.
    pub fn exceeded_beside_memory(&self) -> Option<LimitHit> {
        self.processes_met().or_else(|| self.time_met()).or_else(|| self.space_met())
    }

    /// Returns the number of OOM kills.
    pub fn memory_kills(&self) -> u64 {
        self.limits.max_memory_mb.and(self.group.as_ref()).map_or(0, Group::oom_kills)
    }

    fn time_met(&self) -> Option<LimitHit> {
        let wall = || count_over(LimitKind::WallMs, self.limits.max_wall_ms?, self.wall_ms());
        let cpu = || count_over(LimitKind::CpuMs, self.limits.max_cpu_ms?, self.cpu_spent_ms()?);
        wall().or_else(cpu)
    }

    fn space_met(&self) -> Option<LimitHit> {
        if let Some((used, most)) = self.layer.borrow().overfull() {
            return Some(hit(LimitKind::DiskMb, megabytes(most), megabytes(used)));
        }
        if let Some(TotalExceeded { kind, used, most }) = self.layer.borrow_mut().crowded() {
            let amount = |n| if kind == LimitKind::TotalFiles { Limit::Count(n) } else { megabytes(n) };
            return Some(hit(kind, amount(most), amount(used)));
        }
        if !self.limits_space() {
            return None;
        }
        let (used, entries) = self.space_used();
        let (bytes_before, before) = self.layer.borrow().before();
        let (bytes_before, before) = (bytes_before.max(self.before.bytes), before.max(self.before.entries));
        let disk = || {
            let limit = self.limits.max_disk_mb?;
            let over = used > (pages(limit) * PAGE).max(bytes_before);
            over.then(|| hit(LimitKind::DiskMb, Limit::Megabytes(limit), megabytes(used)))
        };
        let files = || count_over(LimitKind::Files, self.limits.max_files?, entries).filter(|_| entries > before);
        disk().or_else(files)
    }

    /// Returns the guest's bytes and entries, in its private space and its workspace.
    fn space_used(&self) -> (u64, u64) {
        let (pages, entries) = self.space().unwrap_or_default();
        let (bytes_kept, kept) = self.layer.borrow_mut().used();
        let bytes = pages * PAGE + bytes_kept;
        self.peak_bytes.set(self.peak_bytes.get().max(bytes));
        (bytes, entries + kept)
    }

    /// True when the file system of the workspace is full, rather than the guest's limit exceeded.
    pub fn is_overfull(&self) -> bool {
        self.layer.borrow().overfull().is_some()
    }

    /// Measures the workspace completely after the run's end.
    pub fn close_accounts(&self) {
        if self.limits_space() {
            self.layer.borrow_mut().finish();
        }
    }

    /// Measures the workspace after one command of a resident guest.
    pub fn close_command_accounts(&self) {
        if self.limits_space() {
            self.layer.borrow_mut().finish_command();
        }
    }

    fn memory_met(&self) -> Option<LimitHit> {
        (self.memory_kills() > 0).then(|| self.memory_hit()).flatten()
    }

    /// Returns the limit hit that an OOM kill is reported as.
    pub fn memory_hit(&self) -> Option<LimitHit> {
        let (limit, group) = (self.limits.max_memory_mb?, self.group.as_ref()?);
        let peak = group.usage().memory_peak.map_or(limit, |b| b as f64 / 1_048_576.0).max(limit);
        Some(hit(LimitKind::MemoryMb, Limit::Megabytes(limit), Limit::Megabytes(peak)))
    }

    fn processes_met(&self) -> Option<LimitHit> {
        let limit = self.limits.max_processes?;
        if self.group.as_ref()?.pids_denied() <= self.before.pids_denied {
            return None;
        }
        // The refused fork would have been one more than the limit.
        Some(hit(LimitKind::Processes, Limit::Count(limit), Limit::Count(limit + 1)))
    }

    fn wall_ms(&self) -> u64 {
        // Whole milliseconds, so that a run that ends exactly at the limit succeeds.
        self.started.elapsed().as_millis() as u64
    }

    /// Returns the pages and entries that the guest has created in its private space.
    fn space(&self) -> Option<(u64, u64)> {
        let scratch = self.scratch.as_ref()?;
        let (pages, entries) = used_space(&scratch.handle)?;
        Some((pages.saturating_sub(scratch.pages_before), entries.saturating_sub(scratch.entries_before)))
    }

    /// Kills the whole group (`cgroup.kill`), where the kernel supports it.
    pub fn kill(&self) {
        if let Some(group) = &self.group {
            let _ = group.kill();
        }
    }

    /// Returns the final figures. `cpu_us` and `max_rss_kb` are pid 1's own account, for hosts without control groups.
    pub fn usage(&self, cpu_us: u64, max_rss_kb: u64) -> Usage {
        let figures = self.group.as_ref().map(Group::usage).unwrap_or_default();
        Usage {
            wall_ms: self.wall_ms(),
            cpu_ms: figures.cpu_us.map_or(cpu_us, |us| us.saturating_sub(self.cpu_before)) / 1000,
            memory_peak_bytes: figures.memory_peak.unwrap_or(max_rss_kb * 1024),
            disk_bytes: self.disk_peak_bytes(),
            processes_peak: figures.pids_peak.map(|n| n.saturating_sub(PID1_TASKS)),
            ..Usage::default()
        }
    }

    /// Returns the group's present figures, as far as its controllers have them.
    pub fn figures(&self) -> sys::cgroup::Usage {
        self.group.as_ref().map(Group::usage).unwrap_or_default()
    }

    /// Returns the bytes in the private space plus the last measurement of the workspace.
    pub fn disk_bytes(&self) -> u64 {
        self.space().map_or(0, |(pages, _)| pages * PAGE) + self.layer.borrow().last.0
    }

    /// Returns the highest measurement of those bytes.
    pub fn disk_peak_bytes(&self) -> u64 {
        self.disk_bytes().max(self.peak_bytes.get())
    }

    /// Returns the group, where it can be frozen (cgroup v2).
    pub fn freezer(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| group.v2_dir_fd().is_some())
    }

    /// Removes the control groups.
    pub fn close(&mut self) {
        if let Some(group) = self.group.take() {
            let _ = group.remove();
        }
    }
}

fn megabytes(bytes: u64) -> Limit {
    Limit::Megabytes(bytes as f64 / 1_048_576.0)
}

fn hit(kind: LimitKind, limit: Limit, used: Limit) -> LimitHit {
    LimitHit { kind, phase: Phase::Execution, limit, used }
}

fn count_over(kind: LimitKind, limit: u64, used: u64) -> Option<LimitHit> {
    (used > limit).then(|| hit(kind, Limit::Count(limit), Limit::Count(used)))
}

fn used_space(handle: &OwnedFd) -> Option<(u64, u64)> {
    let s = rustix::fs::fstatvfs(handle).ok()?;
    Some((s.f_blocks - s.f_bfree, s.f_files - s.f_ffree))
}
