//! A rough lexer for colours: comments, strings, numbers and common keywords of a line, by the family that a file's name belongs to.
//! Each character is looked at once, so hostile text costs no more than its length.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Comment,
    Text,
    Number,
    Keyword,
}

/// Languages that write comments and strings alike.
#[derive(Debug)]
pub struct Language {
    ends: &'static [&'static str],
    line: &'static [&'static str],
    block: Option<(&'static str, &'static str)>,
    quotes: &'static str,
}

/// The state that a line begins in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LexerState {
    #[default]
    Code,
    Comment,
}

/// Words that are keywords in most languages that have them.
#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "and", "as", "async", "await", "bool", "break", "case", "catch", "char", "class", "const", "continue", "def", "default", "defer",
    "do", "done", "elif", "else", "end", "enum", "except", "export", "extends", "false", "False", "fi", "finally", "float", "fn", "for",
    "from", "func", "function", "if", "impl", "implements", "import", "in", "int", "interface", "let", "local", "long", "loop", "match",
    "mod", "mut", "new", "nil", "None", "not", "null", "or", "package", "private", "protected", "pub", "public", "raise", "return",
    "self", "static", "struct", "super", "switch", "then", "this", "throw", "trait", "true", "True", "try", "type", "unsafe", "use",
    "var", "void", "where", "while", "with", "yield",
];

const SLASHES: Option<(&str, &str)> = Some(("/*", "*/"));

#[rustfmt::skip]
const LANGUAGES: &[Language] = &[
    // A single quote begins a lifetime as often as a character.
    Language { ends: &[".rs", ".json", ".json5", ".jsonc"], line: &["//"], block: SLASHES, quotes: "\"" },
    Language { ends: &[
        ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".java", ".cs", ".kt", ".kts", ".scala", ".swift", ".m", ".proto", ".dart", ".zig",
        ".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".mts", ".vue", ".svelte", ".go", ".css", ".scss", ".less",
    ], line: &["//"], block: SLASHES, quotes: "\"'`" },
    Language { ends: &[".php"], line: &["//", "#"], block: SLASHES, quotes: "\"'" },
    Language { ends: &[
        ".py", ".pyi", ".bzl", ".rb", ".rake", ".ex", ".exs", ".sh", ".bash", ".zsh", ".ksh", ".envrc", "Makefile", ".mk", "justfile",
        "Dockerfile", "PKGBUILD", ".pl", ".pm", ".r",
    ], line: &["#"], block: None, quotes: "\"'" },
    Language { ends: &[".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".nix", ".tf", ".service", ".properties"],
        line: &["#", ";"], block: None, quotes: "\"'" },
    Language { ends: &[".lua", ".sql", ".hs", ".elm"], line: &["--"], block: None, quotes: "\"'" },
    Language { ends: &[".html", ".htm", ".xml", ".svg"], line: &[], block: Some(("<!--", "-->")), quotes: "\"'" },
    Language { ends: &[".lisp", ".el", ".clj", ".scm"], line: &[";"], block: None, quotes: "\"" },
];

/// Returns the family of a file by how its name ends.
pub fn of(path: &str) -> Option<&'static Language> {
    LANGUAGES.iter().find(|language| language.ends.iter().any(|end| path.ends_with(end)))
}

impl Language {
    /// Returns the tokens of one line, in order and not overlapping.
    pub fn tokens(&self, line: &str, state: &mut LexerState) -> Vec<(TokenKind, Range<usize>)> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < line.len() {
            let rest = &line[at..];
            if *state == LexerState::Comment {
                let end = self.block.and_then(|(_, close)| rest.find(close).map(|found| found + close.len()));
                *state = if end.is_some() { LexerState::Code } else { LexerState::Comment };
                let length = end.unwrap_or(rest.len());
                tokens.push((TokenKind::Comment, at..at + length));
                at += length;
                continue;
            }
            let (token, length) = self.next(rest, line[..at].chars().next_back());
            if token == Some(TokenKind::Comment) && length == 0 {
                *state = LexerState::Comment;
                let open = self.block.map_or(0, |(open, _)| open.len());
                tokens.push((TokenKind::Comment, at..at + open));
                at += open;
                continue;
            }
            tokens.extend(token.map(|token| (token, at..at + length)));
            at += length;
        }
        tokens
    }

    /// Returns the token that begins here, and its length; a comment of no length is one that may go on over lines.
    fn next(&self, rest: &str, before: Option<char>) -> (Option<TokenKind>, usize) {
        let Some(first) = rest.chars().next() else { return (None, 0) };
        let apart = before.is_none_or(|c| c.is_whitespace() || c == '(' || c == ',' || c == ';' || c == '}');
        // A number sign inside a word is none of a comment's.
        if self.line.iter().any(|mark| rest.starts_with(mark) && (mark.len() > 1 || apart)) {
            return (Some(TokenKind::Comment), rest.len());
        }
        if self.block.is_some_and(|(open, _)| rest.starts_with(open)) {
            return (Some(TokenKind::Comment), 0);
        }
        if self.quotes.contains(first) {
            return (Some(TokenKind::Text), quoted(rest, first));
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if !is_word(first) {
            return (None, first.len_utf8());
        }
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..length];
        match first {
            '0'..='9' => (Some(TokenKind::Number), length),
            _ if length < 20 && KEYWORDS.contains(&word) => (Some(TokenKind::Keyword), length),
            _ => (None, length),
        }
    }
}

/// Returns the length of a string that begins here: to its quote, or to the end of the line.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, line: &str, want: &[(TokenKind, &str)]) {
        let tokens = of(path).unwrap().tokens(line, &mut LexerState::default());
        let found: Vec<_> = tokens.into_iter().map(|(token, at)| (token, &line[at])).collect();
        assert_eq!(found, want, "{line}");
    }

    #[test]
    fn tokens_of_common_languages() {
        use TokenKind::*;
        check("a.rs", "let x = 10; // ten", &[(Keyword, "let"), (Number, "10"), (Comment, "// ten")]);
        check("a.py", "return 'a#b' # c", &[(Keyword, "return"), (Text, "'a#b'"), (Comment, "# c")]);
        check(
            "a.c",
            "int /* x */ y = \"\\\"\";",
            &[(Keyword, "int"), (Comment, "/*"), (Comment, " x */"), (Text, "\"\\\"\"")],
        );
        check("a.js", "`open", &[(Text, "`open")]);
        assert!(of("a.unknown").is_none());
    }

    #[test]
    fn hostile_lines_cost_no_more_than_their_length() {
        let language = of("a.c").unwrap();
        for piece in ["/*", "*/", "\"", "\\", "'\"", "a", "0", "/**/"] {
            let line = piece.repeat(1_000_000 / piece.len());
            let began = std::time::Instant::now();
            language.tokens(&line, &mut LexerState::default());
            // A quadratic lexer would take minutes.
            assert!(began.elapsed().as_secs() < 60, "{piece}: {:?}", began.elapsed());
        }
    }
}
