//! What the inspector of requests needs from the gate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// One request of the guest: the host in the one spelling of the policy, the path raw and with its query.
pub struct RequestAsk<'a> {
    pub host: &'a str,
    pub addr: IpAddr,
    pub port: u16,
    pub method: &'a str,
    pub path: &'a str,
}

/// A secret that a request gets on its way out.
pub struct Injection {
    pub header: String,
    /// What the guest has instead of the secret.
    pub placeholder: String,
    /// The header's value, with the secret filled into its format.
    pub value: Arc<[u8]>,
    /// The bare secret, to be masked in answers.
    pub secret: Arc<[u8]>,
}

/// A decision that a person may have to make first.
pub type Settling<'a> = std::pin::Pin<Box<dyn Future<Output = policy::Decision> + Send + 'a>>;

/// Who decides about requests, and who hears of them.
pub trait Court: Send + Sync + 'static {
    fn request(&self, ask: &RequestAsk<'_>) -> policy::Decision;
    /// Waits for a person where the decision is to ask one. Whoever has nobody to ask leaves it as it is.
    fn settle<'a>(&'a self, _: &'a RequestAsk<'a>, decision: policy::Decision) -> Settling<'a> {
        Box::pin(std::future::ready(decision))
    }
    fn injections(&self, ask: &RequestAsk<'_>) -> Vec<Injection>;
    fn revision(&self) -> u64;
    fn tell(&self, event: crate::event::Event);
    /// Counts bytes; false when the limit is met.
    fn spend(&self, bytes_in: u64, bytes_out: u64) -> bool;
}

/// Where a stream wanted to go, and the names under which that is allowed.
pub struct Destination {
    pub names: Vec<String>,
    pub addr: SocketAddr,
}
