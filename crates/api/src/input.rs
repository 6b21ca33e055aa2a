//! Bytes of a command's input, as documents carry them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Bytes for a command to read: text, or base64 of any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InputBytes {
    Text(String),
    Base64 {
        /// With padding.
        base64: String,
    },
}

impl InputBytes {
    /// Returns the bytes; none where the base64 is invalid, which no document can have that was read.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            InputBytes::Text(text) => Some(text.clone().into_bytes()),
            InputBytes::Base64 { base64 } => BASE64.decode(base64).ok(),
        }
    }
}

/// Read by hand: what is derived would also take a list for the object, and could not say what it wants.
impl<'de> Deserialize<'de> for InputBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<InputBytes, D::Error> {
        from.deserialize_any(InputBytesVisitor)
    }
}

struct InputBytesVisitor;

impl<'de> Visitor<'de> for InputBytesVisitor {
    type Value = InputBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or {\"base64\": \"…\"}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<InputBytes, E> {
        Ok(InputBytes::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InputBytes, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Base64 {
            base64: String,
        }
        let Base64 { base64 } = Base64::deserialize(MapAccessDeserializer::new(map))?;
        match BASE64.decode(&base64) {
            Ok(_) => Ok(InputBytes::Base64 { base64 }),
            Err(error) => Err(de::Error::custom(format!("not base64 with padding: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_text_or_base64_of_any_bytes() {
        let read = |text: &str| serde_json::from_str::<InputBytes>(text).ok().and_then(|input| input.bytes());
        assert_eq!(read(r#""grün""#).as_deref(), Some("grün".as_bytes()));
        assert_eq!(read(r#"{"base64":"YQ=="}"#).as_deref(), Some(&b"a"[..]));
        assert_eq!(read(r#"{"base64":"/wA="}"#).as_deref(), Some(&b"\xff\0"[..]));
        for bad in [r#"{"base64":"YQ"}"#, r#"{"base64":"?"}"#, r#"{"text":"a"}"#, r#"{"base64":"","x":1}"#, "1", "[]"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
