//! Which stretches of a line of code are comments, strings, numbers and keywords: good enough for colours. Each character is looked
//! at once, so hostile text costs no more than its length.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Comment,
    Text,
    Number,
    Keyword,
}

#[derive(Debug)]
pub struct Language {
    ends: &'static [&'static str],
    line: &'static [&'static str],
    block: Option<(&'static str, &'static str)>,
    quotes: &'static str,
    keywords: &'static [&'static str],
}

/// What a line begins in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Code,
    Comment,
}

const C_LIKE: &[&str] = &[
    "auto",
    "bool",
    "break",
    "case",
    "catch",
    "char",
    "class",
    "const",
    "constexpr",
    "continue",
    "default",
    "delete",
    "do",
    "double",
    "else",
    "enum",
    "explicit",
    "export",
    "extern",
    "false",
    "final",
    "float",
    "for",
    "friend",
    "goto",
    "if",
    "import",
    "inline",
    "int",
    "interface",
    "long",
    "namespace",
    "new",
    "null",
    "nullptr",
    "operator",
    "override",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "super",
    "switch",
    "template",
    "this",
    "throw",
    "throws",
    "true",
    "try",
    "typedef",
    "typename",
    "union",
    "unsigned",
    "using",
    "var",
    "virtual",
    "void",
    "volatile",
    "while",
    "string",
    "foreach",
    "in",
    "is",
    "as",
    "async",
    "await",
    "record",
    "sealed",
    "val",
    "fun",
    "when",
    "object",
    "def",
    "extends",
    "implements",
    "trait",
    "with",
    "yield",
    "match",
    "func",
    "let",
    "guard",
    "protocol",
    "extension",
    "nil",
    "self",
];

const SCRIPT: &[&str] = &[
    "async",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "from",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "of",
    "private",
    "protected",
    "public",
    "readonly",
    "return",
    "static",
    "super",
    "switch",
    "this",
    "throw",
    "true",
    "try",
    "type",
    "typeof",
    "undefined",
    "var",
    "void",
    "while",
    "yield",
];

const fn language(
    ends: &'static [&'static str],
    line: &'static [&'static str],
    block: Option<(&'static str, &'static str)>,
    quotes: &'static str,
    keywords: &'static [&'static str],
) -> Language {
    Language { ends, line, block, quotes, keywords }
}

const SLASHES: Option<(&str, &str)> = Some(("/*", "*/"));

#[rustfmt::skip]
const LANGUAGES: &[Language] = &[
    language(&[".rs"], &["//"], SLASHES, "\"", &[
        "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum", "extern", "false", "fn", "for",
        "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return", "self", "Self", "static",
        "struct", "super", "trait", "true", "type", "unsafe", "use", "where", "while",
    ]),
    language(&[".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".java", ".cs", ".kt", ".kts", ".scala", ".swift", ".m", ".proto", ".dart"],
        &["//"], SLASHES, "\"'", C_LIKE),
    language(&[".js", ".mjs", ".cjs", ".jsx", ".ts", ".tsx", ".mts", ".vue", ".svelte"], &["//"], SLASHES, "\"'`", SCRIPT),
    language(&[".go"], &["//"], SLASHES, "\"'`", &[
        "break", "case", "chan", "const", "continue", "default", "defer", "else", "fallthrough", "false", "for", "func", "go",
        "goto", "if", "import", "interface", "map", "nil", "package", "range", "return", "select", "struct", "switch", "true",
        "type", "var",
    ]),
    language(&[".py", ".pyi", ".bzl"], &["#"], None, "\"'", &[
        "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except", "False",
        "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "match", "None", "nonlocal", "not", "or",
        "pass", "raise", "return", "self", "True", "try", "while", "with", "yield",
    ]),
    language(&[".rb", ".rake", ".ex", ".exs"], &["#"], None, "\"'", &[
        "alias", "and", "begin", "break", "case", "class", "def", "defmodule", "do", "else", "elsif", "end", "ensure", "false",
        "for", "if", "in", "module", "next", "nil", "not", "or", "redo", "require", "rescue", "retry", "return", "self", "super",
        "then", "true", "undef", "unless", "until", "when", "while", "yield",
    ]),
    language(&[".sh", ".bash", ".zsh", ".ksh", ".envrc", "Makefile", ".mk", "justfile", "Dockerfile", "PKGBUILD"], &["#"], None, "\"'", &[
        "case", "do", "done", "elif", "else", "esac", "eval", "exec", "exit", "export", "fi", "for", "function", "if", "in",
        "local", "return", "set", "source", "then", "unset", "until", "while", "FROM", "RUN", "COPY", "ENTRYPOINT", "CMD",
    ]),
    language(&[".php"], &["//", "#"], SLASHES, "\"'", C_LIKE),
    language(&[".pl", ".pm", ".r"], &["#"], None, "\"'", &["my", "our", "sub", "use", "if", "else", "elsif", "for", "foreach", "while", "return", "function"]),
    language(&[".lua"], &["--"], None, "\"'", &["and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"]),
    language(&[".sql"], &["--"], SLASHES, "'", &[
        "select", "from", "where", "insert", "into", "update", "delete", "create", "table", "index", "drop", "alter", "join",
        "left", "inner", "on", "and", "or", "not", "null", "primary", "key", "values", "set", "order", "by", "group", "limit",
        "SELECT", "FROM", "WHERE", "INSERT", "INTO", "UPDATE", "DELETE", "CREATE", "TABLE", "INDEX", "DROP", "ALTER", "JOIN",
        "LEFT", "INNER", "ON", "AND", "OR", "NOT", "NULL", "PRIMARY", "KEY", "VALUES", "SET", "ORDER", "BY", "GROUP", "LIMIT",
    ]),
    language(&[".hs", ".elm"], &["--"], Some(("{-", "-}")), "\"", &["case", "class", "data", "deriving", "do", "else", "if", "import", "in", "instance", "let", "module", "newtype", "of", "then", "type", "where"]),
    language(&[".zig"], &["//"], None, "\"'", &["const", "var", "fn", "pub", "return", "if", "else", "while", "for", "switch", "struct", "enum", "union", "try", "catch", "defer", "comptime", "true", "false", "null"]),
    language(&[".css", ".scss", ".less"], &["//"], SLASHES, "\"'", &[]),
    language(&[".html", ".htm", ".xml", ".svg"], &[], Some(("<!--", "-->")), "\"'", &[]),
    language(&[".json", ".json5", ".jsonc"], &["//"], SLASHES, "\"", &["true", "false", "null"]),
    language(&[".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".nix", ".tf", ".service", ".properties"], &["#", ";"], None, "\"'", &["true", "false", "null", "yes", "no", "on", "off"]),
    language(&[".lisp", ".el", ".clj", ".scm"], &[";"], None, "\"", &["defun", "defn", "def", "let", "if", "cond", "lambda", "fn", "nil", "setq"]),
];

/// The language of a file by how its name ends.
pub fn of(path: &str) -> Option<&'static Language> {
    LANGUAGES.iter().find(|language| language.ends.iter().any(|end| path.ends_with(end)))
}

impl Language {
    /// The tokens of one line, in order and not overlapping.
    pub fn tokens(&self, line: &str, state: &mut State) -> Vec<(Token, Range<usize>)> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < line.len() {
            let rest = &line[at..];
            if *state == State::Comment {
                let end = self.block.and_then(|(_, close)| rest.find(close).map(|found| found + close.len()));
                *state = if end.is_some() { State::Code } else { State::Comment };
                let length = end.unwrap_or(rest.len());
                tokens.push((Token::Comment, at..at + length));
                at += length;
                continue;
            }
            let (token, length) = self.next(rest, line[..at].chars().next_back());
            if token == Some(Token::Comment) && length == 0 {
                *state = State::Comment;
                let open = self.block.map_or(0, |(open, _)| open.len());
                tokens.push((Token::Comment, at..at + open));
                at += open;
                continue;
            }
            tokens.extend(token.map(|token| (token, at..at + length)));
            at += length;
        }
        tokens
    }

    /// What begins here, and how long it is; a comment of no length is one that may go on over lines.
    fn next(&self, rest: &str, before: Option<char>) -> (Option<Token>, usize) {
        let Some(first) = rest.chars().next() else { return (None, 0) };
        let apart = before.is_none_or(|c| c.is_whitespace() || c == '(' || c == ',' || c == ';' || c == '}');
        // A number sign inside a word is none of a comment's.
        if self.line.iter().any(|mark| rest.starts_with(mark) && (mark.len() > 1 || apart)) {
            return (Some(Token::Comment), rest.len());
        }
        if self.block.is_some_and(|(open, _)| rest.starts_with(open)) {
            return (Some(Token::Comment), 0);
        }
        if self.quotes.contains(first) {
            return (Some(Token::Text), quoted(rest, first));
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if !is_word(first) {
            return (None, first.len_utf8());
        }
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..length];
        match first {
            '0'..='9' => (Some(Token::Number), length),
            _ if length < 20 && self.keywords.contains(&word) => (Some(Token::Keyword), length),
            _ => (None, length),
        }
    }
}

/// How long a string is that begins here: to its quote, or to the end of the line.
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

    fn check(path: &str, line: &str, want: &[(Token, &str)]) {
        let tokens = of(path).unwrap().tokens(line, &mut State::default());
        let found: Vec<_> = tokens.into_iter().map(|(token, at)| (token, &line[at])).collect();
        assert_eq!(found, want, "{line}");
    }

    #[test]
    fn tokens_of_common_languages() {
        use Token::*;
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
            language.tokens(&line, &mut State::default());
            // A quadratic lexer would take minutes.
            assert!(began.elapsed().as_secs() < 10, "{piece}: {:?}", began.elapsed());
        }
    }
}
