//! Cursor into a document's tree that knows its path, so that every error names its field.

use crate::locate::{FieldPart, PathStep};
use crate::node::Node;
use crate::path::PathRefusal;
use crate::schema::{Section, nearest};
use std::collections::BTreeSet;
use terms::{COUNTS, MEGABYTES};

/// An error with the path of its field; the position in the text is looked up later.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) path: Vec<PathStep>,
    pub(crate) spot: FieldPart,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Problem {
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) node: &'a Node,
    path: Vec<PathStep>,
}

/// The fields of an object whose keys are all known.
pub(crate) struct ObjectFields<'a> {
    entries: &'a [(String, Node)],
    at: Cursor<'a>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn root(node: &'a Node) -> Cursor<'a> {
        Cursor { node, path: Vec::new() }
    }

    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { path: self.path.clone(), spot: FieldPart::Value, message: message.into(), hint: None }
    }

    pub(crate) fn refused(&self, refusal: PathRefusal) -> Problem {
        Problem { path: self.path.clone(), spot: FieldPart::Value, message: refusal.message, hint: refusal.hint }
    }

    fn expected(&self, what: &str) -> Problem {
        self.problem(format!("expected {what}, found {}", self.node.kind()))
    }

    fn child(&self, step: PathStep, node: &'a Node) -> Cursor<'a> {
        let mut path = self.path.clone();
        path.push(step);
        Cursor { node, path }
    }

    pub(crate) fn key_problem(&self, key: &str, message: impl Into<String>) -> Problem {
        let mut path = self.path.clone();
        path.push(PathStep::Key(key.to_owned()));
        Problem { path, spot: FieldPart::Key, message: message.into(), hint: None }
    }

    pub(crate) fn object(&self, section: &Section) -> Result<ObjectFields<'a>, Problem> {
        let Node::Map(entries) = self.node else {
            return Err(self.expected("an object"));
        };
        for (key, _) in entries {
            if !section.keys.iter().any(|k| k.name == key) {
                return Err(self.unknown_key(key, || section.keys.iter().map(|k| k.name)));
            }
        }
        Ok(ObjectFields { entries, at: self.clone() })
    }

    /// The error for an unknown key, with the nearest known key as a hint.
    pub(crate) fn unknown_key<'n, N: Iterator<Item = &'n str>>(&self, key: &str, names: impl Fn() -> N) -> Problem {
        let hint = match nearest(key, names()) {
            Some(name) => format!("did you mean {name:?}?"),
            None => format!("known keys: {}", names().collect::<Vec<_>>().join(", ")),
        };
        self.key_problem(key, "unknown key").hint(hint)
    }

    /// Returns the entries of an object with free keys.
    pub(crate) fn entries(&self) -> Result<Vec<(&'a str, Cursor<'a>)>, Problem> {
        let Node::Map(entries) = self.node else {
            return Err(self.expected("an object"));
        };
        Ok(entries.iter().map(|(k, v)| (k.as_str(), self.child(PathStep::Key(k.clone()), v))).collect())
    }

    pub(crate) fn items(&self) -> Result<Vec<Cursor<'a>>, Problem> {
        let Node::List(items) = self.node else {
            return Err(self.expected("a list"));
        };
        Ok(items.iter().enumerate().map(|(i, node)| self.child(PathStep::Index(i), node)).collect())
    }

    /// Returns any string; control characters are left to the caller.
    pub(crate) fn raw_text(&self) -> Result<&'a str, Problem> {
        match self.node {
            Node::Text(text) => Ok(text),
            Node::Int(n) => Err(self.expected("a string").hint(format!("write \"{n}\" in quotes"))),
            _ => Err(self.expected("a string")),
        }
    }

    /// Returns a non-empty string that can be printed on a line.
    pub(crate) fn text(&self) -> Result<&'a str, Problem> {
        let text = self.raw_text()?;
        if text.is_empty() {
            return Err(self.problem("the string is empty"));
        }
        match text.chars().find(|c| c.is_control()) {
            Some(bad) => Err(self.problem(format!("{text:?} contains the character {bad:?}"))),
            None => Ok(text),
        }
    }

    pub(crate) fn boolean(&self) -> Result<bool, Problem> {
        match self.node {
            Node::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    /// Returns a whole number from 1 to the largest that every JSON reader keeps exact.
    pub(crate) fn count(&self) -> Result<u64, Problem> {
        let most = COUNTS.end();
        match self.node {
            Node::Int(n) if u64::try_from(*n).is_ok_and(|n| COUNTS.contains(&n)) => Ok(*n as u64),
            Node::Int(n) => Err(self.problem(format!("{n} is out of range")).hint(format!("it goes from 1 to {most}"))),
            Node::Float(n) => Err(self.problem(format!("{n} is not a whole number"))),
            _ => Err(self.expected("a whole number")),
        }
    }

    /// Returns megabytes, rounded to the sixth decimal place, which is finer than a byte.
    pub(crate) fn megabytes(&self) -> Result<f64, Problem> {
        let value = match self.node {
            Node::Int(n) => *n as f64,
            Node::Float(n) => (n * 1e6).round() / 1e6,
            _ => return Err(self.expected("a number")),
        };
        match MEGABYTES.contains(&value) {
            true => Ok(value),
            false => {
                Err(self.problem(format!("{value} is out of range")).hint("it is more than 0 and at most 1000000000"))
            }
        }
    }

    /// Returns the value of a name from a closed list.
    pub(crate) fn one_of<T: Copy>(&self, known: &[(&'static str, T)]) -> Result<T, Problem> {
        let text = self.text()?;
        if let Some((_, value)) = known.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Err(self.problem(format!("unknown value {text:?}")).hint(one_of_these(text, &names)))
    }
}

impl<'a> ObjectFields<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<Cursor<'a>> {
        let (key, node) = self.entries.iter().find(|(key, _)| key == name)?;
        Some(self.at.child(PathStep::Key(key.clone()), node))
    }

    pub(crate) fn need(&self, name: &str) -> Result<Cursor<'a>, Problem> {
        self.get(name).ok_or_else(|| self.at.problem(format!("the key {name:?} is missing")))
    }

    /// Returns the items of an optional list.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<Cursor<'a>>, Problem> {
        self.get(name).map_or(Ok(Vec::new()), |field| field.items())
    }

    /// Returns the strings of an optional list; refuses duplicates.
    pub(crate) fn unique_texts(&self, name: &str) -> Result<Vec<String>, Problem> {
        let mut seen = BTreeSet::new();
        let mut out = Vec::new();
        for item in self.list(name)? {
            let text = item.text()?;
            if !seen.insert(text) {
                return Err(item.problem(format!("{text:?} is already in the list")));
            }
            out.push(text.to_owned());
        }
        Ok(out)
    }

    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        self.at.problem(message)
    }
}

pub(crate) fn one_of_these(wrong: &str, names: &[&str]) -> String {
    match nearest(wrong, names.iter().copied()) {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("use one of {}", names.join(", ")),
    }
}

/// Parses a string with the parser of its type.
pub(crate) fn parsed<T>(at: &Cursor<'_>, parse: impl Fn(&str) -> Result<T, PathRefusal>) -> Result<T, Problem> {
    parse(at.text()?).map_err(|refusal| at.refused(refusal))
}

/// Converts the path of the path tracker; used for errors of the JSON and TOML readers themselves.
pub(crate) fn steps(path: &serde_path_to_error::Path) -> Vec<PathStep> {
    use serde_path_to_error::Segment;
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(PathStep::Index(*index)),
            Segment::Map { key } => Some(PathStep::Key(key.clone())),
            _ => None,
        })
        .collect()
}
