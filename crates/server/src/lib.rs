//! The daemon's door: HTTP in, a verb of the node called, its answer out. Knows nothing of kernels and layers.

mod listen;
pub mod lookout;
mod refuse;
pub mod routes;
mod shared;
mod who;

pub use listen::{Settings, serve};
pub use refuse::Refusal;
pub use shared::Shared;
pub use who::{Scope, Who};
