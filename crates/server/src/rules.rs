//! What the description says of each route, held: nobody gets in without a credential but where it says so, and no query
//! parameter and no body passes that it does not name.

use crate::Shared;
use crate::ask::{broken_body, check_coding, check_type};
use crate::refuse::{Over, Refusal};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{Method, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use terms::{Fault, Phase};

/// Marks a route whose query and body belong to somebody else: a port of a guest.
pub const PASSES: &str = "x-passes-through";

#[derive(Default)]
pub struct Rules {
    of: HashMap<(Method, String), Rule>,
    public: HashSet<String>,
}

#[derive(Default)]
struct Rule {
    query: HashSet<String>,
    /// Sorts of bodies that it takes.
    sorts: Vec<String>,
    passes: bool,
}

impl Rules {
    /// From the OpenAPI document.
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

    /// Whether a path is open to those without a credential.
    pub fn is_public(&self, path: &str) -> bool {
        self.public.contains(path)
    }

    fn find(&self, method: &Method, path: &str) -> Option<&Rule> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.of.get(&(method.clone(), path.replace("{*", "{")))
    }
}

fn is_public(operation: &Value) -> bool {
    operation["security"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one.as_object().is_some_and(|o| o.is_empty())))
}

fn rule(operation: &Value) -> Rule {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let query =
        parameters.filter(|p| p["in"] == "query").filter_map(|p| p["name"].as_str().map(str::to_owned)).collect();
    let sorts = operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(sort, _)| sort.clone());
    Rule { query, sorts: sorts.collect(), passes: operation[PASSES] == true }
}

/// Stands before every route. The answer carries which one it was.
pub async fn hold(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let Some(path) = request.extensions().get::<MatchedPath>().cloned() else { return next.run(request).await };
    let none = Rule::default();
    let rule = shared.rules().find(request.method(), path.as_str()).unwrap_or(&none);
    let over = request.extensions().get::<Over>().map_or(Ok(()), |over| Err(over.0.clone()));
    let checked = over.and_then(|()| check(rule, &request));
    let request = match checked {
        Ok(Body::AsItIs) => Ok(request),
        Ok(Body::Empty) => emptied(request).await,
        Err(refusal) => Err(refusal),
    };
    let mut answer = match request {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    answer.extensions_mut().insert(path);
    answer
}

/// What is done with a body before the route sees it.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    AsItIs,
    /// The route takes none, so that it must be an empty document.
    Empty,
}

/// An empty document is short, whatever spaces are in it.
const LONGEST_EMPTY: usize = 1024;

/// Takes the body of a request for a route that takes none: nothing, or `{}`, which many clients send with every POST.
async fn emptied(request: Request) -> Result<Request, Refusal> {
    let (parts, body) = request.into_parts();
    let bytes = match Limited::new(body, LONGEST_EMPTY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(takes_none("more than an empty document")),
        Err(error) => return Err(broken_body(error.as_ref())),
    };
    let document = serde_json::from_slice::<Value>(&bytes);
    match document.as_ref().map(Value::as_object) {
        _ if bytes.is_empty() => {}
        Ok(Some(fields)) if fields.is_empty() => {}
        Ok(Some(fields)) => {
            let name = fields.keys().next().map_or("", String::as_str);
            return Err(takes_none(&format!("the field {name:?}")));
        }
        Ok(None) | Err(_) => return Err(takes_none("something else than an empty document")),
    }
    Ok(Request::from_parts(parts, axum::body::Body::empty()))
}

fn takes_none(found: &str) -> Refusal {
    let fault = Fault::invalid(format!("the body: this route takes none, and there is {found}"));
    fault.hint("send no body, or {}; /v1/openapi.json says which routes take one").phase(Phase::Admission).into()
}

fn check(rule: &Rule, request: &Request) -> Result<Body, Refusal> {
    if rule.passes {
        return Ok(Body::AsItIs);
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
            let fault = Fault::invalid(format!("the query: there is no parameter {name:?}")).hint(known);
            return Err(fault.phase(Phase::Admission).into());
        }
    }
    check_body(rule, request)
}

/// A body must be of a sort that the route takes; without a Content-Type it is bytes, where the route takes those. None at all is
/// no body, whatever it is said to be.
fn check_body(rule: &Rule, request: &Request) -> Result<Body, Refusal> {
    const BYTES: &str = "application/octet-stream";
    const DOCUMENT: [&str; 1] = ["application/json"];
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH).map(|length| length.as_bytes() != b"0");
    let has_body = length.unwrap_or(headers.contains_key(TRANSFER_ENCODING));
    let is_named = headers.contains_key(CONTENT_TYPE);
    let sorts: Vec<&str> = rule.sorts.iter().map(String::as_str).collect();
    let may_look = matches!(*request.method(), Method::GET | Method::HEAD);
    match (has_body, sorts.is_empty()) {
        (false, _) if !is_named => Ok(Body::AsItIs),
        // What a form sends without fields.
        (false, true) => check_type(headers, &DOCUMENT).map(|()| Body::AsItIs),
        (true, false) if !is_named && sorts.contains(&BYTES) => check_coding(headers).map(|()| Body::AsItIs),
        (_, false) => check_type(headers, &sorts).map(|()| Body::AsItIs),
        (true, true) if may_look => {
            let hint = "send no body; /v1/openapi.json says which routes take one";
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this route takes no body", hint))
        }
        (true, true) if is_named => check_type(headers, &DOCUMENT).map(|()| Body::Empty),
        (true, true) => check_coding(headers).map(|()| Body::Empty),
    }
}
