//! Rules as git writes them in `.gitignore`: patterns from text, decided for paths. Reads no file.

use crate::name::Rel;
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The rules of one file.
#[derive(Debug)]
pub struct Rules {
    /// The directory that the file is in.
    at: Rel,
    rules: Vec<Rule>,
    cost: u64,
}

#[derive(Debug)]
struct Rule {
    glob: GlobMatcher,
    /// Begins with `!`: not ignored after all.
    takes_back: bool,
    only_directories: bool,
    /// Has a slash: it is about the path below `at`, not about the last name.
    whole_path: bool,
}

/// The most that rules of one file may cost: each takes time for every path.
const MOST_RULES: u64 = 4096;

/// A rule costs one; a long one as much as several.
fn cost_of(line: &[u8]) -> u64 {
    1 + line.len() as u64 / 64
}

/// What rules may still cost while one tree is walked. When it is used up no rule counts any more: more is shown then, never
/// less, and a base that was made to keep a reviewer waiting does not.
#[derive(Debug)]
pub struct Patience {
    /// What rules may still be read, by what they cost.
    pub rules: u64,
    /// How often a path may still be held against a rule that costs one.
    pub tries: u64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { rules: 16_384, tries: 20_000_000 }
    }
}

impl Rules {
    /// A list that would cost too much counts for nothing: of one that is cut off the rules that take back would be missing.
    pub fn parse(at: &Rel, text: &[u8], patience: &mut Patience) -> Rules {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let lines = || text.split(|b| *b == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        let cost: u64 = lines().map(cost_of).sum();
        let mut rules = Rules { at: at.clone(), rules: Vec::new(), cost: 0 };
        if cost <= MOST_RULES.min(patience.rules) {
            patience.rules -= cost;
            rules.cost = cost;
            rules.rules = lines().filter_map(|line| Rule::parse(std::str::from_utf8(line).ok()?)).collect();
        }
        rules
    }

    /// What it costs to hold a path against all of them.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// What the last rule that matches says about a path; none where none does.
    pub fn decide(&self, path: &Rel, is_dir: bool) -> Option<bool> {
        let below = path.as_bytes().get(self.at.as_bytes().len()..)?;
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let name = path.parts().next_back()?;
        let matches = |rule: &&Rule| {
            let subject = OsStr::from_bytes(if rule.whole_path { below } else { name });
            (is_dir || !rule.only_directories) && rule.glob.is_match(subject)
        };
        self.rules.iter().rev().find(matches).map(|rule| !rule.takes_back)
    }
}

impl Rule {
    fn parse(line: &str) -> Option<Rule> {
        let line = without_trailing_spaces(line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (line, takes_back) = line.strip_prefix('!').map_or((line, false), |rest| (rest, true));
        let (line, only_directories) = line.strip_suffix('/').map_or((line, false), |rest| (rest, true));
        let whole_path = line.contains('/');
        let pattern = line.strip_prefix('/').unwrap_or(line);
        if pattern.is_empty() {
            return None;
        }
        // Braces mean nothing to git.
        let pattern = pattern.replace('{', "[{]").replace('}', "[}]");
        // `a/**` is what is in `a`, and not `a`.
        let pattern = pattern.strip_suffix("/**").map_or(pattern.clone(), |dir| format!("{dir}/**/*"));
        let glob = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(true).build().ok()?;
        Some(Rule { glob: glob.compile_matcher(), takes_back, only_directories, whole_path })
    }
}

/// Spaces at the end count only behind a backslash.
fn without_trailing_spaces(line: &str) -> &str {
    let trimmed = line.trim_end_matches(' ');
    match trimmed.ends_with('\\') && trimmed.len() < line.len() {
        true => &line[..trimmed.len() + 1],
        false => trimmed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_mean_what_git_means() {
        let rules = "*.log\n!keep.log\n/top\nsub/x\nlogs/\na/**/z\n\\#odd\n# comment\n\nspace\\ \nq{1}\nall/**\n";
        let rules = Rules::parse(&Rel::top(), rules.as_bytes(), &mut Patience::default());
        let cases = [
            ("a.log", false, Some(true)),
            ("deep/a.log", false, Some(true)),
            ("deep/keep.log", false, Some(false)),
            ("top", false, Some(true)),
            ("deep/top", false, None),
            ("sub/x", false, Some(true)),
            ("deep/sub/x", false, None),
            ("logs", true, Some(true)),
            ("logs", false, None),
            ("deep/logs", true, Some(true)),
            ("a/z", false, Some(true)),
            ("a/b/c/z", false, Some(true)),
            ("#odd", false, Some(true)),
            ("space ", false, Some(true)),
            ("space", false, None),
            ("q{1}", false, Some(true)),
            ("q1", false, None),
            ("all", true, None),
            ("all/x", false, Some(true)),
            ("other", false, None),
        ];
        for (path, is_dir, want) in cases {
            assert_eq!(rules.decide(&Rel::parse(path.as_bytes()).unwrap(), is_dir), want, "{path}");
        }
    }

    #[test]
    fn rules_of_a_directory_are_about_what_is_in_it() {
        let rules = Rules::parse(&Rel::parse(b"sub").unwrap(), b"/x\n*.o\n", &mut Patience::default());
        let decide = |path: &str| rules.decide(&Rel::parse(path.as_bytes()).unwrap(), false);
        assert_eq!((decide("sub/x"), decide("sub/deep/x"), decide("sub/deep/y.o")), (Some(true), None, Some(true)));
    }
}
