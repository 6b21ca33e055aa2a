//! Figures of the whole daemon, for Prometheus.

use crate::refuse::Refusal;
use crate::telemetry::CONTENT_TYPE;
use crate::{Scope, Shared, Who};
use axum::extract::State;
use axum::response::IntoResponse;
use http::header;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Figures as Prometheus reads them. They are of all tenants together, so that no tenant's operator sees them.
#[utoipa::path(get, path = "/v1/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(shared): State<Shared>, who: Who) -> Result<impl IntoResponse, Refusal> {
    if !who.is_host_operator() && !who.scopes.contains(&Scope::Metrics) {
        let fault = Fault::new(ErrorKind::PolicyDenied, "this needs the scope metrics, or the daemon's own operator");
        let hint = "an operator makes a token for it: `cofferdam token create NAME --scope metrics`";
        return Err(fault.hint(hint).phase(Phase::Admission).into());
    }
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], shared.telemetry().text().await))
}
