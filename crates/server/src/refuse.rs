//! Faults as HTTP responses. Every route refuses with this type and no other; `front` writes the body, with the request's id.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use std::time::Duration;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// A fault on its way out.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub fault: Box<Fault>,
    /// A status more specific than that of the fault's kind: 405, 415, 421.
    pub status: Option<StatusCode>,
    /// Value of Retry-After, where it is known.
    pub after: Option<Duration>,
}

/// Response extension: the fault of a response whose body is not written yet.
#[derive(Clone, Debug)]
pub struct CarriedFault(pub Box<Fault>);

/// Request extension: the refusal of a request that exceeds its tenant's rate. The request is routed only to find out which route it was
/// for, and is not carried out.
#[derive(Clone, Debug)]
pub struct OverRate(pub Refusal);

/// Response extension: the response comes from a guest, so that `front` does not turn its errors into faults, whatever the status.
#[derive(Clone, Copy, Debug)]
pub struct FromGuest;

impl Refusal {
    /// A refusal with an HTTP status of its own.
    pub fn http(status: StatusCode, message: impl Into<String>, hint: impl Into<String>) -> Refusal {
        let kind = match status {
            StatusCode::UNAUTHORIZED => ErrorKind::Unauthenticated,
            StatusCode::FORBIDDEN => ErrorKind::PolicyDenied,
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            StatusCode::INTERNAL_SERVER_ERROR => ErrorKind::Internal,
            _ => ErrorKind::InvalidRequest,
        };
        let fault = Fault::new(kind, message).hint(hint).phase(Phase::Admission);
        Refusal { fault: Box::new(fault), status: Some(status), after: None }
    }

    /// A refusal because a limit of the daemon itself is reached.
    pub fn limit(status: StatusCode, kind: LimitKind, message: impl Into<String>, hint: &str) -> Refusal {
        let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint(hint).phase(Phase::Admission);
        let retry = if status == StatusCode::TOO_MANY_REQUESTS { Retry::Later } else { Retry::Never };
        Refusal { fault: Box::new(fault.retry(retry)), status: Some(status), after: None }
    }

    /// Sets Retry-After.
    pub fn after(self, time: Duration) -> Refusal {
        Refusal { after: Some(time), ..self }
    }

    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or_else(|| status(&self.fault))
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Refusal {
        Refusal { fault: Box::new(fault), status: None, after: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        if let Some(after) = self.after {
            // Whole seconds, rounded up.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        response.extensions_mut().insert(CarriedFault(self.fault));
        response
    }
}

/// Maps the kind of a fault to its HTTP status. A body that is too large gives 413, every other limit 429.
fn status(fault: &Fault) -> StatusCode {
    match fault.error_kind {
        ErrorKind::InvalidRequest => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::PolicyDenied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::LimitExceeded if fault.limit_kind == Some(LimitKind::BodyBytes) => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::LimitExceeded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::UnsupportedLimit | ErrorKind::UnsupportedPolicy | ErrorKind::UnsupportedHost => {
            StatusCode::NOT_IMPLEMENTED
        }
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::ProviderFailed => StatusCode::BAD_GATEWAY,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
