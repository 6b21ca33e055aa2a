//! Errors of this crate: a document that is refused, and a policy that no plan can express.

use std::fmt;
use terms::{ErrorKind, Fault};

/// A refused document, with the position and a fix. `line` and `column` count from 1; 0 means that the error has no
/// position in a text (a variable without a value, say).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    pub message: String,
    pub source: String,
    pub line: usize,
    pub column: usize,
    pub field: String,
    pub hint: Option<String>,
}

impl PolicyError {
    /// An error without a position in a text.
    pub fn without_place(source: &str, field: &str, message: impl Into<String>) -> PolicyError {
        PolicyError {
            message: message.into(),
            source: source.to_owned(),
            line: 0,
            column: 0,
            field: field.to_owned(),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> PolicyError {
        self.hint = Some(hint.into());
        self
    }

    fn body(&self) -> String {
        let mut out = String::new();
        if !self.source.is_empty() {
            out.push_str(&self.source);
            if self.line > 0 {
                out.push_str(&format!(":{}:{}", self.line, self.column));
            }
            out.push_str(": ");
        }
        if !self.field.is_empty() {
            out.push_str(&self.field);
            out.push_str(": ");
        }
        out.push_str(&self.message);
        out
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.body())?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PolicyError {}

impl From<PolicyError> for Fault {
    fn from(error: PolicyError) -> Fault {
        let fault = Fault::invalid(error.body());
        match error.hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    }
}

/// A well-formed policy that mounts and landlock cannot enforce on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// Label of the rule that cannot be enforced.
    pub rule: String,
    pub message: String,
    pub hint: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.rule, self.message, self.hint)
    }
}

impl std::error::Error for PlanError {}

impl From<PlanError> for Fault {
    fn from(error: PlanError) -> Fault {
        Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {}", error.rule, error.message)).hint(error.hint)
    }
}
