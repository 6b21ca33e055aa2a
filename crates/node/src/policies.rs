//! Verbs on policies: what a policy decides about an operation, and why.

mod explain;

pub use explain::{NOWHERE, PathLookup, explain, explain_sandbox, explain_sources};
pub use runtime::policies::*;
