//! Glob patterns over whole paths: components with wildcards, and `**` for any number of components, none included.
//! Matching tracks a set of states (an NFA) and never backtracks over components, so no pattern is slow.

use crate::component::{PatternPart, part_matches, part_text};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Bound on components: the bits of a state set, less the final one.
pub(crate) const MAX_PARTS: usize = 120;

/// A pattern over whole paths, variables already replaced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    parts: Vec<PatternPart>,
}

/// Set of NFA states: a bit per part that may match next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct States(u128);

impl States {
    pub(crate) fn is_dead(self) -> bool {
        self.0 == 0
    }
}

impl Pattern {
    /// Builds a pattern; `None` for more components than can be matched.
    pub(crate) fn new(parts: Vec<PatternPart>) -> Option<Pattern> {
        (parts.len() <= MAX_PARTS).then_some(Pattern { parts })
    }

    /// Parses an absolute pattern, such as that of a guard.
    pub fn parse(text: &str) -> Option<Pattern> {
        let path = crate::path::RulePath::parse_shape(text).ok()?;
        text.starts_with('/').then(|| path.on(Path::new("/"))).flatten()
    }

    /// Builds the pattern that names exactly `path`, and so all paths below it.
    pub(crate) fn literal(path: &Path) -> Option<Pattern> {
        Pattern::new(names(path).map(|n| PatternPart::Literal(n.to_owned())).collect())
    }

    /// Returns true if the path itself or a directory above it matches.
    pub fn covers(&self, path: &Path) -> bool {
        let mut states = self.start();
        if self.accepts(states) {
            return true;
        }
        for name in names(path) {
            states = self.step(states, name);
            if self.accepts(states) {
                return true;
            }
            if states.is_dead() {
                return false;
            }
        }
        false
    }

    /// Returns true if the whole path matches, not only a directory above it.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        let end = names(path).fold(self.start(), |states, name| self.step(states, name));
        self.accepts(end)
    }

    pub(crate) fn start(&self) -> States {
        self.close(1)
    }

    pub(crate) fn step(&self, states: States, name: &OsStr) -> States {
        let mut next = 0u128;
        for (i, part) in self.parts.iter().enumerate() {
            if states.0 & (1 << i) == 0 {
                continue;
            }
            match part {
                PatternPart::AnyDepth => next |= 1 << i,
                other if part_matches(other, name) => next |= 1 << (i + 1),
                _ => {}
            }
        }
        self.close(next)
    }

    /// Returns the states after a whole path.
    pub(crate) fn after(&self, path: &Path) -> States {
        names(path).fold(self.start(), |states, name| self.step(states, name))
    }

    pub(crate) fn accepts(&self, states: States) -> bool {
        states.0 & (1 << self.parts.len()) != 0
    }

    /// Returns true if a `**` can match the next component, so that a walk is bounded by the tree and not by the
    /// pattern.
    pub(crate) fn is_unbounded(&self, states: States) -> bool {
        self.parts.iter().enumerate().any(|(i, p)| states.0 & (1 << i) != 0 && *p == PatternPart::AnyDepth)
    }

    /// Returns the name that must come next, if there is only one.
    pub(crate) fn only_next(&self, states: States) -> Option<&OsStr> {
        match self.parts.get(states.0.trailing_zeros() as usize) {
            Some(PatternPart::Literal(name)) if states.0.count_ones() == 1 => Some(name),
            _ => None,
        }
    }

    /// Returns the path of a pattern without wildcards.
    pub(crate) fn as_path(&self) -> Option<PathBuf> {
        let mut path = PathBuf::from("/");
        for part in &self.parts {
            match part {
                PatternPart::Literal(name) => path.push(name),
                _ => return None,
            }
        }
        Some(path)
    }

    /// Replaces the leading literal components by `real`, the path that they resolve to.
    pub(crate) fn rebased(&self, skip: usize, real: &Path) -> Option<Pattern> {
        let head = names(real).map(|n| PatternPart::Literal(n.to_owned()));
        Pattern::new(head.chain(self.parts[skip..].iter().cloned()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the number of leading literal components.
    pub(crate) fn literal_len(&self) -> usize {
        self.parts.iter().take_while(|p| matches!(p, PatternPart::Literal(_))).count()
    }

    /// Returns the path of the first `count` components, which must be literal.
    pub(crate) fn head(&self, count: usize) -> PathBuf {
        let mut path = PathBuf::from("/");
        for part in &self.parts[..count] {
            if let PatternPart::Literal(name) = part {
                path.push(name);
            }
        }
        path
    }

    /// Returns the text of the pattern; names with wildcard characters are escaped, so that it parses back.
    pub fn text(&self) -> String {
        if self.parts.is_empty() {
            return "/".to_owned();
        }
        self.parts.iter().map(|part| format!("/{}", part_text(part))).collect()
    }

    fn close(&self, mut bits: u128) -> States {
        for (i, part) in self.parts.iter().enumerate() {
            if bits & (1 << i) != 0 && *part == PatternPart::AnyDepth {
                bits |= 1 << (i + 1);
            }
        }
        States(bits)
    }
}

/// Returns the components of an absolute path.
pub(crate) fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

#[cfg(test)]
#[path = "glob_test.rs"]
mod test;
