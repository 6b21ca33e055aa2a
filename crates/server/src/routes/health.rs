//! Health checks: liveness and readiness of the daemon.

use crate::Shared;
use crate::answer::Answer;
use crate::refuse::Refusal;
use api::{Document, Health};
use axum::extract::State;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(health))
}

/// Checks liveness: the daemon responds.
#[utoipa::path(get, path = "/v1/health/live", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn live() -> Answer<Health> {
    Answer::ok(Health::ok())
}

/// Checks readiness: the store can be read, and the daemon is not shutting down.
#[utoipa::path(get, path = "/v1/health/ready", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn ready(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    check(&shared).await
}

/// Checks readiness, like `/v1/health/ready`.
#[utoipa::path(get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn health(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    check(&shared).await
}

async fn check(shared: &Shared) -> Result<Answer<Health>, Refusal> {
    if shared.is_ending() {
        let fault = Fault::new(ErrorKind::Unavailable, "the daemon is shutting down").phase(Phase::Close);
        return Err(fault.hint("try again after it has restarted").into());
    }
    shared.credentials().works().await?;
    Ok(Answer::ok(Health::ok()))
}
