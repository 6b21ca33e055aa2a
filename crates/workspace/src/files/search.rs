//! Searches files by name and content. Time, memory and the number of matches are bounded; a search that ends early
//! reports which bound it met.

use super::deadline::{Deadline, Interest};
use super::list::{directory, joined, walk_fault};
use super::locate::ResolvedParent;
use super::pattern::{Halt, Pattern};
use super::tree::{TreeEntry, TreeWalk};
use super::{Root, error};
use api::{FileKind, PathText, Rel, SearchBound, SearchMatch, SearchResult, SearchSkipped};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::io::Read;
use std::time::Duration;
use terms::{Fault, Phase};

/// Default and largest number of matches.
pub const MATCHES: usize = 1000;
pub const MOST_MATCHES: usize = 10_000;
/// Default time limit.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Bounds on entries visited and bytes read.
const MOST_ENTRIES: u64 = 1_000_000;
const MOST_BYTES: u64 = 4 << 30;
const DEEPEST: usize = 10_000;
const MOST_PATTERNS: usize = 64;
/// Longest line that counts as text.
const LONGEST_LINE: usize = 1 << 20;
const PIECE: usize = 256 << 10;
/// Bytes of a line that are shown.
const SHOWN: usize = 512;
/// Unsearched files that are listed; the rest are counted.
const NAMED: usize = 100;

#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// Globs over names: without a slash they match the last component, with one the path below the start. Without
    /// any, all names match.
    pub globs: Vec<String>,
    /// Pattern that a line of the file must match. Without it, only names are searched.
    pub content: Option<String>,
    /// `content` is a literal text instead of a regular expression.
    pub fixed: bool,
    pub ignore_case: bool,
    pub limit: usize,
    pub patience: Duration,
    /// Ends the search once the caller no longer waits.
    pub interest: Interest,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions {
            globs: Vec::new(),
            content: None,
            fixed: false,
            ignore_case: false,
            limit: MATCHES,
            patience: PATIENCE,
            interest: Interest::default(),
        }
    }
}

/// Searches below a directory. Symbolic links are not followed.
pub fn search(root: &Root, path: &Rel, ask: &SearchOptions) -> Result<SearchResult, Fault> {
    let deadline = Deadline::new(ask.patience, &ask.interest);
    let query = CompiledSearch::of(ask)?;
    let _owner = root.act_as_guest()?;
    let (spot, dir) = directory(root, path)?;
    let mut tree = TreeWalk::of(&dir, DEEPEST, None).map_err(|e| walk_fault(path, &e))?;
    let mut state = SearchState { query, top: spot.path, deadline, found: nothing_found() };
    while let Some(item) = tree.next().map_err(|e| walk_fault(path, &e))? {
        if let Some(bound) = state.look(&tree, &item) {
            state.found.stopped_by = Some(bound);
            state.found.complete = false;
            return Ok(state.found);
        }
    }
    if tree.shut > 0 {
        state.skip(Rel::top(), &format!("{} directories that the guest may not read", tree.shut));
    }
    Ok(state.found)
}

fn nothing_found() -> SearchResult {
    SearchResult {
        matches: Vec::new(),
        entries: 0,
        bytes: 0,
        complete: true,
        stopped_by: None,
        binary: 0,
        skipped: Vec::new(),
        skipped_more: 0,
    }
}

struct CompiledSearch {
    /// Globs; true if one matches the whole path.
    globs: Vec<(Pattern, bool)>,
    content: Option<Pattern>,
    limit: usize,
}

impl CompiledSearch {
    fn of(ask: &SearchOptions) -> Result<CompiledSearch, Fault> {
        if ask.globs.is_empty() && ask.content.is_none() {
            return Err(bad("no name and no content to search for", "give a glob, a content, or both"));
        }
        if ask.globs.len() > MOST_PATTERNS || !(1..=MOST_MATCHES).contains(&ask.limit) {
            let (globs, limit) = (ask.globs.len(), ask.limit);
            let hint = format!("at most {MOST_PATTERNS} globs and a limit from 1 to {MOST_MATCHES}");
            return Err(bad(&format!("{globs} globs, and a limit of {limit}"), &hint));
        }
        let globs = ask.globs.iter().map(|text| glob(text)).collect::<Result<_, _>>()?;
        let content = ask.content.as_deref().map(|text| pattern(text, ask)).transpose()?;
        Ok(CompiledSearch { globs, content, limit: ask.limit })
    }

    fn name(&self, path: &Rel, deadline: &Deadline) -> Result<bool, Halt> {
        let name = path.split().map(|(_, name)| name).unwrap_or_default();
        for (glob, whole) in &self.globs {
            if glob.find(if *whole { path.as_bytes() } else { name }, deadline)?.is_some() {
                return Ok(true);
            }
        }
        Ok(self.globs.is_empty())
    }
}

fn bad(what: &str, hint: &str) -> Fault {
    Fault::invalid(format!("search: {what}")).hint(hint).phase(Phase::Admission)
}

fn glob(text: &str) -> Result<(Pattern, bool), Fault> {
    let hint = "the wildcards are `*`, `**`, `?`, `[a-z]` and `{a,b}`";
    let built = Pattern::glob(text).map_err(|why| bad(&format!("glob {:?}: {why}", short(text)), hint))?;
    Ok((built, text.contains('/')))
}

fn pattern(text: &str, ask: &SearchOptions) -> Result<Pattern, Fault> {
    let hint = "give a regular expression for one line, without look-around, or set it to be plain text";
    let build = if ask.fixed { Pattern::fixed } else { Pattern::regex };
    build(text, ask.ignore_case).map_err(|why| bad(&format!("content {:?}: {why}", short(text)), hint))
}

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

struct SearchState {
    query: CompiledSearch,
    /// Directory where the search started.
    top: Rel,
    deadline: Deadline,
    found: SearchResult,
}

impl SearchState {
    /// Searches one entry; returns the bound if one is met.
    fn look(&mut self, tree: &TreeWalk, item: &TreeEntry) -> Option<SearchBound> {
        self.found.entries += 1;
        if self.found.entries > MOST_ENTRIES {
            return Some(SearchBound::Entries);
        }
        if self.deadline.is_over() {
            return Some(SearchBound::Time);
        }
        let path = joined(&self.top, &item.path);
        match self.query.name(&item.path, &self.deadline) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(Halt::Over) => return Some(SearchBound::Time),
            Err(Halt::Unclear) => {
                self.skip(path, "its path is too long for this glob");
                return None;
            }
        }
        if self.query.content.is_none() {
            return self.add(SearchMatch { path, kind: item.meta.kind, line: None, column: None, text: None });
        }
        if item.meta.kind != FileKind::File {
            return None;
        }
        let name = item.path.split().map(|(_, name)| name.to_vec());
        let opened = tree.here().try_clone().and_then(|dir| {
            ResolvedParent { dir, name, path: path.clone() }.open_file(OFlags::RDONLY).map(|(file, _)| file)
        });
        match opened {
            Ok(file) => self.lines(&path, file),
            Err(e) => {
                // A file that vanished meanwhile is not reported.
                if !crate::dir::is_absent(&e) {
                    let why = error::fault(&path, "read it", &e).message;
                    self.skip(path, &why);
                }
                None
            }
        }
    }

    /// Searches the lines of a file, in memory for the longest line.
    fn lines(&mut self, path: &Rel, mut file: File) -> Option<SearchBound> {
        let (mut held, mut line) = (Vec::new(), 0u64);
        loop {
            let before = held.len();
            held.resize(before + PIECE, 0);
            let count = match file.read(&mut held[before..]) {
                Ok(count) => count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
                Err(e) => {
                    self.skip(path.clone(), &e.to_string());
                    return None;
                }
            };
            held.truncate(before + count);
            self.found.bytes += count as u64;
            if line == 0 && before == 0 && held.contains(&0) {
                self.found.binary += 1;
                return None;
            }
            let whole = match count {
                0 => held.len(),
                _ => held.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1),
            };
            for text in held[..whole].split_inclusive(|b| *b == b'\n') {
                line += 1;
                if let Some(bound) = self.line(path, line, text.strip_suffix(b"\n").unwrap_or(text)) {
                    return Some(bound);
                }
            }
            held.drain(..whole);
            if count == 0 {
                return None;
            }
            if held.len() > LONGEST_LINE {
                self.skip(path.clone(), "a line is longer than a mebibyte; what follows was not searched");
                return None;
            }
            if self.found.bytes > MOST_BYTES {
                return Some(SearchBound::Bytes);
            }
            if self.deadline.is_over() {
                return Some(SearchBound::Time);
            }
        }
    }

    fn line(&mut self, path: &Rel, line: u64, text: &[u8]) -> Option<SearchBound> {
        let at = match self.query.content.as_ref()?.find(text, &self.deadline) {
            Ok(at) => at?,
            Err(Halt::Over) => return Some(SearchBound::Time),
            Err(Halt::Unclear) => {
                self.skip(
                    path.clone(),
                    &format!("line {line} is so long that a long match in it may have been missed"),
                );
                return None;
            }
        };
        let begin = if text.len() <= SHOWN { 0 } else { at.saturating_sub(SHOWN / 4) };
        let shown = &text[begin..text.len().min(begin + SHOWN)];
        self.add(SearchMatch {
            path: path.clone(),
            kind: FileKind::File,
            line: Some(line),
            column: Some(at as u64 + 1),
            text: Some(PathText::of(shown)),
        })
    }

    /// Adds a match. The search goes on to one match beyond the limit, so that `Bound::Matches` means that there are
    /// more.
    fn add(&mut self, found: SearchMatch) -> Option<SearchBound> {
        if self.found.matches.len() == self.query.limit {
            return Some(SearchBound::Matches);
        }
        self.found.matches.push(found);
        None
    }

    fn skip(&mut self, path: Rel, why: &str) {
        if self.found.skipped.len() < NAMED {
            self.found.skipped.push(SearchSkipped { path, why: why.to_owned() });
        } else {
            self.found.skipped_more += 1;
        }
    }
}
