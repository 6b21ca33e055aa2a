//! The HTTP server of the daemon: checks each request, calls one operation of the node and sends its result. Contains no code for
//! kernels or layers.
//!
//! ```text
//!  listen ─▶ connection ─▶ front ─▶ gate ─▶ credentials ─▶ rules ─▶ a route ─▶ a verb of the node
//!  sockets   limits,      ids,     Host,    who the       what OpenAPI          Shared::verb
//!            timeouts     faults   Origin   client is     allows
//! ```

mod admission;
pub mod answer;
mod code_calls;
mod cors;
mod credentials;
pub mod extract;
mod feed;
mod foreign_ids;
mod front;
mod gate;
mod idle_sweeper;
mod listen;
mod principal;
mod raw_query;
mod readiness;
mod refuse;
mod retention;
mod routes;
mod rules;
mod run_listener;
mod run_progress;
mod shared;
mod slow_body;
mod spooled;
mod stream;
mod tasks;
pub mod telemetry;
mod timeouts;
mod upload;
mod url_grants;
mod warm_pools;

pub use admission::Quotas;
pub use listen::{CheckedSettings, SettingNames, Settings, dry_run, serve};
pub use principal::Principal;
pub use refuse::Refusal;
pub use routes::document;
pub use shared::Shared;
