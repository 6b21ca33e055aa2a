//! A document as a plain tree, independent of its format. Parsing refuses duplicate keys and excessive depth; keys are
//! interpreted later.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::HashSet;
use std::fmt;

/// Bound on nesting: deeper than any valid document, shallow enough for every reader's stack.
pub(crate) const MAX_DEPTH: usize = 16;

/// Key under which the TOML reader delivers a date.
const TOML_DATE: &str = "$__toml_private_datetime";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    /// A TOML date; no key takes one.
    Date,
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Returns the type of the value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Int(_) | Node::Float(_) => "a number",
            Node::Text(_) => "a string",
            Node::Date => "a date",
            Node::List(_) => "a list",
            Node::Map(_) => "an object",
        }
    }

    pub(crate) fn text(value: impl Into<String>) -> Node {
        Node::Text(value.into())
    }

    pub(crate) fn texts<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Node {
        Node::List(values.into_iter().map(|v| Node::text(v.as_ref())).collect())
    }

    /// Formats pretty JSON with a final newline; rules stay on one line each.
    pub(crate) fn to_json(&self) -> String {
        let mut out = String::new();
        self.write_pretty(&mut out, 0);
        out.push('\n');
        out
    }

    pub(crate) fn to_compact_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn write_pretty(&self, out: &mut String, indent: usize) {
        match self {
            Node::Map(entries) if !entries.is_empty() && !self.fits_a_line(indent) => {
                write_block(out, indent, ('{', '}'), entries, |out, (key, value)| {
                    out.push_str(&serde_json::to_string(key).unwrap_or_default());
                    out.push_str(": ");
                    value.write_pretty(out, indent + 2);
                });
            }
            Node::List(items) if !items.is_empty() && !self.fits_a_line(indent) => {
                write_block(out, indent, ('[', ']'), items, |out, item| item.write_pretty(out, indent + 2));
            }
            _ => out.push_str(&self.one_line()),
        }
    }

    /// Returns true if a list of strings or a flat object fits on one line.
    fn fits_a_line(&self, indent: usize) -> bool {
        let flat = match self {
            Node::List(items) => !items.iter().any(|i| matches!(i, Node::Map(_))),
            Node::Map(entries) => indent > 2 && !entries.iter().any(|(_, v)| matches!(v, Node::Map(_))),
            _ => true,
        };
        flat && self.one_line().len() + indent <= 130
    }

    fn one_line(&self) -> String {
        match self {
            Node::List(items) => {
                let inner: Vec<String> = items.iter().map(Node::one_line).collect();
                format!("[{}]", inner.join(", "))
            }
            Node::Map(entries) => {
                let inner: Vec<String> = entries
                    .iter()
                    .map(|(k, v)| format!("{}: {}", serde_json::to_string(k).unwrap_or_default(), v.one_line()))
                    .collect();
                format!("{{{}}}", inner.join(", "))
            }
            leaf => leaf.to_compact_json(),
        }
    }
}

fn write_block<T>(
    out: &mut String,
    indent: usize,
    brackets: (char, char),
    items: &[T],
    mut each: impl FnMut(&mut String, &T),
) {
    out.push(brackets.0);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { ",\n" });
        out.push_str(&" ".repeat(indent + 2));
        each(out, item);
    }
    out.push('\n');
    out.push_str(&" ".repeat(indent));
    out.push(brackets.1);
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Node::Null | Node::Date => serializer.serialize_unit(),
            Node::Bool(value) => serializer.serialize_bool(*value),
            Node::Int(value) => match i64::try_from(*value) {
                Ok(small) => serializer.serialize_i64(small),
                Err(_) => serializer.serialize_f64(*value as f64),
            },
            Node::Float(value) => serializer.serialize_f64(*value),
            Node::Text(value) => serializer.serialize_str(value),
            Node::List(items) => serializer.collect_seq(items),
            Node::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

/// Deserialises a node at a given depth.
pub(crate) struct NodeSeed {
    pub(crate) depth: usize,
}

impl<'de> DeserializeSeed<'de> for NodeSeed {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a policy document")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Node, E> {
        Ok(i128::try_from(value).map_or(Node::Float(f64::INFINITY), Node::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(NodeSeed { depth: self.depth + 1 })? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("duplicate key {key:?}")));
            }
            let value = map.next_value_seed(NodeSeed { depth: self.depth + 1 })?;
            if key == TOML_DATE {
                return Ok(Node::Date);
            }
            entries.push((key, value));
        }
        Ok(Node::Map(entries))
    }
}
