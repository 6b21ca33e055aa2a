//! Requests of pages from origins that the operator named: answers to preflights, and the headers that let a page read a response.
//! Whether an origin is named, `gate` decides. Cookies and passwords of a browser are never asked for.

use crate::gate::Names;
use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
const REQUEST_HEADERS: &str = "authorization, content-type, idempotency-key, if-match, if-none-match, if-range, last-event-id, range, x-cofferdam";
const RESPONSE_HEADERS: &str = "accept-ranges, cofferdam-digest, content-range, etag, retry-after, x-request-id";
/// Seconds for which a browser may remember the answer.
const MAX_AGE: &str = "600";

/// Answers the preflight of a page from a named origin; none for other requests. Needs no credential, because browsers send none.
pub fn preflight(parts: &Parts, names: &Names) -> Option<Response> {
    let asks = parts.method == Method::OPTIONS && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    names.named_origin(&parts.headers).filter(|_| asks)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (ACCESS_CONTROL_ALLOW_HEADERS, REQUEST_HEADERS),
        (ACCESS_CONTROL_MAX_AGE, MAX_AGE),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

/// Lets a page of a named origin read a response.
pub fn permit(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(RESPONSE_HEADERS));
    headers.append(VARY, HeaderValue::from_static("origin"));
}
