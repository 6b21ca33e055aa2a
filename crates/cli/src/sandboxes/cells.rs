//! How wide text is on a terminal: letters of East Asia and pictures take two cells, marks that stand on the letter before take none.

/// What takes two cells, by the blocks of Unicode that do.
const WIDE: &[(u32, u32)] = &[
    (0x1100, 0x115F),
    (0x2E80, 0x303E),
    (0x3041, 0x33FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE6F),
    (0xFF01, 0xFF60),
    (0xFFE0, 0xFFE6),
    (0x1F300, 0x1F64F),
    (0x1F680, 0x1F6FF),
    (0x1F900, 0x1F9FF),
    (0x1FA70, 0x1FAFF),
    (0x20000, 0x3FFFD),
];

/// What takes none.
const ON_TOP: &[(u32, u32)] = &[
    (0x0300, 0x036F),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0x3099, 0x309A),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
];

fn of(c: char) -> usize {
    let within = |ranges: &[(u32, u32)]| ranges.iter().any(|(from, to)| (*from..=*to).contains(&u32::from(c)));
    match c.is_ascii() {
        true => 1,
        false if within(ON_TOP) => 0,
        false => 1 + usize::from(within(WIDE)),
    }
}

pub fn width(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// As much of a text as fits; whole letters only.
pub fn cut(text: &str, most: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += of(*c);
        used > most
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// The same, and what is left out is seen to be.
pub fn shortened(text: &str, most: usize) -> String {
    match width(text) <= most {
        true => text.to_owned(),
        false => format!("{}…", cut(text, most.saturating_sub(1))),
    }
}

/// With blanks behind it, as wide as that.
pub fn padded(text: &str, width_of: usize) -> String {
    format!("{text}{}", " ".repeat(width_of.saturating_sub(width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_counted_and_not_letters() {
        for (text, want) in [("", 0), ("abc", 3), ("日本", 4), ("한", 2), ("e\u{301}", 1), ("Größe", 5), ("🦀", 2)]
        {
            assert_eq!(width(text), want, "{text:?}");
        }
        assert_eq!((cut("日本語", 4), cut("日本語", 5), cut("ab", 9)), ("日本", "日本", "ab"));
        assert_eq!(
            (shortened("abcdef", 4), shortened("日本語", 4), shortened("ab", 4)),
            ("abc…".into(), "日…".into(), "ab".into())
        );
        assert_eq!(padded("日本", 5), "日本 ");
    }
}
