//! The description of all routes, made whole: what every route can answer beside its own, and how to be let in.

use crate::refuse::Refusal;
use crate::{Shared, Who};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use utoipa::PartialSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(show))
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "health", responses((status = 200, body = Value)))]
async fn show(_: Who) -> Result<impl IntoResponse, Refusal> {
    // It is the same for all, and takes long enough to make that those who ask for it often would make others wait.
    static WRITTEN: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_string()));
    Ok(([(CONTENT_TYPE, "application/json")], WRITTEN.clone()))
}

/// The OpenAPI document.
pub fn document() -> Value {
    let mut document = serde_json::to_value(super::described().into_openapi()).unwrap_or_default();
    document["info"] = json!({
        "title": "Cofferdam",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Sandboxes that live, behind an API that does not lie. Every refusal is a Fault.",
        "license": {"name": "Apache-2.0 OR MIT"},
    });
    document["components"]["schemas"]["Fault"] = serde_json::to_value(terms::Fault::schema()).unwrap_or_default();
    for (name, schema) in referred() {
        document["components"]["schemas"][name] = schema;
    }
    document["components"]["securitySchemes"] = json!({
        "token": {"type": "http", "scheme": "bearer", "description":
            "A token of the daemon: `cofferdam token create`. Its own user on its Unix socket needs none: the kernel says who it is."},
    });
    document["security"] = json!([{"token": []}, {}]);
    let paths = document["paths"].as_object_mut().map(std::mem::take).unwrap_or_default();
    document["paths"] =
        paths.into_iter().map(|(path, item)| (path.clone(), whole(&path, item))).collect::<Map<_, _>>().into();
    document
}

/// Types that a Fault or a parameter refers to.
fn referred() -> Vec<(String, Value)> {
    use utoipa::ToSchema;
    let mut found = Vec::new();
    terms::Fault::schemas(&mut found);
    // Parameters of queries name it, and bring nothing along.
    found.push((crate::ask::Time::name().into(), crate::ask::Time::schema()));
    found.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default())).collect()
}

/// What a route can be answered with, whatever it does: by status, why.
const ALWAYS: [(u16, &str); 8] = [
    (400, "The request is wrong: the message names the field, the value and what is allowed."),
    (401, "No credential, or none that is good any more."),
    (403, "A foreign origin, or the credential lacks the scope or the grant."),
    (421, "The Host header names somebody else."),
    (
        429,
        "Too much at a time, and `Retry-After` says when to ask again; or a limit that asking again does not change.",
    ),
    (500, "A mistake of ours."),
    (501, "This host cannot hold what was asked for."),
    (503, "Not now; `Retry-After` says when to ask again."),
];
const WITH_NAME: (u16, &str) = (404, "There is no such thing, or it belongs to another tenant.");
const CHANGES: (u16, &str) =
    (409, "It is not as the request supposes: another version, another state, a key that was used.");
const WITH_BODY: [(u16, &str); 3] = [
    (408, "The body came too slowly."),
    (413, "The body is too large."),
    (415, "The body is of another sort than the route takes."),
];

/// A path with every answer that its operations can give.
fn whole(path: &str, mut item: Value) -> Value {
    for (method, operation) in item.as_object_mut().into_iter().flatten() {
        if !operation.is_object() || method == "parameters" {
            continue;
        }
        // Functions of two files may have the same name; operations may not.
        let tag = operation["tags"][0].as_str().unwrap_or_default().to_owned();
        operation["operationId"] = format!("{tag}_{}", operation["operationId"].as_str().unwrap_or_default()).into();
        let mut statuses: Vec<(u16, &str)> = ALWAYS.to_vec();
        // A path can name things, and a body, too.
        if path.contains('{') || method != "get" {
            statuses.push(WITH_NAME);
        }
        if method != "get" {
            statuses.push(CHANGES);
            statuses.extend(WITH_BODY);
        }
        for (status, why) in statuses {
            let known = &mut operation["responses"][status.to_string()];
            if known.is_null() {
                *known = json!({"description": why, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Fault"}}}});
            }
        }
    }
    item
}
