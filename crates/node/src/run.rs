//! The verb `run`, and what a run would do.

pub mod explained;

pub use runtime::run::*;
