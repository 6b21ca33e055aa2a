//! Limits: which can hold here, how each is set up, and when one has been met.
//! Memory, processes and processor time are held by control groups; the clock, output, descriptors and the private
//! space need none.

mod layer;

use self::layer::Layer;
use crate::nameless::Nameless;
use crate::workspace::{Crowd, Gauge};
use policy::{Perms, Plan};
use rustix::fs::{FileType, OFlags};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::cgroup::{CgroupError, EventFd, Group, Layout, Missing, Want};
use sys::host::Bounded;
use sys::op::Op;
use sys::{arena, core_dumps, host};
use terms::{ErrorKind, Fault, Limit, LimitHit, LimitKind, Limits, Phase, Usage};

/// Processors a guest may use at once; fractions are time shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpus(pub Option<f64>);

const PAGE: u64 = 4096;
/// How often figures that raise no event are looked at, when a limit depends on them.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same for the room that is left on the file system of a workspace.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(200);
/// How long after an event the kernel may take to act on it.
const SETTLES: Duration = Duration::from_secs(2);
/// More tasks than any kernel can have.
const MOST_TASKS: u64 = 4_194_304;
/// The guest's pid 1 is a task of the group too.
const OURS: u64 = 1;

/// Gives up the limits that the policy can do without and this host cannot hold. What was given up is told.
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

/// Refuses limits that no control group of this host can hold; found out by making one, and removing it.
pub fn holds(limits: &Limits, cpus: &Cpus) -> Result<(), Fault> {
    match wants_group(limits, cpus) {
        true => make_group(&layout(), "probe", limits, cpus, false).map(drop),
        false => Ok(()),
    }
}

/// Refuses limits that this kind of run cannot hold, before anything is made. What is written below `workspace` is counted.
pub fn check(limits: &Limits, plan: &Plan, network: bool, workspace: Option<&Path>) -> Result<(), Fault> {
    if limits.max_net_bytes.is_some() && !network {
        return Err(
            unsupported(LimitKind::NetBytes, "the guest has no network to count").hint("leave max_net_bytes out")
        );
    }
    if limits.max_steps.is_some() {
        let fault = unsupported(LimitKind::Steps, "commands are not counted in steps; programs are");
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
            let message = format!("{rule} lets {} be written on the host, which has no quota", path.display());
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
    // Larger than any machine; the kernel's own arithmetic must not overflow.
    (megabytes * 1_048_576.0).round().min((1u64 << 50) as f64) as u64
}

/// One page more than allowed, so that going over shows instead of looking like being exactly full.
fn pages(megabytes: f64) -> u64 {
    bytes(megabytes).div_ceil(PAGE)
}

pub fn scratch_options(limits: &Limits, ours: u64) -> String {
    let size = match limits.max_disk_mb {
        Some(mb) => (pages(mb) + 1) * PAGE,
        None => unasked_scratch(),
    };
    let entries = limits.max_files.map_or(UNASKED_ENTRIES, |n| n.saturating_add(ours + 1).min(1 << 40));
    format!("mode=755,size={size},nr_inodes={entries}")
}

/// Entries of the private space where no limit says otherwise; each takes about a kilobyte of the kernel's memory.
const UNASKED_ENTRIES: u64 = 1 << 20;

/// What the private space may take where no limit says otherwise. It is memory, and the machine's: a quarter of that, and
/// no more than four gigabytes, leaves the host standing whatever a guest writes.
fn unasked_scratch() -> u64 {
    const MOST: u64 = 4 << 30;
    let memory = host::kernel_file("/proc/meminfo").as_deref().and_then(total_kb).map_or(MOST, |kb| kb * 1024);
    (memory / 4).min(MOST).div_ceil(PAGE) * PAGE
}

fn total_kb(meminfo: &str) -> Option<u64> {
    meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
}

/// `/proc/meminfo` as a guest under a memory limit should see it.
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

/// Where the caller's own limit is tighter, that one holds already and nothing can go over ours.
pub fn open_files(wanted: u64) -> u64 {
    let ours = host::bound(Bounded::OpenFiles).maximum;
    ours.map_or(wanted, |ours| wanted.min(ours))
}

/// Settings of the guest's own user namespace. What it watches is counted against the caller as well, whose editors
/// and servers must not be left without.
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

/// The steps that the guest takes on itself.
pub fn ops(cpus: &Cpus) -> Vec<Op> {
    const CORE: u32 = 4;
    let mut ops = vec![Op::Rlimit { resource: CORE, name: "core", value: core_dumps::limit() }];
    // Signals and queues in flight are counted against the caller too, who must keep some.
    for (what, resource, name) in
        [(Bounded::PendingSignals, 11, "pending-signals"), (Bounded::QueueBytes, 12, "queue-bytes")]
    {
        if let Some(most) = host::bound(what).current {
            ops.push(Op::Rlimit { resource, name, value: most / 2 });
        }
    }
    if let Some(mask) = cpus.0.and_then(processor_mask) {
        ops.push(Op::Processors { mask: arena::list(&mask) });
    }
    ops
}

/// The first so many of the processors we may use ourselves.
fn processor_mask(cpus: f64) -> Option<Vec<u64>> {
    let ours = rustix::thread::sched_getaffinity(None).ok()?;
    let wanted = cpus.ceil().max(1.0) as usize;
    let mut mask = vec![0u64; rustix::thread::CpuSet::MAX_CPU / 64];
    let usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu));
    usable.take(wanted).for_each(|cpu| mask[cpu / 64] |= 1 << (cpu % 64));
    Some(mask)
}

/// What the run's groups must hold, and what they would merely be good to have for.
fn wants(limits: &Limits, cpus: &Cpus) -> Want {
    Want {
        memory_bytes: limits.max_memory_mb.map(bytes),
        pids: limits.max_processes.map(|n| n.saturating_add(OURS).min(MOST_TASKS)),
        cpu_quota: cpus.0,
        cpu_usage: limits.max_cpu_ms.is_some(),
        cpus: None,
        kill: false,
        survives: false,
    }
}

/// Whether any limit needs a group.
pub fn wants_group(limits: &Limits, cpus: &Cpus) -> bool {
    wants(limits, cpus) != Want::default()
}

/// Makes the groups that the limits need; none where none is needed.
/// Where `make_group` will make it.
pub fn group_paths(layout: &Layout, run: &str, limits: &Limits, cpus: &Cpus) -> Result<Vec<PathBuf>, Fault> {
    Group::paths_of(layout, run, &wants(limits, cpus)).map_err(group_fault)
}

/// One that `survives` stands when one of its processes is lost to memory.
pub fn make_group(layout: &Layout, run: &str, limits: &Limits, cpus: &Cpus, survives: bool) -> Result<Group, Fault> {
    Group::create(layout, run, &Want { survives, ..wants(limits, cpus) }).map_err(group_fault)
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

/// Watches the figures of one run.
pub struct Meter<'a> {
    limits: Limits,
    layer: RefCell<Layer<'a>>,
    group: Option<Group>,
    pub events: Vec<EventFd>,
    started: Instant,
    cpu_before: u64,
    scratch: Option<Scratch>,
    event_at: Option<Instant>,
    /// What was counted, in a guest that stays, before what runs now began.
    before: Before,
    /// The most space that was seen to be taken, since the command or the first of several began.
    peak_bytes: Cell<u64>,
}

#[derive(Clone, Copy, Default)]
struct Before {
    bytes: u64,
    entries: u64,
    pids_denied: u64,
}

/// The private space under a limit, as the calls that reserve some of it are judged.
pub struct Room {
    handle: OwnedFd,
    pages_before: u64,
    limit_mb: f64,
}

impl Room {
    /// The limit that a call met which reserves these bytes of a file. Told only where it is sure: as much of the range as
    /// the file has pages may be there already.
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

struct Scratch {
    handle: OwnedFd,
    pages_before: u64,
    entries_before: u64,
}

impl<'a> Meter<'a> {
    pub fn new(limits: Limits, group: Option<Group>) -> Meter<'a> {
        let events = group.as_ref().map(Group::events).unwrap_or_default();
        let started = Instant::now();
        let layer = RefCell::default();
        let before = Before::default();
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

    /// There is a workspace to be counted.
    pub fn watch(&mut self, gauge: Option<Box<dyn Gauge + 'a>>) {
        self.layer = RefCell::new(Layer::of(gauge));
    }

    /// The command is about to run: what was used up to here is ours.
    pub fn start(&mut self, scratch: Option<OwnedFd>) {
        self.started = Instant::now();
        self.peak_bytes.set(0);
        self.cpu_before = self.cpu_us().unwrap_or(0);
        self.scratch = scratch.and_then(|handle| {
            let (pages_before, entries_before) = used_space(&handle)?;
            Some(Scratch { handle, pages_before, entries_before })
        });
    }

    /// In a guest that stays and stood idle: what was used up to here counts no more. Who holds more of a space than he may
    /// can make it less, and not more.
    pub fn start_anew(&mut self) {
        self.started = Instant::now();
        self.cpu_before = self.cpu_us().unwrap_or(0);
        self.peak_bytes.set(0);
        let (bytes, entries) = if self.limits_space() { self.space_used() } else { (0, 0) };
        let pids_denied = self.group.as_ref().map_or(0, Group::pids_denied);
        self.before = Before { bytes, entries, pids_denied };
    }

    /// Files without a name count too, where anything bounds what the workspace takes. Looking for them costs time that runs
    /// without such a bound need not pay.
    pub fn count_nameless(&mut self, first: i32, workspace: &Path) {
        let layer = self.layer.get_mut();
        if (self.limits.max_disk_mb.is_some() || self.limits.max_files.is_some() || layer.shares())
            && let Some(files) = Nameless::of(first, workspace)
        {
            layer.count_nameless(files);
        }
    }

    /// What the workspace takes is looked at where no limit needs it, so that it can be told; nobody waits for this.
    pub fn look_at_space(&self) {
        if !self.limits_space() {
            self.layer.borrow_mut().used();
        }
    }

    fn limits_space(&self) -> bool {
        self.limits.max_disk_mb.is_some() || self.limits.max_files.is_some()
    }

    /// So many tasks of ours are among the guest's.
    pub fn admit_ours(&self, ours: u64) {
        if let (Some(most), Some(group)) = (self.limits.max_processes, &self.group) {
            // Fails only where the group is gone, and then so is the guest.
            let _ = group.allow_pids(most.saturating_add(ours).min(MOST_TASKS));
        }
    }

    /// Other limits on memory and processes, and other processors, for a guest that stands. False where it was made without
    /// what holds them.
    pub fn change(&mut self, limits: &Limits, cpus: &Cpus, ours: u64) -> Result<bool, Fault> {
        let wanted =
            Limits { max_memory_mb: limits.max_memory_mb, max_processes: limits.max_processes, ..Limits::default() };
        let want = Want { survives: true, ..wants(&wanted, cpus) };
        let Some(group) = &self.group else { return Ok(!wants_group(&wanted, cpus)) };
        let failed = |e: std::io::Error| {
            let fault = Fault::new(ErrorKind::Conflict, format!("the limit cannot be changed now: {e}"));
            fault.hint("less memory than is in use cannot be set; end something first").phase(Phase::Execution)
        };
        if !group.change(&want).map_err(failed)? {
            return Ok(false);
        }
        (self.limits.max_memory_mb, self.limits.max_processes) = (limits.max_memory_mb, limits.max_processes);
        self.admit_ours(ours);
        Ok(true)
    }

    /// What calls that reserve space are judged by.
    pub fn room(&self) -> Option<Room> {
        let scratch = self.scratch.as_ref()?;
        let handle = scratch.handle.try_clone().ok()?;
        Some(Room { handle, pages_before: scratch.pages_before, limit_mb: self.limits.max_disk_mb? })
    }

    /// A group met a limit, or is about to.
    pub fn note_event(&mut self) {
        self.event_at = Some(Instant::now());
    }

    fn cpu_us(&self) -> Option<u64> {
        self.group.as_ref()?.cpu_us()
    }

    fn cpu_spent_ms(&self) -> Option<u64> {
        Some(self.cpu_us()?.saturating_sub(self.cpu_before) / 1000)
    }

    /// When to look next, at the latest.
    pub fn next_look(&self) -> Option<Instant> {
        let now = Instant::now();
        let wall = self.limits.max_wall_ms.map(|ms| self.started + Duration::from_millis(ms.saturating_add(1)));
        // Space raises no event, and neither does a full group of tasks on version 1 of control groups.
        // An event tells that memory ran out before the kernel has chosen what to kill: look again for a while.
        let settling = self.event_at.is_some_and(|at| at.elapsed() < SETTLES);
        let polled = [
            settling,
            self.limits.max_disk_mb.is_some(),
            self.limits.max_files.is_some(),
            self.limits.max_processes.is_some(),
        ];
        let layer = self.layer.borrow().is_watched().then_some(now + LOOK_FOR_ROOM_EVERY);
        let space = polled.contains(&true).then_some(now + LOOK_EVERY).or(layer);
        let cpu = self.limits.max_cpu_ms.and_then(|ms| {
            let left = ms.saturating_sub(self.cpu_spent_ms()?);
            let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
            Some(now + Duration::from_millis((left / cpus).max(1)))
        });
        [wall, space, cpu].into_iter().flatten().min()
    }

    /// The limit that has been gone over, if any.
    pub fn exceeded(&self) -> Option<LimitHit> {
        self.memory_met().or_else(|| self.exceeded_beside_memory())
    }

    /// The same where the end of one process is not the end of all.
    pub fn exceeded_beside_memory(&self) -> Option<LimitHit> {
        self.processes_met().or_else(|| self.time_met()).or_else(|| self.space_met())
    }

    /// Processes that were lost to memory.
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
        if let Some(Crowd { kind, used, most }) = self.layer.borrow_mut().crowded() {
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

    /// Bytes and entries of the guest's own, in its private space and its workspace.
    fn space_used(&self) -> (u64, u64) {
        let (pages, entries) = self.space().unwrap_or_default();
        let (bytes_kept, kept) = self.layer.borrow_mut().used();
        let bytes = pages * PAGE + bytes_kept;
        self.peak_bytes.set(self.peak_bytes.get().max(bytes));
        (bytes, entries + kept)
    }

    /// Whether it was not the allowance that was met, but the end of the file system that holds the workspace.
    pub fn is_overfull(&self) -> bool {
        self.layer.borrow().overfull().is_some()
    }

    /// All is over: what a workspace takes is measured to the end now.
    pub fn close_accounts(&self) {
        if self.limits_space() {
            self.layer.borrow_mut().finish();
        }
    }

    fn memory_met(&self) -> Option<LimitHit> {
        (self.memory_kills() > 0).then(|| self.memory_hit()).flatten()
    }

    /// What memory that was used up is told as.
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
        // One more was asked for than there is room; that one is what was refused.
        Some(hit(LimitKind::Processes, Limit::Count(limit), Limit::Count(limit + 1)))
    }

    fn wall_ms(&self) -> u64 {
        // Over the limit only once a whole millisecond past it, so that exactly at the limit succeeds.
        self.started.elapsed().as_millis() as u64
    }

    /// Pages and entries the guest has made in its private space.
    fn space(&self) -> Option<(u64, u64)> {
        let scratch = self.scratch.as_ref()?;
        let (pages, entries) = used_space(&scratch.handle)?;
        Some((pages.saturating_sub(scratch.pages_before), entries.saturating_sub(scratch.entries_before)))
    }

    /// Ends everything in the group at once, where that is possible.
    pub fn kill(&self) {
        if let Some(group) = &self.group {
            let _ = group.kill();
        }
    }

    /// The figures at the end. `cpu_us` and `max_rss_kb` are pid 1's own account, for hosts without groups.
    pub fn usage(&self, cpu_us: u64, max_rss_kb: u64) -> Usage {
        let figures = self.group.as_ref().map(Group::usage).unwrap_or_default();
        Usage {
            wall_ms: self.wall_ms(),
            cpu_ms: figures.cpu_us.map_or(cpu_us, |us| us.saturating_sub(self.cpu_before)) / 1000,
            memory_peak_bytes: figures.memory_peak.unwrap_or(max_rss_kb * 1024),
            disk_bytes: self.disk_peak_bytes(),
            processes_peak: figures.pids_peak.map(|n| n.saturating_sub(OURS)),
            ..Usage::default()
        }
    }

    /// The same figures while it runs, as far as the groups have them.
    pub fn figures(&self) -> sys::cgroup::Usage {
        self.group.as_ref().map(Group::usage).unwrap_or_default()
    }

    /// Bytes in the private space and, when they were last counted, in the workspace.
    pub fn disk_bytes(&self) -> u64 {
        self.space().map_or(0, |(pages, _)| pages * PAGE) + self.layer.borrow().last.0
    }

    /// The most bytes there that were seen.
    pub fn disk_peak_bytes(&self) -> u64 {
        self.disk_bytes().max(self.peak_bytes.get())
    }

    /// The group, where it can hold everything still.
    pub fn freezer(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| group.v2_dir_fd().is_some())
    }

    /// Removes the groups.
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
