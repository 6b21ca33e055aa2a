//! Secrets that are stored for runs. They can be set and used; no route returns a value.

use crate::answer::Answer;
use crate::extract::{Json, Path};
use crate::refuse::Refusal;
use crate::{Principal, Shared};
use api::{Scope, SecretChanged, SecretList, SecretSet};
use axum::extract::State;
use node::secrets::kept;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list_secrets)).routes(routes!(set_secret, remove_secret))
}

/// Lists the names of all secrets, with the time each was set.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", operation_id = "list",
    responses((status = 200, body = SecretList)))]
async fn list_secrets(State(shared): State<Shared>, principal: Principal) -> Result<Answer<SecretList>, Refusal> {
    principal.require_any_scope(&[Scope::Agent, Scope::Reviewer])?;
    shared.answer_whole(&principal, kept::list).await
}

/// Keeps a secret for runs whose policy names it, and replaces its previous value.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets", operation_id = "set",
    params(("name" = String, Path, description = "The name in policies: letters, digits and '_'")),
    request_body = SecretSet, responses((status = 200, body = SecretChanged)))]
async fn set_secret(
    State(shared): State<Shared>,
    principal: Principal,
    Path(name): Path<String>,
    Json(request): Json<SecretSet>,
) -> Result<Answer<SecretChanged>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    let value = request.value.into_bytes();
    shared.answer_whole(&principal, move |node, caller| kept::set(node, caller, &name, value)).await
}

/// Deletes a secret. Runs that have it already continue.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets", operation_id = "delete", params(("name" = String, Path)),
    responses((status = 200, body = SecretChanged)))]
async fn remove_secret(
    State(shared): State<Shared>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Answer<SecretChanged>, Refusal> {
    principal.require_scope(Scope::Operator)?;
    shared.answer_whole(&principal, move |node, caller| kept::remove(node, caller, &name)).await
}
