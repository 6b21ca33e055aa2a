//! Metrics of the whole daemon, for Prometheus.

use crate::refuse::Refusal;
use crate::telemetry::CONTENT_TYPE;
use crate::{Principal, Shared};
use api::Scope;
use axum::extract::State;
use axum::response::IntoResponse;
use http::header;
use terms::{ErrorKind, Fault, Phase};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Returns metrics in the text format of Prometheus. They cover all tenants, so operators of a single tenant may not read them.
#[utoipa::path(get, path = "/v1/metrics", tag = "health",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(shared): State<Shared>, principal: Principal) -> Result<impl IntoResponse, Refusal> {
    if !principal.is_host_operator() && !principal.scopes.contains(&Scope::Metrics) {
        let fault =
            Fault::new(ErrorKind::PolicyDenied, "this request needs the scope metrics, or the daemon's own operator");
        let hint = "use a token with the scope metrics; an operator creates tokens";
        return Err(fault.hint(hint).phase(Phase::Admission).into());
    }
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], shared.telemetry().text().await))
}
