//! Class of a change in review, from its path and, for a few names, from the bytes that differ. Fails closed: a change
//! that cannot be parsed counts as one that runs on the host.

use crate::alias::Aliases;
use crate::runs::{RunCondition, RunsRule, matcher};
use crate::scan::Pair;
use crate::twin;
use crate::unknown::{self, BaseDirs};
use api::{ChangeClass, FileKind, Rel, is_invisible};
use serde_json::Value;
use std::collections::BTreeMap;

/// Bytes of both sides; None for a side that does not exist.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    Known {
        before: Option<&'a [u8]>,
        after: Option<&'a [u8]>,
    },
    /// Too large to be read.
    Unknown,
}

/// Classifies a change. Moving a file away counts like changing it, and so does changing the target of an obeyed link.
pub fn of(pair: &Pair, bytes: Bytes<'_>, aliases: &Aliases, base: &BaseDirs<'_>) -> ChangeClass {
    let from = pair.from.as_ref();
    if let Some(why) = never(pair).or_else(|| from.and_then(git_part)) {
        return ChangeClass::Never { why: why.to_owned() };
    }
    let is = |kind| [&pair.before, &pair.after].into_iter().flatten().any(|entry| entry.kind == kind);
    if is(FileKind::Symlink) && leads_tools(&pair.path) {
        return ChangeClass::RunsOnHost { why: "link in place of a directory of settings".to_owned() };
    }
    // A directory is not a file of that name; it counts if rules match paths in it.
    let is_only_dir = [&pair.before, &pair.after].into_iter().flatten().all(|entry| entry.kind == FileKind::Dir);
    let rules_at = |path: &Rel| if is_only_dir { rules_for(&path.join(b"x")) } else { rules_for(path) };
    let mut rules = [Some(&pair.path), from].into_iter().flatten().flat_map(rules_at);
    let is_plain_edit = from.is_none() && !is(FileKind::Symlink) && !is(FileKind::Dir);
    let counts = |rule: &&RunsRule| !is_plain_edit || differs(rule.when, bytes);
    if let Some(rule) = rules.find(counts) {
        return ChangeClass::RunsOnHost { why: rule.why.to_owned() };
    }
    let others = [Some(&pair.path), from].into_iter().flatten().flat_map(|path| aliases.names_of(path));
    let mut others = others.filter_map(|(name, link)| Some((rules_at(&name).find(&counts)?, link)));
    match others.next() {
        Some((rule, link)) => ChangeClass::RunsOnHost { why: format!("{}, by the link {link}", rule.why) },
        None => held_as_unknown(pair, bytes, base),
    }
}

fn held_as_unknown(pair: &Pair, bytes: Bytes<'_>, base: &BaseDirs<'_>) -> ChangeClass {
    match unknown::held(pair, bytes, base) {
        Some(why) => ChangeClass::RunsOnHost { why: why.to_owned() },
        None => ChangeClass::Ordinary,
    }
}

/// True if tools look into a directory of that name.
fn leads_tools(path: &Rel) -> bool {
    matcher::has_directory(&folded_name(path)) || rules_for(&path.join(b"x")).next().is_some()
}

/// True if tools would obey the target of a link at this path.
pub fn is_obeyed(path: &Rel) -> bool {
    rules_for(path).next().is_some() || leads_tools(path)
}

/// True if the path matches a rule, whatever its bytes.
pub fn is_named(path: &Rel) -> bool {
    rules_for(path).next().is_some() || git_part(path).is_some()
}

fn never(pair: &Pair) -> Option<&'static str> {
    if let Some(why) = pair.trouble {
        return Some(why);
    }
    if pair.in_bare_repository {
        return Some("part of a git repository without a working tree");
    }
    git_part(&pair.path)
}

/// Matches a component of the path that git, possibly on another file system, takes for its own directory.
fn git_part(path: &Rel) -> Option<&'static str> {
    path.parts().any(is_git_name).then_some("part of a git directory")
}

/// True for `.git` in any case, with trailing characters that NTFS drops or characters that HFS+ ignores, and for its short
/// names on NTFS.
fn is_git_name(name: &[u8]) -> bool {
    // A cheap test first: most names are none of these.
    let can_be = name.iter().any(|b| matches!(b, b'g' | b'G' | b't' | b'T' | 0x80..)) && (4..=64).contains(&name.len());
    if !can_be {
        return false;
    }
    let visible: String = String::from_utf8_lossy(name).chars().filter(|c| !is_invisible(*c)).collect();
    let folded = twin::fold(visible.as_bytes());
    let stem = folded.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    let stem = stem.split('\\').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    stem == ".git" || stem.strip_prefix("git~").is_some_and(|n| n.len() == 1 && n.as_bytes()[0].is_ascii_digit())
}

/// Rules that match a path, in table order.
pub fn rules_for(path: &Rel) -> impl Iterator<Item = &'static RunsRule> + use<> {
    matcher::rules_for(&folded(path)).into_iter()
}

fn folded_name(path: &Rel) -> String {
    path.parts().next_back().map(folded_part).unwrap_or_default()
}

/// A path as the most lenient file system reads it: case-folded, without invisible characters.
fn folded(path: &Rel) -> String {
    path.parts().map(folded_part).collect::<Vec<_>>().join("/")
}

/// Folds one component of a path.
pub fn folded_part(name: &[u8]) -> String {
    let visible: String = twin::fold(name).chars().filter(|c| !is_invisible(*c)).collect();
    visible.trim_end_matches(['.', ' ']).to_owned()
}

/// True if the difference is of the kind that a rule is about.
fn differs(when: RunCondition, bytes: Bytes<'_>) -> bool {
    let Bytes::Known { before, after } = bytes else { return true };
    let text = |side: Option<&[u8]>| std::str::from_utf8(side.unwrap_or_default()).map(str::to_owned);
    let (Ok(before), Ok(after)) = (text(before), text(after)) else { return true };
    match when {
        RunCondition::Always => true,
        RunCondition::Keys(keys) => keys_differ(keys, &before, &after),
        // Multi-line strings may contain lines that look like section heads.
        RunCondition::Outside(_)
            if [&before, &after].iter().any(|text| text.contains("\"\"\"") || text.contains("'''")) =>
        {
            true
        }
        RunCondition::Outside(sections) => {
            differing_lines(&before, &after).any(|(section, _)| !sections.contains(&&*section))
        }
        RunCondition::Words(words) => {
            differing_lines(&before, &after).any(|(_, line)| words.iter().any(|w| line.contains(w)))
        }
    }
}

fn keys_differ(keys: &[&str], before: &str, after: &str) -> bool {
    let read = |text: &str| match text.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_str::<Value>(text),
    };
    match (read(before), read(after)) {
        (Ok(before), Ok(after)) => keys.iter().any(|key| before.get(key) != after.get(key)),
        _ => true,
    }
}

/// Lines that occur more often on one side than on the other in the same section, with that section.
fn differing_lines(before: &str, after: &str) -> impl Iterator<Item = (String, String)> {
    let mut times: BTreeMap<(String, String), i64> = BTreeMap::new();
    for (text, step) in [(before, 1), (after, -1)] {
        let mut section = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            // Any line that begins like a section head is one: a list inside a section then counts as an unknown
            // section.
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
                section = name.trim_matches(['[', ' ']).to_lowercase();
            }
            *times.entry((section.clone(), line.to_lowercase())).or_default() += step;
        }
    }
    times.into_iter().filter(|(_, n)| *n != 0).map(|(place, _)| place)
}
