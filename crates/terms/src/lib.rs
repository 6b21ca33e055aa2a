//! Vocabulary shared by all crates: outcomes, faults, limits. Plain data only; nothing here reads a file or the
//! environment.

pub mod clock;
mod fault;
pub mod hex;
mod id;
mod limit;
pub mod octal;
mod outcome;
pub mod quantity;
mod unread;

pub use fault::{ErrorKind, Fault, Retry};
pub use id::id;
pub use limit::{COUNTS, CPUS, Limit, LimitKind, Limits, MEGABYTES, OnOutputLimit, Phase, check_amounts, least};
pub use outcome::{
    Action, Actor, Changes, Denial, Enforcement, EnforcementLevel, Exit, LimitHit, Outcome, OutputEncoding,
    PolicyStamp, RunId, Truncated, Usage, Verdict,
};
pub use unread::Unread;

/// Version of every document that leaves the product.
pub const PROTOCOL_VERSION: u32 = 1;
