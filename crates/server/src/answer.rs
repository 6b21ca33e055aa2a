//! Documents as answers: each says which version of the contract it follows, and which version of its subject it shows. Every route that
//! answers with JSON answers so.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use terms::{Fault, PROTOCOL_VERSION};
use utoipa::ToSchema;

/// What is sent.
// The line above is part of the published description. For content that does not carry the version itself.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Document<T> {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub content: T,
}

/// An answer of a route. The document is written when the answer is made, so that one body of code sends all of them; `T` tells the
/// reader of a route which document that is.
pub struct Answer<T> {
    written: Written,
    content: PhantomData<fn() -> T>,
}

struct Written {
    status: StatusCode,
    version: Option<u64>,
    /// None where it cannot be written as JSON.
    text: Option<Vec<u8>>,
}

impl<T: Serialize> Answer<T> {
    /// Content that does not carry `protocol_version`; it is put in front.
    pub fn ok(content: T) -> Answer<T> {
        Answer::new(serde_json::to_vec(&Document { protocol_version: PROTOCOL_VERSION, content }).ok())
    }

    /// A whole document, which carries `protocol_version` itself.
    pub fn whole(document: &T) -> Answer<T> {
        Answer::new(serde_json::to_vec(document).ok())
    }

    /// The same as `ok`, with the status of something that was made, or had been.
    pub fn made(content: T, existed: bool) -> Answer<T> {
        Answer::ok(content).created_unless(existed)
    }

    fn new(text: Option<Vec<u8>>) -> Answer<T> {
        Answer { written: Written { status: StatusCode::OK, version: None, text }, content: PhantomData }
    }

    /// 201 for something that was made; 200 where an earlier request under the same key made it.
    pub fn created_unless(mut self, existed: bool) -> Answer<T> {
        self.written.status = if existed { StatusCode::OK } else { StatusCode::CREATED };
        self
    }

    /// The `ETag`, which a later change can name in `If-Match`.
    pub fn version(mut self, version: u64) -> Answer<T> {
        self.written.version = Some(version);
        self
    }
}

impl<T> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        self.written.into_response()
    }
}

impl IntoResponse for Written {
    fn into_response(self) -> Response {
        let Some(text) = self.text else {
            return crate::Refusal::from(Fault::internal("the answer cannot be written as JSON")).into_response();
        };
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = self.status;
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(tag) = self.version.and_then(|v| HeaderValue::from_str(&format!("\"{v}\"")).ok()) {
            answer.headers_mut().insert(ETAG, tag);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    async fn sent<T>(answer: Answer<T>) -> (u16, Option<String>, Value) {
        let answer = answer.into_response();
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
        let tag = answer.headers().get(ETAG).map(|tag| tag.to_str().unwrap().to_owned());
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, tag, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn both_forms_of_content_are_one_form_of_answer() {
        let with_version = json!({"protocol_version": PROTOCOL_VERSION, "a": 1});
        assert_eq!(sent(Answer::ok(json!({"a": 1}))).await, (200, None, with_version.clone()));
        assert_eq!(sent(Answer::whole(&with_version)).await, (200, None, with_version.clone()));
        let made = Answer::made(json!({"a": 1}), false).version(7);
        assert_eq!(sent(made).await, (201, Some("\"7\"".into()), with_version.clone()));
        assert_eq!(sent(Answer::whole(&with_version).created_unless(true)).await.0, 200);
        let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert_eq!(
            Answer::whole(&unwritable).into_response().status().as_u16(),
            500,
            "a refusal, which has no document yet"
        );
    }
}
