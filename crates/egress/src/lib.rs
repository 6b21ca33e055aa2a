//! Egress: what the network broker reads from a guest and from the network, and what it writes back, as plain
//! functions over bytes. Nothing here opens a socket, reads a clock or waits; every reader is bounded, takes any
//! input, and says the same about bytes that come one at a time as about bytes that come at once.
//!
//! ```text
//! dns      questions of the guest, answers to them, questions to the resolvers of the host
//! hosts    names that the host itself knows          resolv   which resolvers the host uses
//! hello    the name a TLS client asks for            socks    SOCKS5 as a server
//! http1    heads of HTTP/1.x                         chunked  bodies in chunks
//! ```

mod authority;
pub mod authority_of_guest;
pub mod broker;
mod bytes;
pub mod chunked;
pub mod court;
pub mod dns;
pub mod event;
pub mod hello;
pub mod hosts;
pub mod http1;
pub mod inspect;
pub mod resolv;
pub mod socks;
