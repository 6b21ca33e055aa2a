//! Output of a guest for a terminal: control sequences cannot drive the terminal or make it answer. Lines, tabs and
//! colours pass; every other invisible character is escaped. Input arrives in chunks that end anywhere.

use api::is_invisible;

/// Bytes after which an unfinished sequence is not taken for a colour.
const LONGEST: usize = 64;

#[derive(Default)]
pub struct TerminalFilter {
    /// The beginning of an incomplete character or colour sequence.
    held: Vec<u8>,
    coloured: bool,
}

impl TerminalFilter {
    /// Takes a chunk and returns the text that is complete.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut out = String::with_capacity(bytes.len());
        let mut rest = &self.held[..];
        while let Some(first) = rest.first() {
            let length = match first {
                0x1b => match colour(rest) {
                    Colour::Whole(length) => {
                        self.coloured = true;
                        out.push_str(&String::from_utf8_lossy(&rest[..length]));
                        length
                    }
                    Colour::Begun => break,
                    Colour::None => shown('\x1b', &mut out),
                },
                _ => match character(rest) {
                    Ok(c) => shown(c, &mut out),
                    Err(true) => break,
                    Err(false) => {
                        out.push_str(&format!("\\x{first:02x}"));
                        1
                    }
                },
            };
            rest = &rest[length..];
        }
        self.held = rest.to_vec();
        out
    }

    /// Returns the rest at end of input, and resets colours.
    pub fn end(&mut self) -> String {
        let mut out: String = std::mem::take(&mut self.held).escape_ascii().to_string();
        if std::mem::take(&mut self.coloured) {
            out.push_str("\x1b[0m");
        }
        out
    }
}

/// Appends a character in visible form; returns its length in bytes.
fn shown(c: char, out: &mut String) -> usize {
    if is_invisible(c) && !matches!(c, '\n' | '\r' | '\t') {
        out.extend(c.escape_unicode());
    } else {
        out.push(c);
    }
    c.len_utf8()
}

/// Decodes the first character. `Err` where the bytes are no UTF-8; true if they may be the beginning of a character.
fn character(bytes: &[u8]) -> Result<char, bool> {
    let head = &bytes[..bytes.len().min(4)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.valid_up_to() > 0 => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default(),
        Err(e) => return Err(e.error_len().is_none()),
    };
    text.chars().next().ok_or(false)
}

enum Colour {
    Whole(usize),
    Begun,
    None,
}

/// Recognises a colour sequence (SGR) at the beginning: `ESC [ 1;31 m`.
fn colour(bytes: &[u8]) -> Colour {
    let end = bytes.iter().skip(2).position(|b| !matches!(b, b'0'..=b'9' | b';' | b':')).map(|at| at + 2);
    match (bytes.get(1), end) {
        (Some(b'['), Some(end)) if bytes[end] == b'm' && end < LONGEST => Colour::Whole(end + 1),
        (None, _) => Colour::Begun,
        (Some(b'['), None) if bytes.len() < LONGEST => Colour::Begun,
        _ => Colour::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the same text in chunks of every size.
    #[test]
    fn nothing_but_colours_drives_a_terminal() {
        for (said, shown) in [
            ("plain\ttext\r\nnext", "plain\ttext\r\nnext"),
            ("\x1b[1;31mred\x1b[0m \x1b[38:2::1:2:3mx", "\x1b[1;31mred\x1b[0m \x1b[38:2::1:2:3mx\x1b[0m"),
            ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
            ("\x1b[6n\x1b[2J\x1bc", "\\u{1b}[6n\\u{1b}[2J\\u{1b}c"),
            ("\u{9b}6n\u{8}\0", "\\u{9b}6n\\u{8}\\u{0}"),
            ("\x1b[?1;2m", "\\u{1b}[?1;2m"),
            ("\u{202e}grün 界", "\\u{202e}grün 界"),
            ("\x1b", "\\x1b"),
            ("\x1b[3", "\\x1b[3"),
        ] {
            for size in 1..=said.len() {
                let mut tame = TerminalFilter::default();
                let mut out: String = said.as_bytes().chunks(size).map(|piece| tame.take(piece)).collect();
                out.push_str(&tame.end());
                assert_eq!(out, shown, "{said:?} in pieces of {size}");
            }
        }
        let mut tame = TerminalFilter::default();
        assert_eq!(tame.take(b"a\x9b6n\xff") + &tame.take(b"\xc3") + &tame.end(), "a\\x9b6n\\xff\\xc3");
        let long = format!("\x1b[{}m", "1;".repeat(100));
        assert_eq!(tame.take(long.as_bytes()), long.replace('\x1b', "\\u{1b}"));
    }
}
