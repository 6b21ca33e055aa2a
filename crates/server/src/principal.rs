//! The authenticated client of an HTTP request, with its tenant, scopes and reach.

use crate::Shared;
use crate::refuse::Refusal;
use api::Scope;
use axum::extract::FromRequestParts;
use http::request::Parts;
use node::Reach;
use terms::{ErrorKind, Fault, Phase};

/// An authenticated client; added to the request by `front`.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The tenant, whose sandboxes are the only ones visible to the client.
    pub tenant: String,
    /// The name that the journal records.
    pub name: String,
    pub scopes: Vec<Scope>,
    /// Access to the host.
    pub reach: Reach,
    /// The token's id; none for the daemon's own user on its socket.
    pub token: Option<String>,
}

impl Principal {
    /// Refuses a client without the scope. Operators have all scopes.
    pub fn require_scope(&self, scope: Scope) -> Result<(), Refusal> {
        self.require_any_scope(&[scope])
    }

    /// Refuses a client that has none of the scopes.
    pub fn require_any_scope(&self, scopes: &[Scope]) -> Result<(), Refusal> {
        let has = |scope: &Scope| self.scopes.contains(scope) || self.scopes.contains(&Scope::Operator);
        if scopes.iter().any(has) {
            return Ok(());
        }
        let names: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
        let message = format!("this request needs the scope {}", names.join(" or "));
        let hint = "use a token with this scope; an operator creates tokens";
        Err(Fault::new(ErrorKind::PolicyDenied, message).hint(hint).phase(Phase::Admission).into())
    }

    /// Returns true for an operator of the whole daemon, as opposed to one of a single tenant.
    pub fn is_host_operator(&self) -> bool {
        self.tenant == api::DEFAULT_TENANT && self.scopes.contains(&Scope::Operator)
    }
}

impl FromRequestParts<Shared> for Principal {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Principal, Refusal> {
        let missing = || Fault::new(ErrorKind::Unauthenticated, "no credential").phase(Phase::Admission);
        parts.extensions.get::<Principal>().cloned().ok_or_else(|| missing().into())
    }
}
