//! The model: plain lists, no files, and a logical clock.

use super::tree::{Fact, Files, Stack, State};
use super::{Op, Part, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use terms::ErrorKind;

#[derive(Clone, Debug)]
pub struct ModelSandbox {
    pub id: String,
    pub wanted: Wanted,
    pub alive: bool,
    pub stopped: bool,
    pub stack: Stack,
    /// Files that the sandbox reported as unchanged although their timestamps differ.
    unchanged: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct ModelSnapshot {
    pub id: String,
    pub of: String,
    pub stack: Stack,
}

/// Changes that landed or were undone together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub id: String,
    pub of: String,
    pub is_undo: bool,
    pub undone: bool,
    /// Logical time of the landing; earlier contents are in the items.
    pub until: u64,
    pub items: Vec<Item>,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub path: String,
    pub before: Option<Fact>,
    pub after: Option<String>,
}

/// A pending change: its kind, and whether its base drifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub kind: &'static str,
    pub drifted: bool,
}

/// Drift of a base file from what a sandbox knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drift {
    No,
    /// New timestamp, old content. Only a sandbox that recorded the content before can tell.
    Perhaps,
    Yes,
}

#[derive(Debug)]
pub struct Model {
    pub sandboxes: Vec<ModelSandbox>,
    pub snapshots: Vec<ModelSnapshot>,
    pub batches: Vec<Batch>,
    pub keys: BTreeMap<u8, (Wanted, String)>,
    pub base: State,
}

/// Result of a verb: an id, a fault, or not applicable.
#[derive(Debug)]
pub enum VerbResult {
    Done(String),
    Refused(terms::Fault),
    /// No object to apply the verb to.
    NotApplicable,
}

impl VerbResult {
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            VerbResult::Refused(fault) => Some(fault.error_kind),
            _ => None,
        }
    }
}

const DONE: Option<Option<ErrorKind>> = Some(None);
const GONE: Option<Option<ErrorKind>> = Some(Some(ErrorKind::NotFound));
const CONFLICT: Option<Option<ErrorKind>> = Some(Some(ErrorKind::Conflict));

impl Model {
    pub fn new(base: &Files) -> Model {
        let base = State::of(base);
        Model { sandboxes: Vec::new(), snapshots: Vec::new(), batches: Vec::new(), keys: BTreeMap::new(), base }
    }

    pub fn pick(&self, n: usize) -> Option<&ModelSandbox> {
        self.index(n).map(|at| &self.sandboxes[at])
    }

    /// Index of a sandbox, usually a live one.
    fn index(&self, n: usize) -> Option<usize> {
        let alive: Vec<usize> = (0..self.sandboxes.len()).filter(|at| self.sandboxes[*at].alive).collect();
        match (n % 4, alive.len(), self.sandboxes.len()) {
            (_, _, 0) => None,
            (0, _, all) | (_, 0, all) => Some(n / 4 % all),
            (_, some, _) => Some(alive[n / 4 % some]),
        }
    }

    fn place(&self, n: usize) -> usize {
        self.index(n).expect("it was done to one")
    }

    fn picked(&mut self, n: usize) -> &mut ModelSandbox {
        let at = self.place(n);
        &mut self.sandboxes[at]
    }

    pub fn snapshot(&self, n: usize) -> Option<&ModelSnapshot> {
        (!self.snapshots.is_empty()).then(|| &self.snapshots[n % self.snapshots.len()])
    }

    /// Index of a batch, usually one of the last three.
    pub fn batch(&self, n: usize) -> Option<usize> {
        let all = self.batches.len();
        (all > 0).then(|| if n.is_multiple_of(3) { n / 3 % all } else { all - 1 - n / 3 % all.min(3) })
    }

    /// The sandbox of a snapshot, if it still exists.
    pub fn restored(&self, n: usize) -> Option<usize> {
        let shot = self.snapshot(n)?;
        self.living(&shot.of)
    }

    fn living(&self, id: &str) -> Option<usize> {
        self.sandboxes.iter().position(|one| one.alive && one.id == id)
    }

    /// Expected fault, or `Some(None)` for success; `None` where there is no object to apply the verb to.
    pub fn expect(&self, op: &Op) -> Option<Option<ErrorKind>> {
        let alive = |n: &usize| self.pick(*n).map(|one| if one.alive { None } else { Some(ErrorKind::NotFound) });
        match op {
            Op::Create(wanted) => Some(self.create(wanted)),
            Op::Collect => DONE,
            Op::Outside { path, write: None } => self.base.files.get(*path).map(|_| None),
            Op::Outside { .. } => DONE,
            Op::Remove(n) => self.pick(*n).map(|_| None),
            Op::Write { sandbox, path, write } => match self.pick(*sandbox)? {
                one if !one.alive || one.stopped => None,
                one if write.is_none() && !one.stack.view(&self.base).contains_key(*path) => None,
                _ => DONE,
            },
            Op::StopStale(n) if self.pick(*n)?.alive => CONFLICT,
            Op::Stop(n) | Op::StopStale(n) | Op::Snapshot(n) | Op::Fork(n) | Op::Diff(n) => alive(n),
            Op::Start(n) => match self.pick(*n)? {
                one if !one.alive => GONE,
                one if one.stopped && self.taken(&one.wanted, &one.id) => CONFLICT,
                _ => DONE,
            },
            Op::ForkSnapshot(n) => self.snapshot(*n).map(|_| None),
            Op::Restore(n) => self.restored(*n).map(|_| None),
            Op::Approve { sandbox, part, stale } => {
                let one = self.pick(*sandbox)?;
                if !one.alive { GONE } else { Some(self.approve(one, *part, *stale)) }
            }
            Op::Reject { sandbox, part } => {
                let one = self.pick(*sandbox)?;
                let missed = *part != Part::All && self.chosen(one, *part).is_empty();
                if !one.alive || missed { GONE } else { DONE }
            }
            Op::Undo(n) => Some(self.undo(&self.batches[self.batch(*n)?])),
        }
    }

    fn create(&self, wanted: &Wanted) -> Option<ErrorKind> {
        if let Some((before, id)) = wanted.key.and_then(|key| self.keys.get(&key)) {
            let same = before == wanted && self.sandboxes.iter().any(|b| b.id == *id && b.alive);
            return (!same).then_some(ErrorKind::Conflict);
        }
        let named = |b: &ModelSandbox| b.alive && wanted.name.is_some() && b.wanted.name == wanted.name;
        (self.sandboxes.iter().any(named) || self.taken(wanted, "")).then_some(ErrorKind::Conflict)
    }

    fn taken(&self, wanted: &Wanted, id: &str) -> bool {
        let Some(path) = wanted.reserve else { return false };
        let meets = |a: &str, b: &str| {
            a == "." || b == "." || a == b || a.starts_with(&format!("{b}/")) || b.starts_with(&format!("{a}/"))
        };
        self.sandboxes.iter().any(|b| {
            let holds = b.alive && b.id != id && !(b.stopped && b.wanted.until_stop);
            holds && b.wanted.reserve.is_some_and(|held| meets(held, path)) && !(b.wanted.shared && wanted.shared)
        })
    }

    fn approve(&self, one: &ModelSandbox, part: Part, stale: bool) -> Option<ErrorKind> {
        let chosen = self.chosen(one, part);
        match () {
            // The digest is compared before the selection.
            () if stale => Some(ErrorKind::Conflict),
            () if chosen.is_empty() => Some(ErrorKind::NotFound),
            () if chosen.values().any(|pending| pending.drifted) => Some(ErrorKind::Conflict),
            () => None,
        }
    }

    /// A conflict if the batch was undone already, or its files have changed since.
    fn undo(&self, batch: &Batch) -> Option<ErrorKind> {
        let stands = |item: &Item| self.base.files.get(&item.path).map(|now| &now.text) == item.after.as_ref();
        (batch.undone || !batch.items.iter().all(stands)).then_some(ErrorKind::Conflict)
    }

    /// Pending changes by path.
    pub fn diff(&self, one: &ModelSandbox) -> BTreeMap<String, Pending> {
        let mut found = BTreeMap::new();
        for (path, own) in one.stack.entries() {
            let now = self.base.files.get(&path);
            let kind = match (now.map(|fact| &fact.text), &own) {
                (None, None) => continue,
                (None, Some(_)) => "added",
                (Some(_), None) => "deleted",
                (Some(before), Some(after)) if before == after => continue,
                (Some(before), Some(after)) if is_link(before) != is_link(after) => "type",
                (Some(before), Some(after)) if before[1..] == after[1..] => "mode",
                _ => "modified",
            };
            let drifted = match self.drift(&one.stack, &path) {
                Drift::No => false,
                Drift::Perhaps => !one.unchanged.contains(&path),
                Drift::Yes => true,
            };
            found.insert(path, Pending { kind, drifted });
        }
        found
    }

    /// Adopts the reported drift where the model permits either answer.
    pub fn adopt_drift(&mut self, id: &str, reported: &BTreeMap<String, Pending>) {
        let Some(at) = self.living(id) else { return };
        let stack = &self.sandboxes[at].stack;
        let is_unchanged = |path: &&String| !reported[*path].drifted && self.drift(stack, path) == Drift::Perhaps;
        self.sandboxes[at].unchanged = reported.keys().filter(is_unchanged).cloned().collect();
    }

    /// Compares the base file with what the sandbox knows. Contents that a batch replaced are known, too.
    fn drift(&self, stack: &Stack, path: &str) -> Drift {
        let now = self.base.files.get(path);
        let moved = match (stack.anchors.get(path), now) {
            (Some(seen), now) => *seen != now.map(|fact| fact.stamp),
            (None, Some(fact)) => fact.stamp > stack.since,
            (None, None) => false,
        };
        let was_known = |until: u64, fact: &Fact| match stack.anchors.get(path) {
            Some(seen) => *seen == Some(fact.stamp),
            None => fact.stamp <= stack.since && stack.since < until,
        };
        let is_back = |until: u64, item: &Item| {
            let was = item.before.as_ref().filter(|fact| item.path == path && was_known(until, fact));
            was.is_some_and(|was| now.is_some_and(|now| now.text == was.text))
        };
        if !moved || self.batches.iter().any(|batch| batch.items.iter().any(|item| is_back(batch.until, item))) {
            return Drift::No;
        }
        let known = match stack.anchors.get(path) {
            Some(seen) => seen.and_then(|stamp| self.base.text_at(path, stamp)),
            None => self.base.text_at(path, stack.since),
        };
        let is_same = known.is_some() && known == now.map(|fact| &fact.text);
        if is_same { Drift::Perhaps } else { Drift::Yes }
    }

    fn chosen(&self, one: &ModelSandbox, part: Part) -> BTreeMap<String, Pending> {
        let mut chosen = self.diff(one);
        chosen.retain(|path, _| match part {
            Part::All => true,
            Part::At(at) => path == at || path.starts_with(&format!("{at}/")),
        });
        chosen
    }

    /// Applies a successful verb to the model.
    pub fn apply(&mut self, op: &Op, answer: &str) {
        match op {
            Op::Create(wanted) => {
                if self.sandboxes.iter().all(|b| b.id != answer) {
                    let stack = Stack::new(&self.base);
                    self.add(answer, wanted.clone(), stack);
                }
                if let Some(key) = wanted.key {
                    self.keys.entry(key).or_insert((wanted.clone(), answer.to_owned()));
                }
            }
            Op::Write { sandbox, path, write } => {
                let at = self.place(*sandbox);
                self.sandboxes[at].stack.write(&self.base, path, write.as_ref().map(|write| write.text(path)));
            }
            Op::Outside { path, write } => self.base.set(path, write.as_ref().map(|write| write.text(path))),
            Op::Stop(n) => self.picked(*n).stopped = true,
            Op::Start(n) => self.picked(*n).stopped = false,
            Op::Remove(n) => self.picked(*n).alive = false,
            Op::StopStale(_) | Op::Diff(_) => {}
            Op::Snapshot(n) => {
                let held = self.picked(*n);
                let shot = ModelSnapshot { id: answer.to_owned(), of: held.id.clone(), stack: held.stack.freeze() };
                self.snapshots.push(shot);
            }
            Op::Fork(n) => {
                let stack = self.picked(*n).stack.freeze();
                self.add(answer, Wanted::default(), stack.over());
            }
            Op::ForkSnapshot(n) => {
                let stack = self.snapshots[*n % self.snapshots.len()].stack.over();
                self.add(answer, Wanted::default(), stack);
            }
            Op::Restore(n) => {
                let at = self.restored(*n).expect("it was done to one");
                let to = self.snapshots[*n % self.snapshots.len()].stack.clone();
                self.sandboxes[at].stack.restore(&to);
            }
            Op::Collect => self.sandboxes.iter_mut().filter(|b| b.wanted.short).for_each(|b| b.alive = false),
            Op::Approve { sandbox, part, .. } => self.apply_approval(self.place(*sandbox), *part, answer),
            Op::Reject { sandbox, part } => {
                let at = self.place(*sandbox);
                for path in self.chosen(&self.sandboxes[at], *part).into_keys() {
                    self.sandboxes[at].stack.as_base(&self.base, &path);
                }
            }
            Op::Undo(n) => self.apply_undo(self.batch(*n).expect("there was one"), answer),
        }
    }

    fn apply_approval(&mut self, at: usize, part: Part, id: &str) {
        let entries = self.sandboxes[at].stack.entries();
        let item = |path: String| {
            let (before, after) = (self.base.files.get(&path).cloned(), entries.get(&path).cloned().flatten());
            Item { path, before, after }
        };
        let items: Vec<Item> = self.chosen(&self.sandboxes[at], part).into_keys().map(item).collect();
        let until = self.base.next();
        for Item { path, after, .. } in &items {
            self.base.set(path, after.clone());
            let stack = &mut self.sandboxes[at].stack;
            stack.know(&self.base, path);
            stack.drop_landed(path);
        }
        let of = self.sandboxes[at].id.clone();
        self.batches.push(Batch { id: id.to_owned(), of, is_undo: false, undone: false, until, items });
    }

    fn apply_undo(&mut self, number: usize, id: &str) {
        let Batch { of, is_undo, items, .. } = self.batches[number].clone();
        let living = self.living(&of);
        if let (Some(at), false) = (living, is_undo) {
            items.iter().for_each(|item| self.sandboxes[at].stack.put_back(&item.path, item.after.clone()));
        }
        let (mut back, until) = (Vec::new(), self.base.next());
        for Item { path, before, .. } in items {
            let (was, after) = (self.base.files.get(&path).cloned(), before.map(|fact| fact.text));
            self.base.set(&path, after.clone());
            if let Some(at) = living {
                self.sandboxes[at].stack.know(&self.base, &path);
            }
            back.push(Item { path, before: was, after });
        }
        self.batches[number].undone = true;
        self.batches.push(Batch { id: id.to_owned(), of, is_undo: true, undone: false, until, items: back });
    }

    fn add(&mut self, id: &str, wanted: Wanted, stack: Stack) {
        self.sandboxes.push(ModelSandbox {
            id: id.to_owned(),
            wanted,
            alive: true,
            stopped: false,
            stack,
            unchanged: BTreeSet::new(),
        });
    }

    pub fn states(&self) -> BTreeMap<String, String> {
        let word = |b: &ModelSandbox| if b.stopped { "stopped" } else { "active" };
        self.sandboxes.iter().filter(|b| b.alive).map(|b| (b.id.clone(), word(b).to_owned())).collect()
    }

    pub fn files(&self) -> BTreeMap<String, Files> {
        let alive = self.sandboxes.iter().filter(|b| b.alive);
        alive.map(|b| (b.id.clone(), b.stack.view(&self.base))).collect()
    }
}

fn is_link(text: &str) -> bool {
    text.starts_with('l')
}
