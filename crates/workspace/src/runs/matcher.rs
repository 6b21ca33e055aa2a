//! Finds the rules that match a path. Most patterns are a name, an extension or a directory anywhere in the tree:
//! those are looked up in maps. Only the rest is compiled to regular expressions, because every `diff` waits for the
//! compilation.

use super::{RULES, RunsRule};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// Indices of rules by the shape of their pattern.
#[derive(Default)]
struct Matcher {
    /// `**/name`
    names: HashMap<String, Vec<usize>>,
    /// `**/*.ending`, with its dot.
    endings: HashMap<String, Vec<usize>>,
    /// `**/directory/**`
    directories: HashMap<String, Vec<usize>>,
    /// Compiled patterns of any other shape, and the rule of each.
    globs: GlobSet,
    rule_of_glob: Vec<usize>,
    /// Directories whose files match some rule.
    leading: BTreeSet<String>,
}

/// Shape of one expanded pattern.
enum Shape<'a> {
    Name(&'a str),
    Ending(&'a str),
    Directory(&'a str),
    Other,
}

impl Shape<'_> {
    fn of(pattern: &str) -> Shape<'_> {
        let is_plain = |text: &str| !text.is_empty() && !text.contains(['*', '?', '[', '/']);
        let Some(rest) = pattern.strip_prefix("**/") else { return Shape::Other };
        match (rest.strip_prefix('*'), rest.strip_suffix("/**")) {
            (_, Some(directory)) if is_plain(directory) => Shape::Directory(directory),
            (Some(ending), _) if ending.starts_with('.') && is_plain(ending) => Shape::Ending(ending),
            _ if is_plain(rest) => Shape::Name(rest),
            _ => Shape::Other,
        }
    }
}

static MATCHER: LazyLock<Matcher> = LazyLock::new(Matcher::build);

impl Matcher {
    fn build() -> Matcher {
        let (mut matcher, mut globs) = (Matcher::default(), GlobSetBuilder::new());
        for (number, rule) in RULES.iter().enumerate() {
            let mut needs_glob = false;
            for pattern in spelled_out(rule.pattern) {
                matcher.leading.extend(leading_directory(&pattern).map(str::to_owned));
                let (map, key) = match Shape::of(&pattern) {
                    Shape::Name(name) => (&mut matcher.names, name),
                    Shape::Ending(ending) => (&mut matcher.endings, ending),
                    Shape::Directory(directory) => (&mut matcher.directories, directory),
                    Shape::Other => {
                        needs_glob = true;
                        continue;
                    }
                };
                map.entry(key.to_owned()).or_default().push(number);
            }
            // The table is part of the program; a test shows that every pattern compiles.
            let glob = GlobBuilder::new(rule.pattern).literal_separator(true).empty_alternates(true).build();
            if let (true, Ok(glob)) = (needs_glob, glob) {
                globs.add(glob);
                matcher.rule_of_glob.push(number);
            }
        }
        matcher.globs = globs.build().unwrap_or_else(|_| GlobSet::empty());
        matcher
    }

    fn numbers(&self, path: &str) -> BTreeSet<usize> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let endings = name.match_indices('.').map(|(at, _)| &name[at..]);
        let mut met: BTreeSet<usize> = self.names.get(name).into_iter().flatten().copied().collect();
        met.extend(endings.filter_map(|ending| self.endings.get(ending)).flatten());
        met.extend(above.split('/').filter_map(|part| self.directories.get(part)).flatten());
        met.extend(self.globs.matches(path).into_iter().map(|index| self.rule_of_glob[index]));
        met
    }
}

/// Ordinary directory names in which single names match, and which tools trust more than others.
const TRUSTED_DIRECTORIES: &[&str] = &["bin", "tools", "mise"];

/// First directory of a pattern, if it is hidden, belongs to a tool as a whole, or is trusted: `docs` does not count
/// because of a single `conf.py` in it.
fn leading_directory(pattern: &str) -> Option<&str> {
    let (first, rest) = pattern.strip_prefix("**/")?.split_once('/')?;
    let counts = first.starts_with('.') || rest == "**" || TRUSTED_DIRECTORIES.contains(&first);
    (counts && !first.contains('*')).then_some(first)
}

/// Rules that match a folded path, in table order.
pub fn rules_for(path: &str) -> Vec<&'static RunsRule> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let rules = MATCHER.numbers(path).into_iter().map(|number| RULES[number]);
    rules.filter(|rule| !rule.excepts(name)).collect()
}

/// True if files in a directory of that name match rules: a link in its place would direct tools to other files.
pub fn has_directory(name: &str) -> bool {
    MATCHER.leading.contains(name)
}

/// Expands alternatives `{a,b}` of a pattern.
pub fn spelled_out(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else { return vec![pattern.to_owned()] };
    let (mut depth, mut from, mut parts) = (0, open + 1, Vec::new());
    for (at, c) in pattern.char_indices().skip_while(|(at, _)| *at < open) {
        match (c, depth) {
            ('{', _) => depth += 1,
            (',', 1) => {
                parts.push(&pattern[from..at]);
                from = at + 1;
            }
            ('}', 1) => {
                parts.push(&pattern[from..at]);
                let (head, tail) = (&pattern[..open], &pattern[at + 1..]);
                return parts.iter().flat_map(|part| spelled_out(&format!("{head}{part}{tail}"))).collect();
            }
            ('}', _) => depth -= 1,
            _ => {}
        }
    }
    vec![pattern.to_owned()]
}
