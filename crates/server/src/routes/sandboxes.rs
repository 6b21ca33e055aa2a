//! Sandboxes: made, listed, looked at, started, stopped, removed.

use crate::refuse::Refusal;
use crate::{Scope, Shared, Who};
use axum::Json;
use axum::extract::{Path, State};
use node::lifecycle::stop::{self, Moved, Which};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(start))
}

/// Lets commands be run in it again.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/start", tag = "sandboxes",
    params(("id" = String, Path)), responses((status = 200, body = Moved)))]
async fn start(State(shared): State<Shared>, who: Who, Path(id): Path<String>) -> Result<Json<Moved>, Refusal> {
    who.needs(Scope::Agent)?;
    let which = Which { word: Some(id), version: None };
    Ok(Json(shared.verb(&who, move |caller| stop::start(&which, caller)).await?))
}
