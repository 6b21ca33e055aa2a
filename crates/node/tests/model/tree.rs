//! A base and the layers over it, in memory. A file is encoded as one string: its kind (`-` plain, `x` executable, `l`
//! link), then its content.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

pub type Files = BTreeMap<String, String>;

/// A file of the base with its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub text: String,
    pub stamp: u64,
}

/// The base, and a logical clock that advances with every change.
#[derive(Clone, Debug)]
pub struct State {
    pub files: BTreeMap<String, Fact>,
    clock: u64,
    /// Every content that a path ever had, by time.
    past: BTreeMap<(String, u64), Option<String>>,
}

impl State {
    pub fn of(files: &Files) -> State {
        let fact = |text: &String| Fact { text: text.clone(), stamp: 0 };
        let past = files.iter().map(|(path, text)| ((path.clone(), 0), Some(text.clone()))).collect();
        State { files: files.iter().map(|(path, text)| (path.clone(), fact(text))).collect(), clock: 0, past }
    }

    pub fn set(&mut self, path: &str, text: Option<String>) {
        self.clock += 1;
        self.past.insert((path.to_owned(), self.clock), text.clone());
        match text {
            Some(text) => drop(self.files.insert(path.to_owned(), Fact { text, stamp: self.clock })),
            None => drop(self.files.remove(path)),
        }
    }

    /// Content of a path at a time.
    pub fn text_at(&self, path: &str, stamp: u64) -> Option<&String> {
        let until = self.past.range((path.to_owned(), 0)..=(path.to_owned(), stamp));
        until.last().and_then(|(_, text)| text.as_ref())
    }

    /// Time of the next change.
    pub fn next(&self) -> u64 {
        self.clock + 1
    }

    pub fn files(&self) -> Files {
        self.files.iter().map(|(path, fact)| (path.clone(), fact.text.clone())).collect()
    }
}

/// Entries of layers by path: a file, or `None` for a whiteout.
type Entries = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug)]
struct Layer {
    /// Unique number.
    number: u64,
    entries: Entries,
}

impl Layer {
    fn new() -> Layer {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Layer { number: NEXT.fetch_add(1, Ordering::Relaxed), entries: Entries::new() }
    }
}

/// A workspace: its layers from the bottom up, and its knowledge of the base.
#[derive(Clone, Debug)]
pub struct Stack {
    layers: Vec<Layer>,
    /// Time at which the base was first seen, and later timestamps of single files.
    pub since: u64,
    pub anchors: BTreeMap<String, Option<u64>>,
}

impl Stack {
    pub fn new(base: &State) -> Stack {
        Stack { layers: vec![Layer::new()], since: base.clock, anchors: BTreeMap::new() }
    }

    /// Merged entries of all layers.
    pub fn entries(&self) -> Entries {
        self.layers.iter().flat_map(|layer| &layer.entries).map(|(path, own)| (path.clone(), own.clone())).collect()
    }

    /// The guest's view.
    pub fn view(&self, base: &State) -> Files {
        let mut files = base.files();
        for (path, own) in self.entries() {
            match own {
                Some(text) => drop(files.insert(path, text)),
                None => drop(files.remove(&path)),
            }
        }
        files
    }

    /// Visibility of the path without the topmost layer.
    pub fn shows_below(&self, base: &State, path: &str) -> bool {
        match self.below(path) {
            Some(own) => own.is_some(),
            None => base.files.contains_key(path),
        }
    }

    fn below(&self, path: &str) -> Option<&Option<String>> {
        self.layers.iter().rev().skip(1).find_map(|layer| layer.entries.get(path))
    }

    fn top(&mut self) -> &mut Entries {
        &mut self.layers.last_mut().expect("there is always one").entries
    }

    pub fn write(&mut self, base: &State, path: &str, text: Option<String>) {
        match text.is_none() && !self.shows_below(base, path) {
            true => drop(self.top().remove(path)),
            false => drop(self.top().insert(path.to_owned(), text)),
        }
    }

    /// Adds a fresh layer, unless the topmost is empty.
    pub fn freeze(&mut self) -> Stack {
        if !self.top().is_empty() {
            self.layers.push(Layer::new());
        }
        self.over()
    }

    /// A new stack over the same layers with an empty one in place of the topmost.
    pub fn over(&self) -> Stack {
        let mut other = self.clone();
        other.layers.pop();
        other.layers.push(Layer::new());
        other
    }

    /// Restores layers and knowledge of the base, unless the stack already equals the snapshot.
    pub fn restore(&mut self, to: &Stack) {
        let frozen = |stack: &Stack| stack.layers.iter().rev().skip(1).map(|layer| layer.number).collect::<Vec<_>>();
        if !self.top().is_empty() || frozen(self) != frozen(to) || self.since != to.since {
            *self = to.over();
        }
    }

    /// Records the timestamp of a base file.
    pub fn know(&mut self, base: &State, path: &str) {
        self.anchors.insert(path.to_owned(), base.files.get(path).map(|fact| fact.stamp));
    }

    /// Drops a landed change where the base then shows through.
    pub fn drop_landed(&mut self, path: &str) {
        if self.below(path).is_none() {
            self.top().remove(path);
        }
    }

    /// Makes the change pending again where only the base shows.
    pub fn put_back(&mut self, path: &str, text: Option<String>) {
        if !self.entries().contains_key(path) {
            self.top().insert(path.to_owned(), text);
        }
    }

    /// Discards a change.
    pub fn as_base(&mut self, base: &State, path: &str) {
        match self.below(path) {
            None => drop(self.top().remove(path)),
            Some(_) => {
                let text = base.files.get(path).map(|fact| fact.text.clone());
                self.top().insert(path.to_owned(), text);
            }
        }
    }
}
