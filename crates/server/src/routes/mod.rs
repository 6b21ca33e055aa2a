//! The routes, one file for each resource. A route takes `Who`, asks for its scope first, calls one verb and gives its answer.

mod health;
mod sandboxes;

use crate::Shared;
use crate::refuse::Refusal;
use axum::Router;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;

/// All routes with their description.
pub fn described() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().merge(health::routes()).merge(sandboxes::routes())
}

pub fn all(shared: Shared) -> Router {
    let (router, _) = described().split_for_parts();
    router.fallback(unknown).method_not_allowed_fallback(not_so).with_state(shared)
}

async fn unknown(uri: http::Uri) -> Refusal {
    let fault = Fault::new(ErrorKind::NotFound, format!("there is nothing at {}", uri.path())).phase(Phase::Admission);
    fault.hint("/v1/openapi.json lists what there is").into()
}

async fn not_so(method: http::Method, uri: http::Uri) -> Refusal {
    Fault::invalid(format!("{} does not take {method}", uri.path())).phase(Phase::Admission).into()
}
