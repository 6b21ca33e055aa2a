//! Parsers of wire formats: HTTP/1 heads and bodies, DNS, TLS and SOCKS messages, and the host's name service files.

mod chunked;
mod dns;
mod fuzz;
mod hello;
mod hosts;
mod http1;
mod input;
mod socks;
