//! Compresses large documents for clients that accept gzip. Never streams, whose parts must arrive at once, nor files, nor responses that
//! show a secret: the size of a compressed response tells what its parts have in common.

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use std::io::Write;

/// Smaller documents fit a packet or two.
const MIN_BYTES: u64 = 2 << 10;
/// Routes whose responses show a secret.
const SECRETS: [&str; 4] = ["/v1/tokens", "/v1/tickets", "/v1/urls", "/v1/secrets"];

/// Returns true if the client takes gzip.
pub fn is_accepted(headers: &HeaderMap) -> bool {
    let given = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    given.flat_map(|value| value.split(',')).any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = quality.trim().strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q == 0.0));
        matches!(name.trim().to_ascii_lowercase().as_str(), "gzip" | "*") && !refused
    })
}

/// Compresses the response where it is a large document.
pub async fn compressed(response: Response) -> Response {
    let is_secret = response.extensions().get::<MatchedPath>().is_none_or(|path| {
        let path = path.as_str();
        SECRETS.iter().any(|secret| path.starts_with(secret)) || path.contains("/ports/")
    });
    let is_document = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let size = response.body().size_hint().exact();
    if is_secret
        || !is_document
        || response.headers().contains_key(CONTENT_ENCODING)
        || size.is_none_or(|n| n < MIN_BYTES)
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // The whole document is in memory already.
    let Ok(document) = body.collect().await.map(|body| body.to_bytes()) else {
        return Response::from_parts(parts, Body::empty());
    };
    let plain = document.clone();
    let packed = tokio::task::spawn_blocking(move || gzip(&plain)).await.ok().flatten();
    parts.headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    match packed.filter(|packed| packed.len() < document.len()) {
        Some(packed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.remove(CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(packed))
        }
        None => Response::from_parts(parts, Body::from(document)),
    }
}

fn gzip(document: &Bytes) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(document.len() / 4), Compression::fast());
    encoder.write_all(document).ok()?;
    encoder.finish().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_say_whether_they_take_it() {
        let accepts = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            is_accepted(&headers)
        };
        for yes in ["gzip", "br, gzip;q=0.5", "*", "GZIP"] {
            assert!(accepts(yes), "{yes}");
        }
        for no in ["", "br", "gzip;q=0", "identity", "gzip;q=0.0, br"] {
            assert!(!accepts(no), "{no}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
