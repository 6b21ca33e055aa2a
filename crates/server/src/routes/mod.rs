//! The routes, one file for each resource. A route extracts `Principal`, checks its scope first, calls one verb and responds with its result.
//! It uses the extractors of `extract`, never axum's own, and refuses with `Refusal` only. Responses that every route may give (400, 401,
//! 404, …) are added to the OpenAPI document in one place, by the inputs of the route.

mod audit;
mod code;
mod events;
mod files;
mod health;
mod metrics;
mod network;
mod openapi;
mod policies;
mod ports;
mod questions;
mod runs;
mod sandboxes;
mod secrets;
mod snapshots;
mod templates;
mod tokens;
mod urls;
mod workspace;

use crate::credentials::Credentials;
use crate::refuse::Refusal;
use crate::rules::{self, Rules};
use crate::url_grants::UrlGrants;
use crate::{Settings, Shared};
use axum::Router;
use http::StatusCode;
use node::Node;
use std::sync::Arc;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;

pub use openapi::document;

/// Returns the routes of each resource with their OpenAPI description.
fn resources() -> Vec<OpenApiRouter<Shared>> {
    vec![
        audit::routes(),
        code::routes(),
        events::routes(),
        files::routes(),
        health::routes(),
        metrics::routes(),
        network::routes(),
        openapi::routes(),
        policies::routes(),
        ports::routes(),
        questions::routes(),
        runs::routes(),
        sandboxes::routes(),
        secrets::routes(),
        snapshots::routes(),
        templates::routes(),
        tokens::routes(),
        urls::routes(),
        workspace::routes(),
    ]
}

fn documented() -> OpenApiRouter<Shared> {
    resources().into_iter().fold(OpenApiRouter::new(), OpenApiRouter::merge)
}

/// Returns the router of all routes, and their shared state.
pub fn all(settings: &Settings, node: Arc<Node>, credentials: Credentials, url_grants: UrlGrants) -> (Router, Shared) {
    let (router, _) = documented().split_for_parts();
    let shared = Shared::new(settings, node, credentials, Rules::of(&document()), url_grants);
    let enforced = axum::middleware::from_fn_with_state(shared.clone(), rules::enforce);
    let router = router.layer(enforced).fallback(no_route).method_not_allowed_fallback(method_not_allowed);
    (router.with_state(shared.clone()), shared)
}

async fn no_route(uri: http::Uri) -> Refusal {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is no route {}", uri.path())).phase(Phase::Admission);
    fault.hint("/v1/openapi.json lists the routes").into()
}

async fn method_not_allowed(method: http::Method, uri: http::Uri) -> Refusal {
    let message = format!("{} does not accept {method}", uri.path());
    Refusal::http(StatusCode::METHOD_NOT_ALLOWED, message, "the header Allow lists the accepted methods")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeMap;

    /// Types of the same name would take each other's place in the description.
    #[test]
    fn no_two_types_share_a_name() {
        let mut seen: BTreeMap<String, Value> = BTreeMap::new();
        for part in resources() {
            let part = serde_json::to_value(part.into_openapi()).unwrap();
            for (name, schema) in part["components"]["schemas"].as_object().into_iter().flatten() {
                let before = seen.insert(name.clone(), schema.clone());
                assert!(before.is_none_or(|before| before == *schema), "two types are called {name}");
            }
        }
        assert!(seen.len() > 10);
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let (mut open, mut count) = (vec![&document], 0);
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => open.extend(fields.values()),
                Value::Array(items) => open.extend(items),
                Value::String(text) => {
                    if let Some(name) = text.strip_prefix("#/components/schemas/") {
                        count += 1;
                        assert!(schemas.contains_key(name), "{name}");
                    }
                }
                _ => {}
            }
        }
        assert!(count > 100);
    }

    #[test]
    fn every_route_is_described_in_full() {
        let document = document();
        let (mut count, mut ids) = (0, std::collections::BTreeSet::new());
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                count += 1;
                let at = format!("{method} {path}");
                assert!(path.starts_with("/v1/"), "{at}");
                assert!(ids.insert(operation["operationId"].to_string()), "{at}: its operationId is another's");
                for field in ["summary", "operationId"] {
                    assert!(operation[field].as_str().is_some_and(|text| !text.is_empty()), "{at} has no {field}");
                }
                assert!(operation["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{at} has one tag");
                assert!(
                    operation["responses"].as_object().unwrap().keys().any(|s| s.starts_with('2') || s == "101"),
                    "{at}"
                );
                let named = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap());
                for name in named {
                    let parameters = operation["parameters"].as_array().unwrap();
                    assert!(parameters.iter().any(|p| p["in"] == "path" && p["name"] == name), "{at}: {name}");
                }
            }
        }
        assert!(count > 10);
    }
}
