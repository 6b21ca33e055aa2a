//! Templates: named, prepared content for new sandboxes.

mod prepare;

use super::snapshots::{PageQuery, needs_snapshot, once};
use crate::answer::Answer;
use crate::extract::{Cursor, IdempotencyKey, Json, Path, Query};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Removed, Scope, Template, TemplateCreate, TemplateCreated, TemplateList, TemplateWarm, TemplateWarmed};
use axum::extract::State;
use node::policies::RequestedPolicy;
use node::quota::AddedUsage;
use node::templates;
use node::warm;
use node::{Caller, Node};
use prepare::prepare_template;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const READ_SCOPES: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_templates, create_template))
        .routes(routes!(show_template, remove_template))
        .routes(routes!(warm_template))
}

/// Lists all templates.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", operation_id = "list", params(PageQuery),
    responses((status = 200, body = TemplateList)))]
async fn list_templates(
    State(shared): State<Shared>,
    principal: Principal,
    Query(page): Query<PageQuery>,
) -> Result<Answer<TemplateList>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let all = shared.verb(&principal, templates::describe_templates).await?;
    let (templates, next) = page.paging().cut(all, Cursor::Name, |t| t.name.clone())?;
    Ok(Answer::whole(&TemplateList { protocol_version: PROTOCOL_VERSION, templates, next }))
}

/// Creates a template from a snapshot or a sandbox, or prepares it by a command first; the response then comes when the command has ended.
/// Other sandboxes start from it, so that an operator is required.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", operation_id = "create", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = TemplateCreate,
    responses((status = 201, body = TemplateCreated), (status = 200, description = "The same template exists, or an earlier request under the same key created it.", body = TemplateCreated),
        (status = 404, description = "Not found.", body = Fault),
        (status = 409, description = "The command failed, or the name is taken.", body = Fault)))]
async fn create_template(
    State(shared): State<Shared>,
    principal: Principal,
    key: IdempotencyKey,
    Json(request): Json<TemplateCreate>,
) -> Result<Answer<TemplateCreated>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let once = once(&shared, &principal, key.clone(), "template", &request)?;
    let TemplateCreate { name, from, prepared, prepare } = request;
    let made = match (from, prepare) {
        (Some(from), None) => {
            let more = additions(&shared, &principal, &name, &from).await?;
            let verb = move |node: &Node, caller: &Caller| {
                let prepared = prepared.as_deref();
                templates::create_once(node, caller, &name, Some(&from), prepared, once.as_ref())
            };
            shared.create_within_quota(&principal, more, &key, verb).await?
        }
        (None, Some(prepare)) if prepared.is_none() => {
            prepare_template(prepare, &shared, &principal, name, once).await?
        }
        _ => {
            let fault = Fault::invalid("a template is made of either `from` or `prepare`").phase(Phase::Admission);
            return Err(fault.hint("give one of them").into());
        }
    };
    Ok(Answer::whole(&made).created_unless(made.unchanged || made.existed))
}

/// Returns the records that the request adds. An existing name adds no template.
async fn additions(shared: &Shared, principal: &Principal, name: &str, from: &str) -> Result<Vec<AddedUsage>, Refusal> {
    let name = name.to_owned();
    let known = move |node: &Node, caller: &Caller| Ok(templates::describe_template(node, caller, &name).is_ok());
    let mut more = Vec::new();
    if !shared.verb(principal, known).await? {
        more.push(AddedUsage::Templates(1));
    }
    more.extend(needs_snapshot(shared, principal, from).await?.then_some(AddedUsage::Snapshots(1)));
    Ok(more)
}

/// Returns a template, by name, `NAME@sha256:DIGEST`, or id.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", operation_id = "get", params(("name" = String, Path)),
    responses((status = 200, body = Template)))]
async fn show_template(
    State(shared): State<Shared>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Answer<Template>, Refusal> {
    principal.require_any_scope(&READ_SCOPES)?;
    let verb = move |node: &Node, caller: &Caller| templates::describe_template(node, caller, &name);
    let template = shared.verb(&principal, verb).await?;
    Ok(Answer::whole(&Template { protocol_version: PROTOCOL_VERSION, template }))
}

/// Sets the size and the policies of a template's pool of warm sandboxes. The daemon fills the pool.
#[utoipa::path(put, path = "/v1/templates/{name}/warm", tag = "templates", operation_id = "warm", params(("name" = String, Path)),
    request_body = TemplateWarm, responses((status = 200, body = TemplateWarmed)))]
async fn warm_template(
    State(shared): State<Shared>,
    principal: Principal,
    Path(name): Path<String>,
    Json(request): Json<TemplateWarm>,
) -> Result<Answer<TemplateWarmed>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let TemplateWarm { keep, policies, limits, cpus, languages } = request;
    let policies = policies.into_iter().map(RequestedPolicy::from).collect();
    let request = warm::KeepSpares { template: name, keep, policies, flags: Vec::new(), limits, cpus, languages };
    let set = shared.verb(&principal, move |node, caller| warm::set(node, caller, &request)).await?;
    shared.taken().notify_one();
    Ok(Answer::whole(&set))
}

/// Deletes a template; sandboxes created from it stay.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", operation_id = "delete", params(("name" = String, Path)),
    responses((status = 200, body = Removed)))]
async fn remove_template(
    State(shared): State<Shared>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Answer<Removed>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let verb = move |node: &Node, caller: &Caller| templates::remove_template(node, caller, &name);
    let removed = shared.verb(&principal, verb).await?;
    Ok(Answer::whole(&Removed { protocol_version: PROTOCOL_VERSION, removed }))
}
