//! Wildcards. Inside one component `*`, `?` and `[…]`; `**` as a whole component stands for any number of
//! components, none included. Matching keeps a set of states and never backtracks over components, so no
//! pattern makes it slow.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// As many components as one set of states has bits for, less the final one.
pub(crate) const MAX_PARTS: usize = 120;

/// One component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Literal(OsString),
    Wild(Vec<Token>),
    AnyDepth,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Token {
    One(u32),
    AnyOne,
    AnyRun,
    Class {
        negated: bool,
        ranges: Vec<(u32, u32)>,
    },
}

/// A pattern over whole paths, variables already replaced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    parts: Vec<Part>,
}

/// How far a pattern has got along a path: one bit per part that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct States(u128);

impl States {
    pub(crate) fn is_dead(self) -> bool {
        self.0 == 0
    }
}

impl Pattern {
    /// `None` when there are more components than can be matched.
    pub(crate) fn new(parts: Vec<Part>) -> Option<Pattern> {
        (parts.len() <= MAX_PARTS).then_some(Pattern { parts })
    }

    /// Reads an absolute pattern, such as that of a guard.
    pub fn parse(text: &str) -> Option<Pattern> {
        let path = crate::path::RulePath::parse_shape(text).ok()?;
        text.starts_with('/')
            .then(|| path.on(Path::new("/")))
            .flatten()
    }

    /// The pattern that names exactly `path` and what is below it.
    pub(crate) fn literal(path: &Path) -> Option<Pattern> {
        Pattern::new(names(path).map(|n| Part::Literal(n.to_owned())).collect())
    }

    /// Whether the rule covers `path`: the path itself or a directory above it matches.
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

    /// Whether the whole path matches, not only a directory above it.
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
                Part::AnyDepth => next |= 1 << i,
                other if part_matches(other, name) => next |= 1 << (i + 1),
                _ => {}
            }
        }
        self.close(next)
    }

    /// The states after a whole path.
    pub(crate) fn after(&self, path: &Path) -> States {
        names(path).fold(self.start(), |states, name| self.step(states, name))
    }

    pub(crate) fn accepts(&self, states: States) -> bool {
        states.0 & (1 << self.parts.len()) != 0
    }

    /// Whether a `**` can swallow what comes next, so that a walk is bounded by the tree and not by the pattern.
    pub(crate) fn is_unbounded(&self, states: States) -> bool {
        self.parts
            .iter()
            .enumerate()
            .any(|(i, p)| states.0 & (1 << i) != 0 && *p == Part::AnyDepth)
    }

    /// The name that must come next, when only one can.
    pub(crate) fn only_next(&self, states: States) -> Option<&OsStr> {
        match self.parts.get(states.0.trailing_zeros() as usize) {
            Some(Part::Literal(name)) if states.0.count_ones() == 1 => Some(name),
            _ => None,
        }
    }

    /// The path this pattern names, when it holds no wildcard.
    pub(crate) fn as_path(&self) -> Option<PathBuf> {
        let mut path = PathBuf::from("/");
        for part in &self.parts {
            match part {
                Part::Literal(name) => path.push(name),
                _ => return None,
            }
        }
        Some(path)
    }

    /// The pattern with its leading literal components replaced by `real`, the place they lead to.
    pub(crate) fn rebased(&self, skip: usize, real: &Path) -> Option<Pattern> {
        let head = names(real).map(|n| Part::Literal(n.to_owned()));
        Pattern::new(head.chain(self.parts[skip..].iter().cloned()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// How many leading components are literal.
    pub(crate) fn literal_len(&self) -> usize {
        self.parts
            .iter()
            .take_while(|p| matches!(p, Part::Literal(_)))
            .count()
    }

    /// The path of the first `count` components, which must be literal.
    pub(crate) fn head(&self, count: usize) -> PathBuf {
        let mut path = PathBuf::from("/");
        for part in &self.parts[..count] {
            if let Part::Literal(name) = part {
                path.push(name);
            }
        }
        path
    }

    /// The text of the pattern; names that hold wildcard characters are escaped, so that it can be read back.
    pub fn text(&self) -> String {
        if self.parts.is_empty() {
            return "/".to_owned();
        }
        self.parts
            .iter()
            .map(|part| format!("/{}", part_text(part)))
            .collect()
    }

    fn close(&self, mut bits: u128) -> States {
        for (i, part) in self.parts.iter().enumerate() {
            if bits & (1 << i) != 0 && *part == Part::AnyDepth {
                bits |= 1 << (i + 1);
            }
        }
        States(bits)
    }
}

/// The components of an absolute path.
pub(crate) fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// A component with every wildcard character made literal.
pub(crate) fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '*' | '?' | '[' => out.extend(['[', c, ']']),
            _ => out.push(c),
        }
    }
    out
}

/// Reads one component. The error says what is wrong with it.
pub(crate) fn parse_part(text: &str) -> Result<Part, String> {
    if text == "**" {
        return Ok(Part::AnyDepth);
    }
    if text.contains("**") {
        return Err(format!(
            "\"**\" stands alone in a component, not inside {text:?}"
        ));
    }
    let mut tokens = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => Token::AnyRun,
            '?' => Token::AnyOne,
            '[' => parse_class(&mut chars, text)?,
            c => Token::One(c as u32),
        });
    }
    Ok(simplify(tokens))
}

/// A component of single characters only is a plain name; `[x]` is how a wildcard character is written literally.
fn simplify(mut tokens: Vec<Token>) -> Part {
    for token in &mut tokens {
        if let Token::Class {
            negated: false,
            ranges,
        } = token
            && let [(low, high)] = ranges[..]
            && low == high
        {
            *token = Token::One(low);
        }
    }
    let letters: Option<String> = tokens
        .iter()
        .map(|token| match token {
            Token::One(code) => char::from_u32(*code),
            _ => None,
        })
        .collect();
    match letters {
        Some(name) => Part::Literal(name.into()),
        None => Part::Wild(tokens),
    }
}

fn parse_class(chars: &mut std::str::Chars<'_>, whole: &str) -> Result<Token, String> {
    let unclosed = || format!("\"[\" without \"]\" in {whole:?}");
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut next = chars.next().ok_or_else(unclosed)?;
    let negated = next == '!' || next == '^';
    if negated {
        next = chars.next().ok_or_else(unclosed)?;
    }
    if next == ']' {
        return Err(format!("\"[]\" in {whole:?} matches nothing"));
    }
    while next != ']' {
        let low = next;
        next = chars.next().ok_or_else(unclosed)?;
        let mut high = low;
        let mut ahead = chars.clone();
        if next == '-' && ahead.next().is_some_and(|c| c != ']') {
            high = chars.next().ok_or_else(unclosed)?;
            next = chars.next().ok_or_else(unclosed)?;
        }
        if high < low {
            return Err(format!(
                "the range {low}-{high} in {whole:?} is the wrong way round"
            ));
        }
        ranges.push((low as u32, high as u32));
    }
    Ok(Token::Class { negated, ranges })
}

fn part_matches(part: &Part, name: &OsStr) -> bool {
    match part {
        Part::AnyDepth => true,
        Part::Literal(text) => text == name,
        Part::Wild(tokens) => tokens_match(tokens, &units(name)),
    }
}

/// Characters of a name; bytes that are not UTF-8 become units above every character.
fn units(name: &OsStr) -> Vec<u32> {
    let mut out = Vec::new();
    for chunk in name.as_bytes().utf8_chunks() {
        out.extend(chunk.valid().chars().map(|c| c as u32));
        out.extend(chunk.invalid().iter().map(|b| 0x11_0000 + u32::from(*b)));
    }
    out
}

/// The usual two cursors: on a mismatch go back to the last `*` only, since an earlier one can never help.
fn tokens_match(tokens: &[Token], name: &[u32]) -> bool {
    let (mut t, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match tokens.get(t) {
            Some(Token::AnyRun) => {
                retry = Some((t + 1, n));
                t += 1;
                continue;
            }
            Some(token) if token_matches(token, name[n]) => {
                t += 1;
                n += 1;
                continue;
            }
            _ => {}
        }
        match retry {
            Some((after, from)) => {
                retry = Some((after, from + 1));
                t = after;
                n = from + 1;
            }
            None => return false,
        }
    }
    tokens[t..].iter().all(|token| *token == Token::AnyRun)
}

fn token_matches(token: &Token, unit: u32) -> bool {
    match token {
        Token::One(code) => *code == unit,
        Token::AnyOne => true,
        Token::AnyRun => false,
        Token::Class { negated, ranges } => {
            ranges.iter().any(|(a, b)| (*a..=*b).contains(&unit)) != *negated
        }
    }
}

pub(crate) fn part_text(part: &Part) -> String {
    match part {
        Part::AnyDepth => "**".to_owned(),
        Part::Literal(name) => escape(&name.to_string_lossy()),
        Part::Wild(tokens) => tokens.iter().map(token_text).collect(),
    }
}

fn token_text(token: &Token) -> String {
    let letter = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match token {
        Token::One(code) => escape(&letter(*code).to_string()),
        Token::AnyOne => "?".to_owned(),
        Token::AnyRun => "*".to_owned(),
        Token::Class { negated, ranges } => {
            let mut out = String::from(if *negated { "[!" } else { "[" });
            for (low, high) in ranges {
                out.push(letter(*low));
                if high > low {
                    out.extend(['-', letter(*high)]);
                }
            }
            out.push(']');
            out
        }
    }
}

#[cfg(test)]
#[path = "glob_test.rs"]
mod test;
