//! Quotas: the most that a tenant, or the whole node, may use. Usage is read from records and the
//! kernel each time, so that a crash of the daemon loses nothing. The disk usage of layers is
//! measured by walking them, which is slow; callers do it seldom.

use crate::snapshots;
use api::Rel;
use enclosure::UnlinkedFileFinder;
use runtime::Node;
use state::config::Quota;
use state::directory::{self, AGENT_HOME};
use state::pool::Spare;
use state::sandbox::{Run, Sandbox};
use state::snapshot::{Snapshot, Template};
use state::{Caller, State};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use store::Kept;
use terms::{ErrorKind, Fault, LimitKind, Limits, Phase, Retry};
use workspace::disk_usage;

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Time limit of a search for unlinked files that processes hold open.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// Current usage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub sandboxes: u64,
    /// Sandboxes that are live, spares included.
    pub live: u64,
    /// Sum of the memory limits; sandboxes without a limit are not in it.
    pub memory_mb: f64,
    pub cpus: f64,
    pub runs: u64,
    /// Automatic snapshots included.
    pub snapshots: u64,
    pub templates: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.sandboxes += other.sandboxes;
        self.live += other.live;
        self.memory_mb += other.memory_mb;
        self.cpus += other.cpus;
        self.runs += other.runs;
        self.snapshots += other.snapshots;
        self.templates += other.templates;
    }
}

/// Additional usage of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AddedUsage {
    Sandboxes(u64),
    Snapshots(u64),
    Templates(u64),
    /// A sandbox becomes live, with its limits.
    Live {
        memory_mb: Option<f64>,
        cpus: Option<f64>,
    },
}

impl AddedUsage {
    /// Returns the usage that a sandbox adds by becoming live.
    pub(crate) fn of(sandbox: &Sandbox) -> AddedUsage {
        let (memory_mb, cpus) = bounds_of(sandbox);
        AddedUsage::Live { memory_mb, cpus }
    }
}

/// Counts the usage of a tenant, spares included.
pub fn used(node: &Node, caller: &Caller) -> Result<Usage, Fault> {
    let state = node.states.open(caller)?;
    let (mut sandboxes, spares, open) =
        state.store.read(|tx| Ok((tx.list::<Sandbox>()?, tx.list::<Spare>()?, tx.list_open::<Run>()?)))?;
    let (snapshots, templates) = state.store.read(|tx| {
        // Unneeded snapshots are about to be collected.
        let needed = tx.count::<Snapshot>()?.saturating_sub(snapshots::unneeded(tx)?.len() as u64);
        Ok((needed, tx.count::<Template>()?))
    })?;
    let as_sandbox = |kept: Kept<Spare>| Kept { id: kept.id, version: kept.version, record: kept.record.sandbox };
    sandboxes.extend(spares.into_iter().map(as_sandbox));
    let mut used = Usage { sandboxes: sandboxes.len() as u64, snapshots, templates, ..Usage::default() };
    for sandbox in &sandboxes {
        if !is_live(&state, &sandbox.record) {
            continue;
        }
        used.live += 1;
        let (memory_mb, cpus) = bounds_of(&sandbox.record);
        used.memory_mb += memory_mb.unwrap_or(0.0);
        used.cpus += cpus.unwrap_or(0.0);
    }
    used.runs = open.iter().filter(|run| state::process::handle(&run.record).is_some()).count() as u64;
    Ok(used)
}

/// Returns the usage that a named sandbox would add by becoming live; none if it is live already.
pub fn by_starting(node: &Node, caller: &Caller, word: &str) -> Result<Option<AddedUsage>, Fault> {
    let state = node.states.open(caller)?;
    let kept = state.store.read(|tx| state::sandbox::find(tx, Some(word), caller))?;
    Ok((!is_live(&state, &kept.record)).then(|| AddedUsage::of(&kept.record)))
}

/// Measures the layers of a tenant, including those of snapshots and templates, and the kept output of its runs, by walking them.
pub fn disk_bytes(node: &Node, caller: &Caller) -> Result<u64, Fault> {
    let state = node.states.open(caller)?;
    let layers: u64 = state.layer_names()?.iter().map(|id| disk_usage::layer(&state.layers, id).bytes).sum();
    let output = state.dir.dir(&Rel::top().join(b"keepers")).map_or(0, |dir| disk_usage::tree(&dir).bytes);
    Ok(layers + output + nameless_bytes(&state, &caller.home)?)
}

/// Sums unlinked files that processes in the sandboxes hold open, which are in no layer that can be walked.
fn nameless_bytes(state: &State, home: &Path) -> Result<u64, Fault> {
    let until = Instant::now() + LONGEST_LOOK;
    let (runs, sandboxes) = state.store.read(|tx| Ok((tx.list_open::<Run>()?, tx.list::<Sandbox>()?)))?;
    let mut supervisors = BTreeMap::new();
    for Kept { record: run, .. } in runs.iter().filter(|run| state::process::handle(&run.record).is_some()) {
        let sandbox = sandboxes.iter().find(|sandbox| sandbox.id == run.sandbox);
        if let (Some(sandbox), Ok(pid)) = (sandbox, i32::try_from(run.pid)) {
            supervisors.insert(pid, directory::path_inside(&sandbox.record.base));
        }
    }
    let found = supervisors
        .into_iter()
        .filter_map(|(pid, dir)| UnlinkedFileFinder::of(pid, &[dir, home, Path::new(AGENT_HOME)])?.scan(until));
    Ok(found.map(|files| files.values().sum::<u64>()).sum())
}

fn is_live(state: &State, sandbox: &Sandbox) -> bool {
    state::lock::is_held(state, sandbox)
}

/// Returns the memory and processors that a sandbox may use, by its own limits and its policy's. A
/// zero, negative or NaN amount limits nothing and gives `None`: counted as it is, it would let an
/// unlimited sandbox pass the quota.
fn bounds_of(sandbox: &Sandbox) -> (Option<f64>, Option<f64>) {
    let of_policy = sandbox.policy.get("limits").cloned();
    let of_policy: Limits = of_policy.and_then(|limits| serde_json::from_value(limits).ok()).unwrap_or_default();
    let memory_mb = sandbox.limits.tightest(of_policy).max_memory_mb;
    (memory_mb.filter(|mb| *mb > 0.0), sandbox.cpus.filter(|cpus| *cpus > 0.0))
}

/// Refuses usage over a quota; `whose` names the holder: `tenant blue` or `this node`. Usage of exactly the quota is allowed.
pub fn check(whose: &str, quota: &Quota, used: &Usage, more: AddedUsage) -> Result<(), Fault> {
    let count = |kind: LimitKind, what: &str, (has, more): (u64, u64), most: Option<u64>| match most {
        Some(most) if has.saturating_add(more) > most => {
            Err(exceeded(kind, format!("{whose} has {has} {what}, and may have {most}")))
        }
        _ => Ok(()),
    };
    match more {
        AddedUsage::Sandboxes(more) => {
            count(LimitKind::Sandboxes, "sandboxes", (used.sandboxes, more), quota.sandboxes)
        }
        AddedUsage::Snapshots(more) => {
            count(LimitKind::Snapshots, "snapshots", (used.snapshots, more), quota.snapshots)
        }
        AddedUsage::Templates(more) => {
            count(LimitKind::Templates, "templates", (used.templates, more), quota.templates)
        }
        AddedUsage::Live { memory_mb, cpus } => {
            count(LimitKind::LiveSandboxes, "live sandboxes", (used.live, 1), quota.live_sandboxes)?;
            let most = quota.memory_bytes.map(|bytes| bytes as f64 / MEBIBYTE);
            amount(
                whose,
                (LimitKind::MemoryMb, "MiB of memory", "limits.max_memory_mb"),
                used.memory_mb,
                memory_mb,
                most,
            )?;
            amount(whose, (LimitKind::Cpus, "processors", "cpus"), used.cpus, cpus, quota.cpus)
        }
    }
}

/// Refuses new layers over the disk quota.
pub fn check_disk(whose: &str, quota: &Quota, disk_bytes: u64) -> Result<(), Fault> {
    let mib = |bytes: u64| bytes as f64 / MEBIBYTE;
    match quota.disk_bytes {
        Some(most) if disk_bytes > most => {
            let message =
                format!("layers and output of {whose} take {:.1} MiB, and may take {:.1}", mib(disk_bytes), mib(most));
            let fault = exceeded(LimitKind::DiskMb, message);
            Err(fault.hint("remove sandboxes, snapshots and templates that are no longer needed (`rm`, `gc`)"))
        }
        _ => Ok(()),
    }
}

/// Refuses spooled request and response bodies over the disk quota. They may take as much as the
/// layers, in addition to them, so that any kept workspace can be exported.
pub fn check_spooled(whose: &str, quota: &Quota, bytes: u64) -> Result<(), Fault> {
    let mib = |bytes: u64| bytes as f64 / MEBIBYTE;
    match quota.disk_bytes {
        Some(most) if bytes > most => {
            let message =
                format!("uploads of {whose} in progress would take more than {:.1} MiB of the disk", mib(most));
            Err(exceeded(LimitKind::DiskMb, message).hint("finish the uploads in progress first, one after the other"))
        }
        _ => Ok(()),
    }
}

/// Checks a sum of limits; an amount without a limit fits under no quota.
fn amount(
    whose: &str,
    (kind, what, field): (LimitKind, &str, &str),
    has: f64,
    more: Option<f64>,
    most: Option<f64>,
) -> Result<(), Fault> {
    let Some(most) = most else { return Ok(()) };
    let Some(more) = more else {
        let message = format!("the sandbox sets no {field}, and {whose} may have {most} {what} in all");
        return Err(exceeded(kind, message).retry(Retry::Never).hint(format!("create it with {field}")));
    };
    if has + more <= most {
        return Ok(());
    }
    let message = format!("{whose} has {has} of {most} {what} in live sandboxes, and this one may use {more}");
    let fault = exceeded(kind, message);
    match more > most {
        true => Err(fault.retry(Retry::Never).hint(format!("create it with a {field} of at most {most}"))),
        false => Err(fault),
    }
}

pub(crate) fn exceeded(kind: LimitKind, message: String) -> Fault {
    let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(kind).phase(Phase::Admission).retry(Retry::Later);
    fault.hint("end or remove some, or ask the operator for more")
}

#[cfg(test)]
mod test {
    use super::*;

    const QUOTA: Quota = Quota {
        sandboxes: Some(2),
        live_sandboxes: Some(2),
        memory_bytes: Some(512 << 20),
        cpus: Some(2.0),
        disk_bytes: Some(1 << 20),
        snapshots: Some(3),
        templates: Some(1),
        requests_per_minute: None,
        runs: None,
    };

    fn kind(checked: Result<(), Fault>) -> Option<LimitKind> {
        checked.err().map(|fault| {
            assert_eq!((fault.error_kind, fault.phase), (ErrorKind::LimitExceeded, Some(Phase::Admission)));
            fault.limit_kind.unwrap()
        })
    }

    #[test]
    fn exactly_at_the_quota_succeeds() {
        let check = |used: Usage, more| kind(check("tenant blue", &QUOTA, &used, more));
        let one = Usage { sandboxes: 1, live: 1, memory_mb: 256.0, cpus: 1.0, runs: 1, snapshots: 2, templates: 0 };
        let live = |memory_mb, cpus| AddedUsage::Live { memory_mb: Some(memory_mb), cpus: Some(cpus) };
        assert_eq!(check(one, AddedUsage::Sandboxes(1)), None);
        assert_eq!(check(one, AddedUsage::Sandboxes(2)), Some(LimitKind::Sandboxes));
        assert_eq!((check(one, AddedUsage::Snapshots(1)), check(one, AddedUsage::Templates(1))), (None, None));
        assert_eq!(check(one, AddedUsage::Snapshots(2)), Some(LimitKind::Snapshots));
        assert_eq!(check(Usage { templates: 1, ..one }, AddedUsage::Templates(1)), Some(LimitKind::Templates));
        assert_eq!(check(one, live(256.0, 1.0)), None);
        assert_eq!(check(one, live(256.5, 1.0)), Some(LimitKind::MemoryMb));
        assert_eq!(check(one, live(256.0, 1.5)), Some(LimitKind::Cpus));
        assert_eq!(check(Usage { live: 2, ..one }, live(1.0, 0.1)), Some(LimitKind::LiveSandboxes));
        assert_eq!(kind(check_disk("this node", &QUOTA, 1 << 20)), None);
        assert_eq!(kind(check_disk("this node", &QUOTA, (1 << 20) + 1)), Some(LimitKind::DiskMb));
    }

    #[test]
    fn what_has_no_limit_fits_under_none() {
        let more = AddedUsage::Live { memory_mb: None, cpus: Some(1.0) };
        let fault = check("tenant blue", &QUOTA, &Usage::default(), more).unwrap_err();
        assert_eq!((fault.limit_kind, fault.retry), (Some(LimitKind::MemoryMb), Retry::Never));
        assert!(fault.hint.unwrap().contains("limits.max_memory_mb"));
        assert_eq!(check("tenant blue", &Quota::default(), &Usage::default(), more), Ok(()));
        let more = AddedUsage::Live { memory_mb: Some(1024.0), cpus: Some(1.0) };
        assert_eq!(check("tenant blue", &QUOTA, &Usage::default(), more).unwrap_err().retry, Retry::Never);
    }
    #[test]
    fn what_bounds_nothing_makes_no_room() {
        let of = |mb, cpus| Sandbox {
            limits: Limits { max_memory_mb: Some(mb), ..Limits::default() },
            cpus: Some(cpus),
            ..Sandbox::new("/".into(), (0, 0), serde_json::Value::Null, 0)
        };
        assert_eq!(bounds_of(&of(256.0, 0.5)), (Some(256.0), Some(0.5)), "the control");
        for nonsense in [-100.0, 0.0, f64::NAN] {
            assert_eq!(bounds_of(&of(nonsense, nonsense)), (None, None), "{nonsense}");
            let fault =
                check("tenant blue", &QUOTA, &Usage::default(), AddedUsage::of(&of(nonsense, nonsense))).unwrap_err();
            assert_eq!((fault.limit_kind, fault.retry), (Some(LimitKind::MemoryMb), Retry::Never));
        }
    }
}
