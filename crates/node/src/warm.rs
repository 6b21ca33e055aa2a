//! Sandboxes that stand ready: made from a template before anybody asks, live, with nothing run in them, and taken over whole by a
//! `create` that wants just such a one.
//!
//! ```text
//!  template warm ──▶ Pool ── a daemon fills it ──▶ Spare (layers and a keeper) ── create ──▶ Sandbox, the caller's
//!                                                     │
//!                                                     ▼ its pool or template changed, its keeper died, too many
//!                                                   leaving ──▶ gone
//! ```
//!
//! A spare is no sandbox: no verb finds it, and its keeper runs nothing. What cannot be given to one that stands already is part
//! of its key; where the key differs a sandbox is made as usual. One that was taken over is never a spare again.

mod fill;
mod key;
mod leave;
mod set;

pub use fill::{Lack, hinder, make_one, marked, pressure, sweep};
pub(crate) use key::key_of;
pub use leave::take_away;
pub(crate) use leave::{drop_one, give_up, idle};
pub use set::{Ask, Set, Warmth, set, warmth};

use crate::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use store::{Kept, Record, Tx};
use terms::{Fault, Limits};

/// Spares of one template.
pub const MOST: u32 = 64;

/// How many shall stand ready for a template, and under what. The id is the template's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool {
    pub keep: u32,
    /// The whole policy document that commands in them are run under.
    pub policy: serde_json::Value,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    /// Why there are fewer than wanted, as was last seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
}

impl Record for Pool {
    const KIND: &'static str = "pool";
}

/// A sandbox that nobody has yet; the id is the one that it will have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spare {
    /// The template's id.
    pub pool: String,
    /// What a sandbox must be to take its place.
    pub key: String,
    pub stage: Stage,
    #[serde(flatten)]
    pub sandbox: Sandbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It is recorded, and may not stand yet.
    Coming,
    /// It can be taken.
    Ready,
    /// It will be taken away, and by nobody else.
    Leaving,
}

impl Record for Spare {
    const KIND: &'static str = "spare";

    fn scope(&self) -> Option<&str> {
        Some(&self.pool)
    }
}

/// The sandbox of an id as its keeper takes it up, and whether it is a spare.
pub(crate) fn as_kept(tx: &Tx<'_>, id: &str) -> Result<Option<Kept<Sandbox>>, Fault> {
    let spare = tx.get::<Spare>(id)?.filter(|spare| spare.record.stage != Stage::Leaving);
    Ok(spare.map(|Kept { id, version, record }| Kept { id, version, record: record.sandbox }))
}

/// A sandbox, or a spare as if it were one.
pub(crate) fn sandbox_or_spare(tx: &Tx<'_>, id: &str) -> Result<Option<Kept<Sandbox>>, Fault> {
    match tx.get::<Sandbox>(id)? {
        Some(kept) => Ok(Some(kept)),
        None => as_kept(tx, id),
    }
}
