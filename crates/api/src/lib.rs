//! The contract: request and response documents under the names that the OpenAPI document shows. HTTP, the command line's `--json` and
//! other front ends share them. Types and pure functions only; nothing here reads a file, a clock or the environment.

mod changes;
mod code;
mod document;
mod files;
mod gc;
mod health;
mod input;
mod journal;
mod limits;
mod params;
mod path;
mod policies;
mod questions;
mod runs;
mod sandboxes;
mod secrets;
mod services;
mod snapshots;
mod templates;
mod tokens;
mod top;
mod urls;
mod workspace;

pub use changes::*;
pub use code::*;
pub use document::*;
pub use files::*;
pub use gc::*;
pub use health::*;
pub use input::*;
pub use journal::*;
pub use limits::*;
pub use params::*;
pub use path::*;
pub use policies::*;
pub use questions::*;
pub use runs::*;
pub use sandboxes::*;
pub use secrets::*;
pub use services::*;
pub use snapshots::*;
pub use templates::*;
pub use tokens::*;
pub use top::*;
pub use urls::*;
pub use workspace::*;

/// The tenant that the daemon's own state belongs to.
pub const DEFAULT_TENANT: &str = "default";

fn is_zero(count: &u64) -> bool {
    *count == 0
}
