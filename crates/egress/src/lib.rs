//! Egress: the network broker of one guest. `broker` is the entry point; behind it one thread serves the guest's
//! sockets, has the gate judge every name, connection and request, and relays what the rules allow.
//!
//! A module uses only modules below it:
//!
//! ```text
//! broker                starts and stops the broker thread
//! pending_connections   captured SYNs: judged, dialed, admitted     udp        UDP datagrams and ICMP echo requests
//! endpoint              destination of a connection: own service or remote address
//! proxy                 SOCKS5 and HTTP proxy clients
//! connection            one TCP connection, from its first bytes    inspect    HTTP requests read one by one, secrets injected
//! forward               plain HTTP/1, judged by Host                resolver   the guest's DNS queries
//! pump                  byte relay (copy, then splice)
//! flow                  byte counts and events of one flow          dial       TCP connections to servers
//! gate                  rules in force, rulings, byte limit
//! request_judge         the gate's interface to `inspect`           pins       which name resolved to which address
//! event_queue           events not yet taken, behind an eventfd     upstream   the host's resolvers and hosts file
//! setup, approval, event  inputs, approval by a person, events      first_bytes  protocol detection on first bytes
//! ```
//!
//! `refuser` is the name server of a guest without a network, which has no broker.
//!
//! Below them are pure parsers over bytes. They open no socket, read no clock and never block. Every parser is bounded,
//! accepts any input, and gives the same result for bytes that arrive one at a time as for bytes that arrive at once:
//! `dns`, `hosts`, `resolv_conf`, `hello` (TLS ClientHello), `socks`, `http1`, `chunked`.

pub mod approval;
mod authority;
pub mod broker;
mod byte_reader;
pub mod chunked;
mod connection;
mod dial;
pub mod dns;
mod endpoint;
pub mod event;
mod event_queue;
mod first_bytes;
mod flow;
mod forward;
mod gate;
pub mod guest_ca;
pub mod hello;
pub mod hosts;
pub mod http1;
pub mod inspect;
mod pending_connections;
mod pins;
mod proxy;
mod pump;
pub mod refuser;
pub mod request_judge;
pub mod resolv_conf;
mod resolver;
mod setup;
pub mod socks;
mod udp;
mod upstream;
