//! Execution of a guest, from request to outcome, in this process or in a keeper process: its policy, its network, its secrets, its limits
//! and the questions that its rules put to a person.
//!
//! Nothing here prints, prompts or reads the environment: a front end hands in a `Caller`.

pub mod denied;
pub mod events;
pub mod keeper;
pub mod keeper_dir;
pub mod liveness;
pub mod network;
mod node;
pub mod output;
pub mod own_home;
mod owned_file;
pub mod policies;
pub mod publish;
pub mod questions;
pub mod request;
pub mod roster;
pub mod run;
pub mod secrets;
pub mod watch;

pub use node::Node;
