//! Documents about policies: how a request names one, and the answers of check and explain.

use node::policies::Source;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PolicyOf {
    Name(String),
    #[schema(value_type = Object)]
    Document(serde_json::Map<String, serde_json::Value>),
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyChecked {
    pub protocol_version: u32,
    pub success: bool,
    /// Of the policy as it would hold, with all that it extends.
    pub digest: String,
    pub notes: Vec<String>,
}

/// A question about a policy: that of a sandbox, a built-in one, or a document.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyExplain {
    /// A path with a slash, a host name or address, `icmp:HOST`, `unix:PATH`, or a command.
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    /// The name of one that is built in [default].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub preset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<Object>)]
    pub policy: Option<serde_json::Value>,
    /// Several of either kind, merged; instead of `preset` and `policy`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policies: Vec<PolicyOf>,
    /// The directory that commands would work in; with `sandbox` it is the sandbox's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dir: Option<String>,
}

impl From<PolicyOf> for Source {
    fn from(policy: PolicyOf) -> Source {
        match policy {
            PolicyOf::Name(name) => Source::Preset(name),
            PolicyOf::Document(document) => Source::Text(serde_json::Value::Object(document).to_string()),
        }
    }
}
