//! Faults as answers. Every route refuses with this type and nothing else.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use terms::{ErrorKind, Fault};

/// A fault on its way out.
#[derive(Debug)]
pub struct Refusal(pub Box<Fault>);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal(Box::new(fault))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (status(&self.0), Json(self.0)).into_response()
    }
}

/// The table of the contract. A body that is too large is told by 413, every other limit by 429.
fn status(fault: &Fault) -> StatusCode {
    match fault.error_kind {
        ErrorKind::InvalidRequest => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::PolicyDenied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::LimitExceeded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::UnsupportedLimit | ErrorKind::UnsupportedPolicy | ErrorKind::UnsupportedHost => {
            StatusCode::NOT_IMPLEMENTED
        }
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::ProviderFailed => StatusCode::BAD_GATEWAY,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
