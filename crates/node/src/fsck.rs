//! Compares records with layers, directories, processes and control groups, and verifies the journal. Finds, names and counts
//! problems; repairs only what `gc` can collect without a loss.

use crate::backup;
use crate::gc;
use crate::list::base_is;
use api::{BaseState, GcItemKind};
use runtime::Node;
use runtime::keeper::place::KeeperDir;
use serde::Serialize;
use state::Caller;
use state::State;
use state::config::Keep;
use state::pool::Spare;
use state::sandbox::{Run, Sandbox, Tombstone, layers_in_use};
use std::collections::BTreeMap;
use std::path::Path;
use store::Tx;
use terms::Fault;

/// Kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The database is damaged.
    Store,
    /// An entry of the journal differs from what was written.
    Journal,
    /// A record names a layer that is missing or incomplete.
    MissingLayer,
    /// The directory that a sandbox covers is missing or was replaced by another.
    Base,
    /// A directory of its own whose sandbox is gone.
    OwnBase,
    /// A layer that no record names.
    Layer,
    /// A run that is open by its record, and whose supervisor is gone.
    Run,
    /// A keeper without a sandbox, or files that a keeper left.
    Keeper,
    /// A spare that cannot be taken.
    Spare,
    /// Copies of a batch that has no record.
    Batch,
    /// A control group whose owner is gone.
    Group,
    /// An unknown file in the state directory.
    File,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub kind: ProblemKind,
    pub id: String,
    pub why: String,
    /// True if `gc`, and so `--repair`, handles it.
    pub collectable: bool,
    /// The tenant whose state it is in; none for the daemon's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Counts of the objects that were checked, and the problems.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FsckReport {
    pub sandboxes: u64,
    pub layers: u64,
    pub runs_going_on: u64,
    pub keepers: u64,
    pub journal_entries: u64,
    pub tenants: u64,
    pub problems: Vec<Problem>,
    /// Repairs that were made before the check.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<String>,
}

/// Most problems in a report.
const MOST: usize = 10_000;

/// Checks all objects, those of all tenants included; with `repair`, after `gc`.
pub fn check(node: &Node, caller: &Caller, repair: bool) -> Result<FsckReport, Fault> {
    let mut report = FsckReport::default();
    one(node, None, repair, caller, &mut report)?;
    for tenant in backup::tenants(&state::directory::place(caller)?) {
        let inner = backup::within(&tenant, caller)?;
        one(node, Some(&tenant), repair, &inner, &mut report)?;
        report.tenants += 1;
    }
    let layout = sys::cgroup::Layout::detect(Path::new("/"));
    let swept = if repair { sys::cgroup::sweep(&layout) } else { 0 };
    report.repaired.extend((swept > 0).then(|| format!("{swept} control groups whose owners are gone")));
    let groups = sys::cgroup::orphans(&layout);
    for name in groups {
        let why = "its owner is gone".to_owned();
        report.problems.push(Problem { kind: ProblemKind::Group, id: name, why, collectable: true, tenant: None });
    }
    report.problems.truncate(MOST);
    Ok(report)
}

fn one(node: &Node, tenant: Option<&str>, repair: bool, caller: &Caller, report: &mut FsckReport) -> Result<(), Fault> {
    if repair {
        let done = gc::collect(node, caller, &Keep::of(caller)?)?;
        report.repaired.extend(done.items.iter().map(|item| format!("{}: {}", item.id, item.why)));
    }
    let state = node.states.open(caller)?;
    let mut found = Findings { problems: Vec::new(), tenant };
    found.of_store(&state, report)?;
    let known = KnownRecords::read(&state)?;
    report.sandboxes += known.sandboxes.len() as u64;
    report.layers += state.layer_names()?.len() as u64;
    report.runs_going_on +=
        known.runs.iter().filter(|run| state::process::handle(&run.record).is_some()).count() as u64;
    found.of_rows(&state, &known);
    found.of_leftovers(node, caller)?;
    report.keepers += found.of_keepers(&state, &known);
    found.of_files(&state);
    report.problems.append(&mut found.problems);
    Ok(())
}

struct KnownRecords {
    sandboxes: Vec<store::Kept<Sandbox>>,
    spares: Vec<String>,
    tombstones: Vec<store::Kept<Tombstone>>,
    /// Layers that records name, each with the number of records.
    layers: BTreeMap<String, u64>,
    runs: Vec<store::Kept<Run>>,
}

impl KnownRecords {
    fn read(state: &State) -> Result<KnownRecords, Fault> {
        let all = |tx: &Tx<'_>| {
            let (sandboxes, tombstones) = (tx.list::<Sandbox>()?, tx.list::<Tombstone>()?);
            let spares = tx.list::<Spare>()?.into_iter().map(|kept| kept.id).collect();
            Ok(KnownRecords { sandboxes, spares, tombstones, layers: layers_in_use(tx)?, runs: tx.list_open::<Run>()? })
        };
        state.store.read(all)
    }
}

struct Findings<'a> {
    problems: Vec<Problem>,
    tenant: Option<&'a str>,
}

impl Findings<'_> {
    fn add(&mut self, kind: ProblemKind, id: &str, why: impl Into<String>, collectable: bool) {
        if self.problems.len() < MOST {
            let (id, why, tenant) = (id.to_owned(), why.into(), self.tenant.map(str::to_owned));
            self.problems.push(Problem { kind, id, why, collectable, tenant });
        }
    }

    fn of_store(&mut self, state: &State, report: &mut FsckReport) -> Result<(), Fault> {
        for line in state.store.sound()? {
            self.add(ProblemKind::Store, "store.db", line, false);
        }
        let verified = state.store.verify()?;
        report.journal_entries += verified.entries;
        if let Some(broken) = verified.broken {
            self.add(ProblemKind::Journal, &broken.seq.to_string(), broken.why, false);
        }
        Ok(())
    }

    /// Checks that the objects that records name exist.
    fn of_rows(&mut self, state: &State, known: &KnownRecords) {
        for id in known.layers.keys() {
            if let Err(e) = state.layers.get(id) {
                let whose: Vec<&str> =
                    known.sandboxes.iter().filter(|s| s.record.layers.contains(id)).map(|s| s.id.as_str()).collect();
                let whose = if whose.is_empty() { "a snapshot or template".into() } else { whose.join(", ") };
                self.add(ProblemKind::MissingLayer, id, format!("{e}; {whose} needs it"), false);
            }
        }
        for kept in &known.sandboxes {
            let what = match base_is(&kept.record) {
                BaseState::Present => continue,
                BaseState::Gone => "is gone",
                BaseState::Replaced => "was replaced by another directory",
            };
            self.add(ProblemKind::Base, &kept.id, format!("{} {what}", kept.record.base.display()), false);
        }
        for kept in known.tombstones.iter().filter(|t| known.sandboxes.iter().any(|s| s.id == t.id)) {
            self.add(ProblemKind::Store, &kept.id, "it has both a record and the record of its removal", false);
        }
    }

    /// Reports what `gc` would collect because it was left behind, not because its retention is over.
    fn of_leftovers(&mut self, node: &Node, caller: &Caller) -> Result<(), Fault> {
        for item in gc::plan(node, caller, &Keep::of(caller)?)?.items {
            let kind = match item.sort {
                GcItemKind::DeadLayer | GcItemKind::EmptyLayer | GcItemKind::Adopted => ProblemKind::Layer,
                GcItemKind::LostRun => ProblemKind::Run,
                GcItemKind::OrphanBatch => ProblemKind::Batch,
                GcItemKind::OwnBase => ProblemKind::OwnBase,
                GcItemKind::Spare => ProblemKind::Spare,
                _ => continue,
            };
            self.add(kind, &item.id, item.why, true);
        }
        Ok(())
    }

    /// Checks that each keeper belongs to a sandbox. Returns the number of live keepers.
    fn of_keepers(&mut self, state: &State, known: &KnownRecords) -> u64 {
        let mut alive = 0;
        let found = std::fs::read_dir(state.path.join("keepers")).into_iter().flatten().flatten();
        for sandbox in found.filter_map(|entry| entry.file_name().into_string().ok()) {
            let is_known = known.sandboxes.iter().any(|kept| kept.id == sandbox) || known.spares.contains(&sandbox);
            let lives = KeeperDir::of(&state.path, &sandbox).card().is_some_and(|card| card.handle().is_some());
            match (lives, is_known) {
                (true, true) => alive += 1,
                (true, false) => self.add(ProblemKind::Keeper, &sandbox, "it has files without a record", false),
                // The files of a dead keeper tell the sandbox that it was lost.
                (false, true) => {}
                (false, false) => self.add(ProblemKind::Keeper, &sandbox, "left over from a removed sandbox", true),
            }
        }
        alive
    }

    /// Reports the files of an interrupted write.
    fn of_files(&mut self, state: &State) {
        let Ok(names) = state.dir.names() else { return };
        let cut = |name: &&[u8]| name.ends_with(b".part") || *name == b"store.db.restored";
        for name in names.iter().map(Vec::as_slice).filter(cut) {
            self.add(ProblemKind::File, &String::from_utf8_lossy(name), "left over from an interrupted write", false);
        }
    }
}
