//! Is the daemon there?

use crate::Shared;
use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(live))
}

#[derive(Serialize, ToSchema)]
struct Health {
    protocol_version: u32,
    /// `ok`, always: who can say nothing says nothing.
    status: &'static str,
}

/// The daemon answers.
#[utoipa::path(get, path = "/v1/health/live", tag = "health", responses((status = 200, body = Health)))]
async fn live() -> Json<Health> {
    Json(Health { protocol_version: terms::PROTOCOL_VERSION, status: "ok" })
}
