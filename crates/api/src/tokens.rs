//! Tokens and their scopes.

use crate::LimitBounds;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A set of verbs that a credential permits. Each scope is its own: a reviewer cannot run, an agent cannot approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Run commands, read and write its own sandboxes: those that it made or was bound to.
    Agent,
    /// Diff, approve, reject.
    Reviewer,
    /// Every route, including policy, limits and tokens.
    Operator,
    /// The daemon's figures, and nothing else.
    Metrics,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Agent => "agent",
            Scope::Reviewer => "reviewer",
            Scope::Operator => "operator",
            Scope::Metrics => "metrics",
        }
    }
}

/// A request for a new token.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenCreate {
    /// Name for people and for the journal.
    pub name: String,
    #[serde(default = "default_tenant")]
    pub tenant: String,
    #[schema(min_items = 1)]
    pub scopes: Vec<Scope>,
    /// Directories that its sandboxes may cover, with all below.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub dirs: Vec<PathBuf>,
    /// Built-in policies that its sandboxes may use [default: those that allow neither files of the host nor a network].
    #[serde(default)]
    pub policies: Vec<String>,
    /// Sandboxes of its tenant that it may use, by id or name. An agent's token sees only these and those that
    /// it created; a reviewer's token sees all if none is given.
    #[serde(default)]
    pub sandboxes: Vec<String>,
    /// Defaults and ceilings for the limits of its sandboxes, beside those of its tenant and of the node.
    #[serde(default)]
    pub limits: LimitBounds,
    /// Time until it expires; by default it is valid until it is revoked.
    #[serde(default)]
    pub ttl_ms: Option<u64>,
}

/// A token without its secret.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Token {
    pub id: String,
    pub name: String,
    pub tenant: String,
    pub scopes: Vec<Scope>,
    #[schema(value_type = Vec<String>)]
    pub dirs: Vec<PathBuf>,
    pub policies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sandboxes: Vec<String>,
    /// Defaults and ceilings for the limits of its sandboxes, as in the request that created it.
    #[serde(skip_serializing_if = "LimitBounds::is_empty", default)]
    pub limits: LimitBounds,
    pub created_ms: u64,
    pub created_by: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Time of the last use, to the minute.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub used_ms: Option<u64>,
}

/// A new token with its secret, which is shown only here.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    #[serde(flatten)]
    pub shown: Token,
    /// Value for `Authorization: Bearer …`.
    pub token: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenRevoked {
    pub id: String,
    /// False if it no longer existed.
    pub changed: bool,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    pub tokens: Vec<Token>,
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

fn default_tenant() -> String {
    crate::DEFAULT_TENANT.into()
}
