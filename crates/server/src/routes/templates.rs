//! Templates: places to begin from, prepared once.

mod prepare;

use super::snapshots::{Part, Removed, once, takes};
use crate::answer::Answer;
use crate::ask::{Cursor, Json, Key, Path, Query};
use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use client::wire::{Template, TemplateCreate, TemplateList, TemplateWarm};
use node::policies::Source;
use node::quota::More;
use node::templates::{self, Templated};
use node::warm::{self, Set};
use node::{Caller, Node};
use prepare::carry_out;
use terms::{Fault, PROTOCOL_VERSION, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const LOOKERS: [Scope; 2] = [Scope::Agent, Scope::Reviewer];

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_templates, create_template))
        .routes(routes!(show_template, remove_template))
        .routes(routes!(warm_template))
}

/// All templates.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", operation_id = "list", params(Part),
    responses((status = 200, body = TemplateList)))]
async fn list_templates(
    State(shared): State<Shared>,
    who: Who,
    Query(part): Query<Part>,
) -> Result<Answer<TemplateList>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let all = shared.verb(&who, templates::describe_templates).await?;
    let (templates, next) = part.paging().cut(all, Cursor::Name, |t| t.name.clone())?;
    Ok(Answer::whole(&TemplateList { protocol_version: PROTOCOL_VERSION, templates, next }))
}

/// Names what a snapshot or a sandbox holds, or prepares it by a command first; then the answer comes when that has ended. Others begin
/// from it, so an operator does this.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", operation_id = "create", params(("Idempotency-Key" = Option<String>, Header)),
    request_body = TemplateCreate,
    responses((status = 201, body = Templated), (status = 200, description = "There was the same one, or an earlier request under the same key made it.", body = Templated),
        (status = 404, description = "There is no such thing.", body = Fault),
        (status = 409, description = "The command failed, or the name is taken.", body = Fault)))]
async fn create_template(
    State(shared): State<Shared>,
    who: Who,
    key: Key,
    Json(wish): Json<TemplateCreate>,
) -> Result<Answer<Templated>, Refusal> {
    who.needs(Scope::Operator)?;
    let once = once(&shared, &who, key.clone(), "template", &wish)?;
    let TemplateCreate { name, from, prepared, prepare } = wish;
    let made = match (from, prepare) {
        (Some(from), None) => {
            let more = more_of(&shared, &who, &name, &from).await?;
            let verb = move |node: &Node, caller: &Caller| {
                let prepared = prepared.as_deref();
                templates::create_once(node, caller, &name, Some(&from), prepared, once.as_ref())
            };
            shared.making(&who, more, &key, verb).await?
        }
        (None, Some(prepare)) if prepared.is_none() => carry_out(prepare, &shared, &who, name, once).await?,
        _ => {
            let fault = Fault::invalid("a template is made of either `from` or `prepare`").phase(Phase::Admission);
            return Err(fault.hint("give one of them").into());
        }
    };
    Ok(Answer::whole(&made).created_unless(made.unchanged || made.existed))
}

/// What there will be more of. Under a name that there is already nothing is made, or it is refused.
async fn more_of(shared: &Shared, who: &Who, name: &str, from: &str) -> Result<Vec<More>, Refusal> {
    let name = name.to_owned();
    let known = move |node: &Node, caller: &Caller| Ok(templates::describe_template(node, caller, &name).is_ok());
    let mut more = Vec::new();
    if !shared.verb(who, known).await? {
        more.push(More::Templates(1));
    }
    more.extend(takes(shared, who, from).await?.then_some(More::Snapshots(1)));
    Ok(more)
}

/// One template: a name, `NAME@sha256:DIGEST`, or an id.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates", operation_id = "get", params(("name" = String, Path)),
    responses((status = 200, body = Template)))]
async fn show_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
) -> Result<Answer<Template>, Refusal> {
    who.needs_any(&LOOKERS)?;
    let verb = move |node: &Node, caller: &Caller| templates::describe_template(node, caller, &name);
    let template = shared.verb(&who, verb).await?;
    Ok(Answer::whole(&Template { protocol_version: PROTOCOL_VERSION, template }))
}

/// Says how many sandboxes shall stand ready for a template, and under what. The daemon makes them.
#[utoipa::path(put, path = "/v1/templates/{name}/warm", tag = "templates", operation_id = "warm", params(("name" = String, Path)),
    request_body = TemplateWarm, responses((status = 200, body = Set)))]
async fn warm_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
    Json(wish): Json<TemplateWarm>,
) -> Result<Answer<Set>, Refusal> {
    who.needs(Scope::Operator)?;
    let TemplateWarm { keep, policies, limits, cpus } = wish;
    let policies = policies.into_iter().map(Source::from).collect();
    let ask = warm::Ask { template: name, keep, policies, flags: Vec::new(), limits, cpus };
    let set = shared.verb(&who, move |node, caller| warm::set(node, caller, &ask)).await?;
    shared.taken().notify_one();
    Ok(Answer::whole(&set))
}

/// Forgets a template; sandboxes that began from it stay.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates", operation_id = "delete", params(("name" = String, Path)),
    responses((status = 200, body = Removed)))]
async fn remove_template(
    State(shared): State<Shared>,
    who: Who,
    Path(name): Path<String>,
) -> Result<Answer<Removed>, Refusal> {
    who.needs(Scope::Operator)?;
    let verb = move |node: &Node, caller: &Caller| templates::remove_template(node, caller, &name);
    let removed = shared.verb(&who, verb).await?;
    Ok(Answer::whole(&Removed { protocol_version: PROTOCOL_VERSION, removed }))
}
