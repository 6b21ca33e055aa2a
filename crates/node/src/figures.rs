//! Metrics of a state directory: counts of sandboxes, keepers and runs, for the monitoring of the daemon. Cheap enough to be read
//! every few seconds; only the disk usage of layers needs a walk of files, and is read separately.

use api::{DiskUsage, SandboxState};
use runtime::Node;
use runtime::keeper::place::KeeperDir;
use runtime::liveness::{self, LivenessFacts};
use state::Caller;
use state::pool::Spare;
use state::sandbox::{Run, Sandbox};
use std::collections::BTreeMap;
use std::path::Path;
use terms::Fault;
use workspace::disk_usage;

#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Counts by state; every state is present, also with a count of 0.
    pub sandboxes: BTreeMap<String, u64>,
    pub keepers: u64,
    pub runs_active: u64,
    /// Counts since the daemon started to follow the journal; see `Follow`.
    pub runs_started: u64,
    pub runs_ended: BTreeMap<String, u64>,
    pub limits_met: BTreeMap<String, u64>,
    pub store_bytes: u64,
    pub journal_head: u64,
    pub tenants: u64,
    /// Disk usage of the layers, once it was measured.
    pub layers: Option<DiskUsage>,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        let add = |into: &mut BTreeMap<String, u64>, from: BTreeMap<String, u64>| {
            from.into_iter().for_each(|(name, n)| *into.entry(name).or_default() += n);
        };
        add(&mut self.sandboxes, other.sandboxes);
        add(&mut self.runs_ended, other.runs_ended);
        add(&mut self.limits_met, other.limits_met);
        self.keepers += other.keepers;
        self.runs_active += other.runs_active;
        self.runs_started += other.runs_started;
        self.store_bytes += other.store_bytes;
        self.journal_head += other.journal_head;
        self.tenants += other.tenants;
        if let Some(size) = other.layers {
            *self.layers.get_or_insert_default() += size;
        }
    }
}

/// Sums the current metrics of several states. A state that cannot be read is left out; the verb that needs it reports the fault.
/// Keepers of all states are asked together, so that silent ones delay the answer by one deadline in all and not by one for each
/// tenant.
pub fn now<'a>(node: &Node, callers: impl IntoIterator<Item = &'a Caller>) -> Figures {
    let (mut sum, mut facts) = (Figures::default(), Vec::new());
    for (figures, of_one) in callers.into_iter().filter_map(|caller| of_state(node, caller).ok()) {
        sum += figures;
        facts.extend(of_one);
    }
    for look in liveness::look_all(node, &facts) {
        *sum.sandboxes.entry(look.standing.name().to_owned()).or_default() += 1;
    }
    sum
}

/// Reads the metrics of one state that need no keeper, and the facts that are needed to ask its keepers.
fn of_state(node: &Node, caller: &Caller) -> Result<(Figures, Vec<LivenessFacts>), Fault> {
    let state = node.states.open(caller)?;
    let mut figures = Figures { store_bytes: store_bytes(&state.path), ..Figures::default() };
    for standing in SandboxState::ALL.into_iter().filter(|standing| *standing != SandboxState::Removed) {
        figures.sandboxes.insert(standing.name().to_owned(), 0);
    }
    let kept = state.store.read(|tx| tx.list::<Sandbox>())?;
    let facts = kept.iter().filter(|kept| caller.sees_kept(kept)).map(|kept| LivenessFacts::of(&state, kept)).collect();
    let spares = state.store.read(|tx| tx.count::<Spare>())?;
    figures.sandboxes.insert(SandboxState::Ready.name().to_owned(), spares);
    let kept = std::fs::read_dir(state.path.join("keepers")).into_iter().flatten().flatten();
    let cards = kept.filter_map(|e| KeeperDir::of(&state.path, e.file_name().to_str()?).card());
    figures.keepers = cards.filter(|card| card.handle().is_some()).count() as u64;
    let (open, last) = state.store.read(|tx| Ok((tx.list_open::<Run>()?, tx.noted(None, None, 1)?)))?;
    figures.runs_active = open.iter().filter(|run| state::process::handle(&run.record).is_some()).count() as u64;
    figures.journal_head = last.last().map_or(0, |entry| entry.seq);
    Ok((figures, facts))
}

fn store_bytes(state: &Path) -> u64 {
    let size = |name: &str| std::fs::metadata(state.join(name)).map_or(0, |meta| meta.len());
    ["store.db", "store.db-wal", "store.db-shm", "journal.head"].iter().map(|name| size(name)).sum()
}

/// Sums the disk usage of all layers. Walks every file of them.
pub fn layers(node: &Node, caller: &Caller) -> Result<DiskUsage, Fault> {
    let state = node.states.open(caller)?;
    let mut size = DiskUsage::default();
    for id in state.layer_names()? {
        size += disk_usage::layer(&state.layers, &id);
    }
    Ok(size)
}
