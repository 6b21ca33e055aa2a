//! Faults: a verb that could not be carried out. A command that fails is not a fault but an outcome.

use crate::{LimitKind, PROTOCOL_VERSION, Phase};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The closed list of kinds of faults. Callers branch on it; the message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    InvalidRequest,
    Unauthenticated,
    PolicyDenied,
    NotFound,
    Conflict,
    LimitExceeded,
    UnsupportedLimit,
    UnsupportedPolicy,
    UnsupportedHost,
    Unavailable,
    ProviderFailed,
    Internal,
}

impl ErrorKind {
    /// The exit status of the command line when a verb ends in this fault.
    pub fn exit_status(self) -> u8 {
        match self {
            ErrorKind::InvalidRequest => 2,
            ErrorKind::PolicyDenied => 126,
            _ => 125,
        }
    }

    /// The name used in documents and messages.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::InvalidRequest => "invalid_request",
            ErrorKind::Unauthenticated => "unauthenticated",
            ErrorKind::PolicyDenied => "policy_denied",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Conflict => "conflict",
            ErrorKind::LimitExceeded => "limit_exceeded",
            ErrorKind::UnsupportedLimit => "unsupported_limit",
            ErrorKind::UnsupportedPolicy => "unsupported_policy",
            ErrorKind::UnsupportedHost => "unsupported_host",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::ProviderFailed => "provider_failed",
            ErrorKind::Internal => "internal",
        }
    }
}

/// Advice on whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    Never,
    Later,
    Now,
}

/// The error document of a verb.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    pub protocol_version: u32,
    pub success: bool,
    pub error_kind: ErrorKind,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    pub retry: Retry,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub phase: Option<Phase>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit_kind: Option<LimitKind>,
    /// The id of the request, to find it in the daemon's log.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request_id: Option<String>,
    /// The exit status of the command line, if the kind alone does not decide it (127: not found).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exit_status: Option<u8>,
}

impl Fault {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Fault {
        Fault {
            protocol_version: PROTOCOL_VERSION,
            success: false,
            error_kind: kind,
            message: message.into(),
            hint: None,
            retry: Retry::Never,
            subject: None,
            phase: None,
            limit_kind: None,
            request_id: None,
            exit_status: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Fault {
        Fault::new(ErrorKind::InvalidRequest, message)
    }

    pub fn internal(message: impl Into<String>) -> Fault {
        Fault::new(ErrorKind::Internal, message)
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = Some(hint.into());
        self
    }

    pub fn phase(mut self, phase: Phase) -> Fault {
        self.phase = Some(phase);
        self
    }

    pub fn limit(mut self, kind: LimitKind) -> Fault {
        self.limit_kind = Some(kind);
        self
    }

    pub fn retry(mut self, retry: Retry) -> Fault {
        self.retry = retry;
        self
    }

    /// Sets the id of the object that the fault is about.
    pub fn subject(mut self, id: impl Into<String>) -> Fault {
        self.subject = Some(id.into());
        self
    }

    pub fn exit(mut self, status: u8) -> Fault {
        self.exit_status = Some(status);
        self
    }

    /// The exit status of the command line.
    pub fn status(&self) -> u8 {
        self.exit_status.unwrap_or_else(|| self.error_kind.exit_status())
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}
