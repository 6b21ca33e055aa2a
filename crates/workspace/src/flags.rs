//! Flags for the reviewer of a change: mode bits, names and characters that the diff itself does not show.

use crate::class::{self, Bytes};
use crate::entry::TOO_LARGE;
use crate::lookalike;
use crate::scan::Pair;
use crate::text;
use crate::unknown;
use api::{ChangeBody, ChangeClass, ChangeFlag, ChangeSide, FileKind, LineKind, PathText, Rel, is_invisible};

pub fn of(pair: &Pair, body: &ChangeBody, bytes: Bytes<'_>, class: &ChangeClass) -> Vec<ChangeFlag> {
    let after = pair.after.as_ref();
    let is = |kind| after.is_some_and(|entry: &ChangeSide| entry.kind == kind);
    let holds = |name| after.is_some_and(|entry| entry.xattrs.contains_key(name));
    let target = after.and_then(|entry| entry.target.as_ref());
    let whole = matches!(body, ChangeBody::Whole);
    let binary = whole && is_binary(bytes);
    let found = [
        (ChangeFlag::SetId, !is(FileKind::Dir) && after.is_some_and(|entry| entry.mode & 0o6000 != 0)),
        (ChangeFlag::Capabilities, holds("security.capability")),
        (ChangeFlag::HardLink, is(FileKind::File) && pair.links > 1),
        (ChangeFlag::Twin, pair.twin),
        (ChangeFlag::HiddenName, hides(&pair.path)),
        (ChangeFlag::HiddenText, adds(body, has_hidden)),
        (ChangeFlag::LookAlike, mixes_name(&pair.path) || adds(body, lookalike::mixes)),
        (ChangeFlag::LinkOutside, target.is_some_and(|target| leads_outside(&pair.path, target))),
        (ChangeFlag::Binary, binary),
        (ChangeFlag::Large, whole && !binary && pair.trouble.is_none_or(|why| why == TOO_LARGE)),
        (ChangeFlag::Executable, becomes_executable(pair)),
        (ChangeFlag::Script, becomes_script(pair, bytes)),
        (ChangeFlag::HiddenPath, *class == ChangeClass::Ordinary && unknown::is_hidden(pair)),
    ];
    found.into_iter().filter(|(_, holds)| *holds).map(|(flag, _)| flag).collect()
}

fn becomes_executable(pair: &Pair) -> bool {
    let was = pair.before.as_ref().is_some_and(unknown::is_executable);
    !was && pair.after.as_ref().is_some_and(unknown::is_executable)
}

/// Extensions that Windows runs on a double click, or that its shell finds as commands in the current directory.
const WINDOWS_SCRIPTS: &[&str] =
    &[".bat", ".cmd", ".com", ".exe", ".msi", ".ps1", ".psm1", ".vbs", ".vbe", ".wsf", ".wsh", ".jse"];

fn becomes_script(pair: &Pair, bytes: Bytes<'_>) -> bool {
    if pair.after.as_ref().is_none_or(|entry| entry.kind != FileKind::File) {
        return false;
    }
    let ends = |path: &Rel| {
        let name = path.parts().next_back().map(class::folded_part).unwrap_or_default();
        WINDOWS_SCRIPTS.iter().any(|end| name.ends_with(end))
    };
    let is_file_before = pair.before.as_ref().is_some_and(|entry| entry.kind == FileKind::File);
    if ends(&pair.path) && !(is_file_before && ends(pair.from.as_ref().unwrap_or(&pair.path))) {
        return true;
    }
    let Bytes::Known { before, after } = bytes else { return false };
    let interpreter = |bytes: Option<&[u8]>| {
        let line = bytes?.split(|b| *b == b'\n').next().filter(|line| line.starts_with(b"#!"))?;
        Some(line.to_vec())
    };
    interpreter(after).is_some_and(|line| interpreter(before) != Some(line))
}

fn is_binary(bytes: Bytes<'_>) -> bool {
    match bytes {
        Bytes::Known { before, after } => {
            [before, after].into_iter().flatten().any(|bytes| text::as_text(bytes).is_none())
        }
        Bytes::Unknown => false,
    }
}

/// True if a name has invisible characters, or spaces at an end, which cannot be seen either.
fn hides(path: &Rel) -> bool {
    let hidden = |c: char| is_invisible(c) || (c != ' ' && c.is_whitespace());
    let ends = |part: &[u8]| part.starts_with(b" ") || part.ends_with(b" ");
    std::str::from_utf8(path.as_bytes()).map_or(true, |text| text.chars().any(hidden)) || path.parts().any(ends)
}

fn mixes_name(path: &Rel) -> bool {
    std::str::from_utf8(path.as_bytes()).is_ok_and(lookalike::mixes)
}

/// True if an added line satisfies the predicate.
fn adds(body: &ChangeBody, has: impl Fn(&str) -> bool) -> bool {
    let ChangeBody::Text(hunks) = body else { return false };
    let added = hunks.iter().flat_map(|hunk| &hunk.lines).filter(|line| line.kind == LineKind::Added);
    added.into_iter().any(|line| has(&line.text))
}

/// True if a line has invisible characters. Tabs and line endings do not count, nor do joiners and variation selectors
/// inside an emoji.
pub fn has_hidden(line: &str) -> bool {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let mut last = ' ';
    line.chars().any(|c| {
        let in_emoji = matches!(c, '\u{fe0e}' | '\u{fe0f}' | '\u{200d}') && is_pictograph(last);
        // A joiner may follow a variation selector; a second selector may not.
        last = if in_emoji && c != '\u{200d}' && last != '\u{fe0f}' { '\u{fe0f}' } else { c };
        c != '\t' && is_invisible(c) && !in_emoji
    })
}

fn is_pictograph(c: char) -> bool {
    matches!(c, '#' | '*' | '0'..='9' | '\u{a9}' | '\u{ae}' | '\u{203c}'..='\u{3299}' | '\u{1f000}'..='\u{1faff}')
        && !is_invisible(c)
}

/// True if a link leads out of the tree, judged lexically: other links on its path may lead anywhere, so `..` behind a
/// name counts as well.
fn leads_outside(path: &Rel, target: &PathText) -> bool {
    let Some(target) = target.bytes() else { return true };
    if target.starts_with(b"/") {
        return true;
    }
    let mut above = path.parts().count().saturating_sub(1);
    let mut below = 0usize;
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if below > 0 || above == 0 => return true,
            b".." => above -= 1,
            _ => below += 1,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise 13
    #[test]
    fn characters_that_cannot_be_seen_are_found() {
        for line in
            ["a\u{202e}b\n", "x\u{200b}y", "\u{feff}z", "esc\u{1b}[2J", "a\rb", "e\u{fe0f}", "\u{2764}\u{fe0f}\u{fe0f}"]
        {
            assert!(has_hidden(line), "{line:?}");
        }
        for line in
            ["plain\ttext\r\n", "caf\u{e9} \u{4f60}\u{597d}\n", "\u{2764}\u{fe0f} love", "\u{1f469}\u{200d}\u{1f4bb}"]
        {
            assert!(!has_hidden(line), "{line:?}");
        }
    }

    #[test]
    fn links_that_lead_out_are_known_by_their_words() {
        let outside = |path: &str, target: &str| {
            leads_outside(&Rel::parse(path.as_bytes()).unwrap(), &PathText::of(target.as_bytes()))
        };
        for (path, target) in [("a", "/etc"), ("a", "../x"), ("d/a", "../../x"), ("a", "b/../c"), ("a", "b/../../c")] {
            assert!(outside(path, target), "{path} -> {target}");
        }
        for (path, target) in [("a", "b"), ("d/a", "../x"), ("d/a", "./b/c"), ("d/e/a", "../../x")] {
            assert!(!outside(path, target), "{path} -> {target}");
        }
    }
}
