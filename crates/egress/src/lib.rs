//! Egress: the network of a guest. What is read from a guest and from the network, and what is written back, are plain
//! functions over bytes: they open no socket, read no clock and never wait; every reader is bounded, takes any input,
//! and says the same about bytes that come one at a time as about bytes that come at once. Only the broker and the
//! inspector of requests hold connections.
//!
//! ```text
//! dns      questions of the guest, answers to them, questions to the resolvers of the host
//! hosts    names that the host itself knows          resolv   which resolvers the host uses
//! hello    the name a TLS client asks for            socks    SOCKS5 as a server
//! http1    heads of HTTP/1.x                         chunked  bodies in chunks
//! inspect  requests judged one by one, secrets       court    what it asks of the gate
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
