//! The verbs of the product, one file each. A front end hands in a `Caller` and a request, and gets a response or a fault.
//! Nothing here prints, prompts or reads the environment.

pub mod audit;
pub mod backup;
pub mod change;
pub mod code;
pub mod create;
pub mod doctor;
mod ended;
pub mod figures;
pub mod files;
pub mod fsck;
pub mod gc;
pub mod keeper;
pub mod learn;
pub mod list;
pub mod own_bases;
pub mod policies;
pub mod portable;
pub mod ports;
pub mod questions;
pub mod quota;
pub mod remove;
pub mod review;
pub mod run;
pub mod snapshots;
pub mod stop;
pub mod suspend;
pub mod templates;
pub mod timeout;
pub mod tokens;
pub mod top;
mod unrecorded;
pub mod warm;

pub use ::state::{Caller, Grants, Own, Reach, SecretSources};
pub use ::state::{
    admission, batch, bounds, config, conflicted, directory, idempotency, journal, layer_meta, sandbox, total,
};
pub use runtime::{Node, events, liveness, network, output, publish, secrets};
pub use sys::host::{BoundedResource, bound};
pub use sys::process::{next_signal, signal_handle};
pub use sys::random;
