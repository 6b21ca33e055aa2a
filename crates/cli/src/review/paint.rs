//! Changes for people: coloured lines in which no content or name can drive the terminal. Invisible characters are
//! escaped.

use super::lexer::{self, Language, LexerState, TokenKind};
use api::{
    Change, ChangeBody, ChangeClass, ChangeFlag, ChangeKind, ChangeSide, DiffLine, FileDiff, FileKind, Hunk, LineKind,
    PathText, is_invisible,
};
use node::review::words;
use std::fmt::Write;
use std::ops::Range;

/// Colour setting of the output.
#[derive(Clone, Copy, Debug)]
pub struct Brush {
    pub colours: bool,
}

pub const RED: &str = "31";
pub const GREEN: &str = "32";
pub const YELLOW: &str = "33";
pub const CYAN: &str = "36";
pub const BOLD: &str = "1";
pub const DIM: &str = "2";

impl Brush {
    pub fn paint(self, code: &str, text: &str) -> String {
        match self.colours && !code.is_empty() && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Escapes what moves the cursor, hides or reorders text. Tabs stay.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push('\t'),
            c if is_invisible(c) => {
                let _ = write!(out, "<U+{:04X}>", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

/// Formats a change on one line: kind, path, and warnings.
pub fn title(change: &Change, brush: Brush) -> String {
    let (word, colour) = match &change.kind {
        ChangeKind::Added => ("added", GREEN),
        ChangeKind::Deleted => ("deleted", RED),
        ChangeKind::Renamed { .. } => ("renamed", CYAN),
        ChangeKind::Type => ("type changed", YELLOW),
        ChangeKind::Mode => ("mode", YELLOW),
        ChangeKind::Xattr => ("attributes", YELLOW),
        ChangeKind::Modified => ("modified", YELLOW),
    };
    let mut line = format!("{} {}", brush.paint(colour, word), brush.paint(BOLD, &change.path.to_string()));
    if let Some(from) = change.kind.from() {
        let _ = write!(line, " from {from}");
    }
    for part in details(change) {
        let _ = write!(line, "  {}", brush.paint(DIM, &part));
    }
    if let ChangeClass::RunsOnHost { why } | ChangeClass::Never { why } = &change.class {
        let _ = write!(line, "  {}", brush.paint(YELLOW, &format!("[{}]", visible(why))));
    }
    for flag in &change.flags {
        let _ = write!(line, "  {}", brush.paint(YELLOW, &format!("[{}]", flag_words(*flag))));
    }
    if change.drifted {
        let _ = write!(line, "  {}", brush.paint(RED, "[changed or touched in the base]"));
    }
    line
}

pub fn flag_words(flag: ChangeFlag) -> &'static str {
    match flag {
        ChangeFlag::SetId => "set-id bit; removed when it lands",
        ChangeFlag::Capabilities => "file capabilities; removed when it lands",
        ChangeFlag::HardLink => "has other names",
        ChangeFlag::Twin => "differs from another name only in case or composition",
        ChangeFlag::HiddenName => "its name contains invisible characters",
        ChangeFlag::HiddenText => "contains invisible characters",
        ChangeFlag::LookAlike => "contains letters that look like others",
        ChangeFlag::LinkOutside => "leads outside",
        ChangeFlag::Binary => "binary",
        ChangeFlag::Large => "large",
        ChangeFlag::Executable => "new executable",
        ChangeFlag::Script => "new script",
        ChangeFlag::HiddenPath => "hidden path",
    }
}

/// Returns the mode of a new file where it is writable by others or has special bits. The executable bit is a flag of
/// its own.
fn bits_of_new(entry: &ChangeSide) -> Option<String> {
    let open = entry.kind != FileKind::Symlink && entry.mode & 0o7022 != 0;
    open.then(|| format!("{:04o}", entry.mode))
}

/// Lists differences of kind, mode, target and attributes.
fn details(change: &Change) -> Vec<String> {
    let mut parts = Vec::new();
    let (before, after) = (change.before.as_ref(), change.after.as_ref());
    let kind = |entry: &ChangeSide| kind_words(entry.kind);
    match (before, after) {
        (Some(b), Some(a)) if b.kind != a.kind => parts.push(format!("{} → {}", kind(b), kind(a))),
        (_, Some(e)) | (Some(e), None) if e.kind != FileKind::File => parts.push(kind(e).to_owned()),
        _ => {}
    }
    match (before, after) {
        (Some(b), Some(a)) if b.mode != a.mode && b.kind == a.kind => {
            parts.push(format!("{:04o} → {:04o}", b.mode, a.mode))
        }
        (_, Some(a)) if before.is_none_or(|b| b.kind != a.kind) => parts.extend(bits_of_new(a)),
        _ => {}
    }
    let target = |entry: Option<&ChangeSide>| entry.and_then(|e| e.target.as_ref()).map(target_words);
    match (target(before), target(after)) {
        (Some(b), Some(a)) if b != a => parts.push(format!("{b} → {a}")),
        (_, Some(a)) => parts.push(format!("→ {a}")),
        _ => {}
    }
    let names = |entry: Option<&ChangeSide>| entry.map(|e| e.xattrs.clone()).unwrap_or_default();
    let (b, a) = (names(before), names(after));
    let changed: Vec<String> = a.iter().filter(|(n, v)| b.get(*n) != Some(v)).map(|(n, _)| visible(n)).collect();
    let gone: Vec<String> =
        b.keys().filter(|n| after.is_some() && !a.contains_key(*n)).map(|n| format!("-{}", visible(n))).collect();
    if !changed.is_empty() || !gone.is_empty() {
        parts.push([changed, gone].concat().join(" "));
    }
    parts
}

fn kind_words(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "link",
        FileKind::Fifo => "FIFO",
        FileKind::Socket => "socket",
        FileKind::Char | FileKind::Block => "device",
    }
}

fn target_words(target: &PathText) -> String {
    match target {
        PathText::Text(text) => visible(text),
        PathText::Bytes { base64 } => format!("bytes {base64}"),
    }
}

/// Formats a whole change: its title, and its hunks below.
pub fn file(file: &FileDiff, brush: Brush) -> String {
    let mut out = title(&file.change, brush);
    out.push('\n');
    let size = |entry: &Option<ChangeSide>| entry.as_ref().map_or(0, |e| e.size);
    match &file.body {
        ChangeBody::None => {}
        ChangeBody::Whole => {
            let (before, after) = (size(&file.change.before), size(&file.change.after));
            let _ = writeln!(out, "  {}", brush.paint(DIM, &format!("not shown by lines: {before} → {after} bytes")));
        }
        ChangeBody::Text(hunks) => {
            let language = lexer::of(&String::from_utf8_lossy(file.change.path.as_bytes()));
            hunks.iter().for_each(|h| out.push_str(&hunk(h, language, brush)));
        }
    }
    out
}

/// Formats a hunk with its id.
pub fn hunk(hunk: &Hunk, language: Option<&'static Language>, brush: Brush) -> String {
    let span = |start: u64, lines: u64| if lines == 1 { format!("{start}") } else { format!("{start},{lines}") };
    let (old, new) = (span(hunk.old_start, hunk.old_lines), span(hunk.new_start, hunk.new_lines));
    let head = brush.paint(CYAN, &format!("@@ -{old} +{new} @@"));
    let mut out = format!("{head} {}\n", brush.paint(DIM, &hunk.id));
    let differing = if brush.colours { pairs(&hunk.lines) } else { Vec::new() };
    let ends = Ends::of(&hunk.lines);
    let (mut old_state, mut new_state) = (LexerState::default(), LexerState::default());
    for (index, line) in hunk.lines.iter().enumerate() {
        let tokens = match (language, brush.colours) {
            (Some(language), true) => {
                let state = if line.kind == LineKind::Removed { &mut old_state } else { &mut new_state };
                let tokens = language.tokens(&line.text, state);
                if line.kind == LineKind::Context {
                    old_state = new_state;
                }
                tokens
            }
            _ => Vec::new(),
        };
        let none = Vec::new();
        let marked = differing.get(index).unwrap_or(&none);
        out.push_str(&one_line(line, ends, &tokens, marked, brush));
    }
    out
}

/// Line endings of a hunk. Where all lines end alike, the carriage return is not shown; where they differ, it may be
/// the only change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Alike,
    Mixed,
}

impl Ends {
    fn of(lines: &[DiffLine]) -> Ends {
        let mut whole = lines.iter().map(|line| &line.text).filter(|text| text.ends_with('\n'));
        let first = whole.next().is_some_and(|text| text.ends_with("\r\n"));
        match whole.all(|text| text.ends_with("\r\n") == first) {
            true => Ends::Alike,
            false => Ends::Mixed,
        }
    }
}

/// Returns for each line of a hunk the ranges that differ from the line that it replaces or is replaced by.
fn pairs(lines: &[DiffLine]) -> Vec<Vec<Range<usize>>> {
    let mut marked = vec![Vec::new(); lines.len()];
    let mut at = 0;
    while at < lines.len() {
        let run = |from: usize, kind| lines[from..].iter().take_while(|l| l.kind == kind).count();
        let removed = run(at, LineKind::Removed);
        let added = run(at + removed, LineKind::Added);
        for offset in 0..removed.min(added) {
            let (left, right) = (at + offset, at + removed + offset);
            if let Some((old, new)) = words(&lines[left].text, &lines[right].text) {
                let only = |stretches: Vec<node::review::LineRange>| {
                    stretches.into_iter().filter(|s| s.0).map(|s| s.1).collect()
                };
                (marked[left], marked[right]) = (only(old), only(new));
            }
        }
        at += (removed + added).max(1);
    }
    marked
}

fn one_line(
    line: &DiffLine,
    ends: Ends,
    tokens: &[(TokenKind, Range<usize>)],
    marked: &[Range<usize>],
    brush: Brush,
) -> String {
    let (sign, colour) = match line.kind {
        LineKind::Context => (" ", ""),
        LineKind::Removed => ("-", RED),
        LineKind::Added => ("+", GREEN),
    };
    let text = line.text.strip_suffix('\n').unwrap_or(&line.text);
    // A trailing carriage return belongs to the line in a diff, and is not shown where all lines have one.
    let plain = ends == Ends::Alike && line.text.ends_with('\n');
    let shown = text.strip_suffix('\r').filter(|_| plain).unwrap_or(text);
    let mut out = brush.paint(colour, sign);
    if brush.colours {
        out.push_str(&styled(shown, tokens, marked, colour, brush));
    } else {
        out.push_str(&visible(shown));
    }
    out.push('\n');
    if !line.text.ends_with('\n') {
        out.push_str("\\ no newline at the end\n");
    }
    out
}

/// Paints a line range by range. Both lists are sorted, so each is walked once.
fn styled(
    text: &str,
    tokens: &[(TokenKind, Range<usize>)],
    marked: &[Range<usize>],
    colour: &str,
    brush: Brush,
) -> String {
    let ranges = tokens.iter().map(|(_, range)| range).chain(marked);
    let mut cuts: Vec<usize> = ranges.flat_map(|range| [range.start, range.end]).chain([0, text.len()]).collect();
    cuts.retain(|cut| *cut <= text.len() && text.is_char_boundary(*cut));
    cuts.sort_unstable();
    cuts.dedup();
    let (mut tokens, mut marked) = (tokens.iter().peekable(), marked.iter().peekable());
    let word = format!("1;4;{colour}");
    let mut out = String::new();
    for pair in cuts.windows(2) {
        while tokens.next_if(|(_, range)| range.end <= pair[0]).is_some() {}
        while marked.next_if(|range| range.end <= pair[0]).is_some() {}
        let token = tokens.peek().filter(|(_, range)| range.contains(&pair[0])).map(|(token, _)| *token);
        let style = match token {
            _ if marked.peek().is_some_and(|range| range.contains(&pair[0])) => word.as_str(),
            Some(TokenKind::Comment) => "2",
            Some(TokenKind::Text) => "35",
            Some(TokenKind::Number) => "36",
            Some(TokenKind::Keyword) => "34",
            None => colour,
        };
        out.push_str(&brush.paint(style, &visible(&text[pair[0]..pair[1]])));
    }
    out
}
