//! Untrusted patterns over untrusted bytes, in bounded time. The work of a search is at most the size of the pattern
//! times the length of the text. Little work is done in one call; more proceeds byte by byte with regular checks of
//! the deadline.

use super::deadline::Deadline;
use globset::GlobBuilder;
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::hybrid::regex::Regex as Steps;
use regex_automata::meta::Regex;
use regex_automata::nfa::thompson;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input};
use std::cell::{Cell, OnceCell};

const LONGEST: usize = 1000;
/// Memory bound of a compiled pattern.
const MEMORY: usize = 2 << 20;
/// Work between two checks of the deadline: half a second with the worst patterns.
const AT_ONCE: u64 = 1 << 31;
/// Bytes between two checks in the stepwise search.
const STRIDE: usize = 64;

/// Reason why a search has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// Deadline passed or cancelled.
    Over,
    /// A long match is possible: word boundaries cannot be decided byte by byte in such a text, and it is too long for
    /// one call.
    Unclear,
}

#[derive(Debug)]
pub(super) struct Pattern {
    text: String,
    syntax: syntax::Config,
    whole: Regex,
    /// Compiled on first use; None if that fails.
    steps: OnceCell<Option<Steps>>,
    /// Work since the last check of the deadline.
    work: Cell<u64>,
}

impl Pattern {
    /// Compiles a regular expression over one line, or returns the reason why it is invalid.
    pub fn regex(text: &str, ignore_case: bool) -> Result<Pattern, String> {
        check_length(text)?;
        Pattern::new(text.to_owned(), syntax::Config::new().case_insensitive(ignore_case))
    }

    /// Compiles a literal text.
    pub fn fixed(text: &str, ignore_case: bool) -> Result<Pattern, String> {
        check_length(text)?;
        let escaped = text.chars().map(|c| format!(r"\x{{{:x}}}", u32::from(c))).collect();
        Pattern::new(escaped, syntax::Config::new().case_insensitive(ignore_case))
    }

    /// Compiles a glob over names.
    pub fn glob(text: &str) -> Result<Pattern, String> {
        check_length(text)?;
        let plain = text.strip_prefix('/').unwrap_or(text);
        let built = GlobBuilder::new(plain).literal_separator(true).build().map_err(|e| e.kind().to_string())?;
        Pattern::new(built.regex().to_owned(), syntax::Config::new().dot_matches_new_line(true))
    }

    fn new(text: String, syntax: syntax::Config) -> Result<Pattern, String> {
        let syntax = syntax.utf8(false);
        let config =
            Regex::config().utf8_empty(false).onepass(false).nfa_size_limit(Some(MEMORY)).hybrid_cache_capacity(MEMORY);
        let whole = Regex::builder().syntax(syntax).configure(config).build(&text).map_err(|e| reason(&e))?;
        Ok(Pattern { text, syntax, whole, steps: OnceCell::new(), work: Cell::new(0) })
    }

    /// Start of the first match.
    pub fn find(&self, text: &[u8], deadline: &Deadline) -> Result<Option<usize>, Halt> {
        let work = self.weight().saturating_mul(text.len() as u64 + 1);
        let sum = self.work.get().saturating_add(work);
        self.work.set(if sum > AT_ONCE { 0 } else { sum });
        if sum > AT_ONCE && deadline.is_over() {
            return Err(Halt::Over);
        }
        if work <= AT_ONCE {
            return Ok(self.whole.find(text).map(|found| found.start()));
        }
        match self.steps.get_or_init(|| self.steps().ok()) {
            Some(steps) => match stepwise(steps, text, deadline) {
                Err(Halt::Unclear) => self.pieces(text, deadline),
                answer => answer,
            },
            None => self.pieces(text, deadline),
        }
    }

    /// Searches overlapping pieces, each of little work. A match longer than half a piece may be missed.
    fn pieces(&self, text: &[u8], deadline: &Deadline) -> Result<Option<usize>, Halt> {
        let half = (AT_ONCE / self.weight() / 2) as usize;
        for begin in (0..text.len()).step_by(half) {
            if deadline.is_over() {
                return Err(Halt::Over);
            }
            let piece = Input::new(text).span(begin..text.len().min(begin + 2 * half));
            if let Some(found) = self.whole.find(piece) {
                return Ok(Some(found.start()));
            }
        }
        Err(Halt::Unclear)
    }

    /// Upper bound on the work per byte.
    fn weight(&self) -> u64 {
        self.whole.memory_usage().clamp(1, 2 * MEMORY) as u64
    }

    fn steps(&self) -> Result<Steps, Box<regex_automata::hybrid::BuildError>> {
        let dfa = DFA::config().unicode_word_boundary(true).cache_capacity(MEMORY).skip_cache_capacity_check(true);
        let nfa = thompson::Config::new().utf8(false).nfa_size_limit(Some(MEMORY));
        Steps::builder().syntax(self.syntax).thompson(nfa).dfa(dfa).build(&self.text).map_err(Box::new)
    }
}

fn check_length(text: &str) -> Result<(), String> {
    match text.is_empty() || text.len() > LONGEST {
        true => Err("it is empty or too long".to_owned()),
        false => Ok(()),
    }
}

/// Reason why a pattern is invalid, without the drawing that marks the position.
fn reason(error: &regex_automata::meta::BuildError) -> String {
    let why = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
    let last = why.lines().last().unwrap_or_default();
    match error.size_limit() {
        Some(most) => format!("it takes more than {most} bytes"),
        None => last.strip_prefix("error: ").unwrap_or(last).to_owned(),
    }
}

/// Start of the first match, by stepping two automata: forward to its end, backward to its start.
fn stepwise(steps: &Steps, text: &[u8], deadline: &Deadline) -> Result<Option<usize>, Halt> {
    let mut cache = steps.create_cache();
    let (forward, reverse) = cache.as_parts_mut();
    let Some(end) = end_of(steps.forward(), forward, text, deadline)? else { return Ok(None) };
    begin_of(steps.reverse(), reverse, text, end, deadline)
}

/// End of the first match. The automaton reports a match one byte late.
fn end_of(dfa: &DFA, cache: &mut Cache, text: &[u8], deadline: &Deadline) -> Result<Option<usize>, Halt> {
    let mut state = dfa.start_state_forward(cache, &Input::new(text)).map_err(|_| Halt::Unclear)?;
    let mut end = None;
    for (at, byte) in text.iter().enumerate() {
        if at % STRIDE == 0 && deadline.is_over() {
            return Err(Halt::Over);
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| Halt::Unclear)?;
        match Transition::of(state)? {
            Transition::On => {}
            Transition::Match => end = Some(at),
            Transition::Dead => return Ok(end),
        }
    }
    let last = dfa.next_eoi_state(cache, state).map_err(|_| Halt::Unclear)?;
    Ok(if last.is_match() { Some(text.len()) } else { end })
}

/// Start of the match: backward from its end, as far as a match extends. Look-ahead sees the text behind the end as
/// well.
fn begin_of(dfa: &DFA, cache: &mut Cache, text: &[u8], end: usize, deadline: &Deadline) -> Result<Option<usize>, Halt> {
    let input = Input::new(text).span(0..end).anchored(Anchored::Yes);
    let mut state = dfa.start_state_reverse(cache, &input).map_err(|_| Halt::Unclear)?;
    let mut begin = None;
    for (at, byte) in text[..end].iter().enumerate().rev() {
        if at % STRIDE == 0 && deadline.is_over() {
            return Err(Halt::Over);
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| Halt::Unclear)?;
        match Transition::of(state)? {
            Transition::On => {}
            Transition::Match => begin = Some(at + 1),
            Transition::Dead => return Ok(begin),
        }
    }
    let last = dfa.next_eoi_state(cache, state).map_err(|_| Halt::Unclear)?;
    Ok(if last.is_match() { Some(0) } else { begin })
}

/// Result of one transition.
enum Transition {
    On,
    Match,
    /// Dead state: no further match.
    Dead,
}

impl Transition {
    fn of(state: LazyStateID) -> Result<Transition, Halt> {
        match state {
            _ if !state.is_tagged() => Ok(Transition::On),
            _ if state.is_match() => Ok(Transition::Match),
            _ if state.is_dead() => Ok(Transition::Dead),
            _ if state.is_quit() => Err(Halt::Unclear),
            _ => Ok(Transition::On),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::deadline::Interest;
    use super::*;
    use std::time::Duration;

    fn deadline(time: Duration) -> Deadline {
        Deadline::new(time, &Interest::default())
    }

    /// Searches byte by byte, however little the work.
    fn slowly(pattern: &Pattern, text: &[u8]) -> Result<Option<usize>, Halt> {
        stepwise(&pattern.steps().unwrap(), text, &deadline(Duration::from_secs(60)))
    }

    #[test]
    fn both_ways_find_the_same() {
        let texts =
            ["", "a", "fn main() {", "  let needle = 1;", "xneedle needle", "aab aab\tb", "Ünïcode wörd", "a\u{e9}b"];
        let patterns = [
            "a",
            "^a$",
            "needle",
            "(?:)",
            "$",
            "^",
            "\\w+",
            "fn \\w+",
            "a+?b",
            "(a|ab)(c|b)?",
            "e|needle",
            "[^a-z]",
            "x*",
            "(?i)NEEDLE",
            "ö",
            ".",
            "(?-u:\\bneedle\\b)",
            "b$",
            "\\s+\\S+\\s",
            "(?-u:\\xc3)",
            "main\\(\\) \\{$",
        ];
        for pattern in patterns {
            let built = Pattern::regex(pattern, false).unwrap();
            for text in texts {
                let whole = built.whole.find(text.as_bytes()).map(|found| found.start());
                assert_eq!(slowly(&built, text.as_bytes()), Ok(whole), "{pattern} in {text:?}");
            }
        }
        let word = Pattern::regex(r"\bneedle\b", false).unwrap();
        assert_eq!(slowly(&word, b"xneedle needle"), Ok(Some(8)));
        assert_eq!(slowly(&word, "ö needle".as_bytes()), Err(Halt::Unclear));
        let fixed = Pattern::fixed("a.b(\\<", true).unwrap();
        assert_eq!(fixed.find(b"axb( A.B(\\<", &deadline(Duration::from_secs(60))), Ok(Some(5)));
    }

    /// Letters in an order that no pattern can exploit.
    fn mixed(letters: &str, count: usize) -> Vec<u8> {
        let (letters, mut seed): (Vec<char>, u32) = (letters.chars().collect(), 1);
        let mut one = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            letters[(seed >> 16) as usize % letters.len()]
        };
        (0..count).map(|_| one()).collect::<String>().into_bytes()
    }

    /// CPU time of this thread, so that other load on the machine does not count.
    fn busy() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// A search ends soon after its deadline, whatever the pattern and the text.
    #[test]
    fn the_worst_patterns_end_in_time() {
        let (narrow, wide) = (mixed("abc", 1 << 20), mixed("aäß界b ", 400_000));
        for pattern in [
            "(?-u:(a|b)[^u-z]{900}([^u-z]{100}){40}[u-z])",
            "(?-u:[ab][^x]{1000}[^x]{1000}[^x]{1000}x)",
            r"(\w\w|.){15}.{50}z",
            r"\b(\w\w|.){10}\b.{50}z",
            r"(a|b|ab)*\b[^z]{500}z",
        ] {
            let built = Pattern::regex(pattern, false).unwrap();
            for text in [&narrow, &wide] {
                let began = busy();
                let _ = built.find(text, &deadline(Duration::from_millis(200)));
                assert!(busy() - began < Duration::from_secs(3), "{pattern}: {:?}", busy() - began);
            }
        }
    }

    /// A word in a long line is found, also if the line has to be searched in pieces.
    #[test]
    fn words_are_found_in_long_lines() {
        for letters in ["abc ", "aäß界b "] {
            let mut line = mixed(letters, 300_000);
            let at = line.len() + 1;
            line.extend_from_slice(b" LogService ");
            let built = Pattern::regex(r"\b\w+Service\b", false).unwrap();
            assert_eq!(built.find(&line, &deadline(Duration::from_secs(60))), Ok(Some(at)), "{letters}");
        }
    }
}
