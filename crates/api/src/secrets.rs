//! Secrets: their names and values in requests, and the documents that list them.

use crate::PathText;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// A value for a secret. Read by hand: a fault of derived code would repeat the value.
#[derive(ToSchema)]
pub struct SecretSet {
    /// The value: one line, at most 64 KiB, because it goes into a header.
    #[schema(write_only, max_length = 65536)]
    pub value: String,
}

impl<'de> Deserialize<'de> for SecretSet {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SecretSet, D::Error> {
        let read = serde_json::Value::deserialize(from);
        match read.map_err(|_| D::Error::custom("not JSON"))? {
            serde_json::Value::Object(mut fields) if fields.len() == 1 => match fields.remove("value") {
                Some(serde_json::Value::String(value)) => Ok(SecretSet { value }),
                _ => Err(D::Error::custom("`value` must be there, and be a string")),
            },
            _ => Err(D::Error::custom("an object with the field `value`, and no other")),
        }
    }
}

/// A secret by its name; its value is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretSummary {
    pub name: String,
    /// Time of the last change.
    pub set_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    pub protocol_version: u32,
    /// Secrets, sorted by name.
    pub secrets: Vec<SecretSummary>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SecretChanged {
    pub protocol_version: u32,
    pub name: String,
    /// True if a secret of that name existed before.
    pub existed: bool,
}

/// The value of a secret: sent, and never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct SecretValue(PathText);

impl SecretValue {
    pub fn of(bytes: &[u8]) -> SecretValue {
        SecretValue(PathText::of(bytes))
    }

    /// Decodes the value; `None` where it is not spelled as `of` spells it.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.0.bytes()
    }
}

impl std::fmt::Debug for SecretValue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hidden(…)")
    }
}
