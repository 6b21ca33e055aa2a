//! Verbs on commands in live sandboxes: begin, attach, read their output, wait for their end.

pub mod attach;
pub mod begin;
pub mod exec;
pub mod runs;

pub use crate::suspend;
pub use runtime::keeper::*;
