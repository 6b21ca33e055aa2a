//! Verbs for front ends, carried out in this process or by a daemon. Never prints, prompts or reads the environment: callers pass in
//! what those would tell.
//!
//! ```text
//!  front end ─▶ Engine ─┬─ Local(Node, Caller) ─▶ node
//!                       └─ Remote(Remote)      ─▶ transport ─▶ HTTP ─▶ a daemon
//! ```
//!
//! - `engine`: one method for each verb, with the same answer from both.
//! - `transport`, `trust`: HTTP and TLS; neither uses `node`.

mod engine;
pub mod transport;
pub mod trust;

pub use engine::{Engine, EventQuery, NetworkLog, Remote, RunRecord, SandboxPath, SecretValues, unsupported_by_daemon};
