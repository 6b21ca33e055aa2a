//! Templates: places to begin from, prepared once.

use super::snapshots::{Part, Removed, once};
use crate::ask::{Json, Key, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use http::StatusCode;
use node::Caller;
use node::snapshots::{self, Described, Templated};
use node::state::State as Place;
use serde::{Deserialize, Serialize};
use terms::{Fault, PROTOCOL_VERSION};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_templates, create_template))
        .routes(routes!(show_template, remove_template))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = TemplateList)]
pub struct Templates {
    pub protocol_version: u32,
    /// In the order of their names.
    pub templates: Vec<Described>,
    /// There are more: what `after` takes for them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

/// All templates.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", operation_id = "list", params(Part),
    responses((status = 200, body = Templates)))]
async fn list_templates(
    State(shared): State<Shared>,
    who: Who,
    Query(part): Query<Part>,
) -> Result<axum::Json<Templates>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let all = shared.verb(&who, |caller| snapshots::describe_templates(&Place::open(caller)?)).await?;
    let (templates, next) = part.paging().cut(all, |t| t.name.clone())?;
    Ok(axum::Json(Templates { protocol_version: PROTOCOL_VERSION, templates, next }))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TemplateCreate)]
pub struct CreateTemplate {
    pub name: String,
    /// The snapshot or the sandbox that it shall hold.
    pub from: String,
    /// The command that prepared it, to be told of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
}

/// Names what a snapshot or a sandbox holds. Others begin from it, so an operator does this.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", operation_id = "create", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = CreateTemplate,
    responses((status = 201, body = Templated), (status = 200, description = "There was the same one", body = Templated),
        (status = 404, description = "There is no such thing.", body = Fault)))]
async fn create_template(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(wish): Json<CreateTemplate>,
) -> Result<(StatusCode, axum::Json<Templated>), Refusal> {
    who.needs(Scope::Operator)?;
    let once = once(key, "template", &wish)?;
    let verb = move |caller: &Caller| {
        let CreateTemplate { name, from, prepared } = &wish;
        snapshots::create_once(&Place::open(caller)?, caller, name, Some(from), prepared.as_deref(), once.as_ref())
    };
    let made = shared.verb(&who, verb).await?;
    let status = if made.unchanged { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(made)))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub template: Described,
}

/// One template: a name, `NAME@sha256:DIGEST`, or an id.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", operation_id = "get", params(("name" = String, Path)),
    responses((status = 200, body = Template)))]
async fn show_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
) -> Result<axum::Json<Template>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb = move |caller: &Caller| Place::open(caller)?.store.read(|tx| snapshots::find_template(tx, &name));
    let template = Described::of(shared.verb(&who, verb).await?);
    Ok(axum::Json(Template { protocol_version: PROTOCOL_VERSION, template }))
}

/// Forgets a template; sandboxes that began from it stay.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", operation_id = "delete", params(("name" = String, Path)),
    responses((status = 200, body = Removed)))]
async fn remove_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
) -> Result<axum::Json<Removed>, Refusal> {
    who.needs(Scope::Operator)?;
    let verb = move |caller: &Caller| snapshots::remove_template(&Place::open(caller)?, caller, &name);
    let removed = shared.verb(&who, verb).await?;
    Ok(axum::Json(Removed { protocol_version: PROTOCOL_VERSION, removed }))
}
