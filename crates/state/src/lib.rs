//! The durable state of a node (records, locks, admission, idempotency keys, configuration), and
//! the caller of a verb.
//!
//! Nothing here starts a process or contacts a keeper. `State::open` repairs nothing;
//! `StatePool::open` completes what a crash or a reboot interrupted.

pub mod admission;
pub mod batch;
mod boot_check;
pub mod bounds;
mod caller;
pub mod config;
pub mod conflicted;
pub mod directory;
pub mod idempotency;
pub mod journal;
pub mod landing;
pub mod landing_recovery;
pub mod layer_meta;
pub mod lock;
pub mod names;
mod ownership;
pub mod policy_source;
pub mod pool;
pub mod process;
pub mod reach;
pub mod records;
pub mod reservations;
pub mod sandbox;
pub mod snapshot;
mod state_pool;
pub mod total;

pub use caller::{Caller, SecretSources};
pub use directory::State;
pub use ownership::Own;
pub use reach::{Grants, Reach};
pub use state_pool::{Lent, StatePool};
