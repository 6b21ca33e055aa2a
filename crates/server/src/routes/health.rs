//! Is the daemon there, and can it work?

use crate::Shared;
use crate::answer::{Answer, Document};
use crate::refuse::Refusal;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use terms::{ErrorKind, Fault, Phase};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(health))
}

#[derive(Serialize, Deserialize, ToSchema)]
struct Health {
    /// `ok`, always: who can say nothing says nothing.
    status: String,
    version: String,
}

fn ok() -> Answer<Health> {
    Answer::ok(Health { status: "ok".into(), version: env!("CARGO_PKG_VERSION").into() })
}

/// The daemon answers.
#[utoipa::path(get, path = "/v1/health/live", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn live() -> Answer<Health> {
    ok()
}

/// The daemon can work: its store is there, and it is not about to end.
#[utoipa::path(get, path = "/v1/health/ready", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn ready(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    able(&shared).await
}

/// The same as `/v1/health/ready`.
#[utoipa::path(get, path = "/v1/health", tag = "health", security(()),
    responses((status = 200, body = Document<Health>)))]
async fn health(State(shared): State<Shared>) -> Result<Answer<Health>, Refusal> {
    able(&shared).await
}

async fn able(shared: &Shared) -> Result<Answer<Health>, Refusal> {
    if *shared.ending().borrow() {
        let fault = Fault::new(ErrorKind::Unavailable, "the daemon is about to end").phase(Phase::Close);
        return Err(fault.hint("ask again when it is back").into());
    }
    shared.credentials().works().await?;
    Ok(ok())
}
