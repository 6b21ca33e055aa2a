//! Documents as answers: each says which version of the contract it follows, and which version of its subject it shows.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use terms::{Fault, PROTOCOL_VERSION};
use utoipa::ToSchema;

/// What is sent.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Document<T> {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub content: T,
}

/// Something was made; what an earlier request under the same key made is told with 200.
pub fn made(existed: bool) -> StatusCode {
    if existed { StatusCode::OK } else { StatusCode::CREATED }
}

/// What a route gives.
pub struct Answer<T> {
    status: StatusCode,
    version: Option<u64>,
    content: T,
}

impl<T: Serialize> Answer<T> {
    pub fn ok(content: T) -> Answer<T> {
        Answer { status: StatusCode::OK, version: None, content }
    }

    /// Something was made, or had been.
    pub fn made(content: T, existed: bool) -> Answer<T> {
        Answer { status: made(existed), version: None, content }
    }

    /// The `ETag`, which a later change can name in `If-Match`.
    pub fn version(self, version: u64) -> Answer<T> {
        Answer { version: Some(version), ..self }
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let text = serde_json::to_vec(&Document { protocol_version: PROTOCOL_VERSION, content: self.content });
        let Ok(text) = text else {
            return crate::Refusal::from(Fault::internal("the answer cannot be written as JSON")).into_response();
        };
        let mut answer = (self.status, text).into_response();
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(tag) = self.version.and_then(|v| HeaderValue::from_str(&format!("\"{v}\"")).ok()) {
            answer.headers_mut().insert(ETAG, tag);
        }
        answer
    }
}
