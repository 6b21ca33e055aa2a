//! Templates: create, prepare, list, keep warm.

use crate::{Language, PolicySource};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateCreated {
    pub protocol_version: u32,
    pub id: String,
    /// `NAME@sha256:DIGEST`, which always refers to this content.
    pub address: String,
    /// True if the same template existed already.
    pub unchanged: bool,
    /// An earlier request under the same key created it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

/// A template at a glance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateSummary {
    pub id: String,
    pub name: String,
    /// `NAME@sha256:DIGEST`, which always refers to this content.
    pub address: String,
    #[schema(value_type = String)]
    pub base: std::path::PathBuf,
    /// The command that prepared it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    pub layers: usize,
    /// Size of the files in all its layers.
    pub bytes: u64,
    pub created_ms: u64,
    /// Policy of sandboxes created from it, unless the request has a narrower one.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    /// Its pool of warm sandboxes, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub warm: Option<WarmPool>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateWarmed {
    pub protocol_version: u32,
    /// `NAME@sha256:DIGEST` of the template.
    pub address: String,
    #[serde(flatten)]
    pub warm: WarmPool,
    /// False if nothing had to be changed.
    pub changed: bool,
    pub notes: Vec<String>,
}

/// The pool of warm sandboxes of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmPool {
    /// Number of sandboxes to keep.
    pub keep: u32,
    /// Number of sandboxes that are ready.
    pub ready: u32,
    /// Languages whose interpreters start as soon as a sandbox is handed out.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub languages: Vec<Language>,
    /// Reason why fewer are ready.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    pub protocol_version: u32,
    /// Secrets, sorted by name.
    pub templates: Vec<TemplateSummary>,
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateCreate {
    pub name: String,
    /// Snapshot or sandbox whose content the template gets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<String>,
    /// Command that prepared the content, for the record.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    /// Command that prepares the content; instead of `from`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepare: Option<TemplatePrepare>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub protocol_version: u32,
    #[serde(flatten)]
    pub template: TemplateSummary,
}

/// The sandboxes to keep warm for a template.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateWarm {
    /// Number of warm sandboxes, at most 64; 0 removes the pool.
    pub keep: u32,
    /// Policies of the warm sandboxes. A request with other policies gets a sandbox that is created as usual.
    #[serde(default)]
    pub policies: Vec<PolicySource>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
    /// Languages whose interpreters start as soon as a warm sandbox is handed out, so that the first code finds them ready.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub languages: Vec<Language>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplatePrepare {
    /// Text for a shell; it must succeed, within an hour unless `limits.max_wall_ms` says less.
    pub command: String,
    /// Absolute path of the directory to prepare for; default: a new empty directory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    /// Policies of the command, and of sandboxes created from the template.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policies: Vec<PolicySource>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}
