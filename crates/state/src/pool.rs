//! Records of warm pools: sandboxes that were made ahead from a template, and are claimed by a `create`.

use crate::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use store::{Kept, Record, Tx};
use terms::{Fault, Limits};

/// Wanted number of spares for a template, and their policy and limits. The id is the template's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    pub keep: u32,
    /// Policy document of commands in the spares.
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    /// Languages whose interpreters start as soon as a spare is claimed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub languages: Vec<api::Language>,
    /// Reason why there are fewer spares than wanted, as last seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

impl Record for Pool {
    const KIND: &'static store::Kind = crate::records::kind("pool");
}

/// A sandbox without an owner; the id is the one that it will have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spare {
    /// The template's id.
    pub pool: String,
    /// Digest of the properties that a requested sandbox must share to claim it.
    pub key: String,
    pub stage: SpareStage,
    #[serde(flatten)]
    pub sandbox: Sandbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpareStage {
    /// Recorded, but perhaps not live yet.
    Coming,
    /// Can be claimed.
    Ready,
    /// Will be removed, and cannot be claimed.
    Leaving,
}

impl Record for Spare {
    const KIND: &'static store::Kind = crate::records::kind("spare");

    fn scope(&self) -> Option<&str> {
        Some(&self.pool)
    }
}

/// Returns the sandbox of a spare, as its keeper uses it; `None` where the id is not a spare's.
pub fn as_kept(tx: &Tx<'_>, id: &str) -> Result<Option<Kept<Sandbox>>, Fault> {
    let spare = tx.get::<Spare>(id)?.filter(|spare| spare.record.stage != SpareStage::Leaving);
    Ok(spare.map(|Kept { id, version, record }| Kept { id, version, record: record.sandbox }))
}

/// Returns a sandbox, or a spare as if it were one.
pub fn sandbox_or_spare(tx: &Tx<'_>, id: &str) -> Result<Option<Kept<Sandbox>>, Fault> {
    match tx.get::<Sandbox>(id)? {
        Some(kept) => Ok(Some(kept)),
        None => as_kept(tx, id),
    }
}
