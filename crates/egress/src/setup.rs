//! Inputs of a broker beside its rules: secret values, and callbacks that look up a socket's process and run.

use crate::approval::Approvals;
use crate::event::GuestSocket;
use std::sync::Arc;
use terms::Actor;

/// A secret with its value, which is never printed.
pub struct SecretValue {
    /// Name in the policy.
    pub name: String,
    /// String that the guest has instead of the value.
    pub placeholder: String,
    pub value: Vec<u8>,
}

/// Looks up the process of the guest that holds a socket. Called synchronously on the broker's thread.
pub type ProcessLookup = Box<dyn FnMut(GuestSocket) -> Option<Actor> + Send>;

/// Looks up the run that a socket belongs to; without a socket, the only possible run. Called synchronously on the
/// broker's thread.
pub type RunLookup = Box<dyn FnMut(Option<GuestSocket>) -> Option<Arc<str>> + Send>;

/// The run that a broker serves.
#[derive(Default)]
pub struct RunContext {
    pub process_lookup: Option<ProcessLookup>,
    pub run_lookup: Option<RunLookup>,
    /// Descriptors of this process reserved for other uses.
    pub reserved_descriptors: u64,
    /// Gives a refused name a fake, unroutable address instead of NXDOMAIN, so that the connection the guest then
    /// attempts is reported. No resolver is queried.
    pub fakes_addresses: bool,
    /// Asks a person. Without it, a rule with action `ask` refuses.
    pub approvals: Option<Arc<dyn Approvals>>,
    pub(crate) fake_addresses: u32,
}
