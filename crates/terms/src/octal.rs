//! Permission bits in documents: octal digits as text, `"644"`, in requests and responses alike. As a number, 755 and
//! 493 could both mean the same bits.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use utoipa::ToSchema;

/// Permission bits of a request, as text only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, examples("755"), pattern = "^[0-7]{1,5}$")]
pub struct FileMode(pub u32);

impl FileMode {
    /// Parses one to five octal digits; leading zeros are ignored.
    pub fn parse(text: &str) -> Option<FileMode> {
        let is_octal = (1..=5).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        is_octal.then(|| u32::from_str_radix(text, 8).ok().map(FileMode))?
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FileMode, D::Error> {
        from.deserialize_any(Bits { numbers: false }).map(FileMode)
    }
}

struct Bits {
    numbers: bool,
}

impl Visitor<'_> for Bits {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("octal digits as text, e.g. \"755\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u32, E> {
        let refuse = || E::custom(format!("{text:?} is no mode; write octal digits as text, e.g. \"755\""));
        FileMode::parse(text).map(|mode| mode.0).ok_or_else(refuse)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        let refuse = || E::custom(format!("{number} is a number; write octal digits as text, e.g. \"755\""));
        u32::try_from(number).ok().filter(|_| self.numbers).ok_or_else(refuse)
    }
}

/// Serialises bits of a response, for `#[serde(with)]`.
pub fn serialize<S: Serializer>(bits: &u32, to: S) -> Result<S::Ok, S::Error> {
    FileMode(*bits).serialize(to)
}

/// Deserialises bits; records and daemons of earlier versions wrote numbers.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    from.deserialize_any(Bits { numbers: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal_digits() {
        for (text, bits, shown) in
            [("755", 0o755, "755"), ("0644", 0o644, "644"), ("0", 0, "000"), ("1777", 0o1777, "1777")]
        {
            let mode = FileMode::parse(text).unwrap();
            assert_eq!((mode.0, mode.to_string().as_str()), (bits, shown), "{text}");
        }
        for bad in ["", "8", "0o755", "-1", "u+x", "123456", " 755"] {
            assert_eq!(FileMode::parse(bad), None, "{bad:?}");
        }
    }
}
