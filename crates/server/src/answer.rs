//! JSON responses: each document carries the protocol version, and its ETag the version of its subject. Every route that responds with
//! JSON uses this type.

use api::Document;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use std::marker::PhantomData;
use terms::{Fault, PROTOCOL_VERSION};

/// A JSON response. The document is serialized when the value is made, so that sending it is not generic; `T` documents the type for
/// readers of a route.
pub struct Answer<T> {
    written: SerializedResponse,
    content: PhantomData<fn() -> T>,
}

struct SerializedResponse {
    status: StatusCode,
    version: Option<u64>,
    /// The document; none where serialization failed.
    text: Option<Vec<u8>>,
}

impl<T: Serialize> Answer<T> {
    /// A response with content that lacks `protocol_version`; it is added.
    pub fn ok(content: T) -> Answer<T> {
        Answer::new(serde_json::to_vec(&Document { protocol_version: PROTOCOL_VERSION, content }).ok())
    }

    /// A response with a document that has `protocol_version` itself.
    pub fn whole(document: &T) -> Answer<T> {
        Answer::new(serde_json::to_vec(document).ok())
    }

    /// `ok` with status 201, or 200 where the subject existed before.
    pub fn made(content: T, existed: bool) -> Answer<T> {
        Answer::ok(content).created_unless(existed)
    }

    fn new(text: Option<Vec<u8>>) -> Answer<T> {
        Answer { written: SerializedResponse { status: StatusCode::OK, version: None, text }, content: PhantomData }
    }

    /// Sets status 201; 200 where an earlier request under the same key created the subject.
    pub fn created_unless(mut self, existed: bool) -> Answer<T> {
        self.written.status = if existed { StatusCode::OK } else { StatusCode::CREATED };
        self
    }

    /// Sets the `ETag`, which a later change can send as `If-Match`.
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

impl IntoResponse for SerializedResponse {
    fn into_response(self) -> Response {
        let Some(text) = self.text else {
            return crate::Refusal::from(Fault::internal("cannot serialize the response as JSON")).into_response();
        };
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(tag) = self.version.and_then(|v| HeaderValue::from_str(&format!("\"{v}\"")).ok()) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    async fn sent<T>(response: Answer<T>) -> (u16, Option<String>, Value) {
        let response = response.into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let tag = response.headers().get(ETAG).map(|tag| tag.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
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
