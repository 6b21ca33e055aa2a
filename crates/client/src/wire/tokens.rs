//! Documents about tokens.

use node::tokens::Shown;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    pub tokens: Vec<Shown>,
    /// The value of `after` for the next page; none on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}
