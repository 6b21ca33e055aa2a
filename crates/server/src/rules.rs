//! What the description says of each route, held: nobody gets in without a credential but where it says so, and no query
//! parameter and no body passes that it does not name.

use crate::Shared;
use crate::ask::check_type;
use crate::refuse::{Over, Refusal};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{Method, StatusCode};
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
    let mut answer = match over.and_then(|()| check(rule, &request)) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    answer.extensions_mut().insert(path);
    answer
}

fn check(rule: &Rule, request: &Request) -> Result<(), Refusal> {
    if rule.passes {
        return Ok(());
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

/// A body must be of a sort that the route takes. None at all is no body, whatever it is said to be.
fn check_body(rule: &Rule, request: &Request) -> Result<(), Refusal> {
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH).map(|length| length.as_bytes() != b"0");
    let has_body = length.unwrap_or(headers.contains_key(TRANSFER_ENCODING));
    let sorts: Vec<&str> = rule.sorts.iter().map(String::as_str).collect();
    match (has_body, sorts.is_empty()) {
        (false, _) if !headers.contains_key(CONTENT_TYPE) => Ok(()),
        // What a form sends without fields.
        (false, true) => check_type(headers, &["application/json"]),
        (_, false) => check_type(headers, &sorts),
        (true, true) => {
            let hint = "send no body; /v1/openapi.json says which routes take one";
            Err(Refusal::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this route takes no body", hint))
        }
    }
}
