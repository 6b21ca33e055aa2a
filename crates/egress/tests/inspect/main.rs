//! The request inspector between real clients and real servers.

mod bad_answers;
mod bad_input;
mod fuzz;
mod http1;
mod http2;
mod programs;
mod secrets;
mod servers;
mod speed;
mod tls;
mod world;
