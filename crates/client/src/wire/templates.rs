//! Documents about templates: list, create, prepare, keep warm.

use super::PolicyOf;
use node::templates::Described;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    pub protocol_version: u32,
    /// In the order of their names.
    pub templates: Vec<Described>,
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
    pub template: Described,
}

/// The sandboxes to keep warm for a template.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateWarm {
    /// Their number, at most 64; 0 keeps none.
    pub keep: u32,
    /// As those of the sandboxes that shall be had so: what differs is made as it is asked for.
    #[serde(default)]
    pub policies: Vec<PolicyOf>,
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
    pub policies: Vec<PolicyOf>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}
