//! Header fields of a head, with order and spelling preserved.

use super::{HeadError, MAX_FIELDS};

/// A field `name: value`. The value is trimmed and may contain non-ASCII bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub value: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields(pub Vec<Field>);

impl HeaderFields {
    /// Iterates over the values of all fields with that name, ignoring case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value.as_slice())
    }

    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|f| !f.name.eq_ignore_ascii_case(name));
    }

    pub fn add(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.0.push(Field { name: name.to_owned(), value: value.into() });
    }

    /// Iterates over the elements of all fields with that name, which are comma-separated lists.
    pub fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let words = self.all(name).flat_map(|value| value.split(|byte| *byte == b','));
        words.map(trimmed).filter(|word| !word.is_empty())
    }

    pub(super) fn read<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Result<HeaderFields, HeadError> {
        let mut fields = Vec::new();
        for line in lines {
            if fields.len() == MAX_FIELDS {
                return Err((431, "there are more than 128 fields"));
            }
            fields.push(field(line).map_err(|reason| (400, reason))?);
        }
        Ok(HeaderFields(fields))
    }
}

/// Splits a head into lines, up to the empty line.
pub(crate) fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = head.split_inclusive(|byte| *byte == b'\n');
    ends.map(|line| line.strip_suffix(b"\r\n").unwrap_or(line)).take_while(|line| !line.is_empty())
}

pub(crate) fn field(line: &[u8]) -> Result<Field, &'static str> {
    if line.first().is_some_and(|byte| is_blank(*byte)) {
        return Err("a line is folded");
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Err("a line has no colon");
    };
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.last().is_some_and(|byte| is_blank(*byte)) {
        return Err("a blank stands before a colon");
    }
    let name = token(name).ok_or("the name of a field is empty or malformed")?;
    Ok(Field { name: name.to_owned(), value: trimmed(value).to_vec() })
}

/// Returns the word if it is a token (RFC 9110, 5.6.2).
pub(super) fn token(word: &[u8]) -> Option<&str> {
    let is_token = !word.is_empty() && word.iter().all(|byte| is_token_byte(*byte));
    std::str::from_utf8(word).ok().filter(|_| is_token)
}

pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_blank(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_blank(*last)
    {
        value = rest;
    }
    value
}
