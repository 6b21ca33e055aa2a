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
mod leave;
mod set;

pub use fill::{Lack, hinder, make_one, marked, pressure, sweep};
pub use leave::take_away;
pub(crate) use leave::{drop_one, give_up, idle};
pub use set::{Ask, Set, Warmth, set, warmth};

pub use state::pool::{Pool, Spare, Stage};

/// Spares of one template.
pub const MOST: u32 = 64;
