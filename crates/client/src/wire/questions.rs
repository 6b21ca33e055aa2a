//! Documents about questions that rules put to a person.

use node::questions::{self, Open, Remember};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct QuestionList {
    /// The oldest first; there are never many.
    pub questions: Vec<Open>,
}

/// An answer to a question.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuestionAnswer {
    pub answer: questions::Answer,
    #[serde(default)]
    pub remember: Remember,
}
