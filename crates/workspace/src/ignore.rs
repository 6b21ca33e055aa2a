//! Rules of `.gitignore`: parses patterns and matches paths. Reads no file.
//!
//! The base may be hostile, so the cost of its patterns is bounded: `globset` translates a pattern, and the automaton
//! that runs it keeps no cache of states. With one, as in `globset` itself and in the `ignore` crate, a single line
//! can take 10 MB and milliseconds a name.

use api::Rel;
use globset::GlobBuilder;
use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

/// The rules of one file.
#[derive(Debug)]
pub struct Rules {
    /// Directory of the file.
    at: Rel,
    rules: Vec<IgnoreRule>,
    cost: u64,
}

#[derive(Debug)]
struct IgnoreRule {
    glob: Regex,
    /// Starts with `!`: not ignored after all.
    takes_back: bool,
    only_directories: bool,
    /// Contains a slash: matched against the path below `at` instead of the last component.
    whole_path: bool,
}

/// Cost bound of the rules of one file: each is matched against every path.
const MOST_RULES: u64 = 4096;

/// Cost of a rule: one, and more for a long one.
fn cost_of(line: &[u8]) -> u64 {
    1 + line.len() as u64 / 64
}

/// Number of tries for matching a path against a rule of cost one: one for each 64 bytes.
pub fn price_of(path: &Rel) -> u64 {
    1 + path.as_bytes().len() as u64 / 64
}

/// Remaining cost budget of rules during one walk. Once it is used up, no rule applies: more is shown then, never
/// less, and a hostile base cannot keep a reviewer waiting.
#[derive(Debug)]
pub struct Patience {
    /// Cost of rules that may still be parsed.
    pub rules: u64,
    /// Number of matches of a short path against a rule of cost one that may still be made.
    pub tries: u64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { rules: 16_384, tries: 20_000_000 }
    }
}

impl Rules {
    /// Parses a file of rules. A file beyond the budget is ignored as a whole: a truncated list would lack its
    /// negations.
    pub fn parse(at: &Rel, text: &[u8], patience: &mut Patience) -> Rules {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let lines = || text.split(|b| *b == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
        let cost: u64 = lines().map(cost_of).sum();
        let mut rules = Rules { at: at.clone(), rules: Vec::new(), cost: 0 };
        if cost <= MOST_RULES.min(patience.rules) {
            patience.rules -= cost;
            rules.cost = cost;
            rules.rules = lines().filter_map(|line| IgnoreRule::parse(std::str::from_utf8(line).ok()?)).collect();
        }
        rules
    }

    /// Cost of matching a path against all rules.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Result of the last rule that matches a path; None if no rule matches.
    pub fn decide(&self, path: &Rel, is_dir: bool) -> Option<bool> {
        let below = path.as_bytes().get(self.at.as_bytes().len()..)?;
        let below = below.strip_prefix(b"/").unwrap_or(below);
        let name = path.parts().next_back()?;
        let matches = |rule: &&IgnoreRule| {
            let subject = if rule.whole_path { below } else { name };
            (is_dir || !rule.only_directories) && rule.glob.is_match(subject)
        };
        self.rules.iter().rev().find(matches).map(|rule| !rule.takes_back)
    }
}

impl IgnoreRule {
    fn parse(line: &str) -> Option<IgnoreRule> {
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
        // Braces are literal in `.gitignore`.
        let pattern = pattern.replace('{', "[{]").replace('}', "[}]");
        // `a/**` matches the contents of `a`, not `a` itself.
        let pattern = pattern.strip_suffix("/**").map_or(pattern.clone(), |dir| format!("{dir}/**/*"));
        let glob = GlobBuilder::new(&pattern).literal_separator(true).backslash_escape(true).build().ok()?;
        Some(IgnoreRule { glob: compile(glob.regex())?, takes_back, only_directories, whole_path })
    }
}

/// Size bound of one automaton; a pattern with a hundred wildcards takes a tenth of it.
const LARGEST_AUTOMATON: usize = 1 << 20;

/// Compiles a pattern for NFA simulation: time is at most states times bytes of the path, memory is proportional to
/// the states.
fn compile(pattern: &str) -> Option<Regex> {
    let config = Config::new().hybrid(false).dfa(false).onepass(false).backtrack(false);
    let config = config.utf8_empty(false).nfa_size_limit(Some(LARGEST_AUTOMATON));
    let syntax = syntax::Config::new().utf8(false).dot_matches_new_line(true);
    Regex::builder().syntax(syntax).configure(config).build(pattern).ok()
}

/// Strips trailing spaces unless a backslash precedes them.
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

    /// Lines that make a lazy DFA build a new state for almost every byte of every name.
    #[test]
    fn hostile_patterns_cost_no_more_than_their_length() {
        let lines: String = (0..200).map(|i| format!("*a{}{}\n", "?".repeat(40), "b".repeat(1 + i % 5))).collect();
        let rules = Rules::parse(&Rel::top(), lines.as_bytes(), &mut Patience::default());
        let mut dice = 88_172_645_463_325_252_u64;
        let mut letter = || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            if dice & 1 == 0 { 'a' } else { 'b' }
        };
        // CPU time of this thread: other tests run in parallel.
        let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let began = used();
        for _ in 0..20 {
            let name: String = (0..250).map(|_| letter()).collect();
            rules.decide(&Rel::parse(format!("{name}c").as_bytes()).unwrap(), false);
        }
        // Four thousand tries in less than a second. With a cache, ten thousand took 340 MB.
        assert!(used() - began < 15, "{} s", used() - began);
        let long = format!("{}\n", "*?".repeat(20_000));
        let rules = Rules::parse(&Rel::top(), long.as_bytes(), &mut Patience::default());
        let at = Rel::parse("a".repeat(200).as_bytes()).unwrap();
        assert_eq!((rules.cost(), price_of(&at), price_of(&Rel::parse(b"a").unwrap())), (626, 4, 1));
        rules.decide(&at, false);
    }

    #[test]
    fn rules_of_a_directory_are_about_what_is_in_it() {
        let rules = Rules::parse(&Rel::parse(b"sub").unwrap(), b"/x\n*.o\n", &mut Patience::default());
        let decide = |path: &str| rules.decide(&Rel::parse(path.as_bytes()).unwrap(), false);
        assert_eq!((decide("sub/x"), decide("sub/deep/x"), decide("sub/deep/y.o")), (Some(true), None, Some(true)));
    }
}
