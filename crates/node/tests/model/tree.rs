//! A base and the layers over it, in memory. A file is told by one word: its kind (`-` plain, `x` executable, `l` link), then
//! what is in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

pub type Files = BTreeMap<String, String>;

/// A file of the base, and when it was last changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub text: String,
    pub stamp: u64,
}

/// The base, and a clock that goes on with every change.
#[derive(Clone, Debug)]
pub struct State {
    pub files: BTreeMap<String, Fact>,
    clock: u64,
    /// Every text that a path ever had, by when it came.
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

    /// What stood at a path at a time.
    pub fn text_at(&self, path: &str, stamp: u64) -> Option<&String> {
        let until = self.past.range((path.to_owned(), 0)..=(path.to_owned(), stamp));
        until.last().and_then(|(_, text)| text.as_ref())
    }

    /// The time of the next change.
    pub fn next(&self) -> u64 {
        self.clock + 1
    }

    pub fn files(&self) -> Files {
        self.files.iter().map(|(path, fact)| (path.clone(), fact.text.clone())).collect()
    }
}

/// What layers say of paths: a file, or that there is none.
type Sayings = BTreeMap<String, Option<String>>;

#[derive(Clone, Debug)]
struct Layer {
    /// No other has it.
    number: u64,
    says: Sayings,
}

impl Layer {
    fn new() -> Layer {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Layer { number: NEXT.fetch_add(1, Ordering::Relaxed), says: Sayings::new() }
    }
}

/// A workspace: its layers from the bottom up, and what it knows of its base.
#[derive(Clone, Debug)]
pub struct Stack {
    layers: Vec<Layer>,
    /// When it saw the base, and single files that it looked at later, as they were then.
    pub since: u64,
    pub anchors: BTreeMap<String, Option<u64>>,
}

impl Stack {
    pub fn new(base: &State) -> Stack {
        Stack { layers: vec![Layer::new()], since: base.clock, anchors: BTreeMap::new() }
    }

    /// What all layers say together.
    pub fn said(&self) -> Sayings {
        self.layers.iter().flat_map(|layer| &layer.says).map(|(path, own)| (path.clone(), own.clone())).collect()
    }

    /// What a guest sees.
    pub fn view(&self, base: &State) -> Files {
        let mut files = base.files();
        for (path, own) in self.said() {
            match own {
                Some(text) => drop(files.insert(path, text)),
                None => drop(files.remove(&path)),
            }
        }
        files
    }

    /// What a guest would see if the topmost layer said nothing.
    pub fn shows_below(&self, base: &State, path: &str) -> bool {
        match self.below(path) {
            Some(own) => own.is_some(),
            None => base.files.contains_key(path),
        }
    }

    fn below(&self, path: &str) -> Option<&Option<String>> {
        self.layers.iter().rev().skip(1).find_map(|layer| layer.says.get(path))
    }

    fn top(&mut self) -> &mut Sayings {
        &mut self.layers.last_mut().expect("there is always one").says
    }

    pub fn write(&mut self, base: &State, path: &str, text: Option<String>) {
        match text.is_none() && !self.shows_below(base, path) {
            true => drop(self.top().remove(path)),
            false => drop(self.top().insert(path.to_owned(), text)),
        }
    }

    /// A fresh layer comes over what was written, unless nothing was.
    pub fn freeze(&mut self) -> Stack {
        if !self.top().is_empty() {
            self.layers.push(Layer::new());
        }
        self.over()
    }

    /// Another one over the same layers but the topmost, which says nothing.
    pub fn over(&self) -> Stack {
        let mut other = self.clone();
        other.layers.pop();
        other.layers.push(Layer::new());
        other
    }

    /// Goes back, also with what it knew of its base then, unless it is there.
    pub fn restore(&mut self, to: &Stack) {
        let frozen = |stack: &Stack| stack.layers.iter().rev().skip(1).map(|layer| layer.number).collect::<Vec<_>>();
        if !self.top().is_empty() || frozen(self) != frozen(to) || self.since != to.since {
            *self = to.over();
        }
    }

    /// Looks at a file of the base.
    pub fn know(&mut self, base: &State, path: &str) {
        self.anchors.insert(path.to_owned(), base.files.get(path).map(|fact| fact.stamp));
    }

    /// What has landed need not be kept apart where the base then shows.
    pub fn drop_landed(&mut self, path: &str) {
        if self.below(path).is_none() {
            self.top().remove(path);
        }
    }

    /// The change waits again where nothing but the base shows.
    pub fn put_back(&mut self, path: &str, text: Option<String>) {
        if !self.said().contains_key(path) {
            self.top().insert(path.to_owned(), text);
        }
    }

    /// A change thrown away.
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
