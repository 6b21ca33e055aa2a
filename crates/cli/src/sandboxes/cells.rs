//! Width of text in terminal cells: wide characters of East Asia and emoji take two, combining marks take none.

use unicode_width::UnicodeWidthChar;

/// Returns the cells of one character. A control character counts as one: nothing prints it as it is.
fn of(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// Returns the cells of a text, counted character by character, as most terminals do.
pub fn width(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// Returns as much of a text as fits into so many cells; whole characters only.
pub fn cut(text: &str, most: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += of(*c);
        used > most
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// Shortens a text that does not fit, with an ellipsis in the place of the rest.
pub fn shortened(text: &str, most: usize) -> String {
    match width(text) <= most {
        true => text.to_owned(),
        false => format!("{}…", cut(text, most.saturating_sub(1))),
    }
}

/// Pads a text with blanks to a width.
pub fn padded(text: &str, width_of: usize) -> String {
    format!("{text}{}", " ".repeat(width_of.saturating_sub(width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_counted_and_not_letters() {
        for (text, want) in [
            ("", 0),
            ("abc", 3),
            ("日本", 4),
            ("한", 2),
            ("e\u{301}", 1),
            ("Größe", 5),
            ("🦀", 2),
            ("\u{1F6F8}\u{1FAE0}", 4),
            ("ｶﾞ", 2),
            ("（）", 4),
            ("𠀀", 2),
            ("が", 2),
            ("か\u{3099}", 2),
            ("☃\u{FE0F}", 1),
            ("a\tb\u{7f}\u{9b}", 5),
            ("…→", 2),
            ("a\u{200B}b", 2),
        ] {
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
