//! Who asks over HTTP, and what they may.

use crate::Shared;
use crate::refuse::Refusal;
use axum::extract::FromRequestParts;
use http::request::Parts;
use node::Reach;
pub use node::tokens::Scope;
use terms::{ErrorKind, Fault, Phase};

/// An authenticated caller; put into the request by `front`.
#[derive(Clone, Debug)]
pub struct Who {
    /// Whose sandboxes these are; nobody sees another tenant's.
    pub tenant: String,
    /// For the journal.
    pub name: String,
    pub scopes: Vec<Scope>,
    /// What of the host they may have.
    pub reach: Reach,
    /// The token's id; none for the daemon's own user on its socket.
    pub token: Option<String>,
}

impl Who {
    /// Refuses who lacks the scope. Operators have all.
    pub fn needs(&self, scope: Scope) -> Result<(), Refusal> {
        self.needs_any(&[scope])
    }

    /// Refuses who has none of the scopes.
    pub fn needs_any(&self, scopes: &[Scope]) -> Result<(), Refusal> {
        let has = |scope: &Scope| self.scopes.contains(scope) || self.scopes.contains(&Scope::Operator);
        if scopes.iter().any(has) {
            return Ok(());
        }
        let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
        let message = format!("this needs the scope {}", names.join(" or "));
        let hint = "use a token that has it; an operator makes one";
        Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission).into())
    }

    /// Whether this is the operator of the whole daemon, and not of one tenant.
    pub fn is_host_operator(&self) -> bool {
        self.tenant == node::tokens::DEFAULT_TENANT && self.scopes.contains(&Scope::Operator)
    }
}

impl FromRequestParts<Shared> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Who, Refusal> {
        let missing = || Fault::new(ErrorKind::Unauthenticated, "no credential").phase(Phase::Admission);
        parts.extensions.get::<Who>().cloned().ok_or_else(|| missing().into())
    }
}
