//! The directory of a keeper on disk: its card and socket, the output of its commands, its services, and the reason of a keeper's loss.

pub mod lost;
pub mod place;
pub mod services;
pub mod spool;
