//! The verbs of the product, one file each; the only place where policy, enclosure and host facts meet.
//! Nothing here prints, prompts or reads the environment: the door hands in a `Caller`.

pub mod audit;
pub mod backup;
pub mod bounds;
mod caller;
pub mod config;
mod denied;
pub mod doctor;
pub mod events;
pub mod figures;
pub mod files;
pub mod fresh;
pub mod fsck;
pub mod keeper;
pub mod learn;
pub mod lifecycle;
pub mod network;
pub mod output;
mod own;
pub mod policies;
pub mod ports;
pub mod publish;
pub mod questions;
pub mod quota;
mod reach;
pub mod review;
mod roster;
pub mod run;
pub mod sandbox;
pub mod secrets;
pub mod snapshots;
pub mod state;
pub mod tokens;
pub mod top;
pub mod total;
pub mod warm;

pub use caller::Caller;
pub use own::Own;
pub use reach::{Grants, Reach};
pub use sys::host::{Bounded, bound};
