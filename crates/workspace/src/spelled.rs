//! Bytes of names and link targets as documents carry them: text, or base64 where they are not UTF-8.

use crate::change::Target;
use base64::Engine;

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

impl Target {
    pub fn of(bytes: &[u8]) -> Target {
        match std::str::from_utf8(bytes) {
            Ok(text) => Target::Text(text.to_owned()),
            Err(_) => Target::Bytes { base64: BASE64.encode(bytes) },
        }
    }

    /// None where it is not spelled as `of` spells it: one name has one spelling.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Target::Text(text) => Some(text.clone().into_bytes()),
            Target::Bytes { base64 } => BASE64.decode(base64).ok().filter(|b| std::str::from_utf8(b).is_err()),
        }
    }
}
