//! Spares: sandboxes that are made from a template in advance, live and without runs. A `create` that matches one exactly takes it.
//!
//! ```text
//!  template warm ──▶ Pool ── a daemon fills it ──▶ Spare (layers and a keeper) ── create ──▶ Sandbox, the caller's
//!                                                     │
//!                                                     ▼ its pool or template changed, its keeper died, too many
//!                                                   leaving ──▶ gone
//! ```
//!
//! A spare is not a sandbox yet: no verb finds it, and its keeper runs nothing. Everything that is fixed when an enclosure is built is
//! part of its key; a `create` with another key makes a sandbox as usual. A spare that was taken never becomes a spare again.

mod fill;
mod leave;
mod set;

pub use fill::{MissingSpares, make_spare, marked, memory_shortage, set_trouble, sweep};
pub use leave::take_away;
pub(crate) use leave::{drop_spare, idle, mark_leaving};
pub use set::{KeepSpares, set, warmth};

pub use state::pool::{Pool, Spare, SpareStage};

/// Most spares of one template.
pub const MOST: u32 = 64;
