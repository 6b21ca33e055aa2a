//! Verbs on commands in live sandboxes: begin, attach, read their output, wait for their end. The keeper itself, its client, its protocol and
//! its spool are in `runtime::keeper`; front ends use no crate of the core but this one, and reach them here.

pub mod attach;
pub mod begin;
pub mod exec;
pub mod runs;

pub use crate::suspend;
pub use runtime::keeper::*;
