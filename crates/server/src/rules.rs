//! Enforces the OpenAPI document: a route without `security: {}` needs a credential, and a query parameter or body that the document does
//! not name is refused.

use crate::Shared;
use crate::extract::{broken_body, check_coding, check_type};
use crate::refuse::{OverRate, Refusal};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use terms::{Fault, Phase};

/// OpenAPI extension of routes that forward query and body unchanged, to a port of a guest.
pub const PASSES_THROUGH: &str = "x-passes-through";

#[derive(Default)]
pub struct Rules {
    of: HashMap<(Method, String), RouteRule>,
    public: HashSet<String>,
}

#[derive(Default)]
struct RouteRule {
    query: HashSet<String>,
    /// Content types of the bodies that the route accepts.
    content_types: Vec<String>,
    passes: bool,
}

impl Rules {
    /// Reads the rules from the OpenAPI document.
    pub fn of(description: &Value) -> Rules {
        let mut rules = Rules::default();
        for (path, item) in description["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                let Ok(method) = Method::from_bytes(method.to_uppercase().as_bytes()) else { continue };
                if is_public(operation) {
                    rules.public.insert(path.clone());
                }
                rules.of.insert((method, path.replace("{*", "{")), rule(operation));
            }
        }
        rules
    }

    /// Returns true for a path that needs no credential.
    pub fn is_public(&self, path: &str) -> bool {
        self.public.contains(path)
    }

    fn find(&self, method: &Method, path: &str) -> Option<&RouteRule> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.of.get(&(method.clone(), path.replace("{*", "{")))
    }
}

fn is_public(operation: &Value) -> bool {
    operation["security"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one.as_object().is_some_and(|o| o.is_empty())))
}

fn rule(operation: &Value) -> RouteRule {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let query =
        parameters.filter(|p| p["in"] == "query").filter_map(|p| p["name"].as_str().map(str::to_owned)).collect();
    let content_types = operation["requestBody"]["content"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(content_type, _)| content_type.clone());
    RouteRule { query, content_types: content_types.collect(), passes: operation[PASSES_THROUGH] == true }
}

/// Middleware that checks each request against the rule of its route. The response carries the matched path, for logs.
pub async fn enforce(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else { return next.run(request).await };
    let none = RouteRule::default();
    let rule = shared.rules().find(request.method(), path.as_str()).unwrap_or(&none);
    let over = request.extensions().get::<OverRate>().map_or(Ok(()), |over| Err(over.0.clone()));
    let checked = over.and_then(|()| check(rule, &request));
    let request = match checked {
        Ok(BodyRule::Unchanged) => Ok(request),
        Ok(BodyRule::Empty) => require_empty(request).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = match request {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    response.extensions_mut().insert(path);
    response
}

/// Treatment of a request body before the route sees it.
#[derive(Debug, PartialEq, Eq)]
enum BodyRule {
    Unchanged,
    /// The route accepts no body, so the body must be an empty document.
    Empty,
}

/// Maximum size of an empty document, white space included.
const MAX_EMPTY_BYTES: usize = 1024;

/// Accepts an empty body, or `{}`, which many clients send with every POST, for a route without a body.
async fn require_empty(request: Request) -> Result<Request, Refusal> {
    let (parts, body) = request.into_parts();
    let bytes = match Limited::new(body, MAX_EMPTY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(no_body_accepted("more than an empty document")),
        Err(error) => return Err(broken_body(error.as_ref())),
    };
    let document = serde_json::from_slice::<Value>(&bytes);
    match document.as_ref().map(Value::as_object) {
        _ if bytes.is_empty() => {}
        Ok(Some(fields)) if fields.is_empty() => {}
        Ok(Some(fields)) => {
            let name = fields.keys().next().map_or("", String::as_str);
            return Err(no_body_accepted(&format!("the field {name:?}")));
        }
        Ok(None) | Err(_) => return Err(no_body_accepted("something else than an empty document")),
    }
    Ok(Request::from_parts(parts, axum::body::Body::empty()))
}

fn no_body_accepted(found: &str) -> Refusal {
    let fault = Fault::invalid(format!("the body: this route takes none, but the request has {found}"));
    fault.hint("send no body, or {}; /v1/openapi.json says which routes take one").phase(Phase::Admission).into()
}

fn check(rule: &RouteRule, request: &Request) -> Result<BodyRule, Refusal> {
    if rule.passes {
        return Ok(BodyRule::Unchanged);
    }
    for pair in request.uri().query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default();
        if !rule.query.contains(name) {
            let mut known: Vec<&str> = rule.query.iter().map(String::as_str).collect();
            known.sort_unstable();
            let known = if known.is_empty() {
                "this route takes none".into()
            } else {
                format!("it takes {}", known.join(", "))
            };
            let fault = Fault::invalid(format!("the query: unknown parameter {name:?}")).hint(known);
            return Err(fault.phase(Phase::Admission).into());
        }
    }
    check_body(rule, request)
}

/// Checks the content type of a body. A body without Content-Type counts as bytes where the route accepts those. An empty body is no body,
/// whatever its Content-Type.
fn check_body(rule: &RouteRule, request: &Request) -> Result<BodyRule, Refusal> {
    const BYTES: &str = "application/octet-stream";
    const DOCUMENT: [&str; 1] = ["application/json"];
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH).map(|length| length.as_bytes() != b"0");
    let has_body = length.unwrap_or(headers.contains_key(TRANSFER_ENCODING));
    let is_named = headers.contains_key(CONTENT_TYPE);
    let content_types: Vec<&str> = rule.content_types.iter().map(String::as_str).collect();
    let may_look = matches!(*request.method(), Method::GET | Method::HEAD);
    match (has_body, content_types.is_empty()) {
        (false, _) if !is_named => Ok(BodyRule::Unchanged),
        // An HTML form without fields sends this.
        (false, true) => check_type(headers, &DOCUMENT).map(|()| BodyRule::Unchanged),
        (true, false) if !is_named && content_types.contains(&BYTES) => {
            check_coding(headers).map(|()| BodyRule::Unchanged)
        }
        (_, false) => check_type(headers, &content_types).map(|()| BodyRule::Unchanged),
        (true, true) if may_look => {
            let hint = "send no body; /v1/openapi.json says which routes take one";
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this route takes no body", hint))
        }
        (true, true) if is_named => check_type(headers, &DOCUMENT).map(|()| BodyRule::Empty),
        (true, true) => check_coding(headers).map(|()| BodyRule::Empty),
    }
}
