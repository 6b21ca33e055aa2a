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
pub mod lookout;
mod pace;
mod refuse;
mod resting;
mod routes;
mod rules;
mod running;
mod shared;
mod spooled;
mod stream;
mod tidy;
mod upload;
mod warm;
mod who;
mod words;

pub use admission::Quotas;
pub use listen::{Checked, Named, Settings, rehearse, serve};
pub use refuse::Refusal;
pub use routes::{document, wire};
pub use shared::Shared;
pub use who::{Scope, Who};
