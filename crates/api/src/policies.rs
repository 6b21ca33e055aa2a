//! Policies: how a request names one, presets, and the answers of check and explain.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Decisions about one subject; operations with the same answer share one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyExplained {
    pub protocol_version: u32,
    pub subject: String,
    pub decisions: Vec<PolicyDecision>,
    /// Destination of changes at a path: the workspace, or the host at once.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub changes: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyDecision {
    /// `read_file` and the other permissions, `execute`, or `connect`.
    pub operations: Vec<String>,
    /// `allow`, `warn`, `ask` or `deny`.
    pub action: String,
    /// The rule that decided, or `defaults.fs` and the like.
    pub rule: String,
    /// Rule or flag that allows it, if it is denied.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    /// Every rule that matched, in the order of the policy.
    pub matches: Vec<PolicyMatch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyMatch {
    pub rule: String,
    pub action: String,
    /// The rule as written in the document.
    pub text: String,
}

impl PolicyExplained {
    pub fn to_text(&self) -> String {
        let mut out = format!("{}\n", self.subject);
        for PolicyDecision { operations, action, rule, hint, matches } in &self.decisions {
            out.push_str(&format!("  {action:5} {}  ({rule})\n", operations.join(", ")));
            for m in matches {
                out.push_str(&format!("        {}: {}\n", m.rule, m.text));
            }
            if let Some(hint) = hint {
                out.push_str(&format!("        to allow it: {hint}\n"));
            }
        }
        if let Some(changes) = &self.changes {
            out.push_str(&format!("  {changes}\n"));
        }
        out
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    pub protocol_version: u32,
    pub policies: Vec<PolicyPreset>,
}

/// A built-in policy.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyPreset {
    pub name: String,
    /// Purpose of the preset.
    pub about: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    pub protocol_version: u32,
    pub name: String,
    /// The document as written, with its `extends`.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PolicySource {
    Name(String),
    #[schema(value_type = Object)]
    Document(serde_json::Map<String, serde_json::Value>),
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyChecked {
    pub protocol_version: u32,
    pub success: bool,
    /// Digest of the effective policy, with everything that it extends.
    pub digest: String,
    pub notes: Vec<String>,
}

/// A question about the policy of a sandbox, a built-in policy, or a document.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyExplain {
    /// A path with a slash, a host name or address, `icmp:HOST`, `unix:PATH`, or a command.
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sandbox: Option<String>,
    /// Name of a built-in policy [default].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub preset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<Object>)]
    pub policy: Option<serde_json::Value>,
    /// Several built-in policies and documents, which are merged; instead of `preset` and `policy`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policies: Vec<PolicySource>,
    /// Working directory of commands; with `sandbox`, the sandbox's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dir: Option<String>,
}
