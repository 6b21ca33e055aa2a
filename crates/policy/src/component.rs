//! Components of a glob pattern: `*` any characters, `?` one, `[…]` one of a class.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// A component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PatternPart {
    Literal(OsString),
    Wild(Vec<PatternToken>),
    AnyDepth,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PatternToken {
    One(u32),
    AnyOne,
    AnyRun,
    Class { negated: bool, ranges: Vec<(u32, u32)> },
}

/// Escapes every wildcard character of a name.
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

/// Parses a component. The error describes the mistake.
pub(crate) fn parse_part(text: &str) -> Result<PatternPart, String> {
    if text == "**" {
        return Ok(PatternPart::AnyDepth);
    }
    if text.contains("**") {
        return Err(format!("\"**\" stands alone in a component, not inside {text:?}"));
    }
    let mut tokens = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            '*' => PatternToken::AnyRun,
            '?' => PatternToken::AnyOne,
            '[' => parse_class(&mut chars, text)?,
            c => PatternToken::One(c as u32),
        });
    }
    Ok(simplify(tokens))
}

/// Reduces a component of single characters to a plain name; `[x]` is how a wildcard character is written literally.
fn simplify(mut tokens: Vec<PatternToken>) -> PatternPart {
    for token in &mut tokens {
        if let PatternToken::Class { negated: false, ranges } = token
            && let [(low, high)] = ranges[..]
            && low == high
        {
            *token = PatternToken::One(low);
        }
    }
    let letters: Option<String> = tokens
        .iter()
        .map(|token| match token {
            PatternToken::One(code) => char::from_u32(*code),
            _ => None,
        })
        .collect();
    match letters {
        Some(name) => PatternPart::Literal(name.into()),
        None => PatternPart::Wild(tokens),
    }
}

fn parse_class(chars: &mut std::str::Chars<'_>, whole: &str) -> Result<PatternToken, String> {
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
            return Err(format!("the range {low}-{high} in {whole:?} is the wrong way round"));
        }
        ranges.push((low as u32, high as u32));
    }
    Ok(PatternToken::Class { negated, ranges: merged(ranges) })
}

/// Sorts ranges and merges those that touch: equal classes are written the same way.
fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (low, high) in ranges {
        match out.last_mut() {
            Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
            _ => out.push((low, high)),
        }
    }
    out
}

/// Writes the inside of a class. Characters with a meaning by position come last: `-` between two others is a range,
/// `!` or `^` at the front a negation.
fn class_text(negated: bool, ranges: &[(u32, u32)]) -> String {
    let letter = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    let (mut front, mut back, mut dash) = (String::new(), String::new(), "");
    for &(mut low, high) in ranges {
        let negates = !negated && front.is_empty() && matches!(letter(low), '!' | '^');
        if negates {
            back.push(letter(low));
            low += 1;
        }
        if letter(low) == '-' {
            dash = "-";
            low += 1;
        }
        if low <= high {
            front.push(letter(low));
        }
        if low < high {
            front.extend(['-', letter(high)]);
        }
    }
    if front.is_empty() { format!("{dash}{back}") } else { format!("{front}{back}{dash}") }
}

pub(crate) fn part_matches(part: &PatternPart, name: &OsStr) -> bool {
    match part {
        PatternPart::AnyDepth => true,
        PatternPart::Literal(text) => text == name,
        PatternPart::Wild(tokens) => tokens_match(tokens, &units(name)),
    }
}

/// Returns the characters of a name; bytes that are not UTF-8 become units above every character.
fn units(name: &OsStr) -> Vec<u32> {
    let mut out = Vec::new();
    for chunk in name.as_bytes().utf8_chunks() {
        out.extend(chunk.valid().chars().map(|c| c as u32));
        out.extend(chunk.invalid().iter().map(|b| 0x11_0000 + u32::from(*b)));
    }
    out
}

/// Matches with two cursors: on a mismatch backtracks to the last `*` only, since an earlier one can never help.
fn tokens_match(tokens: &[PatternToken], name: &[u32]) -> bool {
    let (mut t, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match tokens.get(t) {
            Some(PatternToken::AnyRun) => {
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
    tokens[t..].iter().all(|token| *token == PatternToken::AnyRun)
}

fn token_matches(token: &PatternToken, unit: u32) -> bool {
    match token {
        PatternToken::One(code) => *code == unit,
        PatternToken::AnyOne => true,
        PatternToken::AnyRun => false,
        PatternToken::Class { negated, ranges } => ranges.iter().any(|(a, b)| (*a..=*b).contains(&unit)) != *negated,
    }
}

pub(crate) fn part_text(part: &PatternPart) -> String {
    match part {
        PatternPart::AnyDepth => "**".to_owned(),
        PatternPart::Literal(name) => escape(&name.to_string_lossy()),
        PatternPart::Wild(tokens) => tokens.iter().map(token_text).collect(),
    }
}

fn token_text(token: &PatternToken) -> String {
    let letter = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match token {
        PatternToken::One(code) => escape(&letter(*code).to_string()),
        PatternToken::AnyOne => "?".to_owned(),
        PatternToken::AnyRun => "*".to_owned(),
        PatternToken::Class { negated, ranges } => {
            format!("[{}{}]", if *negated { "!" } else { "" }, class_text(*negated, ranges))
        }
    }
}
