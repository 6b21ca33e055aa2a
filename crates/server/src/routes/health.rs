//! Health: whether the daemon answers and can work, and what it can do.

use crate::Shared;
use crate::answer::{Answer, Document};
use crate::refuse::Refusal;
use axum::extract::State;
use client::wire::Health;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(health))
}

/// The daemon answers.
#[utoipa::path(get, path = "/v1/health/live", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn live() -> Answer<Health> {
    Answer::ok(Health::ok())
}

/// The daemon can work: its store is there, and it is not about to end.
#[utoipa::path(get, path = "/v1/health/ready", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn ready(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    check(&shared).await
}

/// The same as `/v1/health/ready`.
#[utoipa::path(get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn health(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    check(&shared).await
}

async fn check(shared: &Shared) -> Result<Answer<Health>, Refusal> {
    if shared.is_ending() {
        let fault = Fault::new(ErrorKind::Unavailable, "the daemon is about to end").phase(Phase::Close);
        return Err(fault.hint("ask again when it is back").into());
    }
    shared.credentials().works().await?;
    Ok(Answer::ok(Health::ok()))
}
