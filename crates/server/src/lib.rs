//! The daemon's door: HTTP in, a verb of the node called, its answer out. Knows nothing of kernels and layers.
//!
//! ```text
//!  listen ─▶ connection ─▶ front ─▶ gate ─▶ credentials ─▶ rules ─▶ a route ─▶ a verb of the node
//!  sockets   caps, times   ids      Host    who asks       what the           Shared::verb
//!                          faults   Origin                 description says
//! ```

mod admission;
pub mod answer;
pub mod ask;
mod credentials;
mod feed;
mod foreign;
mod front;
mod gate;
mod listen;
mod readiness;
mod refuse;
mod resting;
mod routes;
mod rules;
mod run_progress;
mod running;
mod shared;
mod slow_body;
mod spooled;
mod stream;
mod tasks;
pub mod telemetry;
mod tidy;
mod upload;
mod warm;
mod who;
mod words;

pub use admission::Quotas;
pub use listen::{Checked, Named, Settings, rehearse, serve};
pub use refuse::Refusal;
pub use routes::document;
pub use shared::Shared;
pub use who::{Scope, Who};
