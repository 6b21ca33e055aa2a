//! Position of a field in a text. Only used for error positions, on a text that a real parser has accepted, so the JSON
//! scanner needs no grammar of its own.

use crate::document::Format;
use toml::de::{DeTable, DeValue};

/// A step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    Key(String),
    Index(usize),
}

/// The part of a field that an error points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldPart {
    Key,
    Value,
}

/// Returns line and column, both from 1, of the field at `path`; of its nearest enclosing value if it is absent.
pub(crate) fn locate(text: &str, format: Format, path: &[PathStep], spot: FieldPart) -> (usize, usize) {
    let offset = match format {
        Format::Json => locate_json(text, path, spot),
        Format::Toml => locate_toml(text, path, spot),
    };
    line_column(text, offset)
}

pub(crate) fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let mut end = offset.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = &text[..end];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Formats a path such as `fs.rules[2].path`, with odd keys quoted.
pub(crate) fn render(path: &[PathStep]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            PathStep::Index(i) => out.push_str(&format!("[{i}]")),
            PathStep::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
                match plain {
                    true => out.push_str(key),
                    false => out.push_str(&format!("{key:?}")),
                }
            }
        }
    }
    out
}

fn locate_json(text: &str, path: &[PathStep], spot: FieldPart) -> usize {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    scan.space();
    let mut best = scan.at;
    for (depth, step) in path.iter().enumerate() {
        let last = depth + 1 == path.len();
        match scan.enter(step) {
            Some((key_at, value_at)) => best = if last && spot == FieldPart::Key { key_at } else { value_at },
            None => break,
        }
    }
    best
}

/// A scanner for well-formed JSON; on any other input it stops rather than loops.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// Moves into the value at `step` of the container here; returns the offsets of its key and of the value.
    fn enter(&mut self, step: &PathStep) -> Option<(usize, usize)> {
        let open = self.peek()?;
        if open != b'{' && open != b'[' {
            return None;
        }
        self.at += 1;
        let mut index = 0;
        loop {
            self.space();
            if matches!(self.peek()?, b'}' | b']') {
                return None;
            }
            let key_at = self.at;
            let mut key = None;
            if open == b'{' {
                key = self.string();
                self.space();
                self.at += 1;
                self.space();
            }
            let hit = match step {
                PathStep::Key(wanted) => key.as_deref() == Some(wanted),
                PathStep::Index(wanted) => open == b'[' && *wanted == index,
            };
            if hit {
                return Some((key_at, self.at));
            }
            self.skip_value();
            self.space();
            if self.peek()? != b',' {
                return None;
            }
            self.at += 1;
            index += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Option<String> {
        let start = self.at;
        self.skip_string();
        serde_json::from_slice(self.bytes.get(start..self.at)?).ok()
    }

    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'"' => return,
                _ => {}
            }
        }
    }

    fn skip_value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string();
                    if depth == 0 {
                        return;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return;
                    }
                }
                b',' if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }
}

fn locate_toml(text: &str, path: &[PathStep], spot: FieldPart) -> usize {
    let Ok(root) = DeTable::parse(text) else {
        return 0;
    };
    let Some((first, rest)) = path.split_first() else {
        return root.span().start;
    };
    let PathStep::Key(name) = first else { return 0 };
    let Some((key, value)) = root.get_ref().get_key_value(name.as_str()) else {
        return root.span().start;
    };
    let mut best = if rest.is_empty() && spot == FieldPart::Key { key.span().start } else { value.span().start };
    let mut here = value;
    for (depth, step) in rest.iter().enumerate() {
        let last = depth + 1 == rest.len();
        let next = match (step, here.get_ref()) {
            (PathStep::Key(name), DeValue::Table(table)) => {
                table.get_key_value(name.as_str()).map(|(k, v)| (k.span().start, v))
            }
            (PathStep::Index(i), DeValue::Array(items)) => items.get(*i).map(|v| (v.span().start, v)),
            _ => None,
        };
        let Some((key_at, value)) = next else { break };
        best = if last && spot == FieldPart::Key { key_at } else { value.span().start };
        here = value;
    }
    best
}
