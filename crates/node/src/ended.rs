//! A run that a verb ended, as its answer lists it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A run that was ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub run: String,
    pub pid: u32,
    /// It did not end when it was asked to.
    pub killed: bool,
}
