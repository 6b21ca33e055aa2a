//! Templates: places to begin from, prepared once.

mod prepare;

pub(super) use super::sandboxes::PolicyOf;
use super::snapshots::{Part, Removed, once, takes};
use crate::ask::{Cursor, Json, Key, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use http::StatusCode;
use node::Caller;
use node::policies::Source;
use node::quota::More;
use node::snapshots::{self, Described, Templated};
use node::state::State as Place;
use node::warm::{self, Set};
use prepare::Prepare;
use serde::{Deserialize, Serialize};
use terms::{Fault, Limits, PROTOCOL_VERSION, Phase};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_templates, create_template))
        .routes(routes!(show_template, remove_template))
        .routes(routes!(warm_template))
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
    let (templates, next) = part.paging().cut(all, Cursor::Name, |t| t.name.clone())?;
    Ok(axum::Json(Templates { protocol_version: PROTOCOL_VERSION, templates, next }))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TemplateCreate)]
pub struct CreateTemplate {
    pub name: String,
    /// The snapshot or the sandbox that it shall hold.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<String>,
    /// The command that prepared what it is made from, to be told of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    /// Or how it is prepared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepare: Option<Prepare>,
}

/// Names what a snapshot or a sandbox holds, or prepares it by a command first; then the answer comes when that has ended. Others begin
/// from it, so an operator does this.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", operation_id = "create", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = CreateTemplate,
    responses((status = 201, body = Templated), (status = 200, description = "There was the same one, or an earlier request under the same key made it.", body = Templated),
        (status = 404, description = "There is no such thing.", body = Fault),
        (status = 409, description = "The command failed, or the name is taken.", body = Fault)))]
async fn create_template(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(wish): Json<CreateTemplate>,
) -> Result<(StatusCode, axum::Json<Templated>), Refusal> {
    who.needs(Scope::Operator)?;
    let once = once(&shared, &who, key.clone(), "template", &wish)?;
    let CreateTemplate { name, from, prepared, prepare } = wish;
    let made = match (from, prepare) {
        (Some(from), None) => {
            let more = more_of(&shared, &who, &name, &from).await?;
            let verb = move |caller: &Caller| {
                let (state, prepared) = (Place::open(caller)?, prepared.as_deref());
                snapshots::create_once(&state, caller, &name, Some(&from), prepared, once.as_ref())
            };
            shared.making(&who, more, &key, verb).await?
        }
        (None, Some(prepare)) if prepared.is_none() => prepare.carry_out(&shared, &who, name, once).await?,
        _ => {
            let fault = Fault::invalid("a template is made of either `from` or `prepare`").phase(Phase::Admission);
            return Err(fault.hint("give one of them").into());
        }
    };
    Ok((crate::answer::made(made.unchanged || made.existed), axum::Json(made)))
}

/// What there will be more of. Under a name that there is already nothing is made, or it is refused.
async fn more_of(shared: &Shared, who: &Who, name: &str, from: &str) -> Result<Vec<More>, Refusal> {
    let name = name.to_owned();
    let known = move |caller: &Caller| Ok(snapshots::describe_template(&Place::open(caller)?, &name).is_ok());
    let mut more = Vec::new();
    if !shared.verb(who, known).await? {
        more.push(More::Templates(1));
    }
    more.extend(takes(shared, who, from).await?.then_some(More::Snapshots(1)));
    Ok(more)
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
    let verb = move |caller: &Caller| snapshots::describe_template(&Place::open(caller)?, &name);
    let template = shared.verb(&who, verb).await?;
    Ok(axum::Json(Template { protocol_version: PROTOCOL_VERSION, template }))
}

/// What shall stand ready.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TemplateWarm)]
pub struct WarmTemplate {
    /// So many, at most 64; with 0 none.
    pub keep: u32,
    /// As those of the sandboxes that shall be had so: what differs is made as it is asked for.
    #[serde(default)]
    pub policies: Vec<PolicyOf>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}

/// Says how many sandboxes shall stand ready for a template, and under what. The daemon makes them.
#[utoipa::path(put, path = "/v1/templates/{name}/warm", tag = "templates", operation_id = "warm", params(("name" = String, Path)),
    request_body = WarmTemplate, responses((status = 200, body = Set)))]
async fn warm_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
    Json(wish): Json<WarmTemplate>,
) -> Result<axum::Json<Set>, Refusal> {
    who.needs(Scope::Operator)?;
    let WarmTemplate { keep, policies, limits, cpus } = wish;
    let policies = policies.into_iter().map(Source::from).collect();
    let ask = warm::Ask { template: name, keep, policies, flags: Vec::new(), limits, cpus };
    let set = shared.verb(&who, move |caller| warm::set(&ask, caller)).await?;
    shared.taken().notify_one();
    Ok(axum::Json(set))
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
