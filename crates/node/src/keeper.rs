//! Keepers: one small process for each live sandbox, which holds its enclosure, runs commands in it, keeps what they say, and can be
//! asked over a socket. Whoever asks may come and go.

pub mod attach;
mod birth;
pub mod client;
pub mod exec;
mod keep;
pub mod lost;
pub mod place;
pub mod runs;
pub mod spool;
pub mod suspend;
pub mod wire;

pub use birth::{announce, stand_alone};
pub use client::{Follow, Keeper};
pub use keep::{IDLE, MOST_RUNS, keep};
