//! Before and behind every route: a request is admitted and its answer is made whole. Nothing that happens in between can
//! leave a client without a document of the contract.

use crate::credentials::Peer;
use crate::gate::{self, Names};
use crate::refuse::{Carried, OfGuest, Over, Refusal};
use crate::slow_body::TimedBody;
use crate::stream::Closing;
use crate::telemetry::{Seen, Told};
use crate::{Shared, Who};
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

/// What every connection needs to answer requests.
#[derive(Clone)]
pub struct Front {
    pub app: Router,
    pub shared: Shared,
    pub names: Arc<Names>,
}

/// Carried by an answer: whose credential it was asked for with.
#[derive(Clone)]
struct Tenant(String);

/// What is also found without the version in front, for those who ask every daemon the same.
const WITHOUT_VERSION: [&str; 3] = ["/health", "/metrics", "/openapi.json"];

impl Front {
    pub async fn answer<B>(self, peer: Peer, request: Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let id = terms::id("req", node::random::id_bytes());
        let seen = Seen::begin(self.shared.telemetry(), request.method(), request.headers());
        let mut answer = match AssertUnwindSafe(seen.during(&id, self.admitted(&peer, request))).catch_unwind().await {
            Ok(Ok(answer)) => answer,
            Ok(Err(refusal)) => refusal.into_response(),
            Err(_) => Refusal::from(Fault::internal("the daemon failed at this request")).into_response(),
        };
        let mut fault = None;
        let is_ours = answer.extensions().get::<OfGuest>().is_none();
        if is_ours && (answer.status().is_client_error() || answer.status().is_server_error()) {
            let (document, of) = refused(answer, &id).await;
            (answer, fault) = (document, Some(of));
        }
        guard(&mut answer, &id, is_ours);
        let carried = answer.extensions();
        seen.end(&Told {
            request_id: &id,
            route: carried.get::<MatchedPath>().map(MatchedPath::as_str),
            tenant: carried.get::<Tenant>().map(|tenant| tenant.0.as_str()),
            status: answer.status(),
            fault: fault.as_ref(),
        });
        answer
    }

    /// Whether it answers somebody with a credential.
    pub fn knew(answer: &Response) -> bool {
        answer.extensions().get::<Tenant>().is_some()
    }

    async fn admitted<B>(self, peer: &Peer, request: Request<B>) -> Result<Response, Refusal>
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        gate::check(&parts, peer, &self.names)?;
        parts.uri = versioned(parts.uri);
        let given = parts.headers.contains_key(header::AUTHORIZATION);
        let who = match self.shared.rules().is_public(parts.uri.path()) && !given {
            true => None,
            false => Some(self.shared.credentials().who(peer, &parts.headers).await?),
        };
        let over = who.as_ref().and_then(|who| self.shared.admission().request(&who.tenant).err());
        // No route has a use for it, and none must be able to pass it on.
        parts.headers.remove(header::AUTHORIZATION);
        if let Some(who) = &who {
            parts.extensions.insert(who.clone());
        }
        if let Some(over) = &over {
            parts.extensions.insert(Over(over.clone()));
        }
        let path = parts.uri.path().to_owned();
        let request = Request::from_parts(parts, Body::new(TimedBody::new(body, self.shared.patience())));
        let mut answer = match self.app.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        // Where no route was found nobody has refused it yet.
        if let Some(over) = over.filter(|_| answer.extensions().get::<MatchedPath>().is_none()) {
            answer = over.into_response();
        }
        if let Some(who) = &who {
            answer.extensions_mut().insert(Tenant(who.tenant.clone()));
        }
        match who {
            Some(who) => self.watched(who, path, answer).await,
            None => Ok(answer),
        }
    }

    /// Streams end with the credential they were opened with; names of other tenants' things are noted.
    async fn watched(&self, who: Who, path: String, answer: Response) -> Result<Response, Refusal> {
        let is_ours = answer.extensions().get::<OfGuest>().is_none();
        if is_ours && answer.status() == StatusCode::NOT_FOUND {
            let subject = answer.extensions().get::<Carried>().and_then(|carried| carried.0.subject.clone());
            let words = gate::parts_of(&path).into_iter().chain(subject).collect();
            crate::foreign::look(&self.shared, &who, &path, words).await?;
        }
        let is_stream = answer.status().is_success() && answer.body().size_hint().exact().is_none();
        if !is_stream {
            return Ok(answer);
        }
        let shared = self.shared.clone();
        let closed = async move { shared.until_closed(&who).await };
        let (parts, body) = answer.into_parts();
        let events =
            parts.headers.get(header::CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"text/event-stream"));
        Ok(Response::from_parts(parts, Body::new(Closing::new(body, events, closed))))
    }
}

fn versioned(uri: Uri) -> Uri {
    let path = uri.path();
    let known = |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if !WITHOUT_VERSION.iter().any(|name| known(name)) {
        return uri;
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    format!("/v1{target}").parse().unwrap_or(uri)
}

/// The document of a refusal. One that is not ours, of a library in between, becomes one.
async fn refused(answer: Response, id: &str) -> (Response, Fault) {
    let (mut parts, body) = answer.into_parts();
    let mut fault = match parts.extensions.remove::<Carried>() {
        Some(carried) => *carried.0,
        None => {
            const LONGEST: usize = 4096;
            let text = Limited::new(body, LONGEST).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).trim().to_owned();
            let text = if text.is_empty() { parts.status.to_string() } else { text };
            *Refusal::http(parts.status, text, "see /v1/openapi.json").fault
        }
    };
    // A limit that is too small stays so however often it is asked for.
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

/// Headers of every answer: it is shown in no frame, kept by no cache, and taken for nothing that it does not say it is. One of ours is
/// in no window that a foreign page holds, and no foreign page has it in its memory.
fn guard(answer: &mut Response, id: &str, is_ours: bool) {
    let headers = answer.headers_mut();
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
    fn front(state: &Path) -> Front {
        std::fs::DirBuilder::new().mode(0o700).create(state).unwrap();
        let env = vec![("COFFERDAM_STATE".into(), state.into())];
        let (cwd, home, user) = ("/".into(), "/nonexistent".into(), "tester".into());
        let caller = node::Caller::new(cwd, home, user, env, |_| None);
        let node = std::sync::Arc::new(node::Node::for_command());
        let credentials = Credentials::open(node.clone(), &caller, Default::default()).unwrap();
        let (app, shared) = routes::all(&Settings::new(caller, state.to_owned()), node, credentials);
        async fn fails() -> &'static str {
            panic!("a route fails")
        }
        async fn bare() -> (StatusCode, &'static str) {
            (StatusCode::IM_A_TEAPOT, "short and stout")
        }
        let app = app.route("/fails", get(fails)).route("/bare", get(bare));
        Front { app, shared, names: Arc::new(Names::default()) }
    }

    async fn told(front: &Front, path: &str) -> (u16, serde_json::Value) {
        let request = Request::builder().uri(path).header("host", "localhost").body(Body::empty()).unwrap();
        let peer = Peer::Unix { uid: Some(rustix::process::geteuid().as_raw()) };
        let answer = front.clone().answer(peer, request).await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
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
