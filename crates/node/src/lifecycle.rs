//! Sandboxes come and go: create, list, look at, start, stop, remove, collect.
//!
//! ```text
//!  create ──▶ active ◀── start ── stopped
//!               │ ╲── stop ──────────▲
//!               │  a run holds the lock of the top layer: "running"
//!               ▼
//!              rm, or expired and collected ──▶ removed (a tombstone, kept for a time; its layers are gone)
//! ```

pub mod admission;
pub mod bases;
pub mod change;
mod copies;
pub mod create;
pub mod gc;
pub mod keys;
pub mod list;
pub mod live;
pub mod measure;
pub mod meta;
pub mod past;
mod ports;
pub mod remove;
pub mod reserve;
pub(crate) mod restarted;
mod revise;
pub mod stop;
