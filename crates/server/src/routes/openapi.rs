//! The OpenAPI document of all routes, completed with the responses that every route can give, and with the security schemes.

mod plain_schemas;

use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{DurationParam, MetadataFilter, OutputEncodingParam, WaitParam};
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

/// Returns this OpenAPI document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "health", responses((status = 200, body = Value)))]
async fn show(_: Principal) -> Result<impl IntoResponse, Refusal> {
    // Cached: building the document is slow, and frequent requests for it would delay others.
    static WRITTEN: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(document().to_string()));
    Ok(([(CONTENT_TYPE, "application/json")], WRITTEN.clone()))
}

/// Returns the OpenAPI document.
pub fn document() -> Value {
    let mut document = serde_json::to_value(super::documented().into_openapi()).unwrap_or_default();
    document["info"] = json!({
        "title": "Cofferdam",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Sandboxes for untrusted commands: their files, runs, network and review. Every error is a Fault.",
        "license": {"name": "Apache-2.0 OR MIT"},
    });
    document["components"]["schemas"]["Fault"] = serde_json::to_value(terms::Fault::schema()).unwrap_or_default();
    for (name, schema) in referenced_schemas() {
        document["components"]["schemas"][name] = schema;
    }
    rename_wrapped(&mut document);
    plain_schemas::rewrite(&mut document);
    document["servers"] = json!([{"url": "/", "description": "The daemon that this document comes from."}]);
    document["components"]["securitySchemes"] = json!({
        "token": {"type": "http", "scheme": "bearer", "description":
            "A token of the daemon, from `POST /v1/tokens` or `cofferdam token create`. The user that the daemon runs as needs none on its Unix socket: the kernel reports the peer's uid."},
    });
    document["security"] = json!([{"token": []}, {}]);
    let paths = document["paths"].as_object_mut().map(std::mem::take).unwrap_or_default();
    document["paths"] = paths
        .into_iter()
        .map(|(path, item)| {
            let item = with_plain_bodies(with_common_responses(&path, item));
            (path.replace("{*", "{"), item)
        })
        .collect::<Map<_, _>>()
        .into();
    document
}

/// Gives `api::Document<T>` the name `TDocument`; utoipa joins the names of a generic type and its argument to `Document_T`, and
/// nothing in the derive changes that.
fn rename_wrapped(document: &mut Value) {
    let named = |name: &str| name.strip_prefix("Document_").map(|content| format!("{content}Document"));
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        *schemas = std::mem::take(schemas).into_iter().map(|(name, s)| (named(&name).unwrap_or(name), s)).collect();
    }
    let mut open = vec![document];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => open.extend(fields.values_mut()),
            Value::Array(items) => open.extend(items),
            Value::String(text) => {
                let referred = text.strip_prefix("#/components/schemas/").and_then(named);
                if let Some(name) = referred {
                    *text = format!("#/components/schemas/{name}");
                }
            }
            _ => {}
        }
    }
}

/// Types that a Fault or a parameter refers to.
fn referenced_schemas() -> Vec<(String, Value)> {
    use utoipa::ToSchema;
    let mut found = Vec::new();
    terms::Fault::schemas(&mut found);
    // Query parameters refer to their types, and utoipa none not collect it.
    found.push((DurationParam::name().into(), DurationParam::schema()));
    found.push((WaitParam::name().into(), WaitParam::schema()));
    found.push((MetadataFilter::name().into(), MetadataFilter::schema()));
    found.push((OutputEncodingParam::name().into(), OutputEncodingParam::schema()));
    found.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default())).collect()
}

/// Responses that every route can give, by status.
const COMMON: [(u16, &str); 8] = [
    (400, "The request is invalid: the message names the field, the value and what is allowed."),
    (401, "No credential, or one that is unknown, revoked or expired."),
    (403, "A foreign origin, or the credential lacks the scope or the grant."),
    (421, "The Host header names another host."),
    (429, "Too many requests, and `Retry-After` says when to retry; or a limit that a retry does not change."),
    (500, "An internal error of the daemon."),
    (501, "This host cannot enforce what the request asks for."),
    (503, "Temporarily unavailable; `Retry-After` says when to retry."),
];
const NOT_FOUND: (u16, &str) = (404, "Not found, or it belongs to another tenant.");
const CONFLICT: (u16, &str) =
    (409, "A conflict: another version, another state, or an idempotency key that was used for another request.");
const WITH_BODY: [(u16, &str); 3] = [
    (408, "The body came too slowly."),
    (413, "The body is too large."),
    (415, "The content type of the body is not accepted by the route."),
];

/// Names of operations whose handlers have a name that tells too little on its own, or is one of Rust's.
const OPERATIONS: [(&str, &str); 28] = [
    ("code_list", "code_list_contexts"),
    ("code_create", "code_create_context"),
    ("code_remove", "code_remove_context"),
    ("code_restart", "code_restart_context"),
    ("code_interrupt", "code_interrupt_context"),
    ("code_resume", "code_resume_call"),
    ("files_get", "files_read"),
    ("files_put", "files_write"),
    ("files_ls", "files_list"),
    ("files_find", "files_search"),
    ("files_pack", "files_read_archive"),
    ("files_unpack", "files_write_archive"),
    ("health_health", "health_get"),
    ("health_show", "health_openapi"),
    ("runs_once", "runs_run_once"),
    ("runs_going", "runs_list_live"),
    ("runs_list_of", "runs_list_in_sandbox"),
    ("runs_explain_run", "runs_explain"),
    ("sandboxes_patch", "sandboxes_update"),
    ("sandboxes_network", "sandboxes_network_events"),
    ("snapshots_list", "snapshots_list_of_sandbox"),
    ("snapshots_list_all", "snapshots_list"),
    ("snapshots_fork", "snapshots_fork_sandbox"),
    ("snapshots_fork_any", "snapshots_fork"),
    ("snapshots_export", "snapshots_export_sandbox"),
    ("snapshots_export_any", "snapshots_export"),
    ("workspace_provenance_of", "workspace_provenance_of_directory"),
    ("workspace_undo_any", "workspace_undo_batch"),
];

/// Describes bodies as what they are: bytes, text of events, or a document. Every response gets a description, and no parameter has a
/// name that only the router understands.
fn with_plain_bodies(mut item: Value) -> Value {
    const TEXTS: [&str; 4] = ["application/json", "application/toml", "text/plain", "text/x-diff"];
    let bytes = |content: &mut Value| {
        for (kind, body) in content.as_object_mut().into_iter().flatten() {
            if kind == "text/event-stream" {
                // The type of the events stays in the document, beside the schema of the text that carries them.
                let event = std::mem::take(&mut body["schema"]);
                *body =
                    json!({"schema": {"type": "string", "description": "Server-sent events."}, "x-event-data": event});
            } else if !TEXTS.contains(&kind.as_str()) {
                body["schema"] = json!({"type": "string", "format": "binary"});
            }
        }
    };
    for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut).filter(|o| o.is_object()) {
        for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(name) = parameter["name"].as_str().and_then(|name| name.strip_prefix('*')).map(str::to_owned) {
                parameter["name"] = name.into();
            }
        }
        if operation["requestBody"].is_object() {
            bytes(&mut operation["requestBody"]["content"]);
        }
        for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            if response["description"].as_str().is_none_or(str::is_empty) {
                let why = if status == "201" { "Created." } else { "The operation succeeded." };
                response["description"] = why.into();
            }
            if response["content"].is_object() {
                bytes(&mut response["content"]);
            }
        }
    }
    item
}

/// Adds to a path every response that its operations can give.
fn with_common_responses(path: &str, mut item: Value) -> Value {
    for (method, operation) in item.as_object_mut().into_iter().flatten() {
        if !operation.is_object() || method == "parameters" {
            continue;
        }
        // Handlers of two files may have the same name; operation ids must be unique.
        let tag = operation["tags"][0].as_str().unwrap_or_default().to_owned();
        let id = format!("{tag}_{}", operation["operationId"].as_str().unwrap_or_default());
        let renamed = OPERATIONS.iter().find(|(own, _)| *own == id);
        operation["operationId"] = renamed.map_or(id.as_str(), |(_, name)| name).into();
        let mut statuses: Vec<(u16, &str)> = COMMON.to_vec();
        // A path or a body can name objects that do not exist.
        if path.contains('{') || method != "get" {
            statuses.push(NOT_FOUND);
        }
        if method != "get" {
            statuses.push(CONFLICT);
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
