//! Egress: the network of one guest. `broker` is the face; behind it one thread answers at the guest's doors, asks the
//! gate about everything that comes, and passes on what may pass.
//!
//! ```text
//! broker   starts and stops it all                   event    what is told               asks     questions to a person
//! gate     rules in force, decisions, bytes          pins     which name led where       journal  what happened
//! names    questions at the door, resolvers          upstream whom the host asks
//! entrance connections that are asked for            tcp      connections to their end
//! first    what first bytes are
//! flow     bytes counted and told                    pump     the relay
//! forward  plain HTTP in the name of a host          proxy    clients of a proxy         udp      datagrams
//! inspect  requests read one by one                  court    what the inspector needs
//! ```
//!
//! Below them are plain functions over bytes. They open no socket, read no clock and never wait; every reader is
//! bounded, takes any input, and says the same about bytes that come one at a time as about bytes that come at once.
//!
//! ```text
//! dns      questions of the guest, answers to them, questions to the resolvers of the host
//! hosts    names that the host itself knows          resolv   which resolvers the host uses
//! hello    the name a TLS client asks for            socks    SOCKS5 as a server
//! http1    heads of HTTP/1.x                         chunked  bodies in chunks
//! inspect  requests judged one by one, secrets       court    what it asks of the gate
//! ```

pub mod asks;
mod authority;
pub mod authority_of_guest;
pub mod broker;
mod bytes;
pub mod chunked;
pub mod court;
pub mod dns;
mod entrance;
pub mod event;
mod first;
mod flow;
mod forward;
mod gate;
pub mod hello;
pub mod hosts;
pub mod http1;
pub mod inspect;
mod journal;
mod names;
mod pins;
mod proxy;
mod pump;
pub mod resolv;
pub mod socks;
mod tcp;
mod udp;
mod upstream;
