//! What ought to happen: plain lists, no files, and a clock that only counts.

use super::tree::{Fact, Files, Stack, State};
use super::{Op, Part, Wanted};
use std::collections::{BTreeMap, BTreeSet};
use terms::ErrorKind;

#[derive(Clone, Debug)]
pub struct Held {
    pub id: String,
    pub wanted: Wanted,
    pub alive: bool,
    pub stopped: bool,
    pub stack: Stack,
    /// Files that it tells to be what it knew, whatever their times say.
    told: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct Shot {
    pub id: String,
    pub of: String,
    pub stack: Stack,
}

/// What landed together, or was taken back together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub id: String,
    pub of: String,
    pub is_undo: bool,
    pub undone: bool,
    /// What stood there until then is in its items.
    pub until: u64,
    pub items: Vec<Item>,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub path: String,
    pub before: Option<Fact>,
    pub after: Option<String>,
}

/// A change that waits for review: its kind, and whether its base moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub kind: &'static str,
    pub drifted: bool,
}

/// Whether a file of the base is what a sandbox knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drift {
    No,
    /// By its times it is another, and it holds what it held. Who happened to look at it then can tell.
    Perhaps,
    Yes,
}

#[derive(Debug)]
pub struct Model {
    pub boxes: Vec<Held>,
    pub shots: Vec<Shot>,
    pub batches: Vec<Batch>,
    pub keys: BTreeMap<u8, (Wanted, String)>,
    pub base: State,
}

/// What a verb said: an id or nothing, or why not.
#[derive(Debug)]
pub enum Said {
    Done(String),
    Refused(terms::Fault),
    /// There was nothing to do it to.
    Nothing,
}

impl Said {
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Said::Refused(fault) => Some(fault.error_kind),
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
        Model { boxes: Vec::new(), shots: Vec::new(), batches: Vec::new(), keys: BTreeMap::new(), base }
    }

    pub fn pick(&self, n: usize) -> Option<&Held> {
        self.index(n).map(|at| &self.boxes[at])
    }

    /// Mostly one that is alive.
    fn index(&self, n: usize) -> Option<usize> {
        let alive: Vec<usize> = (0..self.boxes.len()).filter(|at| self.boxes[*at].alive).collect();
        match (n % 4, alive.len(), self.boxes.len()) {
            (_, _, 0) => None,
            (0, _, all) | (_, 0, all) => Some(n / 4 % all),
            (_, some, _) => Some(alive[n / 4 % some]),
        }
    }

    fn place(&self, n: usize) -> usize {
        self.index(n).expect("it was done to one")
    }

    fn picked(&mut self, n: usize) -> &mut Held {
        let at = self.place(n);
        &mut self.boxes[at]
    }

    pub fn shot(&self, n: usize) -> Option<&Shot> {
        (!self.shots.is_empty()).then(|| &self.shots[n % self.shots.len()])
    }

    /// Mostly one of the last that landed.
    pub fn batch(&self, n: usize) -> Option<usize> {
        let all = self.batches.len();
        (all > 0).then(|| if n.is_multiple_of(3) { n / 3 % all } else { all - 1 - n / 3 % all.min(3) })
    }

    /// The sandbox that a snapshot was taken of, if it is still there.
    pub fn restored(&self, n: usize) -> Option<usize> {
        let shot = self.shot(n)?;
        self.living(&shot.of)
    }

    fn living(&self, id: &str) -> Option<usize> {
        self.boxes.iter().position(|one| one.alive && one.id == id)
    }

    /// The kind of the fault, or none for success; nothing at all where there is nothing to do it to.
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
            Op::ForkSnapshot(n) => self.shot(*n).map(|_| None),
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
            let same = before == wanted && self.boxes.iter().any(|b| b.id == *id && b.alive);
            return (!same).then_some(ErrorKind::Conflict);
        }
        let named = |b: &Held| b.alive && wanted.name.is_some() && b.wanted.name == wanted.name;
        (self.boxes.iter().any(named) || self.taken(wanted, "")).then_some(ErrorKind::Conflict)
    }

    fn taken(&self, wanted: &Wanted, id: &str) -> bool {
        let Some(path) = wanted.reserve else { return false };
        let meets = |a: &str, b: &str| {
            a == "." || b == "." || a == b || a.starts_with(&format!("{b}/")) || b.starts_with(&format!("{a}/"))
        };
        self.boxes.iter().any(|b| {
            let holds = b.alive && b.id != id && !(b.stopped && b.wanted.until_stop);
            holds && b.wanted.reserve.is_some_and(|held| meets(held, path)) && !(b.wanted.shared && wanted.shared)
        })
    }

    fn approve(&self, one: &Held, part: Part, stale: bool) -> Option<ErrorKind> {
        let chosen = self.chosen(one, part);
        match () {
            // What was reviewed is compared before anything is chosen of it.
            () if stale => Some(ErrorKind::Conflict),
            () if chosen.is_empty() => Some(ErrorKind::NotFound),
            () if chosen.values().any(|pending| pending.drifted) => Some(ErrorKind::Conflict),
            () => None,
        }
    }

    /// Refused where it was taken back already, or somebody has changed what it left.
    fn undo(&self, batch: &Batch) -> Option<ErrorKind> {
        let stands = |item: &Item| self.base.files.get(&item.path).map(|now| &now.text) == item.after.as_ref();
        (batch.undone || !batch.items.iter().all(stands)).then_some(ErrorKind::Conflict)
    }

    /// What differs from the base, by path.
    pub fn diff(&self, one: &Held) -> BTreeMap<String, Pending> {
        let mut found = BTreeMap::new();
        for (path, own) in one.stack.said() {
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
                Drift::Perhaps => !one.told.contains(&path),
                Drift::Yes => true,
            };
            found.insert(path, Pending { kind, drifted });
        }
        found
    }

    /// Takes a sandbox's word for what is drift, where either could be said.
    pub fn hear(&mut self, id: &str, said: &BTreeMap<String, Pending>) {
        let Some(at) = self.living(id) else { return };
        let stack = &self.boxes[at].stack;
        let is_told = |path: &&String| !said[*path].drifted && self.drift(stack, path) == Drift::Perhaps;
        self.boxes[at].told = said.keys().filter(is_told).cloned().collect();
    }

    /// The base has something else there than the sandbox knows. What a batch replaced is known by its bytes, too.
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

    fn chosen(&self, one: &Held, part: Part) -> BTreeMap<String, Pending> {
        let mut chosen = self.diff(one);
        chosen.retain(|path, _| match part {
            Part::All => true,
            Part::At(at) => path == at || path.starts_with(&format!("{at}/")),
        });
        chosen
    }

    /// What a verb that was done changes.
    pub fn learn(&mut self, op: &Op, answer: &str) {
        match op {
            Op::Create(wanted) => {
                if self.boxes.iter().all(|b| b.id != answer) {
                    let stack = Stack::new(&self.base);
                    self.add(answer, wanted.clone(), stack);
                }
                if let Some(key) = wanted.key {
                    self.keys.entry(key).or_insert((wanted.clone(), answer.to_owned()));
                }
            }
            Op::Write { sandbox, path, write } => {
                let at = self.place(*sandbox);
                self.boxes[at].stack.write(&self.base, path, write.as_ref().map(|write| write.text(path)));
            }
            Op::Outside { path, write } => self.base.set(path, write.as_ref().map(|write| write.text(path))),
            Op::Stop(n) => self.picked(*n).stopped = true,
            Op::Start(n) => self.picked(*n).stopped = false,
            Op::Remove(n) => self.picked(*n).alive = false,
            Op::StopStale(_) | Op::Diff(_) => {}
            Op::Snapshot(n) => {
                let held = self.picked(*n);
                let shot = Shot { id: answer.to_owned(), of: held.id.clone(), stack: held.stack.freeze() };
                self.shots.push(shot);
            }
            Op::Fork(n) => {
                let stack = self.picked(*n).stack.freeze();
                self.add(answer, Wanted::default(), stack.over());
            }
            Op::ForkSnapshot(n) => {
                let stack = self.shots[*n % self.shots.len()].stack.over();
                self.add(answer, Wanted::default(), stack);
            }
            Op::Restore(n) => {
                let at = self.restored(*n).expect("it was done to one");
                let to = self.shots[*n % self.shots.len()].stack.clone();
                self.boxes[at].stack.restore(&to);
            }
            Op::Collect => self.boxes.iter_mut().filter(|b| b.wanted.short).for_each(|b| b.alive = false),
            Op::Approve { sandbox, part, .. } => self.land(self.place(*sandbox), *part, answer),
            Op::Reject { sandbox, part } => {
                let at = self.place(*sandbox);
                for path in self.chosen(&self.boxes[at], *part).into_keys() {
                    self.boxes[at].stack.as_base(&self.base, &path);
                }
            }
            Op::Undo(n) => self.take_back(self.batch(*n).expect("there was one"), answer),
        }
    }

    fn land(&mut self, at: usize, part: Part, id: &str) {
        let said = self.boxes[at].stack.said();
        let item = |path: String| {
            let (before, after) = (self.base.files.get(&path).cloned(), said.get(&path).cloned().flatten());
            Item { path, before, after }
        };
        let items: Vec<Item> = self.chosen(&self.boxes[at], part).into_keys().map(item).collect();
        let until = self.base.next();
        for Item { path, after, .. } in &items {
            self.base.set(path, after.clone());
            let stack = &mut self.boxes[at].stack;
            stack.know(&self.base, path);
            stack.drop_landed(path);
        }
        let of = self.boxes[at].id.clone();
        self.batches.push(Batch { id: id.to_owned(), of, is_undo: false, undone: false, until, items });
    }

    fn take_back(&mut self, number: usize, id: &str) {
        let Batch { of, is_undo, items, .. } = self.batches[number].clone();
        let living = self.living(&of);
        if let (Some(at), false) = (living, is_undo) {
            items.iter().for_each(|item| self.boxes[at].stack.put_back(&item.path, item.after.clone()));
        }
        let (mut back, until) = (Vec::new(), self.base.next());
        for Item { path, before, .. } in items {
            let (was, after) = (self.base.files.get(&path).cloned(), before.map(|fact| fact.text));
            self.base.set(&path, after.clone());
            if let Some(at) = living {
                self.boxes[at].stack.know(&self.base, &path);
            }
            back.push(Item { path, before: was, after });
        }
        self.batches[number].undone = true;
        self.batches.push(Batch { id: id.to_owned(), of, is_undo: true, undone: false, until, items: back });
    }

    fn add(&mut self, id: &str, wanted: Wanted, stack: Stack) {
        self.boxes.push(Held { id: id.to_owned(), wanted, alive: true, stopped: false, stack, told: BTreeSet::new() });
    }

    pub fn states(&self) -> BTreeMap<String, String> {
        let word = |b: &Held| if b.stopped { "stopped" } else { "active" };
        self.boxes.iter().filter(|b| b.alive).map(|b| (b.id.clone(), word(b).to_owned())).collect()
    }

    pub fn files(&self) -> BTreeMap<String, Files> {
        let alive = self.boxes.iter().filter(|b| b.alive);
        alive.map(|b| (b.id.clone(), b.stack.view(&self.base))).collect()
    }
}

fn is_link(text: &str) -> bool {
    text.starts_with('l')
}
