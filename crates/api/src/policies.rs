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
    /// The rule as the document has it.
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

/// A policy that is built in.
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
    /// As it is written, its `extends` included.
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
    pub policies: Vec<PolicySource>,
    /// The directory that commands would work in; with `sandbox` it is the sandbox's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dir: Option<String>,
}
