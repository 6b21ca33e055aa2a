//! Who asks over HTTP, and what they may.

use crate::Shared;
use crate::refuse::Refusal;
use axum::extract::FromRequestParts;
use http::request::Parts;
use terms::{ErrorKind, Fault, Phase};

/// What a credential is good for. Each scope is its own: a reviewer cannot run, an agent cannot approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Run commands, read and write its own sandboxes.
    Agent,
    /// Diff, approve, reject.
    Reviewer,
    /// All of it, and policy, limits, tokens.
    Operator,
}

/// An authenticated caller; put into the request by the layer that checks credentials.
#[derive(Clone, Debug)]
pub struct Who {
    /// Whose sandboxes these are; nobody sees another tenant's.
    pub tenant: String,
    /// For the journal.
    pub name: String,
    pub scopes: Vec<Scope>,
}

impl Who {
    /// Refuses who lacks the scope. Operators have all.
    pub fn needs(&self, scope: Scope) -> Result<(), Refusal> {
        if self.scopes.contains(&scope) || self.scopes.contains(&Scope::Operator) {
            return Ok(());
        }
        let message = format!("this needs the scope {}", format!("{scope:?}").to_lowercase());
        let hint = "use a token that has it; an operator makes one";
        Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission).into())
    }
}

impl FromRequestParts<Shared> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Who, Refusal> {
        let missing = || Fault::new(ErrorKind::Unauthenticated, "no credential").phase(Phase::Admission);
        parts.extensions.get::<Who>().cloned().ok_or_else(|| missing().into())
    }
}
