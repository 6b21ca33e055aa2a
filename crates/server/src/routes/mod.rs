//! The routes, one file for each resource. A route takes `Who`, asks for its scope first, calls one verb and gives its answer.
//! It takes what it needs with the types of `ask`, never with axum's own, and refuses with `Refusal` only. What every route
//! may answer beside (400, 401, 404, …) is added to the description in one place, by what the route takes.

mod audit;
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
mod workspace;

use crate::credentials::Credentials;
use crate::refuse::Refusal;
use crate::rules::{self, Rules};
use crate::{Settings, Shared};
use axum::Router;
use http::StatusCode;
use node::Node;
use std::sync::Arc;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;

pub use openapi::document;

/// The routes of each resource with their description.
fn parts() -> Vec<OpenApiRouter<Shared>> {
    vec![
        audit::routes(),
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
        workspace::routes(),
    ]
}

fn described() -> OpenApiRouter<Shared> {
    parts().into_iter().fold(OpenApiRouter::new(), OpenApiRouter::merge)
}

/// All routes, ready to be asked.
pub fn all(settings: &Settings, node: Arc<Node>, credentials: Credentials) -> (Router, Shared) {
    let (router, _) = described().split_for_parts();
    let shared = Shared::new(settings, node, credentials, Rules::of(&document()));
    let held = axum::middleware::from_fn_with_state(shared.clone(), rules::hold);
    let router = router.layer(held).fallback(unknown).method_not_allowed_fallback(not_so);
    (router.with_state(shared.clone()), shared)
}

async fn unknown(uri: http::Uri) -> Refusal {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is nothing at {}", uri.path())).phase(Phase::Admission);
    fault.hint("/v1/openapi.json lists what there is").into()
}

async fn not_so(method: http::Method, uri: http::Uri) -> Refusal {
    let message = format!("{} does not take {method}", uri.path());
    Refusal::http(StatusCode::METHOD_NOT_ALLOWED, message, "the header Allow lists what it takes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeMap;

    /// Types of the same name would take each other's place in the description; `#[schema(as = …)]` tells them apart.
    #[test]
    fn no_two_types_share_a_name() {
        let mut seen: BTreeMap<String, Value> = BTreeMap::new();
        for part in parts() {
            let part = serde_json::to_value(part.into_openapi()).unwrap();
            for (name, schema) in part["components"]["schemas"].as_object().into_iter().flatten() {
                let before = seen.insert(name.clone(), schema.clone());
                assert!(before.is_none_or(|before| before == *schema), "two types are called {name}");
            }
        }
        assert!(seen.len() > 10);
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
