//! Faults as answers. Every route refuses with this type and nothing else; `front` writes it out, with the request's id.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use std::time::Duration;
use terms::{ErrorKind, Fault, LimitKind, Phase, Retry};

/// A fault on its way out.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub fault: Box<Fault>,
    /// Where HTTP has a finer word than the kind alone gives: 405, 415, 421.
    pub status: Option<StatusCode>,
    /// When to ask again, where that is known.
    pub after: Option<Duration>,
}

/// Carried by an answer that has no body yet.
#[derive(Clone, Debug)]
pub struct Carried(pub Box<Fault>);

/// Carried by a request that is not carried out: its tenant has sent too many. It goes on only as far as it takes to tell which route
/// it was for.
#[derive(Clone, Debug)]
pub struct Over(pub Refusal);

/// Marks an answer that is a guest's own: with it nothing is said of ours, whatever its status.
#[derive(Clone, Copy, Debug)]
pub struct OfGuest;

impl Refusal {
    /// The request is wrong in a way that HTTP has a status for.
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

    /// A limit of the daemon itself is met.
    pub fn limit(status: StatusCode, kind: LimitKind, message: impl Into<String>, hint: &str) -> Refusal {
        let fault = Fault::new(ErrorKind::LimitExceeded, message).limit(kind).hint(hint).phase(Phase::Admission);
        let retry = if status == StatusCode::TOO_MANY_REQUESTS { Retry::Later } else { Retry::Never };
        Refusal { fault: Box::new(fault.retry(retry)), status: Some(status), after: None }
    }

    /// The same, with when to ask again.
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
        let mut answer = self.status().into_response();
        if let Some(after) = self.after {
            // Whole seconds, and never too early.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            answer.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        answer.extensions_mut().insert(Carried(self.fault));
        answer
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
