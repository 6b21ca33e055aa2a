//! Wrappers that several documents share.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A document with the version of the contract, for content that does not carry it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Document<T> {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub content: T,
}

/// The name of an object that was removed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    pub protocol_version: u32,
    pub removed: String,
}
