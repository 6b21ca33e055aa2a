//! Error responses for requests that are not forwarded: a status, and the reason as JSON.

use super::headers::is_value;
use http::StatusCode;
use serde_json::json;
use terms::ErrorKind;

/// Header with the rule that refused, for programs that look at headers only.
pub(super) const RULE_HEADER: &str = "cofferdam-rule";

/// Reason for not forwarding a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestRefusal {
    pub status: u16,
    pub kind: ErrorKind,
    pub rule: Option<String>,
    pub message: String,
    pub hint: Option<String>,
}

impl RequestRefusal {
    /// The request is ambiguous or malformed.
    pub fn malformed(status: u16, reason: &str) -> RequestRefusal {
        RequestRefusal::new(status, ErrorKind::InvalidRequest, format!("the request is refused: {reason}"))
    }

    /// The request is for another host than its connection.
    pub fn misdirected(message: String) -> RequestRefusal {
        RequestRefusal::new(421, ErrorKind::PolicyDenied, message)
    }

    /// The server cannot be reached, or its response cannot be forwarded.
    pub fn unavailable(message: String) -> RequestRefusal {
        RequestRefusal::new(502, ErrorKind::Unavailable, message)
    }

    fn new(status: u16, kind: ErrorKind, message: String) -> RequestRefusal {
        RequestRefusal { status, kind, rule: None, message, hint: None }
    }

    pub fn hint(mut self, hint: &str) -> RequestRefusal {
        self.hint = Some(hint.to_owned());
        self
    }

    pub fn body(&self) -> Vec<u8> {
        let body = json!({
            "error_kind": self.kind.name(),
            "rule": self.rule,
            "message": self.message,
            "hint": self.hint,
        });
        let mut text = body.to_string();
        text.push('\n');
        text.into_bytes()
    }

    /// Returns the rule if it is valid as a header value.
    pub fn rule_value(&self) -> Option<&str> {
        self.rule.as_deref().filter(|rule| rule.is_ascii() && is_value(rule.as_bytes()))
    }

    pub fn phrase(&self) -> &'static str {
        StatusCode::from_u16(self.status).ok().and_then(|s| s.canonical_reason()).unwrap_or("Refused")
    }
}
