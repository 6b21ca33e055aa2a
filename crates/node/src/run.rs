//! The verb `run`, and what a run would do. The verb itself is `runtime::run`, because a keeper builds its enclosure with the same code; front
//! ends use no crate of the core but this one.

pub mod explained;

pub use runtime::run::*;
