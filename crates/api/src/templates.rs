//! Templates: create, prepare, list, keep warm.

use crate::PolicySource;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateCreated {
    pub protocol_version: u32,
    pub id: String,
    /// `NAME@sha256:DIGEST`, which never means anything else.
    pub address: String,
    /// There was the same one already.
    pub unchanged: bool,
    /// An earlier request under the same key made it.
    #[serde(skip)]
    #[schema(ignore)]
    pub existed: bool,
}

/// A template at a glance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateSummary {
    pub id: String,
    pub name: String,
    /// `NAME@sha256:DIGEST`, which never means anything else.
    pub address: String,
    #[schema(value_type = String)]
    pub base: std::path::PathBuf,
    /// The command that prepared it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    pub layers: usize,
    /// Of files in all its layers.
    pub bytes: u64,
    pub created_ms: u64,
    /// Policy of sandboxes made from it, unless they are given a narrower one.
    #[schema(value_type = Object)]
    pub policy: serde_json::Value,
    /// Sandboxes that stand ready for it, where some shall.
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
    /// False when it was so already.
    pub changed: bool,
    pub notes: Vec<String>,
}

/// Sandboxes that stand ready for a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmPool {
    /// So many shall.
    pub keep: u32,
    /// So many do.
    pub ready: u32,
    /// Reason for which there are fewer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    pub protocol_version: u32,
    /// In the order of their names.
    pub templates: Vec<TemplateSummary>,
    /// The value of `after` for the next page; none on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateCreate {
    pub name: String,
    /// The snapshot or the sandbox that it shall hold.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<String>,
    /// The command that prepared what it is made from, to be told of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prepared: Option<String>,
    /// Or how it is prepared.
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
    /// Their number, at most 64; 0 keeps none.
    pub keep: u32,
    /// As those of the sandboxes that shall be had so: what differs is made as it is asked for.
    #[serde(default)]
    pub policies: Vec<PolicySource>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplatePrepare {
    /// Text for a shell; it must succeed, within an hour unless `limits.max_wall_ms` says less.
    pub command: String,
    /// The directory to prepare for, by its absolute path; an empty one of its own where none is given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    /// Of the command, and of sandboxes that begin from it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policies: Vec<PolicySource>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}
