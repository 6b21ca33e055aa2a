//! Wraps every route: admits the request before it, and completes the response after it. Whatever fails in between, the client gets a
//! document of the API.

use crate::credentials::Peer;
use crate::gate::{self, Names};
use crate::refuse::{CarriedFault, FromGuest, OverRate, Refusal};
use crate::slow_body::TimedBody;
use crate::stream::Closing;
use crate::telemetry::{ObservedRequest, RequestEnd};
use crate::{Principal, Shared, cors, url_grants};
use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use terms::{ErrorKind, Fault, Retry};
use tower::ServiceExt;

/// Handles the requests of all connections.
#[derive(Clone)]
pub struct RequestHandler {
    pub app: Router,
    pub shared: Shared,
    pub names: Arc<Names>,
}

/// Response extension: the tenant of the authenticated client.
#[derive(Clone)]
struct Tenant(String);

/// Paths that also work without the prefix `/v1`, for tools that probe every daemon at the same path.
const UNVERSIONED: [&str; 3] = ["/health", "/metrics", "/openapi.json"];

impl RequestHandler {
    pub async fn respond<B>(self, peer: Peer, request: Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let id = terms::id("req", node::random::id_bytes());
        let origin = self.names.named_origin(request.headers()).cloned();
        let seen = ObservedRequest::begin(self.shared.telemetry(), request.method(), request.headers());
        let mut response = match AssertUnwindSafe(seen.run(&id, self.admitted(&peer, request))).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(refusal)) => refusal.into_response(),
            Err(_) => Refusal::from(Fault::internal("the handler of this request panicked")).into_response(),
        };
        let mut fault = None;
        let is_ours = response.extensions().get::<FromGuest>().is_none();
        if is_ours && (response.status().is_client_error() || response.status().is_server_error()) {
            let (document, of) = fault_document(response, &id).await;
            (response, fault) = (document, Some(of));
        }
        security_headers(&mut response, &id, is_ours);
        if let Some(origin) = origin {
            cors::permit(&mut response, origin);
        }
        let carried = response.extensions();
        seen.end(&RequestEnd {
            request_id: &id,
            route: carried.get::<MatchedPath>().map(MatchedPath::as_str),
            tenant: carried.get::<Tenant>().map(|tenant| tenant.0.as_str()),
            status: response.status(),
            fault: fault.as_ref(),
        });
        response
    }

    /// Returns true if the client of this response was authenticated.
    pub fn was_authenticated(response: &Response) -> bool {
        response.extensions().get::<Tenant>().is_some()
    }

    async fn admitted<B>(self, peer: &Peer, request: Request<B>) -> Result<Response, Refusal>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let (uri, grant) = url_grants::take(&parts.uri)?;
        parts.uri = uri;
        gate::check(&parts, peer, &self.names, grant.is_some())?;
        if let Some(answer) = cors::preflight(&parts, &self.names) {
            return Ok(answer);
        }
        parts.uri = versioned(parts.uri);
        let has_token = parts.headers.contains_key(header::AUTHORIZATION);
        let principal = match (grant, self.shared.rules().is_public(parts.uri.path()) && !has_token) {
            (Some(_), _) if has_token => {
                let hint = "send one of the two";
                return Err(Refusal::http(StatusCode::BAD_REQUEST, "a token, and a ticket or a signed URL", hint));
            }
            (Some(grant), _) => {
                let holder = self.shared.url_grants().redeem(&grant, &parts.method, &parts.uri)?;
                Some(self.shared.credentials().of_holder(holder).await?)
            }
            (None, true) => None,
            (None, false) => Some(self.shared.credentials().authenticate(peer, &parts.headers).await?),
        };
        let over = principal.as_ref().and_then(|principal| self.shared.admission().request(&principal.tenant).err());
        // Removed, so that no route can pass it on.
        parts.headers.remove(header::AUTHORIZATION);
        if let Some(principal) = &principal {
            parts.extensions.insert(principal.clone());
        }
        if let Some(over) = &over {
            parts.extensions.insert(OverRate(over.clone()));
        }
        let path = parts.uri.path().to_owned();
        let request = Request::from_parts(parts, Body::new(TimedBody::new(body, self.shared.patience())));
        let mut response = match self.app.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        // Without a matching route the middleware has not refused the request.
        if let Some(over) = over.filter(|_| response.extensions().get::<MatchedPath>().is_none()) {
            response = over.into_response();
        }
        if let Some(principal) = &principal {
            response.extensions_mut().insert(Tenant(principal.tenant.clone()));
        }
        match principal {
            Some(principal) => self.until_credential_ends(principal, path, response).await,
            None => Ok(response),
        }
    }

    /// Records requests for ids of other tenants, and ends streams with the credential that opened them.
    async fn until_credential_ends(
        &self,
        principal: Principal,
        path: String,
        response: Response,
    ) -> Result<Response, Refusal> {
        let is_ours = response.extensions().get::<FromGuest>().is_none();
        if is_ours && response.status() == StatusCode::NOT_FOUND {
            let subject = response.extensions().get::<CarriedFault>().and_then(|carried| carried.0.subject.clone());
            let words = gate::parts_of(&path).into_iter().chain(subject).collect();
            crate::foreign_ids::record_foreign(&self.shared, &principal, &path, words).await?;
        }
        let is_stream = response.status().is_success() && response.body().size_hint().exact().is_none();
        if !is_stream {
            return Ok(response);
        }
        let shared = self.shared.clone();
        let closed = async move { shared.until_closed(&principal).await };
        let (parts, body) = response.into_parts();
        let events =
            parts.headers.get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        Ok(Response::from_parts(parts, Body::new(Closing::new(body, events, closed))))
    }
}

fn versioned(uri: Uri) -> Uri {
    let path = uri.path();
    let known = |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !UNVERSIONED.iter().any(|name| known(name)) {
        return uri;
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    format!("/v1{target}").parse().unwrap_or(uri)
}

/// Builds the document of an error response. An error of a library in between becomes a fault, too.
async fn fault_document(response: Response, id: &str) -> (Response, Fault) {
    let (mut parts, body) = response.into_parts();
    let mut fault = match parts.extensions.remove::<CarriedFault>() {
        Some(carried) => *carried.0,
        None => {
            const LONGEST: usize = 4096;
            let text = Limited::new(body, LONGEST).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            let text = if text.is_empty() { parts.status.to_string() } else { text };
            *Refusal::http(parts.status, text, "see /v1/openapi.json").fault
        }
    };
    // A retry does not change a limit that is too small.
    let is_hopeless = fault.error_kind == ErrorKind::LimitExceeded && fault.retry == Retry::Never;
    if matches!(parts.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) && !is_hopeless {
        fault.retry = Retry::Later;
        parts.headers.entry(header::RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
    }
    if parts.status == StatusCode::UNAUTHORIZED {
        parts.headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    fault.request_id = Some(id.to_owned());
    let text = serde_json::to_vec(&fault).unwrap_or_default();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (Response::from_parts(parts, Body::from(text)), fault)
}

/// Sets the security headers of every response: no framing, no caching, no content sniffing. A response of the daemon itself, as opposed to
/// a guest's, is also closed to other origins as a window and as a resource.
fn security_headers(response: &mut Response, id: &str, is_ours: bool) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if is_ours {
        for (name, value) in [
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;
    use crate::{Settings, routes};
    use axum::routing::get;
    use std::os::unix::fs::DirBuilderExt;
    use std::path::Path;

    /// A front whose routes are those of the daemon and some that misbehave.
    fn front(state: &Path) -> RequestHandler {
        std::fs::DirBuilder::new().mode(0o700).create(state).unwrap();
        let env = vec![("COFFERDAM_STATE".into(), state.into())];
        let (cwd, home, user) = ("/".into(), "/nonexistent".into(), "tester".into());
        let caller = node::Caller::new(cwd, home, user, env, |_| None);
        let node = std::sync::Arc::new(node::Node::for_command());
        let credentials = Credentials::open(node.clone(), &caller, Default::default()).unwrap();
        let url_grants = crate::url_grants::UrlGrants::open(state).unwrap();
        let (app, shared) = routes::all(&Settings::new(caller, state.to_owned()), node, credentials, url_grants);
        async fn fails() -> &'static str {
            panic!("a route fails")
        }
        async fn bare() -> (StatusCode, &'static str) {
            (StatusCode::IM_A_TEAPOT, "short and stout")
        }
        let app = app.route("/fails", get(fails)).route("/bare", get(bare));
        RequestHandler { app, shared, names: Arc::new(Names::default()) }
    }

    async fn told(front: &RequestHandler, path: &str) -> (u16, serde_json::Value) {
        let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        let peer = Peer::Unix { uid: Some(rustix::process::geteuid().as_raw()) };
        let response = front.clone().respond(peer, request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn whatever_happens_in_a_route_the_answer_is_a_document() {
        let state = std::env::temp_dir().join(format!("cofferdam-front-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&state);
        let front = front(&state);
        let (status, document) = told(&front, "/v1/health/live").await;
        assert_eq!((status, &document["status"]), (200, &"ok".into()), "the control");
        let (status, fault) = told(&front, "/fails").await;
        assert_eq!((status, &fault["error_kind"]), (500, &"internal".into()), "{fault}");
        assert!(fault["request_id"].is_string() && !fault["message"].to_string().contains("a route fails"));
        let (status, fault) = told(&front, "/bare").await;
        assert_eq!((status, &fault["message"]), (418, &"short and stout".into()), "{fault}");
        assert!(fault["request_id"].is_string() && fault["success"] == false);
        std::fs::remove_dir_all(&state).unwrap();
    }
}
