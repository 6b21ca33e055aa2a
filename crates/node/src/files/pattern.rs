//! Patterns of others over bytes of others, in time that is bounded whatever both are. The work of a search is at most the size of
//! the pattern times the length of the text. What is little work is done at once; what could be much goes byte by byte, and the
//! clock is read on the way.

use super::clock::Clock;
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
/// Memory that a pattern may take.
const MEMORY: usize = 2 << 20;
/// Work between two looks at the clock: half a second with the worst patterns.
const AT_ONCE: u64 = 1 << 31;
/// Bytes between two looks, where each may take the longest.
const STRIDE: usize = 64;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// The clock says so.
    Over,
    /// There may be a long match: where words end cannot be told byte by byte in such a text, and it is too long to be searched at once.
    Unclear,
}

#[derive(Debug)]
pub(super) struct Pattern {
    text: String,
    syntax: syntax::Config,
    whole: Regex,
    /// Made when it is needed first; none where it cannot be.
    steps: OnceCell<Option<Steps>>,
    /// Since the clock was read.
    work: Cell<u64>,
}

impl Pattern {
    /// A regular expression of one line; the reason where it is none.
    pub fn regex(text: &str, ignore_case: bool) -> Result<Pattern, String> {
        check_length(text)?;
        Pattern::new(text.to_owned(), syntax::Config::new().case_insensitive(ignore_case))
    }

    /// A text as it stands.
    pub fn fixed(text: &str, ignore_case: bool) -> Result<Pattern, String> {
        check_length(text)?;
        let escaped = text.chars().map(|c| format!(r"\x{{{:x}}}", u32::from(c))).collect();
        Pattern::new(escaped, syntax::Config::new().case_insensitive(ignore_case))
    }

    /// A pattern of names.
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

    /// Where the first match begins.
    pub fn find(&self, text: &[u8], clock: &Clock) -> Result<Option<usize>, Halt> {
        let work = self.weight().saturating_mul(text.len() as u64 + 1);
        let sum = self.work.get().saturating_add(work);
        self.work.set(if sum > AT_ONCE { 0 } else { sum });
        if sum > AT_ONCE && clock.is_over() {
            return Err(Halt::Over);
        }
        if work <= AT_ONCE {
            return Ok(self.whole.find(text).map(|found| found.start()));
        }
        match self.steps.get_or_init(|| self.steps().ok()) {
            Some(steps) => match stepwise(steps, text, clock) {
                Err(Halt::Unclear) => self.pieces(text, clock),
                answer => answer,
            },
            None => self.pieces(text, clock),
        }
    }

    /// In pieces that overlap, each of them little work. A match that is longer than half a piece may not be seen.
    fn pieces(&self, text: &[u8], clock: &Clock) -> Result<Option<usize>, Halt> {
        let half = (AT_ONCE / self.weight() / 2) as usize;
        for begin in (0..text.len()).step_by(half) {
            if clock.is_over() {
                return Err(Halt::Over);
            }
            let piece = Input::new(text).span(begin..text.len().min(begin + 2 * half));
            if let Some(found) = self.whole.find(piece) {
                return Ok(Some(found.start()));
            }
        }
        Err(Halt::Unclear)
    }

    /// How much work a byte is at most.
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

/// What is wrong with a pattern, without a drawing of where.
fn reason(error: &regex_automata::meta::BuildError) -> String {
    let why = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
    let last = why.lines().last().unwrap_or_default();
    match error.size_limit() {
        Some(most) => format!("it takes more than {most} bytes"),
        None => last.strip_prefix("error: ").unwrap_or(last).to_owned(),
    }
}

/// Where the first match begins, byte by byte.
fn stepwise(steps: &Steps, text: &[u8], clock: &Clock) -> Result<Option<usize>, Halt> {
    let mut cache = steps.create_cache();
    let (forward, reverse) = cache.as_parts_mut();
    let Some(end) = end_of(steps.forward(), forward, text, clock)? else { return Ok(None) };
    begin_of(steps.reverse(), reverse, text, end, clock)
}

/// Where the first match ends. The automaton tells of a match one byte late.
fn end_of(dfa: &DFA, cache: &mut Cache, text: &[u8], clock: &Clock) -> Result<Option<usize>, Halt> {
    let mut state = dfa.start_state_forward(cache, &Input::new(text)).map_err(|_| Halt::Unclear)?;
    let mut end = None;
    for (at, byte) in text.iter().enumerate() {
        if at % STRIDE == 0 && clock.is_over() {
            return Err(Halt::Over);
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| Halt::Unclear)?;
        match Step::of(state)? {
            Step::On => {}
            Step::Match => end = Some(at),
            Step::Dead => return Ok(end),
        }
    }
    let last = dfa.next_eoi_state(cache, state).map_err(|_| Halt::Unclear)?;
    Ok(if last.is_match() { Some(text.len()) } else { end })
}

/// Where it begins: backwards from its end, as far as a match goes. What follows it in the text is looked at as well.
fn begin_of(dfa: &DFA, cache: &mut Cache, text: &[u8], end: usize, clock: &Clock) -> Result<Option<usize>, Halt> {
    let input = Input::new(text).span(0..end).anchored(Anchored::Yes);
    let mut state = dfa.start_state_reverse(cache, &input).map_err(|_| Halt::Unclear)?;
    let mut begin = None;
    for (at, byte) in text[..end].iter().enumerate().rev() {
        if at % STRIDE == 0 && clock.is_over() {
            return Err(Halt::Over);
        }
        state = dfa.next_state(cache, state, *byte).map_err(|_| Halt::Unclear)?;
        match Step::of(state)? {
            Step::On => {}
            Step::Match => begin = Some(at + 1),
            Step::Dead => return Ok(begin),
        }
    }
    let last = dfa.next_eoi_state(cache, state).map_err(|_| Halt::Unclear)?;
    Ok(if last.is_match() { Some(0) } else { begin })
}

/// Where a byte leads.
enum Step {
    On,
    Match,
    /// Nowhere: what was found is all.
    Dead,
}

impl Step {
    fn of(state: LazyStateID) -> Result<Step, Halt> {
        match state {
            _ if !state.is_tagged() => Ok(Step::On),
            _ if state.is_match() => Ok(Step::Match),
            _ if state.is_dead() => Ok(Step::Dead),
            _ if state.is_quit() => Err(Halt::Unclear),
            _ => Ok(Step::On),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Interest;
    use super::*;
    use std::time::{Duration, Instant};

    fn clock(time: Duration) -> Clock {
        Clock::new(time, &Interest::default())
    }

    /// Byte by byte, whatever the work is.
    fn slowly(pattern: &Pattern, text: &[u8]) -> Result<Option<usize>, Halt> {
        stepwise(&pattern.steps().unwrap(), text, &clock(Duration::from_secs(60)))
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
        assert_eq!(fixed.find(b"axb( A.B(\\<", &clock(Duration::from_secs(60))), Ok(Some(5)));
    }

    /// Letters in no order that a pattern could use.
    fn mixed(letters: &str, count: usize) -> Vec<u8> {
        let (letters, mut seed): (Vec<char>, u32) = (letters.chars().collect(), 1);
        let mut one = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            letters[(seed >> 16) as usize % letters.len()]
        };
        (0..count).map(|_| one()).collect::<String>().into_bytes()
    }

    /// Whatever the pattern and the text are, it ends soon after its time.
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
                let began = Instant::now();
                let _ = built.find(text, &clock(Duration::from_millis(200)));
                assert!(began.elapsed() < Duration::from_secs(3), "{pattern}: {:?}", began.elapsed());
            }
        }
    }

    /// A word in a long line is found, also where the line must be searched in pieces.
    #[test]
    fn words_are_found_in_long_lines() {
        for letters in ["abc ", "aäß界b "] {
            let mut line = mixed(letters, 300_000);
            let at = line.len() + 1;
            line.extend_from_slice(b" LogService ");
            let built = Pattern::regex(r"\b\w+Service\b", false).unwrap();
            assert_eq!(built.find(&line, &clock(Duration::from_secs(60))), Ok(Some(at)), "{letters}");
        }
    }
}
