//! Configuration values: parsed from TOML and from text, and formatted.

use super::ValueKind;
use serde::Serialize;
use terms::{COUNTS, quantity};
use toml::de::DeValue;

/// A value in its stored form; sizes in bytes, times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    Unset,
    Switch(bool),
    Count(u64),
    Number(f64),
    Text(String),
    Texts(Vec<String>),
}

/// Bounds on the length of a text and of a list.
const LONGEST: usize = 4096;
const MOST: usize = 256;

impl ValueKind {
    /// Parses the texts of a flag or a variable. A list may be one text with commas.
    pub fn of_texts(self, texts: &[&str]) -> Result<Value, String> {
        if self == ValueKind::Texts {
            let items = texts.iter().flat_map(|text| text.split(',')).map(str::trim).filter(|item| !item.is_empty());
            return list(items.map(str::to_owned).collect());
        }
        self.of_text(texts.last().copied().unwrap_or_default())
    }

    fn of_text(self, text: &str) -> Result<Value, String> {
        if text.len() > LONGEST {
            return Err(format!("is longer than {LONGEST} bytes"));
        }
        match self {
            ValueKind::Path if !text.starts_with('/') => Err(format!("is {text:?}, which is not absolute")),
            ValueKind::Text if text.is_empty() => Err("is empty".into()),
            ValueKind::Path | ValueKind::Text => Ok(Value::Text(text.into())),
            ValueKind::Word(words) if words.contains(&text) => Ok(Value::Text(text.into())),
            ValueKind::Word(words) => Err(format!("is {text:?}; use {}", words.join(", "))),
            ValueKind::Texts => list(vec![text.into()]),
            ValueKind::Switch => match text {
                "true" | "1" => Ok(Value::Switch(true)),
                "false" | "0" => Ok(Value::Switch(false)),
                _ => Err(format!("is {text:?}; use true or false")),
            },
            ValueKind::Count => {
                text.parse().map_err(|_| format!("is {text:?}, which is not a whole number")).and_then(count)
            }
            ValueKind::Number => {
                text.parse().map_err(|_| format!("is {text:?}, which is not a number")).and_then(number)
            }
            ValueKind::Size => quantity::size(text).map(Value::Count).map_err(|why| format!("is {why}")),
            ValueKind::Time => quantity::time(text).map(Value::Count).map_err(|why| format!("is {why}")),
        }
    }

    /// Parses a value of the file.
    pub fn of_toml(self, value: &DeValue<'_>) -> Result<Value, String> {
        let whole = |value: &DeValue<'_>| {
            let integer = value.as_integer()?;
            u64::from_str_radix(integer.as_str(), integer.radix()).ok()
        };
        match (self, value) {
            (ValueKind::Texts, DeValue::Array(items)) => {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                list(texts.collect::<Option<_>>().ok_or("is a list with items other than strings")?)
            }
            (ValueKind::Switch, DeValue::Boolean(on)) => Ok(Value::Switch(*on)),
            (ValueKind::Count | ValueKind::Size, DeValue::Integer(_)) => {
                whole(value).ok_or("is not a whole number of at least 1".into()).and_then(count)
            }
            (ValueKind::Number, DeValue::Integer(_)) => {
                whole(value).ok_or("is not a number above 0".into()).and_then(|n| number(n as f64))
            }
            (ValueKind::Number, DeValue::Float(float)) => {
                float.as_str().parse().map_err(|_| "is not a number above 0".into()).and_then(number)
            }
            (
                ValueKind::Path | ValueKind::Text | ValueKind::Word(_) | ValueKind::Size | ValueKind::Time,
                DeValue::String(text),
            ) => self.of_text(text),
            _ => Err(format!("is {}, but {} is expected", article(value.type_str()), self.due())),
        }
    }

    /// Describes the expected type.
    fn due(self) -> &'static str {
        match self {
            ValueKind::Path => "an absolute path",
            ValueKind::Text | ValueKind::Word(_) => "a string",
            ValueKind::Texts => "a list of strings",
            ValueKind::Switch => "true or false",
            ValueKind::Count => "a whole number",
            ValueKind::Number => "a number",
            ValueKind::Size => "a number of bytes, or a string like \"64m\",",
            ValueKind::Time => "a string like \"30s\"",
        }
    }

    /// Formats a value for people: times and sizes with their units.
    pub fn show(self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Unset) => "(unset)".into(),
            (ValueKind::Time, Value::Count(ms)) => {
                spelled(*ms, &[(3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")])
            }
            (ValueKind::Size, Value::Count(bytes)) => {
                spelled(*bytes, &[(1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k"), (1, "")])
            }
            (_, Value::Switch(on)) => on.to_string(),
            (_, Value::Count(count)) => count.to_string(),
            (_, Value::Number(number)) => number.to_string(),
            (_, Value::Text(text)) => text.clone(),
            (_, Value::Texts(texts)) => format!("[{}]", texts.join(", ")),
        }
    }
}

fn count(n: u64) -> Result<Value, String> {
    match COUNTS.contains(&n) {
        true => Ok(Value::Count(n)),
        false => Err(format!("is {n}; use 1 to {}", COUNTS.end())),
    }
}

fn number(n: f64) -> Result<Value, String> {
    match n {
        0.01..=1e9 => Ok(Value::Number(n)),
        _ => Err(format!("is {n}; use 0.01 to 1000000000")),
    }
}

fn list(texts: Vec<String>) -> Result<Value, String> {
    if texts.len() > MOST {
        return Err(format!("has more than {MOST} entries"));
    }
    match texts.iter().find(|text| text.is_empty() || text.len() > LONGEST) {
        Some(_) => Err("has an entry that is empty or too long".into()),
        None => Ok(Value::Texts(texts)),
    }
}

fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

/// Formats an amount in the largest unit that divides it.
fn spelled(amount: u64, units: &[(u64, &str)]) -> String {
    let whole = units.iter().find(|(size, _)| amount >= *size && amount.is_multiple_of(*size));
    whole.map_or_else(|| amount.to_string(), |(size, unit)| format!("{}{unit}", amount / size))
}
