//! Review: what changed in a sandbox, and what of it lands on its base.

pub mod commit;
pub mod conflicted;
