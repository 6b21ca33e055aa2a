//! What ought to happen: plain lists, no files, no clock.

use super::{Op, Wanted};
use std::collections::BTreeMap;
use terms::ErrorKind;

pub type Files = BTreeMap<String, String>;

#[derive(Clone, Debug)]
pub struct Held {
    pub id: String,
    pub wanted: Wanted,
    pub alive: bool,
    pub stopped: bool,
    pub files: Files,
}

#[derive(Clone, Debug)]
pub struct Shot {
    pub id: String,
    pub of: String,
    pub files: Files,
}

#[derive(Debug, Default)]
pub struct Model {
    pub boxes: Vec<Held>,
    pub shots: Vec<Shot>,
    pub keys: BTreeMap<u8, (Wanted, String)>,
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

impl Model {
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

    pub fn shot(&self, n: usize) -> Option<&Shot> {
        (!self.shots.is_empty()).then(|| &self.shots[n % self.shots.len()])
    }

    /// The sandbox that a snapshot was taken of, if it is still there.
    pub fn restored(&self, n: usize) -> Option<usize> {
        let shot = self.shot(n)?;
        self.boxes.iter().position(|one| one.alive && one.id == shot.of)
    }

    /// The kind of the fault, or none for success; nothing at all where there is nothing to do it to.
    pub fn expect(&self, op: &Op) -> Option<Option<ErrorKind>> {
        let gone = Some(Some(ErrorKind::NotFound));
        let conflict = Some(Some(ErrorKind::Conflict));
        match op {
            Op::Create(wanted) => Some(self.create(wanted)),
            Op::Collect => Some(None),
            Op::Remove(n) => self.pick(*n).map(|_| None),
            Op::Write { sandbox, .. } => match self.pick(*sandbox)? {
                one if one.alive && !one.stopped => Some(None),
                _ => None,
            },
            Op::Stop(n) => {
                if self.pick(*n)?.alive {
                    Some(None)
                } else {
                    gone
                }
            }
            Op::StopStale(n) => {
                if self.pick(*n)?.alive {
                    conflict
                } else {
                    gone
                }
            }
            Op::Start(n) => match self.pick(*n)? {
                one if !one.alive => gone,
                one if one.stopped && self.taken(&one.wanted, &one.id) => conflict,
                _ => Some(None),
            },
            Op::Snapshot(n) | Op::Fork(n) => {
                if self.pick(*n)?.alive {
                    Some(None)
                } else {
                    gone
                }
            }
            Op::ForkSnapshot(n) => self.shot(*n).map(|_| None),
            Op::Restore(n) => self.restored(*n).map(|_| None),
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

    /// What a verb that was done changes.
    pub fn learn(&mut self, op: &Op, answer: &str) {
        let picked = |n: usize| self.index(n).expect("it was done to one");
        let at = match op {
            Op::Create(_) | Op::ForkSnapshot(_) | Op::Collect => 0,
            Op::Write { sandbox, .. } => picked(*sandbox),
            Op::Restore(n) => self.restored(*n).expect("it was done to one"),
            Op::Stop(n) | Op::Start(n) | Op::Remove(n) | Op::StopStale(n) | Op::Snapshot(n) | Op::Fork(n) => picked(*n),
        };
        match op {
            Op::Create(wanted) => {
                if self.boxes.iter().all(|b| b.id != answer) {
                    self.add(answer, wanted.clone(), Files::new());
                }
                if let Some(key) = wanted.key {
                    self.keys.entry(key).or_insert((wanted.clone(), answer.to_owned()));
                }
            }
            Op::Write { file, value, .. } => {
                self.boxes[at].files.insert(format!("f{file}"), value.to_string());
            }
            Op::Stop(_) => self.boxes[at].stopped = true,
            Op::Start(_) => self.boxes[at].stopped = false,
            Op::Remove(_) => self.boxes[at].alive = false,
            Op::StopStale(_) => {}
            Op::Snapshot(_) => {
                let Held { id, files, .. } = self.boxes[at].clone();
                self.shots.push(Shot { id: answer.to_owned(), of: id, files });
            }
            Op::Fork(_) => {
                let files = self.boxes[at].files.clone();
                self.add(answer, Wanted::default(), files);
            }
            Op::ForkSnapshot(n) => {
                let files = self.shots[*n % self.shots.len()].files.clone();
                self.add(answer, Wanted::default(), files);
            }
            Op::Restore(n) => {
                let files = self.shots[*n % self.shots.len()].files.clone();
                self.boxes[at].files = files;
            }
            Op::Collect => self.boxes.iter_mut().filter(|b| b.wanted.short).for_each(|b| b.alive = false),
        }
    }

    fn add(&mut self, id: &str, wanted: Wanted, files: Files) {
        self.boxes.push(Held { id: id.to_owned(), wanted, alive: true, stopped: false, files });
    }

    pub fn states(&self) -> BTreeMap<String, String> {
        let word = |b: &Held| if b.stopped { "stopped" } else { "active" };
        self.boxes.iter().filter(|b| b.alive).map(|b| (b.id.clone(), word(b).to_owned())).collect()
    }

    pub fn files(&self) -> BTreeMap<String, Files> {
        self.boxes.iter().filter(|b| b.alive).map(|b| (b.id.clone(), b.files.clone())).collect()
    }
}
