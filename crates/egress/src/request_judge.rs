//! The interface between the request inspector and the gate: decisions, secrets, events, byte counts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// An HTTP request as the rules see it: canonical host name, and the raw path with its query.
pub struct RequestInfo<'a> {
    pub host: &'a str,
    pub addr: IpAddr,
    pub port: u16,
    pub method: &'a str,
    pub path: &'a str,
}

/// A secret to inject into a request.
pub struct Injection {
    pub header: String,
    /// String that the guest has instead of the secret.
    pub placeholder: String,
    /// The header's value, with the secret filled into its format.
    pub value: Arc<[u8]>,
    /// The bare secret, to be masked in responses.
    pub secret: Arc<[u8]>,
}

/// Future of a decision that a person may have to make.
pub type PendingDecision<'a> = std::pin::Pin<Box<dyn Future<Output = policy::Decision> + Send + 'a>>;

/// Judges requests, and records events and bytes.
pub trait RequestJudge: Send + Sync + 'static {
    fn request(&self, request: &RequestInfo<'_>) -> policy::Decision;
    /// Awaits a person's answer if the decision is `ask`. The default implementation asks no person and returns the
    /// decision unchanged.
    fn await_approval<'a>(&'a self, _: &'a RequestInfo<'a>, decision: policy::Decision) -> PendingDecision<'a> {
        Box::pin(std::future::ready(decision))
    }
    fn injections(&self, request: &RequestInfo<'_>) -> Vec<Injection>;
    fn revision(&self) -> u64;
    fn record(&self, event: crate::event::Event);
    /// Counts bytes; returns false once the limit is exceeded.
    fn count_bytes(&self, bytes_in: u64, bytes_out: u64) -> bool;
}

/// Address of a connection, and the host names that are allowed there.
pub struct Destination {
    pub names: Vec<String>,
    pub addr: SocketAddr,
}
