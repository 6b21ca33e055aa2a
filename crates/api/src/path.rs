//! Names and paths of files as documents carry them, byte for byte.

use base64::Engine;
use serde::de;
use serde::de::Error;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use utoipa::ToSchema;

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

/// A file name or link target, byte for byte: a string, or base64 if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PathText {
    Text(String),
    Bytes { base64: String },
}

/// Read by hand: what is derived would also take a list for the object, and could not say what it wants.
impl<'de> Deserialize<'de> for PathText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PathText, D::Error> {
        from.deserialize_any(PathTextVisitor)
    }
}

struct PathTextVisitor;

impl<'de> Visitor<'de> for PathTextVisitor {
    type Value = PathText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or {\"base64\": \"…\"}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PathText, E> {
        Ok(PathText::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PathText, A::Error> {
        #[derive(Deserialize)]
        struct Bytes {
            base64: String,
        }
        let Bytes { base64 } = Bytes::deserialize(MapAccessDeserializer::new(map))?;
        Ok(PathText::Bytes { base64 })
    }
}

/// A path relative to the top of a tree. Parts are never empty, `.` or `..`; the empty path is the top itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
// Hundreds of signatures of the engines spell it, so the short name stays; alone it would tell a reader of the document nothing.
#[schema(as = RelPath, value_type = PathText)]
pub struct Rel(Vec<u8>);

impl Rel {
    /// The top of the tree.
    pub fn top() -> Rel {
        Rel(Vec::new())
    }

    /// Takes a path as a person types it: `./a//b/` is `a/b`. Nothing that is absolute, goes up or holds a NUL byte.
    pub fn parse(text: &[u8]) -> Option<Rel> {
        if text.starts_with(b"/") || text.contains(&0) {
            return None;
        }
        let parts: Vec<&[u8]> = text.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").collect();
        match parts.contains(&&b".."[..]) {
            true => None,
            false => Some(Rel(parts.join(&b'/'))),
        }
    }

    pub fn join(&self, name: &[u8]) -> Rel {
        debug_assert!(!name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..");
        let mut whole = self.0.clone();
        if !whole.is_empty() {
            whole.push(b'/');
        }
        whole.extend_from_slice(name);
        Rel(whole)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    pub fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|p| !p.is_empty())
    }

    /// The directory it is in, and its name there; none for the top.
    pub fn split(&self) -> Option<(Rel, &[u8])> {
        match self.0.iter().rposition(|b| *b == b'/') {
            Some(at) => Some((Rel(self.0[..at].to_vec()), &self.0[at + 1..])),
            None if self.0.is_empty() => None,
            None => Some((Rel::top(), &self.0)),
        }
    }

    /// Returns true if it is `other` or below it; components are compared, not prefixes of names.
    pub fn is_at_or_below(&self, other: &Rel) -> bool {
        let rest = self.0.strip_prefix(&other.0[..]);
        other.is_top() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }
}

/// For people: bytes that are no text, and characters that would move the cursor, hide or reorder text, are spelled out.
impl fmt::Display for Rel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Spelt(&self.0).fmt(f)
    }
}

/// Untrusted bytes, such as the target of a symbolic link, spelled for display as names are.
#[derive(Clone, Copy, Debug)]
pub struct Spelt<'a>(pub &'a [u8]);

impl fmt::Display for Spelt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    c if is_invisible(c) => write!(f, "{}", c.escape_default())?,
                    c => write!(f, "{c}")?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// In JSON a name is a string, or `{"base64": "…"}` where its bytes are no UTF-8: nothing is lost either way.
impl Serialize for Rel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PathText::of(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rel, D::Error> {
        let bytes = PathText::deserialize(deserializer)?
            .bytes()
            .ok_or_else(|| D::Error::custom("not base64 of a name that is no text"))?;
        let parsed = Rel::parse(&bytes).filter(|rel| rel.0 == bytes);
        parsed.ok_or_else(|| D::Error::custom("not a plain relative path"))
    }
}

impl PathText {
    pub fn of(bytes: &[u8]) -> PathText {
        match std::str::from_utf8(bytes) {
            Ok(text) => PathText::Text(text.to_owned()),
            Err(_) => PathText::Bytes { base64: BASE64.encode(bytes) },
        }
    }

    /// Returns the name; none if it is not spelled as `of` spells it, because a name has one spelling.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            PathText::Text(text) => Some(text.clone().into_bytes()),
            PathText::Bytes { base64 } => BASE64.decode(base64).ok().filter(|b| std::str::from_utf8(b).is_err()),
        }
    }
}

/// Characters that show nothing, or make other characters show elsewhere than they are.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{13430}'..='\u{1345f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}
