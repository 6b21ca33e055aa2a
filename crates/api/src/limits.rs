//! Defaults and ceilings of limits, as configuration, tenants and tokens state them.

use serde::{Deserialize, Serialize};
use terms::{Fault, LimitKind, Limits, check_amounts};
use utoipa::ToSchema;

/// An amount for each limit that has one: the fields of `limits`, and `cpus`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitAmounts {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_wall_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 1_000_000_000)]
    pub max_memory_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_output_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_processes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0, maximum = 1_000_000_000)]
    pub max_disk_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_net_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
}

impl LimitAmounts {
    pub fn new(limits: &Limits, cpus: Option<f64>) -> LimitAmounts {
        LimitAmounts {
            max_wall_ms: limits.max_wall_ms,
            max_cpu_ms: limits.max_cpu_ms,
            max_memory_mb: limits.max_memory_mb,
            max_output_bytes: limits.max_output_bytes,
            max_processes: limits.max_processes,
            max_open_files: limits.max_open_files,
            max_disk_mb: limits.max_disk_mb,
            max_files: limits.max_files,
            max_net_bytes: limits.max_net_bytes,
            cpus,
        }
    }

    pub fn limits(&self) -> Limits {
        Limits {
            max_wall_ms: self.max_wall_ms,
            max_cpu_ms: self.max_cpu_ms,
            max_memory_mb: self.max_memory_mb,
            max_output_bytes: self.max_output_bytes,
            max_processes: self.max_processes,
            max_open_files: self.max_open_files,
            max_disk_mb: self.max_disk_mb,
            max_files: self.max_files,
            max_net_bytes: self.max_net_bytes,
            ..Limits::default()
        }
    }

    pub fn amount(&self, kind: LimitKind) -> Option<f64> {
        match kind {
            LimitKind::Cpus => self.cpus,
            kind => self.limits().amount(kind),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == LimitAmounts::default()
    }
}

/// Defaults and ceilings of one source: the configuration of the node or of a tenant, or a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitBounds {
    /// Value for sandboxes that set none.
    #[serde(skip_serializing_if = "LimitAmounts::is_empty")]
    pub default: LimitAmounts,
    /// Maximum that a request may set; also the default, if no default is set or it is larger.
    #[serde(skip_serializing_if = "LimitAmounts::is_empty")]
    pub ceiling: LimitAmounts,
}

impl LimitBounds {
    pub fn is_empty(&self) -> bool {
        *self == LimitBounds::default()
    }

    /// Refuses amounts out of range, by the name of their field.
    pub fn check(&self) -> Result<(), Fault> {
        for (which, amounts) in [("default", &self.default), ("ceiling", &self.ceiling)] {
            check_amounts(&amounts.limits(), amounts.cpus).map_err(|fault| {
                let message = format!("limits.{which}.{}", fault.message.trim_start_matches("limits."));
                Fault { message, ..fault }
            })?;
        }
        Ok(())
    }
}
