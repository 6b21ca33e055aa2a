//! Bytes as documents carry them: hex for digests and attributes; text, or base64 where it is none, for names and links.

use crate::change::Target;
use base64::Engine;
use std::fmt::Write;

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

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
